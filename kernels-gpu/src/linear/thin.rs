//! The product of at most 128 rows of 16 bits with a matrix that is stored along k, such as a
//! weight: what a model computes for each token that it writes of many texts.
//!
//! ```text
//! each block, 8 warps: up to 64 rows and 16, 32, 64 or 128 columns of C, or 32 rows and 16 columns
//!     all threads, two stages ahead: of A, 64 rows and 256 values of k to shared memory, or 32 and 512
//!     each warp has 16 of the columns; those with the same columns share the values of k
//!     each warp, every 32 values of k that are its own:
//!         each lane, four steps ahead: 16 bytes of two rows of B
//!         two products of 16 columns, 8 rows and 16 values of k for each 8 rows
//!     the sum over the warps with the same columns, by way of the epilogue
//! ```
//!
//! Launch: a block for each [`rows`] and each [`columns`], `z` is the batch. 96 KiB of shared
//! memory.
//! Memory: B is read once for the rows of a block. That is what such a product costs, so many
//! blocks read at the same time: a kernel that computes tiles of 128 columns has 6 blocks for 768
//! columns. A is read by each block, so a block has more columns where there are enough of them for
//! all multiprocessors, and fewer rows where there are not.
//!
//! - **Fragments of B come from device memory without a way through shared memory.** The order of k
//!   within 32 values does not matter, if it is the same for both operands: a lane takes eight
//!   neighboring ones, which are four pairs of two products.
//! - **The order of the sums does not depend on the number of rows**: not on which rows are there,
//!   and not on the multiprocessors. It depends on the number of columns.

use thalweg_simt::Cooperative;

use super::number::Half;
use super::output::Output;
use super::tile_order::tile;

/// The most rows of a product.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const MOST: u32 = 128;
/// The most rows of C that a block computes, and the columns of a warp.
const ROWS: u32 = 64;
const COLUMNS: u32 = 16;
const WARPS: u32 = 8;
/// The threads of a block.
pub(super) const THREADS: u32 = 32 * WARPS;
/// The blocks that a multiprocessor has at once on compute capability 9.0. On 8.0 to 8.9 the shared
/// memory is enough for one.
pub(super) const BLOCKS: u32 = 2;
/// Values of k in a step of a warp, and in a stage of [`ROWS`] rows of A. There are three stages.
const DEPTH: u32 = 32;
const STAGE: u32 = WARPS * DEPTH;
const STAGES: u32 = 3;
/// The bytes of shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const SHARED: u32 = STAGES * ROWS * STAGE * 2;
/// The pieces of 16 bytes in a row of a stage. One is eight elements, or four words.
const PIECES: u32 = STAGE / 8;
/// The steps of B that are under way.
const AHEAD: usize = 4;

/// Returns the columns of C that a block computes: for 1, 2, 4 or 8 of its warps. With more of them
/// there would be fewer than 128 blocks. The type is that of a kernel or that of a launcher.
#[inline(always)]
pub(super) fn columns<T: PartialOrd + From<u32>>(n: T) -> T {
    let mut warps = WARPS;
    while warps > 1 && n < T::from(128 * warps * COLUMNS) {
        warps /= 2;
    }
    T::from(warps * COLUMNS)
}

/// Returns the rows of C that a block computes: half as many if there would be fewer than 64
/// blocks. A stage then has twice as many values of k.
#[inline(always)]
pub(super) fn rows<T: PartialOrd + From<u32>>(n: T) -> T {
    T::from(if n < T::from(64 * COLUMNS) { ROWS / 2 } else { ROWS })
}

/// Returns the place of a piece of a row in a stage, in pieces. The pieces that eight lanes of a
/// warp load, of two rows, are in different banks.
#[inline(always)]
fn place(stage: u32, row: u32, piece: u32) -> u32 {
    (stage * ROWS + row) * PIECES + (piece ^ (row % 2 * 4))
}

