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
//! - **Each lane has a token**: neighbouring cells are neighbouring columns, and a warp stays in
//!   one plane.
//! - **Sums are compensated**, as in `features`.

use thalweg_simt::kernel;

use crate::vision::PLANES;
use crate::vision::patch::{Patch, Sum, Token};

kernel! {
    /// See [`compress`](crate::vision::compress).
    pub(super) unsafe fn compress(
        cx: impl Simt, height: u32, width: u32, patch: u32, selected: u32, capacity: u32,
        planes: In<f32>, sides: In<i32>, cu_seqlens: In<i32>, patch_id: In<i32>, counts: In<u32>,
        tokens: Out<f32>, position: Out<f32>,
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
    grid(capacity.div_ceil(32)) block(32, PLANES)
    {
        let (t, plane) = (cx.global_x(), cx.thread_idx().y);
        let count = counts.get(cx, 1).min(selected);
        if t >= counts.get(cx, 0).min(capacity) || count == 0 {
            return;
        }
        let patches = height.div_ceil(patch) * width.div_ceil(patch);
        let token = Token::find(cx, t, count, patches, sides, cu_seqlens, patch_id);
        let cell = token.cell(cx, Patch::new(token.patch, height, width, patch));
        let mut sum = Sum::default();
        let start = planes.as_ptr().add((plane * height * width) as usize);
        for y in cell.y..cell.y_end {
            for x in cell.x..cell.x_end {
                sum.add(cx.load(start.add((y * width + x) as usize)));
            }
        }
        let mean = sum.total() * cx.recip_approx(cell.area() as f32);
        tokens.set(cx, t as usize * PLANES as usize + plane as usize, mean);
        match plane {
            0 => position.set(cx, t as usize * 2, (cell.y + cell.y_end) as f32 * 0.5 * cx.recip_approx(height as f32)),
            1 => position.set(cx, t as usize * 2 + 1, (cell.x + cell.x_end) as f32 * 0.5 * cx.recip_approx(width as f32)),
            _ => {}
        }
    }
}
