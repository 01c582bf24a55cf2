//! The product of operands with any strides and alignments.
//!
//! ```text
//! each block, 256 threads: a tile of C of 64 x 64
//!     for each 16 values of k: load 64 x 16 of A and of B as f32 to shared memory
//!     each thread: 4 x 4 of the tile
//!     store the sums by way of the epilogue
//! ```
//!
//! Launch: a block for each tile, `z` is the batch. 8.5 KiB of shared memory. It is for operands
//! that the fast kernels cannot copy in pieces of 16 bytes, and runs on every GPU.

use thalweg_simt::{Cooperative, SharedMemory};

use super::number::Number;
use super::output::Output;
use super::tile_order::tile;

pub(super) const TILE: u32 = 64;
const DEPTH: u32 = 16;
/// The threads of a block.
pub(super) const THREADS: u32 = 256;
/// The distance of two values of k in shared memory.
const PITCH: u32 = TILE + 4;
/// The bytes of shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const SHARED: u32 = 4 * 2 * DEPTH * PITCH;

/// An operand: the element of line 0 and k = 0, the distances of two lines and of two values of k,
/// and the number of lines.
#[derive(Clone, Copy)]
pub(super) struct Operand<E> {
    pub(super) first: *const E,
    pub(super) line: u32,
    pub(super) k: u32,
    pub(super) lines: u32,
}

impl<E: Number> Operand<E> {
    /// Makes an operand whose rows, as they are stored, begin `ld` elements apart. `along_k` says
    /// that a row is a line.
    #[inline(always)]
    pub(super) fn new(first: *const E, ld: u32, along_k: bool, lines: u32) -> Self {
        let (line, k) = if along_k { (ld, 1) } else { (1, ld) };
        Self { first, line, k, lines }
    }

    /// Loads a tile to shared memory. What is outside the operand becomes zero.
    ///
    /// # Safety
    /// The operand is in device memory. Nobody uses the `DEPTH * PITCH` elements of shared memory.
    #[inline(always)]
    unsafe fn load(self, cx: impl Cooperative, s: SharedMemory<f32>, first: u32, k0: u32, depth: u32) {
        let mut i = 0;
        while i < TILE * DEPTH / THREADS {
            let at = cx.rank() + i * THREADS;
            // Neighboring threads load neighbors in memory.
            let (line, k) = if self.k == 1 { (at / DEPTH, at % DEPTH) } else { (at % TILE, at / TILE) };
            let mut v = 0.0;
            if first + line < self.lines && k0 + k < depth {
                let at = (first + line) as usize * self.line as usize + (k0 + k) as usize * self.k as usize;
                // SAFETY: Line and k are in the operand, which the caller promises to be there.
                v = unsafe { cx.load(self.first.add(at)) }.wide();
            }
            // SAFETY: `line` is below `TILE` and `k` below `DEPTH`. The caller promises that the
            // window has so many elements and that nobody uses them.
            unsafe { cx.shared_set(s, k * PITCH + line, v) };
            i += 1;
        }
    }
}

/// Computes a tile of C.
///
/// # Safety
/// The operands are in device memory. The block has 256 threads and [`SHARED`] bytes.
#[inline(always)]
pub(super) unsafe fn product<E: Number>(cx: impl Cooperative, k: u32, a: Operand<E>, b: Operand<E>, out: Output<E>) {
    let (down, across) = (out.m.div_ceil(TILE), out.n.div_ceil(TILE));
    let (row, column) = tile(cx.block_idx().x, down, across);
    let (row, column) = (row * TILE, column * TILE);
    // SAFETY: The declaration has the shared memory of both tiles.
    let (tile_a, tile_b) = unsafe { (cx.shared::<f32>(0), cx.shared::<f32>(4 * DEPTH * PITCH)) };
    let (my_row, my_column) = (cx.rank() / 16 * 4, cx.rank() % 16 * 4);
    let mut sums = [[0f32; 4]; 4];
    let mut start = 0;
    while start < k {
        // SAFETY: The operands are there, as the caller promises, and every thread has used the
        // tiles before the barrier at the end of the loop.
        unsafe {
            a.load(cx, tile_a, row, start, k);
            b.load(cx, tile_b, column, start, k);
        }
        cx.barrier();
        let mut kk = 0;
        while kk < DEPTH {
            // SAFETY: The elements are in the tiles, and start at multiples of 16 bytes.
            let (a, b) = unsafe {
                (cx.shared_get4(tile_a, kk * PITCH + my_row), cx.shared_get4(tile_b, kk * PITCH + my_column))
            };
            let mut i = 0;
            while i < 4 {
                let mut j = 0;
                while j < 4 {
                    sums[i][j] = cx.fma(a[i], b[j], sums[i][j]);
                    j += 1;
                }
                i += 1;
            }
            kk += 1;
        }
        cx.barrier();
        start += DEPTH;
    }
    let mut i = 0;
    while i < 4 {
        let mut j = 0;
        while j < 4 {
            out.one(cx, row + my_row + i as u32, column + my_column + j as u32, sums[i][j]);
            j += 1;
        }
        i += 1;
    }
}
