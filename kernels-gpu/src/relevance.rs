//! Salience, and relevance as the balance of the scores.
//!
//! ```text
//! peak         = maximum of edge over patches, edge = features[n][8]
//! salience[n]  = edge / peak * (1 - foveal_bias * eccentricity), eccentricity = features[n][11]; 0 if peak is 0
//! raw[n]       = mix_entropy * entropy[n] + mix_salience * salience[n]
//! relevance[n] = (raw[n] - min) / (max - min + 1e-8), or 1 where max - min < 1e-6
//! ```
//!
//! Launch: one block an image, a thread for every 8 patches, at most 1024.
//! Memory: 60 bytes read and 16 written a patch, all of it in L2.
//!
//! - **One block**: both extremes are needed before the next line can start, and barriers in a block are
//!   cheaper than launches while an image has some thousand patches.
//! - **`raw` waits in `relevance`**: a thread meets the same patches in each pass.
//! - **True divisions**: the patch at the peak is exactly 1.

use thalweg_simt::kernel;

use crate::block::{WINDOW, reduce};
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
    grid(1) block(n.div_ceil(256).min(32) * 32) shared(3 * 32 * 4)
    {
        let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
        let feature = |i: u32, plane: u32| features.get(cx, (i * PLANES + plane) as usize);

        let mut peak = 0.0f32;
        let mut i = rank;
        while i < n {
            peak = peak.max(feature(i, EDGE));
            i += threads;
        }
        let peak = reduce(cx, cx.shared::<f32>(0), peak, f32::max);

        let (mut least, mut most) = (f32::INFINITY, f32::NEG_INFINITY);
        let mut i = rank;
        while i < n {
            let sharpness = if peak > 0.0 { feature(i, EDGE) / peak } else { 0.0 };
            let score = sharpness * (1.0 - foveal_bias * feature(i, ECCENTRICITY));
            let raw = cx.fma(mix_entropy, entropy.get(cx, i as usize), mix_salience * score);
            salience.set(cx, i as usize, score);
            relevance.set(cx, i as usize, raw);
            (least, most) = (least.min(raw), most.max(raw));
            i += threads;
        }
        let least = reduce(cx, cx.shared::<f32>(WINDOW * 4), least, f32::min);
        let most = reduce(cx, cx.shared::<f32>(WINDOW * 8), most, f32::max);

        let range = most - least;
        let mut i = rank;
        while i < n {
            let above = relevance.get(cx, i as usize) - least;
            relevance.set(cx, i as usize, if range < 1e-6 { 1.0 } else { above / (range + 1e-8) });
            i += threads;
        }
    }
}
