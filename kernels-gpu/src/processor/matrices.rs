//! Patches: units of at most 16 x 16 pixels, each made by a warp as products of matrices of bytes.
//!
//! ```text
//! for each 32 rows of the samples of the pass down:
//!     for each 8 of these rows, for each 32 samples of the pass across:
//!         [16 outputs, 32 samples] * [32 samples, 8 rows], in each channel
//!     [16 outputs, 32 rows] * [32 rows, 8 columns], in each channel, for both halves of the columns
//! ```
//!
//! A weight has 16 or 24 bits, so it is two or three bytes, and each product is as many products of
//! bytes (`mma.m16n8k32`). Their matrices, which have a weight where an output has a sample, are
//! the *fragments*: a kernel makes them once for each axis.
//!
//! Columns and rows are numbered ([`column`], [`row`]) so that a thread's part of the first result
//! is its part of an operand of the second product. So nothing leaves the registers between the
//! passes. In the end, each thread has four neighbors of a row.
#![forbid(unsafe_code)]

use thalweg_simt::safe::{Block, In, Local, Team, Thread, Witness, Writing};
use thalweg_simt::{Bits, Simt};

use super::view::{Axis, Records, STEP, View};

/// The warps of a block.
pub(super) const WARPS: u32 = 8;
/// The units that a warp makes, one after another.
pub(super) const UNITS: u32 = 4;
/// The threads of a block.
pub(super) const THREADS: u32 = 32 * WARPS;

/// A thread's part of a matrix of weights.
type Fragment = [u32; 4];

/// The column that row `m` of a matrix of the pass across is. Each thread has rows `2 t` and
/// `2 t + 1` of both halves in the end, so they are neighbors.
#[inline(always)]
pub(super) fn column(m: u32) -> u32 {
    4 * ((m & 7) >> 1) + (m & 1) + 2 * (m >> 3)
}

/// The row that column `k` of a matrix of the pass down is. A thread has rows `2 t` and `2 t + 1`
/// of each group of eight, and a word of a fragment has four neighbors.
#[inline(always)]
pub(super) fn row(k: u32) -> u32 {
    let (t, e) = ((k & 15) >> 2, k & 3);
    16 * (k >> 4) + 8 * (e >> 1) + 2 * t + (e & 1)
}

/// The sample that column `k` of a matrix of the pass across is, if a block does not load strips. A
/// thread has eight neighbors then.
#[inline(always)]
pub(super) fn sample(k: u32) -> u32 {
    8 * ((k & 15) >> 2) + 4 * (k >> 4) + (k & 3)
}

/// Returns the output of an axis at a place of the canvas, or the nearest one.
#[inline(always)]
pub(super) fn nearest(axis: Axis, place: i32) -> u32 {
    (place.max(0) as u32).min(axis.outputs.saturating_sub(1))
}

/// Returns the place of a lane's part of the first fragment of row or column `i`, which have `len`
/// each, from fragment `first` on.
#[inline(always)]
pub(super) fn part(first: u32, i: u32, len: u32, lane: u32) -> u32 {
    i.wrapping_mul(len).wrapping_add(first).wrapping_mul(32).wrapping_add(lane)
}

/// The form of the passes of a unit.
#[derive(Clone, Copy)]
pub(super) struct Passes {
    pub(super) across: Axis,
    pub(super) down: Axis,
    /// The steps of the pass across.
    pub(super) steps: u32,
    /// The rows that the pass down of a unit needs.
    pub(super) rows: u32,
}

/// Two fragments, and the place of a third one.
type Loaded<'k, M> = (Local<'k, M, [Fragment; 2]>, Local<'k, M, u32>);

/// The tables and pixels that a launch reads.
#[derive(Clone, Copy)]
pub(super) struct Source<'k> {
    pub(super) rgb: In<'k, [u8; 4], 1>,
    pub(super) axes: Records<'k>,
    /// The fragments, 32 lanes each.
    pub(super) fragments: In<'k, Fragment, 1>,
    pub(super) side: u32,
    pub(super) merge: u32,
}

