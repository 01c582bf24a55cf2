//! Patch features: the mean of every plane over every patch.
//!
//! ```text
//! for every patch n, in parallel:
//!     for every plane k:
//!         features[n][k] = sum of planes[k] over the patch's pixels / number of them
//! ```
//!
//! Launch: a block a patch, a warp for every 1024 pixels of a whole patch, at most 8.
//! Memory: 52 bytes read a pixel, 52 written a patch; 13 KiB of shared memory or less.
//!
//! - **A thread takes every nth pixel of the patch, all 13 planes of it**: 13 independent loads in flight and one index
//!   for them; at P = 32 a warp's load is one row of one plane, a whole line.
//! - **Compensated sums**: a thread may add a million pixels when the patch is the image, and a constant plane
//!   rounds the same way each time. Four additions a value hide behind memory.
//! - **One barrier**: partial sums go to shared memory, plane by plane, and 13 threads add them in order.
//!   That rounds the same way everywhere, needs no atomics, and on the CPU costs one
//!   yield a thread where a warp reduction costs many. Rows are padded by one so that the 13 readers
//!   meet no bank twice.

use thalweg_simt::kernel;

use crate::vision::PLANES;
use crate::vision::patch::{Patch, Sum};

kernel! {
    /// Mean of each plane over each patch: `planes` [13, H, W] to `features` [N, 13], N = ceil(H / P) x ceil(W / P)
    /// patches in raster order.
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
    block((patch * patch).div_ceil(1024).min(8) * 32)
    shared(((patch * patch).div_ceil(1024).min(8) * 32 + 1) * 13 * 4)
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
            let mean = sum.total() * cx.recip(area.area() as f32);
            features.set(cx, (n * PLANES + rank) as usize, mean);
        }
    }
}
