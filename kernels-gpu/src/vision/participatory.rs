//! Query coupling: how well the features of each patch, projected to the space of the query, agree
//! in direction with it.
//!
//! ```text
//! for every patch n, in parallel, f = features[n]:
//!     h                = relu(W1 f + b1)             64 hidden units
//!     z.q              = h.(W2^T q) + b2.q           z = W2 h + b2 is never formed
//!     |z|              = |R (h, 1)|                  R [65, 65]: triangular factor of [W2 b2]
//!     participatory[n] = (1 + z.q / |z| / |q|) / 2
//!     salience[n]      = edge (1 - foveal_bias * eccentricity)      not divided by the peak yet
//! for every 64 patches of an image:
//!     sum, squared deviations and maximum of entropy, salience, participatory and edge
//! ```
//!
//! Launch: blocks of 32 x 8 threads for 64 patches of one image, for all images. A lane has two
//! patches; a warp has an eighth of the units and of the rows of R.
//! Memory: 56 bytes read and 8 written for each patch; each block reads 13 KiB of weights from L2.
//!
//! - **No vector has the query's length**: it only meets the weights, on the host, in f64 and once
//!   for each query. |z| uses the triangular form because its rows are added up as squares: h^T
//!   (W2^T W2) h would cancel where z is small.
//! - **Weights go through shared memory**: all lanes read the same 16 bytes at a time, and use them
//!   twice because a lane has two patches. All loads are issued before the first is needed.
//! - **Features go through shared memory, too**: the rows of a block are one run of memory. A row
//!   has 13 words, an odd number, so 32 lanes that read a row each have no bank conflicts. If every
//!   warp loaded the rows from memory, that would take longer than the weights do.
//! - **Rows of R are in groups of 8**, each from its first column that is not zero, stored column
//!   by column: a hidden unit is loaded once for 4 rows. Two warps share groups g and 7 - g, which
//!   makes 74 columns for every warp.
//! - **The statistics are computed on the way**: `balance` and the last division need them, and
//!   here the whole GPU works on them, in an order that is always the same.

use thalweg_simt::kernel;

use crate::vision::layout::{PIECE, Span};
use crate::vision::{ECCENTRICITY, PLANES};

/// Hidden units of a head.
const UNITS: u32 = 64;
/// Patches of a block.
const BLOCK: u32 = PIECE;
/// Warps of a block, and its threads.
const WARPS: u32 = 8;
const THREADS: u32 = 32 * WARPS;
/// Words of a hidden unit: weights, bias, coupling, and a constant.
const ROW: u32 = 16;
/// Words of R: 9 groups of 8 rows, group g from column 8 g.
const TRIANGLE: u32 = group(9);
/// Words of `projection`.
const COUPLING: u32 = UNITS * ROW + TRIANGLE;
// The requirement of the declaration shows this number.
const _: () = assert!(COUPLING == 3400);

/// The starts of the parts of shared memory, in words: the weights, the hidden units and a row of
/// ones, the partial sums of each warp, the features; and the end.
const HIDDEN: u32 = COUPLING;
const PARTIAL: u32 = HIDDEN + (UNITS + 1) * BLOCK;
const FEATURES: u32 = PARTIAL + 2 * WARPS * BLOCK;
#[cfg(not(target_arch = "nvptx64"))]
const END: u32 = FEATURES + PLANES * BLOCK;

/// Returns the start of group `g` of R.
const fn group(g: u32) -> u32 {
    8 * ((UNITS + 1) * g + 4 * g - 4 * g * g)
}

