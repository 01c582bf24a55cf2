//! The levels of the pixels of a block: two passes with 8-bit levels between them.
//!
//! ```text
//! for each part of the samples of the second pass that fits into the window:
//!     each thread, for each word of the window: the sum over the samples of the first pass
//!     barrier
//!     each thread, for its pixels: add what the part has of the sum of the second pass
//!     barrier
//! ```
//!
//! The first pass is the one across, unless the view says otherwise. A row of the window has the
//! outputs of the first pass for one sample of the second.
#![forbid(unsafe_code)]

use thalweg_simt::safe::{Block, In, Local, Reading, Team, Thread};
use thalweg_simt::{Bits, Simt};

use super::view::{Axis, Records, View};

/// The most pixels of a thread.
pub(super) const PIXELS: usize = 4;
/// The most outputs of the first pass that a block needs.
pub(super) const ACROSS: u32 = 32;

/// The tables and pixels that a launch reads.
#[derive(Clone, Copy)]
pub(super) struct Source<'k> {
    pub(super) rgb: In<'k, [u8; 4], 1>,
    pub(super) axes: Records<'k>,
}

/// The pixels of a block on the canvas: the thread at y and z has [`PIXELS`] rows of column y, from
/// row `z * PIXELS` on.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) top: u32,
    pub(super) left: u32,
    pub(super) height: u32,
    pub(super) width: u32,
}

impl Tile {
    /// Returns row and column of pixel `i` of a thread.
    #[inline(always)]
    fn pixel(self, t: impl Simt, i: u32) -> [u32; 2] {
        let at = t.thread_idx();
        [self.top.wrapping_add(at.z * PIXELS as u32 + i), self.left.wrapping_add(at.y)]
    }
}

/// The sums of red, green and blue.
pub(super) type Sums = [i32; 3];

#[inline(always)]
fn add(sums: Sums, weight: i32, pixel: u32) -> Sums {
    let one = |sum: i32, level: u32| sum.wrapping_add(weight.wrapping_mul(level as i32));
    [one(sums[0], pixel & 255), one(sums[1], pixel >> 8 & 255), one(sums[2], pixel >> 16 & 255)]
}

/// Rounds the sums to levels, one in each byte.
#[inline(always)]
pub(super) fn word(t: impl Bits, sums: Sums, shift: u32) -> u32 {
    let [r, g, b] = sums.map(|sum| sum >> shift);
    t.clamped_bytes(r, g, t.clamped_bytes(b, 0, 0))
}

/// The part of the resized image that a block needs, along an axis.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) axis: Axis,
    /// The place of the resized image on the canvas.
    pub(super) at: i32,
    pub(super) first: u32,
    pub(super) end: u32,
}

impl Range {
    #[inline(always)]
    pub(super) fn new(axis: Axis, at: i32, from: u32, len: u32) -> Self {
        let inside = |place: u32| (i64::from(place) - i64::from(at)).clamp(0, i64::from(axis.outputs)) as u32;
        Self { axis, at, first: inside(from), end: inside(from.saturating_add(len)) }
    }

    /// Returns the output at a place of the canvas, if the block needs it.
    #[inline(always)]
    pub(super) fn output(self, place: u32) -> Option<u32> {
        let output = place.wrapping_sub(self.at as u32);
        (self.first..self.end).contains(&output).then_some(output)
    }
}

/// The first pass of a block.
#[derive(Clone, Copy)]
struct First {
    view: View,
    range: Range,
    /// The outputs, and 2^20 by them, rounded up: `i * inverse >> 20` is `i / width`, for `i` below
    /// 2^15.
    width: u32,
    inverse: u32,
}

impl First {
    /// Computes the output `i` of the window, whose first row is that of `sample`.
    #[inline(always)]
    fn level<'k, C: Simt>(self, t: &Thread<'k, C>, source: Source<'k>, sample: u32, i: u32) -> u32 {
        let row = i.wrapping_mul(self.inverse) >> 20;
        let output = self.range.first + (i - row * self.width);
        let (axis, sample) = (self.range.axis, sample + row);
        let [first, end] = axis.bounds(t, source.axes, output);
        let half = [axis.half(); 3];
        let sums = if self.view.down_first {
            self.column(t, source, [first, end], sample, output, half)
        } else {
            self.row(t, source, [first, end], sample, output, half)
        };
        word(**t, sums, axis.shift)
    }

    /// Returns the byte of a pixel of the image. It is below 2^32, as the image is in the buffer.
    #[inline(always)]
    fn byte(self, row: u32, column: u32) -> u32 {
        self.view.start.wrapping_add(3u32.wrapping_mul(row.wrapping_mul(self.view.width).wrapping_add(column)))
    }

    /// Adds neighbors in a row: three words are four pixels.
    #[inline(always)]
    fn row<'k, C: Simt>(
        self,
        t: &Thread<'k, C>,
        source: Source<'k>,
        [first, end]: [u32; 2],
        row: u32,
        output: u32,
        mut sums: Sums,
    ) -> Sums {
        let load = |at: u32| u32::from_le_bytes(source.rgb.try_get(t, [at]).unwrap_or([0; 4]));
        let byte = self.byte(row, first);
        let (mut at, mut bits) = (byte / 4 + 1, byte % 4 * 8);
        let (mut low, mut high) = (load(at - 1), load(at));
        for i in 0..end - first {
            let weight = self.range.axis.weight(t, source.axes, output, i);
            sums = add(sums, weight, t.funnel_shift_right(low, high, bits));
            bits += 24;
            if bits >= 32 {
                bits -= 32;
                at += 1;
                (low, high) = (high, load(at));
            }
        }
        sums
    }

    /// Adds neighbors in a column.
    #[inline(always)]
    fn column<'k, C: Simt>(
        self,
        t: &Thread<'k, C>,
        source: Source<'k>,
        [first, end]: [u32; 2],
        column: u32,
        output: u32,
        mut sums: Sums,
    ) -> Sums {
        let load = |at: u32| u32::from_le_bytes(source.rgb.try_get(t, [at]).unwrap_or([0; 4]));
        for row in first..end {
            let weight = self.range.axis.weight(t, source.axes, output, row - first);
            let byte = self.byte(row, column);
            let (low, high) = (load(byte / 4), load(byte / 4 + 1));
            sums = add(sums, weight, t.funnel_shift_right(low, high, byte % 4 * 8));
        }
        sums
    }
}

