//! Strips: units that are neighbors on the canvas, made by one block.
//!
//! ```text
//! for each band of rows of the strip:
//!     each thread, for four samples of a column: the pass across
//!     barrier
//!     each thread, for its pairs of pixels in the band: the pass down
//!     barrier
//! ```
//!
//! Both passes multiply four levels at once: a weight of 24 bits is a number of 16 bits and a byte
//! (`dp2a`, `dp4a`), and a word has the levels of four neighbors in one channel. Between the
//! passes, an element of shared memory has such a word for each channel.
#![forbid(unsafe_code)]

use thalweg_simt::safe::{Block, Filled, Fresh, Team, Thread};
use thalweg_simt::{Bits, Simt};

use super::levels::{Range, Source, Sums, word};
use super::view::{Axis, View};

/// The levels of four samples of a column: a word for each channel.
pub(super) type Quad = [u32; 3];
/// The elements of the shared memory of a block: a power of two, so that a mask is all that an
/// index needs.
pub const STRIP_WINDOW: u32 = 2048;

/// The units of a block that are neighbors on the canvas, in a row of blocks of `merge` x `merge`.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    pub(super) view: View,
    /// The first unit of the strip, and the first one behind it, as the launch counts them.
    pub(super) first: u32,
    pub(super) end: u32,
    /// The first unit of the first block of units.
    start: u32,
    /// Units come in blocks of 1, or of 2 x 2.
    merge: u32,
    side: u32,
    top: u32,
    left: u32,
    pub(super) height: u32,
    width: u32,
}

impl Strip {
    /// Returns the strip that begins with `unit`, and ends before `end`. `merge` is 1 or 2.
    #[inline(always)]
    pub(super) fn new(view: View, unit: u32, end: u32, side: u32, merge: u32) -> Self {
        let m2 = merge * merge;
        let origin = unit.wrapping_sub(view.unit);
        let (block, per_row) = (view.unit / m2, (view.columns / merge).max(1));
        let (row, column) = (block / per_row, block % per_row);
        // The units of the view in this row, or those that no view has.
        let units = if view.present {
            view.units.min(row.saturating_add(1).saturating_mul(per_row.saturating_mul(m2)))
        } else {
            view.next
        };
        let end = end.min(origin.saturating_add(units)).max(unit + 1);
        let start = origin.wrapping_add(block * m2);
        let blocks = end.wrapping_sub(start).div_ceil(m2);
        let extent = side * merge;
        Self {
            view,
            first: unit,
            end,
            start,
            merge,
            side,
            top: row.wrapping_mul(extent),
            left: column.wrapping_mul(extent),
            height: extent,
            width: blocks.wrapping_mul(extent),
        }
    }

    /// Returns row and column of a pixel of a unit, in the strip.
    #[inline(always)]
    pub(super) fn place(self, unit: u32, [row, column]: [u32; 2]) -> [u32; 2] {
        let i = unit.wrapping_sub(self.start);
        // Of blocks of 2 x 2 units, bit 1 is the row.
        let (down, right) = if self.merge == 2 { (i >> 1 & 1, i >> 1 & !1 | i & 1) } else { (0, i) };
        [down * self.side + row, right.wrapping_mul(self.side).wrapping_add(column)]
    }
}

/// Returns the first sample of an output and the end of its samples. What is behind the image, a
/// load finds out.
#[inline(always)]
fn samples([_, _, _, samples]: [u32; 4]) -> [u32; 2] {
    let first = samples & 0xffff;
    [first, first + (samples >> 16)]
}

/// Four pixels of a row as a word for each channel.
#[inline(always)]
fn channels(t: impl Bits, [a, b, c, d]: [u32; 4], bits: u32) -> Quad {
    let p = t.funnel_shift_right(a, b, bits);
    let q = t.funnel_shift_right(b, c, bits);
    let s = t.funnel_shift_right(c, d, bits);
    [
        t.byte_perm(t.byte_perm(p, q, 0x0630), s, 0x5210),
        t.byte_perm(t.byte_perm(p, q, 0x0741), s, 0x6210),
        t.byte_perm(t.byte_perm(p, q, 0x0052), s, 0x7410),
    ]
}

