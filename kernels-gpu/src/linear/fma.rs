//! The product of `f32` operands, by fused multiply-adds.
//!
//! ```text
//! each block, 256 threads: a tile of C of 128 x 128
//!     for each 16 values of k, one step ahead: copy 128 x 16 of A and of B to one of two stages
//!     each thread, 8 x 8 of the tile, 4 values of k at once:
//!         load 8 x 4 of A and 4 x 4 of B twice, 256 multiply-adds
//!     store the sums by way of the epilogue
//! ```
//!
//! Launch: a block for each tile, `z` is the batch. 40 KiB of shared memory.
//! Memory: each operand is read once for each 128 columns or rows of C, mostly from the L2 cache.
//!
//! - A thread has two groups of four neighbouring rows and two of four neighbouring columns, and all
//!   its accesses have 16 bytes.
//! - An operand that is stored along k keeps this order in shared memory: a thread loads four values
//!   of k of a line at once. The lines that the threads of a warp load at the same time lie side by
//!   side, 20 elements apart, so they are in different banks.
//! - Neighbouring lanes have the same rows or the same columns by turns, so that each access of a
//!   warp to shared memory is to few different addresses.

use thalweg_simt::{Cooperative, Shared};

use super::copies::{Copies, Pipeline, TILE};
use super::order::tile;
use super::output::{self, Output, ROWS};

/// Values of k in a step.
const DEPTH: u32 = 16;
const STAGES: u32 = 2;
/// The threads of a block.
pub(super) const THREADS: u32 = 256;
/// The bytes of shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const SHARED: u32 = 4 * STAGES * STAGE;
/// The distance of two lines in shared memory.
const PITCH: u32 = DEPTH + 4;
/// The elements of one operand in a stage, and of a stage.
const HALF: u32 = TILE * PITCH;
const STAGE: u32 = 2 * HALF;

/// Returns where the element of a line and a k is, in elements from the start of its operand's part
/// of a stage.
#[inline(always)]
fn place<const INNER: bool>(line: u32, k: u32) -> u32 {
    if INNER {
        // Lines that are 4 apart are neighbours.
        (line / 32 * 32 + line % 4 * 8 + line / 4 % 8) * PITCH + k
    } else {
        k * TILE + line
    }
}

/// Returns the line that the threads copy at a turn, such that their places are neighbours.
#[inline(always)]
fn line(turn: u32) -> u32 {
    turn / 32 * 32 + turn % 8 * 4 + turn / 8 % 4
}

/// Loads four neighbouring lines and four values of k. The result has a line in each row.
///
/// # Safety
/// `at` is the place of the first line and k = 0 in an operand's part of a stage that is complete.
#[inline(always)]
unsafe fn square<const INNER: bool>(cx: impl Cooperative, s: Shared<f32>, at: u32, k: u32) -> [[f32; 4]; 4] {
    let mut v = [[0f32; 4]; 4];
    let mut i = 0;
    while i < 4 {
        // SAFETY: The caller promises that the elements are there. The places of lines and of values
        // of k that are multiples of 4 are multiples of 16 bytes.
        unsafe {
            if INNER {
                v[i as usize] = cx.shared_get4(s, at + i * 8 * PITCH + k);
            } else {
                let lines = cx.shared_get4(s, at + (k + i) * TILE);
                let mut j = 0;
                while j < 4 {
                    v[j][i as usize] = lines[j];
                    j += 1;
                }
            }
        }
        i += 1;
    }
    v
}

