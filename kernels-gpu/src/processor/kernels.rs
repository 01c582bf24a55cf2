//! The kernels: each gives the levels of a block their numbers and stores them.
#![forbid(unsafe_code)]

use thalweg_simt::safe::{In, Item, Thread};
use thalweg_simt::{Element, Simt, hint, kernel};

use super::levels::{PIXELS, Source, Tile, levels};
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

/// Makes the kernels for a type of elements.
macro_rules! kernels {
    ($($e:ident: $tiles:ident $pixels:ident;)*) => {$(
        kernel! {
            /// Makes units of any size, with one channel after another.
            pub(super) fn $tiles(
                b: impl Cooperative, units: u32, views_: u32, words: u32, records: u32, side: u32, merge: u32, copies: u32,
                window: u32,
                rgb: In<[u8; 4]>[words], views: In<u32>[views_, 18], axes: In<[u32; 4]>[records], table: In<$e>[3, 256],
                out: Out<$e>[units, planes = 3 * copies, side, side] by [block, all, z(4), y],
            )
            require {
                (1..=4096).contains(&side), (1..=16).contains(&merge), (1..=16).contains(&copies), views_ >= 1, records >= 1,
                (64..=8192).contains(&window),
            }
            grid(units, side.div_ceil(32), side.div_ceil(32)) block(1, 32, 8) bounds(256, 2) shared(window * 4)
            {
                let view = View::of(&b, views, [records, words], units, b.idx().x);
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
                rgb: In<[u8; 4]>[words], views: In<u32>[views_, 18], axes: In<[u32; 4]>[records], table: In<$e>[3, 256],
                out: Out<[$e; 3]>[units, side, side] by [block, z(4), y],
            )
            require {
                (1..=4096).contains(&side), (1..=16).contains(&merge), views_ >= 1, records >= 1, (64..=8192).contains(&window),
            }
            grid(units, side.div_ceil(16), side.div_ceil(16)) block(1, 16, 4) bounds(64, 8) shared(window * 4)
            {
                let view = View::of(&b, views, [records, words], units, b.idx().x);
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
    u16: tiles_16 pixels_16;
    u32: tiles_32 pixels_32;
}
