//! AdamW over all weights at once, and the norm of the gradient.
//!
//! ```text
//! g = clip gradient;                    m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2
//! w = decay w - rate m / (sqrt(v) root + eps)
//! with decay = 1 - lr wd, rate = lr / (1 - b1^t), root = 1 / sqrt(1 - b2^t)
//! ```
//!
//! This is PyTorch's AdamW. The numbers that differ from step to step are in device memory, so a
//! captured graph of a step stays true: [`settings`] writes them before.
//!
//! Launch: a thread for each weight, or for four with a gradient of `bf16`; for the norm at most
//! 1024 blocks, which load eight elements in each thread at once, and then one block. Memory: 28
//! bytes for each weight; the norm reads 4 more. With a gradient of `bf16` and rounded weights, it
//! is 28 as well.

use thalweg_simt::{Simt, kernel};

use super::number::Stored;

/// The most parts of a sum of squares.
#[cfg(not(target_arch = "nvptx64"))]
pub const PARTS: usize = 16384;
/// The number of settings.
#[cfg(not(target_arch = "nvptx64"))]
pub const SETTINGS: usize = 8;

kernel! {
    /// Writes the settings of a step: `decay`, `rate`, `root`, `b1`, `b2`, `eps`, and the factor of
    /// the gradient, 1, at index 6.
    pub fn settings(
        t: impl Simt, decay: f32, rate: f32, root: f32, b1: f32, b2: f32, eps: f32, settings: Out<f32>[8] by [x],
    )
    grid(1) block(32)
    {
        if let Some(cell) = settings.cell(t) {
            cell.set(match cell.at() {
                [0] => decay,
                [1] => rate,
                [2] => root,
                [3] => b1,
                [4] => b2,
                [5] => eps,
                _ => 1.0,
            });
        }
    }
}

/// The elements that a block of [`squares`] loads at once, and its most blocks.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const CHUNK: u32 = 8 * 256;
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const BLOCKS: u32 = 1024;

kernel! {
    /// Computes parts of the sum of squares. Block `k` has every chunk of 2048 elements whose
    /// number is `k` modulo `parts`.
    pub(super) fn squares(b: impl Cooperative, n: u32, parts: u32, x: In<f32>[n], sums: Out<f32>[parts] by [block])
    require { (1..=PARTS).contains(&parts) }
    grid(parts) block(256) shared(32 * 4)
    {
        let part = b.idx().x;
        let sum = b.each((), move |t, ()| {
            let (mut sum, mut chunk, chunks) = (0.0, part, n.div_ceil(2048));
            while chunk < chunks {
                let at = |i: usize| [chunk * 2048 + 256 * i as u32 + t.rank()];
                let eight: [f32; 8] = core::array::from_fn(|i| x.try_get(t, at(i)).unwrap_or(0.0));
                let mut i = 0;
                while i < 8 {
                    sum = t.fma(eight[i], eight[i], sum);
                    i += 1;
                }
                chunk += parts;
            }
            sum
        });
        let sum = b.warp_sum(&sum);
        let window = b.shared::<f32>(32);
        let filled = b.publish_warps(window, &sum);
        let warps = b.sync(filled.read());
        let sum = b.each(&warps, |t, warps| warps.get(t, t.rank() % 32));
        let sum = b.warp_sum(&sum);
        b.each(&sum, move |t, sum| {
            if let Some(cell) = sums.cell(t) {
                cell.set(sum.get(t));
            }
        });
    }
}

kernel! {
    /// Adds the parts of the sum of squares, stores its root as `norm`, and sets the factor of the
    /// gradient so that its norm is at most `most`, as PyTorch's `clip_grad_norm_` does.
    pub(super) fn clip(
        b: impl Cooperative, parts: u32, most: f32, sums: In<f32>[parts], norm: Out<f32>[1] by [block],
        factor: Out<f32>[1] by [block],
    )
    grid(1) block(256) shared(32 * 4)
    {
        let sum = b.each((), move |t, ()| {
            let (mut sum, mut i) = (0.0, t.rank());
            while i < parts {
                let four: [f32; 4] = core::array::from_fn(|k| sums.try_get(t, [i + 256 * k as u32]).unwrap_or(0.0));
                sum += (four[0] + four[1]) + (four[2] + four[3]);
                i += 4 * 256;
            }
            sum
        });
        let sum = b.warp_sum(&sum);
        let window = b.shared::<f32>(32);
        let filled = b.publish_warps(window, &sum);
        let warps = b.sync(filled.read());
        let sum = b.each(&warps, |t, warps| warps.get(t, t.rank() % 32));
        let sum = b.warp_sum(&sum);
        b.each(&sum, move |t, sum| {
            let length = t.sqrt(sum.get(t));
            for norm in norm.mine(t) {
                norm.set(length);
            }
            for factor in factor.mine(t) {
                factor.set((most / (length + 1e-6)).min(1.0));
            }
        });
    }
}