/// The outputs of an axis that a band needs. The first one is the one that `place` 0 is.
#[derive(Clone, Copy)]
struct Outputs {
    axis: Axis,
    /// The first record.
    start: u32,
    count: u32,
    /// The number that makes an output of a row or column of the strip.
    offset: u32,
}

impl Outputs {
    /// Returns the outputs of a range, for rows or columns that count from `from` of the canvas on.
    #[inline(always)]
    fn new(range: Range, from: u32) -> Self {
        Self {
            axis: range.axis,
            start: range.axis.place(range.first),
            count: range.end - range.first,
            offset: from.wrapping_sub(range.at as u32).wrapping_sub(range.first),
        }
    }

    /// Returns the first record of an output.
    #[inline(always)]
    fn records(self, output: u32) -> u32 {
        self.start.wrapping_add(output.wrapping_mul(self.axis.groups))
    }

    /// Adds the products of four samples of each channel and the weights of a record.
    #[inline(always)]
    fn add(self, t: impl Bits, [low, high, bytes, _]: [u32; 4], quad: Quad, sums: Sums) -> Sums {
        let one = |v: u32, sum: i32| {
            let halves = t.dp2a_hi_i32_u32(high, v, t.dp2a_lo_i32_u32(low, v, 0));
            t.dp4a_u32(bytes, v, halves.wrapping_mul(self.axis.unit).wrapping_add(sum) as u32) as i32
        };
        [one(quad[0], sums[0]), one(quad[1], sums[1]), one(quad[2], sums[2])]
    }
}

/// A band of rows of a strip.
#[derive(Clone, Copy)]
pub(super) struct Band {
    across: Outputs,
    down: Outputs,
    /// 2^24 by the number of columns, rounded up: `i * inverse >> 24` is the row of element `i` of
    /// the window, if that is below 256.
    inverse: u32,
    /// The elements of the window that are computed.
    used: u32,
    /// The first sample of the pass down.
    sample: u32,
    /// The first byte of its row, and the bytes of a row.
    line: u32,
    pitch: u32,
}

