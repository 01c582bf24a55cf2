//! The sums of a patch's threads in shared memory, and the means that become of them.

use thalweg_simt::{Cooperative, Out, SharedMemory};

use crate::vision::PLANES;
use crate::vision::patch::{Patch, Sum};
use crate::vision::texel::Place;

/// Bins of the histogram.
pub(super) const BINS: u32 = 256;
/// Words of a thread: sums of 13 planes, the entropy, and one more. An odd number, so that no two
/// lanes meet in a bank.
pub(super) const VALUES: u32 = PLANES + 2;
/// The index of the word that a thread's sums leave free.
const SPARE: u32 = PLANES + 1;

/// Keeps in shared memory what is known of a patch before its pixels are read, which frees
/// registers: threads 9 and 10 keep the means of y and x, thread 11 the number of pixels.
///
/// # Safety
/// `total` has [`VALUES`] words of shared memory for thread `rank`, the last of which nothing else
/// accesses.
#[inline(always)]
pub(super) unsafe fn keep(cx: impl Cooperative, total: SharedMemory<f32>, rank: u32, place: Place, area: Patch) {
    let center = |start: u32, extent: u32| (2 * start + extent - 1) as f32 * 0.5;
    let v = match rank {
        9 => center(area.y, area.height) * place.scale[0],
        10 => center(area.x, area.width) * place.scale[1],
        _ => area.area() as f32,
    };
    // SAFETY: SPARE is below VALUES, and the caller promises VALUES words for this thread.
    unsafe { cx.shared_set(total, rank * VALUES + SPARE, v) };
}

/// Returns what thread `rank` kept.
///
/// # Safety
/// As for [`keep`], and there was a barrier of the block, or of the warp that both threads are in,
/// since thread `rank` kept it.
#[inline(always)]
pub(super) unsafe fn kept(cx: impl Cooperative, total: SharedMemory<f32>, rank: u32) -> f32 {
    // SAFETY: as in `keep`.
    unsafe { cx.shared_get(total, rank * VALUES + SPARE) }
}

/// Adds up the sums of the threads of a patch, and writes the means and the entropy of patch `n`.
/// One whole warp calls it.
///
/// # Safety
/// `total` has [`VALUES`] words for each of `threads` threads, a multiple of 32, in which threads 9
/// to 11 [`keep`] theirs. There was a barrier since they were written. `features` and `entropy`
/// have patch `n`, and no other warp writes it.
#[inline(always)]
pub(super) unsafe fn finish(
    cx: impl Cooperative,
    total: SharedMemory<f32>,
    threads: u32,
    n: u32,
    features: Out<f32>,
    entropy: Out<f32>,
) {
    // SAFETY: The loop reads 16 threads at a time, and half the number of threads is a multiple of
    // 16. `value` is at most PLANES, and the caller promises VALUES words, which is more, for each
    // thread. The stores are to patch `n`.
    unsafe {
        let lane = cx.thread_idx().x;
        // Two lanes add up each value, each of them for half the threads.
        let (value, first) = (lane % 16, lane / 16 * (threads / 2));
        let mut half = Sum::default();
        // Planes 9 and 10 have no sums: their means are kept.
        if value <= PLANES && value.wrapping_sub(9) > 1 {
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
        let mut mean = (half + cx.shuffle_xor(half, 16)) * cx.recip_approx(kept(cx, total, 11));
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

/// Computes a lane's part of the entropy of `pixels` values in a histogram, in units of 8 bits:
/// that of every 32nd bin, from its lane on.
///
/// # Safety
/// `count` has [`BINS`] words of shared memory, which no thread writes meanwhile.
#[inline(always)]
pub(super) unsafe fn bits(cx: impl Cooperative, count: SharedMemory<u32>, pixels: f32) -> f32 {
    let all = cx.log2_approx(pixels);
    let mut bits = 0.0;
    for k in 0..BINS / 32 {
        // SAFETY: the index is at most 31 + 32 * 7, below BINS, which the caller promises.
        let count = unsafe { cx.shared_get(count, cx.thread_idx().x % 32 + 32 * k) } as f32;
        // A bin with all pixels contributes exactly 0, and so does an empty one.
        bits = cx.fma(count, all - cx.log2_approx(count.max(1.0)), bits);
    }
    bits * 0.125
}

/// Adds up in pairs, so that additions do not wait for one another.
#[inline(always)]
pub(super) fn sum<const N: usize>(v: [f32; N]) -> f32 {
    match v[..] {
        [a, b, c, d] => (a + b) + (c + d),
        _ => v.into_iter().sum(),
    }
}
