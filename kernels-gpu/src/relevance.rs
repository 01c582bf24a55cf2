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
//! - **One block an image**: both extremes are needed before the next line can start, and barriers in a block are
//!   cheaper than launches while an image has some thousand patches.
//! - **A thread's first 8 patches stay in registers**: what they need is loaded before anything is waited for, all at once, so
//!   up to 8192 patches cost one way to L2 and back. Of further ones `raw` waits in `relevance`: a thread meets the same
//!   patches in each pass.
//! - **True divisions**: the patch at the peak is exactly 1.
//! - **With a query, `participatory` has gone through the features already**, on the whole GPU: what is left is the
//!   division by the peak, and rows of 52 bytes need not pass through one multiprocessor twice. Each warp finds the peak for
//!   itself, from a number for every 64 patches, so that nobody waits at a barrier for it.

use thalweg_simt::{Cooperative, InOut, Out, kernel};

use crate::block::maxima;
use crate::layout::{PIECE, Span};
use crate::{ECCENTRICITY, EDGE, PLANES};

/// Patches of a thread that stay in registers.
const HELD: u32 = 8;

kernel! {
    /// Salience and relevance of all patches of a batch, from `features` [N, 13] and `entropy` \[N\]; each image is scaled alone.
    ///
    /// `images`, `patches` (N), `largest` and `table` are those of the batch's [`Layout`](crate::Layout).
    /// `mix_entropy` and `mix_salience` are the weights of the two scores, 0.5 each unless something balances
    /// them; `foveal_bias` in [0, 1] lowers salience away from the fixation.
    pub unsafe fn relevance(
        cx: impl Cooperative, images: u32, patches: u32, largest: u32, foveal_bias: f32, mix_entropy: f32, mix_salience: f32,
        table: In<u32>, features: In<f32>, entropy: In<f32>, salience: Out<f32>, relevance: InOut<f32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        (1..=patches).contains(&largest),
        table.len() == 4 * (images + 1),
        features.len() == 13 * patches,
        entropy.len() == patches,
        salience.len() == patches,
        relevance.len() == patches,
    }
    grid(images) block(largest.div_ceil(256).min(32) * 32) shared(2 * 33 * 4)
    {
        let span = Span::of_image(cx, table, images, patches, cx.block_idx().x);
        if span.len() == 0 {
            return;
        }
        let feature = |i: u32, plane: u32| features.get(cx, (i * PLANES + plane) as usize);
        let load = |i: u32| [feature(i, EDGE), feature(i, ECCENTRICITY), entropy.get(cx, i as usize)];
        let part = Part::new(cx, span);
        let held = part.held(load);

        let mut peak = held.iter().fold(0.0f32, |peak, held| peak.max(held[0]));
        let mut i = part.rest();
        while i < span.end {
            peak = peak.max(feature(i, EDGE));
            i += part.threads;
        }
        let [peak] = maxima(cx, cx.shared::<f32>(0), [peak]);

        part.normalise(cx, held, load, salience, relevance, |[edge, eccentricity, entropy]| {
            let sharpness = if peak > 0.0 { edge / peak } else { 0.0 };
            let score = sharpness * (1.0 - foveal_bias * eccentricity);
            (score, cx.fma(mix_entropy, entropy, mix_salience * score))
        });
    }
}

