//! The kernels of patches, and the one that makes their fragments.
#![forbid(unsafe_code)]

use thalweg_simt::safe::Thread;
use thalweg_simt::{Bits, Simt, hint, kernel};

use super::matrices::{Place, Quad, Source, THREADS, UNITS, WARPS, column, nearest, row, sample};
use super::strips::{Eight, PLANS, maker};
use super::view::{Axis, Records, STEP, View, last_from};

/// The fragments of an axis.
#[derive(Clone, Copy)]
struct Fragments {
    axis: Axis,
    at: u32,
    side: u32,
    steps: u32,
    down: bool,
    /// A mask of the first sample of a unit.
    mask: u32,
}

impl Fragments {
    /// Computes a word of fragment `i`: the weights of four samples of an output, one byte of each.
    #[inline(always)]
    fn word<'k, C: Simt>(self, t: &Thread<'k, C>, axes: Records<'k>, i: u32, lane: u32, word: u32) -> u32 {
        let axis = self.axis;
        let (planes, steps) = (axis.planes(), self.steps.max(1));
        let (plane, step) = (i % planes, i / planes % steps);
        let unit = (i / planes / steps).wrapping_mul(self.side).wrapping_sub(self.at);
        let m = lane / 4 + 8 * (word % 2);
        let m = if self.down { m } else { column(m) };
        let output = unit.wrapping_add(m);
        if m >= self.side || output >= axis.outputs {
            return 0;
        }
        let [.., start] = axes.nearest(t, axis.place(nearest(axis, unit as i32)));
        let [.., bounds] = axes.nearest(t, axis.place(output));
        let (first, count) = (bounds & 0xffff, bounds >> 16);
        u32::from_le_bytes([0, 1, 2, 3].map(|e| {
            let k = lane % 4 * 4 + e + 16 * (word / 2);
            // Strips begin at samples that are multiples of four, and patches at any.
            let strips = self.mask != u32::MAX;
            let within = if self.down {
                row(k)
            } else if strips {
                k
            } else {
                sample(k)
            };
            let sample = STEP * step + within + (start & 0xffff & self.mask);
            let tap = sample.wrapping_sub(first);
            if tap < count { (axis.weight(t, axes, output, tap) >> (8 * (planes - 1 - plane))) as u8 } else { 0 }
        }))
    }
}

kernel! {
    /// Makes the fragments of all axes.
    pub(super) fn fragments(
        t: impl Simt, fragments_: u32, parts: u32, records: u32,
        axes: In<[u32; 4]>[records], table: In<u32>[parts, 8], out: Out<[u32; 4]>[fragments_, 32] by [xz, y],
    )
    require { parts >= 1, records >= 1 }
    grid(fragments_.div_ceil(8)) block(1, 32, 8)
    {
        out.for_each(t, |cell| {
            let [i, lane] = cell.at();
            let at = last_from(t, table, i, 0);
            let word = |i| table.get(t, [at, i]);
            let axis = Axis::new(0, word(3), [word(1).min(records), word(2)]);
            let of = Fragments {
                axis, at: word(4), side: word(5) & 0xffff, steps: word(5) >> 16, down: word(6) != 0, mask: !word(7),
            };
            let i = i.wrapping_sub(word(0));
            cell.set([0, 1, 2, 3].map(|word| of.word(t, axes, i, lane, word)));
        });
    }
}

/// The place of four neighbors of a unit, in the words that the threads of a warp have.
#[derive(Clone, Copy)]
struct Four {
    words: [u32; 2],
    bytes: u32,
}

impl Four {
    /// Finds the pixels `4 * i` to `4 * i + 3` of a unit.
    #[inline(always)]
    fn new(i: u32, side: u32, inverse: u32) -> Self {
        let y = (4 * i * inverse) >> 16;
        let x = 4 * i - y * side;
        // Two neighbors are in a word, and the other two in the same one, or in the next row.
        let next = if x + 2 < side { [y, x + 2] } else { [y + 1, 0] };
        let word = |[y, x]: [u32; 2]| THREADS * (y >> 3) + 4 * (y & 7) + x / 4;
        let half = |x: u32, low: u32, high: u32| if x & 2 == 0 { low } else { high };
        Self { words: [[y, x], next].map(word), bytes: half(x, 0x10, 0x32) | half(next[1], 0x5400, 0x7600) }
    }
}

