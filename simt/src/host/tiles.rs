//! Matrices as the copy engine of a GPU sees them.

use super::slice::DeviceSlice;
use crate::Element;

/// Matrices of 16-bit elements in device memory, for the copy engine for tiles that GPUs of compute
/// capability 9.0 have (TMA). [`Launch::tensor_map`](super::Launch::tensor_map) makes a map of
/// them, which a kernel takes by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixView {
    address: u64,
    /// The number of columns, rows and matrices.
    extents: [u64; 3],
    /// The bytes between two rows, and between two matrices.
    strides: [u64; 2],
}

impl MatrixView {
    /// Describes `count` matrices of `rows` x `columns` elements. The first one begins at the start
    /// of the slice. Rows begin `row_stride` elements apart and matrices `matrix_stride` elements
    /// apart.
    ///
    /// Returns `None` if an element is outside the slice, if there are none, or if the copy engine
    /// cannot read them: their first byte is not at a multiple of 16 bytes, a stride is not a
    /// multiple of 8 elements, rows overlap, or several matrices have a stride of 0.
    #[must_use]
    pub fn new<S, T: Element>(
        slice: &DeviceSlice<S, T>,
        [count, rows, columns]: [u64; 3],
        matrix_stride: u64,
        row_stride: u64,
    ) -> Option<Self> {
        const { assert!(size_of::<T>() == 2, "tiles have elements of 16 bits") };
        const LIMIT: u64 = 1 << 39; // elements between two rows or matrices, below 2^40 bytes
        // With one matrix or one row, the stride is never used, but the engine wants a valid one.
        let row_stride = if rows > 1 { row_stride } else { columns.checked_next_multiple_of(8)? };
        let matrix_stride = if count > 1 { matrix_stride } else { row_stride.checked_mul(rows)? };
        let last = |n: u64, stride: u64| n.checked_sub(1)?.checked_mul(stride);
        let end = last(count, matrix_stride)?.checked_add(last(rows, row_stride)?)?.checked_add(columns)?;
        let fits = end <= slice.len() as u64
            && columns > 0
            && [count, rows, columns].iter().all(|&extent| extent <= u64::from(u32::MAX))
            && slice.device_ptr().is_multiple_of(16)
            && row_stride >= columns
            && matrix_stride > 0
            && [row_stride, matrix_stride].iter().all(|&stride| stride.is_multiple_of(8) && stride < LIMIT);
        fits.then_some(Self {
            address: slice.device_ptr(),
            extents: [columns, rows, count],
            strides: [row_stride * 2, matrix_stride * 2],
        })
    }

    /// Returns the address of the first element.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of columns, of rows and of matrices.
    #[must_use]
    pub fn extents(&self) -> [u64; 3] {
        self.extents
    }

    /// Returns the bytes between two rows, and between two matrices.
    #[must_use]
    pub fn strides(&self) -> [u64; 2] {
        self.strides
    }
}

/// A map that a GPU's driver made of [`MatrixView`]: 128 bytes, whose meaning only the driver
/// knows.
pub type TensorMap = [u64; 16];

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(elements: usize) -> &'static DeviceSlice<(), u16> {
        // SAFETY: Nothing accesses the elements.
        unsafe { DeviceSlice::from_raw(4096, elements) }
    }

    #[test]
    fn tiles_are_inside_their_slice() {
        let tiles = |len, extents, matrix, row| MatrixView::new(slice(len), extents, matrix, row);
        // The last row needs no padding after it.
        assert!(tiles(24 * 9 + 20, [1, 10, 20], 0, 24).is_some());
        assert!(tiles(24 * 9 + 19, [1, 10, 20], 0, 24).is_none());
        assert!(tiles(1000 + 24 * 9 + 20, [2, 10, 20], 1000, 24).is_some());
        assert!(tiles(1000 + 24 * 9 + 19, [2, 10, 20], 1000, 24).is_none());
        assert!(tiles(usize::MAX >> 2, [u64::MAX, 2, 8], u64::MAX, 8).is_none());
        assert!(tiles(usize::MAX >> 2, [1, 1, u64::MAX], 0, 0).is_none());
        assert!(tiles(100, [0, 1, 8], 8, 8).is_none());
        assert!(tiles(100, [1, 0, 8], 8, 8).is_none());
        assert!(tiles(100, [1, 1, 0], 8, 8).is_none());
    }

    #[test]
    fn the_copy_engine_gets_strides_that_it_can_use() {
        let tiles = |extents, matrix, row| MatrixView::new(slice(10_000), extents, matrix, row);
        assert_eq!(tiles([1, 10, 20], 7, 24).unwrap().strides(), [48, 480]);
        assert_eq!(tiles([1, 1, 20], 7, 7).unwrap().strides(), [48, 48]);
        assert_eq!(tiles([3, 10, 20], 80, 24).unwrap().strides(), [48, 160]);
        assert!(tiles([1, 10, 20], 7, 25).is_none());
        assert!(tiles([3, 10, 20], 7, 24).is_none());
        assert!(tiles([3, 10, 20], 0, 24).is_none());
        assert!(tiles([1, 10, 20], 7, 16).is_none());
        let off = slice(10_000).slice(1..).unwrap();
        assert!(MatrixView::new(off, [1, 10, 20], 7, 24).is_none());
    }
}
