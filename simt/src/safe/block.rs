//! The block, and the steps of its threads.

use core::fmt;
use core::marker::PhantomData;

use super::report;
use super::shared::{Adding, Filled, Fresh, Reading, Turn, Window, Writing};
use super::team::{Exchange, Member, Team};
use super::thread::{self, Brand, Thread, Witness, rank, threads};
use crate::element::loadable;
use crate::{Dim3, Element, Simt, Word};

/// The block, in a body over `Cooperative`. Code that holds it sees nothing that differs between
/// the threads of the block, so all of them take the same way through it and meet at the same
/// barriers. There is one for each body, and nobody can make or copy one.
pub struct Block<'k, M> {
    team: M,
    /// The bytes of shared memory that windows occupy.
    used: u32,
    /// Whether the next step runs the threads in descending order, where they run one after
    /// another.
    descending: bool,
    /// Whether the compiler knows the number of threads, because the declaration states it.
    shaped: bool,
    brand: Brand<'k>,
}

impl<M> fmt::Debug for Block<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("used", &self.used).finish_non_exhaustive()
    }
}

impl<M: Team> thread::Sealed for Block<'_, M> {}
impl<'k, M: Team> Witness<'k> for Block<'k, M> {
    type Cx = M::Cx;
    #[inline(always)]
    unsafe fn context(&self) -> M::Cx {
        self.first()
    }
}

/// A value of each thread: a register on a GPU. Code of the block holds it and cannot look inside.
pub struct Local<'k, M: Team, T: Copy> {
    values: M::Values<T>,
    brand: Brand<'k>,
}

impl<M: Team, T: Copy> fmt::Debug for Local<'_, M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

impl<'k, M: Team, T: Copy> Local<'k, M, T> {
    /// Returns the thread's own value.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, t: &Thread<'k, M::Cx>) -> T {
        M::value(&self.values, **t).get()
    }

    /// Replaces the thread's own value.
    #[inline(always)]
    pub fn set(&self, t: &Thread<'k, M::Cx>, v: T) {
        M::value(&self.values, **t).set(v);
    }
}

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

impl<'k, T: Element> Reading<'k, T> {
    /// Loads an element for the code of the block: all threads read the same. One outside the
    /// window is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn uniform<M: Team>(&self, b: &Block<'k, M>, i: u32) -> T {
        // SAFETY: The witness stays here. What it is used for gives the same in each thread: all
        // read one element, and since the barrier that made this handle nobody writes the window.
        self.get(&unsafe { Thread::new(b.first()) }, i)
    }
}

/// A value that a thread step takes along besides what its closure captures: `()`, references to
/// handles of the block, and tuples of them.
#[diagnostic::on_unimplemented(
    message = "a thread step cannot take `{Self}`",
    label = "a step takes handles of its block",
    note = "a step takes `()`, `&Reading`, `&Writing`, `&Adding`, `&Local`, or a tuple of them. Shared memory that is `Fresh` \
            is given values by `fill` first, and what `fill` returns is read after `sync`"
)]
pub trait Handles: Sealed + Copy {}

macro_rules! handles {
    ($($name:ident)*) => {$(
        impl<T> Sealed for &$name<'_, T> {}
        impl<T> Handles for &$name<'_, T> {}
    )*};
}
handles!(Reading Writing Adding);
impl<M: Team, T: Copy> Sealed for &Local<'_, M, T> {}
impl<M: Team, T: Copy> Handles for &Local<'_, M, T> {}

