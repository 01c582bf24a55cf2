//! Allocation: the number of tokens of each patch, exactly.
//!
//! ```text
//! for every image, in parallel, over its patches:
//!     q[i]       = clamp(floor(65535 * relevance[i] + 1/2), 1, 65535)
//!     side(i, t) = the largest n in lo..=hi whose steps all have q[i] * gain >= t, or 0
//!     t*         = the smallest t >= 1 with sum of side(i, t)^2 <= budget
//!     then, in raster order, the steps that t* - 1 would add, until the first that does not fit
//! cu_seqlens, patch_id = prefix sums over the patches with a side, image after image
//!
//! t* is found like this, where the key of a step is q[i] * gain:
//!     Q       = the highest start of a bin of q that more than budget / lo^2 patches reach, or 0
//!     list    = the patches with q >= Q; each warp has its own
//!     between Q * gain of the first step and the largest key, until one or t* - 1 is left:
//!         cost of the steps in each of 256 equal ranges of keys                   (a histogram)
//!         the range in which the sum from the top exceeds the budget is divided next
//! ```
//!
//! Launch: `allocate_each` takes a block for each image and a thread for every 8 patches of the
//! largest image, at most 1024. If the batch has more than one image, [`pack`] then moves the lists
//! of the images together, in one block. The function [`allocate`](crate::vision::allocate)
//! launches both.
//! Memory: 4 bytes read and 4 written for each patch, and 12 more written for each selected patch.
//!
//! - **All numbers are integers**, so every device gives the same allocation for the same
//!   relevance. `q` is rounded once, from the exact product: in floats, `65535 r + 0.5` rounds up
//!   just below a half.
//! - **Few patches can be selected**: at most c = budget / lo^2. If more than c patches have
//!   q >= Q, t* is above Q * gain of the first step, and no patch below Q matters. While c is below
//!   half the number of threads, it is enough to count the largest q of each thread, which takes
//!   one addition in shared memory instead of 8. For a larger c all patches are counted.
//! - **Each warp has its own list**, of its neighboring patches. Warps need no counts of each
//!   other to make the lists, and the lists are in raster order, as the offsets at the end need
//!   them. If too many of a warp's patches belong on its list, the warp goes without one and reads
//!   relevance again.
//! - **A histogram of costs** narrows t* by 8 bits for two barriers. A bin with a single step ends
//!   the search at once: that step does not fit, so nothing is left to add in raster order.
//! - **A thread adds steps of one bin together** before it adds them to the histogram. Without
//!   that, the threads of an image of one color would queue for one word.
//! - **Sums saturate**: the only question is whether a sum exceeds the budget, which is below 2^31.
//!   32 bits that stay at the largest word answer it for any number of patches. An addition to a
//!   bin that has passed 2^31 before is undone.
//! - **A second launch packs the images**, because where an image's tokens start depends on all
//!   images before it. Each block writes its list to a place of its own (`Room`). If the last block
//!   to finish moved the lists instead, it would recognize itself by a counter in memory; with a
//!   wrong counter, lists would be moved while others are written. The end of a launch cannot be
//!   wrong. A batch of one image needs no second launch.

mod histogram;
mod items;
mod pack;
mod search;
mod steps;

use thalweg_simt::{Cooperative, InOut, Out, kernel};

use crate::parts::block::through;
use crate::vision::layout::Span;
use histogram::{BINS, Histogram};
use items::Items;
#[cfg(not(target_arch = "nvptx64"))]
use items::{LIST, TILE};
use pack::Room;
use search::{Search, Threshold};
use steps::Steps;

#[cfg(not(target_arch = "nvptx64"))]
pub(in crate::vision) use pack::pack;
#[cfg(not(target_arch = "nvptx64"))]
pub use steps::gains;

/// The starts of the parts of shared memory, in bytes: first the gains, at most 255 words, then
/// costs and counts of the bins, the four words that the first warp tells the others, three sums
/// for each warp, and the lists of the warps.
const COSTS: u32 = 1024;
const COUNTS: u32 = COSTS + BINS * 4;
const TOLD: u32 = COUNTS + BINS * 4;
const SUMS: u32 = TOLD + 4 * 4;
const LISTS: u32 = SUMS + 3 * 32 * 4;

