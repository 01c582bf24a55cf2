//! Balance: the weights of the three scores, from their statistics and the query.
//!
//! ```text
//! x   = mean, maximum, standard deviation (n - 1) of entropy, salience, participatory score
//! h1  = relu(W1 (x, q) + b1)               128; the part of the query is a constant
//! h2  = relu(W2 h1 + b2)                   128
//! mix = softmax(W3 h2 + b3)                3; or by tensions: t = 1 / (1 + exp(-(W3 h2 + b3))),
//!       (t0 + 1 - t1, t2 + 1 - t0, t1 + 1 - t2) / 3
//! ```
//!
//! Launch: one block of 512 threads for each image.
//! Memory: 71 KiB of weights and 48 bytes for every 64 patches are read, from L2; 12 bytes are
//! written.
//!
//! - **Weights are loaded before anything else is waited for**, and stay in registers: a thread has
//!   a quarter of a row of the second layer, so its 32 loads are in flight while the statistics are
//!   computed.
//! - **Statistics of 64 patches each** are combined with the deviations of their means (Chan, Golub
//!   and LeVeque), one warp for each map. No large numbers cancel, and the order of the additions
//!   is always the same.
//! - **The statistics of salience are divided by its peak here**, because salience itself is
//!   divided later.

use thalweg_simt::kernel;

use crate::parts;
use crate::vision::layout::{PIECE, Span};
use crate::vision::patch::Sum;

/// Units of each hidden layer.
const UNITS: u32 = 128;
/// Statistics of the three maps.
const INPUTS: u32 = 9;
/// Threads of a block, and how many of them share a unit of the second layer.
const THREADS: u32 = 512;
const PARTS: u32 = THREADS / UNITS;
/// The starts of the parts of shared memory, in words: the statistics and the peak, the first
/// layer, the parts of the second layer, the second layer, the third layer; and the end.
const FIRST: u32 = 12;
const PARTIAL: u32 = FIRST + UNITS;
const SUMS: u32 = PARTIAL + THREADS;
const LOGITS: u32 = SUMS + UNITS;
#[cfg(not(target_arch = "nvptx64"))]
const END: u32 = LOGITS + 4;
/// The starts of the second layer in `balancer_weights`, its bias, the third layer, and its bias.
const SECOND: u32 = (INPUTS + 1) * UNITS;
const SECOND_BIAS: u32 = SECOND + UNITS * UNITS;
const THIRD: u32 = SECOND_BIAS + UNITS;
const THIRD_BIAS: u32 = THIRD + 3 * UNITS;
// The requirement of the declaration shows this number.
const _: () = assert!(THIRD_BIAS + 3 == 18179);