impl Band {
    /// Returns the band of `rows` rows from row `from` of the strip on.
    #[inline(always)]
    pub(super) fn new<'k, M: Team>(b: &Block<'k, M>, source: Source<'k>, strip: Strip, from: u32, rows: u32) -> Self {
        let view = strip.view;
        let top = strip.top.wrapping_add(from);
        let across = Outputs::new(Range::new(view.across, view.left, strip.left, strip.width), strip.left);
        let range = Range::new(view.down, view.top, top, rows.min(strip.height - from));
        let down = Outputs::new(range, top);
        let (mut sample, mut used) = (0, 0);
        if view.present && down.count > 0 {
            [sample, _] = samples(source.axes.nearest(b, down.start));
            let [_, last] = samples(source.axes.nearest(b, down.records(down.count - 1)));
            used = last.saturating_sub(sample).div_ceil(4).min(255) * across.count;
        }
        let pitch = 3u32.wrapping_mul(view.width);
        Self {
            across,
            down,
            inverse: (1u32 << 24).div_ceil(across.count.max(1)),
            used,
            sample,
            line: view.start.wrapping_add(sample.wrapping_mul(pitch)),
            pitch,
        }
    }

    /// Computes the pass across for all samples of the band.
    #[inline(always)]
    pub(super) fn across<'k, M: Team>(
        self,
        b: &mut Block<'k, M>,
        source: Source<'k>,
        window: Fresh<'k, Quad>,
    ) -> Filled<'k, Quad> {
        b.fill(window, (), move |t, (), i| if i < self.used { self.quad(t, source, i) } else { [0; 3] })
    }

    /// Computes the outputs of four rows of a column.
    #[inline(always)]
    fn quad<'k, C: Simt>(self, t: &Thread<'k, C>, source: Source<'k>, i: u32) -> Quad {
        let (of, quad) = (self.across, i.wrapping_mul(self.inverse) >> 24);
        let place = of.records(i.wrapping_sub(quad.wrapping_mul(of.count)));
        let record = source.axes.nearest(t, place);
        let [first, end] = samples(record).map(|sample| 3 * sample);
        let line = self.line.wrapping_add(quad.wrapping_mul(4).wrapping_mul(self.pitch));
        // Rows behind the image have weights of 0.
        let rows = |line: u32, above: Quad| {
            let lines = [line, line.wrapping_add(self.pitch)];
            let add = |record: [u32; 4], first: u32, [a, b]: [Sums; 2]| {
                let one = |line: u32, sums: Sums| {
                    let byte = line.wrapping_add(first);
                    of.add(**t, record, channels(**t, words(t, source, byte / 4), byte % 4 * 8), sums)
                };
                [one(lines[0], a), one(lines[1], b)]
            };
            // Most outputs have one record: it stands before the loop.
            let mut sums = add(record, first, [[of.axis.half(); 3]; 2]);
            let (mut place, mut first) = (place, first + 12);
            while first < end {
                place = place.wrapping_add(1);
                sums = add(source.axes.nearest(t, place), first, sums);
                first += 12;
            }
            let [a, b] = sums;
            [0, 1, 2].map(|i| t.clamped_bytes(a[i] >> of.axis.shift, b[i] >> of.axis.shift, above[i]))
        };
        rows(line, rows(line.wrapping_add(self.pitch).wrapping_add(self.pitch), [0; 3]))
    }

    /// Computes the levels of two neighbors of the canvas: in a row of the band, and a column of
    /// the strip. `get` loads an element of the window.
    #[inline(always)]
    pub(super) fn pair<'k, C: Simt>(
        self,
        t: &Thread<'k, C>,
        source: Source<'k>,
        [row, column]: [u32; 2],
        get: impl Fn(u32) -> Quad,
    ) -> [u32; 2] {
        let of = self.down;
        let row = row.wrapping_add(of.offset);
        if row >= of.count {
            return [0; 2];
        }
        let (first, width) = (column.wrapping_add(self.across.offset), self.across.count);
        let columns = [first, first.wrapping_add(1)];
        let mut place = of.records(row);
        let record = source.axes.nearest(t, place);
        let [first, end] = samples(record);
        let mut sample = first.wrapping_sub(self.sample) & 0xffff;
        let end = sample + (end - first);
        let bits = sample % 4 * 8;
        // A column beside the resized image gets levels as well, which are replaced below.
        let line = (sample / 4).wrapping_mul(width);
        let mut at = columns.map(|column| line.wrapping_add(column));
        let mut low = at.map(&get);
        let mut next = |record: [u32; 4], [a, b]: [Sums; 2]| {
            at = at.map(|at| at.wrapping_add(width));
            let high = at.map(&get);
            let one = |i: usize, sums: Sums| {
                let channel = |c: usize| t.funnel_shift_right(low[i][c], high[i][c], bits);
                of.add(**t, record, [channel(0), channel(1), channel(2)], sums)
            };
            let sums = [one(0, a), one(1, b)];
            low = high;
            sums
        };
        let mut sums = next(record, [[of.axis.half(); 3]; 2]);
        sample += 4;
        while sample < end {
            place = place.wrapping_add(1);
            sums = next(source.axes.nearest(t, place), sums);
            sample += 4;
        }
        let level = |i: usize| if columns[i] < width { word(**t, sums[i], of.axis.shift) } else { 0 };
        [level(0), level(1)]
    }
}

/// Loads four words of the pixels. In place of those behind the end it loads the last one: there,
/// all weights are 0.
#[inline(always)]
fn words<'k, C: Simt>(t: &Thread<'k, C>, source: Source<'k>, at: u32) -> [u32; 4] {
    [0, 1, 2, 3].map(|i| u32::from_le_bytes(source.rgb.nearest(t, at.wrapping_add(i))))
}
