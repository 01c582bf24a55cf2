//! What the kernels that work patch by patch share: the numbers of `thalweg_kernels::vision`.
#![forbid(unsafe_code)]

/// The pixels of a patch. At the right and bottom edge of the image a patch has fewer rows or
/// columns.
#[derive(Clone, Copy)]
pub(crate) struct Patch {
    pub(crate) y: u32,
    pub(crate) x: u32,
    pub(crate) height: u32,
    pub(crate) width: u32,
}

impl Patch {
    /// Makes patch `index`, in raster order, of a `height` x `width` image in squares of `side`
    /// pixels.
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

    /// Calls `visit` with the row and column of every `step`th pixel from `first`, in raster order.
    #[inline(always)]
    pub(crate) fn every(self, first: u32, step: u32, mut visit: impl FnMut(u32, u32)) {
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

    /// The part of cell `index` when the patch is cut into `side` x `side` cells.
    #[inline(always)]
    pub(crate) fn cell(self, side: u32, index: u32) -> Cell {
        let (row, column) = (index / side, index % side);
        Cell {
            y: self.y + row * self.height / side,
            x: self.x + column * self.width / side,
            y_end: self.y + ((row + 1) * self.height).div_ceil(side),
            x_end: self.x + ((column + 1) * self.width).div_ceil(side),
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

/// A sum with a term for what rounding lost.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    sum: f32,
    lost: f32,
}

impl Sum {
    #[inline(always)]
    pub(crate) fn add(&mut self, v: f32) {
        let v = v - self.lost;
        let sum = self.sum + v;
        self.lost = (sum - self.sum) - v;
        self.sum = sum;
    }

    #[inline(always)]
    pub(crate) fn total(self) -> f32 {
        self.sum
    }
}