/// Makes one access of four numbers.
trait Number: Copy {
    fn four(t: impl Bits, four: [Self; 4]) -> [Self; 4];
}

impl Number for u16 {
    /// Joins two neighbors to words, which the compiler does not find by itself.
    #[inline(always)]
    fn four(t: impl Bits, [a, b, c, d]: [u16; 4]) -> [u16; 4] {
        let [low, high] = [[a, b], [c, d]].map(|[low, high]| t.byte_perm(low.into(), high.into(), 0x5410));
        [low as u16, (low >> 16) as u16, high as u16, (high >> 16) as u16]
    }
}

impl Number for u32 {
    #[inline(always)]
    fn four(_: impl Bits, four: [u32; 4]) -> [u32; 4] {
        four
    }
}

/// The levels of a block: for each unit of a warp and each of two rows of a thread.
const LEVELS: u32 = 2 * THREADS * UNITS;

/// Makes the units of a block: `$at` is the unit and the number of four pixels of a column, and
/// `$store` stores their numbers, channel by channel. (A function would need to name the type of
/// the output, which is different for each kernel.)
macro_rules! patches {
    ($near:literal $of:ident, $views:ident, $counts:expr, $b:ident, $table:ident, $e:ty, $place:pat => $at:expr,
     $out:ident, |$column:ident, $rgb:pat_param| $store:block) => {
        let [units, len, records, quads]: [u32; 4] = $counts;
        let start = $b.idx().x * (UNITS * WARPS);
        let end = units.min(start + UNITS * WARPS);
        let (words, numbers) = ($b.shared::<Quad>(LEVELS), $b.shared::<$e>(768));
        let places = $b.shared::<Place>(if $near { 0 } else { THREADS * UNITS });
        let mut window = $b.shared::<Eight>(if $near { quads / 2 } else { 0 });
        let mut plans = $b.shared(if $near { PLANS } else { 0 });
        let words = $b.fill(words, (), |_, (), _| [0; 3]);
        let numbers = $b.fill(numbers, (), move |t, (), i| $table.get(t, [i / 256, i % 256]));
        let places = $b.fill(places, (), |_, (), _| [0; 3]);
        let (words, numbers, places) = $b.sync((words.write(), numbers.read(), places.write()));
        // The units that a view has, as bits.
        let (mut unit, mut present) = (start, 0u32);
        while unit < end {
            let (mut last, is_present);
            if $near {
                let (views, len) = (($views, [records, len], units), 2 * window.len());
                let planned = $b.sync($of.planned(&$b, views, [start, unit, end], len, plans).read());
                (window, last, is_present) = $of.strip(&mut $b, &planned, &words, window);
                last = last.min(end).max(unit + 1);
                plans = $b.sync(planned.renew());
            } else {
                let view = View::of(&$b, $views, [records, len], units, unit);
                (last, is_present) = (view.end(unit, end), view.present);
                if is_present {
                    $of.units(&mut $b, view, [start, unit, last], &words, &places);
                }
            }
            if is_present {
                present |= u32::MAX >> (32 - (last - unit)) << (unit - start);
            }
            unit = last;
        }
        let inverse = (1u32 << 16).div_ceil($of.side);
        let words = $b.sync(words.read());
        $b.each((&words, &numbers), move |t, (words, numbers)| {
            // A thread has the same one or two of each unit, if there are registers to keep them.
            let four = |i| Four::new(i, $of.side, inverse);
            let own = [0, 32].map(|i| four(t.thread_idx().y + i));
            $out.for_each_column(t, |$column| {
                let $place = $column.at();
                let [unit, i]: [u32; 2] = $at;
                let unit = unit % (UNITS * WARPS);
                let four = match $near {
                    true if i < 32 => own[0],
                    true => own[1],
                    false => four(i),
                };
                let $rgb = if present >> unit & 1 != 0 {
                    let [warp, turn] = maker(unit, if $near { $of.merge } else { 2 });
                    let [a, b] = four.words.map(|word| {
                        words.get(t, (2 * THREADS * turn + 32 * warp + word).min(LEVELS - 1))
                    });
                    [0, 1, 2].map(|c| {
                        let levels = t.byte_perm(a[c as usize], b[c as usize], four.bytes);
                        Number::four(**t, [0, 8, 16, 24].map(|bits| numbers.get(t, 256 * c + (levels >> bits & 255))))
                    })
                } else {
                    [[<$e>::default(); 4]; 3]
                };
                $store
            });
        });
    };
}

