//! Allocation: how many tokens each patch gets, exactly.
//!
//! ```text
//! q[i]    = clamp(floor(65535 * relevance[i] + 1/2), 1, 65535)
//! side(i, t) = the highest n in lo..=hi whose steps all have q[i] * gain >= t, or 0
//! t*      = the smallest t >= 1 with sum of side(i, t)^2 <= budget              (32 rounds of bisection)
//! then, in raster order, the steps that t* - 1 would add, until the first that does not fit
//! cu_seqlens, patch_id = prefix sums over the patches with a side
//! ```
//!
//! Launch: one block an image, a thread for every 8 patches, at most 1024.
//! Memory: 4 bytes read and about 12 written a patch, and the sides read again from L1 a round.
//!
//! - **Integers throughout**, so every device gives the same allocation for the same relevance. `q` is
//!   computed from the float's mantissa: in floats, `65535 r + 0.5` rounds up just below a half.
//! - **Bisection instead of a sort**: a round is a pass over `q`, kept in `sides` meanwhile, and a reduction.
//! - **A patch a thread, once few are left**: what has no step above `bursts` is out for good. Every few rounds the others are
//!   counted, and as soon as there are no more than threads, each keeps one, with the range its side can still have.
//! - **Sums that saturate**: the question is only whether a sum passes the budget, which is below 2^31, so 32 bits
//!   that stick at the top answer it for any number of patches.
//! - **Two orders**: rounds take every nth patch (whole lines a load), the tail takes runs of
//!   neighbours, so that raster order is one scan over the block.

use thalweg_simt::{Cooperative, In, Shared, kernel};

use crate::block::{WINDOW, reduce, scan};

