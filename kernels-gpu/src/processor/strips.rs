//! Strips: patches side by side, of a view that one step is enough for in both passes.
//!
//! ```text
//! two warps: what all warps need to know of the strip and of its units, to shared memory
//! barrier
//! for each row of units of the strip:
//!     each thread, for eight samples of a row: two words for each channel, to shared memory
//!     barrier
//!     each warp, for its units of the row: the levels
//!     barrier
//! ```
//!
//! Neighbors need the same samples two or three times, and eight rows of an image may lie in the
//! same banks of the memory that a warp loads from. So a block loads each sample once, and puts the
//! rows where eight of them are in different banks.
#![forbid(unsafe_code)]

use thalweg_simt::safe::{Block, Filled, Fresh, In, Reading, Team, Thread, Writing};
use thalweg_simt::{Bits, Simt};

use super::matrices::{Passes, Quad, Source, UNITS, WARPS, part, store};
use super::view::{Axis, STEP, View};

/// Eight neighbors of a row: two [quads](Quad).
pub(super) type Eight = [u64; 3];

/// The place of a unit: the first parts of its fragments across and down, the word of its first
/// sample in a row of the window, and whether the strip has the unit.
pub(super) type Place = [u32; 4];

/// The units of a block.
const ALL: u32 = UNITS * WARPS;
/// The places of the units of a block, and behind them a [`Plan`].
pub(super) const PLANS: u32 = ALL + 3;

/// The part of a strip's description that all warps need.
#[derive(Clone, Copy)]
struct Plan {
    /// 1 if the units have a view, or 0, and the end of these units.
    present: u32,
    last: u32,
    /// The units of a row that warps have, from one to another, and by how much those of the next
    /// row are further: 8 bits each.
    turns: u32,
    /// The quads of a row of the window, and of one of the strip, and the bytes of one of the
    /// image.
    pitch: u32,
    quads: u32,
    line: u32,
    /// The first byte of both rows of units.
    bytes: [u32; 2],
    rows: u32,
    /// The forms of the axes.
    across: u32,
    down: u32,
    /// An index times this is 2^32 times its row of eights, and a little more.
    inverse: u32,
}

impl Plan {
    #[inline(always)]
    fn words(self) -> [Place; 3] {
        let Self { present, last, turns, pitch, quads, line, bytes: [a, b], rows, across, down, inverse } = self;
        [[present, last, turns, pitch], [quads, line, a, b], [rows, across, down, inverse]]
    }

    #[inline(always)]
    fn new([a, b, c]: [Place; 3]) -> Self {
        let ([present, last, turns, pitch], [quads, line, first, second], [rows, across, down, inverse]) = (a, b, c);
        Self { present, last, turns, pitch, quads, line, bytes: [first, second], rows, across, down, inverse }
    }
}

