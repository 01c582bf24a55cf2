//! Salience, and relevance as the balance of the scores.
//!
//! ```text
//! peak         = maximum of edge over patches, edge = features[n][8]
//! salience[n]  = edge / peak * (1 - foveal_bias * eccentricity), or 0 if peak is 0,
//!                eccentricity = features[n][11]
//! raw[n]       = mix_entropy * entropy[n] + mix_salience * salience[n]
//!                (+ mix_participatory * participatory[n])
//! relevance[n] = (raw[n] - min) / (max - min + 1e-8), or 1 where max - min < 1e-6
//! ```
//!
//! Launch: one block for each image, with a thread for every 8 patches of the largest image, at
//! most 1024 threads.
//! Memory: 48 bytes read and 8 written for each patch, all of it in L2; with a query 12 and 8.
//! Beyond the first 8192 patches of an image, up to 12 more are read and 8 more written for each
//! patch.
//!
//! - **An image has one block**: both extremes must be known before the next line can start, and
//!   barriers in a block are cheaper than launches as long as an image has some thousand patches.
//! - **The first 8 patches of a thread stay in registers**: their loads are all issued before the
//!   first is waited for, so up to 8192 patches cost one round trip to L2. Further patches are
//!   loaded two at a time: more would need more than the 64 registers that each of 1024 threads can
//!   have, and such a kernel cannot be launched. Their salience, before the division, and `raw`
//!   wait in memory. A thread has the same patches in each pass, so features are read once.
//! - **Two lanes load the two features of a row together**, so each line is looked up once. The two
//!   features come from 1.4 sectors of 32 bytes for each patch, through one multiprocessor; to
//!   spread the loads over the GPU would take another launch, which costs as much.
//! - **The division by the peak is a true one**: the patch at the peak gets exactly 1. The division
//!   by the range is a product: there it only matters that no result is above 1.
//! - **With a query, `participatory` has read the features already**, on the whole GPU. Only the
//!   division by the peak is left, and no rows of 52 bytes need to pass through one multiprocessor.
//!   Each warp finds the peak by itself, from one number for every 64 patches, so that it needs no
//!   barrier.

use thalweg_simt::{Cooperative, InOut, kernel};

#[cfg(not(target_arch = "nvptx64"))]
use crate::parts::block::WINDOW;
use crate::parts::block::maxima;
use crate::vision::layout::{PIECE, Span};
use crate::vision::{ECCENTRICITY, EDGE, PLANES};

/// Patches of a thread that stay in registers.
const HELD: usize = 8;
/// Further patches that a thread loads at once.
const FEW: usize = 2;

/// The threads of a block, for a batch whose largest image has so many patches.
#[cfg(not(target_arch = "nvptx64"))]
fn threads(largest: u128) -> u128 {
    largest.div_ceil(32 * HELD as u128).min(32) * 32
}

kernel! {
    /// See [`relevance`](crate::vision::relevance).
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
    grid(images) block(threads(largest)) shared(2 * WINDOW * 4)
    {
        let span = Span::of_image(cx, table, images, patches, cx.block_idx().x);
        if span.len() == 0 {
            return;
        }
        let part = Part::new(cx, span);
        // Two lanes together load both features of a row, then of the 16th row after it, so that
        // each load of the warp meets whole rows. A lane gets the edge of its own row and the
        // eccentricity of its neighbor's row; then they swap the eccentricities. `odd` calls
        // `lane()` each time instead of reusing its value: with one value, rustc's jump threading
        // would duplicate the shuffle between the branches, and the two copies would then run with
        // different lanes.
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
        // This is salience before the division by the peak. For patches that are not held it waits
        // in memory.
        let mut salient = |v: [f32; 3]| {
            let [edge, eccentricity, entropy] = swap(v);
            peak = peak.max(edge);
            [edge * (1.0 - foveal_bias * eccentricity), 0.0, entropy]
        };
        let held: [_; HELD] = part.tile(part.first, read).map(&mut salient);
        let mut at = part.rest();
        // The first patch of the warp decides, because lanes swap together.
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

        let load = |i: u32| [salience.get(cx, i as usize), 0.0, entropy.get(cx, i as usize)];
        part.normalize(cx, held, load, salience, relevance, |[salience, _, entropy]| {
            let score = if peak > 0.0 { salience / peak } else { 0.0 };
            (score, cx.fma(mix_entropy, entropy, mix_salience * score))
        });
    }
}

