//! Features and entropy of every patch, straight from the image: the fused path, which writes no
//! plane.
//!
//! ```text
//! for every patch n, in parallel:
//!     for every pixel: its 13 planes, as in `textures`; its bin, as in `entropy`
//!     features[n] = means of the planes; entropy[n] = entropy of the histogram of bins
//! ```
//!
//! Launch: `analyze_small` takes a warp for each patch, 4 in a block, if patches have at most 32
//! pixels a side; `analyze_large` takes a block for each patch. The function
//! [`analyze`](crate::vision::analyze) chooses. The grid has one dimension and covers the patches
//! of all images: for images of mixed sizes, a grid of the rows and columns of the largest image
//! would be mostly empty. Each patch finds its image in the table once.
//! Memory: 3 bytes read for each pixel, once, and 56 written for each patch.
//!
//! - **A thread reads 4 pixels at a time** if rows start on words and the patch consists of whole
//!   groups of 4 pixels; otherwise it reads one pixel at a time. The whole warp decides that for
//!   its patch, so one launch takes images of any widths.
//! - **A thread walks down** 4 columns of pixels, so each row costs it the luma of one row, and its
//!   sums stay in registers until the end of the strip.
//! - **Linear parts are added up before they are scaled**: L*a*b* is made from sums of responses,
//!   R, G and B are added up in two words, and the sum of Gy needs the first and the last rows
//!   only, because what is between them cancels.
//! - **y and x are known**: the mean of a plane that is linear is its value in the middle.
//! - **The mean eccentricity comes from 16 points** if the patch is far enough from the fixation:
//!   there the distance is smooth, and Gauss' quadrature with 4 x 4 points gives its mean, one
//!   point for each of 16 lanes. Patches nearer than twice their extent, and those below 16 pixels
//!   a side, add up every pixel.
//! - **The table of linear light and the histogram are in shared memory**. `dp4a` makes an address
//!   there from a pixel in one instruction: it takes the byte, scales it and adds the base.
//! - **Sums of at most 32 rows are plain**; `analyze_large` compensates the additions beyond.
//!   Errors stay as small as those of `features`.
//! - **Entropy is the sum of c (log2 n - log2 c) / n**: a bin with all pixels contributes exactly
//!   0, and so does an empty one.

mod distance;
mod share;
mod strip;
mod totals;

use thalweg_simt::kernel;

use crate::vision::layout::Row;
use crate::vision::patch::Sum;
use crate::vision::texel::{LINEAR, Place};
use crate::vision::{ECCENTRICITY, PLANES};
use distance::{near, node};
use share::Share;
use strip::{SUMMED, Strip};
use totals::{BINS, VALUES, bits, finish, keep, kept};

/// Patches of a block of `analyze_small`.
const TEAMS: u32 = 4;
/// The largest side of its patches.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const SMALL: u32 = 32;

/// Bytes of the table of linear light, or of a histogram.
const TABLE: u32 = BINS * 4;

/// The threads of a block of `analyze_large`.
#[cfg(not(target_arch = "nvptx64"))]
fn threads(patch: u128) -> u128 {
    (patch * patch).div_ceil(1024).next_power_of_two().min(8) * 32
}

kernel! {
    /// [`analyze`](crate::vision::analyze) for patches of at most 32 pixels a side.
    pub(super) unsafe fn analyze_small(
        cx: impl Cooperative, images: u32, patches: u32, bytes: u32, patch: u32, fixation_y: f32, fixation_x: f32,
        table: In<u32>, rgb: In<u8>, features: Out<f32>, entropy: Out<f32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        (1..=32).contains(&patch),
        table.len() == 4 * (images + 1),
        table.is_aligned(16),
        rgb.len() == bytes,
        features.len() == 13 * patches,
        entropy.len() == patches,
    }
    grid(patches.div_ceil(TEAMS))
    block(32, TEAMS)
    shared(TABLE + TEAMS * (TABLE + 32 * VALUES * 4))
    {
        let (lane, team) = (cx.thread_idx().x, cx.thread_idx().y);
        let n = cx.block_idx().x * TEAMS + team;
        let row = Row::of_patch(cx, table, images, patches, n);
        let linear = cx.shared::<f32>(0);
        let count = cx.shared::<u32>(TABLE * (1 + team));
        let total = cx.shared::<f32>(TABLE * (1 + TEAMS) + team * 32 * VALUES * 4);
        let mut i = 4 * (team * 32 + lane);
        while i < BINS {
            cx.shared_set4(linear, i, cx.load4(LINEAR.0.as_ptr().add(i as usize)));
            i += 4 * 32 * TEAMS;
        }
        for k in 0..BINS / 32 {
            cx.shared_set(count, lane + 32 * k, 0);
        }
        cx.barrier();
        if n >= patches {
            return;
        }
        let Some((image, area)) = row.locate(cx, rgb, bytes, n, patch) else {
            return;
        };

        let place = Place::new(cx, image.height, image.width, fixation_y, fixation_x);
        keep(cx, total, lane, place, area);
        let near = near(cx, place, area);
        let far = |v: f32| cx.shared_set(total, lane * VALUES + ECCENTRICITY, v);
        far(if lane < 16 && !near { node(cx, place, area, lane) } else { 0.0 });
        let quads = image.has_quads(area);
        let share = Share::new(area, if quads { area.width / 4 } else { area.width }, lane, 32);
        let (group, top) = share.first();
        let mut sums = [0.0; 11];
        if group < share.groups && top < area.height {
            let (y, end) = (area.y + top, area.y + (top + share.rows).min(area.height));
            let strip = Strip { image, place, table: linear, count };
            if quads {
                let x = area.x + 4 * group;
                if near {
                    far(place.distance::<_, 4>(cx, y, end, x));
                }
                sums = strip.sums::<_, 4, 6, false>(cx, y, end, x, |start| image.quad(cx, start, x));
            } else {
                let x = area.x + group;
                if near {
                    far(place.distance::<_, 1>(cx, y, end, x));
                }
                sums = strip.sums::<_, 1, 3, false>(cx, y, end, x, |start| image.single(cx, start, x));
            }
        }
        for (k, plane) in SUMMED.into_iter().enumerate() {
            if plane != ECCENTRICITY {
                cx.shared_set(total, lane * VALUES + plane, sums[k]);
            }
        }
        cx.warp_barrier();
        cx.shared_set(total, lane * VALUES + PLANES, bits(cx, count, kept(cx, total, 11)));
        cx.warp_barrier();
        finish(cx, total, 32, n, features, entropy);
    }
}