/// Computes a weight and both of its moments behind a step.
#[inline(always)]
fn step(t: impl Simt, settings: [f32; 7], g: f32, [w, m, v]: [f32; 3]) -> [f32; 3] {
    let [decay, rate, root, b1, b2, eps, factor] = settings;
    let g = g * factor;
    let first = t.fma(b1, m, (1.0 - b1) * g);
    let second = t.fma(b2, v, (1.0 - b2) * g * g);
    [decay * w - rate * first / (t.sqrt(second) * root + eps), first, second]
}

kernel! {
    /// Updates the weights and both moments by the gradient.
    pub fn adamw(
        t: impl Simt, n: u32, settings: In<f32>[8], gradient: In<f32>[n], weights: InOut<f32>[n] by [x],
        first: InOut<f32>[n] by [x], second: InOut<f32>[n] by [x],
    )
    grid(n.div_ceil(128)) block(128)
    {
        if let (Some(w), Some(m), Some(v)) = (weights.cell(t), first.cell(t), second.cell(t)) {
            let settings = core::array::from_fn(|i| settings.get(t, [i as u32]));
            let [weight, first, second] = step(**t, settings, gradient.get(t, w.at()), [w.get(), m.get(), v.get()]);
            m.set(first);
            v.set(second);
            w.set(weight);
        }
    }
}

kernel! {
    /// Does the same as [`adamw`] by a gradient of `bf16`, and stores the new weights rounded to
    /// `bf16` as well.
    pub(super) fn adamw_bf16(
        t: impl Simt, n: u32, settings: In<f32>[8], gradient: In<u16>[n], weights: InOut<f32>[n] by [x],
        first: InOut<f32>[n] by [x], second: InOut<f32>[n] by [x], rounded: Out<u16>[n] by [x],
    )
    grid(n.div_ceil(128)) block(128)
    {
        if let (Some(w), Some(m), Some(v), Some(r)) = (weights.cell(t), first.cell(t), second.cell(t), rounded.cell(t)) {
            let settings = core::array::from_fn(|i| settings.get(t, [i as u32]));
            let g = gradient.get(t, w.at()).wide();
            let [weight, first, second] = step(**t, settings, g, [w.get(), m.get(), v.get()]);
            m.set(first);
            v.set(second);
            w.set(weight);
            r.set(u16::narrow(weight));
        }
    }
}

kernel! {
    /// Does the same as [`adamw_bf16`] for four weights, which are one access.
    pub(super) fn adamw_bf16_fours(
        t: impl Simt, n: u32, settings: In<f32>[8], gradient: In<[u16; 4]>[n], weights: InOut<[f32; 4]>[n] by [x],
        first: InOut<[f32; 4]>[n] by [x], second: InOut<[f32; 4]>[n] by [x], rounded: Out<[u16; 4]>[n] by [x],
    )
    grid(n.div_ceil(128)) block(128)
    {
        if let (Some(w), Some(m), Some(v), Some(r)) = (weights.cell(t), first.cell(t), second.cell(t), rounded.cell(t)) {
            let settings = core::array::from_fn(|i| settings.get(t, [i as u32]));
            let (g, old) = (gradient.get(t, w.at()), [w.get(), m.get(), v.get()]);
            let new: [[f32; 3]; 4] =
                core::array::from_fn(|i| step(**t, settings, g[i].wide(), [old[0][i], old[1][i], old[2][i]]));
            m.set(new.map(|[_, first, _]| first));
            v.set(new.map(|[.., second]| second));
            w.set(new.map(|[weight, ..]| weight));
            r.set(new.map(|[weight, ..]| u16::narrow(weight)));
        }
    }
}
