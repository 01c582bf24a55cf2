//! Features and entropy of every patch, straight from the image: the fused path, which writes no plane.
//!
//! ```text
//! for every patch n, in parallel:
//!     for every pixel: its 13 planes, as in `textures`; its bin, as in `entropy`
//!     features[n] = means of the planes; entropy[n] = of the histogram of bins
//! ```
//!
//! Launch: `analyze_small` takes a warp a patch, 4 in a block, where patches have at most 32 pixels a side; `analyze_large`
//! takes a block a patch. The function [`analyze`] chooses. The grid covers the patches of all images, in one dimension: with images
//! of mixed sizes a grid of the largest image's rows and columns would be mostly empty. A patch finds its image in the table, once.
//! Memory: 3 bytes read a pixel, once, and 56 written a patch.
//!
//! - **Quads where they can be**: rows that start on words, and patches of whole quads, are read 4 pixels a thread at a time;
//!   others a pixel a thread. That is decided patch by patch, for the whole warp, so images of any width go in one launch.
//! - **A thread walks down** 4 columns of pixels, so a row costs it one row of luma, and sums stay in registers
//!   until the patch ends.
//! - **Linear parts are summed before they are scaled**: L*a*b* and its offsets from sums of responses, R, G and B packed
//!   in two words, Gy from the first and the last rows alone, for what is between cancels.
//! - **y and x are known**: the mean of a plane that is linear is its value in the middle.
//! - **Mean eccentricity by quadrature**: in a patch that is farther from the fixation than twice its extent, the distance is
//!   smooth, and Gauss' 4 x 4 nodes give its mean to 5e-7 of itself, a node a lane. Nearer patches, and those below 16
//!   pixels a side, add up every pixel.
//! - **Table and histogram in shared memory**, whose addresses `dp4a` makes from a pixel in one instruction: it takes
//!   the byte out, scales it and adds the base.
//! - **Plain sums of at most 32 rows**, compensated beyond: errors stay as small as those of `features`.
//! - **Entropy as sum c (log2 n - log2 c) / n**: a full bin is worth exactly 0, as an empty one.
//!
//! On an H200 a 4K frame takes 38.5 to 40 us, noise, photographs and constant images alike, 60 us where rows start between words, against 111 + 35 us for `features` and
//! `entropy` of planes that take 122 us to write; DRAM reads 24.9 MB, the image once. The aim was 30 us. Issue slots
//! bind: 104 instructions a pixel fill 26 us at one a cycle, and schedulers are busy in 77 % of the cycles; the pipe of roots
//! and exponentials is at 51 %, shared memory at 58 %, DRAM at 14 %. What did not help: a table for each bank (no
//! conflicts, but 45.5 us for its 32 KiB of shared memory), the row loop unrolled by two (38.9 us), a block a patch
//! (39.1 us). Adding up the eccentricity of every pixel costs 3.5 us. That, compensated and a pixel a thread, took 50 us.
//! See `benches/record`.

#[cfg(not(target_arch = "nvptx64"))]
use thalweg_simt::host::{DeviceSlice, Launch};
use thalweg_simt::{Cooperative, Out, Shared, kernel};

use crate::vision::layout::Row;
use crate::vision::patch::{Patch, Sum};
use crate::vision::texel::{
    CONTRAST, Column, GRADIENT, Image, LINEAR, Place, Walk, contrast, eccentricity, gradient, lab, response,
};
use crate::vision::{ECCENTRICITY, PLANES};

/// Bins of the histogram, and entries of the table of linear light.
const BINS: u32 = 256;
/// Words a thread has for its sums: 13 planes, the entropy, and one so that no two threads meet in a bank.
const VALUES: u32 = PLANES + 2;
/// The planes whose values are added up, pixel by pixel; y and x are known.
const SUMMED: [u32; 11] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12];
/// Most rows that are added up without compensation; 4 columns of so many bytes fit 16 bits.
const ROWS: u32 = 32;
/// Patches of a block of `analyze_small`.
const TEAMS: u32 = 4;
/// Largest side of its patches.
#[cfg(not(target_arch = "nvptx64"))]
const SMALL: u32 = 32;