kernel! {
    /// See [`relevance_with_query`](crate::vision::relevance_with_query).
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
    grid(images) block(threads(largest)) shared(2 * WINDOW * 4)
    {
        let image = cx.block_idx().x;
        let span = Span::of_image(cx, table, images, patches, image);
        if span.len() == 0 {
            return;
        }
        let part = Part::new(cx, span);
        let load = |i: u32| {
            let i = i as usize;
            [salience.get(cx, i), entropy.get(cx, i), participatory.get(cx, i)]
        };
        let held = part.tile(part.first, |i| load(part.inside(i)));
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

        part.normalize(cx, held, load, salience, relevance, |[salience, entropy, participatory]| {
            let score = if peak > 0.0 { salience / peak } else { 0.0 };
            (score, cx.fma(mix[0], entropy, cx.fma(mix[1], score, mix[2] * participatory)))
        });
    }
}

/// Returns which of the 32 patches of its warp a lane has.
#[inline(always)]
fn within(lane: u32) -> u32 {
    lane / 2 + lane % 2 * 16
}

/// The patches of an image that a thread has: `first`, and every `threads`th after it.
#[derive(Clone, Copy)]
struct Part {
    first: u32,
    threads: u32,
    end: u32,
}

impl Part {
    /// Computes the part of a thread. The image has at least one patch.
    #[inline(always)]
    fn new(cx: impl Cooperative, span: Span) -> Self {
        let first = span.start + cx.warp() * 32 + within(cx.lane());
        Self { first, threads: cx.block_dim().x, end: span.end }
    }

    /// Calls `load` with the next `N` patches of the thread from `at` on, some of which may be past
    /// the end.
    #[inline(always)]
    fn tile<T, const N: usize>(self, at: u32, load: impl Fn(u32) -> T) -> [T; N] {
        core::array::from_fn(|k| load(at + k as u32 * self.threads))
    }

    /// Returns the patch, or the last one if the patch is past the end.
    #[inline(always)]
    fn inside(self, i: u32) -> u32 {
        i.min(self.end - 1)
    }

    /// Returns the first patch that is not held.
    #[inline(always)]
    fn rest(self) -> u32 {
        self.first + HELD as u32 * self.threads
    }

    /// Writes salience and relevance of an image's patches. `raw` makes the salience and the
    /// weighted sum of what `load` returns for a patch; `held` is that for the first patches, or
    /// for any others of the image in the place of those past the end.
    ///
    /// # Safety
    /// All threads of the block call it. The maps have these patches, which no other block writes,
    /// and shared memory has two windows, which no thread accesses before the next barrier.
    #[inline(always)]
    unsafe fn normalize<C: Cooperative>(
        self,
        cx: C,
        held: [[f32; 3]; HELD],
        load: impl Fn(u32) -> [f32; 3],
        salience: InOut<f32>,
        relevance: InOut<f32>,
        raw: impl Fn([f32; 3]) -> (f32, f32),
    ) {
        let (mut least, mut most) = (f32::INFINITY, f32::NEG_INFINITY);
        // In the place of a patch past the end, a thread loads the first one of the tile, which is
        // its own: any other may be written at that time by the thread that has it.
        let own = |i: u32, at: u32| if i < self.end { i } else { at };
        // SAFETY: Every store is to a patch from `first` on and below `end`, so it is a patch of
        // the image, and in both passes the same thread has it. `own` returns such patches too.
        // `maxima` gets the windows that the caller promises.
        unsafe {
            let held = held.map(|v| {
                let (score, v) = raw(v);
                (least, most) = (least.min(v), most.max(v));
                (score, v)
            });
            let mut at = self.rest();
            while at < self.end {
                let next: [_; FEW] = self.tile(at, |i| load(own(i, at)));
                for v in next {
                    let (score, v) = raw(v);
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
                let next: [_; FEW] = self.tile(at, |i| relevance.get(cx, own(i, at) as usize));
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
