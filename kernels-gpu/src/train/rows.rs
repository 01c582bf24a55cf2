//! Rows of a head: what attention multiplies and adds.

use thalweg_simt::Simt;

use super::number::Stored;

/// Rows of numbers in device memory, of which a thread has one head.
#[derive(Clone, Copy)]
pub(super) struct Rows<E> {
    /// The head's first element of row 0.
    pub(super) start: *const E,
    /// The elements from one row to the next, and those of a head.
    pub(super) stride: u32,
    pub(super) size: u32,
    /// Whether four elements can be loaded at once, and a head has as many elements as the kernel
    /// is made for.
    pub(super) vector: bool,
}

impl<E: Stored> Rows<E> {
    /// Returns the rows from element `first` of the head on, which a head has.
    #[inline(always)]
    pub(super) fn from(self, first: u32) -> Self {
        Self { start: self.start.wrapping_add(first as usize), size: self.size - first, ..self }
    }

    #[inline(always)]
    fn row(self, row: u32) -> *const E {
        self.start.wrapping_add(row as usize * self.stride as usize)
    }

    /// Loads elements `at` to `at + 3` of a row. Those past the end of the head are 0.
    ///
    /// # Safety
    /// `row` is [`row`](Self::row) of a row of the buffer. `VECTOR` is true only if `vector` is.
    #[inline(always)]
    unsafe fn four<const VECTOR: bool, const AGAIN: bool>(self, cx: impl Simt, row: *const E, at: usize) -> [f32; 4] {
        // SAFETY: The caller promises that the row is in the buffer, so the head's elements of it
        // are too. With `vector`, the launcher checked that every fourth of them is aligned.
        unsafe {
            if VECTOR && AGAIN {
                E::load4_again(cx, row.add(at))
            } else if VECTOR {
                E::load4(cx, row.add(at))
            } else {
                let one = |i: usize| if at + i < self.size as usize { cx.load(row.add(at + i)).wide() } else { 0.0 };
                core::array::from_fn(one)
            }
        }
    }

    /// Calls `f` with each four elements of a row and their place.
    ///
    /// # Safety
    /// The buffer has the row.
    #[inline(always)]
    unsafe fn each<const D: usize, const AGAIN: bool>(
        self,
        cx: impl Simt,
        row: u32,
        mut f: impl FnMut(usize, [f32; 4]),
    ) {
        let (row, mut c) = (self.row(row), 0);
        // One branch for a row, and none between its elements.
        // SAFETY: The caller promises that the buffer has the row.
        unsafe {
            if self.vector {
                while c < D {
                    f(c, self.four::<true, AGAIN>(cx, row, c));
                    c += 4;
                }
            } else {
                while c < D {
                    f(c, self.four::<false, AGAIN>(cx, row, c));
                    c += 4;
                }
            }
        }
    }

    /// Loads a row, multiplied by `scale`.
    ///
    /// # Safety
    /// The buffer has the row.
    #[inline(always)]
    pub(super) unsafe fn load<const D: usize>(self, cx: impl Simt, row: u32, scale: f32) -> [f32; D] {
        let mut v = [0.0; D];
        // SAFETY: The caller promises that the buffer has the row.
        unsafe {
            self.each::<D, false>(cx, row, |c, four| {
                let mut i = 0;
                while i < 4 {
                    v[c + i] = four[i] * scale;
                    i += 1;
                }
            });
        }
        v
    }

    /// Computes the product of `v` and a row.
    ///
    /// # Safety
    /// The buffer has the row.
    #[inline(always)]
    pub(super) unsafe fn dot<const D: usize>(self, cx: impl Simt, row: u32, v: &[f32; D]) -> f32 {
        let mut sums = [0f32; 4];
        // SAFETY: The caller promises that the buffer has the row.
        unsafe {
            self.each::<D, false>(cx, row, |c, four| {
                let mut i = 0;
                while i < 4 {
                    sums[i] = cx.fma(v[c + i], four[i], sums[i]);
                    i += 1;
                }
            });
        }
        (sums[0] + sums[1]) + (sums[2] + sums[3])
    }

    /// Adds `weight` times a row to `sums`.
    ///
    /// # Safety
    /// The buffer has the row.
    #[inline(always)]
    pub(super) unsafe fn add<const D: usize>(self, cx: impl Simt, row: u32, weight: f32, sums: &mut [f32; D]) {
        // SAFETY: The caller promises that the buffer has the row.
        unsafe {
            self.each::<D, true>(cx, row, |c, four| {
                let mut i = 0;
                while i < 4 {
                    sums[c + i] = cx.fma(weight, four[i], sums[c + i]);
                    i += 1;
                }
            });
        }
    }
}

/// Stores a row of a head, multiplied by `scale`, from `to` on.
///
/// # Safety
/// `to` is the head's first element of a row in device memory that no other thread accesses. With
/// `vector`, a head has `D` elements and `to` is aligned to four of them.
#[inline(always)]
pub(super) unsafe fn store<E: Stored, const D: usize>(
    cx: impl Simt,
    to: *mut E,
    size: u32,
    vector: bool,
    v: &[f32; D],
    scale: f32,
) {
    let mut c = 0;
    while c < D {
        // SAFETY: The caller promises the elements, of which there are `size`.
        unsafe {
            if vector {
                E::store4(cx, to.add(c), [v[c] * scale, v[c + 1] * scale, v[c + 2] * scale, v[c + 3] * scale]);
            } else {
                let mut i = 0;
                while i < 4 {
                    if c + i < size as usize {
                        cx.store(to.add(c + i), E::narrow(v[c + i] * scale));
                    }
                    i += 1;
                }
            }
        }
        c += 4;
    }
}
