//! Reductions and scans over a block, through a window of [`WINDOW`] words of shared memory.
//!
//! All threads call them together. A reduction's window may be used again at once, a scan's after another barrier.
//!
//! - **The first warp takes the warps' values together**, and all threads read a word or two: were each to read all of
//!   them, a block of 32 warps would spend 1024 shared accesses there, several times what the second barrier costs.

use thalweg_simt::{Cooperative, Shared};

/// Words of a window: one for each warp of the largest block, and the result.
pub(crate) const WINDOW: u32 = 33;

/// The largest of each of `K` values over all threads, in every thread.
///
/// # Safety
/// `window` has `K` times [`WINDOW`] words, which no thread accesses until the next barrier.
#[inline(always)]
pub(crate) unsafe fn maxima<const K: usize, C: Cooperative>(cx: C, window: Shared<f32>, v: [f32; K]) -> [f32; K] {
    let warps = cx.block_dim().x / 32;
    let v = v.map(|v| cx.warp_max(v));
    // SAFETY: a word for each warp, written before a barrier and read after; likewise the last word.
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

/// Sums over the threads before this one and over all threads, of each of `K` values; they stay at the largest
/// word rather than wrap.
///
/// # Safety
/// `window` has `K` times [`WINDOW`] words, which no thread accesses until the next barrier, nor after this until another.
#[inline(always)]
pub(crate) unsafe fn scan<const K: usize, C: Cooperative>(
    cx: C,
    window: Shared<u32>,
    v: [u32; K],
) -> ([u32; K], [u32; K]) {
    let (lane, warp, warps) = (cx.lane(), cx.warp(), cx.block_dim().x / 32);
    let sums = v.map(|v| through(cx, v));
    let previous = sums.map(|sum| cx.shuffle_up(sum, 1));
    // SAFETY: as in `maxima`.
    unsafe {
        if lane == 31 {
            for (k, sum) in sums.into_iter().enumerate() {
                cx.shared_set(window, k as u32 * WINDOW + warp, sum);
            }
        }
        cx.barrier();
        if warp == 0 {
            for k in 0..K as u32 {
                let at = k * WINDOW + lane;
                let sums = through(cx, if lane < warps { cx.shared_get(window, at) } else { 0 });
                cx.shared_set(window, at, sums);
            }
        }
        cx.barrier();
        // Asked anew: of one value, rustc's jump threading on MIR, which knows no convergent calls, would make two copies of the
        // barrier between the two branches, and the threads of the block would wait in two places.
        let warp = cx.warp();
        let before = |k: usize| {
            let within = if lane == 0 { 0 } else { previous[k] };
            let at = k as u32 * WINDOW + warp.max(1) - 1;
            let before = cx.shared_get(window, at);
            if warp == 0 { within } else { before.saturating_add(within) }
        };
        (core::array::from_fn(before), core::array::from_fn(|k| cx.shared_get(window, k as u32 * WINDOW + warps - 1)))
    }
}

/// The sum over the lanes up to this one; it stays at the largest word rather than wraps.
#[inline(always)]
pub(crate) fn through(cx: impl Cooperative, mut v: u32) -> u32 {
    let mut delta = 1;
    while delta < 32 {
        let other = cx.shuffle_up(v, delta);
        if cx.lane() >= delta {
            v = v.saturating_add(other);
        }
        delta *= 2;
    }
    v
}