/// The units of a block that are neighbors on the canvas.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    /// The first unit, and the first one behind it, as the launch counts them.
    first: u32,
    end: u32,
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
    fn new(view: View, unit: u32, end: u32, merge: u32) -> Self {
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
    /// Finds what all warps need to know of the strip that begins with `unit` and ends before
    /// `end`. `start` is the first unit of the block. The window has `len` quads.
    #[inline(always)]
    pub(super) fn planned<M: Team>(
        self,
        b: &Block<'k, M>,
        (views, counts, units): (In<'k, u32, 2>, [u32; 2], u32),
        [start, unit, end]: [u32; 3],
        len: u32,
        places: Fresh<'k, Place>,
    ) -> Filled<'k, Place> {
        // Two warps do this, since in all warps it would cost as much as another unit.
        b.fill(places, (), move |t, (), i| {
            let view = View::of(t, views, counts, units, unit);
            let strip = Strip::new(view, unit, end, self.merge);
            let left = self.first(t, view.across, strip.column, view.left) & !3;
            if i < ALL {
                self.near_place(t, view, strip, [start, i], left)
            } else {
                let [a, b, c] = self.plan(t, view, strip, [start, unit, end], [left, len]).words();
                match i - ALL {
                    0 => a,
                    1 => b,
                    _ => c,
                }
            }
        })
    }

    /// Stores the levels of a strip. Returns its end, and whether it is in a view.
    #[inline(always)]
    pub(super) fn strip<M: Team>(
        self,
        b: &mut Block<'k, M>,
        places: &Reading<'k, Place>,
        words: &Writing<'k, Quad>,
        mut window: Fresh<'k, Eight>,
    ) -> (Fresh<'k, Eight>, u32, bool) {
        let [present, ..] = places.uniform(b, ALL);
        let present = present != 0 && window.len() >= 3;
        let mut row = 0;
        while present && row < self.merge {
            // Loaded for each row: it would take registers below.
            let plan = Plan::new([0, 1, 2].map(|i| places.uniform(b, ALL + i)));
            let byte = if row == 0 { plan.bytes[0] } else { plan.bytes[1] };
            let filled = b.fill(window, (), move |t, (), i| {
                let y = t.mul_hi_u32(i, plan.inverse);
                let x = i.wrapping_sub(y.wrapping_mul(plan.pitch / 2));
                if y >= plan.rows.min(STEP) || 2 * x >= plan.quads {
                    return [0; 3];
                }
                let byte = byte.wrapping_add(y.wrapping_mul(plan.line)).wrapping_add(24 * x);
                let [low, high] = self.eight(t, byte);
                let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
                [word(low[0], low[1]), word(low[2], high[0]), word(high[1], high[2])]
            });
            let reading = b.sync(filled.read());
            let [from, to, further, _] = plan.turns.to_le_bytes().map(u32::from);
            let mut turn = from + further * row;
            while turn < to + further * row {
                self.near(b, plan, turn, words, &reading, places);
                turn += 1;
            }
            window = b.sync(reading.renew());
            row += 1;
        }
        let [_, last, ..] = places.uniform(b, ALL);
        (window, last, present)
    }

    /// Makes the plan of a strip.
    #[inline(always)]
    fn plan<C: Simt>(
        self,
        t: &Thread<'k, C>,
        view: View,
        strip: Strip,
        [start, unit, end]: [u32; 3],
        [left, len]: [u32; 2],
    ) -> Plan {
        let last = strip.column.wrapping_add(strip.columns).wrapping_sub(1);
        let right = self.first(t, view.across, last, view.left) & !3;
        // The last unit has the samples of a step.
        let quads = (right.saturating_sub(left) + STEP) / 4;
        let pitch = pitch(quads.min(len));
        // A warp has a block of 2 x 2, or every eighth unit.
        let offset = |unit: u32| unit.wrapping_sub(start) / WARPS;
        let turns = match self.merge {
            2 => [0, 2, 2, 0],
            _ => [offset(strip.first), offset(strip.end - 1) + 1, 0, 0].map(|turn| turn.min(UNITS) as u8),
        };
        let line = 3u32.wrapping_mul(view.width);
        let bytes = [0, self.merge - 1].map(|row| {
            let top = self.first(t, view.down, strip.row.wrapping_add(row), view.top);
            view.start.wrapping_add(top.wrapping_mul(line)).wrapping_add(3u32.wrapping_mul(left))
        });
        Plan {
            present: view.present.into(),
            last: if view.present { strip.end } else { view.end(unit, end) },
            turns: u32::from_le_bytes(turns),
            pitch,
            quads,
            line,
            bytes,
            rows: view.rows,
            across: view.across.form(),
            down: view.down.form(),
            inverse: u32::MAX / (pitch / 2) + 1,
        }
    }

    /// Finds the place of a unit: `i` counts those of a warp before those of the next one.
    #[inline(always)]
    fn near_place<C: Simt>(
        self,
        t: &Thread<'k, C>,
        view: View,
        strip: Strip,
        [start, i]: [u32; 2],
        left: u32,
    ) -> Place {
        let unit = start + if self.merge == 2 { i } else { WARPS * (i % UNITS) + i / UNITS };
        let i = unit.wrapping_sub(strip.start);
        let [row, column] = if self.merge == 2 { [i >> 1 & 1, i >> 1 & !1 | i & 1] } else { [0, i] };
        let (row, column) = (strip.row.wrapping_add(row), strip.column.wrapping_add(column));
        let first = self.first(t, view.across, column, view.left) & !3;
        let part = |first: u32, i: u32| part(first, i, 2, 0);
        let present = (strip.first..strip.end).contains(&unit).into();
        [part(view.across_fragments, column), part(view.down_fragments, row), first.wrapping_sub(left) / 4 * 3, present]
    }

    /// Stores the levels of the units number `turn` of all warps.
    #[inline(always)]
    fn near<M: Team>(
        self,
        b: &mut Block<'k, M>,
        plan: Plan,
        turn: u32,
        words: &Writing<'k, Quad>,
        reading: &Reading<'k, Eight>,
        places: &Reading<'k, Place>,
    ) {
        let pitch = 3 * plan.pitch;
        let place =
            move |t: &Thread<'k, M::Cx>, places: &Reading<'k, Place>| places.get(t, UNITS * t.thread_idx().z + turn);
        let first = |b: &Block<'k, M>, down: bool| {
            b.each(places, move |t, places| place(t, places)[usize::from(down)].wrapping_add(t.thread_idx().y))
        };
        let at = b.each(places, move |t, places| {
            let lane = t.thread_idx().y;
            place(t, places)[2].wrapping_add(lane / 4 * pitch).wrapping_add(lane % 4 * 3)
        });
        let pixels = |b: &Block<'k, M>, top: u32, _: u32| {
            b.each((reading, &at), move |t, (reading, at)| {
                let at = at.get(t).wrapping_add(top * pitch);
                // Two quads, four quads apart.
                let [a, b, c, d, e, f] = reading.nearest_words(t, at, [0, 1, 2, 12, 13, 14]);
                [[a, d], [b, e], [c, f]]
            })
        };
        let [across, down] = [plan.across, plan.down].map(|form| Axis::new(0, 0, [0, form]));
        let of = Passes { across, down, steps: 1, rows: plan.rows };
        let levels = self.levels::<M, false, true>(b, of, first, pixels);
        b.each((words, places, &levels), move |t, (words, places, levels)| {
            if place(t, places)[3] != 0 {
                store::<M>(t, words, turn, levels.get(t));
            }
        });
    }
}
