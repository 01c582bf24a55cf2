//! Texture array: 13 planes from sRGB, in f32.
//!
//! ```text
//! for every pixel (y, x):
//!     planes 0..3   = R, G, B / 255
//!     planes 3..6   = L*a*b* of linear RGB: (L / 100, (a + 128) / 255, (b + 128) / 255)
//!     l             = 299 R + 587 G + 114 B over the 3x3 window, border replicated (integers)
//!     planes 6..9   = Gx, Gy, |G|: Sobel sums of l / (8 * 255000)
//!     planes 9..12  = y / (H - 1), x / (W - 1), distance from the fixation / largest such distance
//!     plane  12     = 2 * standard deviation of l / 255000
//! ```
//!
//! Launch: blocks of 256 threads. A thread takes 4 pixels of 2 rows, so a block covers 1024 x 2
//! pixels.
//! Memory: 3 bytes read for each pixel, 52 written; neighboring rows come from L1.
//!
//! - **One computation, two layouts.** If rows start on words and planes on 16 bytes, a thread
//!   takes 4 adjacent pixels: their 12 bytes are three aligned words, one more word on each side
//!   holds the neighbors, and a plane takes one `st.global.cs.v4`. Otherwise a thread takes every
//!   256th of 1024 pixels, so that the stores of a warp are still to whole lines.
//! - **Stores are streaming**: 52 bytes for each pixel would otherwise push the image out of L2.
//! - **A thread takes two rows**: the second one costs one row of luma instead of three. That helps
//!   the CPU device; on a GPU memory is the limit, not arithmetic.
//! - **The arithmetic** is that of `texel`, which the fused path uses, too.

use thalweg_simt::{Simt, kernel};

use crate::vision::texel::{Image, Place, Walk, texels};

/// Threads of a block.
const THREADS: u32 = 256;
/// Rows of a block.
const ROWS: u32 = 2;

kernel! {
    /// Computes the texture array of an image: `rgb` [H, W, 3] to `planes` [13, H, W].
    ///
    /// The planes are R, G, B, L\*, a\*, b\* (scaled to about [0, 1]), Gx, Gy, edge magnitude, y,
    /// x, eccentricity and local contrast. The fixation is in units of the image's height and
    /// width; (0.5, 0.5) is the center.
    pub unsafe fn textures(
        cx: impl Simt, height: u32, width: u32, fixation_y: f32, fixation_x: f32, rgb: In<u8>, planes: Out<f32>,
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        rgb.len() == 3 * height * width,
        planes.len() == 13 * height * width,
    }
    grid(width.div_ceil(4 * THREADS), height.div_ceil(ROWS)) block(THREADS)
    {
        let image = Image { height, width, rgb };
        let place = Place::new(cx, height, width, fixation_y, fixation_x);
        let p = planes.as_ptr();
        let aligned = p.addr().is_multiple_of(16);
        rows(cx, image, place, aligned, |at, v| cx.store4_streaming(p.add(at), v), |at, v| cx.store(p.add(at), v));
    }
}

/// Computes the pixels of a thread. `four` stores four values of a plane, from an element on that
/// is a multiple of 4, and is only called if the planes are `aligned`. `one` stores one value.
///
/// # Safety
/// `rgb` of the image holds it. The grid and the block are those of [`textures`].
#[inline(always)]
unsafe fn rows(
    cx: impl Simt,
    image: Image,
    place: Place,
    aligned: bool,
    four: impl Fn(usize, [f32; 4]),
    one: impl Fn(usize, f32),
) {
    let Image { height, width, .. } = image;
    let (start, top) = (cx.block_idx().x * (4 * THREADS), cx.block_idx().y * ROWS);
    let at = |plane: u32, y: u32, x: u32| (plane * height * width + y * width + x) as usize;
    if aligned && image.is_aligned() {
        let x = start + cx.thread_idx().x * 4;
        if x >= width {
            return;
        }
        // SAFETY: The image is aligned, `x` is a multiple of 4 and a column, and `columns` asks for
        // rows of the image.
        let load = |start| unsafe { image.quad(cx, start, x) };
        columns(cx, image, place, top, [x, x + 1, x + 2, x + 3], load, |plane, y, v| four(at(plane, y, x), v));
    } else {
        let mut x = start + cx.thread_idx().x;
        while x < width.min(start + 4 * THREADS) {
            // SAFETY: `x` is a column, and `columns` asks for rows of the image.
            let load = |start| unsafe { image.single(cx, start, x) };
            columns(cx, image, place, top, [x], load, |plane, y, [v]| one(at(plane, y, x), v));
            x += THREADS;
        }
    }
}

/// Computes columns `x` of the rows of a block, from `top` on. `load` takes the start of a row,
/// `put` a plane, a row and its values.
#[inline(always)]
fn columns<const N: usize, const M: usize>(
    cx: impl Simt,
    image: Image,
    place: Place,
    top: u32,
    x: [u32; N],
    load: impl Fn(u32) -> [u32; M],
    put: impl Fn(u32, u32, [f32; N]),
) {
    let x = x.map(|x| place.column(cx, x));
    let mut start = image.start(top);
    let mut row = load(start);
    let mut walk = Walk::new(cx, load(image.above(top, start)), row);
    for y in top..top + ROWS {
        if y == image.height {
            return;
        }
        start = image.below(y, start);
        let below = load(start);
        texels(cx, place.row(cx, y), x, row, walk.down(cx, below), |plane, v| put(plane, y, v));
        row = below;
    }
}