macro_rules! tuples {
    ($(($($a:ident),*))*) => {$(
        impl<$($a: Handles),*> Sealed for ($($a,)*) {}
        impl<$($a: Handles),*> Handles for ($($a,)*) {}
    )*};
}
tuples! { () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

impl<'k, M: Team> Block<'k, M> {
    /// Makes the block of a body.
    ///
    /// # Safety
    /// The caller makes one for each block of the launch that `'k` names, or on a GPU one in each
    /// thread of it, and passes it to the body.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn new(team: M, shaped: bool) -> Self {
        Self { team, used: 0, descending: false, shaped, brand: PhantomData }
    }

    #[inline(always)]
    fn first(&self) -> M::Cx {
        self.team.first()
    }

    /// Returns the position of the block in the grid.
    #[must_use]
    #[inline(always)]
    pub fn idx(&self) -> Dim3 {
        self.first().block_idx()
    }

    /// Returns the number of threads of the block, by dimension.
    #[must_use]
    #[inline(always)]
    pub fn dim(&self) -> Dim3 {
        self.first().block_dim()
    }

    /// Returns the number of blocks in the grid, by dimension.
    #[must_use]
    #[inline(always)]
    pub fn grid(&self) -> Dim3 {
        self.first().grid_dim()
    }

    /// Returns the number of threads of the block.
    #[must_use]
    #[inline(always)]
    pub fn threads(&self) -> u32 {
        threads(self.first())
    }

    /// Returns a window of `len` elements of the block's shared memory. Windows never overlap. If
    /// fewer bytes are left of what the declaration asks for, this is reported.
    #[inline(always)]
    #[track_caller]
    pub fn shared<T: Element>(&mut self, len: u32) -> Fresh<'k, T> {
        const { assert!(size_of::<T>() <= u32::MAX as usize, "shared memory has no room for such an element") };
        const { loadable::<T>() };
        let (size, all) = (size_of::<T>() as u32, self.team.shared_bytes());
        let start = self.used.next_multiple_of(size);
        let end = len.checked_mul(size).and_then(|bytes| start.checked_add(bytes)).filter(|end| *end <= all);
        let Some(end) = end else { report::no_shared(len, size_of::<T>(), all.saturating_sub(start)) };
        self.used = end;
        // SAFETY: `start` is a multiple of the element's size, and the elements are inside the
        // shared memory of the block. `used` says that no other window has them.
        Fresh(unsafe { Window::new(self.first().__window(start), len) })
    }

    /// Runs `f` in every thread. The closure cannot wait and cannot change what block code sees.
    /// What it returns is a value of each thread.
    #[inline(always)]
    pub fn each<A: Handles, R: Copy + 'k>(
        &self,
        a: A,
        f: impl Fn(&Thread<'k, M::Cx>, A) -> R + Copy + 'k,
    ) -> Local<'k, M, R> {
        let values = self.team.each(self.descending, |cx| {
            // SAFETY: The team runs this in the thread whose context it passes, and the witness
            // goes to the step by reference.
            f(&unsafe { Thread::new(cx) }, a)
        });
        Local { values, brand: PhantomData }
    }

    /// Gives every element of a window a value: `f` is asked for each index, by the thread to whose
    /// index in the block it is congruent, modulo the number of threads.
    #[inline(always)]
    pub fn fill<T: Element, A: Handles>(
        &self,
        to: Fresh<'k, T>,
        a: A,
        f: impl Fn(&Thread<'k, M::Cx>, A, u32) -> T + Copy + 'k,
    ) -> Filled<'k, T> {
        self.team.each(self.descending, |cx| {
            // SAFETY: The team runs this in the thread whose context it passes, and the witness
            // goes to the step by reference.
            let t = unsafe { Thread::new(cx) };
            let (rank, threads) = (rank(cx), threads(cx));
            // One loop with one call, so that a large closure is still compiled into it. Shared
            // memory is small, so the loop does not wrap.
            let mut at = if self.shaped { 0 } else { rank };
            while at < to.0.len() {
                // With a shape, the number of turns is the same constant for each thread, so the
                // loop is unrolled. Otherwise the compiler would compute it by a division.
                let i = if self.shaped { at + rank } else { at };
                if i < to.0.len() {
                    let v = f(&t, a, i);
                    // SAFETY: `i` is inside the window. No other thread uses element `i`: `fill` is
                    // the only access to a fresh window, and the indices of two threads are not
                    // congruent.
                    unsafe { cx.__set(to.0.start(), i, v) };
                }
                at += threads;
            }
        });
        Filled(to.0)
    }

    /// Gives a window the value of each thread, at the thread's index in the block. Elements past
    /// the last thread are zero bytes.
    #[inline(always)]
    pub fn publish<T: Element + Default>(&self, to: Fresh<'k, T>, v: &Local<'k, M, T>) -> Filled<'k, T> {
        self.fill(to, v, |t, v, i| if i == t.rank() { v.get(t) } else { T::default() })
    }

    /// Gives element `w` of a window the value of the first thread of warp `w`. Elements past the
    /// last warp are zero bytes.
    #[inline(always)]
    pub fn publish_warps<T: Element + Default>(&self, to: Fresh<'k, T>, v: &Local<'k, M, T>) -> Filled<'k, T> {
        self.team.each(self.descending, |cx| {
            let (rank, threads) = (rank(cx), threads(cx));
            if rank % 32 == 0 && rank / 32 < to.0.len() {
                // SAFETY: The condition says that the index is inside the window. Only the first
                // thread of a warp uses the warp's element.
                unsafe { cx.__set(to.0.start(), rank / 32, M::value(&v.values, cx).get()) };
            }
            let mut i = threads.div_ceil(32) + rank;
            while i < to.0.len() {
                // SAFETY: The loop's condition says that `i` is inside the window. The indices of
                // two threads are not congruent, and no warp has such a large number.
                unsafe { cx.__set(to.0.start(), i, T::default()) };
                i += threads; // shared memory is small, so it does not wrap
            }
        });
        Filled(to.0)
    }

    /// Gives element `k * pitch + i` of a window the value `k` of the thread with index `i` in the
    /// block. All other elements are zero bytes. If `pitch` is smaller than the number of threads
    /// or the `N` rows do not fit into the window, this is reported.
    #[inline(always)]
    #[track_caller]
    pub fn publish_rows<T: Element + Default, const N: usize>(
        &self,
        to: Fresh<'k, T>,
        pitch: u32,
        v: &Local<'k, M, [T; N]>,
    ) -> Filled<'k, T> {
        let rows = u32::try_from(N).unwrap_or(u32::MAX);
        let all = rows.checked_mul(pitch).filter(|all| *all <= to.0.len() && pitch >= self.threads());
        let Some(all) = all else { report::outside_shared(pitch, to.0.len()) };
        self.team.each(self.descending, |cx| {
            let (rank, threads) = (rank(cx), threads(cx));
            let row = M::value(&v.values, cx).get();
            for (k, v) in row.into_iter().enumerate() {
                let start = k as u32 * pitch;
                // SAFETY: `rank` is below `pitch`, and all rows are inside the window. No other
                // thread has this index.
                unsafe { cx.__set(to.0.start(), start + rank, v) };
                let mut i = threads + rank;
                while i < pitch {
                    // SAFETY: The element is in the row, behind the threads' values. The indices of
                    // two threads are not congruent.
                    unsafe { cx.__set(to.0.start(), start + i, T::default()) };
                    i += threads; // shared memory is small, so it does not wrap
                }
            }
            let mut i = all + rank;
            while i < to.0.len() {
                // SAFETY: The loop's condition says that the element is inside the window, and it
                // is behind the rows. The indices of two threads are not congruent.
                unsafe { cx.__set(to.0.start(), i, T::default()) };
                i += threads; // shared memory is small, so it does not wrap
            }
        });
        Filled(to.0)
    }

    /// Waits until every thread of the block is here (`__syncthreads`), and turns the handles into
    /// their next phase. `sync(())` only waits.
    #[inline(always)]
    pub fn sync<S: Turn>(&mut self, s: S) -> S::Then {
        self.wait();
        s.then()
    }

    #[inline(always)]
    fn wait(&mut self) {
        // SAFETY: This is code of the block, so all threads of the block reach it: nothing that
        // differs between threads is visible to it.
        unsafe { self.team.meet() };
        self.descending = !self.descending;
    }

    /// Waits as [`sync`](Self::sync) does, and returns whether the value of any thread is true. The
    /// result is the same in all threads, so block code may branch on it.
    #[must_use]
    #[inline(always)]
    pub fn any(&mut self, v: &Local<'k, M, bool>) -> bool {
        self.descending = !self.descending;
        // SAFETY: This is code of the block, so all threads of the block reach it.
        unsafe { self.team.any(&v.values) }
    }

    #[inline(always)]
    fn exchange<T: Word, R: Word>(&mut self, op: Exchange, v: &Local<'k, M, T>, argument: u32) -> Local<'k, M, R> {
        let words = self.team.each(self.descending, |cx| M::value(&v.values, cx).get().to_word());
        // SAFETY: This is code of the block, so all threads of the block reach it. `argument` is a
        // value of block code, so it is the same in all of them.
        let words = unsafe { self.team.exchange(op, &words, argument) };
        let values = self.team.each(self.descending, |cx| R::from_word(M::value(&words, cx).get()));
        Local { values, brand: PhantomData }
    }

    /// Gives each thread the value of the thread whose lane is its own `^ mask`, in each warp. Only
    /// the low five bits of `mask` count, as on a GPU.
    #[inline(always)]
    pub fn shuffle_xor<T: Word>(&mut self, v: &Local<'k, M, T>, mask: u32) -> Local<'k, M, T> {
        self.exchange(Exchange::Xor, v, mask)
    }
    /// Gives each thread the value of the lane `delta` below its own. A thread without such a lane
    /// keeps its value. Only the low five bits of `delta` count: by 33 is by 1.
    #[inline(always)]
    pub fn shuffle_up<T: Word>(&mut self, v: &Local<'k, M, T>, delta: u32) -> Local<'k, M, T> {
        self.exchange(Exchange::Up, v, delta)
    }
    /// Gives each thread the value of the lane `delta` above its own. A thread without such a lane
    /// keeps its value. Only the low five bits of `delta` count: by 33 is by 1.
    #[inline(always)]
    pub fn shuffle_down<T: Word>(&mut self, v: &Local<'k, M, T>, delta: u32) -> Local<'k, M, T> {
        self.exchange(Exchange::Down, v, delta)
    }
    /// Gives each thread the values of its warp, as bits: bit `i` is that of lane `i`.
    #[inline(always)]
    pub fn ballot(&mut self, v: &Local<'k, M, bool>) -> Local<'k, M, u32> {
        let values = self.team.each(self.descending, |cx| u32::from(M::value(&v.values, cx).get()));
        self.exchange(Exchange::Ballot, &Local { values, brand: PhantomData }, 0)
    }
    /// Gives each thread the sum over its warp. It is a butterfly, so it rounds the same on both
    /// devices.
    #[inline(always)]
    pub fn warp_sum(&mut self, v: &Local<'k, M, f32>) -> Local<'k, M, f32> {
        self.exchange(Exchange::SumF32, v, 0)
    }
    /// Gives each thread the largest value of its warp.
    #[inline(always)]
    pub fn warp_max(&mut self, v: &Local<'k, M, f32>) -> Local<'k, M, f32> {
        self.exchange(Exchange::MaxF32, v, 0)
    }
    /// Gives each thread the smallest value of its warp.
    #[inline(always)]
    pub fn warp_min(&mut self, v: &Local<'k, M, f32>) -> Local<'k, M, f32> {
        self.exchange(Exchange::MinF32, v, 0)
    }
    /// Gives each thread the sum over its warp, modulo 2^32.
    #[inline(always)]
    pub fn warp_sum_u32(&mut self, v: &Local<'k, M, u32>) -> Local<'k, M, u32> {
        self.exchange(Exchange::SumU32, v, 0)
    }

    /// Computes `a * b[i] + c[i]` modulo 2^32 for each `i`, in each warp for itself, on tensor
    /// cores (`mma.m16n8k32`). `a` has 16 x 32 bytes, with signs if `SIGNED`; `b[i]` has 32 x 8
    /// bytes without signs, and `c[i]` 16 x 8 sums. A GPU needs compute capability 8.0.
    ///
    /// Each thread holds a part of each matrix. With `g = lane / 4` and `t = lane % 4`:
    ///
    /// | matrix | part of a thread | row | column |
    /// |---|---|---|---|
    /// | A | byte `e` of word `w` | `g + 8 * (w % 2)` | `4 * t + e + 16 * (w / 2)` |
    /// | B | byte `e` of word `w` | `4 * t + e + 16 * w` | `g` |
    /// | C and the result | sum `e` | `g + 8 * (e / 2)` | `2 * t + e % 2` |
    #[inline(always)]
    pub fn multiply_bytes<const SIGNED: bool, const N: usize>(
        &mut self,
        a: &Local<'k, M, [u32; 4]>,
        b: &Local<'k, M, [[u32; 2]; N]>,
        c: &Local<'k, M, [[i32; 4]; N]>,
    ) -> Local<'k, M, [[i32; 4]; N]> {
        // SAFETY: This is code of the block, so all threads of the block reach it.
        let values = unsafe { self.team.multiply_bytes(SIGNED, &a.values, &b.values, &c.values) };
        Local { values, brand: PhantomData }
    }
}
