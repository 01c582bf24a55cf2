//! The resized crop, one column after another row.
//!
//! ```text
//! if the crop has at least S rows (each row counts for at most two outputs):
//!     for every output: start with what its first rows gave already; for every new row, sum it across
//!         and add it to this output and to the next one
//! else (each output has at most two rows):
//!     for every output: sum new rows across, keep the last two; add both
//! ```
//!
//! - **No row is summed twice** within the outputs of a thread, whether the crop is reduced or
//!   enlarged. The sum across is nearly all of the work.
//! - **Weights are whole numbers.** With M = max(n, S), the weight of sample j for output i is
//!   proportional to 2 M - |(2 j + 1) S - (2 i + 1) n|. Both terms are at most 2^15 where the
//!   weight is not zero, so floats hold them exactly, and the next sample differs by 2 S.

use thalweg_simt::Simt;

use super::record::Crop;
use crate::parts::number::scaled;

/// The resize of `samples` samples to `size` outputs along one axis.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    samples: i32,
    size: i32,
    /// The distance at which weights become zero, in units of 1 / (2 S).
    reach: i32,
    /// About 1 / (2 S).
    inverse: f32,
}

impl Axis {
    #[inline(always)]
    pub(super) fn new(cx: impl Simt, samples: u32, size: u32) -> Self {
        let inverse = cx.recip_approx((2 * size) as f32);
        Self { samples: samples as i32, size: size as i32, reach: 2 * samples.max(size) as i32, inverse }
    }

    /// Computes `n / (2 S)`, rounded down, for `n` below 2^30 whose quotient is at most 2^15. A
    /// division of integers would take more than twice as many instructions.
    #[inline(always)]
    fn quotient(self, n: i32) -> i32 {
        // In the sum with 2^23 the last place is worth 1. The quotient is off by less than 0.1
        // before that, so the number in the low bits is the one that is asked for, or the next one.
        let near = (n as f32 * self.inverse + 8_388_608.0).to_bits() as i32 & 0x7f_ffff;
        if near * 2 * self.size > n { near - 1 } else { near }
    }

    /// Returns the center of output `i`, at most 2^29.
    #[inline(always)]
    fn center(self, i: u32) -> i32 {
        (2 * i as i32 + 1) * self.samples
    }

    /// Returns the first sample with a weight for output `i`.
    #[inline(always)]
    pub(super) fn first(self, i: u32) -> u32 {
        let before = self.center(i) - self.reach - self.size;
        if before < 0 { 0 } else { self.quotient(before) as u32 + 1 }
    }

    /// Returns one past the last sample with a weight for output `i`.
    #[inline(always)]
    fn end(self, i: u32) -> u32 {
        let after = self.center(i) + self.reach + self.size - 1;
        (self.quotient(after) as u32).min(self.samples as u32)
    }

    /// Returns the distance of sample `j` from the center of output `i`.
    #[inline(always)]
    fn distance(self, i: u32, j: u32) -> f32 {
        ((2 * j as i32 + 1) * self.size - self.center(i)) as f32
    }

    #[inline(always)]
    fn weight(self, distance: f32) -> f32 {
        self.reach as f32 - distance.abs()
    }

    /// Returns how many samples next to one another have all the weight of an output: 2 or 3, or
    /// `None` if there may be more, or if the crop has fewer.
    #[inline(always)]
    pub(super) fn few(self) -> Option<u32> {
        match self.samples {
            samples if samples <= self.size && samples >= 2 => Some(2),
            // The samples with a weight are less than 2 n / S <= 3 apart.
            samples if 2 * samples <= 3 * self.size && samples >= 3 => Some(3),
            _ => None,
        }
    }

    /// Returns the first of `count` samples that have all the weight of output `i`. With the count
    /// of [`few`](Self::few) or more, it is at most 2 more for output `i + 1`.
    #[inline(always)]
    pub(super) fn window(self, i: u32, count: u32) -> u32 {
        self.first(i).min(self.samples as u32 - count)
    }

    /// Returns the weights of `count` samples, at most 3, from `first` on for output `i`. Their sum
    /// is 1.
    #[inline(always)]
    pub(super) fn weights(self, cx: impl Simt, i: u32, first: u32, count: u32) -> [f32; 3] {
        let distance = self.distance(i, first);
        let one = |k: u32| {
            let weight = self.weight(distance + (2 * k * self.size as u32) as f32);
            if k < count { weight.max(0.0) } else { 0.0 }
        };
        let [a, b, c] = [one(0), one(1), one(2)];
        let scale = cx.recip_approx(a + b + c);
        // If the others are 0, the first one is exactly 1.
        let [b, c] = [b * scale, c * scale];
        [1.0 - b - c, b, c]
    }
}

