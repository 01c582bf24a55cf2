//! The samples of a component, one row of units at a time, and their enlargement as libjpeg does
//! it.
//!
//! The integers are those of the kernels that make [colors](thalweg_kernels::jpeg).

use crate::header::{Component, Header};

/// The samples of a component in one row of units, and the last row of the units above them.
#[derive(Debug, Default)]
pub(super) struct Plane {
    /// Row 0 is the last one of the units above.
    samples: Vec<u8>,
    pub(super) stride: usize,
    /// The rows of a row of units, and by how much they and the columns are enlarged.
    high: usize,
    by: [usize; 2],
    /// The samples of the image in this component, without padding.
    rows: usize,
    columns: usize,
    /// The weighted sums of two rows, with one more on each side.
    sums: Vec<u16>,
}

impl Plane {
    /// Prepares for the samples of a component.
    pub(super) fn prepare(&mut self, header: &Header, component: &Component) {
        let [most_wide, most_high] = header.factors();
        let [wide, high] = component.blocks;
        self.by = [(most_high / high) as usize, (most_wide / wide) as usize];
        self.high = 8 * high as usize;
        self.stride = 8 * (wide * header.units()[0]) as usize;
        self.rows = (header.height as usize).div_ceil(self.by[0]);
        self.columns = (header.width as usize).div_ceil(self.by[1]);
        self.samples.resize((1 + self.high) * self.stride, 0);
        self.sums.resize(self.columns + 2, 0);
    }

    /// Returns the memory that it keeps.
    pub(super) fn capacity(&self) -> usize {
        self.samples.capacity() + 2 * self.sums.capacity()
    }

    /// Returns the rows of a row of units.
    #[inline(always)]
    pub(super) fn rows_mut(&mut self) -> &mut [u8] {
        &mut self.samples[self.stride..]
    }

    /// Keeps the last row for the next row of units.
    pub(super) fn advance(&mut self) {
        let last = self.high * self.stride;
        self.samples.copy_within(last..last + self.stride, 0);
    }

    /// Says whether the last row of a row of units needs the first one of the next.
    pub(super) fn looks_ahead(&self) -> bool {
        self.by[0] == 2 && (self.by[1] == 1 || self.is_smooth_across())
    }

    /// A component of 1 or 2 columns is replicated.
    fn is_smooth_across(&self) -> bool {
        self.by[1] == 2 && self.by[0] <= 2 && self.columns > 2
    }

    /// Returns the samples at row `y` of the image, while the rows of units `number` are there. It
    /// uses `line`, which is as long as a row of the image, if the samples are not there as they
    /// are.
    #[inline(always)]
    pub(super) fn row<'p>(&'p mut self, number: usize, y: usize, line: &'p mut [u8]) -> &'p [u8] {
        let [down, across] = self.by;
        let (is_smooth_down, is_smooth_across) = (self.looks_ahead(), self.is_smooth_across());
        let Self { samples, stride, columns, sums, .. } = self;
        let (stride, columns) = (*stride, *columns);
        let first = number * self.high;
        let row = |y: usize| {
            let at = (y + 1 - first) * stride;
            &samples[at..at + columns]
        };
        let near = row(y / down);
        let far = match y % 2 {
            _ if !is_smooth_down => near,
            0 => row((y / 2).saturating_sub(1)),
            _ => row((y / 2 + 1).min(self.rows - 1)),
        };
        if down == 1 && across == 1 {
            return near;
        }
        if is_smooth_across {
            let sums = &mut sums[..columns + 2];
            let own = sums[1..].iter_mut().zip(near);
            // The first and the last sample of a row repeat, so their weights add up.
            if down == 2 {
                own.zip(far).for_each(|((sum, near), far)| *sum = 3 * u16::from(*near) + u16::from(*far));
                (sums[0], sums[columns + 1]) = (sums[1], sums[columns]);
                double::<8, 7, 4>(sums, line);
            } else {
                own.for_each(|(sum, near)| *sum = u16::from(*near));
                (sums[0], sums[columns + 1]) = (sums[1], sums[columns]);
                double::<1, 2, 2>(sums, line);
            }
        } else if is_smooth_down {
            let more = 1 + (y % 2) as u16;
            for ((to, near), far) in line.iter_mut().zip(near).zip(far) {
                *to = ((3 * u16::from(*near) + u16::from(*far) + more) >> 2) as u8;
            }
        } else {
            for (to, sample) in line.chunks_mut(across).zip(near) {
                to.fill(*sample);
            }
        }
        line
    }
}

/// Enlarges a row by 2 across. `sums` has one more on each side. `EVEN` and `ODD` round the
/// results, and `SHIFT` divides them by the weights.
#[inline(always)]
fn double<const EVEN: u16, const ODD: u16, const SHIFT: u16>(sums: &[u16], line: &mut [u8]) {
    let (pairs, rest) = line.as_chunks_mut::<2>();
    let (before, own, after) = (&sums[..pairs.len()], &sums[1..pairs.len() + 1], &sums[2..]);
    for (((to, before), own), after) in pairs.iter_mut().zip(before).zip(own).zip(after) {
        *to = [((3 * own + before + EVEN) >> SHIFT) as u8, ((3 * own + after + ODD) >> SHIFT) as u8];
    }
    if let [last] = rest {
        let i = sums.len() - 2;
        *last = ((3 * sums[i] + sums[i - 1] + EVEN) >> SHIFT) as u8;
    }
}
