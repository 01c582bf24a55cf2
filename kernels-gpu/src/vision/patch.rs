//! The functions that the kernels that work patch by patch share.

use thalweg_simt::{In, Simt};

/// The pixels of a patch. At the right and bottom edge of the image a patch has fewer rows or
/// columns.
#[derive(Clone, Copy)]
pub(crate) struct Patch {
    /// First row.
    pub(crate) y: u32,
    /// First column.
    pub(crate) x: u32,
    /// Rows.
    pub(crate) height: u32,
    /// Columns.
    pub(crate) width: u32,
}

impl Patch {
    /// Makes patch `index`, in raster order, of a `height` x `width` image in squares of `side`
    /// pixels.
    #[inline(always)]
    pub(crate) fn new(index: u32, height: u32, width: u32, side: u32) -> Self {
        let columns = width.div_ceil(side);
        Self::at(index / columns, index % columns, height, width, side)
    }

    /// Makes the patch in row `row` and column `column` of patches.
    #[inline(always)]
    pub(crate) fn at(row: u32, column: u32, height: u32, width: u32, side: u32) -> Self {
        let (y, x) = (row * side, column * side);
        Self { y, x, height: side.min(height - y), width: side.min(width - x) }
    }

    /// Number of pixels.
    #[inline(always)]
    pub(crate) fn area(self) -> u32 {
        self.height * self.width
    }

    /// Calls `visit` with the row and column in the image of every `step`th pixel from `first`, in
    /// raster order.
    #[inline(always)]
    pub(crate) fn every(self, first: u32, step: u32, mut visit: impl FnMut(u32, u32)) {
        // The divisions are here, and none is in the loop.
        let (step_y, step_x) = (step / self.width, step % self.width);
        let (mut y, mut x) = (first / self.width, first % self.width);
        while y < self.height {
            visit(self.y + y, self.x + x);
            y += step_y;
            x += step_x;
            if x >= self.width {
                x -= self.width;
                y += 1;
            }
        }
    }
}

/// A token's place among those of its patch.
#[derive(Clone, Copy)]
pub(crate) struct Token {
    /// The patch.
    pub(crate) patch: u32,
    /// Cells of the patch along each axis.
    side: u32,
    /// Index of the token's cell among them, in raster order.
    cell: u32,
}

impl Token {
    /// Finds token `t` among those of `count` selected patches. Whatever the buffers hold, it is a
    /// token of one of the `patches`. The functions load an element of a buffer: `cu_seqlens` and
    /// `patch_id` are asked for those below `count`, and `sides` for those below `patches`. Both
    /// numbers are at least 1.
    #[inline(always)]
    pub(crate) fn find(
        t: u32,
        count: u32,
        patches: u32,
        sides: impl Fn(u32) -> i32,
        cu_seqlens: impl Fn(u32) -> i32,
        patch_id: impl Fn(u32) -> i32,
    ) -> Self {
        let (mut k, mut end) = (0, count);
        while end - k > 1 {
            let middle = k + (end - k) / 2;
            if cu_seqlens(middle) as u32 <= t {
                k = middle;
            } else {
                end = middle;
            }
        }
        // These numbers are clamped, so that no contents of the buffers lead outside the image.
        let patch = (patch_id(k) as u32).min(patches - 1);
        let side = sides(patch).clamp(1, 255) as u32;
        let cell = t.wrapping_sub(cu_seqlens(k) as u32).min(side * side - 1);
        Self { patch, side, cell }
    }

    /// Computes the pixels of the token in its patch.
    #[inline(always)]
    pub(crate) fn cell(self, cx: impl Simt, area: Patch) -> Cell {
        let Self { side, cell, .. } = self;
        let row = divide(cx, cell, side);
        let column = cell - row * side;
        Cell {
            y: area.y + row * area.height / side,
            x: area.x + column * area.width / side,
            y_end: area.y + ((row + 1) * area.height).div_ceil(side),
            x_end: area.x + ((column + 1) * area.width).div_ceil(side),
        }
    }
}

/// The pixels that a token averages.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) y: u32,
    pub(crate) x: u32,
    pub(crate) y_end: u32,
    pub(crate) x_end: u32,
}

impl Cell {
    /// Number of pixels.
    #[inline(always)]
    pub(crate) fn area(self) -> u32 {
        (self.y_end - self.y) * (self.x_end - self.x)
    }
}

/// Computes `a / b`, rounded down, for `a` below 2^20 and `b` at least 1.
///
/// The result is exact: (a + 1/2) / b is at least 1/2b from an integer, and the error is less than
/// that. A division of integers takes many instructions, and if LLVM knows the numbers to be small,
/// it narrows them to 16 bits, for which ptxas calls a function.
#[inline(always)]
pub(crate) fn divide(cx: impl Simt, a: u32, b: u32) -> u32 {
    ((a as f32 + 0.5) * cx.recip_approx(b as f32)) as u32
}

/// A compensated sum (Kahan): its error does not grow with the number of terms.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) total: f32,
    pub(crate) excess: f32,
}

impl Sum {
    /// Adds a term to the sum.
    #[inline(always)]
    pub(crate) fn add(&mut self, v: f32) {
        let v = v - self.excess;
        let total = self.total + v;
        self.excess = (total - self.total) - v;
        self.total = total;
    }

    /// Returns the sum.
    #[inline(always)]
    pub(crate) fn total(self) -> f32 {
        self.total
    }
}

/// Loads pixel `at` of an interleaved image.
///
/// # Safety
/// `rgb` holds pixel `at`.
#[inline(always)]
pub(crate) unsafe fn pixel(cx: impl Simt, rgb: In<u8>, at: u32) -> [u32; 3] {
    let at = at as usize * 3;
    // SAFETY: these are the three bytes of the pixel, which the caller promises to be in `rgb`.
    unsafe { [0, 1, 2].map(|k| u32::from(rgb.get(cx, at + k))) }
}