kernel! {
    /// See [`participatory`](crate::vision::participatory).
    pub(super) unsafe fn participatory(
        cx: impl Cooperative, images: u32, patches: u32, queries: u32, edge: u32, least_peak: f32, foveal_bias: f32,
        table: In<u32>, features: In<f32>, entropy: In<f32>, coupling: In<f32>,
        participatory: Out<f32>, salience: Out<f32>, summaries: Out<f32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        edge < 13,
        table.len() == 4 * (images + 1),
        features.len() == 13 * patches,
        entropy.len() == patches,
        queries == 1 || queries == images,
        coupling.len() == 3400 * queries,
        coupling.is_aligned(16),
        participatory.len() == patches,
        salience.len() == patches,
        summaries.len() == 12 * (patches / 64 + images),
    }
    grid(patches / BLOCK + images) block(32, WARPS) shared(END * 4)
    {
        let (lane, warp, rank) = (cx.thread_idx().x, cx.thread_idx().y, cx.rank());
        let (piece, all) = (cx.block_idx().x, cx.grid_dim().x);
        let span = Span::of_piece(cx, table, images, patches, piece);
        let piece_of_image = piece.wrapping_sub(span.piece());
        if piece_of_image >= span.len().div_ceil(BLOCK) {
            return;
        }
        let first = span.start + piece_of_image * BLOCK;
        let count = (span.end - first).min(BLOCK);

        let weights = cx.shared::<f32>(0);
        let hidden = cx.shared::<f32>(HIDDEN * 4);
        let partial = cx.shared::<f32>(PARTIAL * 4);
        let rows = cx.shared::<f32>(FEATURES * 4);
        let own = if queries == 1 { 0 } else { span.image * COUPLING };
        let pieces: [[f32; 4]; 4] = core::array::from_fn(|k| {
            let at = (k as u32 * THREADS + rank) * 4;
            if at < COUPLING { cx.load4(coupling.as_ptr().add((own + at) as usize)) } else { [0.0; 4] }
        });
        // Past the last patch, the last one is loaded again.
        let values: [f32; 4] = core::array::from_fn(|k| {
            features.get(cx, (first * PLANES + (k as u32 * THREADS + rank).min(count * PLANES - 1)) as usize)
        });
        let information = entropy.get(cx, (first + (rank % BLOCK).min(count - 1)) as usize);
        for (k, piece) in pieces.into_iter().enumerate() {
            let at = (k as u32 * THREADS + rank) * 4;
            if at < COUPLING {
                cx.shared_set4(weights, at, piece);
            }
        }
        for (k, v) in values.into_iter().enumerate() {
            let at = k as u32 * THREADS + rank;
            if at < BLOCK * PLANES {
                cx.shared_set(rows, at, v);
            }
        }
        if rank < BLOCK {
            cx.shared_set(hidden, UNITS * BLOCK + rank, 1.0);
        }
        cx.barrier();

        let mine = [lane, lane + 32];
        let row = |p: u32| p.min(count - 1) * PLANES;
        let f = mine.map(|p| core::array::from_fn::<f32, 13, _>(|k| cx.shared_get(rows, row(p) + k as u32)));
        let mut dot = [0.0f32; 2];
        for unit in warp * 8..warp * 8 + 8 {
            let row = |k: u32| cx.shared_get4(weights, unit * ROW + 4 * k);
            let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (row(0), row(1));
            let ([c0, c1, c2, c3], [d0, bias, coupled, constant]) = (row(2), row(3));
            let w = [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0];
            for p in 0..2 {
                let mut sum = bias;
                for k in 0..13 {
                    sum = cx.fma(w[k], f[p][k], sum);
                }
                let h = sum.max(0.0);
                cx.shared_set(hidden, unit * BLOCK + mine[p], h);
                dot[p] += cx.fma(coupled, h, constant);
            }
        }
        cx.barrier();

        let mut square = [0.0f32; 2];
        let half = warp % 2;
        let mut add = |g: u32| {
            let mut sums = [[0.0f32; 4]; 2];
            let mut at = UNITS * ROW + group(g) + 4 * half;
            for column in 8 * g..UNITS + 1 {
                let r = cx.shared_get4(weights, at);
                for p in 0..2 {
                    let h = cx.shared_get(hidden, column * BLOCK + mine[p]);
                    for k in 0..4 {
                        sums[p][k] = cx.fma(r[k], h, sums[p][k]);
                    }
                }
                at += 8;
            }
            for p in 0..2 {
                for sum in sums[p] {
                    square[p] = cx.fma(sum, sum, square[p]);
                }
            }
        };
        add(warp / 2);
        add(7 - warp / 2);
        // The last group has one row.
        if warp == 0 {
            add(8);
        }
        for p in 0..2 {
            cx.shared_set(partial, warp * BLOCK + mine[p], dot[p]);
            cx.shared_set(partial, (WARPS + warp) * BLOCK + mine[p], square[p]);
        }
        cx.barrier();

        // From here on `hidden` holds the maps.
        if rank < BLOCK {
            let sum = |from: u32| {
                let part = |k: u32| cx.shared_get(partial, (from + k) * BLOCK + rank);
                ((part(0) + part(1)) + (part(2) + part(3))) + ((part(4) + part(5)) + (part(6) + part(7)))
            };
            let length = cx.sqrt_approx(sum(WARPS)).max(1e-12);
            let cosine = (sum(0) * cx.recip_approx(length)).clamp(-1.0, 1.0);
            let score = cx.fma(0.5, cosine, 0.5);
            let feature = |plane: u32| cx.shared_get(rows, row(rank) + plane);
            let sharpness = feature(edge);
            let salient = sharpness * (1.0 - foveal_bias * feature(ECCENTRICITY));
            if rank < count {
                participatory.set(cx, (first + rank) as usize, score);
                salience.set(cx, (first + rank) as usize, salient);
            }
            for (map, v) in [information, salient, score, sharpness].into_iter().enumerate() {
                cx.shared_set(hidden, map as u32 * BLOCK + rank, v);
            }
        }
        cx.barrier();

        if cx.warp() >= 4 {
            return;
        }
        let present = mine.map(|p| p < count);
        let v = mine.map(|p| cx.shared_get(hidden, warp * BLOCK + p));
        let or = |v: [f32; 2], other: f32| [0, 1].map(|p| if present[p] { v[p] } else { other });
        let [a, b] = or(v, 0.0);
        let sum = cx.warp_sum(a + b);
        let mean = sum / count as f32;
        let [a, b] = or(v.map(|v| v - mean), 0.0);
        let squares = cx.warp_sum(cx.fma(a, a, b * b));
        let [a, b] = or(v, f32::NEG_INFINITY);
        let most = cx.warp_max(a.max(b));
        if lane == 0 {
            let most = if warp == 3 { most.max(least_peak) } else { most };
            for (k, v) in [sum, squares, most].into_iter().enumerate() {
                summaries.set(cx, ((warp * 3 + k as u32) * all + piece) as usize, v);
            }
        }
    }
}

