//! The kernels: each gives the levels of a block their numbers and stores them.
#![forbid(unsafe_code)]

use thalweg_simt::safe::{In, Item, Thread};
use thalweg_simt::{Element, Simt, hint, kernel};

use super::levels::{PIXELS, Source, Tile, levels};
use super::strips::{Band, Quad, STRIP_WINDOW, Strip};
use super::view::View;

/// The bits of an element of the input: `f32`, or those of 16-bit numbers.
pub(super) trait Stored: Element + Item + Default {}
impl Stored for u32 {}
impl Stored for u16 {}

/// Returns the number of a channel of a pixel, or zero if there is no view.
#[inline(always)]
fn number<'k, E: Stored, C: Simt>(t: &Thread<'k, C>, table: In<'k, E, 2>, present: bool, word: u32, channel: u32) -> E {
    if present { table.get(t, [channel, word >> (8 * channel) & 255]) } else { E::default() }
}

/// Returns the pixels that a block makes of a unit, if a thread has four rows of a column.
#[inline(always)]
fn part(view: View, merge: u32, side: u32, [across, down]: [u32; 2], [y, z]: [u32; 2]) -> Tile {
    let [row, column] = view.place(merge);
    let (top, left) = (down * PIXELS as u32 * z, across * y);
    Tile {
        top: row.wrapping_mul(side).wrapping_add(top),
        left: column.wrapping_mul(side).wrapping_add(left),
        height: (down * PIXELS as u32).min(side.saturating_sub(top)),
        width: across.min(side.saturating_sub(left)),
    }
}

/// The arguments of a launch of strips.
#[derive(Clone, Copy)]
struct Strips<'k> {
    source: Source<'k>,
    views: In<'k, u32, 2>,
    records: u32,
    words: u32,
    units: u32,
    side: u32,
    merge: u32,
    deep: u32,
}

/// Makes the units of a block: `$at` is the unit and the pair of pixels of a column, and `$store`
/// stores the numbers of the pair, channel by channel. (A function would need to name the type of
/// the output, which is different for each kernel.)
macro_rules! strips {
    ($of:ident, $b:ident, $table:ident, $e:ty, $out:ident, $place:pat => $at:expr, |$column:ident, $rgb:pat_param| $store:block) => {
        let mut window = $b.shared::<Quad>(STRIP_WINDOW);
        let numbers = $b.shared::<$e>(768);
        let numbers = $b.fill(numbers, (), move |t, (), i| $table.get(t, [i / 256, i % 256]));
        let numbers = $b.sync(numbers.read());
        let span = 4 * $of.deep;
        let (mut unit, end) = ($b.idx().x * span, $of.units.min(($b.idx().x + 1) * span));
        let half = $of.side / 2;
        let inverse = (1u32 << 16).div_ceil(half);
        while unit < end {
            let view = View::of(&$b, $of.views, $of.records, $of.words, unit);
            let strip = Strip::new(view, unit, end, $of.side, $of.merge);
            unit = strip.end;
            let rows = if view.present { view.band.clamp(1, strip.height) } else { strip.height };
            let mut from = 0;
            while from < strip.height {
                let band = Band::new(&$b, $of.source, strip, from, rows);
                let filled = band.across(&mut $b, $of.source, window);
                let reading = $b.sync(filled.read());
                $b.each((&reading, &numbers), move |t, (reading, numbers)| {
                    $out.for_each_column(t, |$column| {
                        let $place = $column.at();
                        let [unit, pair]: [u32; 2] = $at;
                        if !(strip.first..strip.end).contains(&unit) {
                            return;
                        }
                        let y = pair * inverse >> 16;
                        let [row, x] = strip.place(unit, [y, 2 * (pair - y * half)]);
                        let row = row.wrapping_sub(from);
                        if row >= rows {
                            return;
                        }
                        let $rgb = if view.present {
                            let get = |i: u32| reading.get(t, i % STRIP_WINDOW);
                            let levels = band.pair(t, $of.source, [row, x], get);
                            let number = |c: u32, word: u32| numbers.get(t, 256 * c + (word >> (8 * c) & 255));
                            [0, 1, 2].map(|c| levels.map(|word| number(c, word)))
                        } else {
                            [[0; 2]; 3]
                        };
                        $store
                    });
                });
                window = $b.sync(reading.renew());
                from += rows;
            }
        }
    };
}