/// Four neighbors of a row: a word for each channel.
pub(super) type Quad = [u32; 3];
/// The places of what a thread needs for a unit: of its part of the first fragment of the pass
/// across and of that down, and the byte of its first sample in its row.
pub(super) type Place = [u32; 3];

impl<'k> Source<'k> {
    /// Returns the first sample of the units in row or column `i`, where the resized image is `at`
    /// on the canvas.
    #[inline(always)]
    pub(super) fn first(self, t: &impl Witness<'k>, axis: Axis, i: u32, at: i32) -> u32 {
        let output = nearest(axis, i.wrapping_mul(self.side).wrapping_sub(at as u32) as i32);
        let [.., bounds] = self.axes.nearest(t, axis.place(output));
        bounds & 0xffff
    }

    /// Finds the place of a unit, counted from the first one of a view.
    #[inline(always)]
    pub(super) fn place<C: Simt>(self, t: &Thread<'k, C>, view: View, unit: u32) -> Place {
        // Units come in blocks of 1, or of 2 x 2.
        let shift = self.merge - 1;
        let (block, within) = (unit >> (2 * shift), unit & (3 * shift));
        let blocks = (view.columns >> shift).max(1);
        // The inverse is the same for all units. With it, the quotient is at most 1 too small.
        let small = t.mul_hi_u32(block, u32::MAX / blocks);
        let rest = block.wrapping_sub(small.wrapping_mul(blocks));
        let (above, left) = if rest >= blocks { (small + 1, rest.wrapping_sub(blocks)) } else { (small, rest) };
        let (row, column) = ((above << shift) + (within >> 1), (left << shift) + (within & 1));
        let (y, x) = (self.first(t, view.down, row, view.top), self.first(t, view.across, column, view.left));
        let lane = t.thread_idx().y;
        let pixel = y.wrapping_add(lane / 4).wrapping_mul(view.width).wrapping_add(x).wrapping_add(lane % 4 * 8);
        let planes = view.across.planes();
        [
            part(view.across_fragments, column, view.across_steps.wrapping_mul(planes), lane),
            part(view.down_fragments, row, view.rows.div_ceil(STEP).wrapping_mul(planes), lane),
            view.start.wrapping_add(3u32.wrapping_mul(pixel)),
        ]
    }

    /// Loads eight neighbors, which are in seven words, from a byte of `rgb` on.
    #[inline(always)]
    pub(super) fn eight<C: Simt>(self, t: &Thread<'k, C>, byte: u32) -> [Quad; 2] {
        let word = |i| u32::from_le_bytes(self.rgb.nearest(t, (byte / 4).wrapping_add(i)));
        let [a, b, c, d, e, f, g] = [0, 1, 2, 3, 4, 5, 6].map(word);
        [[a, b, c, d], [d, e, f, g]].map(|words| channels(**t, words, byte % 4 * 8))
    }

    /// Loads the pixels of a step of a row: in each channel eight levels, four neighbors in a word.
    #[inline(always)]
    fn pixels<C: Simt>(self, t: &Thread<'k, C>, byte: u32) -> [[u32; 2]; 3] {
        let [low, high] = self.eight(t, byte);
        [0, 1, 2].map(|c| [low[c], high[c]])
    }

