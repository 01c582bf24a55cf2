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
//! Memory: 48 bytes read and 8 written a patch, all of it in L2; with a query 12 and 8. Of more than 8192 patches up to 12 more are read
//! and 8 written.
//!
//! - **One block an image**: both extremes are needed before the next line can start, and barriers in a block are
//!   cheaper than launches while an image has some thousand patches.
//! - **A thread's first 8 patches stay in registers**: what they need is loaded before anything is waited for, all at once, so
//!   up to 8192 patches cost one way to L2 and back. Further ones are loaded two at a time; more would take more than the 64
//!   registers that 1024 threads can have, and such a kernel cannot be launched. Of these salience, before the division, and `raw`
//!   wait in memory: a thread meets the same patches in each pass, and features are read once.
//! - **Features come through one multiprocessor**: the two that are needed are in 1.4 sectors of 32 bytes a patch, of which 8160
//!   take 3 us of the 6.5 on an H200. Spread over the GPU they would take another launch, which costs as much.
//! - **Two lanes load a row's two features together**, so each line is looked up once, not once for either: 6.5 us and not 7.6,
//!   and for 32400 patches 21 and not 27.
//! - **True divisions by the peak**: the patch there is exactly 1. By the range it is a product: nothing has to be exact there but that
//!   no result is above 1.
//! - **With a query, `participatory` has gone through the features already**, on the whole GPU: what is left is the
//!   division by the peak, and rows of 52 bytes need not pass through one multiprocessor. Each warp finds the peak for
//!   itself, from a number for every 64 patches, so that nobody waits at a barrier for it.

use thalweg_simt::{Cooperative, InOut, kernel};

use crate::parts::block::maxima;
use crate::vision::layout::{PIECE, Span};
use crate::vision::{ECCENTRICITY, EDGE, PLANES};

/// Patches of a thread that stay in registers, and of further ones those that are loaded at once.
const HELD: usize = 8;
const FEW: usize = 2;

kernel! {
    /// Salience and relevance of all patches of a batch, from `features` [N, 13] and `entropy` \[N\]; each image is scaled alone.
    ///
    /// `images`, `patches` (N), `largest` and `table` are those of the batch's [`Layout`](crate::vision::Layout).
    /// `mix_entropy` and `mix_salience` are the weights of the two scores, 0.5 each unless something balances
    /// them; `foveal_bias` in [0, 1] lowers salience away from the fixation.
    pub(super) unsafe fn relevance(
        cx: impl Cooperative, images: u32, patches: u32, largest: u32, foveal_bias: f32, mix_entropy: f32, mix_salience: f32,
        table: In<u32>, features: In<f32>, entropy: In<f32>, salience: InOut<f32>, relevance: InOut<f32>,
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
        let part = Part::new(cx, span);
        // Two lanes load both features of a row, then of the 16th after it: of the first each keeps one, of the other row they swap.
        // Which lane it is is asked anew each time: on one value, jump threading would make two copies of the shuffle between.
        let odd = || cx.lane() % 2 == 1;
        let read = |i: u32| {
            let row = if odd() { i - 16 } else { i };
            let feature = |i: u32, plane: u32| features.get(cx, (part.inside(i) * PLANES + plane) as usize);
            let (a, b) = if odd() { (ECCENTRICITY, EDGE) } else { (EDGE, ECCENTRICITY) };
            [feature(row, a), feature(row + 16, b), entropy.get(cx, part.inside(i) as usize)]
        };
        let swap = |[a, b, entropy]: [f32; 3]| {
            let other = cx.shuffle_xor(if odd() { a } else { b }, 1);
            [if odd() { b } else { a }, other, entropy]
        };
        let mut peak = 0.0f32;
        // Salience but for the division by the peak. Of patches that are not held it waits in memory.
        let mut salient = |v: [f32; 3]| {
            let [edge, eccentricity, entropy] = swap(v);
            peak = peak.max(edge);
            [edge * (1.0 - foveal_bias * eccentricity), 0.0, entropy]
        };
        let held: [_; HELD] = part.tile(part.first, read).map(&mut salient);
        let mut at = part.rest();
        // The first of the warp's patches decides: lanes swap together.
        while at - within(cx.lane()) < span.end {
            let next: [_; FEW] = part.tile(at, read);
            for v in next {
                let [v, ..] = salient(v);
                if at < span.end {
                    salience.set(cx, at as usize, v);
                }
                at += part.threads;
            }
        }
        let [peak] = maxima(cx, cx.shared::<f32>(0), [peak]);

        let load = |i: u32| {
            let i = part.inside(i) as usize;
            [salience.get(cx, i), 0.0, entropy.get(cx, i)]
        };
        part.normalise(cx, held, load, salience, relevance, |[salience, _, entropy]| {
            let score = if peak > 0.0 { salience / peak } else { 0.0 };
            (score, cx.fma(mix_entropy, entropy, mix_salience * score))
        });
    }
}