/// Makes the kernels for a type of elements.
macro_rules! kernels {
    ($($e:ident: $strips:ident $tiles:ident $strip_pixels:ident $pixels:ident;)*) => {$(
        kernel! {
            /// Makes units of an even side, up to 16, with one channel after another. A thread has
            /// pairs of pixels.
            pub(super) fn $strips(
                b: impl Cooperative, units: u32, views_: u32, words: u32, records: u32, side: u32, merge: u32, copies: u32,
                across: u32, deep: u32,
                rgb: In<[u8; 4]>[words], views: In<u32>[views_, 16], axes: In<[u32; 4]>[records], table: In<$e>[3, 256],
                out: Out<[$e; 2]>[units, planes = 3 * copies, pairs = side * side / 2] by [xz(4), all, stride(y)],
            )
            require {
                (2..=16).contains(&side), side % 2 == 0, merge == 1 || merge == 2, copies == 1 || copies == 2,
                views_ >= 1, records >= 1, across >= 1, deep >= 1, across * deep <= 224,
            }
            grid(units.div_ceil(4 * deep)) block(1, across, deep) bounds(224, 4) shared(STRIP_WINDOW * 12 + 768 * 4)
            {
                let of = Strips { source: Source { rgb, axes }, views, records, words, units, side, merge, deep };
                strips!(of, b, table, $e, out, [unit, _, pair] => [unit, pair], |column, [r, g, b]| {
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
            pub(super) fn $strip_pixels(
                b: impl Cooperative, units: u32, views_: u32, words: u32, records: u32, side: u32, merge: u32,
                across: u32, deep: u32,
                rgb: In<[u8; 4]>[words], views: In<u32>[views_, 16], axes: In<[u32; 4]>[records], table: In<$e>[3, 256],
                out: Out<[$e; 2]>[units, pairs = side * side / 2, 3] by [xz(4), stride(y), all],
            )
            require {
                (2..=16).contains(&side), side % 2 == 0, merge == 1 || merge == 2, views_ >= 1, records >= 1,
                across >= 1, deep >= 1, across * deep <= 224,
            }
            grid(units.div_ceil(4 * deep)) block(1, across, deep) bounds(224, 4) shared(STRIP_WINDOW * 12 + 768 * 4)
            {
                let of = Strips { source: Source { rgb, axes }, views, records, words, units, side, merge, deep };
                strips!(of, b, table, $e, out, [unit, pair, _] => [unit, pair], |column, [r, g, b]| {
                    let [first, middle, last] = column.cells::<2, 3>(0);
                    first.store([r[0], g[0]], hint::Streaming);
                    middle.store([b[0], r[1]], hint::Streaming);
                    last.store([g[1], b[1]], hint::Streaming);
                });
            }
        }

        kernel! {
            /// Makes units of any size, with one channel after another.
            pub(super) fn $tiles(
                b: impl Cooperative, units: u32, views_: u32, words: u32, records: u32, side: u32, merge: u32, copies: u32,
                window: u32,
                rgb: In<[u8; 4]>[words], views: In<u32>[views_, 16], axes: In<[u32; 4]>[records], table: In<$e>[3, 256],
                out: Out<$e>[units, planes = 3 * copies, side, side] by [block, all, z(4), y],
            )
            require {
                (1..=4096).contains(&side), (1..=16).contains(&merge), (1..=16).contains(&copies), views_ >= 1, records >= 1,
                (64..=8192).contains(&window),
            }
            grid(units, side.div_ceil(32), side.div_ceil(32)) block(1, 32, 8) bounds(256, 2) shared(window * 4)
            {
                let view = View::of(&b, views, records, words, b.idx().x);
                let (dim, idx) = (b.dim(), b.idx());
                let tile = part(view, merge, side, [dim.y, dim.z], [idx.y, idx.z]);
                let levels = levels(&mut b, Source { rgb, axes }, view, tile, window);
                b.each(&levels, move |t, levels| {
                    let words = levels.get(t);
                    out.for_each_column(t, |column| {
                        let [_, _, y, _] = column.at();
                        let word = words[y as usize % PIXELS];
                        for channel in 0..3 {
                            let v = number(t, table, view.present, word, channel);
                            for copy in 0..copies {
                                column.cell::<1>(channel * copies + copy).store(v, hint::Streaming);
                            }
                        }
                    });
                });
            }
        }

        kernel! {
            /// Makes units of any size, with the channels of a pixel side by side.
            pub(super) fn $pixels(
                b: impl Cooperative, units: u32, views_: u32, words: u32, records: u32, side: u32, merge: u32, window: u32,
                rgb: In<[u8; 4]>[words], views: In<u32>[views_, 16], axes: In<[u32; 4]>[records], table: In<$e>[3, 256],
                out: Out<[$e; 3]>[units, side, side] by [block, z(4), y],
            )
            require {
                (1..=4096).contains(&side), (1..=16).contains(&merge), views_ >= 1, records >= 1, (64..=8192).contains(&window),
            }
            grid(units, side.div_ceil(16), side.div_ceil(16)) block(1, 16, 4) bounds(64, 8) shared(window * 4)
            {
                let view = View::of(&b, views, records, words, b.idx().x);
                let (dim, idx) = (b.dim(), b.idx());
                let tile = part(view, merge, side, [dim.y, dim.z], [idx.y, idx.z]);
                let levels = levels(&mut b, Source { rgb, axes }, view, tile, window);
                b.each(&levels, move |t, levels| {
                    let words = levels.get(t);
                    out.for_each(t, |cell| {
                        let [_, y, _] = cell.at();
                        let word = words[y as usize % PIXELS];
                        cell.set([0, 1, 2].map(|channel| number(t, table, view.present, word, channel)));
                    });
                });
            }
        }
    )*};
}
kernels! {
    u16: strips_16 tiles_16 strip_pixels_16 pixels_16;
    u32: strips_32 tiles_32 strip_pixels_32 pixels_32;
}