    /// Adds the products of a step. `fragments` are its first two, and `at` is the thread's part of
    /// the third one, if weights are `WIDE`.
    ///
    /// The upper bytes come first: so there is one sum at a time.
    #[inline(always)]
    fn step<M: Team, const WIDE: bool, const NEAR: bool, const N: usize>(
        self,
        b: &mut Block<'k, M>,
        axis: Axis,
        fragments: &Local<'k, M, [Fragment; 2]>,
        at: &Local<'k, M, u32>,
        bytes: &Local<'k, M, [[u32; 2]; N]>,
        sums: &Local<'k, M, [[i32; 4]; N]>,
    ) -> Local<'k, M, [[i32; 4]; N]> {
        let none = b.each((), |_, ()| [[0; 4]; N]);
        let [high, mut low] = [0, 1].map(|i| b.each(fragments, move |t, f| f.get(t)[i]));
        let mut upper = b.multiply_bytes::<true, N>(&high, bytes, &none);
        if WIDE {
            upper = b.each((&upper, &none), |t, (upper, none)| plus(256, upper.get(t), none.get(t)));
            upper = b.multiply_bytes::<false, N>(&low, bytes, &upper);
            low = b.each(at, move |t, at| self.fragments.nearest(t, at.get(t)));
        }
        // With a factor that the compiler does not know, this is a multiplication and not a shift:
        // shifts are what strips wait for. The factor takes a register, which patches lack. Both
        // axes have weights of as many bytes.
        let scale = if NEAR { axis.unit << 8 } else { 256 };
        let sums = b.each((&upper, sums), move |t, (upper, sums)| plus(scale, upper.get(t), sums.get(t)));
        b.multiply_bytes::<false, N>(&low, bytes, &sums)
    }

    /// Returns the first two fragments of step `i` of a unit, and the place of the third one.
    #[inline(always)]
    fn load<M: Team, const WIDE: bool>(self, b: &Block<'k, M>, first: &Local<'k, M, u32>, i: u32) -> Loaded<'k, M> {
        let at = b.each(first, move |t, first| first.get(t).wrapping_add(32 * if WIDE { 3 } else { 2 } * i));
        let load = move |t: &Thread<'k, M::Cx>, at: u32| self.fragments.nearest(t, at);
        let two = b.each(&at, move |t, at| [load(t, at.get(t)), load(t, at.get(t).wrapping_add(32))]);
        (two, b.each(&at, |t, at| at.get(t).wrapping_add(64)))
    }

    /// Computes the pass across of eight rows from row `top` on. `pixels` loads their samples of a
    /// step. Returns the levels of two of them in each channel, for both halves of the columns, in
    /// the lower half of a word. The upper half is the lower half of `above`.
    #[inline(always)]
    fn across<M: Team, const WIDE: bool, const NEAR: bool>(
        self,
        b: &mut Block<'k, M>,
        of: Passes,
        first: &Local<'k, M, u32>,
        kept: Option<&Loaded<'k, M>>,
        pixels: impl Fn(&Block<'k, M>, u32) -> Local<'k, M, [[u32; 2]; 3]>,
        above: &Local<'k, M, [u32; 6]>,
    ) -> Local<'k, M, [u32; 6]> {
        let (half, shift) = (of.across.half(), of.across.shift);
        let mut sums = b.each((), move |_, ()| [[half; 4]; 3]);
        if let Some((fragments, at)) = kept {
            let bytes = pixels(b, 0);
            sums = self.step::<M, WIDE, NEAR, 3>(b, of.across, fragments, at, &bytes, &sums);
        } else {
            for step in 0..of.steps {
                let (fragments, at) = self.load::<M, WIDE>(b, first, step);
                let bytes = pixels(b, step);
                sums = self.step::<M, WIDE, NEAR, 3>(b, of.across, &fragments, &at, &bytes, &sums);
            }
        }
        b.each((&sums, above), move |t, (sums, above)| {
            let (sums, above) = (sums.get(t).map(|four| four.map(|v| v >> shift)), above.get(t));
            core::array::from_fn(|i| {
                let (four, e) = (sums[i / 2], i % 2 * 2);
                t.clamped_bytes(four[e], four[e + 1], above[i])
            })
        })
    }

    /// Computes the pass across of 16 rows from row `top` on. Rows 8 to 15 are in the upper halves
    /// of the words.
    #[inline(always)]
    fn sixteen<M: Team, const WIDE: bool, const NEAR: bool>(
        self,
        b: &mut Block<'k, M>,
        of: Passes,
        first: &Local<'k, M, u32>,
        kept: Option<&Loaded<'k, M>>,
        pixels: &impl Fn(&Block<'k, M>, u32, u32) -> Local<'k, M, [[u32; 2]; 3]>,
        top: u32,
    ) -> Local<'k, M, [u32; 6]> {
        let mut next = b.each((), |_, ()| [0; 6]);
        if top + 8 < of.rows {
            let pixels = |b: &Block<'k, M>, step| pixels(b, top + 8, step);
            next = self.across::<M, WIDE, NEAR>(b, of, first, kept, pixels, &next);
        }
        if top < of.rows {
            let pixels = |b: &Block<'k, M>, step| pixels(b, top, step);
            next = self.across::<M, WIDE, NEAR>(b, of, first, kept, pixels, &next);
        }
        next
    }

    /// Computes the levels of the unit of each warp: `first` returns the thread's part of the first
    /// fragment of the pass across, or of that down, and `pixels` loads the samples of a step, from
    /// a row on. If the view is `NEAR`, then one step is enough in both passes, which takes half as
    /// many registers. Returns four neighbors of a row in a word: those of row `lane / 4` in each
    /// channel, then those of row `lane / 4 + 8`.
    #[inline(always)]
    pub(super) fn levels<M: Team, const WIDE: bool, const NEAR: bool>(
        self,
        b: &mut Block<'k, M>,
        of: Passes,
        first: impl Fn(&Block<'k, M>, bool) -> Local<'k, M, u32>,
        pixels: impl Fn(&Block<'k, M>, u32, u32) -> Local<'k, M, [[u32; 2]; 3]>,
    ) -> Local<'k, M, [u32; 6]> {
        let across = first(b, false);
        // With one step, its fragments stay in registers.
        let kept = NEAR.then(|| self.load::<M, WIDE>(b, &across, 0));
        let half = of.down.half();
        let mut sums = b.each((), move |_, ()| [[half; 4]; 6]);
        for step in 0..if NEAR { 1 } else { of.rows.div_ceil(STEP) } {
            let words = if NEAR {
                let low = self.sixteen::<M, WIDE, NEAR>(b, of, &across, kept.as_ref(), &pixels, 0);
                let high = self.sixteen::<M, WIDE, NEAR>(b, of, &across, kept.as_ref(), &pixels, 16);
                b.each((&low, &high), |t, (low, high)| joined(low.get(t), high.get(t)))
            } else {
                let mut words = b.each((), |_, ()| [[0; 2]; 6]);
                for half in 0..2 {
                    let top = STEP * step + 16 * half;
                    let next = self.sixteen::<M, WIDE, NEAR>(b, of, &across, kept.as_ref(), &pixels, top);
                    words = b.each((&words, &next), |t, (words, next)| {
                        joined(words.get(t).map(|[_, last]| last), next.get(t))
                    });
                }
                words
            };
            let (fragments, at) = self.load::<M, WIDE>(b, &first(b, true), step);
            // One channel after another: all at once would need too many registers.
            let [red, green, blue] = [0, 1, 2].map(|c| {
                let words = b.each(&words, move |t, words| pair(words.get(t), c));
                let sums = b.each(&sums, move |t, sums| pair(sums.get(t), c));
                self.step::<M, WIDE, NEAR, 2>(b, of.across, &fragments, &at, &words, &sums)
            });
            sums = b.each((&red, &green, &blue), |t, (red, green, blue)| {
                let ([a, b], [c, d], [e, f]) = (red.get(t), green.get(t), blue.get(t));
                [a, b, c, d, e, f]
            });
        }
        b.each(&sums, move |t, sums| {
            let sums = sums.get(t).map(|four| four.map(|v| v >> of.down.shift));
            core::array::from_fn(|i| {
                let ([left, right], e) = (pair(sums, i % 3), i / 3 * 2);
                t.clamped_bytes(left[e], left[e + 1], t.clamped_bytes(right[e], right[e + 1], 0))
            })
        })
    }

    /// Stores the levels of the units of a view from `unit` to `last`. A thread loads the pixels
    /// that it needs.
    #[inline(always)]
    pub(super) fn units<M: Team>(
        self,
        b: &mut Block<'k, M>,
        view: View,
        [start, unit, last]: [u32; 3],
        words: &Writing<'k, Quad>,
        places: &Writing<'k, Place>,
    ) {
        let origin = unit.wrapping_sub(view.unit);
        // All at once: then what is only needed for this takes no registers below.
        b.each(places, move |t, places| {
            for turn in 0..UNITS {
                let unit = start + UNITS * t.thread_idx().z + turn;
                places.set(t, turn, self.place(t, view, unit.wrapping_sub(origin)));
            }
        });
        let line = 3u32.wrapping_mul(view.width);
        let of = Passes { across: view.across, down: view.down, steps: view.across_steps, rows: view.rows };
        for turn in 0..UNITS {
            let place = move |t: &Thread<'k, M::Cx>, places: &Writing<'k, Place>, i: usize| {
                places.get(t, turn).map_or(0, |place| place[i])
            };
            let first = |b: &Block<'k, M>, down| b.each(places, move |t, places| place(t, places, usize::from(down)));
            let pixels = |b: &Block<'k, M>, top: u32, step: u32| {
                b.each(places, move |t, places| {
                    let byte = place(t, places, 2);
                    self.pixels(t, byte.wrapping_add(top.wrapping_mul(line)).wrapping_add(3 * STEP * step))
                })
            };
            let levels = match view.across.unit {
                1 => self.levels::<M, false, false>(b, of, first, pixels),
                _ => self.levels::<M, true, false>(b, of, first, pixels),
            };
            b.each((words, &levels), move |t, (words, levels)| {
                if (unit..last).contains(&(start + UNITS * t.thread_idx().z + turn)) {
                    store::<M>(t, words, turn, levels.get(t));
                }
            });
        }
    }
}

