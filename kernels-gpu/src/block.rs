//! Reductions and scans over a block, through a window of [`WINDOW`] words of shared memory.
//!
//! All threads call them together. A window may be used again after another barrier.

use thalweg_simt::{Cooperative, Shared, Word};

/// Words of a window: one for each warp of the largest block.
pub(crate) const WINDOW: u32 = 32;

/// `op` over the values of all threads, in every thread.
///
/// # Safety
/// `window` has a word for each warp, which no thread accesses until the next barrier but one.
#[inline(always)]
pub(crate) unsafe fn reduce<T: Word, C: Cooperative>(cx: C, window: Shared<T>, v: T, op: impl Fn(T, T) -> T) -> T {
    let mut v = v;
    let mut mask = 16;
    while mask > 0 {
        v = op(v, cx.shuffle_xor(v, mask));
        mask /= 2;
    }
    // SAFETY: a word for each warp; written before the barrier, read after.
    unsafe {
        if cx.lane() == 0 {
            cx.shared_set(window, cx.warp(), v);
        }
        cx.barrier();
        let mut all = cx.shared_get(window, 0);
        for warp in 1..cx.block_dim().x / 32 {
            all = op(all, cx.shared_get(window, warp));
        }
        all
    }
}

/// The sum over the threads before this one and over all threads; both stay at the largest
/// word rather than wrap.
///
/// # Safety
/// As for [`reduce`].
#[inline(always)]
pub(crate) unsafe fn scan<C: Cooperative>(cx: C, window: Shared<u32>, v: u32) -> (u32, u32) {
    let lane = cx.lane();
    let mut through = v;
    let mut delta = 1;
    while delta < 32 {
        let other = cx.shuffle_up(through, delta);
        if lane >= delta {
            through = through.saturating_add(other);
        }
        delta *= 2;
    }
    let previous = cx.shuffle_up(through, 1);
    // SAFETY: as in `reduce`.
    unsafe {
        if lane == 31 {
            cx.shared_set(window, cx.warp(), through);
        }
        cx.barrier();
        let (mut before, mut all) = (if lane == 0 { 0 } else { previous }, 0u32);
        for warp in 0..cx.block_dim().x / 32 {
            let sum = cx.shared_get(window, warp);
            if warp < cx.warp() {
                before = before.saturating_add(sum);
            }
            all = all.saturating_add(sum);
        }
        (before, all)
    }
}
