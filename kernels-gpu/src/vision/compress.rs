//! Compression: every selected patch as side^2 tokens, packed.
//!
//! ```text
//! for every token t < T and plane c, in parallel:
//!     k = the selected patch with cu_seqlens[k] <= t < cu_seqlens[k + 1]; n = its side
//!     (cy, cx) = the token's cell: (t - cu_seqlens[k]) / n and % n
//!     rows     = floor(cy ph / n) .. ceil((cy + 1) ph / n) of ph rows, columns likewise
//!     tokens[t][c] = mean of planes[c] over the cell
//!     position[t]  = (middle of rows / H, middle of columns / W)
//! ```
//!
//! Launch: blocks of 32 tokens x 13 planes. The grid covers `capacity` tokens. T is read on the
//! device, and threads past it return at once.
//! Memory: 52 bytes read for each pixel of a selected patch, more where cells overlap because the
//! side does not divide the patch; 60 written for each token.
//!
//! - **A token finds its patch**, by bisection of `cu_seqlens`. If each patch wrote its own tokens
//!   instead, wrong offsets could make two patches write one row. Here each row has one owner, so
//!   wrong offsets give wrong tokens and never a race. The threads also share large patches evenly.
//! - **Each lane has a token**: neighboring cells are neighboring columns, and a warp stays in
//!   one plane.
//! - **Sums are compensated**, as in `features`.

use thalweg_simt::kernel;

use crate::vision::patch::{Patch, Sum, Token};

kernel! {
    /// See [`compress`](crate::vision::compress).
    pub(super) fn compress(
        t: impl Simt, height: u32, width: u32, patch: u32, selected: u32, capacity: u32,
        planes: In<f32>[13, height, width],
        sides: In<i32>[patches = height.div_ceil(patch) * width.div_ceil(patch)],
        cu_seqlens: In<i32>[ends = selected + 1], patch_id: In<i32>[selected], counts: In<u32>[2],
        tokens: Out<f32>[capacity, 13] by [x, y], position: Out<f32>[capacity, 2] by [x, y],
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        (1..=16384).contains(&patch),
        capacity <= 2147483647,
        planes.len() == 13 * height * width,
        sides.len() == height.div_ceil(patch) * width.div_ceil(patch),
        cu_seqlens.len() > selected,
        patch_id.len() >= selected,
        counts.len() == 2,
        tokens.len() == 13 * capacity,
        position.len() == 2 * capacity,
    }
    grid(capacity.div_ceil(32)) block(32, 13)
    {
        let Some(cell) = tokens.cell(t) else { return };
        let [at, plane] = cell.at();
        let count = counts.get(t, [1]).min(selected);
        if at >= counts.get(t, [0]) || count == 0 {
            return;
        }
        let token = Token::find(
            at,
            count,
            patches,
            |n| sides.get(t, [n]),
            |k| cu_seqlens.get(t, [k]),
            |k| patch_id.get(t, [k]),
        );
        let pixels = token.cell(**t, Patch::new(token.patch, height, width, patch));
        let mut sum = Sum::default();
        for y in pixels.y..pixels.y_end {
            for x in pixels.x..pixels.x_end {
                sum.add(planes.get(t, [plane, y, x]));
            }
        }
        cell.set(sum.total() * t.recip_approx(pixels.area() as f32));
        if let Some(position) = position.cell(t) {
            position.set(match plane {
                0 => (pixels.y + pixels.y_end) as f32 * 0.5 * t.recip_approx(height as f32),
                _ => (pixels.x + pixels.x_end) as f32 * 0.5 * t.recip_approx(width as f32),
            });
        }
    }
}