/// Stores the levels of a unit of a warp.
#[inline(always)]
pub(super) fn store<'k, M: Team>(t: &Thread<'k, M::Cx>, words: &Writing<'k, Quad>, turn: u32, levels: [u32; 6]) {
    let [a, b, c, d, e, f] = levels;
    words.set(t, 2 * turn, [a, b, c]);
    words.set(t, 2 * turn + 1, [d, e, f]);
}

/// Returns `scale * upper + lower`, modulo 2^32.
#[inline(always)]
fn plus<const N: usize>(scale: i32, upper: [[i32; 4]; N], lower: [[i32; 4]; N]) -> [[i32; 4]; N] {
    core::array::from_fn(|n| core::array::from_fn(|i| upper[n][i].wrapping_mul(scale).wrapping_add(lower[n][i])))
}

#[inline(always)]
fn joined(low: [u32; 6], high: [u32; 6]) -> [[u32; 2]; 6] {
    core::array::from_fn(|i| [low[i], high[i]])
}

/// Returns both halves of a channel.
#[inline(always)]
fn pair<T: Copy>(all: [T; 6], channel: usize) -> [T; 2] {
    [all[2 * channel], all[2 * channel + 1]]
}

/// Four pixels of a row as a word for each channel.
#[inline(always)]
fn channels(t: impl Bits, [a, b, c, d]: [u32; 4], bits: u32) -> [u32; 3] {
    let p = t.funnel_shift_right(a, b, bits);
    let q = t.funnel_shift_right(b, c, bits);
    let s = t.funnel_shift_right(c, d, bits);
    [
        t.byte_perm(t.byte_perm(p, q, 0x0630), s, 0x5210),
        t.byte_perm(t.byte_perm(p, q, 0x0741), s, 0x6210),
        t.byte_perm(t.byte_perm(p, q, 0x0052), s, 0x7410),
    ]
}
