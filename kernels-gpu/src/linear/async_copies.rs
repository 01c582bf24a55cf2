//! The copies of one operand's tiles to shared memory.

use thalweg_simt::{Cooperative, Element, SharedMemory};

/// The extent of a tile of C in both dimensions, and so the rows of A and the columns of B in a
/// tile.
pub(super) const TILE: u32 = 128;

/// The most copies of a thread in one step.
const MOST: usize = 4;

/// The copies of 16 bytes that a thread makes in each step along k.
///
/// A *line* is a row of A or a column of B. Lines past the last one are copied from the last one:
/// their sums are never stored. Elements past the last k become zero.
///
/// Each copy has a pointer of its own. With one pointer and offsets, each copy took a
/// multiplication in 64 bits.
#[derive(Clone, Copy)]
pub(super) struct Copies<T> {
    from: [*const T; MOST],
    to: [u32; MOST],
    /// The distance from one step to the next, in elements.
    step: usize,
    /// The first k of copy 0 in a step, and the distance to that of the next copy.
    k: u32,
    k_step: u32,
    count: u32,
}

impl<T: Element> Copies<T> {
    /// Divides a tile of `TILE` lines and `depth` values of k among `threads` threads. `INNER` says
    /// that elements with neighboring k are neighbors in memory; otherwise those of neighboring
    /// lines are. `place` returns where an element goes in shared memory, and `line` which line the
    /// threads copy at a given turn.
    ///
    /// # Safety
    /// `p` points to the element of line 0 and k = 0 of a matrix of `lines` lines, at least one,
    /// with distance `ld` in the outer dimension. Pieces of 16 bytes in the inner dimension are
    /// aligned and complete.
    #[inline(always)]
    pub(super) unsafe fn new<const INNER: bool>(
        rank: u32,
        threads: u32,
        depth: u32,
        (p, ld): (*const T, u32),
        (first, lines): (u32, u32),
        line: impl Fn(u32) -> u32,
        place: impl Fn(u32, u32) -> u32,
    ) -> Self {
        let vector = (16 / size_of::<T>()) as u32;
        let count = TILE * depth / vector / threads;
        let (mut from, mut to) = ([p; MOST], [0; MOST]);
        let pieces = if INNER { depth / vector } else { TILE / vector };
        let (outer, inner) = (rank / pieces, rank % pieces * vector);
        let turn = threads / pieces;
        let mut i = 0;
        while i < count {
            let outer = outer + i * turn;
            let (l, k) = if INNER { (line(outer), inner) } else { (inner, outer) };
            let (row, column) =
                if INNER { ((first + l).min(lines - 1), k) } else { (k, (first + l).min(lines - vector)) };
            // The address may be past the end of the matrix in k. `start_last` does not read there.
            from[i as usize] = p.wrapping_add(row as usize * ld as usize + column as usize);
            to[i as usize] = place(l, k);
            i += 1;
        }
        let step = if INNER { depth as usize } else { depth as usize * ld as usize };
        let (k, k_step) = if INNER { (inner, 0) } else { (outer, turn) };
        Self { from, to, step, k, k_step, count }
    }

    /// Starts the copies of a step in which all values of k exist.
    ///
    /// # Safety
    /// The step is inside the matrix. `at` is the first element of a place of shared memory that
    /// nobody uses until the copies are complete.
    #[inline(always)]
    pub(super) unsafe fn start(&mut self, cx: impl Cooperative, s: SharedMemory<T>, at: u32) {
        let mut i = 0;
        while i < self.count {
            let copy = i as usize;
            // SAFETY: The caller promises that the step is inside the matrix and that the place is
            // free. Both sides are aligned, as the caller of `new` promised.
            unsafe { cx.copy_async::<T, 16>(s, at + self.to[copy], self.from[copy]) };
            self.from[copy] = self.from[copy].wrapping_add(self.step);
            i += 1;
        }
    }

