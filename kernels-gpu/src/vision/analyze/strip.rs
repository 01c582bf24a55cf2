//! The sums of a thread over a strip of pixels: some rows of one group of columns.

use thalweg_simt::{Cooperative, SharedMemory};

use super::totals::sum;
use crate::parts::number::{count_byte, lookup_byte, scaled};
use crate::vision::texel::{
    CONTRAST, Column, GRADIENT, Image, Place, Walk, contrast, eccentricity, gradient, lab, response,
};

/// The planes that are added up pixel by pixel. The means of y and x are known without that.
pub(super) const SUMMED: [u32; 11] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12];

/// The strip of pixels that a thread adds up.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    pub(super) image: Image,
    pub(super) place: Place,
    /// The table of linear light.
    pub(super) table: SharedMemory<f32>,
    /// The histogram of luma.
    pub(super) count: SharedMemory<u32>,
}

/// Sums over some rows of `N` columns.
struct Sums {
    /// The sum of the pixels as words.
    all: u32,
    /// The same of their first and third bytes only.
    outer: u32,
    responses: [f32; 3],
    gx: f32,
    edge: f32,
    distance: f32,
    deviation: f32,
}

impl Strip {
    /// Adds up the planes [`SUMMED`] of `N` columns from `x` on, over rows `top` to `end`, and
    /// counts the pixels in the histogram. The sum of the eccentricity stays 0 unless `DISTANCE` is
    /// set. `load` takes the start of a row, and returns the columns and one more on each side.
    ///
    /// # Safety
    /// There are 1 to 32 rows. Table and histogram have 256 words of shared memory; meanwhile no
    /// thread writes the table, and the block only counts in the histogram.
    #[inline(always)]
    pub(super) unsafe fn sums<C: Cooperative, const N: usize, const M: usize, const DISTANCE: bool>(
        self,
        cx: C,
        top: u32,
        end: u32,
        x: u32,
        load: impl Fn(u32) -> [u32; M],
    ) -> [f32; 11] {
        let Self { image, place, .. } = self;
        let columns: [f32; N] = core::array::from_fn(|i| place.column(cx, x + i as u32).1);
        let mut start = image.start(top);
        let mut row = load(start);
        let mut walk = Walk::new(cx, load(image.above(top, start)), row);
        // The sum of Gy telescopes: it is the smoothed sum of two rows at the end, less the one at
        // the start.
        let smooth = |walk: &Walk<M>| {
            let pair = &walk.pair;
            (0..N).fold(0.0, |sum, i| sum + (cx.fma(2.0, pair[i + 1], pair[i]) + pair[i + 2]))
        };
        let above = smooth(&walk);
        let mut sums =
            Sums { all: 0, outer: 0, responses: [0.0; 3], gx: 0.0, edge: 0.0, distance: 0.0, deviation: 0.0 };
        for y in top..end {
            start = image.below(y, start);
            let below = load(start);
            // SAFETY: the caller promises the table and the histogram.
            unsafe { self.row::<_, N, M>(cx, row, walk.down(cx, below), &mut sums) };
            if DISTANCE {
                let dy = place.row(cx, y).1;
                sums.distance += sum(columns.map(|dx| eccentricity(cx, dy, dx)));
            }
            row = below;
        }
        let Sums { all, outer, responses, gx, edge, distance, deviation } = sums;
        let gy = smooth(&walk) - above;
        let n = (end - top) * N as u32;
        let [l, a, b] = lab(cx, responses, scaled(cx, n, 1.0));
        let byte = |v: u32| scaled(cx, v, 1.0 / 255.0);
        [
            byte(outer & 0xffff),
            byte(all.wrapping_sub(outer) >> 8 & 0xffff),
            byte(outer >> 16),
            l,
            a,
            b,
            gx * GRADIENT,
            gy * GRADIENT,
            edge * GRADIENT,
            distance,
            deviation * CONTRAST,
        ]
    }

    /// Adds the pixels of a row, which is given with its neighbors, and counts them.
    ///
    /// # Safety
    /// As for [`sums`](Self::sums), of table and histogram.
    #[inline(always)]
    unsafe fn row<C: Cooperative, const N: usize, const M: usize>(
        self,
        cx: C,
        row: [u32; M],
        c: [Column; M],
        sums: &mut Sums,
    ) {
        let Self { table, count, .. } = self;
        let mut responses = [[0.0f32; 3]; N];
        for i in 0..N {
            let pixel = row[i + 1];
            // SAFETY: The weights of luma add up to 256, so the bin is the second byte of the sum,
            // and an entry of the table is chosen by one byte: both are below 256, the number of
            // words that the caller promises.
            let linear = unsafe {
                count_byte(cx, count, cx.dp4a_u32(77 | 150 << 8 | 29 << 16, pixel, 128), 1);
                // Not `map`, which is a call on the CPU device unless the compiler inlines it.
                [lookup_byte(cx, table, pixel, 0), lookup_byte(cx, table, pixel, 1), lookup_byte(cx, table, pixel, 2)]
            };
            responses[i] = response(cx, linear);
            sums.all = sums.all.wrapping_add(pixel);
            sums.outer = sums.outer.wrapping_add(pixel & 0xff_00ff);
        }
        for (k, of_all) in sums.responses.iter_mut().enumerate() {
            *of_all += sum(responses.map(|response| response[k]));
        }
        let windows: [[Column; 3]; N] = core::array::from_fn(|i| [c[i], c[i + 1], c[i + 2]]);
        sums.deviation += sum(windows.map(|w| contrast(cx, w)));
        let gradients = windows.map(|w| gradient(cx, w));
        sums.gx += sum(gradients.map(|g| g.0));
        sums.edge += sum(gradients.map(|g| g.2));
    }
}
