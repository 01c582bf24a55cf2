//! The product on the ordinary CPU device: one call computes the tile of a block.
//!
//! ```text
//! sums = 0
//! for each 256 values of k: convert the lines of A and B to f32, unless they are, and
//!     sums += A B, by `matrixmultiply`
//! store the sums by way of the epilogue
//! ```
//!
//! The library adds in an order that depends on the extents and on the instructions of the CPU
//! only.

use thalweg_simt::Simt;

use super::number::Number;
use super::output::Output;
use super::strided_gemm::Operand;
use super::tile_order::tile;

/// The values of k that are converted at once: so many that the sums are seldom loaded and stored,
/// and so few that the converted lines stay in the L2 cache.
const DEPTH: u32 = 256;

/// Lines of an operand in `f32`: the first element, and the distances of two lines and of two
/// values of k.
struct Lines {
    first: *const f32,
    line: isize,
    k: isize,
}

impl<E: Number> Operand<E> {
    fn at(self, line: u32, k: u32) -> *const E {
        self.first.wrapping_add(line as usize * self.line as usize + k as usize * self.k as usize)
    }

    /// Returns `lines` lines from `first` on, with `depth` values of k from `k` on. Those of
    /// another type than `f32` are converted into `converted`.
    ///
    /// # Safety
    /// The lines and the values of k are in the operand, which is in memory.
    unsafe fn lines(self, (first, lines): (u32, u32), (k, depth): (u32, u32), converted: &mut Vec<f32>) -> Lines {
        if size_of::<E>() == size_of::<f32>() {
            // `f32` is the only type of elements with its size.
            return Lines { first: self.at(first, k).cast(), line: self.line as isize, k: self.k as isize };
        }
        converted.clear();
        let (outer, inner) = if self.k == 1 { (lines, depth) } else { (depth, lines) };
        for i in 0..outer {
            let row = if self.k == 1 { self.at(first + i, k) } else { self.at(first, k + i) };
            // SAFETY: The neighbors from `row` on are a line, or a value of k, of what the caller
            // promises to be in memory. Nobody writes an operand during the launch.
            let row = unsafe { std::slice::from_raw_parts(row, inner as usize) };
            converted.extend(row.iter().map(|v| v.wide()));
        }
        let (line, k) = if self.k == 1 { (inner as isize, 1) } else { (1, inner as isize) };
        Lines { first: converted.as_ptr(), line, k }
    }
}

/// Computes the tile of C of a block, of `down` rows and `across` columns.
///
/// # Safety
/// The operands have the extents and are in memory.
pub(super) unsafe fn product<E: Number>(
    cx: impl Simt,
    [down, across]: [u32; 2],
    k: u32,
    a: Operand<E>,
    b: Operand<E>,
    out: Output<E>,
) {
    let (row, column) = tile(cx.block_idx().x, out.m.div_ceil(down), out.n.div_ceil(across));
    let (row, column) = (row * down, column * across);
    let (rows, columns) = ((out.m - row).min(down), (out.n - column).min(across));
    let mut sums = vec![0f32; (rows * columns) as usize];
    let (mut lines_a, mut lines_b) = (Vec::new(), Vec::new());
    // The library divides k itself, so operands that need no conversion go to it as a whole.
    let step = if size_of::<E>() == size_of::<f32>() { k.max(1) } else { DEPTH };
    let mut first = 0;
    while first < k {
        let depth = (k - first).min(step);
        // SAFETY: Rows, columns and values of k are in the operands, as the caller promises. The
        // sums have `rows` times `columns` elements, and nothing else refers to them.
        unsafe {
            let a = a.lines((row, rows), (first, depth), &mut lines_a);
            let b = b.lines((column, columns), (first, depth), &mut lines_b);
            matrixmultiply::sgemm(
                rows as usize,
                depth as usize,
                columns as usize,
                1.0,
                a.first,
                a.line,
                a.k,
                b.first,
                b.k,
                b.line,
                if first == 0 { 0.0 } else { 1.0 },
                sums.as_mut_ptr(),
                columns as isize,
                1,
            );
        }
        first += depth;
    }
    for (i, sums) in sums.chunks_exact(columns as usize).enumerate() {
        for (j, &sum) in sums.iter().enumerate() {
            out.one(cx, row + i as u32, column + j as u32, sum);
        }
    }
}