kernel! {
    /// Token allocation for `n` patches: `relevance` \[n\] to `sides` \[n\], and the packed order of the tokens.
    ///
    /// `gains` [hi - lo + 1] are [`gains`](crate::gains)`(lo, hi, focus)`. With K patches selected and
    /// C = min(n, budget / lo^2) the most that could be, `cu_seqlens` [C + 1 or more] receives the K + 1
    /// token offsets, and T in every element of the first C + 1 that follows; `patch_id` [C or more] the K raster
    /// indices, and -1 in the rest of the first C; `counts` [2] T and K.
    pub unsafe fn allocate(
        cx: impl Cooperative, n: u32, lo: u32, hi: u32, budget: u64, relevance: In<f32>, gains: In<u32>,
        sides: InOut<i32>, cu_seqlens: Out<i32>, patch_id: Out<i32>, counts: Out<u32>,
    )
    require {
        (1..=268435456).contains(&n),
        1 <= lo,
        lo <= hi,
        hi <= 255,
        lo * lo <= budget,
        budget <= 2147483647,
        relevance.len() == n,
        gains.len() == hi - lo + 1,
        sides.len() == n,
        cu_seqlens.len() > n.min(budget / (lo * lo)),
        patch_id.len() >= n.min(budget / (lo * lo)),
        counts.len() == 2,
    }
    grid(1) block(n.div_ceil(256).min(32) * 32) shared(1024 + 4 * 33 * 4 + n.div_ceil(256).min(32) * 32 * 4)
    {
        let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
        let window = |k: u32| cx.shared::<u32>(1024 + k * WINDOW * 4);
        let steps = Steps::load(cx, gains, lo, hi);
        let mut i = rank;
        while i < n {
            sides.set(cx, i as usize, quantise(relevance.get(cx, i as usize)) as i32);
            i += threads;
        }
        cx.barrier();
        let first = cx.shared_get(steps.gains, 0);

        // The cost at `fits` is within the budget; at `bursts` it is not, or that is 0.
        let budget = budget as u32;
        let (mut bursts, mut fits, mut spent) = (0, u32::MAX, 0);
        // Once they are few: this thread's patch, or 0, and the steps it takes at `fits` and at `bursts`.
        let (mut few, mut own, mut least, mut most) = (false, 0, 0, steps.count);
        let mut round = 0;
        while fits - bursts > 1 {
            round += 1;
            if !few && round % 6 == 0 {
                let possible = |i: u32| {
                    let q = sides.get(cx, i as usize) as u32;
                    (q, q * first > bursts)
                };
                let mut mine = 0;
                let mut i = rank;
                while i < n {
                    mine += u32::from(possible(i).1);
                    i += threads;
                }
                let (mut slot, count) = scan(cx, window(1), mine);
                few = count <= threads;
                if few {
                    let list = cx.shared::<u32>(1024 + 4 * WINDOW * 4);
                    let mut i = rank;
                    while i < n {
                        if let (q, true) = possible(i) {
                            cx.shared_set(list, slot, q);
                            slot += 1;
                        }
                        i += threads;
                    }
                    cx.barrier();
                    own = if rank < count { cx.shared_get(list, rank) } else { 0 };
                }
            }
            let t = bursts + (fits - bursts) / 2;
            let (mut cost, mut taken) = (0u32, 0);
            if few {
                taken = steps.taken(cx, own, t, least, most);
                cost = steps.tokens(taken);
            } else {
                let mut i = rank;
                while i < n {
                    let q = sides.get(cx, i as usize) as u32;
                    if q * first >= t {
                        cost = cost.saturating_add(steps.tokens(steps.taken(cx, q, t, 1, steps.count)));
                    }
                    i += threads;
                }
            }
            let cost = reduce(cx, window(0), 0, cost, u32::saturating_add);
            if cost <= budget {
                (fits, spent, least) = (t, cost, taken);
            } else {
                (bursts, most) = (t, taken);
            }
            if !few {
                (least, most) = (0, steps.count);
            }
        }

        // What patch `i` has at t*, and what it would have at t* - 1.
        let range = |i: u32| {
            let q = sides.get(cx, i as usize) as u32;
            let below = (fits - 1).max(1);
            if q * first < below {
                return (0, 0);
            }
            let most = steps.taken(cx, q, below, 1, steps.count);
            (steps.side(steps.taken(cx, q, fits, 0, most)), steps.side(most))
        };
        let run = n.div_ceil(threads);
        let (start, end) = ((rank * run).min(n), ((rank + 1) * run).min(n));
        let mut wanted = 0u32;
        for i in start..end {
            let (side, next) = range(i);
            wanted = wanted.saturating_add(next * next - side * side);
        }
        let left = budget - spent;
        // Saturated or not, it exceeds `left` once a step before this run did not fit.
        let (mut taken, _) = scan(cx, window(1), wanted);
        let (mut tokens, mut selected) = (0u32, 0u32);
        for i in start..end {
            let (mut side, next) = range(i);
            while side < next && taken <= left {
                let higher = if side == 0 { lo } else { side + 1 };
                taken += higher * higher - side * side;
                if taken <= left {
                    side = higher;
                }
            }
            sides.set(cx, i as usize, side as i32);
            tokens += side * side;
            selected += u32::from(side > 0);
        }

        let (mut offset, total) = scan(cx, window(2), tokens);
        let (mut k, count) = scan(cx, window(3), selected);
        for i in start..end {
            let side = sides.get(cx, i as usize) as u32;
            if side > 0 {
                cu_seqlens.set(cx, k as usize, offset as i32);
                patch_id.set(cx, k as usize, i as i32);
                offset += side * side;
                k += 1;
            }
        }
        let most = n.min(budget / (lo * lo));
        let mut k = count + rank;
        while k <= most {
            cu_seqlens.set(cx, k as usize, total as i32);
            if k < most {
                patch_id.set(cx, k as usize, -1);
            }
            k += threads;
        }
        if rank == 0 {
            counts.set(cx, 0, total);
            counts.set(cx, 1, count);
        }
    }
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
    /// The steps with `gains` in the first 1020 bytes of shared memory, valid after a barrier.
    ///
    /// # Safety
    /// `gains` has `hi - lo + 1` elements, at most 255.
    #[inline(always)]
    unsafe fn load<C: Cooperative>(cx: C, gains: In<u32>, lo: u32, hi: u32) -> Self {
        // SAFETY: 255 words at most, from 0.
        unsafe {
            let steps = Self { gains: cx.shared::<u32>(0), count: hi - lo + 1, lo };
            if cx.thread_idx().x == 0 {
                // True of what `gains` makes; the search and 32-bit products below rely on it for any contents.
                let mut least = 65535;
                for k in 0..steps.count {
                    least = gains.get(cx, k as usize).min(least);
                    cx.shared_set(steps.gains, k, least);
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
