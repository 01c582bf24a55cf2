//! A thread of a block: the context of a kernel's body on the host.

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use corosensei::Yielder;

use super::matrices::WIDE;
use super::monitor::{Access, Monitor, Unchecked};
use super::place::Place;
use super::warp::{At, Lane};
use crate::{Cooperative, Dim3, Element, SharedMemory, Simt, Word};

/// One thread of a block on the host. `M` says whether its accesses are checked.
#[derive(Clone, Copy)]
pub struct CpuThread<'a, M = Unchecked> {
    pub(super) place: &'a Place<'a>,
    pub(super) idx: Dim3,
    pub(super) rank: u32,
    /// The coroutine, if the thread is cooperative.
    pub(super) fiber: Option<Fiber<'a>>,
    pub(super) monitor: PhantomData<M>,
}

impl<M> fmt::Debug for CpuThread<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuThread").field("block", &self.place.idx).field("idx", &self.idx).finish()
    }
}

/// The means by which a cooperative thread waits: its coroutine and its lane.
#[derive(Clone, Copy)]
pub(super) struct Fiber<'a> {
    pub(super) yielder: &'a Yielder<(), ()>,
    pub(super) lane: &'a Lane,
}

impl<'a, M: Monitor> CpuThread<'a, M> {
    /// Returns what a cooperative thread waits with.
    #[inline]
    pub(super) fn fiber(self) -> Fiber<'a> {
        let Some(fiber) = self.fiber else {
            panic!("a kernel over `Simt` cannot wait for other threads: declare it over `Cooperative`");
        };
        fiber
    }

    /// Waits for the other threads and returns this thread's result.
    #[inline]
    #[track_caller]
    fn meet(self, at: At, value: u32, argument: u32) -> u32 {
        self.meet_64(at, value.into(), argument) as u32
    }

    /// Does the same as [`meet`](Self::meet) with 64 bits.
    #[inline]
    #[track_caller]
    pub(super) fn meet_64(self, at: At, value: u64, argument: u32) -> u64 {
        let Fiber { yielder, lane } = self.fiber();
        lane.value.set(value);
        lane.argument.set(argument);
        lane.at.set(at);
        lane.location.set(Location::caller());
        yielder.suspend(());
        lane.value.get()
    }

    /// Waits for the other threads of the warp in a matrix operation. Returns this thread's first
    /// four words of the result.
    #[inline]
    #[track_caller]
    pub(super) fn meet_wide(self, at: At, words: &[u32]) -> [u32; 4] {
        let Fiber { yielder, lane } = self.fiber();
        let mut wide = [0; WIDE];
        wide[..words.len()].copy_from_slice(words);
        lane.wide.set(wide);
        lane.at.set(at);
        lane.location.set(Location::caller());
        yielder.suspend(());
        let [a, b, c, d, ..] = lane.wide.get();
        [a, b, c, d]
    }
}

