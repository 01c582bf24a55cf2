//! Patch features: the mean of every plane over every patch.
//!
//! ```text
//! for every patch n, in parallel:
//!     for every plane k:
//!         features[n][k] = sum of planes[k] over the patch's pixels / number of them
//! ```
//!
//! Launch: a block for each patch, with a warp for every 1024 pixels of a whole patch, at most 8
//! warps.
//! Memory: 52 bytes read for each pixel, 52 written for each patch; at most 13.1 KiB of shared
//! memory.
//!
//! - **A thread takes all 13 planes of every nth pixel of the patch**: 13 independent loads are in
//!   flight for one index. With patches of 32 x 32 a warp loads one row of one plane, which is one
//!   line.
//! - **Sums are compensated**: a thread may add a million pixels if the patch is the whole image,
//!   and in a constant plane each addition rounds the same way. The additions are hidden behind
//!   memory.
//! - **There is one barrier**: partial sums go to shared memory plane by plane, and 13 threads add
//!   them in order. The result rounds the same way everywhere and needs no atomics. On the CPU
//!   device a barrier costs each thread one switch, a warp reduction many. Rows are one word longer
//!   than the number of threads, so that the 13 readers have no bank conflicts.

use thalweg_simt::kernel;

use crate::vision::PLANES;
use crate::vision::patch::{Patch, Sum};

/// The threads of a block.
#[cfg(not(target_arch = "nvptx64"))]
fn threads(patch: u128) -> u128 {
    (patch * patch).div_ceil(1024).min(8) * 32
}

kernel! {
    /// Computes the mean of each plane over each patch: `planes` [13, H, W] to `features` [N, 13],
    /// N = ceil(H / P) x ceil(W / P) patches in raster order.
    pub unsafe fn features(
        cx: impl Cooperative, height: u32, width: u32, patch: u32, planes: In<f32>, features: Out<f32>,
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        (1..=16384).contains(&patch),
        planes.len() == 13 * height * width,
        features.len() == 13 * height.div_ceil(patch) * width.div_ceil(patch),
    }
    grid(height.div_ceil(patch) * width.div_ceil(patch))
    block(threads(patch))
    shared((threads(patch) + 1) * PLANES * 4)
    {
        let n = cx.block_idx().x;
        let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
        let area = Patch::new(n, height, width, patch);
        let size = (height * width) as usize;

        let mut sums = [Sum::default(); PLANES as usize];
        area.every(rank, threads, |y, x| {
            let mut p = planes.as_ptr().add((y * width + x) as usize);
            for sum in &mut sums {
                sum.add(cx.load(p));
                p = p.wrapping_add(size);
            }
        });

        let partial = cx.shared::<f32>(0);
        let pitch = threads + 1;
        for (plane, sum) in sums.into_iter().enumerate() {
            cx.shared_set(partial, plane as u32 * pitch + rank, sum.total());
        }
        cx.barrier();
        if rank < PLANES {
            let mut sum = Sum::default();
            for thread in 0..threads {
                sum.add(cx.shared_get(partial, rank * pitch + thread));
            }
            let mean = sum.total() * cx.recip_approx(area.area() as f32);
            features.set(cx, (n * PLANES + rank) as usize, mean);
        }
    }
}