kernel! {
    /// Salience and relevance of all patches of a batch, with a query: maps `entropy` and `participatory` \[N\], and `mix`
    /// [images, 3], the weights of entropy, salience and participatory score; each image is scaled alone.
    ///
    /// `images`, `patches` (N), `largest` and `table` are those of the batch's [`Layout`](crate::Layout).
    /// `salience` and `summaries` are as [`participatory`](crate::participatory) leaves them; `salience` is
    /// divided by its peak.
    pub unsafe fn relevance_with_query(
        cx: impl Cooperative, images: u32, patches: u32, largest: u32,
        table: In<u32>, entropy: In<f32>, participatory: In<f32>, summaries: In<f32>,
        mix: In<f32>, salience: InOut<f32>, relevance: InOut<f32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        (1..=patches).contains(&largest),
        table.len() == 4 * (images + 1),
        entropy.len() == patches,
        participatory.len() == patches,
        summaries.len() == 12 * (patches / 64 + images),
        mix.len() == 3 * images,
        salience.len() == patches,
        relevance.len() == patches,
    }
    grid(images) block(largest.div_ceil(256).min(32) * 32) shared(2 * 33 * 4)
    {
        let image = cx.block_idx().x;
        let span = Span::of_image(cx, table, images, patches, image);
        if span.len() == 0 {
            return;
        }
        let load = |i: u32| {
            let i = i as usize;
            [salience.get(cx, i), entropy.get(cx, i), participatory.get(cx, i)]
        };
        let part = Part::new(cx, span);
        let held = part.held(load);
        let mix = [0, 1, 2].map(|k| mix.get(cx, (image * 3 + k) as usize));

        let pieces = span.len().div_ceil(PIECE);
        let edges = 11 * (patches / PIECE + images) + span.piece();
        let mut peak = 0.0f32;
        let mut piece = cx.lane();
        while piece < pieces {
            let of = |piece: u32| summaries.get(cx, (edges + piece.min(pieces - 1)) as usize);
            let [a, b, c, d] = core::array::from_fn(|k| of(piece + 32 * k as u32));
            peak = peak.max(a.max(b)).max(c.max(d));
            piece += 128;
        }
        let peak = cx.warp_max(peak);

        let out = Out::from_ptr(salience.as_ptr());
        part.normalise(cx, held, load, out, relevance, |[salience, entropy, participatory]| {
            let score = if peak > 0.0 { salience / peak } else { 0.0 };
            (score, cx.fma(mix[0], entropy, cx.fma(mix[1], score, mix[2] * participatory)))
        });
    }
}

/// A thread's patches: every so many of an image's, from its rank on.
#[derive(Clone, Copy)]
struct Part {
    first: u32,
    threads: u32,
    end: u32,
}

impl Part {
    /// For an image that has patches.
    #[inline(always)]
    fn new(cx: impl Cooperative, span: Span) -> Self {
        Self { first: span.start + cx.thread_idx().x, threads: cx.block_dim().x, end: span.end }
    }

    /// `load` of the first patches, those past the last being the last.
    #[inline(always)]
    fn held<T>(self, load: impl Fn(u32) -> T) -> [T; HELD as usize] {
        core::array::from_fn(|k| load((self.first + k as u32 * self.threads).min(self.end - 1)))
    }

    /// The first patch that is not held.
    #[inline(always)]
    fn rest(self) -> u32 {
        self.first + HELD * self.threads
    }

    /// Salience and relevance of an image's patches: `raw` makes salience and the weighted sum of what `load` finds.
    ///
    /// # Safety
    /// The maps have these patches, and shared memory two windows, which no thread accesses before the next barrier.
    #[inline(always)]
    unsafe fn normalise<C: Cooperative>(
        self,
        cx: C,
        held: [[f32; 3]; HELD as usize],
        load: impl Fn(u32) -> [f32; 3],
        salience: Out<f32>,
        relevance: InOut<f32>,
        raw: impl Fn([f32; 3]) -> (f32, f32),
    ) {
        let held = held.map(&raw);
        let (mut least, mut most) = (f32::INFINITY, f32::NEG_INFINITY);
        for (_, v) in held {
            (least, most) = (least.min(v), most.max(v));
        }
        // SAFETY: patches of the image, each met by one thread in both passes.
        unsafe {
            let mut i = self.rest();
            while i < self.end {
                let (score, v) = raw(load(i));
                salience.set(cx, i as usize, score);
                relevance.set(cx, i as usize, v);
                (least, most) = (least.min(v), most.max(v));
                i += self.threads;
            }
            let [below, most] = maxima(cx, cx.shared::<f32>(0), [-least, most]);
            let range = most + below;
            let scaled = |v: f32| if range < 1e-6 { 1.0 } else { (v + below) / (range + 1e-8) };
            let mut i = self.first;
            for (score, v) in held {
                if i < self.end {
                    salience.set(cx, i as usize, score);
                    relevance.set(cx, i as usize, scaled(v));
                }
                i += self.threads;
            }
            while i < self.end {
                relevance.set(cx, i as usize, scaled(relevance.get(cx, i as usize)));
                i += self.threads;
            }
        }
    }
}
