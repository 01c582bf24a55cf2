//! Allocation: how many tokens each patch gets, exactly.
//!
//! ```text
//! for every image, in parallel, over its patches:
//!     q[i]    = clamp(floor(65535 * relevance[i] + 1/2), 1, 65535)
//!     side(i, t) = the highest n in lo..=hi whose steps all have q[i] * gain >= t, or 0
//!     t*      = the smallest t >= 1 with sum of side(i, t)^2 <= budget
//!     then, in raster order, the steps that t* - 1 would add, until the first that does not fit
//! cu_seqlens, patch_id = prefix sums over the patches with a side, image after image
//!
//! t* is found so, a key being q[i] * gain of a step:
//!     Q       = the start of a bin of q that more than budget / lo^2 patches reach, so t* > Q * gain of the first step
//!     list    = the patches with q >= Q                                           (each warp of its own)
//!     between Q * gain and the largest key, until one key is left or t* - 1 alone:
//!         cost of the steps in each of 256 equal ranges of keys                   (a histogram)
//!         the range in which the sum from the top passes the budget is the next to be divided
//! ```
//!
//! Launch: `allocate_each` takes a block an image, a thread for every 8 patches of the largest, at most 1024. Of more than
//! one image, `pack` then moves what was selected together, in one block. The function [`allocate`] launches both.
//! Memory: 4 bytes read and 4 written a patch, and 12 a selected patch.
//!
//! For one image of 8160 patches and the default budget it takes 8 us on an H200, of which a launch alone is more than 1; for 32400
//! patches 14 us. Bisecting t*, 32 rounds over all patches, took 43 and 147; a search among the few that two full
//! histograms leave, with a threshold a warp, 22 and 108.
//!
//! - **Integers throughout**, so every device gives the same allocation for the same relevance. `q` is rounded once, from the
//!   exact product: in floats, `65535 r + 0.5` rounds up just below a half.
//! - **Few can be selected**, at most c = budget / lo^2: if more than c patches have q of Q or more, t* is above Q * gain of the
//!   first step, and nobody below Q matters. For Q the largest of each thread's patches are enough to count while c is
//!   below half the threads, one addition in shared memory instead of 8; with more to select all are counted.
//! - **Lists are a warp's own**, of its 256 neighbours: no counts travel between warps before they are made, and they are
//!   in raster order, as the offsets at the end need it. A warp with more patches and too many of them on its list goes without
//!   one, and reads relevance again.
//! - **A histogram of costs** narrows t* by 8 bits for two barriers. The default budget leaves some 100 keys, and after one or
//!   two histograms a bin with a single key, which does not fit and so ends the search and makes the tail empty.
//! - **What repeats waits**: a thread adds steps of one bin together, or an image of one colour would queue at one word.
//! - **Sums that saturate**: the question is only whether a sum passes the budget, which is below 2^31, so 32 bits
//!   that stick at the top answer it for any number of patches. A bin sticks, too: what finds it past 2^31 takes itself back.
//! - **A launch between images**: where an image's tokens start depends on all before it. Its block writes its own list, to where it
//!   cannot meet another's: image b from min(its first patch, b c) on, which leaves room for as many as it can select. The last block to
//!   finish could move the lists together, but it would know itself by a counter in memory, and where that was wrong before the launch,
//!   lists would be moved while others are written. The end of a launch cannot be wrong; a batch of one has no second. Lists
//!   only move down, so one block moves them in place: it reads as many as it has threads, waits, and writes them.

#[cfg(not(target_arch = "nvptx64"))]
use thalweg_simt::host::{DeviceSlice, Launch};
use thalweg_simt::{Cooperative, In, InOut, Shared, Simt, kernel};

use crate::parts::block::{scan, through};
use crate::vision::layout::Span;

