//! Information: the entropy of every patch's luma.
//!
//! ```text
//! for every patch n, in parallel:
//!     count[256] = histogram of (77 R + 150 G + 29 B + 128) >> 8 over the patch's pixels
//!     entropy[n] = sum of -p log2 p over the bins, p = count / pixels, divided by 8
//! ```
//!
//! Launch: a block for each patch, with a warp for every 1024 pixels of a whole patch, at most 8
//! warps.
//! Memory: 3 bytes read for each pixel, 4 written for each patch; 2 KiB of shared memory.
//!
//! - **Counts are integers in shared memory**: they are exact in any order, so atomics do not make
//!   results vary.
//! - **A patch of 32 x 32 has one warp**: more warps would wait at barriers for only 256 bins of
//!   work.
//! - **It computes `p log2 p` and not `log2 n - sum c log2 c / n`**: for a large patch the latter
//!   subtracts numbers near 28. A bin with all pixels contributes exactly 0, so a constant patch
//!   has exactly no entropy.

use thalweg_simt::kernel;

use crate::vision::patch::{Patch, Sum, pixel};

/// Bins of the histogram.
const BINS: u32 = 256;
/// The most threads of a block.
#[cfg(not(target_arch = "nvptx64"))]
const THREADS: u32 = 256;

kernel! {
    /// Computes the Shannon entropy of the luma histogram of each patch in units of 8 bits, so in
    /// [0, 1]: `rgb` [H, W, 3] to `entropy` \[N\], N = ceil(H / P) x ceil(W / P) patches in raster
    /// order.
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
    block(((patch * patch).div_ceil(1024) * 32).min(THREADS))
    shared((BINS + THREADS) * 4)
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
            // The weights add up to 256, so a bin is at most 255.
            cx.shared_add(count, (77 * r + 150 * g + 29 * b + 128) >> 8, 1);
        });
        cx.barrier();

        let per_pixel = cx.recip_approx(area.area() as f32);
        let mut bits = Sum::default();
        let mut bin = rank;
        while bin < BINS {
            let count = cx.shared_get(count, bin);
            if count > 0 && count < area.area() {
                let p = count as f32 * per_pixel;
                bits.add(-p * cx.log2_approx(p));
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
