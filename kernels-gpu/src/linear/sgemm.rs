//! The product of `f32` operands, by fused multiply-adds.
//!
//! ```text
//! each block, 256 threads: a tile of C of 128 x 128
//!     for each 8 or 16 values of k, one step ahead: copy this part of A and of B to one of two stages
//!     each thread, 8 x 8 of the tile, for each k:
//!         load 8 of A and of B, 64 multiply-adds
//!     store the sums by way of the epilogue
//! ```
//!
//! Launch: a block for each tile, `z` is the batch. 34 KiB of shared memory. A thread has at most
//! 128 registers, so that two blocks run on a multiprocessor. Memory: each operand is read once for
//! each 128 columns or rows of C, mostly from the L2 cache.
//!
//! - A thread has two groups of four neighboring rows and two of four neighboring columns, and all
//!   its loads from shared memory have 16 bytes.
//! - In shared memory, the lines of one k are neighbors. **An operand that is stored along k is
//!   turned on its way, by copies of 4 bytes.** If lines kept pairs or groups of k side by side,
//!   the operands of a multiply-add would come from registers of one bank, which costs a quarter of
//!   the time.
//! - Neighboring lanes have the same rows or the same columns by turns, so that each access of a
//!   warp to shared memory is to few different addresses.
//! - How many values of k a step has, how many are loaded before the first of them is used, when
//!   copies are started, and the order of the sums are measured for each form:
//!   `benches/record/2026-11-23-h200-products-f32.txt`. Compute capability 9.0 has forms of its
//!   own, in the PTX file `linear_f32_sm_90a`:
//!   `benches/record/2026-11-23-h200-products-f32-spread.txt`.

use thalweg_simt::{Cooperative, SharedMemory};

use super::async_copies::{Copies, TILE};
use super::output::{self, Output, ROWS};
use super::tile_order::tile;

/// The most values of k in a step.
const DEPTH: u32 = 16;
/// The threads of a block.
pub(super) const THREADS: u32 = 256;
/// The blocks that fit on a multiprocessor.
pub(super) const BLOCKS: u32 = 2;
/// The bytes of shared memory of a block. The window of the sums is larger than the two stages.
#[cfg(not(target_arch = "nvptx64"))] // only the launcher names it
pub(super) const SHARED: u32 = 4 * ROWS * output::PITCH;
const _: () = assert!(2 * STAGE <= ROWS * output::PITCH);
/// The distance of two values of k in shared memory.
const PITCH: u32 = TILE + 4;
/// The elements of one operand in a stage, and of a stage.
const HALF: u32 = DEPTH * PITCH;
const STAGE: u32 = 2 * HALF;

/// Returns where the element of a line and a k is, in elements from the start of its operand's part
/// of a stage.
#[inline(always)]
fn place(line: u32, k: u32) -> u32 {
    k * PITCH + line
}

/// The copies of an operand in steps of `STEP` values of k. `INNER` says that it is stored along k.
#[derive(Clone, Copy)]
struct Side<const INNER: bool, const STEP: u32> {
    /// Along lines: copies of 16 bytes.
    wide: Copies<f32>,
    /// Along k: the addresses of the copies of 4 bytes of 8 values of k, the place of the first
    /// one, and its k.
    from: [*const f32; 4],
    to: u32,
    k: u32,
}

impl<const INNER: bool, const STEP: u32> Side<INNER, STEP> {
    /// Divides a tile among the threads of a block.
    ///
    /// # Safety
    /// What [`Copies::new`] requires.
    #[inline(always)]
    unsafe fn new(rank: u32, (p, ld): (*const f32, u32), (first, lines): (u32, u32)) -> Self {
        // SAFETY: The caller promises it. Along k, `wide` is not used, and `max` keeps its
        // arithmetic valid.
        let wide =
            unsafe { Copies::new::<false>(rank, THREADS, STEP, (p, ld), (first, lines.max(4)), |line| line, place) };
        // A warp copies 16 lines, four at a time: 32 bytes of each, to different banks.
        let (line, k) = (rank / 32 * 16 + rank % 32 / 8, rank % 8);
        let mut from = [p; 4];
        let mut i = 0;
        while i < 4 {
            // The address may be past the end of the matrix in k. `start` does not read there.
            let line = (first + line + 4 * i).min(lines - 1);
            from[i as usize] = p.wrapping_add(line as usize * ld as usize + k as usize);
            i += 1;
        }
        Self { wide, from, to: place(line, k), k }
    }