kernel! {
    /// [`analyze`](crate::vision::analyze) for patches of any size.
    pub(super) unsafe fn analyze_large(
        cx: impl Cooperative, images: u32, patches: u32, bytes: u32, patch: u32, fixation_y: f32, fixation_x: f32,
        table: In<u32>, rgb: In<u8>, features: Out<f32>, entropy: Out<f32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        (1..=16384).contains(&patch),
        table.len() == 4 * (images + 1),
        table.is_aligned(16),
        rgb.len() == bytes,
        features.len() == 13 * patches,
        entropy.len() == patches,
    }
    grid(patches)
    block(threads(patch))
    shared(2 * TABLE + threads(patch) * VALUES * 4 * 2)
    {
        let (rank, threads, n) = (cx.thread_idx().x, cx.block_dim().x, cx.block_idx().x);
        let row = Row::of_patch(cx, table, images, patches, n);
        let Some((image, area)) = row.locate(cx, rgb, bytes, n, patch) else {
            return;
        };
        let place = Place::new(cx, image.height, image.width, fixation_y, fixation_x);
        // `total` holds the sums of all threads, then their compensations.
        let (linear, count, total) = (cx.shared::<f32>(0), cx.shared::<u32>(TABLE), cx.shared::<f32>(2 * TABLE));
        let mut i = rank;
        while i < BINS {
            cx.shared_set(linear, i, LINEAR.0[i as usize]);
            cx.shared_set(count, i, 0);
            i += threads;
        }
        for k in 0..2 * VALUES {
            cx.shared_set(total, k * threads + rank, 0.0);
        }
        cx.barrier();

        keep(cx, total, rank, place, area);
        let strip = Strip { image, place, table: linear, count };
        let add = |sums: [f32; 11]| {
            for (k, plane) in SUMMED.into_iter().enumerate() {
                let at = rank * VALUES + plane;
                let excess = at + threads * VALUES;
                let mut sum = Sum { total: cx.shared_get(total, at), excess: cx.shared_get(total, excess) };
                sum.add(sums[k]);
                cx.shared_set(total, at, sum.total);
                cx.shared_set(total, excess, sum.excess);
            }
        };
        if image.has_quads(area) {
            Share::new(area, area.width / 4, rank, threads).every(|group, top, end| {
                let (x, y, end) = (area.x + 4 * group, area.y + top, area.y + end);
                add(strip.sums::<_, 4, 6, true>(cx, y, end, x, |start| image.quad(cx, start, x)));
            });
        } else {
            Share::new(area, area.width, rank, threads).every(|group, top, end| {
                let (x, y, end) = (area.x + group, area.y + top, area.y + end);
                add(strip.sums::<_, 1, 3, true>(cx, y, end, x, |start| image.single(cx, start, x)));
            });
        }
        cx.barrier();
        if rank < 32 {
            cx.shared_set(total, rank * VALUES + PLANES, bits(cx, count, kept(cx, total, 11)));
        }
        cx.barrier();
        // Call `thread_idx()` again instead of reusing `rank`: with one value, rustc's jump
        // threading would duplicate the barrier (see `scan`).
        if cx.thread_idx().x < 32 {
            finish(cx, total, threads, n, features, entropy);
        }
    }
}
