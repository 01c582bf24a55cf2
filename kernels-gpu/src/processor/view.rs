//! Views of images, as the host describes them.
#![forbid(unsafe_code)]

use thalweg_simt::safe::{In, Witness};

/// The words of a view.
///
/// | word | what it is |
/// |---|---|
/// | 0 | the first unit; views are in the order of their units |
/// | 1 | the number of its units; those from there to the next view are zero |
/// | 2 | the units of a row of the canvas |
/// | 3 | the first byte of the image in `rgb` |
/// | 4, 5 | the rows and columns of the image |
/// | 6, 7 | those of the resized image |
/// | 8, 9 | its place on the canvas, row and column, with signs |
/// | 10, 11 | the axis down: its first record in `axes`; the records of an output, the shift from bit 16 on, `unit - 1` from bit 24 on |
/// | 12, 13 | the axis across |
/// | 14 | [`DOWN_FIRST`], or 0 |
/// | 15, 16 | the first fragment of the pass across, and of the pass down, if there are fragments |
/// | 17 | the steps of the pass across, and from bit 16 on the rows that the pass down of a unit needs |
///
/// An axis has as many records of [`RECORD_WORDS`] words for each output, and all of its outputs as
/// many. A record has the weights of four samples: four 16-bit numbers with signs, times
/// `unit`, in words 0 and 1, and four bytes that are added to them in word 2. Word 3 is the first
/// sample of the output, and from bit 16 on the number of its samples. Weights behind the last
/// sample are 0.
pub const VIEW_WORDS: u32 = 18;
/// The words that say how the fragments of an axis are made.
///
/// | word | what it is |
/// |---|---|
/// | 0 | the first fragment; they are in the order of their fragments |
/// | 1, 2 | the axis, as a view has it |
/// | 3 | its outputs |
/// | 4 | the place of the resized image on the canvas, with a sign |
/// | 5 | the pixels a side of a unit, and from bit 16 on the steps of a unit |
/// | 6 | 1 if the axis is the one down, or 0 |
/// | 7 | the bits of the first sample of a unit that are taken as 0 |
///
/// A unit in row or column `i` has the fragments from `i * steps * planes` on: for each step two of
/// them, or three if `unit` of the axis is 256.
pub const AXIS_WORDS: u32 = 8;
/// The words of a fragment: four for each lane of a warp.
pub const FRAGMENT_WORDS: u32 = 128;
/// The samples of a step.
pub const STEP: u32 = 32;
/// The most quads of the shared memory of a block of strips.
pub const QUADS: u32 = 1792;
/// The most pixels a side of a unit that a warp makes.
pub const PATCH: u32 = 16;
/// The words of a record of weights.
pub const RECORD_WORDS: u32 = 4;
/// The flag of a view whose pass down is the first one.
pub const DOWN_FIRST: u32 = 1;
/// The most samples and outputs of an axis.
pub const AXIS_MAX: u32 = 65535;

/// The records of the axes.
pub(super) type Records<'k> = In<'k, [u32; RECORD_WORDS as usize], 1>;

/// An axis, whose weights are in the table `axes`.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) samples: u32,
    pub(super) outputs: u32,
    start: u32,
    /// The records of an output.
    pub(super) groups: u32,
    pub(super) shift: u32,
    /// The number that the 16-bit part of a weight counts: 1 or 256.
    pub(super) unit: i32,
}

impl Axis {
    /// Returns an axis of a place in the table and a form.
    #[inline(always)]
    pub(super) fn new(samples: u32, outputs: u32, [start, form]: [u32; 2]) -> Self {
        let (groups, shift, unit) = (form & 0xffff, (form >> 16 & 255).min(22), (form >> 24) as i32 + 1);
        Self { samples, outputs, start, groups, shift, unit }
    }

    /// Returns the form.
    #[inline(always)]
    pub(super) fn form(self) -> u32 {
        self.groups | self.shift << 16 | (self.unit as u32 - 1) << 24
    }

    /// Returns the place of the first record of an output.
    #[inline(always)]
    pub(super) fn place(self, output: u32) -> u32 {
        self.start.wrapping_add(output.wrapping_mul(self.groups))
    }

    /// Returns the record of the samples from `4 * group` on of an output. Any other place in the
    /// table gives a record, too.
    #[inline(always)]
    pub(super) fn record<'k>(self, t: &impl Witness<'k>, axes: Records<'k>, output: u32, group: u32) -> [u32; 4] {
        axes.nearest(t, self.place(output).wrapping_add(group))
    }

    /// Returns the first sample of an output and the end of its samples, which are inside. The
    /// record is any of the output.
    #[inline(always)]
    pub(super) fn samples_of(self, record: [u32; 4]) -> [u32; 2] {
        let first = (record[3] & 0xffff).min(self.samples);
        [first, (first + (record[3] >> 16)).min(self.samples)]
    }

    /// Returns the first sample of an output and the end of its samples, which are inside.
    #[inline(always)]
    pub(super) fn bounds<'k>(self, t: &impl Witness<'k>, axes: Records<'k>, output: u32) -> [u32; 2] {
        self.samples_of(self.record(t, axes, output, 0))
    }

    /// Returns the weight of sample `i` of an output, counted from its first one.
    #[inline(always)]
    pub(super) fn weight<'k>(self, t: &impl Witness<'k>, axes: Records<'k>, output: u32, i: u32) -> i32 {
        let [low, high, bytes, _] = self.record(t, axes, output, i / 4);
        let pair = if i & 2 == 0 { low } else { high };
        let half = (pair >> (16 * (i & 1))) as i16;
        i32::from(half).wrapping_mul(self.unit).wrapping_add((bytes >> (8 * (i & 3)) & 255) as i32)
    }

    /// The number of bytes of a weight.
    #[inline(always)]
    pub(super) fn planes(self) -> u32 {
        if self.unit == 1 { 2 } else { 3 }
    }

    /// Returns what is added to a sum so that the shift rounds.
    #[inline(always)]
    pub(super) fn half(self) -> i32 {
        ((1u32 << self.shift) >> 1) as i32
    }
}

