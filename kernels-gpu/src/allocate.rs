//! Allocation: how many tokens each patch gets, exactly.
//!
//! ```text
//! for every image, in parallel, over its patches:
//!     q[i]    = clamp(floor(65535 * relevance[i] + 1/2), 1, 65535)
//!     side(i, t) = the highest n in lo..=hi whose steps all have q[i] * gain >= t, or 0
//!     t*      = the smallest t >= 1 with sum of side(i, t)^2 <= budget
//!     then, in raster order, the steps that t* - 1 would add, until the first that does not fit
//! cu_seqlens, patch_id = prefix sums over the patches with a side, image after image
//! ```
//!
//! Launch: `allocate_each` takes a block an image, a thread for every 8 patches of the largest, at most 1024. Of more than
//! one image, `pack` then moves what was selected together, in one block. The function [`allocate`] launches both.
//! Memory: 4 bytes read and 4 written a patch, and 8 a selected patch.
//!
//! - **Integers throughout**, so every device gives the same allocation for the same relevance. `q` is
//!   computed from the float's mantissa: in floats, `65535 r + 0.5` rounds up just below a half.
//! - **Few can be selected**, at most c = budget / lo^2: if c + 1 patches have q of Q or more, t* is above Q * gain of the
//!   first step. Two histograms in shared memory, of the high bytes of q and of the low ones, give the largest such Q, and
//!   at most c patches have more: for the default budget 64 of some thousands.
//! - **A threshold a warp**: a round of the search asks for the cost at as many thresholds as there are warps, each of which goes
//!   through the few patches that are left. With 32 warps that is 7 rounds of one barrier, not 32 of two.
//! - **Bisection while they are many**, a threshold a round for the whole block: only budgets for more than 1024
//!   patches come here.
//! - **Sums that saturate**: the question is only whether a sum passes the budget, which is below 2^31, so 32 bits
//!   that stick at the top answer it for any number of patches.
//! - **Two orders**: rounds take every nth patch (whole lines a load), the tail takes runs of
//!   neighbours, so that raster order is one scan over the block. Up to 8 patches a thread wait in shared memory meanwhile, of which 5
//!   words hold 8, so that neither order meets in a bank; more wait in `sides`.
//! - **A launch between images**: where an image's tokens start depends on all before it. Its block writes its own list, to where it
//!   cannot meet another's: image b from min(its first patch, b c) on, which leaves room for as many as it can select. The last block to
//!   finish could move the lists together, but it would know itself by a counter in memory, and where that was wrong before the launch,
//!   lists would be moved while others are written. The end of a launch cannot be wrong; a batch of one has no second. Lists
//!   only move down, so one block moves them in place: it reads as many as it has threads, waits, and writes them.

#[cfg(not(target_arch = "nvptx64"))]
use thalweg_simt::host::{DeviceSlice, Launch};
use thalweg_simt::{Cooperative, In, InOut, Shared, kernel};

use crate::block::{WINDOW, reduce, scan, through};
use crate::layout::Span;

/// Patches of a thread that wait in shared memory.
const HELD: u32 = 8;
/// Halves of a word that 8 patches take there.
const STRIDE: u32 = 10;
/// Where shared memory holds what, in bytes: the gains, two histograms, windows, a counter, costs of thresholds, then for each
/// thread 20 bytes of its patches and a word of the few that are left.
const HISTOGRAMS: u32 = 1024;
const WINDOWS: u32 = HISTOGRAMS + 2 * 1024;
const COUNTER: u32 = WINDOWS + 4 * WINDOW * 4;
const COSTS: u32 = COUNTER + 16;
const PATCHES: u32 = COSTS + 2 * 32 * 4;