kernel! {
    /// Salience and relevance of all patches of a batch, with a query: maps `entropy` and `participatory` \[N\], and `mix`
    /// [images, 3], the weights of entropy, salience and participatory score; each image is scaled alone.
    ///
    /// `images`, `patches` (N), `largest` and `table` are those of the batch's [`Layout`](crate::vision::Layout).
    /// `salience` and `summaries` are as [`participatory`](crate::vision::participatory) leaves them; `salience` is
    /// divided by its peak.
    pub(super) unsafe fn relevance_with_query(
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
        let part = Part::new(cx, span);
        let load = |i: u32| {
            let i = part.inside(i) as usize;
            [salience.get(cx, i), entropy.get(cx, i), participatory.get(cx, i)]
        };
        let held = part.tile(part.first, load);
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

        part.normalise(cx, held, load, salience, relevance, |[salience, entropy, participatory]| {
            let score = if peak > 0.0 { salience / peak } else { 0.0 };
            (score, cx.fma(mix[0], entropy, cx.fma(mix[1], score, mix[2] * participatory)))
        });
    }
}

/// Which of its warp's 32 patches is a lane's.
#[inline(always)]
fn within(lane: u32) -> u32 {
    lane / 2 + lane % 2 * 16
}

/// A thread's patches: every so many of an image's.
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
        let first = span.start + cx.warp() * 32 + within(cx.lane());
        Self { first, threads: cx.block_dim().x, end: span.end }
    }

    /// `load` of some patches from `at` on; there may be no such patches.
    #[inline(always)]
    fn tile<T, const N: usize>(self, at: u32, load: impl Fn(u32) -> T) -> [T; N] {
        core::array::from_fn(|k| load(at + k as u32 * self.threads))
    }

    /// The patch, or the last.
    #[inline(always)]
    fn inside(self, i: u32) -> u32 {
        i.min(self.end - 1)
    }

    /// The first patch that is not held.
    #[inline(always)]
    fn rest(self) -> u32 {
        self.first + HELD as u32 * self.threads
    }

    /// Salience and relevance of an image's patches: `raw` makes salience and the weighted sum of what `load` finds, `held` of
    /// the first ones.
    ///
    /// # Safety
    /// The maps have these patches, and shared memory two windows, which no thread accesses before the next barrier.
    #[inline(always)]
    unsafe fn normalise<C: Cooperative>(
        self,
        cx: C,
        held: [[f32; 3]; HELD],
        load: impl Fn(u32) -> [f32; 3],
        salience: InOut<f32>,
        relevance: InOut<f32>,
        raw: impl Fn([f32; 3]) -> (f32, f32),
    ) {
        let (mut least, mut most) = (f32::INFINITY, f32::NEG_INFINITY);
        // SAFETY: patches of the image, each met by one thread in both passes.
        unsafe {
            let held = held.map(|v| {
                let (score, v) = raw(v);
                (least, most) = (least.min(v), most.max(v));
                (score, v)
            });
            let mut at = self.rest();
            while at < self.end {
                let next: [_; FEW] = self.tile(at, &load);
                for v in next {
                    let (score, v) = raw(v);
                    // What stands for a patch that is not there is the last one, which its thread may have divided already.
                    if at < self.end {
                        salience.set(cx, at as usize, score);
                        relevance.set(cx, at as usize, v);
                        (least, most) = (least.min(v), most.max(v));
                    }
                    at += self.threads;
                }
            }
            let [below, most] = maxima(cx, cx.shared::<f32>(0), [-least, most]);
            let range = most + below;
            let scale = 1.0 / (range + 1e-8);
            let scaled = |v: f32| if range < 1e-6 { 1.0 } else { (v + below) * scale };
            let mut at = self.first;
            for (score, v) in held {
                if at < self.end {
                    salience.set(cx, at as usize, score);
                    relevance.set(cx, at as usize, scaled(v));
                }
                at += self.threads;
            }
            while at < self.end {
                let next: [_; FEW] = self.tile(at, |i| relevance.get(cx, self.inside(i) as usize));
                for v in next {
                    if at < self.end {
                        relevance.set(cx, at as usize, scaled(v));
                    }
                    at += self.threads;
                }
            }
        }
    }
}