    /// Starts copy `part` of a step in which all values of k exist, if a step has as many. After
    /// all of them comes [`advance`](Self::advance).
    ///
    /// # Safety
    /// What [`start`](Self::start) requires.
    #[inline(always)]
    pub(super) unsafe fn part(&self, cx: impl Cooperative, s: SharedMemory<T>, at: u32, part: u32) {
        if part < self.count {
            let copy = part as usize;
            // SAFETY: The caller promises what `start` requires.
            unsafe { cx.copy_async::<T, 16>(s, at + self.to[copy], self.from[copy]) };
        }
    }

    /// Goes on to the next step, after its copies were started one by one.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        let mut i = 0;
        while i < self.count {
            self.from[i as usize] = self.from[i as usize].wrapping_add(self.step);
            i += 1;
        }
    }

    /// Starts the copies of the last step, in which only `left` values of k exist.
    ///
    /// # Safety
    /// What [`start`](Self::start) requires, for the values of k that exist.
    #[inline(always)]
    pub(super) unsafe fn start_last(&self, cx: impl Cooperative, s: SharedMemory<T>, at: u32, left: u32) {
        let mut i = 0;
        while i < self.count {
            let copy = i as usize;
            let exists = self.k + i * self.k_step < left;
            // SAFETY: The caller promises that the values of k below `left` are inside the matrix,
            // and that the place is free. A piece is complete, so all of it exists if its first
            // element does.
            unsafe { cx.copy_async_or_zero::<T, 16>(s, at + self.to[copy], self.from[copy], exists) };
            i += 1;
        }
    }
}

/// The copies of both operands, and where in the circle of stages they go.
#[cfg(feature = "linear")]
pub(super) struct Pipeline<T, const STAGES: u32> {
    pub(super) a: Copies<T>,
    pub(super) b: Copies<T>,
    pub(super) s: SharedMemory<T>,
    /// The values of k of a step.
    pub(super) depth: u32,
    /// The elements of A's tile in a stage, and of a whole stage.
    pub(super) half: u32,
    pub(super) stage: u32,
    /// The values of k that are not copied yet.
    pub(super) left: u32,
    /// The start of the stage to fill and of the stage to use.
    pub(super) fill: u32,
    pub(super) read: u32,
}

#[cfg(feature = "linear")]
impl<T: Element, const STAGES: u32> Pipeline<T, STAGES> {
    /// Starts the copies of the next step, if there is one, and makes a group of them.
    ///
    /// # Safety
    /// No thread of the block uses the stage that is to be filled.
    #[inline(always)]
    pub(super) unsafe fn start(&mut self, cx: impl Cooperative) {
        // SAFETY: `left` counts the values of k that are left, and the caller promises that nobody
        // uses the stage.
        unsafe {
            if self.left >= self.depth {
                self.a.start(cx, self.s, self.fill);
                self.b.start(cx, self.s, self.fill + self.half);
                self.left -= self.depth;
            } else if self.left > 0 {
                self.a.start_last(cx, self.s, self.fill, self.left);
                self.b.start_last(cx, self.s, self.fill + self.half, self.left);
                self.left = 0;
            }
        }
        cx.copy_async_commit();
        self.fill = self.next(self.fill);
    }

    /// Waits until the copies of the next stage are complete and the block sees them.
    #[inline(always)]
    pub(super) fn wait(&self, cx: impl Cooperative) {
        // As many groups may be under way as there are stages beside the one to use and the one
        // that is free.
        match STAGES {
            2 => cx.copy_async_wait::<0>(),
            3 => cx.copy_async_wait::<1>(),
            _ => cx.copy_async_wait::<2>(),
        }
        cx.barrier();
    }

    /// Goes on to the next stage.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.read = self.next(self.read);
    }

    #[inline(always)]
    fn next(&self, stage: u32) -> u32 {
        let next = stage + self.stage;
        if next == STAGES * self.stage { 0 } else { next }
    }
}