kernel! {
    /// Allocation of each image alone. The lists of several images stay apart until they are
    /// packed.
    pub(in crate::vision) unsafe fn allocate_each(
        cx: impl Cooperative, images: u32, patches: u32, largest: u32, lo: u32, hi: u32, budget: u64,
        table: In<u32>, relevance: In<f32>, gains: In<u32>,
        sides: InOut<i32>, cu_seqlens: Out<i32>, patch_id: Out<i32>, counts: Out<u32>,
        image_cu_seqlens: Out<i32>, image_cu_patches: Out<i32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        (1..=patches).contains(&largest),
        1 <= lo,
        lo <= hi,
        hi <= 255,
        lo * lo <= budget,
        budget <= 2147483647,
        (images * budget).min(patches * hi * hi) <= 2147483647,
        table.len() == 4 * (images + 1),
        relevance.len() == patches,
        gains.len() == hi - lo + 1,
        sides.len() == patches,
        cu_seqlens.len() > patches.min(images * (budget / (lo * lo))),
        patch_id.len() >= patches.min(images * (budget / (lo * lo))),
        counts.len() == 2,
        image_cu_seqlens.len() == images + 1,
        image_cu_patches.len() == images + 1,
    }
    grid(images)
    block(largest.div_ceil(TILE).min(32) * 32)
    shared(LISTS + largest.div_ceil(TILE).min(32) * LIST)
    {
        let span = Span::of_image(cx, table, images, patches, cx.block_idx().x);
        let histogram = Histogram { costs: cx.shared::<u32>(COSTS), counts: cx.shared::<u32>(COUNTS) };

        // All loads are issued before shared memory is prepared.
        let mut items = Items::new(cx, span, relevance, sides, LISTS);
        let ahead = items.load(cx, items.start);
        let gain = gains.get(cx, cx.lane().min(hi - lo) as usize);
        histogram.clear_by_block(cx);
        cx.barrier();
        let steps = Steps { gains: cx.shared::<u32>(0), count: hi - lo + 1, lo };
        if cx.warp() == 0 {
            steps.store(cx, gains, gain);
        }

        let budget = budget as u32;
        let most = budget / (lo * lo);
        let search = Search { steps, histogram, told: cx.shared::<u32>(TOLD), budget };
        let (least, q) = search.least(cx, items, ahead, most);
        let first = steps.gain(cx, 0);
        items.keep(cx, least, q);
        // If all patches together cost less than 2^31, so does each bin.
        let large = u64::from(span.len()) * u64::from(hi * hi) >= 1 << 31;
        let threshold = search.threshold(cx, items, least, first, large);

        let sums = |k: u32| cx.shared::<u32>(SUMS + k * 32 * 4);
        let wanted = propose(cx, items, steps, first, threshold);
        let mut taken = u32::MAX;
        if !threshold.single {
            let wanted = through(cx, wanted);
            if cx.lane() == 31 {
                cx.shared_set(sums(0), cx.warp(), wanted);
            }
            cx.barrier();
            let before = through(cx, if cx.lane() < cx.warp() { cx.shared_get(sums(0), cx.lane()) } else { 0 });
            taken = cx.shuffle(before, 31);
        }
        // The loop is here and not in a function of its own: so the kernel is up to 5 % faster on
        // an H200.
        let rest = budget - threshold.spent;
        let (mut tokens, mut selected) = (0u32, 0u32);
        let mut row = 0;
        while row < items.count {
            let slot = row + cx.lane();
            let (pair, _) = if slot < items.count { items.got(cx, slot) } else { (0, 0) };
            let side;
            (side, taken) = settle(cx, steps, pair >> 8, pair & 255, taken, rest);
            if slot < items.count {
                items.put(cx, slot, side);
            }
            tokens += side * side;
            selected += cx.ballot(side > 0).count_ones();
            row += 32;
        }
        let tokens = cx.warp_sum_u32(tokens);
        if cx.lane() == 0 {
            cx.shared_set(sums(1), cx.warp(), tokens);
            cx.shared_set(sums(2), cx.warp(), selected);
        }
        cx.barrier();

        let last = cx.warp() + 1 == cx.block_dim().x / 32;
        if selected == 0 && !last {
            return;
        }
        let before =
            |k: u32| cx.warp_sum_u32(if cx.lane() < cx.warp() { cx.shared_get(sums(k), cx.lane()) } else { 0 });
        let (offset, k) = (before(1), before(2));
        // The list of a single image starts where it stays.
        let room = Room::new(span, most);
        let (offset, k) = list(cx, items, room.start, offset, k, cu_seqlens, patch_id, sides);
        if !last {
            return;
        }
        if cx.lane() == 0 {
            // For a single image these are the final numbers, otherwise `pack` adds them up.
            let image = cx.block_idx().x as usize;
            image_cu_seqlens.set(cx, image + 1, offset as i32);
            image_cu_patches.set(cx, image + 1, k as i32);
            if images == 1 {
                image_cu_seqlens.set(cx, 0, 0);
                image_cu_patches.set(cx, 0, 0);
                counts.set(cx, 0, offset);
                counts.set(cx, 1, k);
            }
        }
        if images == 1 {
            let mut at = k + cx.lane();
            while at <= room.len {
                cu_seqlens.set(cx, at as usize, offset as i32);
                if at < room.len {
                    patch_id.set(cx, at as usize, -1);
                }
                at += 32;
            }
        }
    }
}

