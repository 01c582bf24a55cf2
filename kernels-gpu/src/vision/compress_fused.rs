//! Compression from the image: the tokens of the selected patches, without a plane in memory.
//!
//! ```text
//! for every token t < T, in parallel:
//!     k, cell, rows, columns = as in `compress`, of the image that the patch is in
//!     for every pixel of the cell: its 13 planes, as in `textures`
//!     tokens[t] = their means; position[t] = (middle of rows / H, middle of columns / W)
//! ```
//!
//! Launch: blocks of 32 tokens x 2 threads, one for color and place, one for the planes that need
//! a window of luma. The grid covers `capacity` tokens. T is read on the device, and threads past
//! it return at once.
//! Memory: 3 bytes read for each pixel of a selected patch, from L2 if they are still there from
//! `analyze`, and 60 written for each token.
//!
//! - **A token finds its patch, and the patch its image**, so that each row of the output has one
//!   owner whatever the buffers hold.
//! - **A token has two threads**, not 13 as in `compress`: the planes of a group come from the same
//!   bytes. The two warps of a block have a group each, so no warp diverges over it.
//! - **Along a row only the right column is new**: the two others are known, so a pixel takes 9
//!   bytes instead of 27.
//! - **Sums are compensated**, as in `features`.
//!
//! Latency limits it: the few blocks of a usual budget do not fill a GPU. See `benches/record`.

use thalweg_simt::{Simt, bf16, f16, kernel};

use crate::parts::number::scaled;
use crate::vision::PLANES;
use crate::vision::layout::Row;
use crate::vision::patch::{Cell, Sum, Token};
use crate::vision::texel::{
    CONTRAST, Column, GRADIENT, Image, LINEAR, Place, Walk, channels, contrast, eccentricity, gradient, lab, response,
};