/// Makes the kernels for a type of elements, for views that are near or for all, with so many
/// blocks at once.
macro_rules! kernels {
    ($($e:ident $size:literal $near:literal $blocks:literal: $planes:ident $pixels:ident;)*) => {$(
        kernel! {
            /// Makes units of an even side, up to 16, with one channel after another. A thread
            /// stores four pixels of a channel at once.
            pub(super) fn $planes(
                b: impl Cooperative, units: u32, views_: u32, words: u32, records: u32, pieces: u32, quads: u32,
                side: u32, merge: u32, copies: u32,
                rgb: In<[u8; 4]>[words], views: In<u32>[views_, 18], axes: In<[u32; 4]>[records],
                fragments: In<[u32; 4]>[pieces], table: In<$e>[3, 256],
                out: Out<[$e; 4]>[units, planes = 3 * copies, fours = side * side / 4] by [xz(4), all, stride(y)],
            )
            require {
                (2..=16).contains(&side), side % 2 == 0, merge == 1 || merge == 2, copies == 1 || copies == 2,
                views_ >= 1, records >= 1, pieces >= 1, quads <= 1792,
            }
            grid(units.div_ceil(32)) block(1, 32, 8) bounds(256, $blocks) shared(6 * 256 * 4 * 4 + 768 * $size + if $near { 12 * quads + 16 * 36 } else { 12 * 256 * 4 })
            {
                let of = Source { rgb, axes, fragments, side, merge };
                patches!($near of, views, [units, words, records, quads], b, table, $e, [unit, _, i] => [unit, i], out, |column, [r, g, b]| {
                    if copies == 2 {
                        let [r0, r1, g0, g1, b0, b1] = column.cells::<1, 6>(0);
                        r0.store(r, hint::Streaming);
                        r1.store(r, hint::Streaming);
                        g0.store(g, hint::Streaming);
                        g1.store(g, hint::Streaming);
                        b0.store(b, hint::Streaming);
                        b1.store(b, hint::Streaming);
                    } else {
                        let [r0, g0, b0] = column.cells::<1, 3>(0);
                        r0.store(r, hint::Streaming);
                        g0.store(g, hint::Streaming);
                        b0.store(b, hint::Streaming);
                    }
                });
            }
        }

        kernel! {
            /// Makes units of an even side, up to 16, with the channels of a pixel side by side.
            pub(super) fn $pixels(
                b: impl Cooperative, units: u32, views_: u32, words: u32, records: u32, pieces: u32, quads: u32,
                side: u32, merge: u32,
                rgb: In<[u8; 4]>[words], views: In<u32>[views_, 18], axes: In<[u32; 4]>[records],
                fragments: In<[u32; 4]>[pieces], table: In<$e>[3, 256],
                out: Out<[$e; 4]>[units, fours = side * side / 4, 3] by [xz(4), stride(y), all],
            )
            require {
                (2..=16).contains(&side), side % 2 == 0, merge == 1 || merge == 2,
                views_ >= 1, records >= 1, pieces >= 1, quads <= 1792,
            }
            grid(units.div_ceil(32)) block(1, 32, 8) bounds(256, $blocks) shared(6 * 256 * 4 * 4 + 768 * $size + if $near { 12 * quads + 16 * 36 } else { 12 * 256 * 4 })
            {
                let of = Source { rgb, axes, fragments, side, merge };
                patches!($near of, views, [units, words, records, quads], b, table, $e, [unit, i, _] => [unit, i], out, |column, [r, g, b]| {
                    let [first, middle, last] = column.cells::<2, 3>(0);
                    first.store([r[0], g[0], b[0], r[1]], hint::Streaming);
                    middle.store([g[1], b[1], r[2], g[2]], hint::Streaming);
                    last.store([b[2], r[3], g[3], b[3]], hint::Streaming);
                });
            }
        }
    )*};
}
kernels! {
    u16 2 true 4: strips_16 strip_pixels_16;
    u32 4 true 4: strips_32 strip_pixels_32;
    u16 2 false 2: patches_16 patch_pixels_16;
    u32 4 false 2: patches_32 patch_pixels_32;
}