/// Computes up to 64 rows and [`columns`] of C.
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
    let (width, most) = (columns(out.n), rows(out.n));
    let across = width / COLUMNS;
    let (row, column) = tile(cx.block_idx().x, out.m.div_ceil(most), out.n.div_ceil(width));
    let (row, column) = (row * most, column * width);
    let rows = (out.m - row).min(most);
    // With fewer rows, the second half of a stage has the next values of k.
    let narrow = most < ROWS;
    let depth = if narrow { 2 * STAGE } else { STAGE };
    let (group, quarter) = (cx.lane() / 4, cx.lane() % 4);
    // The columns of the warp within those of the block, its first step, and the distance of two.
    let (own, slice, slices) = (cx.warp() % across * COLUMNS, cx.warp() / across, WARPS / across);

    // SAFETY: The declaration has the shared memory of all stages.
    let (s, words) = unsafe { (cx.shared::<E>(0), cx.shared::<u32>(0)) };
    // A warp copies every eighth row, and a lane one of its pieces. The rows of a warp are all
    // even, or all odd. `from`, and the row of B below, go on from step to step.
    let mut from = a.wrapping_add((row + cx.warp()) as usize * lda as usize + cx.lane() as usize * 8);
    let (own_place, eight) = (place(0, cx.warp(), cx.lane()) * 8, WARPS as usize * lda as usize);
    let (mut filled, mut stage_at) = (cx.lane() * 8, own_place);
    let mut start = || {
        let (mut i, mut line, mut at, mut first) = (0, cx.warp(), from, filled);
        while i < ROWS / WARPS {
            if narrow && i == ROWS / WARPS / 2 {
                (line, at, first) = (cx.warp(), from.wrapping_add(STAGE as usize), filled + STAGE);
            }
            let exists = line < rows && first < k;
            // SAFETY: The piece is in A if its row is below `rows` and its first element below `k`.
            // The place is that of a piece of the stage, which nobody else writes, and which nobody
            // reads until the block has waited for it.
            unsafe { cx.copy_async_or_zero::<E, 16>(s, stage_at + i * WARPS * STAGE, at, exists) };
            (i, line, at) = (i + 1, line + WARPS, at.wrapping_add(eight));
        }
        cx.copy_async_commit();
        (from, filled) = (from.wrapping_add(depth as usize), filled + depth);
        stage_at = if stage_at >= 2 * ROWS * STAGE { own_place } else { stage_at + ROWS * STAGE };
    };
    let line = column + own + group;
    let mut at = slice * DEPTH + quarter * 8;
    let mut row_of_b = b.wrapping_add(line as usize * ldb as usize + at as usize);
    let mut weights = || {
        let (mut two, mut i) = ([[0; 4]; 2], 0);
        while i < 2 {
            if line + 8 * (i as u32) < out.n && at < k {
                // SAFETY: The piece is in B: its row is below N, its first element is below `k`,
                // and that, `k` and the distance of rows are multiples of a piece.
                two[i] = unsafe { cx.load4(row_of_b.wrapping_add(i * 8 * ldb as usize).cast()) };
            }
            i += 1;
        }
        row_of_b = row_of_b.wrapping_add((slices * DEPTH) as usize);
        at += slices * DEPTH;
        two
    };

    start();
    start();
    let (mut ahead, mut i) = ([[[0u32; 4]; 2]; AHEAD], 0);
    while i < AHEAD {
        ahead[i] = weights();
        i += 1;
    }
    let mut sums = [[0f32; 4]; 8];
    // The steps of a stage: with fewer rows, one for each half.
    let steps = if narrow { 2 } else { across };
    let (mut stage, mut left, mut within, mut done) = (STAGES - 1, 0, slice, 0);
    // No compiler knows that it is zero. Without it they would copy the words where they are used.
    let zero = k >> 31;
    'all: loop {
        // Each turn has its own step of B. If the steps moved on from place to place, a move would
        // wait for the newest one.
        let mut turn = 0;
        while turn < AHEAD {
            if left == 0 {
                if done >= k {
                    break 'all;
                }
                cx.copy_async_wait::<1>();
                cx.barrier();
                // All warps have left the stage before, whose place this is.
                start();
                stage = if stage == STAGES - 1 { 0 } else { stage + 1 };
                (left, within, done) = (steps, slice, done + depth);
            }
            // A load has the words of one row, and an operand of a product those of two rows in
            // neighboring registers. So they are copied here, once and not before each product.
            let ([a, b], mut i) = (ahead[turn], 0);
            let mut now = [[0; 4]; 2];
            while i < 2 {
                now[i] = [a[2 * i] ^ zero, b[2 * i] ^ zero, a[2 * i + 1] ^ zero, b[2 * i + 1] ^ zero];
                i += 1;
            }
            let first = place(stage, group, within * 4 + quarter) * 4;
            let mut half = 0;
            while half < 2 {
                // A stage with two steps begins with an even turn.
                if if narrow { half as usize == turn % 2 } else { 32 * half < rows } {
                    let (mut x, mut i) = ([[0u32; 4]; 4], 0);
                    while i < 4 {
                        // SAFETY: The piece is in the stage, which is complete: rows that are a
                        // multiple of eight apart have it at the same place.
                        x[i as usize] = unsafe { cx.shared_get4(words, first + (32 * half + 8 * i) * STAGE / 2) };
                        i += 1;
                    }
                    let mut i = 0;
                    while i < 4 {
                        let ([p, q, r, s], j) = (x[i], 4 * half as usize + i);
                        let sum = E::mma(cx, now[0], [p, q], sums[j]);
                        sums[j] = E::mma(cx, now[1], [r, s], sum);
                        i += 1;
                    }
                }
                half += 1;
            }
            ahead[turn] = weights();
            within += if narrow { 0 } else { slices };
            left -= 1;
            turn += 1;
        }
    }

    // The sums take the place of the stages.
    cx.copy_async_wait::<0>();
    cx.barrier();
    // SAFETY: For each width the sums below take at most 40960 bytes, fewer than the stages. All
    // copies are complete, and no warp reads them any more.
    let s = unsafe { cx.shared::<f32>(0) };
    let pitch = width + 4;
    let mut j = 0;
    while j < 8 {
        let mut i = 0;
        while i < 4 {
            // A pair of a fragment has neighboring rows of C, and the second pair is eight columns
            // on. With fewer rows, the sums of a second half of a stage are the lines from 32 on.
            let (line, c) = (8 * j + quarter * 2 + i % 2, own + group + i / 2 * 8);
            // SAFETY: The place is below that of the next slice, and this lane's alone.
            unsafe { cx.shared_set(s, (slice * ROWS + line) * pitch + c, sums[j as usize][i as usize]) };
            i += 1;
        }
        j += 1;
    }
    cx.barrier();
    // A thread has four columns at a time.
    let pieces = width / 4;
    let (mut line, c, lines) = (cx.rank() / pieces, cx.rank() % pieces * 4, THREADS / pieces);
    while line < rows {
        let (mut sum, mut part) = ([0.0; 4], 0);
        while part < 2 * WARPS {
            if part < slices * (ROWS / most) {
                // SAFETY: The place is in the window, because `line` is below `most` and `c` below
                // `width`. `pitch` and `c` are multiples of four, and all warps have passed the
                // barrier.
                let more: [f32; 4] = unsafe { cx.shared_get4(s, (part * most + line) * pitch + c) };
                let mut i = 0;
                while i < 4 {
                    sum[i] += more[i];
                    i += 1;
                }
            }
            part += 1;
        }
        // SAFETY: The row is in C, since `line` is below `rows`. The column is a multiple of four,
        // and no other thread has it in this row.
        unsafe { out.piece(cx, row + line, column + c, sum) };
        line += lines;
    }
}