/// Bins of a histogram.
const BINS: u32 = 256;
/// Patches that a warp reads at once, and that it can list.
const TILE: u32 = 256;
/// Where shared memory holds what, in bytes: the gains; costs and counters of bins; what was found; sums of warps; lists of warps.
const COSTS: u32 = 1024;
const COUNTERS: u32 = COSTS + BINS * 4;
const FOUND: u32 = COUNTERS + BINS * 4;
const TOTALS: u32 = FOUND + 16;
const LISTS: u32 = TOTALS + 3 * 32 * 4;

/// Token allocation for the patches of a batch: `relevance` \[N\] to `sides` \[N\], and the packed order of the tokens. Each image
/// has a budget of its own.
///
/// `images`, `patches` (N), `largest` and `table` are those of the batch's [`Layout`](crate::vision::Layout);
/// `gains` [hi - lo + 1] are [`gains`]`(lo, hi, focus)`. With K patches selected and
/// C = min(N, images * (budget / lo^2)) the most that could be, `cu_seqlens` [C + 1 or more] receives the K + 1
/// token offsets, and T in every element of the first C + 1 that follows; `patch_id` [C or more] the K indices among the N
/// patches, ascending, and -1 in the rest of the first C; `counts` \[2\] T and K. `image_cu_seqlens` and `image_cu_patches`
/// [images + 1] receive the tokens and the selected patches before each image, and T and K.
///
/// # Errors
/// As for a kernel: sides that are not 1 <= `lo` <= `hi` <= 255, a budget below `lo`^2, one of which there could be 2^31 tokens
/// together, a buffer of another length, or what the launch fails with.
#[cfg(not(target_arch = "nvptx64"))]
#[allow(clippy::too_many_arguments)]
pub fn allocate<S, L: Launch<S> + ?Sized>(
    on: &L,
    images: u32,
    patches: u32,
    largest: u32,
    lo: u32,
    hi: u32,
    budget: u64,
    table: &DeviceSlice<S, u32>,
    relevance: &DeviceSlice<S, f32>,
    gains: &DeviceSlice<S, u32>,
    sides: &mut DeviceSlice<S, i32>,
    cu_seqlens: &mut DeviceSlice<S, i32>,
    patch_id: &mut DeviceSlice<S, i32>,
    counts: &mut DeviceSlice<S, u32>,
    image_cu_seqlens: &mut DeviceSlice<S, i32>,
    image_cu_patches: &mut DeviceSlice<S, i32>,
) -> Result<(), L::Error> {
    allocate_each(
        on,
        images,
        patches,
        largest,
        lo,
        hi,
        budget,
        table,
        relevance,
        gains,
        sides,
        cu_seqlens,
        patch_id,
        counts,
        image_cu_seqlens,
        image_cu_patches,
    )?;
    if images == 1 {
        return Ok(());
    }
    let each = (budget / u64::from(lo * lo)) as u32;
    pack(on, images, patches, each, table, cu_seqlens, patch_id, counts, image_cu_seqlens, image_cu_patches)
}

