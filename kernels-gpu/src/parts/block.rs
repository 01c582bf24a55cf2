//! Reductions and scans over a block, through windows of [`WINDOW`] words of shared memory.
//!
//! All threads of the block call them together. The window of a scan may only be used again after
//! another barrier.
//!
//! - **One warp combines the values of all warps**, and then all threads read one or two words. If
//!   each thread read the values of all warps instead, a block of 32 warps would make 1024 accesses
//!   of shared memory, which cost several times the second barrier.

use thalweg_simt::{Cooperative, SharedMemory};

/// Words of a window: one for each warp of the largest block, and the result.
pub(crate) const WINDOW: u32 = 33;

/// Computes the largest of each of `K` values over all threads of the block, and returns it in
/// every thread.
///
/// # Safety
/// All threads of the block call it. `window` has `K` times [`WINDOW`] words of shared memory. From
/// the call on until the next barrier no thread accesses them otherwise.
#[inline(always)]
pub(crate) unsafe fn maxima<const K: usize, C: Cooperative>(cx: C, window: SharedMemory<f32>, v: [f32; K]) -> [f32; K] {
    let warps = cx.block_dim().x / 32;
    let v = v.map(|v| cx.warp_max(v));
    // SAFETY: A warp's index is at most 31 and the last word's is WINDOW - 1, so all are inside the
    // `K` windows that the caller promises. One lane writes each word; others read it after a
    // barrier, which all threads reach.
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

/// Computes the sum of a value over all threads of the block, and returns it in every thread. The
/// order of the additions is fixed.
///
/// # Safety
/// As for [`maxima`], with one window.
#[inline(always)]
pub(crate) unsafe fn sum<C: Cooperative>(cx: C, window: SharedMemory<f32>, v: f32) -> f32 {
    let v = cx.warp_sum(v);
    // SAFETY: A warp's index is at most 31, so it is inside the window that the caller promises.
    // One lane writes each word; others read it after a barrier, which all threads reach.
    unsafe {
        if cx.lane() == 0 {
            cx.shared_set(window, cx.warp(), v);
        }
        cx.barrier();
        let warps = cx.block_dim().x * cx.block_dim().y / 32;
        let mut total = 0.0;
        for warp in 0..warps {
            total += cx.shared_get(window, warp);
        }
        total
    }
}

/// Computes two sums of each of `K` values: over the threads of the block before this one, and over
/// all of them. A sum that is too large stays at the largest word and does not wrap.
///
/// # Safety
/// As for [`maxima`]. After the call, too, no thread accesses the window before another barrier.
#[inline(always)]
pub(crate) unsafe fn scan<const K: usize, C: Cooperative>(
    cx: C,
    window: SharedMemory<u32>,
    v: [u32; K],
) -> ([u32; K], [u32; K]) {
    let (lane, warp, warps) = (cx.lane(), cx.warp(), cx.block_dim().x / 32);
    let sums = v.map(|v| through(cx, v));
    let previous = sums.map(|sum| cx.shuffle_up(sum, 1));
    // SAFETY: as in `maxima`. All threads read the window at the end, before that other barrier.
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
        // Call `warp()` again instead of reusing its value: with one value, rustc's jump threading,
        // which does not know that a barrier must not be duplicated, would make a copy of it for
        // each branch, and the threads of the block would wait in two places.
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

/// Computes the sum over the lanes up to and including this one. If it is too large, it stays at
/// the largest word.
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