kernel! {
    /// See [`balance`](crate::vision::balance).
    pub(super) unsafe fn balance(
        cx: impl Cooperative, images: u32, patches: u32, queries: u32, tensions: bool,
        table: In<u32>, summaries: In<f32>, predictor: In<f32>, mix: Out<f32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        table.len() == 4 * (images + 1),
        summaries.len() == 12 * (patches / 64 + images),
        queries == 1 || queries == images,
        predictor.len() == 18179 * queries,
        mix.len() == 3 * images,
    }
    grid(images) block(THREADS) shared(END * 4)
    {
        let (image, rank, lane, warp) = (cx.block_idx().x, cx.thread_idx().x, cx.lane(), cx.warp());
        let (unit, part) = (rank % UNITS, rank / UNITS);
        let input = cx.shared::<f32>(0);
        let first = cx.shared::<f32>(FIRST * 4);
        let partial = cx.shared::<f32>(PARTIAL * 4);
        let second = cx.shared::<f32>(SUMS * 4);
        let logits = cx.shared::<f32>(LOGITS * 4);

        let own = if queries == 1 { 0 } else { image * (THIRD_BIAS + 3) };
        let weight = |i: u32| predictor.get(cx, (own + i) as usize);
        let first_weights: [f32; 10] = core::array::from_fn(|k| weight(k as u32 * UNITS + unit));
        let second_weights: [f32; 32] = core::array::from_fn(|k| weight(SECOND + (part * 32 + k as u32) * UNITS + unit));
        let second_bias = weight(SECOND_BIAS + unit);
        let third_weights: [f32; 4] = core::array::from_fn(|k| weight(THIRD + warp.min(2) * UNITS + k as u32 * 32 + lane));
        let third_bias = weight(THIRD_BIAS + warp.min(2));

        if warp < 3 {
            let span = Span::of_image(cx, table, images, patches, image);
            let (n, blocks, stride) = (span.len(), span.len().div_ceil(PIECE), patches / PIECE + images);
            // The summaries of four pieces at once. Past the last piece they are the last one's
            // again. The sums below leave these out, and they do not change a maximum.
            let summaries = |map: u32, k: u32, b: u32| -> [f32; 4] {
                let of = |b: u32| ((map * 3 + k) * stride + span.piece() + b.min(blocks - 1)) as usize;
                core::array::from_fn(|i| summaries.get(cx, of(b + 32 * i as u32)))
            };
            let size = |b: u32| (n - b * PIECE).min(PIECE) as f32;
            let (mut sum, mut most, mut peak) = (Sum::default(), f32::NEG_INFINITY, f32::NEG_INFINITY);
            let mut b = lane;
            while b < blocks {
                let (sums, mosts, peaks) = (summaries(warp, 0, b), summaries(warp, 2, b), summaries(3, 2, b));
                for i in 0..4 {
                    if b + 32 * (i as u32) < blocks {
                        sum.add(sums[i]);
                    }
                    (most, peak) = (most.max(mosts[i]), peak.max(peaks[i]));
                }
                b += 128;
            }
            let mean = cx.warp_sum(sum.total()) / n as f32;
            let (most, peak) = (cx.warp_max(most), cx.warp_max(peak));
            let mut squares = Sum::default();
            let mut b = lane;
            while b < blocks {
                let (sums, within) = (summaries(warp, 0, b), summaries(warp, 1, b));
                for i in 0..4 {
                    let b = b + 32 * i as u32;
                    if b < blocks {
                        let off = sums[i] / size(b) - mean;
                        squares.add(cx.fma(size(b) * off, off, within[i]));
                    }
                }
                b += 128;
            }
            let squares = cx.warp_sum(squares.total());
            let deviation = if n > 1 { cx.sqrt(squares / (n - 1) as f32) } else { 0.0 };
            if lane == 0 {
                for (k, v) in [mean, most, deviation].into_iter().enumerate() {
                    let v = if warp != 1 { v } else if peak > 0.0 { v / peak } else { 0.0 };
                    cx.shared_set(input, warp * 3 + k as u32, v);
                }
            }
        }
        cx.barrier();

        if part == 0 {
            let mut sum = first_weights[INPUTS as usize];
            for k in 0..INPUTS {
                sum = cx.fma(first_weights[k as usize], cx.shared_get(input, k), sum);
            }
            cx.shared_set(first, unit, sum.max(0.0));
        }
        cx.barrier();

        let mut sum = 0.0;
        for (k, w) in second_weights.into_iter().enumerate() {
            sum = cx.fma(w, cx.shared_get(first, part * 32 + k as u32), sum);
        }
        cx.shared_set(partial, rank, sum);
        cx.barrier();

        if part == 0 {
            let mut sum = second_bias;
            for part in 0..PARTS {
                sum += cx.shared_get(partial, part * UNITS + unit);
            }
            cx.shared_set(second, unit, sum.max(0.0));
        }
        cx.barrier();

        if warp < 3 {
            let mut sum = 0.0;
            for (k, w) in third_weights.into_iter().enumerate() {
                sum = cx.fma(w, cx.shared_get(second, k as u32 * 32 + lane), sum);
            }
            let sum = cx.warp_sum(sum);
            if lane == 0 {
                cx.shared_set(logits, warp, sum + third_bias);
            }
        }
        cx.barrier();

        if rank == 0 {
            let logits = [0, 1, 2].map(|k| cx.shared_get(logits, k));
            for (k, weight) in parts::mix::mix(cx, tensions, logits).into_iter().enumerate() {
                mix.set(cx, image as usize * 3 + k, weight);
            }
        }
    }
}

/// Packs a balancer and a query into the 18179 numbers that [`balance`](crate::vision::balance)
/// takes.
///
/// `weights` and `biases` are those of the three linear layers, [128, 9 + D], [128, 128] and [3,
/// 128]. The query's share of the first layer is computed here, once.
///
/// # Panics
/// A length differs from these.
#[cfg(not(target_arch = "nvptx64"))]
pub fn balancer_weights(weights: [&[f32]; 3], biases: [&[f32]; 3], query: &[f32]) -> Vec<f32> {
    let (units, inputs) = (UNITS as usize, INPUTS as usize);
    let width = inputs + query.len();
    assert_eq!(
        weights.map(<[f32]>::len),
        [units * width, units * units, 3 * units],
        "weights [128, 9 + D], [128, 128], [3, 128]"
    );
    assert_eq!(biases.map(<[f32]>::len), [units, units, 3], "biases [128], [128], [3]");
    let mut packed = Vec::with_capacity(THIRD_BIAS as usize + 3);
    for k in 0..inputs {
        packed.extend((0..units).map(|unit| weights[0][unit * width + k]));
    }
    for (row, &bias) in weights[0].chunks(width).zip(biases[0]) {
        let share: f64 = row[inputs..].iter().zip(query).map(|(&w, &q)| f64::from(w) * f64::from(q)).sum();
        packed.push((f64::from(bias) + share) as f32);
    }
    for k in 0..units {
        packed.extend((0..units).map(|unit| weights[1][unit * units + k]));
    }
    packed.extend(biases[1]);
    packed.extend(weights[2]);
    packed.extend(biases[2]);
    packed
}