kernel! {
    /// [`allocate`] of one image, and of each of more: lists of their own, to be packed.
    unsafe fn allocate_each(
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
    block(largest.div_ceil(256).min(32) * 32)
    shared(1024 + 2 * 1024 + 16 + 3 * 32 * 4 + largest.div_ceil(256).min(32) * 1024)
    {
        let (rank, threads, image) = (cx.thread_idx().x, cx.block_dim().x, cx.block_idx().x);
        let (lane, warps) = (cx.lane(), threads / 32);
        let span = Span::of_image(cx, table, images, patches, image);
        let n = span.len();
        let (costs, counters) = (cx.shared::<u32>(COSTS), cx.shared::<u32>(COUNTERS));
        let found = cx.shared::<u32>(FOUND);
        let totals = |k: u32| cx.shared::<u32>(TOTALS + k * 32 * 4);

        // All loads are under way while shared memory is made ready.
        let mut own = Own::new(cx, span, relevance, sides);
        let ahead = own.load(cx, own.start);
        let gain = gains.get(cx, lane.min(hi - lo) as usize);
        let mut i = rank;
        while i < 2 * BINS {
            cx.shared_set(costs, i, 0);
            i += threads;
        }
        cx.barrier();
        let steps = Steps { gains: cx.shared::<u32>(0), count: hi - lo + 1, lo };
        if cx.warp() == 0 {
            steps.store(cx, gains, gain);
        }

        // Q. Fewer than all may tell it, not more: those past the last are counted as 0, which tells nothing.
        let budget = budget as u32;
        let each = budget / (lo * lo);
        let few = each < threads / 2;
        let mut q = own.begin(cx, own.start, ahead);
        let mut largest = 0;
        let mut at = own.start;
        loop {
            for q in q {
                largest = largest.max(q);
            }
            if !few {
                for q in q {
                    cx.shared_add(counters, q >> 8, 1);
                }
            }
            at += TILE;
            if at >= own.end {
                break;
            }
            q = own.begin(cx, at, own.load(cx, at));
        }
        if few {
            cx.shared_add(counters, largest >> 8, 1);
        }
        cx.barrier();
        if cx.warp() == 0 {
            let (bin, _, over) = highest(cx, counters, 0, each);
            clear(cx, costs);
            if cx.lane() == 0 {
                cx.shared_set(found, 0, if over { bin << 8 } else { 0 });
            }
        }
        cx.barrier();
        let least = cx.shared_get(found, 0);
        let first = cx.shared_get(steps.gains, 0);
        own.keep(cx, least, q);

        // The cost at `fits` is within the budget: no key is so large. At `bursts` it is not, or that is 0. Once `single`, one step
        // is between.
        let (mut bursts, mut fits, mut spent, mut single) = (least * first, 65535 * first + 1, 0, 0);
        // Where no bin can reach 2^31, none is asked whether it has. Else at most 2^20 + 255^2 a thread are being added at once, to
        // what is less than that above 2^31: no sum wraps.
        let large = u64::from(n) * u64::from(hi * hi) >= 1 << 31;
        while fits - bursts > 1 && single == 0 {
            let shift = (32 - (fits - bursts - 2).leading_zeros()).saturating_sub(8);
            let add = |bin: u32, cost: u32, count: u32| {
                let before = cx.shared_add(costs, bin, cost);
                if large && before >= 1 << 31 {
                    cx.shared_add(costs, bin, cost.wrapping_neg());
                }
                cx.shared_add(counters, bin, count);
            };
            // Those of a bin at once, or those of an image of one colour would queue.
            let (mut bin, mut cost, mut count) = (0, 0, 0);
            let mut slot = lane;
            while slot < own.items {
                let (q, _) = own.get(cx, slot);
                if q * first > bursts {
                    let mut k = if q * first < fits { 0 } else { steps.taken(cx, q, fits, 1, steps.count) };
                    while k < steps.count {
                        let key = q * cx.shared_get(steps.gains, k);
                        if key <= bursts {
                            break;
                        }
                        let its = (key - bursts - 1) >> shift;
                        if its != bin || cost > 1 << 20 {
                            if count > 0 {
                                add(bin, cost, count);
                            }
                            (bin, cost, count) = (its, 0, 0);
                        }
                        cost += steps.cost(k);
                        count += 1;
                        k += 1;
                    }
                }
                slot += 32;
            }
            if count > 0 {
                add(bin, cost, count);
            }
            cx.barrier();
            if cx.warp() == 0 {
                let (bin, above, over) = highest(cx, costs, spent, budget);
                // As there may be 2^32 + 1 of them, by its cost, too.
                let one = over && cx.shared_get(counters, bin) == 1 && cx.shared_get(costs, bin) <= 255 * 255;
                let from = bursts + 1 + (bin << shift);
                let next = if over {
                    [from, from + (fits - from).min(1 << shift), above, u32::from(one)]
                } else {
                    [bursts, bursts + 1, above, 0]
                };
                cx.warp_barrier();
                clear(cx, costs);
                if cx.lane() == 0 {
                    cx.shared_set4(found, 0, next);
                }
            }
            cx.barrier();
            [bursts, fits, spent, single] = cx.shared_get4(found, 0);
        }

        // What an item has at t*, and what it would have at t* - 1.
        let below = bursts.max(1);
        let mut wanted = 0u32;
        let mut slot = lane;
        while slot < own.items {
            let (q, _) = own.get(cx, slot);
            let (mut taken, mut next) = (0, 0);
            if q * first >= below {
                if q * first >= fits {
                    taken = steps.taken(cx, q, fits, 1, steps.count);
                }
                next = taken;
                while next < steps.count && q * cx.shared_get(steps.gains, next) >= below {
                    next += 1;
                }
            }
            let (side, next) = (steps.side(taken), steps.side(next));
            own.put(cx, slot, side << 8 | next);
            wanted = wanted.saturating_add(next * next - side * side);
            slot += 32;
        }
        // What the patches before would still take. Saturated or not, it exceeds `rest` once a step before did not fit.
        let rest = budget - spent;
        let mut taken = u32::MAX;
        if single == 0 {
            let wanted = through(cx, wanted);
            if lane == 31 {
                cx.shared_set(totals(0), cx.warp(), wanted);
            }
            cx.barrier();
            let before = through(cx, if lane < cx.warp() { cx.shared_get(totals(0), lane) } else { 0 });
            taken = cx.shuffle(before, 31);
        }
        let (mut tokens, mut selected) = (0u32, 0u32);
        let mut row = 0;
        while row < own.items {
            let slot = row + lane;
            let (pair, _) = if slot < own.items { own.got(cx, slot) } else { (0, 0) };
            let (mut side, next) = (pair >> 8, pair & 255);
            if taken <= rest {
                let more = next * next - side * side;
                let wanted = through(cx, more);
                let mut mine = taken.saturating_add(wanted - more);
                while side < next && mine <= rest {
                    let higher = if side == 0 { lo } else { side + 1 };
                    mine += higher * higher - side * side;
                    if mine <= rest {
                        side = higher;
                    }
                }
                taken = taken.saturating_add(cx.shuffle(wanted, 31));
            }
            if slot < own.items {
                own.put(cx, slot, side);
            }
            tokens += side * side;
            selected += cx.ballot(side > 0).count_ones();
            row += 32;
        }
        let tokens = cx.warp_sum_u32(tokens);
        if lane == 0 {
            cx.shared_set(totals(1), cx.warp(), tokens);
            cx.shared_set(totals(2), cx.warp(), selected);
        }
        cx.barrier();

        let last = cx.warp() + 1 == warps;
        if selected == 0 && !last {
            return;
        }
        let before = |k: u32| cx.warp_sum_u32(if lane < cx.warp() { cx.shared_get(totals(k), lane) } else { 0 });
        let (mut offset, mut k) = (before(1), before(2));
        // The image's list starts where it will stay, if it is the only one.
        let room = Room::new(span, each);
        let mut row = 0;
        while row < own.items {
            let slot = row + lane;
            let (side, i) = if slot < own.items { own.got(cx, slot) } else { (0, 0) };
            let chosen = cx.ballot(side > 0);
            let area = through(cx, side * side);
            if side > 0 {
                let at = (room.start + k + (chosen & ((1 << lane) - 1)).count_ones()) as usize;
                cu_seqlens.set(cx, at, (offset + area - side * side) as i32);
                patch_id.set(cx, at, i as i32);
                sides.set(cx, i as usize, side as i32);
            }
            offset += cx.shuffle(area, 31);
            k += chosen.count_ones();
            row += 32;
        }
        if !last {
            return;
        }
        if lane == 0 {
            // Where they stay too; of more images what is each one's, until they are packed.
            image_cu_seqlens.set(cx, image as usize + 1, offset as i32);
            image_cu_patches.set(cx, image as usize + 1, k as i32);
            if images == 1 {
                image_cu_seqlens.set(cx, 0, 0);
                image_cu_patches.set(cx, 0, 0);
                counts.set(cx, 0, offset);
                counts.set(cx, 1, k);
            }
        }
        if images == 1 {
            let mut at = k + lane;
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

kernel! {
    /// Moves the lists that [`allocate_each`] left together; `each` is the most that an image can select.
    unsafe fn pack(
        cx: impl Cooperative, images: u32, patches: u32, each: u32,
        table: In<u32>, cu_seqlens: InOut<i32>, patch_id: InOut<i32>, counts: Out<u32>,
        image_cu_seqlens: InOut<i32>, image_cu_patches: InOut<i32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        1 <= each,
        table.len() == 4 * (images + 1),
        cu_seqlens.len() > patches.min(images * each),
        patch_id.len() >= patches.min(images * each),
        counts.len() == 2,
        image_cu_seqlens.len() == images + 1,
        image_cu_patches.len() == images + 1,
    }
    grid(1) block(patches.min(images * each).div_ceil(32).min(32) * 32) shared(2 * 33 * 4)
    {
        let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
        let windows = cx.shared::<u32>(0);
        let (mut tokens, mut selected) = (0u32, 0u32);
        let mut base = 0;
        while base < images {
            let image = base + rank;
            let own = |of: InOut<i32>| if image < images { of.get(cx, image as usize + 1) as u32 } else { 0 };
            let v = [own(image_cu_seqlens), own(image_cu_patches)];
            let ([t, k], [all_t, all_k]) = scan(cx, windows, v);
            if base + cx.thread_idx().x < images {
                let at = (base + cx.thread_idx().x) as usize + 1;
                image_cu_seqlens.set(cx, at, tokens.saturating_add(t).saturating_add(v[0]) as i32);
                image_cu_patches.set(cx, at, selected.saturating_add(k).saturating_add(v[1]) as i32);
            }
            (tokens, selected) = (tokens.saturating_add(all_t), selected.saturating_add(all_k));
            cx.barrier();
            base += threads;
        }
        if rank == 0 {
            image_cu_seqlens.set(cx, 0, 0);
            image_cu_patches.set(cx, 0, 0);
            counts.set(cx, 0, tokens);
            counts.set(cx, 1, selected);
        }
        cx.barrier();

        let room = u64::from(patches).min(u64::from(images) * u64::from(each)) as u32;
        let mut base = 0;
        while base <= room {
            let k = base + cx.thread_idx().x;
            let (mut offset, mut id) = (tokens as i32, -1);
            if k < selected.min(room) {
                // The image: the last with no more selected before it.
                let (mut image, mut next) = (0, images);
                while next - image > 1 {
                    let middle = image + (next - image) / 2;
                    if image_cu_patches.get(cx, middle as usize) as u32 <= k {
                        image = middle;
                    } else {
                        next = middle;
                    }
                }
                let list = Room::new(Span::of_image(cx, table, images, patches, image), each);
                let within = k.wrapping_sub(image_cu_patches.get(cx, image as usize) as u32);
                let from = list.start.wrapping_add(within).min(room - 1) as usize;
                offset = cu_seqlens.get(cx, from).wrapping_add(image_cu_seqlens.get(cx, image as usize));
                id = patch_id.get(cx, from);
            }
            // What goes up to here was read by now, and what is read later lies further up.
            cx.barrier();
            let k = base + cx.thread_idx().x;
            if k <= room {
                cu_seqlens.set(cx, k as usize, offset);
            }
            if k < room {
                patch_id.set(cx, k as usize, id);
            }
            cx.barrier();
            base += threads;
        }
    }
}

/// Where an image's own list goes.
struct Room {
    start: u32,
    len: u32,
}

impl Room {
    /// For the patches `span`, of which at most `each` can be selected. That of image b starts at min(its first patch, b `each`): both grow
    /// from one image to the next by at least the room that is needed.
    #[inline(always)]
    fn new(span: Span, each: u32) -> Self {
        let start = u64::from(span.start).min(u64::from(span.image) * u64::from(each)) as u32;
        Self { start, len: span.len().min(each) }
    }
}

/// A warp's patches, neighbours, and which of them matter.
#[derive(Clone, Copy)]
struct Own {
    relevance: In<f32>,
    sides: InOut<i32>,
    start: u32,
    end: u32,
    /// Where the list of those that matter is: q, then the side, in the high half, and the distance from `start`.
    list: Shared<u32>,
    listed: bool,
    /// Those on the list, or all, were it too long.
    items: u32,
}

impl Own {
    /// Those of an image; before `keep` none matter.
    ///
    /// # Safety
    /// `relevance` and `sides` have the patches of `span`, shared memory 1 KiB from `LISTS` for each warp.
    #[inline(always)]
    unsafe fn new<C: Cooperative>(cx: C, span: Span, relevance: In<f32>, sides: InOut<i32>) -> Self {
        let tiles = cx.block_dim().x / 32;
        // No division before the first load.
        let run = if span.len() <= tiles * TILE { TILE } else { span.len().div_ceil(tiles * TILE) * TILE };
        let start = (span.start + cx.warp() * run).min(span.end);
        // SAFETY: 1 KiB for each warp.
        let list = unsafe { cx.shared::<u32>(LISTS + cx.warp() * TILE * 4) };
        Self { relevance, sides, start, end: (start + run).min(span.end), list, listed: false, items: 0 }
    }

    /// Relevances of the patches from `at` on, those past the last being the last.
    ///
    /// # Safety
    /// The promise of `new`; so below.
    #[inline(always)]
    unsafe fn load(self, cx: impl Cooperative, at: u32) -> [f32; 8] {
        if self.start == self.end {
            return [0.0; 8];
        }
        // SAFETY: patches of the image.
        core::array::from_fn(|k| unsafe {
            self.relevance.get(cx, (at + cx.lane() + k as u32 * 32).min(self.end - 1) as usize)
        })
    }

    /// q of these patches, and 0 past the last.
    #[inline(always)]
    fn quantised(self, cx: impl Cooperative, at: u32, r: [f32; 8]) -> [u32; 8] {
        let at = at + cx.lane();
        core::array::from_fn(|k| {
            let q = quantise(cx, r[k]);
            if at + k as u32 * 32 < self.end { q } else { 0 }
        })
    }

    /// As `quantised`; and none of them has a side yet.
    ///
    /// # Safety
    /// As for `load`.
    #[inline(always)]
    unsafe fn begin(self, cx: impl Cooperative, at: u32, r: [f32; 8]) -> [u32; 8] {
        for k in 0..8 {
            let i = at + cx.lane() + k * 32;
            if i < self.end {
                // SAFETY: patches of the image.
                unsafe { self.sides.set(cx, i as usize, 0) };
            }
        }
        self.quantised(cx, at, r)
    }

    /// Lists the patches with q of `least` or more; `q` is that of the first tile, if there is no other.
    ///
    /// # Safety
    /// As for `load`.
    #[inline(always)]
    unsafe fn keep(&mut self, cx: impl Cooperative, least: u32, mut q: [u32; 8]) {
        let (lane, several) = (cx.lane(), self.end - self.start > TILE);
        let mut kept = 0;
        let mut at = self.start;
        // SAFETY: slots below the list's length.
        unsafe {
            while at < self.end {
                if several {
                    q = self.quantised(cx, at, self.load(cx, at));
                }
                for (k, q) in q.into_iter().enumerate() {
                    let keep = q >= least.max(1);
                    let those = cx.ballot(keep);
                    if those != 0 {
                        let slot = kept + (those & ((1 << lane) - 1)).count_ones();
                        if keep && slot < TILE {
                            cx.shared_set(self.list, slot, q << 16 | (at - self.start + k as u32 * 32 + lane) & 0xffff);
                        }
                        kept += those.count_ones();
                    }
                }
                at += TILE;
            }
            cx.warp_barrier();
        }
        self.listed = kept <= TILE && self.end - self.start <= 1 << 16;
        self.items = if self.listed { kept } else { self.end - self.start };
    }

    /// q and index of an item.
    ///
    /// # Safety
    /// There was `keep`, and `slot` is below `items`; so below.
    #[inline(always)]
    unsafe fn get(self, cx: impl Cooperative, slot: u32) -> (u32, u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.listed {
                self.got(cx, slot)
            } else {
                let i = self.start + slot;
                (quantise(cx, self.relevance.get(cx, i as usize)), i)
            }
        }
    }

    /// Leaves a number below 2^16 with an item, in place of its q.
    ///
    /// # Safety
    /// As for `get`; this lane alone accesses the item.
    #[inline(always)]
    unsafe fn put(self, cx: impl Cooperative, slot: u32, v: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.listed {
                let word = cx.shared_get(self.list, slot);
                cx.shared_set(self.list, slot, v << 16 | word & 0xffff);
            } else {
                self.sides.set(cx, (self.start + slot) as usize, v as i32);
            }
        }
    }

    /// That number and the index of an item.
    ///
    /// # Safety
    /// As for `put`.
    #[inline(always)]
    unsafe fn got(self, cx: impl Cooperative, slot: u32) -> (u32, u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.listed {
                let word = cx.shared_get(self.list, slot);
                (word >> 16, self.start + (word & 0xffff))
            } else {
                let i = self.start + slot;
                (self.sides.get(cx, i as usize) as u32, i)
            }
        }
    }
}

/// The highest bin from which on the bins, with `spent`, come to more than `limit`; what those above come to; and whether there is one. If
/// not, what all come to. The first warp calls it.
///
/// # Safety
/// There are 256 bins, which nobody writes meanwhile.
#[inline(always)]
unsafe fn highest(cx: impl Cooperative, bins: Shared<u32>, spent: u32, limit: u32) -> (u32, u32, bool) {
    // Eight for each lane, the highest for the first; their sums in a tree, so that few operations wait for one another.
    let lowest = (31 - cx.lane()) * 8;
    // SAFETY: there are 256.
    let (low, high) = unsafe { (cx.shared_get4(bins, lowest), cx.shared_get4(bins, lowest + 4)) };
    let pairs = |[a, b, c, d]: [u32; 4]| [a.saturating_add(b), c.saturating_add(d)];
    let (low_pairs, high_pairs) = (pairs(low), pairs(high));
    let fours = [low_pairs[0].saturating_add(low_pairs[1]), high_pairs[0].saturating_add(high_pairs[1])];
    let before = cx.shuffle_up(through(cx, fours[0].saturating_add(fours[1])), 1);
    let mut above = spent.saturating_add(if cx.lane() == 0 { 0 } else { before });
    let all = above.saturating_add(fours[0]).saturating_add(fours[1]);
    let over = cx.ballot(all > limit);

    // Down the tree, from the higher half wherever that is not enough.
    let mut bin = lowest;
    let mut descend = |half: u32, width: u32| {
        let within = above.saturating_add(half);
        let higher = within > limit;
        if higher {
            bin += width;
        } else {
            above = within;
        }
        higher
    };
    let (pairs, four) = if descend(fours[1], 4) { (high_pairs, high) } else { (low_pairs, low) };
    let two = if descend(pairs[1], 2) { [four[2], four[3]] } else { [four[0], four[1]] };
    descend(two[1], 1);
    let above = if over == 0 { all } else { above };
    let lane = over.trailing_zeros().min(31);
    (cx.shuffle(bin, lane), cx.shuffle(above, lane), over != 0)
}

/// Clears both kinds of bins; the first warp calls it.
///
/// # Safety
/// There are twice 256 from `bins` on, which nobody else accesses until the next barrier.
#[inline(always)]
unsafe fn clear(cx: impl Cooperative, bins: Shared<u32>) {
    for k in 0..2 * BINS / 128 {
        // SAFETY: there are as many.
        unsafe { cx.shared_set4(bins, k * 128 + cx.lane() * 4, [0; 4]) };
    }
}

/// floor(65535 r + 1/2) of exactly the value of `r`, clamped to 1..=65535.
#[inline(always)]
fn quantise(cx: impl Simt, r: f32) -> u32 {
    // A half is only there for 1/2, which goes to the even 32768.
    #[expect(clippy::manual_clamp, reason = "NaN becomes 0")]
    let r = r.max(0.0).min(1.0);
    cx.nearest(r, 65535.0).max(1)
}

/// The steps a patch may rise by: from 0 to `lo`, then one at a time to `hi`.
#[derive(Clone, Copy)]
struct Steps {
    /// Gains up to 65535, none larger than the one before.
    gains: Shared<u32>,
    count: u32,
    lo: u32,
}

impl Steps {
    /// Puts the gains into shared memory, for use after a barrier; `gain` is that of the lane, or the last. The first warp calls it.
    ///
    /// # Safety
    /// `gains` has `count` elements, at most 255, and shared memory as many words from `self.gains` on.
    #[inline(always)]
    unsafe fn store(self, cx: impl Cooperative, gains: In<u32>, mut gain: u32) {
        // Never rising and at most 65535 is what `gains` makes them; the search and 32-bit products rely on it for any contents.
        let mut least = 65535;
        let mut row = 0;
        // SAFETY: below `count`, which is at most 255.
        unsafe {
            while row < self.count {
                let k = row + cx.lane();
                if row > 0 {
                    gain = gains.get(cx, k.min(self.count - 1) as usize);
                }
                let mut v = gain.min(least);
                let mut delta = 1;
                while delta < 32 {
                    v = v.min(cx.shuffle_up(v, delta));
                    delta *= 2;
                }
                if k < self.count {
                    cx.shared_set(self.gains, k, v);
                }
                least = cx.shuffle(v, 31);
                row += 32;
            }
        }
    }

    /// The side after so many steps.
    #[inline(always)]
    fn side(self, taken: u32) -> u32 {
        if taken == 0 { 0 } else { self.lo + taken - 1 }
    }

    /// The tokens that step `k` adds.
    #[inline(always)]
    fn cost(self, k: u32) -> u32 {
        if k == 0 { self.lo * self.lo } else { 2 * (self.lo + k) - 1 }
    }

    /// How many of the first steps have `q * gain >= t`, known to be from `least` to `most`; `q` is at most 65535.
    ///
    /// # Safety
    /// There was a barrier since `store`, and `most` is at most `count`.
    #[inline(always)]
    unsafe fn taken(self, cx: impl Cooperative, q: u32, t: u32, least: u32, most: u32) -> u32 {
        let (mut taken, mut end) = (least, most);
        while taken < end {
            let k = (taken + end) / 2;
            // SAFETY: below `count`.
            if q * unsafe { cx.shared_get(self.gains, k) } >= t {
                taken = k + 1;
            } else {
                end = k;
            }
        }
        taken
    }
}

/// Fixed-point gains of the steps 0 to `lo`, then `n - 1` to `n` up to `hi`, as [`allocate`] takes them:
/// utility t^focus per token, relative to the first step's 65535; never rising. `focus` is in (0, 1), `lo` in 1..=`hi`.
///
/// ```
/// let gains = thalweg_kernels::gains(8, 20, 0.8);
/// assert_eq!(gains[..4], [65535, 51165, 48940, 47020]);
/// ```
#[cfg(not(target_arch = "nvptx64"))]
pub fn gains(lo: u32, hi: u32, focus: f64) -> Vec<u32> {
    let utility = |n: u32| (f64::from(n) * f64::from(n)).powf(focus);
    let unit = utility(lo) / (f64::from(lo) * f64::from(lo));
    let mut least = 65535;
    let rest = (lo + 1..=hi).map(|n| {
        let gain = (utility(n) - utility(n - 1)) / f64::from(2 * n - 1) / unit;
        least = least.min((65535.0 * gain + 0.5).floor() as u32);
        least
    });
    std::iter::once(65535).chain(rest).collect()
}