macro_rules! compress_fused {
    ($(#[$doc:meta])* $name:ident $element:ident $put:expr) => {
        kernel! {
            $(#[$doc])*
            pub(super) unsafe fn $name(
                cx: impl Simt, images: u32, patches: u32, bytes: u32, patch: u32, selected: u32, capacity: u32,
                fixation_y: f32, fixation_x: f32,
                table: In<u32>, rgb: In<u8>, sides: In<i32>, cu_seqlens: In<i32>, patch_id: In<i32>, counts: In<u32>,
                tokens: Out<$element>, position: Out<f32>,
            )
            require {
                (1..=65535).contains(&images),
                (1..=268435456).contains(&patches),
                (1..=16384).contains(&patch),
                capacity <= 2147483647,
                table.len() == 4 * (images + 1),
                table.is_aligned(16),
                rgb.len() == bytes,
                sides.len() == patches,
                cu_seqlens.len() > selected,
                patch_id.len() >= selected,
                counts.len() == 2,
                tokens.len() == 13 * capacity,
                position.len() == 2 * capacity,
            }
            grid(capacity.div_ceil(32)) block(32, 2)
            {
                let t = cx.global_x();
                let count = counts.get(cx, 1).min(selected);
                if t >= counts.get(cx, 0).min(capacity) || count == 0 {
                    return;
                }
                let token = Token::find(
                    t,
                    count,
                    patches,
                    |n| sides.get(cx, n),
                    |k| cu_seqlens.get(cx, k),
                    |k| patch_id.get(cx, k),
                );
                let row = Row::of_patch(cx, table, images, patches, token.patch);
                let Some((image, area)) = row.locate(cx, rgb, bytes, token.patch, patch) else {
                    return;
                };
                let Image { height, width, .. } = image;
                let cell = token.cell(cx, area);
                let put = |plane: u32, v: f32| {
                    tokens.set(cx, t as usize * PLANES as usize + plane as usize, $put(cx, v));
                };
                if cx.thread_idx().y == 0 {
                    let place = Place::new(cx, height, width, fixation_y, fixation_x);
                    color(cx, image, place, cell, put);
                    position.set(cx, t as usize * 2, (cell.y + cell.y_end) as f32 * 0.5 * cx.recip_approx(height as f32));
                    position.set(cx, t as usize * 2 + 1, (cell.x + cell.x_end) as f32 * 0.5 * cx.recip_approx(width as f32));
                } else {
                    structure(cx, image, cell, put);
                }
            }
        }
    };
}

compress_fused! {
    /// See [`compress_fused`](crate::vision::compress_fused).
    compress_fused f32 (|_, v| v)
}
compress_fused! {
    /// See [`compress_fused_f16`](crate::vision::compress_fused_f16).
    compress_fused_f16 u16 (|_, v| f16::from_f32(v).to_bits())
}
compress_fused! {
    /// See [`compress_fused_bf16`](crate::vision::compress_fused_bf16).
    compress_fused_bf16 u16 (|_, v| bf16::from_f32(v).to_bits())
}

/// Computes the planes that need one pixel only: color and place.
///
/// # Safety
/// The cell is inside the image, and `rgb` holds the image.
#[inline(always)]
unsafe fn color(cx: impl Simt, image: Image, place: Place, cell: Cell, put: impl Fn(u32, f32)) {
    let mut sums = [Sum::default(); 7];
    for y in cell.y..cell.y_end {
        let dy = place.row(cx, y).1;
        for x in cell.x..cell.x_end {
            // SAFETY: the pixel is in the cell, which the caller promises to be inside the image.
            let rgb = channels(unsafe { image.pixel(cx, image.start(y), x) });
            let [r, g, b] = rgb.map(|v| scaled(cx, v, 1.0 / 255.0));
            let [f, h, k] = response(cx, rgb.map(|v| LINEAR.0[v as usize]));
            let distance = eccentricity(cx, dy, place.column(cx, x).1);
            let values = [r, g, b, f, h, k, distance];
            for k in 0..values.len() {
                sums[k].add(values[k]);
            }
        }
    }
    let per_pixel = cx.recip_approx(cell.area() as f32);
    let [r, g, b, f, h, k, distance] = sums.map(|sum| sum.total() * per_pixel);
    let [l, a, bb] = lab(cx, [f, h, k], 1.0);
    let middle = |start: u32, end: u32| (start + end - 1) as f32 * 0.5;
    put(0, r);
    put(1, g);
    put(2, b);
    put(3, l);
    put(4, a);
    put(5, bb);
    put(9, middle(cell.y, cell.y_end) * place.scale[0]);
    put(10, middle(cell.x, cell.x_end) * place.scale[1]);
    put(11, distance);
}

/// Computes the planes that need a window of luma: gradients and contrast.
///
/// # Safety
/// As for [`color`].
#[inline(always)]
unsafe fn structure(cx: impl Simt, image: Image, cell: Cell, put: impl Fn(u32, f32)) {
    let mut sums = [Sum::default(); 4];
    for y in cell.y..cell.y_end {
        let row = image.start(y);
        let rows = [image.above(y, row), row, image.below(y, row)];
        let column = |x: u32| {
            // SAFETY: the column is in the cell, or beside it and inside the image; so are the
            // rows.
            let [a, b, c] = rows.map(|row| unsafe { image.pixel(cx, row, x) });
            let [column] = Walk::new(cx, [a], [b]).down(cx, [c]);
            column
        };
        let (mut left, mut middle): (Column, Column) = (column(cell.x.max(1) - 1), column(cell.x));
        for x in cell.x..cell.x_end {
            let right = column((x + 1).min(image.width - 1));
            let window = [left, middle, right];
            let (gx, gy, edge) = gradient(cx, window);
            let values = [gx, gy, edge, contrast(cx, window)];
            for k in 0..values.len() {
                sums[k].add(values[k]);
            }
            (left, middle) = (middle, right);
        }
    }
    let per_pixel = cx.recip_approx(cell.area() as f32);
    let [gx, gy, edge, deviation] = sums.map(|sum| sum.total() * per_pixel);
    put(6, gx * GRADIENT);
    put(7, gy * GRADIENT);
    put(8, edge * GRADIENT);
    put(12, deviation * CONTRAST);
}