/// Token allocation for the patches of a batch: `relevance` \[N\] to `sides` \[N\], and the packed order of the tokens. Each image
/// has a budget of its own.
///
/// `images`, `patches` (N), `largest` and `table` are those of the batch's [`Layout`](crate::Layout);
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
    shared(1024 + 2 * 1024 + 4 * 33 * 4 + 16 + 2 * 32 * 4 + largest.div_ceil(256).min(32) * 32 * 24)
    {
        let (rank, threads, image) = (cx.thread_idx().x, cx.block_dim().x, cx.block_idx().x);
        let span = Span::of_image(cx, table, images, patches, image);
        let n = span.len();
        let windows = cx.shared::<u32>(WINDOWS);
        let histogram = |k: u32| cx.shared::<u32>(HISTOGRAMS + k * 1024);
        let counter = cx.shared::<u32>(COUNTER);
        let q = Map { held: n <= HELD * threads, first: span.start, few: cx.shared::<u16>(PATCHES), many: sides };

        // On its way while the others are.
        let early = gains.get(cx, cx.lane().min(hi - lo) as usize);
        let mut i = rank;
        while i < n {
            let r: [f32; HELD as usize] = core::array::from_fn(|k| {
                relevance.get(cx, (span.start + (i + k as u32 * threads).min(n - 1)) as usize)
            });
            for (k, v) in r.map(quantise).into_iter().enumerate() {
                let i = i + k as u32 * threads;
                if i < n {
                    q.set(cx, i, v);
                }
            }
            i += HELD * threads;
        }
        let steps = Steps::load(cx, gains, early, lo, hi);
        let mut i = rank;
        while i < 2 * 256 {
            cx.shared_set(histogram(0), i, 0);
            i += threads;
        }
        if rank == 0 {
            cx.shared_set(counter, 0, 0);
        }
        cx.barrier();
        let first = cx.shared_get(steps.gains, 0);

        // The cost at `fits` is within the budget: no key is so large. At `bursts` it is not, or that is 0.
        let budget = budget as u32;
        let each = budget / (lo * lo);
        let (mut bursts, mut fits, mut spent) = (0, 65535 * first + 1, 0);
        let mut left = n;
        if each < n {
            // The high byte of Q and how many patches have a higher one; then the low byte, among those that share it.
            let (mut high, mut above) = (0, 0);
            for low in [false, true] {
                let counts = histogram(u32::from(low));
                // Equal ones at once, or those of an image of one colour would queue.
                let (mut last, mut times) = (0, 0);
                let mut i = rank;
                while i < n {
                    let q = q.get(cx, i);
                    if !low || q >> 8 == high {
                        let byte = if low { q & 255 } else { q >> 8 };
                        if byte != last && times > 0 {
                            cx.shared_add(counts, last, times);
                            times = 0;
                        }
                        (last, times) = (byte, times + 1);
                    }
                    i += threads;
                }
                if times > 0 {
                    cx.shared_add(counts, last, times);
                }
                cx.barrier();
                let (byte, more) = bin(cx, counts, each - above);
                (high, above) = (high << 8 | byte, above + more);
            }
            (bursts, left) = (high * first, above);
        }

        // All patches, a threshold at a time, until no more can be above `bursts` than there are threads.
        while left > threads && fits - bursts > 1 {
            let t = bursts + (fits - bursts) / 2;
            let mut cost = 0u32;
            let mut i = rank;
            while i < n {
                let q = q.get(cx, i);
                if q * first >= t {
                    cost = cost.saturating_add(steps.tokens(steps.taken(cx, q, t, 1, steps.count)));
                }
                i += threads;
            }
            let cost = reduce(cx, windows, 0, cost, u32::saturating_add);
            if cost <= budget {
                (fits, spent) = (t, cost);
            } else {
                bursts = t;
            }
            let mut mine = 0;
            let mut i = rank;
            while i < n {
                mine += u32::from(q.get(cx, i) * first > bursts);
                i += threads;
            }
            left = reduce(cx, windows, 0, mine, u32::wrapping_add);
        }
        // Those, in any order.
        let list = cx.shared::<u32>(PATCHES + threads * 2 * STRIDE);
        if left <= threads {
            let mut i = rank;
            while i < n {
                let q = q.get(cx, i);
                if q * first > bursts {
                    cx.shared_set(list, cx.shared_add(counter, 0, 1), q);
                }
                i += threads;
            }
        }
        cx.barrier();
        // A threshold a warp.
        let warps = threads / 32;
        let mut costs = cx.shared::<u32>(COSTS);
        let mut other = cx.shared::<u32>(COSTS + 32 * 4);
        while fits - bursts > 1 {
            let step = (fits - bursts - 1) / (warps + 1) + 1;
            let threshold = |warp: u32| bursts.saturating_add((warp + 1) * step).min(fits);
            let t = threshold(cx.warp());
            let mut cost = 0;
            let mut i = cx.lane();
            while i < left {
                let q = cx.shared_get(list, i);
                if q * first >= t {
                    cost += steps.tokens(steps.taken(cx, q, t, 1, steps.count));
                }
                i += 32;
            }
            let cost = cx.warp_sum_u32(cost);
            if cx.lane() == 0 {
                cx.shared_set(costs, cx.warp(), cost);
            }
            cx.barrier();
            let cost = cx.shared_get(costs, cx.lane().min(warps - 1));
            let within = cx.ballot(cost <= budget && cx.lane() < warps).trailing_zeros();
            let cost = cx.shuffle(cost, within.min(31));
            let lower = if within > 0 { threshold(within.min(warps) - 1) } else { bursts };
            if within < warps {
                (fits, spent) = (threshold(within), cost);
            }
            bursts = lower;
            (costs, other) = (other, costs);
        }

        // What a patch has at t*, and what it would have at t* - 1.
        let below = (fits - 1).max(1);
        let range = |q: u32| {
            if q * first < below {
                return (0, 0);
            }
            let most = steps.taken(cx, q, below, 1, steps.count);
            (steps.side(steps.taken(cx, q, fits, 0, most)), steps.side(most))
        };
        let run = if q.held { HELD } else { n.div_ceil(threads) };
        let (start, end) = ((rank * run).min(n), (rank * run + run).min(n));
        let mut wanted = 0u32;
        for i in start..end {
            let (side, next) = range(q.get(cx, i));
            wanted = wanted.saturating_add(next * next - side * side);
        }
        let rest = budget - spent;
        // Saturated or not, it exceeds `rest` once a step before this run did not fit.
        let ([mut taken], _) = scan(cx, windows, [wanted]);
        let (mut tokens, mut selected) = (0u32, 0u32);
        for i in start..end {
            let (mut side, next) = range(q.get(cx, i));
            while side < next && taken <= rest {
                let higher = if side == 0 { lo } else { side + 1 };
                taken += higher * higher - side * side;
                if taken <= rest {
                    side = higher;
                }
            }
            q.set(cx, i, side);
            tokens += side * side;
            selected += u32::from(side > 0);
        }
        let windows = cx.shared::<u32>(WINDOWS + 2 * WINDOW * 4);
        let ([mut offset, mut k], [total, count]) = scan(cx, windows, [tokens, selected]);

        // The image's list starts where it will stay, if it is the only one.
        let room = Room::new(span, each);
        for i in start..end {
            let side = q.get(cx, i);
            if side > 0 {
                cu_seqlens.set(cx, (room.start + k) as usize, offset as i32);
                patch_id.set(cx, (room.start + k) as usize, (span.start + i) as i32);
                offset += side * side;
                k += 1;
            }
        }
        if q.held {
            let mut i = rank;
            while i < n {
                sides.set(cx, (span.start + i) as usize, q.get(cx, i) as i32);
                i += threads;
            }
        }
        if images == 1 {
            let mut k = count + rank;
            while k <= room.len {
                cu_seqlens.set(cx, k as usize, total as i32);
                if k < room.len {
                    patch_id.set(cx, k as usize, -1);
                }
                k += threads;
            }
        }
        if rank == 0 {
            // Where they stay too; of more images what is each one's, until they are packed.
            image_cu_seqlens.set(cx, image as usize + 1, total as i32);
            image_cu_patches.set(cx, image as usize + 1, count as i32);
            if images == 1 {
                image_cu_seqlens.set(cx, 0, 0);
                image_cu_patches.set(cx, 0, 0);
                counts.set(cx, 0, total);
                counts.set(cx, 1, count);
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

/// A number below 2^16 for each patch of an image.
#[derive(Clone, Copy)]
struct Map {
    /// Whether they are in shared memory.
    held: bool,
    first: u32,
    few: Shared<u16>,
    many: InOut<i32>,
}

impl Map {
    /// That of patch `i`.
    ///
    /// # Safety
    /// The image has the patch.
    #[inline(always)]
    unsafe fn get(self, cx: impl Cooperative, i: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            if self.held {
                u32::from(cx.shared_get(self.few, i / HELD * STRIDE + i % HELD))
            } else {
                self.many.get(cx, (self.first + i) as usize) as u32
            }
        }
    }

    /// Sets it.
    ///
    /// # Safety
    /// The image has the patch, and it is this thread's.
    #[inline(always)]
    unsafe fn set(self, cx: impl Cooperative, i: u32, v: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.held {
                cx.shared_set(self.few, i / HELD * STRIDE + i % HELD, v as u16);
            } else {
                self.many.set(cx, (self.first + i) as usize, v as i32);
            }
        }
    }
}

/// The highest bin that, with those above it, counts more than `rank`; and what those above it count.
///
/// # Safety
/// `counts` has 256 elements on 16 bytes, which sum to more than `rank`.
#[inline(always)]
unsafe fn bin(cx: impl Cooperative, counts: Shared<u32>, rank: u32) -> (u32, u32) {
    // Every warp for itself: 8 bins a lane, from the top down.
    let top = 255 - 8 * cx.lane();
    // SAFETY: 8 bins a lane are all of them.
    let (b, a) = unsafe { (cx.shared_get4(counts, top - 3), cx.shared_get4(counts, top - 7)) };
    let bins = [b[3], b[2], b[1], b[0], a[3], a[2], a[1], a[0]];
    let all = bins.into_iter().sum();
    let through = through(cx, all);
    let lane = cx.ballot(through > rank).trailing_zeros() % 32;
    let (mut bin, mut above) = (0, through - all);
    let mut done = false;
    for count in bins {
        done |= above + count > rank;
        if !done {
            (bin, above) = (bin + 1, above + count);
        }
    }
    (cx.shuffle(top.wrapping_sub(bin), lane), cx.shuffle(above, lane))
}

/// floor(65535 r + 1/2) of exactly the value of `r`, clamped to 1..=65535.
#[inline(always)]
fn quantise(r: f32) -> u32 {
    if r >= 1.0 {
        return 65535;
    }
    // So small that the result rounds to 0, or negative, or no number.
    if r < 1e-6 || r.is_nan() {
        return 1;
    }
    // r = mantissa / 2^shift, with shift from 24 to 43.
    let mantissa = u64::from(r.to_bits() & 0x7f_ffff | 0x80_0000);
    let shift = 150 - (r.to_bits() >> 23);
    let rounded = (65535 * mantissa + (1 << (shift - 1))) >> shift;
    (rounded as u32).max(1)
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
    /// The steps with `gains` in the first 1020 bytes of shared memory, valid after a barrier; `early` is the lane's gain, or the last.
    ///
    /// # Safety
    /// `gains` has `hi - lo + 1` elements, at most 255.
    #[inline(always)]
    unsafe fn load<C: Cooperative>(cx: C, gains: In<u32>, early: u32, lo: u32, hi: u32) -> Self {
        // SAFETY: 255 words at most, from 0.
        unsafe {
            let steps = Self { gains: cx.shared::<u32>(0), count: hi - lo + 1, lo };
            if cx.warp() == 0 {
                // Never rising is true of what `gains` makes; the search and 32-bit products below rely on it for any contents.
                let (mut least, mut gain, mut base) = (65535, early, 0);
                loop {
                    let k = base + cx.lane();
                    gain = gain.min(least);
                    let mut delta = 1;
                    while delta < 32 {
                        gain = gain.min(cx.shuffle_up(gain, delta));
                        delta *= 2;
                    }
                    if k < steps.count {
                        cx.shared_set(steps.gains, k, gain);
                    }
                    least = cx.shuffle(gain, 31);
                    base += 32;
                    if base >= steps.count {
                        break;
                    }
                    gain = gains.get(cx, (base + cx.lane()).min(steps.count - 1) as usize);
                }
            }
            steps
        }
    }

    /// The side after so many steps.
    #[inline(always)]
    fn side(self, taken: u32) -> u32 {
        if taken == 0 { 0 } else { self.lo + taken - 1 }
    }

    /// The tokens after so many steps.
    #[inline(always)]
    fn tokens(self, taken: u32) -> u32 {
        self.side(taken) * self.side(taken)
    }

    /// How many of the first steps have `q * gain >= t`, known to be from `least` to `most`; `q` is at most 65535.
    ///
    /// # Safety
    /// There was a barrier since `load`, and `most` is at most `count`.
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

#[cfg(test)]
mod tests {
    use super::quantise;

    /// Around every half, where rounding in f32 would err; in f64 the product and the sum are exact.
    #[test]
    fn quantise_rounds_the_exact_value() {
        let exact = |r: f32| (65535.0 * f64::from(r) + 0.5).floor().clamp(1.0, 65535.0) as u32;
        for half in 0..=65536u32 {
            let middle = ((f64::from(half) + 0.5) / 65535.0) as f32;
            for step in -3..=3 {
                let r = f32::from_bits(middle.to_bits().wrapping_add_signed(step));
                assert_eq!(quantise(r), exact(r), "{r:e}");
            }
        }
        for bits in (0..=u32::MAX).step_by(65521) {
            let r = f32::from_bits(bits);
            assert_eq!(quantise(r), if r.is_nan() { 1 } else { exact(r) }, "{r:e}");
        }
    }
}