/// Returns the last row of a table that does not begin after `i`. Its first word says where a row
/// begins. The search takes one step if `guess` is right.
#[inline(always)]
pub(super) fn last_from<'k>(t: &impl Witness<'k>, table: In<'k, u32, 2>, i: u32, guess: u32) -> u32 {
    let (mut at, mut end) = (0, table.extent(0));
    let begins = |row: u32| table.get(t, [row, 0]) <= i;
    if guess < end && begins(guess) {
        at = guess;
        if guess + 1 < end && !begins(guess + 1) {
            end = guess + 1;
        }
    }
    while end - at > 1 {
        let middle = (at + end) / 2;
        if begins(middle) { at = middle } else { end = middle }
    }
    at
}

/// A view, and the first unit that a block makes of it.
#[derive(Clone, Copy)]
pub(super) struct View {
    /// Whether the view has the unit.
    pub(super) present: bool,
    /// The unit, counted from the first one of the view.
    pub(super) unit: u32,
    /// The units of a row.
    pub(super) columns: u32,
    pub(super) start: u32,
    pub(super) width: u32,
    /// The place on the canvas.
    pub(super) top: i32,
    pub(super) left: i32,
    pub(super) down: Axis,
    pub(super) across: Axis,
    pub(super) down_first: bool,
    /// The first fragments of both axes, the steps of the pass across, and the rows of the other.
    pub(super) across_fragments: u32,
    pub(super) down_fragments: u32,
    pub(super) across_steps: u32,
    pub(super) rows: u32,
    /// The units of the view, and those to the next view.
    pub(super) units: u32,
    pub(super) next: u32,
}

impl View {
    /// Returns the view of a unit, of `units` in all. `words` are those of `rgb`.
    #[inline(always)]
    pub(super) fn of<'k>(
        b: &impl Witness<'k>,
        views: In<'k, u32, 2>,
        [axes, words]: [u32; 2],
        units: u32,
        unit: u32,
    ) -> Self {
        // Most batches have images of one size.
        let guess = unit as f32 * views.extent(0) as f32 / units as f32;
        let at = last_from(b, views, unit, guess as u32);
        let word = |i| views.get(b, [at, i]);
        let axis = |samples, outputs, i: u32| Axis::new(samples, outputs, [word(i).min(axes), word(i + 1)]);
        let (start, height, width, unit) = (word(3), word(4), word(5), unit.wrapping_sub(word(0)));
        let next = if at + 1 < views.extent(0) { views.get(b, [at + 1, 0]) } else { u32::MAX };
        let pixels = u64::from(height.min(AXIS_MAX)) * u64::from(width.min(AXIS_MAX));
        let inside = height <= AXIS_MAX && width <= AXIS_MAX && u64::from(start) + 3 * pixels <= 4 * u64::from(words);
        let (rows, across) = (word(6), word(7));
        Self {
            present: inside && unit < word(1) && rows <= AXIS_MAX && across <= AXIS_MAX,
            unit,
            columns: word(2).max(1),
            start,
            width,
            top: word(8) as i32,
            left: word(9) as i32,
            down: axis(height, rows, 10),
            across: axis(width, across, 12),
            down_first: word(14) & DOWN_FIRST != 0,
            across_fragments: word(15),
            down_fragments: word(16),
            across_steps: word(17) & 0xffff,
            rows: word(17) >> 16,
            units: word(1),
            next: next.wrapping_sub(word(0)),
        }
    }

    /// Returns the end of the units from `unit` on that the view has, or that no view has, which is
    /// `end` at most. The view is the one of `unit`.
    #[inline(always)]
    pub(super) fn end(self, unit: u32, end: u32) -> u32 {
        let all = if self.present { self.units } else { self.next };
        end.min(unit.wrapping_sub(self.unit).saturating_add(all)).max(unit + 1)
    }

    /// Returns row and column of the unit, for blocks of `merge` x `merge` units.
    #[inline(always)]
    pub(super) fn place(self, merge: u32) -> [u32; 2] {
        let (block, within) = (self.unit / (merge * merge), self.unit % (merge * merge));
        let blocks = (self.columns / merge).max(1);
        [block / blocks * merge + within / merge, block % blocks * merge + within % merge]
    }
}