/// Stores for each item the side at t* and the side at t* - 1. Returns how many more tokens the
/// items of this lane have at t* - 1.
///
/// # Safety
/// All threads of the block call it, after [`Search::threshold`] with the same items and steps.
#[inline(always)]
unsafe fn propose(cx: impl Cooperative, items: Items, steps: Steps, first: u32, threshold: Threshold) -> u32 {
    let Threshold { bursts, fits, .. } = threshold;
    let below = bursts.max(1);
    let mut wanted = 0u32;
    let mut slot = cx.lane();
    // SAFETY: `slot` is below the number of items, and only this lane has it. `store` was followed
    // by barriers, as the caller promises, and steps are below their number. Both sides are at most
    // 255.
    unsafe {
        while slot < items.count {
            let q = items.q(cx, slot);
            let (mut taken, mut next) = (0, 0);
            if q * first >= below {
                if q * first >= fits {
                    taken = steps.taken(cx, q, fits);
                }
                next = taken;
                while next < steps.count && q * steps.gain(cx, next) >= below {
                    next += 1;
                }
            }
            let (side, next) = (steps.side(taken), steps.side(next));
            items.put(cx, slot, side << 8 | next);
            wanted = wanted.saturating_add(next * next - side * side);
            slot += 32;
        }
    }
    wanted
}

/// Takes the steps of t* - 1 in raster order until the first that does not fit into `rest`, for one
/// item of each lane: from `side` to at most `next`. `taken` is what the items before want; whether
/// it is saturated or not, it exceeds `rest` once a step before did not fit. Returns the side, and
/// `taken` including these items. All lanes of the warp call it.
#[inline(always)]
fn settle(cx: impl Cooperative, steps: Steps, mut side: u32, next: u32, taken: u32, rest: u32) -> (u32, u32) {
    if taken > rest {
        return (side, taken);
    }
    let more = next * next - side * side;
    let wanted = through(cx, more);
    let mut mine = taken.saturating_add(wanted - more);
    while side < next && mine <= rest {
        let higher = steps.next(side);
        mine += higher * higher - side * side;
        if mine <= rest {
            side = higher;
        }
    }
    (side, taken.saturating_add(cx.shuffle(wanted, 31)))
}

/// Writes the sides of a warp's selected items, and their part of the image's list, which starts at
/// `start`. `offset` and `k` are the tokens and the selected patches of the warps before. Returns
/// both including this warp.
///
/// # Safety
/// All lanes of the warp call it, after [`settle`] with the same items. The list has room for the
/// selected patches of the image, and no other block writes there. `sides` has the patches of the
/// image.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn list(
    cx: impl Cooperative,
    items: Items,
    start: u32,
    mut offset: u32,
    mut k: u32,
    cu_seqlens: Out<i32>,
    patch_id: Out<i32>,
    sides: InOut<i32>,
) -> (u32, u32) {
    let lane = cx.lane();
    let mut row = 0;
    while row < items.count {
        let slot = row + lane;
        // SAFETY: `slot` is below the number of items, and only this lane has it, here and in
        // `settle`.
        let (side, i) = if slot < items.count { unsafe { items.got(cx, slot) } } else { (0, 0) };
        let chosen = cx.ballot(side > 0);
        let area = through(cx, side * side);
        if side > 0 {
            let at = (start + k + (chosen & ((1 << lane) - 1)).count_ones()) as usize;
            // SAFETY: `at` is the number of selected patches of the image before this one, from
            // `start` on: inside the room that the caller promises. `i` is a patch of the image.
            unsafe {
                cu_seqlens.set(cx, at, (offset + area - side * side) as i32);
                patch_id.set(cx, at, i as i32);
                sides.set(cx, i as usize, side as i32);
            }
        }
        offset += cx.shuffle(area, 31);
        k += chosen.count_ones();
        row += 32;
    }
    (offset, k)
}