    /// Starts the copies of a step, in which `left` values of k exist, or more.
    ///
    /// # Safety
    /// The values of k that exist are inside the matrix. `at` is the first element of a place of
    /// shared memory that nobody uses until the copies are complete.
    #[inline(always)]
    unsafe fn start(&mut self, cx: impl Cooperative, s: SharedMemory<f32>, at: u32, left: u32) {
        if !INNER {
            // SAFETY: The caller promises it.
            return unsafe {
                if left >= STEP { self.wide.start(cx, s, at) } else { self.wide.start_last(cx, s, at, left) }
            };
        }
        let mut k = 0;
        while k < STEP {
            let mut i = 0;
            while i < 4 {
                let from = self.from[i as usize].wrapping_add(k as usize);
                let to = at + self.to + 4 * i + k * PITCH;
                // SAFETY: The caller promises that the values of k below `left` are inside the
                // matrix and that the place is free.
                unsafe {
                    if left >= STEP {
                        cx.copy_async::<f32, 4>(s, to, from);
                    } else {
                        cx.copy_async_or_zero::<f32, 4>(s, to, from, self.k + k < left);
                    }
                }
                i += 1;
            }
            k += 8;
        }
        let mut i = 0;
        while i < 4 {
            self.from[i] = self.from[i].wrapping_add(STEP as usize);
            i += 1;
        }
    }

    /// Starts copy `part` of a step in which all values of k exist, if a step has as many. After
    /// all of them comes [`advance`](Self::advance).
    ///
    /// # Safety
    /// What [`start`](Self::start) requires.
    #[inline(always)]
    unsafe fn part(&self, cx: impl Cooperative, s: SharedMemory<f32>, at: u32, part: u32) {
        if !INNER {
            // SAFETY: The caller promises it.
            return unsafe { self.wide.part(cx, s, at, part) };
        }
        if part < STEP / 2 {
            let (k, i) = (part / 4 * 8, part % 4);
            let from = self.from[i as usize].wrapping_add(k as usize);
            // SAFETY: The caller promises it.
            unsafe { cx.copy_async::<f32, 4>(s, at + self.to + 4 * i + k * PITCH, from) };
        }
    }

    /// Goes on to the next step, after its copies were started one by one.
    #[inline(always)]
    fn advance(&mut self) {
        if !INNER {
            return self.wide.advance();
        }
        let mut i = 0;
        while i < 4 {
            self.from[i] = self.from[i].wrapping_add(STEP as usize);
            i += 1;
        }
    }
}

/// Two groups of four lines of each operand, at one k.
#[derive(Clone, Copy)]
struct Values {
    a: [[f32; 4]; 2],
    b: [[f32; 4]; 2],
}

/// Loads the values of a k. The groups of A are 32 lines apart and those of B 16.
///
/// # Safety
/// `a` and `b` are the places of the first lines in a stage that is complete.
#[inline(always)]
unsafe fn values(cx: impl Cooperative, s: SharedMemory<f32>, a: u32, b: u32) -> Values {
    // SAFETY: The caller promises that the elements are there. The places of lines that are
    // multiples of 4 are multiples of 16 bytes.
    unsafe {
        Values {
            a: [cx.shared_get4(s, a), cx.shared_get4(s, a + 32)],
            b: [cx.shared_get4(s, b), cx.shared_get4(s, b + 16)],
        }
    }
}

