//! Stores elements of C.

use thalweg_simt::{Cooperative, In, InOut, SharedMemory, Simt};

use super::async_copies::TILE;
use super::epilogue::{ACCUMULATE, ALIGNED, BIAS, RESIDUAL, WIDE, finish};
use super::number::Number;

/// C and what its elements are made from beside the sums.
#[derive(Clone, Copy)]
pub(super) struct Output<E> {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) flags: u32,
    /// The elements before the matrix of this block's batch, and those of a row.
    pub(super) start: usize,
    pub(super) ld: u32,
    pub(super) residual_start: usize,
    pub(super) residual_ld: u32,
    pub(super) bias: In<E>,
    pub(super) residual: In<E>,
    pub(super) c: InOut<E>,
}

/// Loads element `i` of a buffer of `E`, or of `f32` if `flags` say so.
///
/// # Safety
/// The element is in device memory.
#[inline(always)]
unsafe fn read<E: Number>(cx: impl Simt, flags: u32, p: *const E, i: usize) -> f32 {
    // SAFETY: The caller promises that the element is there, and a buffer of `f32` is aligned for
    // `f32`.
    unsafe { if flags & WIDE == 0 { cx.load(p.add(i)).wide() } else { cx.load(p.cast::<f32>().add(i)) } }
}

impl<E: Number> Output<E> {
    /// Makes C of product `z` of a batch.
    #[inline(always)]
    pub(super) fn new(
        z: usize,
        [m, n]: [u32; 2],
        flags: u32,
        (c, ld, distance): (InOut<E>, u32, u64),
        (residual, residual_ld, residual_distance): (In<E>, u32, u64),
        bias: In<E>,
    ) -> Self {
        let (start, residual_start) = (z * distance as usize, z * residual_distance as usize);
        Self { m, n, flags, start, ld, residual_start, residual_ld, bias, residual, c }
    }

    #[inline(always)]
    fn at(&self, row: u32, column: u32) -> usize {
        self.start + row as usize * self.ld as usize + column as usize
    }

    /// Computes an element from its sum.
    ///
    /// # Safety
    /// The element is in C.
    #[inline(always)]
    unsafe fn value(&self, cx: impl Simt, row: u32, column: u32, sum: f32) -> f32 {
        let flags = self.flags;
        let (mut bias, mut residual, mut old) = (0.0, 0.0, 0.0);
        // SAFETY: The caller promises that row and column are in C. The launcher checked that bias
        // and residual, if there are any, have such an element too.
        unsafe {
            if flags & BIAS != 0 {
                bias = read(cx, flags, self.bias.as_ptr(), column as usize);
            }
            if flags & RESIDUAL != 0 {
                let at = self.residual_start + row as usize * self.residual_ld as usize + column as usize;
                residual = read(cx, flags, self.residual.as_ptr(), at);
            }
            if flags & ACCUMULATE != 0 {
                old = read(cx, flags, self.c.as_ptr().cast_const(), self.at(row, column));
            }
        }
        finish(cx, flags, sum, bias, residual, old)
    }

    /// Stores an element, if it is in C.
    #[inline(always)]
    pub(super) fn one(&self, cx: impl Simt, row: u32, column: u32, sum: f32) {
        if row < self.m && column < self.n {
            // SAFETY: The element is in C, and no other thread has the same one.
            unsafe {
                let (at, v) = (self.at(row, column), self.value(cx, row, column, sum));
                if self.flags & WIDE == 0 {
                    cx.store(self.c.as_ptr().add(at), E::narrow(v));
                } else {
                    cx.store(self.c.as_ptr().cast::<f32>().add(at), v);
                }
            }
        }
    }
}

/// The rows that go through shared memory at once, and their distance there. It lets eight rows
/// begin in different banks.
pub(super) const ROWS: u32 = 64;
pub(super) const PITCH: u32 = TILE + 8;

impl<E: Number> Output<E> {
    /// Stores the elements of [`ROWS`] rows and [`TILE`] columns that are in C, from their sums in
    /// shared memory. A warp has a row, and a lane four of its columns.
    ///
    /// # Safety
    /// The block has stored the sums and passed a barrier. `column` is a multiple of 4.
    #[inline(always)]
    pub(super) unsafe fn rows(&self, cx: impl Cooperative, s: SharedMemory<f32>, row: u32, column: u32) {
        let within = cx.lane() * 4;
        let column = column + within;
        let rows = self.m.saturating_sub(row).min(ROWS);
        let mut r = cx.warp();
        while r < rows {
            // SAFETY: The window has `ROWS` rows, as the caller promises. The place of a column
            // that is a multiple of 4 is a multiple of 16 bytes.
            let sums = unsafe { cx.shared_get4(s, r * PITCH + within) };
            // SAFETY: The row is in C, since `r` is below `rows`. No other thread has these
            // elements, and `column` is a multiple of 4.
            unsafe { self.piece(cx, row + r, column, sums) };
            r += cx.block_dim().x / 32;
        }
    }

    /// Stores those of four elements of a row that are in C.
    ///
    /// # Safety
    /// `column` is a multiple of 4, the row is in C, and no other thread has one of the elements.
    #[inline(always)]
    pub(super) unsafe fn piece(&self, cx: impl Cooperative, row: u32, column: u32, sums: [f32; 4]) {
        if self.flags & ALIGNED != 0 && column + 3 < self.n {
            // SAFETY: The row and the four columns are in C, and no other thread has them.
            unsafe { self.four(cx, row, column, sums) };
        } else {
            let mut i = 0;
            while i < 4 {
                self.one(cx, row, column + i, sums[i as usize]);
                i += 1;
            }
        }
    }

    /// Stores four elements in one access.
    ///
    /// # Safety
    /// The elements are in C, no other thread has one of them, and their place is a multiple of
    /// four elements. The rows of C start at multiples of 16 bytes.
    #[inline(always)]
    unsafe fn four(&self, cx: impl Cooperative, row: u32, column: u32, sums: [f32; 4]) {
        let mut v = sums;
        let mut i = 0;
        // SAFETY: The caller promises that the elements are in C and that their place is aligned.
        unsafe {
            while i < 4 {
                v[i] = self.value(cx, row, column + i as u32, sums[i]);
                i += 1;
            }
            let at = self.at(row, column);
            if self.flags & WIDE == 0 && size_of::<E>() == 2 {
                let bits = u64::from(E::pair(v[0], v[1])) | u64::from(E::pair(v[2], v[3])) << 32;
                cx.store(self.c.as_ptr().add(at).cast::<u64>(), bits);
            } else {
                cx.store4(self.c.as_ptr().cast::<f32>().add(at), v);
            }
        }
    }
}
