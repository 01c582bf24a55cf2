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
/// | 10, 11 | the axis down: its place in `axes`; its weights for an output, and the shift from bit 16 on |
/// | 12, 13 | the axis across |
/// | 14 | [`DOWN_FIRST`], or 0 |
/// | 15 | 0 |
///
/// An axis has a word for each output, and then the weights of each output. The word is the first
/// sample, and from bit 16 on the number of samples.
pub const VIEW_WORDS: u32 = 16;
/// The flag of a view whose pass down is the first one.
pub const DOWN_FIRST: u32 = 1;
/// The most samples and outputs of an axis.
pub const AXIS_MAX: u32 = 65535;

/// The weights of an axis, in the table `axes`.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) samples: u32,
    pub(super) outputs: u32,
    start: u32,
    taps: u32,
    pub(super) shift: u32,
}

impl Axis {
    /// Returns the first sample of an output and the end of its samples, which are inside.
    #[inline(always)]
    pub(super) fn bounds<'k>(self, t: &impl Witness<'k>, axes: In<'k, u32, 1>, output: u32) -> [u32; 2] {
        let word = axes.try_get(t, [self.start.wrapping_add(output)]).unwrap_or(0);
        let first = (word & 0xffff).min(self.samples);
        [first, (first + (word >> 16)).min(self.samples)]
    }

    /// Returns where the weights of an output begin.
    #[inline(always)]
    pub(super) fn weights(self, output: u32) -> u32 {
        self.start.wrapping_add(self.outputs).wrapping_add(output.wrapping_mul(self.taps))
    }

    /// Returns what is added to a sum so that the shift rounds.
    #[inline(always)]
    pub(super) fn half(self) -> i32 {
        ((1u32 << self.shift) >> 1) as i32
    }
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
}

impl View {
    /// Returns the view of a unit. `words` are those of `rgb`.
    #[inline(always)]
    pub(super) fn of<'k>(b: &impl Witness<'k>, views: In<'k, u32, 2>, axes: u32, words: u32, unit: u32) -> Self {
        // The last view that does not begin after the unit.
        let (mut at, mut end) = (0, views.extent(0));
        while end - at > 1 {
            let middle = (at + end) / 2;
            if views.get(b, [middle, 0]) <= unit { at = middle } else { end = middle }
        }
        let word = |i| views.get(b, [at, i]);
        let axis = |samples, outputs, i: u32| {
            let form = word(i + 1);
            Axis { samples, outputs, start: word(i).min(axes), taps: form & 0xffff, shift: (form >> 16).min(22) }
        };
        let (start, height, width, unit) = (word(3), word(4), word(5), unit.wrapping_sub(word(0)));
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
        }
    }

    /// Returns row and column of the unit, for blocks of `merge` x `merge` units.
    #[inline(always)]
    pub(super) fn place(self, merge: u32) -> [u32; 2] {
        let (block, within) = (self.unit / (merge * merge), self.unit % (merge * merge));
        let blocks = (self.columns / merge).max(1);
        [block / blocks * merge + within / merge, block % blocks * merge + within % merge]
    }
}