/// The second pass of a block.
#[derive(Clone, Copy)]
struct Second {
    tile: Tile,
    down_first: bool,
    /// The range of the first pass, and that of this one.
    ranges: [Range; 2],
    width: u32,
}

impl Second {
    /// Returns the outputs of the first and of the second pass that pixel `i` of a thread needs.
    #[inline(always)]
    fn outputs(self, t: impl Simt, i: u32) -> Option<[u32; 2]> {
        let [y, x] = self.tile.pixel(t, i);
        let [first, second] = if self.down_first { [y, x] } else { [x, y] };
        Some([self.ranges[0].output(first)?, self.ranges[1].output(second)?])
    }

    /// Adds what the window has of the samples from `sample` to `end`.
    #[inline(always)]
    fn add<'k, M: Team>(
        self,
        t: &Thread<'k, M::Cx>,
        axes: Records<'k>,
        window: &Reading<'k, u32>,
        [sample, end]: [u32; 2],
        i: u32,
        mut sums: Sums,
    ) -> Sums {
        let Some([column, output]) = self.outputs(**t, i) else { return sums };
        let axis = self.ranges[1].axis;
        let [first, last] = axis.bounds(t, axes, output);
        let (from, to) = (first.max(sample), last.min(end));
        let mut place = from.wrapping_sub(sample).wrapping_mul(self.width) + (column - self.ranges[0].first);
        for i in from..to {
            let weight = axis.weight(t, axes, output, i - first);
            sums = add(sums, weight, window.get(t, place));
            place += self.width;
        }
        sums
    }
}

/// Computes the levels of the pixels of each thread, one channel in each byte. The window has `len`
/// words.
#[inline(always)]
pub(super) fn levels<'k, M: Team>(
    b: &mut Block<'k, M>,
    source: Source<'k>,
    view: View,
    tile: Tile,
    len: u32,
) -> Local<'k, M, [u32; PIXELS]> {
    let down = Range::new(view.down, view.top, tile.top, tile.height);
    let across = Range::new(view.across, view.left, tile.left, tile.width);
    let ranges = if view.down_first { [down, across] } else { [across, down] };
    let [range, second] = ranges;
    let width = (range.end - range.first).min(ACROSS);
    let first = First { view, range, width, inverse: (1u32 << 20).div_ceil(width.max(1)) };
    let pass = Second { tile, down_first: view.down_first, ranges, width };

    let half = second.axis.half();
    let sums = b.each((), move |_, ()| [[half; 3]; PIXELS]);
    let rows = len / width.max(1);
    let mut window = b.shared::<u32>(len);
    if view.present && width > 0 && second.first < second.end && rows > 0 {
        let [mut sample, _] = second.axis.bounds(b, source.axes, second.first);
        let [_, last] = second.axis.bounds(b, source.axes, second.end - 1);
        while sample < last {
            let end = last.min(sample.saturating_add(rows));
            let used = (end - sample) * width;
            let filled =
                b.fill(window, (), move |t, (), i| if i < used { first.level(t, source, sample, i) } else { 0 });
            let reading = b.sync(filled.read());
            b.each((&reading, &sums), move |t, (reading, sums)| {
                let [a, b, c, d] = sums.get(t);
                let add = |i, sums| pass.add::<M>(t, source.axes, reading, [sample, end], i, sums);
                sums.set(t, [add(0, a), add(1, b), add(2, c), add(3, d)]);
            });
            window = b.sync(reading.renew());
            sample = end;
        }
    }
    b.each(&sums, move |t, sums| {
        let [a, b, c, d] = sums.get(t);
        let shift = pass.ranges[1].axis.shift;
        let one = |i, sums| if pass.outputs(**t, i).is_some() { word(**t, sums, shift) } else { 0 };
        [one(0, a), one(1, b), one(2, c), one(3, d)]
    })
}
