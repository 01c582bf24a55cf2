//! What the kernels that work patch by patch share.

use thalweg_simt::{In, Simt};

/// The pixels of a patch; at the right and bottom edge there are fewer.
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
    /// Patch `index`, in raster order, of a `height` x `width` image in squares of `side` pixels.
    #[inline(always)]
    pub(crate) fn new(index: u32, height: u32, width: u32, side: u32) -> Self {
        let columns = width.div_ceil(side);
        let (y, x) = (index / columns * side, index % columns * side);
        Self { y, x, height: side.min(height - y), width: side.min(width - x) }
    }

    /// Number of pixels.
    #[inline(always)]
    pub(crate) fn area(self) -> u32 {
        self.height * self.width
    }

    /// Calls `visit` with the row and column in the image of every `step`th pixel from `first`, in raster order.
    #[inline(always)]
    pub(crate) fn every(self, first: u32, step: u32, mut visit: impl FnMut(u32, u32)) {
        // One division here, none a pixel.
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

/// A compensated sum (Kahan): its error does not grow with the number of terms.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    total: f32,
    excess: f32,
}

impl Sum {
    /// Adds a term.
    #[inline(always)]
    pub(crate) fn add(&mut self, v: f32) {
        let v = v - self.excess;
        let total = self.total + v;
        self.excess = (total - self.total) - v;
        self.total = total;
    }

    /// The sum.
    #[inline(always)]
    pub(crate) fn total(self) -> f32 {
        self.total
    }
}

/// Pixel `at` of an interleaved image.
///
/// # Safety
/// `rgb` holds the pixel.
#[inline(always)]
pub(crate) unsafe fn pixel(cx: impl Simt, rgb: In<u8>, at: u32) -> [u32; 3] {
    let at = at as usize * 3;
    // SAFETY: the caller's promise.
    unsafe { [0, 1, 2].map(|k| u32::from(rgb.get(cx, at + k))) }
}
