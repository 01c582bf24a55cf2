//! Reductions and scans over a block, through a window of [`WINDOW`] words of shared memory.
//!
//! All threads call them together. A reduction's window may be used again at once, a scan's after another barrier.
//!
//! - **The first warp takes the warps' values together**, and all threads read a word or two: were each to read all of
//!   them, a block of 32 warps would spend 1024 shared accesses there, several times what the second barrier costs.

use thalweg_simt::{Cooperative, Shared, Word};

/// Words of a window: one for each warp of the largest block, and the result.
pub(crate) const WINDOW: u32 = 33;

/// `op` over the values of all threads, in every thread; `identity` changes no value.
///
/// # Safety
/// `window` has [`WINDOW`] words, which no thread accesses until the next barrier.
#[inline(always)]
pub(crate) unsafe fn reduce<T: Word, C: Cooperative>(
    cx: C,
    window: Shared<T>,
    identity: T,
    v: T,
    op: impl Fn(T, T) -> T,
) -> T {
    let butterfly = |mut v: T| {
        let mut mask = 16;
        while mask > 0 {
            v = op(v, cx.shuffle_xor(v, mask));
            mask /= 2;
        }
        v
    };
    let v = butterfly(v);
    // SAFETY: a word for each warp, written before a barrier and read after; likewise the last word.
    unsafe {
        if cx.lane() == 0 {
            cx.shared_set(window, cx.warp(), v);
        }
        cx.barrier();
        if cx.warp() == 0 {
            let present = cx.lane() < cx.block_dim().x / 32;
            let v = butterfly(if present { cx.shared_get(window, cx.lane()) } else { identity });
            if cx.lane() == 0 {
                cx.shared_set(window, WINDOW - 1, v);
            }
        }
        cx.barrier();
        cx.shared_get(window, WINDOW - 1)
    }
}

/// The largest of each of `K` values over all threads, in every thread.
///
/// # Safety
/// `window` has `K` times [`WINDOW`] words, which no thread accesses until the next barrier.
#[inline(always)]
pub(crate) unsafe fn maxima<const K: usize, C: Cooperative>(cx: C, window: Shared<f32>, v: [f32; K]) -> [f32; K] {
    let warps = cx.block_dim().x / 32;
    let v = v.map(|v| cx.warp_max(v));
    // SAFETY: as in `reduce`.
    unsafe {
        if cx.lane() == 0 {
            for (k, v) in v.into_iter().enumerate() {
                cx.shared_set(window, k as u32 * WINDOW + cx.warp(), v);
            }
        }
        cx.barrier();
        let mut k = cx.warp();
        while k < K as u32 {
            let present = cx.lane() < warps;
            let v = if present { cx.shared_get(window, k * WINDOW + cx.lane()) } else { f32::NEG_INFINITY };
            let v = cx.warp_max(v);
            if cx.lane() == 0 {
                cx.shared_set(window, k * WINDOW + WINDOW - 1, v);
            }
            k += warps;
        }
        cx.barrier();
        core::array::from_fn(|k| cx.shared_get(window, k as u32 * WINDOW + WINDOW - 1))
    }
}

/// The sum over the threads before this one and over all threads; both stay at the largest
/// word rather than wrap.
///
/// # Safety
/// `window` has [`WINDOW`] words, which no thread accesses until the next barrier, nor after this until another.
#[inline(always)]
pub(crate) unsafe fn scan<C: Cooperative>(cx: C, window: Shared<u32>, v: u32) -> (u32, u32) {
    let (lane, warp, warps) = (cx.lane(), cx.warp(), cx.block_dim().x / 32);
    let through = |mut v: u32| {
        let mut delta = 1;
        while delta < 32 {
            let other = cx.shuffle_up(v, delta);
            if lane >= delta {
                v = v.saturating_add(other);
            }
            delta *= 2;
        }
        v
    };
    let sum = through(v);
    let previous = cx.shuffle_up(sum, 1);
    // SAFETY: as in `reduce`.
    unsafe {
        if lane == 31 {
            cx.shared_set(window, warp, sum);
        }
        cx.barrier();
        if warp == 0 {
            let sums = through(if lane < warps { cx.shared_get(window, lane) } else { 0 });
            cx.shared_set(window, lane, sums);
        }
        cx.barrier();
        let within = if lane == 0 { 0 } else { previous };
        // Asked anew: of one value, rustc's jump threading on MIR, which knows no convergent calls, would make two copies of the
        // barrier between the two branches, and the threads of the block would wait in two places.
        let before = if cx.warp() == 0 { 0 } else { cx.shared_get(window, warp - 1) };
        (before.saturating_add(within), cx.shared_get(window, warps - 1))
    }
}