impl<M: Monitor> Simt for CpuThread<'_, M> {
    #[inline(always)]
    fn thread_idx(self) -> Dim3 {
        self.idx
    }
    #[inline(always)]
    fn block_idx(self) -> Dim3 {
        self.place.idx
    }
    #[inline(always)]
    fn block_dim(self) -> Dim3 {
        self.place.dim
    }
    #[inline(always)]
    fn grid_dim(self) -> Dim3 {
        self.place.grid
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn load<T: Element>(self, p: *const T) -> T {
        // SAFETY: The caller promises that `p` is aligned and points to an element of device
        // memory.
        unsafe { T::load_relaxed(self.global_access(p, 1, align_of::<T>(), Access::Read)) }
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn store<T: Element>(self, p: *mut T, v: T) {
        // SAFETY: The caller promises that `p` is aligned and points to an element of device
        // memory.
        unsafe { T::store_relaxed(self.global_access(p, 1, align_of::<T>(), Access::Write), v) }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn load4<T: Word>(self, p: *const T) -> [T; 4] {
        let p = self.global_access(p, 4, 16, Access::Read);
        // SAFETY: The caller promises that `p` is 16-byte aligned and valid for reads of 16 bytes,
        // and that no thread of the grid writes there. So an ordinary read does not race. An atomic
        // load would need memory that is also valid for writes, and bodies load constants here too.
        unsafe { p.cast::<[T; 4]>().read() }
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn store4<T: Word>(self, p: *mut T, v: [T; 4]) {
        let p = self.global_access(p, 4, 16, Access::Write);
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: The caller promises that `p` is aligned and points to four words of device
            // memory, and `i` is at most 3.
            unsafe { T::store_relaxed(p.add(i), v) };
        }
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn store4_streaming<T: Word>(self, p: *mut T, v: [T; 4]) {
        // SAFETY: `store4` requires the same of `p` as this function.
        unsafe { self.store4(p, v) };
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn store2_streaming<T: Word>(self, p: *mut T, v: [T; 2]) {
        let p = self.global_access(p, 2, 8, Access::Write);
        // SAFETY: The caller promises that `p` is aligned and points to two words of device memory.
        unsafe {
            T::store_relaxed(p, v[0]);
            T::store_relaxed(p.add(1), v[1]);
        }
    }
}

impl<M: Monitor> Cooperative for CpuThread<'_, M> {
    #[inline]
    #[track_caller]
    fn barrier(self) {
        self.meet(At::Barrier, 0, 0);
    }
    #[inline]
    #[track_caller]
    fn barrier_and(self, p: bool) -> bool {
        self.meet(At::BarrierAnd, p.into(), 0) == 1
    }
    #[inline]
    #[track_caller]
    fn barrier_or(self, p: bool) -> bool {
        self.meet(At::BarrierOr, p.into(), 0) == 1
    }
    #[inline]
    #[track_caller]
    fn barrier_count(self, p: bool) -> u32 {
        self.meet(At::BarrierCount, p.into(), 0)
    }
    #[inline(always)]
    fn rank(self) -> u32 {
        self.rank
    }

    #[inline]
    #[track_caller]
    fn shuffle_xor<T: Word>(self, v: T, mask: u32) -> T {
        T::from_word(self.meet(At::ShuffleXor, v.to_word(), mask))
    }
    #[inline]
    #[track_caller]
    fn shuffle_up<T: Word>(self, v: T, delta: u32) -> T {
        T::from_word(self.meet(At::ShuffleUp, v.to_word(), delta))
    }
    #[inline]
    #[track_caller]
    fn shuffle_down<T: Word>(self, v: T, delta: u32) -> T {
        T::from_word(self.meet(At::ShuffleDown, v.to_word(), delta))
    }
    #[inline]
    #[track_caller]
    fn shuffle<T: Word>(self, v: T, source: u32) -> T {
        T::from_word(self.meet(At::Shuffle, v.to_word(), source))
    }
    #[inline]
    #[track_caller]
    fn ballot(self, p: bool) -> u32 {
        self.meet(At::Ballot, u32::from(p), 0)
    }

    #[inline]
    #[track_caller]
    fn warp_sum(self, v: f32) -> f32 {
        f32::from_bits(self.meet(At::WarpSum, v.to_bits(), 0))
    }
    #[inline]
    #[track_caller]
    fn warp_max(self, v: f32) -> f32 {
        f32::from_bits(self.meet(At::WarpMax, v.to_bits(), 0))
    }
    #[inline]
    #[track_caller]
    fn warp_min(self, v: f32) -> f32 {
        f32::from_bits(self.meet(At::WarpMin, v.to_bits(), 0))
    }
    #[inline]
    #[track_caller]
    fn warp_sum_u32(self, v: u32) -> u32 {
        self.meet(At::WarpSumU32, v, 0)
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn shared<T: Element>(self, byte_offset: u32) -> SharedMemory<T> {
        Place::window(byte_offset)
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn shared_at<T: Element>(self, address: u32) -> SharedMemory<T> {
        Place::window(address)
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn shared_get<T: Element>(self, s: SharedMemory<T>, i: u32) -> T {
        // SAFETY: `shared_access` checked that the element is inside the buffer, which `run_block`
        // initialized. The element is aligned: the buffer is, and `Place::window` checked the
        // window's start. Only this OS thread uses the buffer. Every bit pattern is a valid `T`.
        unsafe { self.shared_access(s, i, 1, align_of::<T>(), Access::Read).read() }
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn shared_set<T: Element>(self, s: SharedMemory<T>, i: u32, v: T) {
        // SAFETY: `shared_access` checked that the element is inside the buffer. The element is
        // aligned: the buffer is, and `Place::window` checked the window's start. Only this OS
        // thread uses the buffer.
        unsafe { self.shared_access(s, i, 1, align_of::<T>(), Access::Write).write(v) };
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn shared_get4<T: Word>(self, s: SharedMemory<T>, i: u32) -> [T; 4] {
        // SAFETY: `shared_access` checked that the four words are inside the buffer, which
        // `run_block` initialized, and that they start at a multiple of 16 bytes. Only this OS
        // thread uses the buffer. Every bit pattern is a valid `T`.
        unsafe { self.shared_access(s, i, 4, 16, Access::Read).cast::<[T; 4]>().read() }
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn shared_set4<T: Word>(self, s: SharedMemory<T>, i: u32, v: [T; 4]) {
        // SAFETY: `shared_access` checked that the four words are inside the buffer and that they
        // start at a multiple of 16 bytes. Only this OS thread uses the buffer.
        unsafe { self.shared_access(s, i, 4, 16, Access::Write).cast::<[T; 4]>().write(v) };
    }
    #[inline]
    #[track_caller]
    fn warp_barrier(self) {
        self.meet(At::WarpBarrier, 0, 0);
    }
}