/// Features and entropy of each patch, straight from the images, which are in `rgb` as the [`Layout`](crate::vision::Layout) of `table`
/// says: `features` [N, 13] and `entropy` \[N\], image after image, patches in raster order.
///
/// They are those of [`features`](crate::vision::features) of the planes that [`textures`](crate::vision::textures) would make, and of
/// [`entropy`](crate::vision::entropy), to rounding. `images`, `patches` (N) and `bytes` are the layout's.
///
/// Fastest where patches have 4 to 32 pixels a side, a multiple of 4 like the image's width, and `rgb` starts on a word; images of
/// other widths do not slow their neighbours down. Patches of an image that is not in `rgb` are left alone.
///
/// # Errors
/// As for a kernel: a patch side that is not within 1 to 16384, a buffer of another length, or what the launch fails with.
#[cfg(not(target_arch = "nvptx64"))]
#[allow(clippy::too_many_arguments)]
pub fn analyze<S, L: Launch<S> + ?Sized>(
    on: &L,
    images: u32,
    patches: u32,
    bytes: u32,
    patch: u32,
    fixation_y: f32,
    fixation_x: f32,
    table: &DeviceSlice<S, u32>,
    rgb: &DeviceSlice<S, u8>,
    features: &mut DeviceSlice<S, f32>,
    entropy: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let launch = if patch <= SMALL { analyze_small } else { analyze_large };
    launch(on, images, patches, bytes, patch, fixation_y, fixation_x, table, rgb, features, entropy)
}

