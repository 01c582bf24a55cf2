//! The product of 16-bit operands on tensor cores.
//!
//! ```text
//! each block, 128 threads in 4 warps: a tile of C of 128 x 128
//!     for each 32 values of k, two steps ahead: copy 128 x 32 of A and of B to one of three stages
//!     each warp, 64 x 64 of the tile, 16 values of k at once:
//!         load 4 fragments of A and 8 of B, 32 products of 16 x 8 x 16
//!     store the sums by way of the epilogue
//! ```
//!
//! Launch: a block for each tile, `z` is the batch. 48 KiB of shared memory.
//! Memory: each operand is read once for each 128 columns or rows of C, mostly from the L2 cache.
//!
//! - A warp loads the fragments of the next 16 values of k before it multiplies those that it has,
//!   also across the barrier. So the tensor cores do not wait for shared memory.
//! - In shared memory, pieces of 16 bytes are at places exchanged by the exclusive or with the
//!   number of their row. So the eight rows of a small matrix lie in different banks, and copies do
//!   not conflict either.
//! - Operands that are stored along their lines are transposed by `ldmatrix`.

use thalweg_simt::{Cooperative, SharedMemory};

use super::async_copies::{Copies, Pipeline, TILE};
use super::number::Half;
use super::output::{Output, PITCH, ROWS};
use super::tile_order::tile;

/// Values of k in a step.
const DEPTH: u32 = 32;
const STAGES: u32 = 3;
/// The threads of a block.
pub(super) const THREADS: u32 = 128;
/// The bytes of shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const SHARED: u32 = 2 * STAGES * STAGE;
/// The elements of one operand in a stage, and of a stage.
const HALF: u32 = TILE * DEPTH;
const STAGE: u32 = 2 * HALF;

/// Returns where the element of a line and a k is, in elements from the start of its operand's part
/// of a stage.
#[inline(always)]
fn place<const INNER: bool>(line: u32, k: u32) -> u32 {
    if INNER {
        // Two lines of four pieces each fill the 32 banks.
        line * DEPTH + ((k / 8) ^ (line / 2 % 4)) * 8
    } else {
        k * TILE + ((line / 8) ^ (k % 8)) * 8
    }
}

/// Returns the places of this lane's rows of the small matrices: for each 16 lines if those are
/// neighbors in memory, else for each 16 values of k. `line` and `k` are those of the lane's row
/// in the first fragment.
#[inline(always)]
fn rows<const INNER: bool>(line: u32, k: u32) -> [u32; 4] {
    let mut at = [0; 4];
    let mut i = 0;
    while i < 4 {
        at[i as usize] = if INNER { place::<true>(line, k + 16 * (i % 2)) } else { place::<false>(line + 16 * i, k) };
        i += 1;
    }
    at
}

/// Loads the fragment of 16 lines, `i`, and 16 values of k, `h`.
///
/// # Safety
/// `at` are the lane's [`rows`] in an operand's part of a stage, which starts at `stage` and is
/// complete. All 32 lanes call this.
#[inline(always)]
unsafe fn fragment<E: Half, const INNER: bool>(
    cx: impl Cooperative,
    s: SharedMemory<E>,
    at: [u32; 4],
    stage: u32,
    i: u32,
    h: u32,
) -> [u32; 4] {
    // SAFETY: The caller promises that the operand's part of the stage is complete. The rows are in
    // it, and each is a piece of 16 bytes.
    unsafe {
        if INNER {
            cx.load_matrices(s, stage + at[h as usize] + i * 16 * DEPTH)
        } else {
            cx.load_matrices_transposed(s, stage + at[i as usize] + h * 16 * TILE)
        }
    }
}

/// The fragments of 64 lines of each operand and 16 values of k.
#[derive(Clone, Copy)]
struct Fragments {
    a: [[u32; 4]; 4],
    b: [[u32; 4]; 4],
}