/// Computes a tile of C. `A` says that A is stored along k, and `B` that B is.
///
/// # Safety
/// The operands have the extents, are aligned to 16 bytes and have a multiple of 4 elements in their
/// inner dimension and in their distances. The block has 256 threads and [`SHARED`] bytes.
#[inline(always)]
pub(super) unsafe fn product<const A: bool, const B: bool>(
    cx: impl Cooperative,
    k: u32,
    a: (*const f32, u32),
    b: (*const f32, u32),
    out: Output<f32>,
) {
    let (down, across) = (out.m.div_ceil(TILE), out.n.div_ceil(TILE));
    let (row, column) = tile(cx.block_idx().x, down, across);
    let (row, column) = (row * TILE, column * TILE);
    let (lane, rank) = (cx.lane(), cx.rank());
    // SAFETY: The caller promises what `new` requires of the operands.
    let (a, b) = unsafe {
        (
            Copies::new::<A>(rank, THREADS, DEPTH, a, (row, out.m), line, place::<A>),
            Copies::new::<B>(rank, THREADS, DEPTH, b, (column, out.n), line, place::<B>),
        )
    };
    // A warp has 64 rows and 32 columns: its lanes are 8 x 4.
    let my_row = cx.warp() / 4 * 64 + (lane / 2 % 4 + lane / 16 * 4) * 4;
    let my_column = cx.warp() % 4 * 32 + (lane % 2 + lane / 8 % 2 * 2) * 4;
    let (at_a, at_b) = (place::<A>(my_row, 0), HALF + place::<B>(my_column, 0));
    // From one group of four lines to the next: 32 rows, 16 columns.
    let next_a = if A { 32 * PITCH } else { 32 };
    let next_b = if B { 4 * PITCH } else { 16 };

    // SAFETY: The declaration has the shared memory of all stages.
    let s = unsafe { cx.shared::<f32>(0) };
    let mut pipeline =
        Pipeline::<f32, STAGES> { a, b, s, depth: DEPTH, half: HALF, stage: STAGE, left: k, fill: 0, read: 0 };
    let mut sums = [[0f32; 8]; 8];
    let steps = k.div_ceil(DEPTH);
    // SAFETY: Nobody has used a stage yet.
    unsafe { pipeline.start(cx) };
    let mut step = 0;
    while step < steps {
        pipeline.wait(cx);
        // SAFETY: The stage to fill is the one of the step before, and every thread has loaded from
        // it what it needs before the barrier of the wait.
        unsafe { pipeline.start(cx) };
        let mut k = 0;
        while k < DEPTH {
            // SAFETY: The block has waited for the stage.
            let a = unsafe {
                [square::<A>(cx, s, pipeline.read + at_a, k), square::<A>(cx, s, pipeline.read + at_a + next_a, k)]
            };
            let mut group = 0;
            while group < 2 {
                // SAFETY: The block has waited for the stage.
                let b = unsafe { square::<B>(cx, s, pipeline.read + at_b + group * next_b, k) };
                let mut kk = 0;
                while kk < 4 {
                    let mut i = 0;
                    while i < 8 {
                        let mut j = 0;
                        while j < 4 {
                            let sum = &mut sums[i][group as usize * 4 + j];
                            *sum = cx.fma(a[i / 4][i % 4][kk], b[j][kk], *sum);
                            j += 1;
                        }
                        i += 1;
                    }
                    kk += 1;
                }
                group += 1;
            }
            k += 4;
        }
        pipeline.advance();
        step += 1;
    }

    let mut half = 0;
    while half < TILE / ROWS {
        // After this nobody uses the stages: all copies are complete.
        cx.barrier();
        if cx.warp() / 4 == half {
            let mut i = 0;
            while i < 8 {
                let at = (my_row % ROWS + i as u32 / 4 * 32 + i as u32 % 4) * output::PITCH + my_column;
                let [a, b, c, d, e, f, g, h] = sums[i];
                // SAFETY: The window has `ROWS` rows, which the stages have room for, and each thread
                // stores elements of its own.
                unsafe {
                    cx.shared_set4(s, at, [a, b, c, d]);
                    cx.shared_set4(s, at + 16, [e, f, g, h]);
                }
                i += 1;
            }
        }
        cx.barrier();
        // SAFETY: The block has stored the sums and passed a barrier.
        unsafe { out.rows(cx, s, row + half * ROWS, column) };
        half += 1;
    }
}