kernel! {
    /// [`analyze`] for patches of at most 32 pixels a side.
    unsafe fn analyze_small(
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
    grid(patches.div_ceil(4))
    block(32, 4)
    shared(1024 + 4 * (1024 + 32 * 15 * 4))
    {
        let (lane, team) = (cx.thread_idx().x, cx.thread_idx().y);
        let n = cx.block_idx().x * TEAMS + team;
        let row = Row::of_patch(cx, table, images, patches, n);
        let linear = cx.shared::<f32>(0);
        let count = cx.shared::<u32>(1024 * (1 + team));
        let total = cx.shared::<f32>(1024 * (1 + TEAMS) + team * 32 * VALUES * 4);
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
    /// [`analyze`] for any patch.
    unsafe fn analyze_large(
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
    block((patch * patch).div_ceil(1024).next_power_of_two().min(8) * 32)
    shared(2048 + (patch * patch).div_ceil(1024).next_power_of_two().min(8) * 32 * 15 * 4 * 2)
    {
        let (rank, threads, n) = (cx.thread_idx().x, cx.block_dim().x, cx.block_idx().x);
        let row = Row::of_patch(cx, table, images, patches, n);
        let Some((image, area)) = row.locate(cx, rgb, bytes, n, patch) else {
            return;
        };
        let place = Place::new(cx, image.height, image.width, fixation_y, fixation_x);
        // Sums, and after all of them what these lack.
        let (linear, count, total) = (cx.shared::<f32>(0), cx.shared::<u32>(1024), cx.shared::<f32>(2048));
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
        // Asked anew, as in `scan`, or the barrier is copied.
        if cx.thread_idx().x < 32 {
            finish(cx, total, threads, n, features, entropy);
        }
    }
}

/// How the threads of a patch share it: each takes runs of rows of a group of columns.
#[derive(Clone, Copy)]
struct Share {
    groups: u32,
    height: u32,
    /// Base-2 logarithm of the number of threads side by side.
    across: u32,
    /// Of the number one above the other.
    down: u32,
    rows: u32,
    rank: u32,
}

impl Share {
    /// The part of thread `rank` of `threads`, a power of two from 32 on, where a row is `groups` groups of columns.
    #[inline(always)]
    fn new(area: Patch, groups: u32, rank: u32, threads: u32) -> Self {
        // Powers of two, so that shifts divide.
        let across = (32 - (groups - 1).leading_zeros()).min(5);
        let down = threads.trailing_zeros() - across;
        let rows = ((area.height + (1 << down) - 1) >> down).min(ROWS);
        Self { groups, height: area.height, across, down, rows, rank }
    }

    /// The thread's first group, and the rows from `top` on that it takes.
    #[inline(always)]
    fn first(self) -> (u32, u32) {
        (self.rank & ((1 << self.across) - 1), (self.rank >> self.across) * self.rows)
    }

    /// Calls `visit` with every group, first row and end of rows of the thread.
    #[inline(always)]
    fn every(self, visit: impl Fn(u32, u32, u32)) {
        let (mut group, first) = self.first();
        while group < self.groups {
            let mut top = first;
            while top < self.height {
                visit(group, top, (top + self.rows).min(self.height));
                top += self.rows << self.down;
            }
            group += 1 << self.across;
        }
    }
}

/// A thread's part of the entropy of `pixels` values in a histogram, in bytes: that of every 32nd bin, from its lane on.
///
/// # Safety
/// `count` has 256 elements.
#[inline(always)]
unsafe fn bits(cx: impl Cooperative, count: Shared<u32>, pixels: f32) -> f32 {
    let all = cx.log2(pixels);
    let mut bits = 0.0;
    for k in 0..BINS / 32 {
        // SAFETY: below 256.
        let count = unsafe { cx.shared_get(count, cx.thread_idx().x % 32 + 32 * k) } as f32;
        // A full bin is worth exactly 0, as an empty one.
        bits = cx.fma(count, all - cx.log2(count.max(1.0)), bits);
    }
    bits * 0.125
}

/// Where a thread's word lies that its sums leave free.
const SPARE: u32 = PLANES + 1;

/// Keeps what is known of a patch, in shared memory, because the registers are needed: with thread 9 and 10 the means of y
/// and x, with thread 11 the number of pixels.
///
/// # Safety
/// `total` has [`VALUES`] words for thread `rank`.
#[inline(always)]
unsafe fn keep(cx: impl Cooperative, total: Shared<f32>, rank: u32, place: Place, area: Patch) {
    let center = |start: u32, extent: u32| (2 * start + extent - 1) as f32 * 0.5;
    let v = match rank {
        9 => center(area.y, area.height) * place.scale[0],
        10 => center(area.x, area.width) * place.scale[1],
        _ => area.area() as f32,
    };
    // SAFETY: the last of the thread's words.
    unsafe { cx.shared_set(total, rank * VALUES + SPARE, v) };
}

/// What thread `rank` kept.
///
/// # Safety
/// As for [`keep`], and there was a barrier between.
#[inline(always)]
unsafe fn kept(cx: impl Cooperative, total: Shared<f32>, rank: u32) -> f32 {
    // SAFETY: the last of the thread's words.
    unsafe { cx.shared_get(total, rank * VALUES + SPARE) }
}

/// Adds the threads' sums up and writes the means and entropy of patch `n`; for one warp, all of it.
///
/// # Safety
/// `total` has [`VALUES`] words for each of `threads` threads, a multiple of 32, and what they [`keep`]; `features` and `entropy` have
/// patch `n`.
#[inline(always)]
unsafe fn finish(
    cx: impl Cooperative,
    total: Shared<f32>,
    threads: u32,
    n: u32,
    features: Out<f32>,
    entropy: Out<f32>,
) {
    // SAFETY: the caller's promise; 16 threads at a time, and the last of VALUES words is not read.
    unsafe {
        let lane = cx.thread_idx().x;
        // Two lanes a value, each for half the threads.
        let (value, first) = (lane % 16, lane / 16 * (threads / 2));
        let mut half = Sum::default();
        if value <= PLANES {
            let mut at = first * VALUES + value;
            let end = at + threads / 2 * VALUES;
            while at < end {
                let parts: [f32; 16] = core::array::from_fn(|k| cx.shared_get(total, at + k as u32 * VALUES));
                let quarter = |k: usize| sum([parts[k], parts[k + 4], parts[k + 8], parts[k + 12]]);
                half.add(sum([quarter(0), quarter(1), quarter(2), quarter(3)]));
                at += 16 * VALUES;
            }
        }
        let half = half.total();
        let mut mean = (half + cx.shuffle_xor(half, 16)) * cx.recip(kept(cx, total, 11));
        if lane == 9 || lane == 10 {
            mean = kept(cx, total, lane);
        }
        if lane < PLANES {
            features.set(cx, (n * PLANES + lane) as usize, mean);
        }
        if lane == PLANES {
            entropy.set(cx, n as usize, mean.min(1.0));
        }
    }
}

impl Place {
    /// The sum of the eccentricities of rows `top` to `end` of `N` columns from `x` on.
    #[inline(always)]
    fn distance<C: Cooperative, const N: usize>(self, cx: C, top: u32, end: u32, x: u32) -> f32 {
        let columns: [f32; N] = core::array::from_fn(|i| self.column(cx, x + i as u32).1);
        let mut distance = 0.0;
        for y in top..end {
            let dy = self.row(cx, y).1;
            distance += sum(columns.map(|dx| eccentricity(cx, dy, dx)));
        }
        distance
    }
}

/// A sum in pairs, so that additions do not wait for one another.
#[inline(always)]
fn sum<const N: usize>(v: [f32; N]) -> f32 {
    match v[..] {
        [a, b, c, d] => (a + b) + (c + d),
        _ => v.into_iter().sum(),
    }
}

/// What a thread needs to add up pixels.
#[derive(Clone, Copy)]
struct Strip {
    image: Image,
    place: Place,
    /// Linear light.
    table: Shared<f32>,
    /// The histogram.
    count: Shared<u32>,
}

/// Sums over some rows of `N` columns.
struct Sums {
    /// Of pixels as words
    all: u32,
    /// Of their first and third bytes
    outer: u32,
    responses: [f32; 3],
    gx: f32,
    edge: f32,
    distance: f32,
    deviation: f32,
}

impl Strip {
    /// The sums of the planes [`SUMMED`] over rows `top` to `end` of `N` columns from `x` on; that of the eccentricity is left
    /// at 0 unless `DISTANCE`. Counts the pixels. `load` takes the start of a row, and gives the columns and one on each side.
    ///
    /// # Safety
    /// The image holds the pixels, at least one row and at most [`ROWS`]; table and histogram have 256 elements.
    #[inline(always)]
    unsafe fn sums<C: Cooperative, const N: usize, const M: usize, const DISTANCE: bool>(
        self,
        cx: C,
        top: u32,
        end: u32,
        x: u32,
        load: impl Fn(u32) -> [u32; M],
    ) -> [f32; 11] {
        let Self { image, place, .. } = self;
        let columns: [f32; N] = core::array::from_fn(|i| place.column(cx, x + i as u32).1);
        let mut start = image.start(top);
        let mut row = load(start);
        let mut walk = Walk::new(cx, load(image.above(top, start)), row);
        // The sum of Gy telescopes: what two rows have smoothed, at the end less at the start.
        let smooth = |walk: &Walk<M>| {
            let pair = &walk.pair;
            (0..N).fold(0.0, |sum, i| sum + (cx.fma(2.0, pair[i + 1], pair[i]) + pair[i + 2]))
        };
        let above = smooth(&walk);
        let mut sums =
            Sums { all: 0, outer: 0, responses: [0.0; 3], gx: 0.0, edge: 0.0, distance: 0.0, deviation: 0.0 };
        for y in top..end {
            start = image.below(y, start);
            let below = load(start);
            // SAFETY: the caller's promise.
            unsafe { self.row::<_, N, M>(cx, row, walk.down(cx, below), &mut sums) };
            if DISTANCE {
                let dy = place.row(cx, y).1;
                sums.distance += sum(columns.map(|dx| eccentricity(cx, dy, dx)));
            }
            row = below;
        }
        let Sums { all, outer, responses, gx, edge, distance, deviation } = sums;
        let gy = smooth(&walk) - above;
        let n = (end - top) * N as u32;
        let [l, a, b] = lab(cx, responses, cx.scale(n, 1.0));
        let byte = |v: u32| cx.scale(v, 1.0 / 255.0);
        [
            byte(outer & 0xffff),
            byte(all.wrapping_sub(outer) >> 8 & 0xffff),
            byte(outer >> 16),
            l,
            a,
            b,
            gx * GRADIENT,
            gy * GRADIENT,
            edge * GRADIENT,
            distance,
            deviation * CONTRAST,
        ]
    }

    /// Adds the pixels of a row, given with its neighbours, and counts them.
    ///
    /// # Safety
    /// Table and histogram have 256 elements.
    #[inline(always)]
    unsafe fn row<C: Cooperative, const N: usize, const M: usize>(
        self,
        cx: C,
        row: [u32; M],
        c: [Column; M],
        sums: &mut Sums,
    ) {
        let Self { table, count, .. } = self;
        let mut responses = [[0.0f32; 3]; N];
        for i in 0..N {
            let pixel = row[i + 1];
            // SAFETY: the caller's promise.
            let linear = unsafe {
                // The weights sum to 256, so the bin is the second byte.
                cx.shared_count(count, cx.dot4(77 | 150 << 8 | 29 << 16, pixel, 128), 1);
                [0, 1, 2].map(|k| cx.shared_lookup(table, pixel, k))
            };
            responses[i] = response(cx, linear);
            sums.all = sums.all.wrapping_add(pixel);
            sums.outer = sums.outer.wrapping_add(pixel & 0xff_00ff);
        }
        for (k, of_all) in sums.responses.iter_mut().enumerate() {
            *of_all += sum(responses.map(|response| response[k]));
        }
        let windows: [[Column; 3]; N] = core::array::from_fn(|i| [c[i], c[i + 1], c[i + 2]]);
        sums.deviation += sum(windows.map(|w| contrast(cx, w)));
        let gradients = windows.map(|w| gradient(cx, w));
        sums.gx += sum(gradients.map(|g| g.0));
        sums.edge += sum(gradients.map(|g| g.2));
    }
}

/// Centre and half extent of a patch's rows or columns, as parts of the eccentricity; the extent such that
/// an even spread over it has the rows' variance.
#[inline(always)]
fn spread(cx: impl Cooperative, place: Place, axis: usize, start: u32, extent: u32) -> (f32, f32) {
    let center = cx.scale(2 * start + extent - 1, 0.5) * place.scale[axis];
    let half = 0.5 * cx.sqrt_approx(cx.scale(extent * extent - 1, 1.0)) * place.scale[axis];
    ((center - place.fixation[axis]) * place.nearness, half * place.nearness)
}

/// Whether a patch is so near the fixation that its mean distance needs every pixel.
#[inline(always)]
fn near(cx: impl Cooperative, place: Place, area: Patch) -> bool {
    let (y, dy) = spread(cx, place, 0, area.y, area.height);
    let (x, dx) = spread(cx, place, 1, area.x, area.width);
    area.height.min(area.width) < 16 || y.abs().max(x.abs()) < 4.0 * dy.max(dx)
}

/// Term `i` of 16 of the sum of the distances, by Gauss' quadrature.
#[inline(always)]
fn node(cx: impl Cooperative, place: Place, area: Patch, i: u32) -> f32 {
    let (y, dy) = spread(cx, place, 0, area.y, area.height);
    let (x, dx) = spread(cx, place, 1, area.x, area.width);
    let node = |i: u32| {
        let (at, weight) = if i & 2 == 0 { (0.339_981_04, 0.326_072_58) } else { (0.861_136_3, 0.173_927_42) };
        (if i & 1 == 0 { at } else { -at }, weight)
    };
    let ((v, p), (u, q)) = (node(i), node(i / 4));
    cx.scale(area.area(), p * q) * eccentricity(cx, cx.fma(v, dy, y), cx.fma(u, dx, x))
}
