//! Strips: patches side by side, of a view that one step is enough for in both passes.
//!
//! ```text
//! for each row of units of the strip:
//!     each thread, for four samples of a row: a word for each channel, to shared memory
//!     barrier
//!     each warp, for its units of the row: the levels
//!     barrier
//! ```
//!
//! Neighbors need the same samples two or three times, and eight rows of an image may lie in the
//! same banks of the memory that a warp loads from. So a block loads each sample once, and puts the
//! rows where eight of them are in different banks.
#![forbid(unsafe_code)]

use thalweg_simt::safe::{Block, Fresh, Reading, Team, Thread, Writing};
use thalweg_simt::{Bits, Simt};

use super::matrices::{Quad, Source, UNITS, WARPS, channels, part, store};
use super::view::{STEP, View};

/// The units of a block that are neighbors on the canvas.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    /// The first unit, and the first one behind it, as the launch counts them.
    first: u32,
    pub(super) end: u32,
    /// The first unit of the first block of units.
    start: u32,
    /// The row and the column of the first unit of the first block, and the columns.
    row: u32,
    column: u32,
    columns: u32,
}

impl Strip {
    /// Returns the strip that begins with `unit`, and ends before `end`.
    #[inline(always)]
    pub(super) fn new(view: View, unit: u32, end: u32, merge: u32) -> Self {
        // Units come in blocks of 1, or of 2 x 2.
        let shift = merge - 1;
        let origin = unit.wrapping_sub(view.unit);
        let (block, blocks) = (view.unit >> (2 * shift), (view.columns >> shift).max(1));
        let (above, left) = (block / blocks, block % blocks);
        let units = view.units.min(above.saturating_add(1).saturating_mul(blocks) << (2 * shift));
        let end = end.min(origin.saturating_add(units)).max(unit + 1);
        let start = origin.wrapping_add(block << (2 * shift));
        let columns = end.wrapping_sub(start).wrapping_add(3 * shift) >> (2 * shift) << shift;
        Self { first: unit, end, start, row: above << shift, column: left << shift, columns }
    }
}

/// Returns the warp that makes a unit of a block, and which of its units it is.
#[inline(always)]
pub(super) fn maker(unit: u32, merge: u32) -> [u32; 2] {
    // A warp has a block of 2 x 2, or every eighth unit.
    if merge == 2 { [unit / UNITS, unit % UNITS] } else { [unit % WARPS, unit / WARPS] }
}

/// The quads of a row: as many as there are, or a few more. Eight rows are then in different banks.
#[inline(always)]
pub(super) fn pitch(quads: u32) -> u32 {
    // An odd multiple of 4.
    (quads.div_ceil(4) | 1) * 4
}

impl<'k> Source<'k> {
    /// Stores the levels of a strip of a view. `start` is the first unit of the block.
    #[inline(always)]
    pub(super) fn strip<M: Team>(
        self,
        b: &mut Block<'k, M>,
        view: View,
        strip: Strip,
        start: u32,
        words: &Writing<'k, Quad>,
        mut window: Fresh<'k, Quad>,
    ) -> Fresh<'k, Quad> {
        let (merge, len) = (self.merge, window.len());
        if len < 5 {
            return window;
        }
        let last = strip.column.wrapping_add(strip.columns).wrapping_sub(1);
        let left = self.first(b, view.across, strip.column, view.left) & !3;
        let right = self.first(b, view.across, last, view.left) & !3;
        // The last unit has the samples of a step.
        let quads = (right.saturating_sub(left) + STEP) / 4;
        let pitch = pitch(quads.min(len));
        // An index times this is 2^32 times its row, and a little more.
        let inverse = u32::MAX / pitch + 1;
        for row in 0..merge {
            let top = self.first(b, view.down, strip.row.wrapping_add(row), view.top);
            let line = 3u32.wrapping_mul(view.width);
            let byte = view.start.wrapping_add(top.wrapping_mul(line)).wrapping_add(3u32.wrapping_mul(left));
            let all = view.rows.min(STEP);
            let filled = b.fill(window, (), move |t, (), i| {
                let y = t.mul_hi_u32(i, inverse);
                let x = i.wrapping_sub(y.wrapping_mul(pitch));
                if y >= all || x >= quads {
                    return [0; 3];
                }
                let byte = byte.wrapping_add(y.wrapping_mul(line)).wrapping_add(12 * x);
                let words = [0, 1, 2, 3].map(|i| u32::from_le_bytes(self.rgb.nearest(t, (byte / 4).wrapping_add(i))));
                channels(**t, words, byte % 4 * 8)
            });
            let reading = b.sync(filled.read());
            // The units of the row that warps have, from one to another.
            let offset = |unit: u32| unit.wrapping_sub(start);
            let turns = match merge {
                2 => [2 * row, 2 * row + 2],
                _ => [offset(strip.first) / WARPS, offset(strip.end - 1) / WARPS + 1],
            };
            let mut turn = turns[0];
            while turn < turns[1].min(UNITS) {
                self.near(b, view, strip, [start, turn, left, pitch], words, &reading);
                turn += 1;
            }
            window = b.sync(reading.renew());
        }
        window
    }

    /// Stores the levels of the units number `turn` of all warps.
    #[inline(always)]
    fn near<M: Team>(
        self,
        b: &mut Block<'k, M>,
        view: View,
        strip: Strip,
        [start, turn, left, pitch]: [u32; 4],
        words: &Writing<'k, Quad>,
        reading: &Reading<'k, Quad>,
    ) {
        let (merge, last) = (self.merge, reading.len() - 5);
        let own = move |z: u32| if merge == 2 { start + UNITS * z + turn } else { start + WARPS * turn + z };
        // The row and the column of a unit, counted from those of the strip.
        let place = move |z: u32| {
            let i = own(z).wrapping_sub(strip.start);
            if merge == 2 { [i >> 1 & 1, i >> 1 & !1 | i & 1] } else { [0, i] }
        };
        let first = |b: &Block<'k, M>, down: bool| {
            b.each((), move |t, ()| {
                let ([row, column], lane) = (place(t.thread_idx().z), t.thread_idx().y);
                match down {
                    true => part(view.down_fragments, strip.row.wrapping_add(row), 2, lane),
                    false => part(view.across_fragments, strip.column.wrapping_add(column), 2, lane),
                }
            })
        };
        let at = b.each((), move |t: &Thread<'k, M::Cx>, ()| {
            let ([_, column], lane) = (place(t.thread_idx().z), t.thread_idx().y);
            let first = self.first(t, view.across, strip.column.wrapping_add(column), view.left) & !3;
            (first.wrapping_sub(left) / 4).wrapping_add(lane / 4 * pitch).wrapping_add(lane % 4)
        });
        let pixels = |b: &Block<'k, M>, top: u32, _: u32| {
            b.each((reading, &at), move |t, (reading, at)| {
                let at = at.get(t).wrapping_add(top * pitch).min(last);
                let [a, b] = [at, at + 4].map(|at| reading.get(t, at));
                [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]]]
            })
        };
        let levels = self.levels::<M, false, true>(b, view, first, pixels);
        b.each((words, &levels), move |t, (words, levels)| {
            if (strip.first..strip.end).contains(&own(t.thread_idx().z)) {
                store::<M>(t, words, turn, levels.get(t));
            }
        });
    }
}