/// Computes a tile of C. `A` says that A is stored along k, and `B` that B is. A step has `STEP`
/// values of k, 8 or 16. `AHEAD` of them, 1, 2 or 4, are loaded before the first of these is used;
/// with 0, one is loaded before the one before it is used.
///
/// With `SPREAD`, the copies of the next step are started between the values of k, one of each
/// operand at each, and not all before the first one. With `TURN`, every second row of sums goes
/// backwards, so that two multiply-adds that follow one another have an operand in common also
/// where the row changes.
///
/// # Safety
/// The operands have the extents, are aligned to 16 bytes and have a multiple of 4 elements in
/// their inner dimension and in their distances. The block has 256 threads and [`SHARED`] bytes.
#[inline(always)]
pub(super) unsafe fn product<
    const A: bool,
    const B: bool,
    const STEP: u32,
    const AHEAD: u32,
    const SPREAD: bool,
    const TURN: bool,
>(
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
    let (mut a, mut b) =
        unsafe { (Side::<A, STEP>::new(rank, a, (row, out.m)), Side::<B, STEP>::new(rank, b, (column, out.n))) };
    // A warp has 64 rows and 32 columns: its lanes are 8 x 4.
    let my_row = cx.warp() / 4 * 64 + (lane / 2 % 4 + lane / 16 * 4) * 4;
    let my_column = cx.warp() % 4 * 32 + (lane % 2 + lane / 8 % 2 * 2) * 4;

    // SAFETY: The declaration has the shared memory of both stages.
    let s = unsafe { cx.shared::<f32>(0) };
    let mut sums = [[0f32; 8]; 8];
    // The values of k that are not multiplied yet, and the stage that has the next of them.
    let (mut left, mut read) = (k, 0);
    if left > 0 {
        // SAFETY: Nobody has used a stage yet.
        unsafe {
            a.start(cx, s, 0, left);
            b.start(cx, s, HALF, left);
        }
        cx.copy_async_commit();
        cx.copy_async_wait::<0>();
        cx.barrier();
    }
    while left > 0 {
        left = left.saturating_sub(STEP);
        let fill = STAGE - read;
        if SPREAD && left >= STEP {
            // The copies are started below. Those of an incomplete step are not, so that they need
            // no conditions.
        } else if left > 0 {
            // SAFETY: Every thread has loaded what it needs from the stage of the step before,
            // before the barrier at the end of that step.
            unsafe {
                a.start(cx, s, fill, left);
                b.start(cx, s, fill + HALF, left);
            }
            cx.copy_async_commit();
        }
        let (at_a, at_b) = (read + my_row, read + HALF + my_column);
        // SAFETY: The block has waited for the stage.
        let load = |k: u32| unsafe { values(cx, s, at_a + k * PITCH, at_b + k * PITCH) };
        let mut next = [load(0); 4];
        let mut k = 0;
        while k < STEP {
            if SPREAD && left >= STEP {
                let mut part = k;
                while part < k + AHEAD.max(1) {
                    // SAFETY: As above, nobody uses the stage to fill any more.
                    unsafe {
                        a.part(cx, s, fill, part);
                        b.part(cx, s, fill + HALF, part);
                    }
                    part += 1;
                }
            }
            let now = if AHEAD == 0 {
                let now = next;
                if k + 1 < STEP {
                    next[0] = load(k + 1);
                }
                now
            } else {
                let mut now = next;
                let mut i = 0;
                while i < AHEAD {
                    now[i as usize] = load(k + i);
                    i += 1;
                }
                now
            };
            let mut of = 0;
            while of < AHEAD.max(1) {
                let Values { a, b } = now[of as usize];
                let mut i = 0;
                while i < 8 {
                    let mut j = 0;
                    while j < 8 {
                        let column = if TURN && i % 2 == 1 { 7 - j } else { j };
                        sums[i][column] = cx.fma(a[i / 4][i % 4], b[column / 4][column % 4], sums[i][column]);
                        j += 1;
                    }
                    i += 1;
                }
                of += 1;
            }
            k += AHEAD.max(1);
        }
        if SPREAD && left >= STEP {
            cx.copy_async_commit();
            a.advance();
            b.advance();
        }
        cx.copy_async_wait::<0>();
        cx.barrier();
        read = fill;
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
                // SAFETY: The window has `ROWS` rows, and each thread stores elements of its own.
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