/// Packs a head and a query into the 3400 numbers that
/// [`participatory`](crate::vision::participatory) takes.
///
/// - `hidden` [64, 13] and `hidden_bias` \[64\]: the layer from features to hidden units.
/// - `triangle` [65, 65]: the triangular factor R of [W2 b2], where W2 is the layer from hidden
///   units to the query's space. The numbers below its diagonal are not read.
/// - `coupled` \[65\]: W2^T q and b2.q, divided by |q|.
///
/// # Panics
/// A length differs from these.
#[cfg(not(target_arch = "nvptx64"))]
pub fn projection(hidden: &[f32], hidden_bias: &[f32], triangle: &[f64], coupled: &[f64]) -> Vec<f32> {
    let (units, columns) = (UNITS as usize, UNITS as usize + 1);
    assert_eq!(hidden.len(), units * PLANES as usize, "`hidden` is [64, 13]");
    assert_eq!(hidden_bias.len(), units, "`hidden_bias` is [64]");
    assert_eq!(triangle.len(), columns * columns, "`triangle` is [65, 65]");
    assert_eq!(coupled.len(), columns, "`coupled` is [65]");
    let mut packed = Vec::with_capacity(COUPLING as usize);
    for (unit, row) in hidden.chunks(PLANES as usize).enumerate() {
        packed.extend(row);
        packed.push(hidden_bias[unit]);
        packed.push(coupled[unit] as f32);
        packed.push(if unit == 0 { coupled[units] as f32 } else { 0.0 });
    }
    for first in (0..columns).step_by(8) {
        for column in first..columns {
            let value = |row: usize| if row <= column { triangle[row * columns + column] as f32 } else { 0.0 };
            packed.extend((first..first + 8).map(value));
        }
    }
    packed
}
