//! Salience, and relevance as the balance of the scores.
//!
//! ```text
//! peak         = maximum of edge over patches, edge = features[n][8]
//! salience[n]  = edge / peak * (1 - foveal_bias * eccentricity), eccentricity = features[n][11]; 0 if peak is 0
//! raw[n]       = mix_entropy * entropy[n] + mix_salience * salience[n]   (+ mix_participatory * participatory[n])
//! relevance[n] = (raw[n] - min) / (max - min + 1e-8), or 1 where max - min < 1e-6
//! ```
//!
//! Launch: one block an image, a thread for every 8 patches, at most 1024.
//! Memory: 60 bytes read and 16 written a patch, all of it in L2; with a query 16 and 12.
//!
//! - **One block**: both extremes are needed before the next line can start, and barriers in a block are
//!   cheaper than launches while an image has some thousand patches.
//! - **`raw` waits in `relevance`**: a thread meets the same patches in each pass.
//! - **True divisions**: the patch at the peak is exactly 1.
//! - **With a query, `participatory` has gone through the features already**, on the whole GPU: what is left is the
//!   division by the peak, and rows of 52 bytes need not pass through one multiprocessor twice.

use thalweg_simt::{Cooperative, InOut, kernel};

use crate::block::maxima;
use crate::{ECCENTRICITY, EDGE, PLANES};

kernel! {
    /// Salience and relevance of `n` patches from `features` [n, 13] and `entropy` \[n\].
    ///
    /// `mix_entropy` and `mix_salience` are the weights of the two scores, 0.5 each unless something balances
    /// them; `foveal_bias` in [0, 1] lowers salience away from the fixation.
    pub unsafe fn relevance(
        cx: impl Cooperative, n: u32, foveal_bias: f32, mix_entropy: f32, mix_salience: f32,
        features: In<f32>, entropy: In<f32>, salience: Out<f32>, relevance: InOut<f32>,
    )
    require {
        (1..=268435456).contains(&n),
        features.len() == 13 * n,
        entropy.len() == n,
        salience.len() == n,
        relevance.len() == n,
    }
    grid(1) block(n.div_ceil(256).min(32) * 32) shared(2 * 33 * 4)
    {
        let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
        let feature = |i: u32, plane: u32| features.get(cx, (i * PLANES + plane) as usize);

        let mut peak = 0.0f32;
        let mut i = rank;
        while i < n {
            peak = peak.max(feature(i, EDGE));
            i += threads;
        }
        let [peak] = maxima(cx, cx.shared::<f32>(0), [peak]);

        normalise(cx, 0, n, relevance, |i| {
            let sharpness = if peak > 0.0 { feature(i, EDGE) / peak } else { 0.0 };
            let score = sharpness * (1.0 - foveal_bias * feature(i, ECCENTRICITY));
            salience.set(cx, i as usize, score);
            cx.fma(mix_entropy, entropy.get(cx, i as usize), mix_salience * score)
        });
    }
}

kernel! {
    /// Salience and relevance of `images` images of `n` patches each, with a query: maps `entropy` and
    /// `participatory` [images, n], and `mix` [images, 3], the weights of entropy, salience and participatory score.
    ///
    /// `salience` and `summaries` are as [`participatory`](crate::participatory) leaves them; `salience` is
    /// divided by its peak.
    pub unsafe fn relevance_with_query(
        cx: impl Cooperative, images: u32, n: u32, entropy: In<f32>, participatory: In<f32>, summaries: In<f32>,
        mix: In<f32>, salience: InOut<f32>, relevance: InOut<f32>,
    )
    require {
        (1..=268435456).contains(&(images * n)),
        entropy.len() == images * n,
        participatory.len() == images * n,
        summaries.len() == images * 12 * n.div_ceil(64),
        mix.len() == 3 * images,
        salience.len() == images * n,
        relevance.len() == images * n,
    }
    grid(images) block(n.div_ceil(256).min(32) * 32) shared(2 * 33 * 4)
    {
        let (image, rank, threads) = (cx.block_idx().x, cx.thread_idx().x, cx.block_dim().x);
        let blocks = n.div_ceil(64);
        let edges = (image * 12 + 11) * blocks;
        let mut peak = 0.0f32;
        let mut block = rank;
        while block < blocks {
            peak = peak.max(summaries.get(cx, (edges + block) as usize));
            block += threads;
        }
        let [peak] = maxima(cx, cx.shared::<f32>(0), [peak]);

        let mix = [0, 1, 2].map(|k| mix.get(cx, (image * 3 + k) as usize));
        normalise(cx, image * n, n, relevance, |i| {
            let i = i as usize;
            let score = if peak > 0.0 { salience.get(cx, i) / peak } else { 0.0 };
            salience.set(cx, i, score);
            cx.fma(mix[0], entropy.get(cx, i), cx.fma(mix[1], score, mix[2] * participatory.get(cx, i)))
        });
    }
}

/// Relevance of the `n` patches from `first`, given what each is before scaling; `raw` is called once a patch.
///
/// # Safety
/// `relevance` has these patches, and shared memory two windows, which no thread accesses before the next barrier.
#[inline(always)]
unsafe fn normalise<C: Cooperative>(cx: C, first: u32, n: u32, relevance: InOut<f32>, raw: impl Fn(u32) -> f32) {
    let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
    let (mut least, mut most) = (f32::INFINITY, f32::NEG_INFINITY);
    // SAFETY: patches of the image, each met by one thread in both passes.
    unsafe {
        let mut i = rank;
        while i < n {
            let v = raw(first + i);
            relevance.set(cx, (first + i) as usize, v);
            (least, most) = (least.min(v), most.max(v));
            i += threads;
        }
        let [below, most] = maxima(cx, cx.shared::<f32>(0), [-least, most]);
        let range = most + below;
        let mut i = rank;
        while i < n {
            let at = (first + i) as usize;
            let above = relevance.get(cx, at) + below;
            relevance.set(cx, at, if range < 1e-6 { 1.0 } else { above / (range + 1e-8) });
            i += threads;
        }
    }
}
