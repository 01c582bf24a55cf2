//! The steps by which the side of a patch rises, and their gains.

use thalweg_simt::{Cooperative, In, SharedMemory};

/// The steps of a patch: from 0 to `lo`, then by one up to `hi`.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// The gains: at most 65535, none larger than the one before.
    pub(super) gains: SharedMemory<u32>,
    /// Number of steps.
    pub(super) count: u32,
    pub(super) lo: u32,
}

impl Steps {
    /// Copies the gains into shared memory, where they can be read after the next barrier. The
    /// first warp calls it; `gain` is the element of `gains` at the lane's index, or the last one.
    ///
    /// # Safety
    /// `gains` has `count` elements, at most 255, and `self.gains` has as many words of shared
    /// memory, which the block accesses only here until the next barrier.
    #[inline(always)]
    pub(super) unsafe fn store(self, cx: impl Cooperative, gains: In<u32>, mut gain: u32) {
        // The function `gains` makes numbers that are at most 65535 and never rise. The search and
        // its 32-bit products rely on that, so it is enforced here for any contents: each gain
        // becomes the least of itself and all before.
        let mut least = 65535;
        let mut row = 0;
        while row < self.count {
            let k = row + cx.lane();
            if row > 0 {
                // SAFETY: the index is below `count`, the number of elements that the caller
                // promises.
                gain = unsafe { gains.get(cx, k.min(self.count - 1) as usize) };
            }
            let mut v = gain.min(least);
            let mut delta = 1;
            while delta < 32 {
                v = v.min(cx.shuffle_up(v, delta));
                delta *= 2;
            }
            if k < self.count {
                // SAFETY: `k` is below `count`, the number of words that the caller promises.
                unsafe { cx.shared_set(self.gains, k, v) };
            }
            least = cx.shuffle(v, 31);
            row += 32;
        }
    }

    /// The gain of step `k`.
    ///
    /// # Safety
    /// There was a barrier since [`store`](Self::store), and `k` is below `count`.
    #[inline(always)]
    pub(super) unsafe fn gain(self, cx: impl Cooperative, k: u32) -> u32 {
        // SAFETY: `k` is below `count`, as the caller promises, and `store` had that many words.
        unsafe { cx.shared_get(self.gains, k) }
    }

    /// The side after `taken` steps.
    #[inline(always)]
    pub(super) fn side(self, taken: u32) -> u32 {
        if taken == 0 { 0 } else { self.lo + taken - 1 }
    }

    /// The side that is one step above `side`.
    #[inline(always)]
    pub(super) fn next(self, side: u32) -> u32 {
        if side == 0 { self.lo } else { side + 1 }
    }

    /// The tokens that step `k` adds.
    #[inline(always)]
    pub(super) fn cost(self, k: u32) -> u32 {
        if k == 0 { self.lo * self.lo } else { 2 * (self.lo + k) - 1 }
    }

    /// The number of steps with `q * gain >= t`, by bisection. The first step is known to be one of
    /// them, and `q` is at most 65535.
    ///
    /// # Safety
    /// There was a barrier since [`store`](Self::store).
    #[inline(always)]
    pub(super) unsafe fn taken(self, cx: impl Cooperative, q: u32, t: u32) -> u32 {
        let (mut taken, mut end) = (1, self.count);
        while taken < end {
            let k = (taken + end) / 2;
            // SAFETY: `k` is below `count`, and there was a barrier, as the caller promises.
            if q * unsafe { self.gain(cx, k) } >= t {
                taken = k + 1;
            } else {
                end = k;
            }
        }
        taken
    }
}

/// Fixed-point gains of the steps 0 to `lo`, then `n - 1` to `n` up to `hi`, as
/// [`allocate`](crate::vision::allocate) takes them: the utility t^focus per token, relative to the
/// first step, whose gain is 65535. They never rise. `focus` is in (0, 1), `lo` in 1..=`hi`.
///
/// ```
/// let gains = thalweg_kernels::vision::gains(8, 20, 0.8);
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