/// The samples of a row that count for one column of the output.
#[derive(Clone, Copy)]
struct Across {
    axis: Axis,
    first: u32,
    end: u32,
    distance: f32,
}

impl Across {
    #[inline(always)]
    fn new(axis: Axis, i: u32) -> Self {
        let first = axis.first(i);
        Self { axis, first, end: axis.end(i), distance: axis.distance(i, first) }
    }

    /// Returns the sum of the weights.
    #[inline(always)]
    fn total(self) -> f32 {
        let (mut total, mut distance) = (0.0, self.distance);
        for _ in self.first..self.end {
            total += self.axis.weight(distance);
            distance += 2.0 * self.axis.size as f32;
        }
        total
    }

    /// Returns the weighted sum of row `y` of the crop.
    ///
    /// # Safety
    /// `y` is a row of the crop, and the axis is that of its columns.
    #[inline(always)]
    unsafe fn sum<C: Simt>(self, cx: C, crop: Crop, y: u32) -> [f32; 3] {
        let (mut sum, mut distance) = ([0.0; 3], self.distance);
        let mut pixel = crop.pixel(y, self.first);
        for _ in self.first..self.end {
            let weight = self.axis.weight(distance);
            // SAFETY: `first..end` are columns of the crop, as `Axis` cuts them at the number of
            // samples, and `crop` is inside the buffer of images.
            let byte = |c: usize| unsafe { cx.load(pixel.wrapping_add(c)) };
            let [r, g, b] = [byte(0), byte(1), byte(2)].map(|v| scaled(cx, u32::from(v), 1.0));
            sum = [cx.fma(weight, r, sum[0]), cx.fma(weight, g, sum[1]), cx.fma(weight, b, sum[2])];
            distance += 2.0 * self.axis.size as f32;
            pixel = pixel.wrapping_add(3);
        }
        sum
    }
}

/// Computes rows `first..end` of column `column` of the crop resized to `size` x `size`, and passes
/// each row and its color, from 0 to 1, to `each`.
///
/// # Safety
/// `column` is below `size`, `end` is at most `size`, and `size` is at most
/// [`MAX_SIZE`](super::MAX_SIZE).
#[inline(always)]
pub(super) unsafe fn resized<C: Simt>(
    cx: C,
    crop: Crop,
    size: u32,
    column: u32,
    first: u32,
    end: u32,
    mut each: impl FnMut(u32, [f32; 3]),
) {
    if first >= end {
        return;
    }
    let across = Across::new(Axis::new(cx, crop.width, size), column);
    let down = Axis::new(cx, crop.height, size);
    let scale = cx.recip(255.0 * across.total());
    // SAFETY: `next` below is less than `end` of an output, which is at most the number of rows.
    let row = |next: u32| unsafe { across.sum(cx, crop, next) };
    let add = |weight: f32, row: [f32; 3], sum: [f32; 3]| {
        [cx.fma(weight, row[0], sum[0]), cx.fma(weight, row[1], sum[1]), cx.fma(weight, row[2], sum[2])]
    };
    let mut next = down.first(first);
    if crop.height >= size {
        let (mut carried, mut carried_total) = ([0.0; 3], 0.0);
        for i in first..end {
            let (mut sum, mut total) = (carried, carried_total);
            (carried, carried_total) = ([0.0; 3], 0.0);
            while next < down.end(i) {
                let colors = row(next);
                let weight = down.weight(down.distance(i, next));
                sum = add(weight, colors, sum);
                total += weight;
                // The last output of the crop has no next one, and what is carried then is not
                // used.
                let weight = down.weight(down.distance(i + 1, next)).max(0.0);
                carried = add(weight, colors, carried);
                carried_total += weight;
                next += 1;
            }
            let scale = scale * cx.recip(total);
            each(i, sum.map(|v| v * scale));
        }
    } else {
        let (mut before, mut last) = ([0.0; 3], [0.0; 3]);
        for i in first..end {
            while next < down.end(i) {
                before = last;
                last = row(next);
                next += 1;
            }
            // The rows `next - 2` and `next - 1`. The first one may have no weight, or not exist.
            let weight = down.weight(down.distance(i, next - 1));
            let (mut sum, mut total) = (last.map(|v| weight * v), weight);
            if next >= 2 {
                let weight = down.weight(down.distance(i, next - 2)).max(0.0);
                sum = add(weight, before, sum);
                total += weight;
            }
            let scale = scale * cx.recip(total);
            each(i, sum.map(|v| v * scale));
        }
    }
}
