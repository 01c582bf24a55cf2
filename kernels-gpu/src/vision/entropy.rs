//! Information: the entropy of every patch's luma.
//!
//! ```text
//! for every patch n, in parallel:
//!     count[256] = histogram of (77 R + 150 G + 29 B + 128) >> 8 over the patch's pixels
//!     entropy[n] = sum of -p log2 p over the bins, p = count / pixels, divided by 8
//! ```
//!
//! Launch: a block a patch, a warp for every 1024 pixels of a whole patch, at most 8.
//! Memory: 3 bytes read a pixel, 4 written a patch; 2 KiB of shared memory or less.
//!
//! - **Integer counts in shared memory**: exact in any order, so atomics cost no determinism.
//! - **One warp for a patch of 32 x 32**: more would wait at barriers for 256 bins of work.
//! - **`p log2 p` rather than `log2 n - sum c log2 c / n`**: the latter subtracts numbers near 28 for a
//!   large patch. A full bin counts as exactly 0, so a constant patch does.

use thalweg_simt::kernel;

use crate::vision::patch::{Patch, Sum, pixel};

/// Bins of the histogram.
const BINS: u32 = 256;

kernel! {
    /// Shannon entropy of the luma histogram of each patch, in bytes (bits / 8, so in [0, 1]): `rgb` [H, W, 3] to
    /// `entropy` \[N\], N = ceil(H / P) x ceil(W / P) patches in raster order.
    pub unsafe fn entropy(
        cx: impl Cooperative, height: u32, width: u32, patch: u32, rgb: In<u8>, entropy: Out<f32>,
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        (1..=16384).contains(&patch),
        rgb.len() == 3 * height * width,
        entropy.len() == height.div_ceil(patch) * width.div_ceil(patch),
    }
    grid(height.div_ceil(patch) * width.div_ceil(patch))
    block((patch * patch).div_ceil(1024).min(8) * 32)
    shared(2048)
    {
        let n = cx.block_idx().x;
        let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
        let area = Patch::new(n, height, width, patch);

        let count = cx.shared::<u32>(0);
        let mut bin = rank;
        while bin < BINS {
            cx.shared_set(count, bin, 0);
            bin += threads;
        }
        cx.barrier();
        area.every(rank, threads, |y, x| {
            let [r, g, b] = pixel(cx, rgb, y * width + x);
            // The weights sum to 256, so a bin is at most 255.
            cx.shared_add(count, (77 * r + 150 * g + 29 * b + 128) >> 8, 1);
        });
        cx.barrier();

        let per_pixel = cx.recip(area.area() as f32);
        let mut bits = Sum::default();
        let mut bin = rank;
        while bin < BINS {
            let count = cx.shared_get(count, bin);
            if count > 0 && count < area.area() {
                let p = count as f32 * per_pixel;
                bits.add(-p * cx.log2(p));
            }
            bin += threads;
        }
        let partial = cx.shared::<f32>(BINS * 4);
        cx.shared_set(partial, rank, bits.total());
        cx.barrier();
        if rank == 0 {
            let mut bits = Sum::default();
            for thread in 0..threads {
                bits.add(cx.shared_get(partial, thread));
            }
            entropy.set(cx, n as usize, (bits.total() * 0.125).min(1.0));
        }
    }
}