/// Computes a tile of C. `A` says that A is stored along k, and `B` that B is.
///
/// # Safety
/// The operands have the extents, are aligned to 16 bytes and have a multiple of 8 elements in
/// their inner dimension and in their distances. The block has 128 threads and [`SHARED`] bytes.
#[inline(always)]
pub(super) unsafe fn product<E: Half, const A: bool, const B: bool>(
    cx: impl Cooperative,
    k: u32,
    a: (*const E, u32),
    b: (*const E, u32),
    out: Output<E>,
) {
    let (down, across) = (out.m.div_ceil(TILE), out.n.div_ceil(TILE));
    let (row, column) = tile(cx.block_idx().x, down, across);
    let (row, column) = (row * TILE, column * TILE);
    let (lane, rank) = (cx.lane(), cx.rank());
    let (warp_row, warp_column) = (cx.warp() / 2 * 64, cx.warp() % 2 * 64);
    // SAFETY: The caller promises what `new` requires of the operands.
    let (a, b) = unsafe {
        (
            Copies::new::<A>(rank, THREADS, DEPTH, a, (row, out.m), |line| line, place::<A>),
            Copies::new::<B>(rank, THREADS, DEPTH, b, (column, out.n), |line| line, place::<B>),
        )
    };
    // The four small matrices of a fragment of A are ordered by rows first, those of B by k first.
    let at_a = if A {
        rows::<A>(warp_row + lane % 16, lane / 16 * 8)
    } else {
        rows::<A>(warp_row + lane / 8 % 2 * 8, lane % 8 + lane / 16 * 8)
    };
    let at_b = if B {
        rows::<B>(warp_column + lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8)
    } else {
        rows::<B>(warp_column + lane / 16 * 8, lane % 16)
    };

    // SAFETY: The declaration has the shared memory of all stages.
    let s = unsafe { cx.shared::<E>(0) };
    let mut pipeline =
        Pipeline::<E, STAGES> { a, b, s, depth: DEPTH, half: HALF, stage: STAGE, left: k, fill: 0, read: 0 };
    let load = |stage: u32, h: u32| {
        let mut f = Fragments { a: [[0; 4]; 4], b: [[0; 4]; 4] };
        let mut i = 0;
        while i < 4 {
            // SAFETY: The block has waited for the stage, and all lanes call this.
            unsafe {
                f.a[i as usize] = fragment::<E, A>(cx, s, at_a, stage, i, h);
                f.b[i as usize] = fragment::<E, B>(cx, s, at_b, stage + HALF, i, h);
            }
            i += 1;
        }
        f
    };

    let mut sums = [[[0f32; 4]; 8]; 4];
    let steps = k.div_ceil(DEPTH);
    // SAFETY: Nobody has used a stage yet.
    unsafe {
        pipeline.start(cx);
        pipeline.start(cx);
    }
    if steps > 0 {
        pipeline.wait(cx);
        let mut ahead = load(pipeline.read, 0);
        let mut step = 0;
        while step < steps {
            let mut h = 0;
            while h < DEPTH / 16 {
                let now = ahead;
                if h == 0 {
                    ahead = load(pipeline.read, 1);
                    // SAFETY: The stage to fill is the one of the step before. Every thread has
                    // loaded its last fragments before the barrier of the wait below.
                    unsafe { pipeline.start(cx) };
                } else if step + 1 < steps {
                    pipeline.advance();
                    pipeline.wait(cx);
                    ahead = load(pipeline.read, 0);
                }
                let mut i = 0;
                while i < 4 {
                    let mut j = 0;
                    while j < 8 {
                        let b = now.b[j / 2];
                        sums[i][j] = E::mma(cx, now.a[i], [b[j % 2 * 2], b[j % 2 * 2 + 1]], sums[i][j]);
                        j += 1;
                    }
                    i += 1;
                }
                h += 1;
            }
            step += 1;
        }
    }

    // SAFETY: The stages have more bytes, and nobody uses them after the first barrier below: all
    // copies are complete.
    let (s, pairs) = unsafe { (cx.shared::<f32>(0), cx.shared::<u64>(0)) };
    let mut half = 0;
    while half < TILE / ROWS {
        cx.barrier();
        if warp_row == half * ROWS {
            let lane = cx.lane();
            let mut i = 0;
            while i < 4 {
                let mut j = 0;
                while j < 8 {
                    let at = (i as u32 * 16 + lane / 4) * PITCH + warp_column + j as u32 * 8 + lane % 4 * 2;
                    let [a, b, c, d] = sums[i][j].map(|sum| u64::from(sum.to_bits()));
                    // SAFETY: The window has `ROWS` rows, and each thread stores pairs of its own.
                    unsafe {
                        cx.shared_set(pairs, at / 2, a | b << 32);
                        cx.shared_set(pairs, (at + 8 * PITCH) / 2, c | d << 32);
                    }
                    j += 1;
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
