//! The product of at most 8 rows with a matrix that is stored along k, such as a weight: what a
//! model that writes text computes for each token.
//!
//! ```text
//! each warp, a column of C, which is a row of B:
//!     each lane: 16 bytes of that row, four times, then the same pieces of each row of A, and their products
//!     the sum over the lanes, by way of the epilogue
//! ```
//!
//! Launch: a block of 8 warps for each 8 columns, `z` is the batch. No shared memory. Memory: B is
//! read once. That is what such a product costs, so many warps read at the same time: a kernel that
//! computes tiles of 128 columns has 6 blocks for 768 columns. A is read again from the L1 cache
//! for each column.

use thalweg_simt::Cooperative;

use super::number::Number;
use super::output::Output;
use super::tile_order::tile;

/// The rows and columns of C that a block computes.
pub(super) const TILE: u32 = 8;
/// The threads of a block.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const THREADS: u32 = 32 * TILE;
/// The bytes of shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const SHARED: u32 = 0;
/// The pieces of 16 bytes that a lane loads at once.
const PIECES: usize = 4;

/// Loads the pieces of a row from element `at` on. Those behind its end become zeros.
///
/// # Safety
/// The row has `k` elements in device memory that the launch only reads. It starts at a multiple of
/// 16 bytes, and `k` and `at` are multiples of a piece.
#[inline(always)]
unsafe fn pieces<E: Number>(cx: impl Cooperative, row: *const E, at: u32, k: u32) -> [[u32; 4]; PIECES] {
    let mut all = [[0; 4]; PIECES];
    let mut i = 0;
    while i < PIECES {
        let at = at + i as u32 * 32 * E::PIECE;
        if at < k {
            // SAFETY: `at` is below `k`, and both are multiples of a piece, so the piece is in the
            // row.
            all[i] = unsafe { cx.load4(row.add(at as usize).cast()) };
        }
        i += 1;
    }
    all
}

/// Computes a tile of C.
///
/// # Safety
/// A [M, K] and B [N, K] are in device memory, in aligned pieces of 16 bytes. The block has
/// [`THREADS`] threads.
#[inline(always)]
pub(super) unsafe fn product<E: Number>(
    cx: impl Cooperative,
    k: u32,
    (a, lda): (*const E, u32),
    (b, ldb): (*const E, u32),
    out: Output<E>,
) {
    let (row, column) = tile(cx.block_idx().x, out.m.div_ceil(TILE), out.n.div_ceil(TILE));
    let (row, column) = (row * TILE, column * TILE + cx.warp());
    let rows = (out.m - row).min(TILE);
    let mut sums = [0f32; TILE as usize];
    // A warp without a column computes the last one again, and stores nothing.
    let b = b.wrapping_add(column.min(out.n - 1) as usize * ldb as usize);
    let mut at = cx.lane() * E::PIECE;
    while at < k {
        // SAFETY: The row is in B. Its length and all pieces are what the caller promises.
        let of_b = unsafe { pieces(cx, b, at, k) };
        let mut r = 0;
        while r < TILE {
            if r < rows {
                // SAFETY: The row is in A, likewise.
                let of_a = unsafe { pieces(cx, a.wrapping_add((row + r) as usize * lda as usize), at, k) };
                let (mut sum, mut i) = (sums[r as usize], 0);
                while i < PIECES {
                    let mut j = 0;
                    while j < E::PIECE {
                        sum = cx.fma(E::wide_of(of_a[i], j), E::wide_of(of_b[i], j), sum);
                        j += 1;
                    }
                    i += 1;
                }
                sums[r as usize] = sum;
            }
            r += 1;
        }
        at += PIECES as u32 * 32 * E::PIECE;
    }
    let mut r = 0;
    while r < TILE {
        if r < rows {
            let sum = cx.warp_sum(sums[r as usize]);
            if cx.lane() == r {
                out.one(cx, row + r, column, sum);
            }
        }
        r += 1;
    }
}
