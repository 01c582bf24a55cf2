//! The product of at most 128 rows of 16 bits with a matrix that is stored along k, such as a
//! weight: what a model computes for each token that it writes of many texts.
//!
//! ```text
//! each block, 8 warps: up to 32 rows and 16 columns of C
//!     each warp, every eighth 32 values of k:
//!         each lane, two steps ahead: 16 bytes of two rows of B, and of a row of A for each 8 rows
//!         two products of 16 columns, 8 rows and 16 values of k for each 8 rows
//!     the sum over the warps, by way of the epilogue
//! ```
//!
//! Launch: a block for each 16 columns and each 32 rows, `z` is the batch. 17 KiB of shared memory.
//! Memory: B is read once for each 32 rows, and comes from the L2 cache after the first time. That
//! is what such a product costs, so many blocks read at the same time: a kernel that computes tiles
//! of 128 columns has 6 blocks for 768 columns. A is read again for each 16 columns, from the L1
//! cache if a multiprocessor has several blocks.
//!
//! - **Fragments come from device memory without a way through shared memory.** The order of k
//!   within 32 values does not matter, if it is the same for both operands: a lane takes eight
//!   neighboring ones, which are four pairs of two products.
//! - **The order of the sums does not depend on the number of rows**: not on which rows are there,
//!   and not on the multiprocessors.

use thalweg_simt::Cooperative;

use super::number::Half;
use super::output::Output;
use super::tile_order::tile;

/// The most rows of a product.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const MOST: u32 = 128;
/// The rows and the columns of C that a block computes.
pub(super) const ROWS: u32 = 32;
pub(super) const COLUMNS: u32 = 16;
const WARPS: u32 = 8;
/// The threads of a block.
pub(super) const THREADS: u32 = 32 * WARPS;
/// The blocks that a multiprocessor has at once.
pub(super) const BLOCKS: u32 = 2;
/// The distance of two rows of sums in shared memory.
const PITCH: u32 = COLUMNS + 1;
/// The bytes of shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const SHARED: u32 = 4 * WARPS * ROWS * PITCH;
/// Values of k in a step of a warp.
const DEPTH: u32 = 32;
/// The products of eight rows in a step.
const EIGHTS: usize = ROWS as usize / 8;

/// Loads eight elements of a row, or zeros where the row ends or is none.
///
/// # Safety
/// If `exists`, the row has `k` elements in device memory that the launch only reads. It starts at
/// a multiple of 16 bytes, and `k` and `at` are multiples of 8.
#[inline(always)]
unsafe fn piece<E: Half>(cx: impl Cooperative, row: *const E, at: u32, k: u32, exists: bool) -> [u32; 4] {
    // SAFETY: The caller promises the row. `at` is below `k`, and both are multiples of a piece.
    if exists && at < k { unsafe { cx.load4(row.wrapping_add(at as usize).cast()) } } else { [0; 4] }
}

/// Computes up to 32 rows and 16 columns of C.
///
/// # Safety
/// A [M, K] and B [N, K] are in device memory, in aligned pieces of 16 bytes. The block has
/// [`THREADS`] threads and [`SHARED`] bytes.
#[inline(always)]
pub(super) unsafe fn product<E: Half>(
    cx: impl Cooperative,
    k: u32,
    (a, lda): (*const E, u32),
    (b, ldb): (*const E, u32),
    out: Output<E>,
) {
    let (row, column) = tile(cx.block_idx().x, out.m.div_ceil(ROWS), out.n.div_ceil(COLUMNS));
    let (row, column) = (row * ROWS, column * COLUMNS);
    let rows = (out.m - row).min(ROWS);
    let (group, within) = (cx.lane() / 4, cx.lane() % 4 * 8);
    let load = |at: u32| {
        let (mut x, mut y, mut i) = ([[0; 4]; EIGHTS], [[0; 4]; 2], 0);
        while i < 2 {
            let line = column + 8 * i + group;
            // SAFETY: The row is in B if it is below N. The pieces are what the caller promises.
            y[i as usize] =
                unsafe { piece(cx, b.wrapping_add(line as usize * ldb as usize), at + within, k, line < out.n) };
            i += 1;
        }
        i = 0;
        while i < EIGHTS as u32 {
            let line = 8 * i + group;
            let from = a.wrapping_add((row + line) as usize * lda as usize);
            // SAFETY: The row is in A if it is below `rows`, likewise.
            x[i as usize] = unsafe { piece(cx, from, at + within, k, line < rows) };
            i += 1;
        }
        (x, y)
    };
    let mut sums = [[0f32; 4]; EIGHTS];
    let mut first = cx.warp() * DEPTH;
    let (mut next, mut after) = (load(first), load(first + WARPS * DEPTH));
    while first < k {
        let (x, y) = next;
        next = after;
        after = load(first + 2 * WARPS * DEPTH);
        let mut i = 0;
        while i < EIGHTS {
            let [p, q, r, s] = x[i];
            let sum = E::mma(cx, [y[0][0], y[1][0], y[0][1], y[1][1]], [p, q], sums[i]);
            sums[i] = E::mma(cx, [y[0][2], y[1][2], y[0][3], y[1][3]], [r, s], sum);
            i += 1;
        }
        first += WARPS * DEPTH;
    }
    // SAFETY: The declaration has the shared memory of all warps.
    let s = unsafe { cx.shared::<f32>(0) };
    let mut j = 0;
    while j < EIGHTS as u32 {
        let mut i = 0;
        while i < 4 {
            // A pair of a fragment has neighboring rows of C, and the second pair is eight columns
            // on.
            let (line, c) = (8 * j + cx.lane() % 4 * 2 + i % 2, group + i / 2 * 8);
            // SAFETY: The place is below that of the next warp, and this lane's alone.
            unsafe { cx.shared_set(s, (cx.warp() * ROWS + line) * PITCH + c, sums[j as usize][i as usize]) };
            i += 1;
        }
        j += 1;
    }
    cx.barrier();
    let mut i = cx.rank();
    while i < rows * COLUMNS {
        let (line, c) = (i / COLUMNS, i % COLUMNS);
        let (mut sum, mut warp) = (0.0, 0);
        while warp < WARPS {
            // SAFETY: The place is in the window, and all warps have passed the barrier.
            sum += unsafe { cx.shared_get(s, (warp * ROWS + line) * PITCH + c) };
            warp += 1;
        }
        out.one(cx, row + line, column + c, sum);
        i += THREADS;
    }
}
