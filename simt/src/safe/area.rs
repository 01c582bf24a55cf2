//! Rectangles of a buffer, which are checked once and not element by element.

use core::fmt;
use core::marker::PhantomData;

use super::global::In;
use super::item::Item;
use super::report;
use super::thread::Thread;
use crate::Simt;

/// A rectangle of the last two dimensions of a buffer that the launch does not write. It was
/// checked when it was made, so that what walks over it needs no checks.
pub struct Area<'k, T, const D: usize> {
    of: In<'k, T, D>,
    /// The rectangle's first element in these two dimensions.
    from: [u32; 2],
    /// Its extents. They are below 2^31, and the rectangle is inside the extents of the buffer.
    extents: [u32; 2],
}

impl<T, const D: usize> Clone for Area<'_, T, D> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const D: usize> Copy for Area<'_, T, D> {}

impl<T, const D: usize> fmt::Debug for Area<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area").field("from", &self.from).field("extents", &self.extents).finish_non_exhaustive()
    }
}

impl<'k, T: Item, const D: usize> In<'k, T, D> {
    /// Returns the rectangle of the last two dimensions that starts at `from` and has these
    /// extents. If it is not inside those of the buffer, or has 2^31 rows or columns, this is
    /// reported.
    ///
    /// ```
    /// use thalweg_simt::{kernel, ptx};
    ///
    /// # fn main() {}
    /// ptx! {}
    ///
    /// kernel! {
    ///     /// Adds up the pixels of each 32 x 32 part of an image, channel by channel. The sides of the
    ///     /// image are multiples of 32.
    ///     pub fn sums(
    ///         b: impl Cooperative, height: u32, width: u32, rgb: In<[u8; 3]>[height, width],
    ///         sums: Atomic<u32>[rows = height / 32, columns = width / 32, 3],
    ///     )
    ///     require { height % 32 == 0, width % 32 == 0 }
    ///     grid(columns, rows) block(64)
    ///     {
    ///         let at = [b.idx().y, b.idx().x];
    ///         let area = rgb.area(at.map(|i| 32 * i), [32, 32]);
    ///         b.each((), move |t, ()| {
    ///             let mut sum = [0; 3];
    ///             for pixel in area.every(t, t.rank(), t.threads()) {
    ///                 let rgb = pixel.get([]);
    ///                 sum = [0, 1, 2].map(|c| sum[c] + u32::from(rgb[c]));
    ///             }
    ///             for c in 0..3 {
    ///                 sums.add(t, [at[0], at[1], c], sum[c as usize]);
    ///             }
    ///         });
    ///     }
    /// }
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn area(self, from: [u32; 2], extents: [u32; 2]) -> Area<'k, T, D> {
        const { assert!(D >= 2, "an area has the last two dimensions of a buffer, and this one has fewer") };
        for d in 0..2 {
            let all = self.extent(D - 2 + d);
            if from[d] > all || extents[d] > all - from[d] || extents[d] >= 1 << 31 {
                report::no_area(from, extents, self.extents);
            }
        }
        Area { of: self, from, extents }
    }
}

impl<'k, T: Item, const D: usize> Area<'k, T, D> {
    /// Returns the places of the rectangle whose numbers are `first`, `first + step` and so on, if
    /// places are numbered row by row. With `t.rank()` and `t.threads()`, the threads of a block
    /// share the places among them. With a `step` of 0 it never ends.
    #[inline(always)]
    pub fn every<'t, C: Simt>(
        self,
        t: &'t Thread<'k, C>,
        first: u32,
        step: u32,
    ) -> impl Iterator<Item = Spot<'t, 'k, C, T, D>> + use<'t, 'k, C, T, D> {
        // Without columns there are no places.
        let [height, width] = if self.extents[1] == 0 { [0, 1] } else { self.extents };
        // A step of as many rows as there are leaves the rectangle, as each larger one does. So `y`
        // stays below 2^32: it is at most twice the height. So does `x`, at most twice the width.
        let (step_y, step_x) = ((step / width).min(height), step % width);
        let (mut y, mut x) = (first / width, first % width);
        core::iter::from_fn(move || {
            if y >= height {
                return None;
            }
            let spot = Spot { cx: **t, of: self.of, at: [self.from[0] + y, self.from[1] + x], thread: PhantomData };
            y += step_y;
            x += step_x;
            if x >= width {
                x -= width;
                y += 1;
            }
            Some(spot)
        })
    }
}

/// A place of an [`Area`]: a coordinate of the last two dimensions of a buffer that is not checked
/// again.
pub struct Spot<'t, 'k, C, T, const D: usize> {
    cx: C,
    of: In<'k, T, D>,
    /// It is inside the last two extents of the buffer.
    at: [u32; 2],
    thread: PhantomData<&'t ()>,
}

impl<C, T, const D: usize> fmt::Debug for Spot<'_, '_, C, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spot").field("at", &self.at).finish_non_exhaustive()
    }
}

impl<C: Simt, T: Item, const D: usize> Spot<'_, '_, C, T, D> {
    /// Returns the coordinates in the last two dimensions of the buffer.
    #[must_use]
    #[inline(always)]
    pub fn at(&self) -> [u32; 2] {
        self.at
    }

    /// Loads the element whose first coordinates, all but the last two, are `first`. One outside
    /// the extents is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn get<const F: usize>(&self, first: [u32; F]) -> T {
        const { assert!(F + 2 == D, "`get` takes all coordinates but the last two") };
        let extents = self.of.extents;
        let mut plane = 0;
        for d in 0..F {
            if first[d] >= extents[d] {
                report::outside("read", first, core::array::from_fn(|d| extents[d]));
            }
            plane = plane * extents[d] + first[d];
        }
        let [height, width] = [extents[D - 2], extents[D - 1]];
        // SAFETY: The loop checked the first coordinates, and `at` is inside the last two extents.
        // The launcher checked that the product of all is the buffer's length and below 2^32. So
        // nothing wraps, and the element is in device memory. It is aligned as `T` wants it: the
        // launcher checked where the buffer starts.
        unsafe {
            let row = self.of.start.add((self.at[0] * width + self.at[1]) as usize);
            T::get(self.cx, row.add(plane as usize * (height * width) as usize))
        }
    }
}
