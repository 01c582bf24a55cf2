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
//! - **The bounds are for registers**: the assembler takes 64, and starts all 13 loads before the
//!   first addition. Without bounds it took 56 and added between the loads, and the kernel took
//!   1.21 times as long on an H200.
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
    pub fn features(
        b: impl Cooperative, height: u32, width: u32, patch: u32, planes: In<f32>[13, height, width],
        features: Out<f32>[patches = height.div_ceil(patch) * width.div_ceil(patch), 13] by [block, rank],
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        (1..=16384).contains(&patch),
        planes.len() == 13 * height * width,
        features.len() == 13 * height.div_ceil(patch) * width.div_ceil(patch),
    }
    grid(patches) block(threads(patch)) bounds(256, 4)
    shared((threads(patch) + 1) * PLANES * 4)
    {
        let area = Patch::new(b.idx().x, height, width, patch);
        let texels = planes.area([area.y, area.x], [area.height, area.width]);
        let sums = b.each((), move |t, ()| {
            let mut sums = [Sum::default(); PLANES as usize];
            for texel in texels.every(t, t.rank(), t.threads()) {
                for (plane, sum) in sums.iter_mut().enumerate() {
                    sum.add(texel.get([plane as u32]));
                }
            }
            sums.map(|sum| sum.total())
        });
        let threads = b.threads();
        let partial = b.shared::<f32>((threads + 1) * PLANES);
        let filled = b.publish_rows(partial, threads + 1, &sums);
        let partial = b.sync(filled.read());
        b.each(&partial, move |t, partial| {
            for mean in features.mine(t) {
                let [_, plane] = mean.at();
                let mut sum = Sum::default();
                for thread in 0..threads {
                    sum.add(partial.get(t, plane * (threads + 1) + thread));
                }
                mean.set(sum.total() * t.recip_approx(area.area() as f32));
            }
        });
    }
}
