//! The two traits over which a kernel body is generic.

use crate::atomics::Atomics;
use crate::memory::Memory;
use crate::warp::Warp;
use crate::{Bits, Element, Math, SharedMemory, TensorCore, Word};

/// A position or an extent in up to three dimensions. `x` varies fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim3 {
    /// The fastest dimension.
    pub x: u32,
    /// The second dimension.
    pub y: u32,
    /// The slowest dimension.
    pub z: u32,
}

impl From<[u32; 3]> for Dim3 {
    fn from([x, y, z]: [u32; 3]) -> Self {
        Self { x, y, z }
    }
}

/// One thread of a grid: its position and memory. Its arithmetic is in [`Math`] and [`Bits`].
///
/// The threads of a body over `Simt` are independent of each other. On the CPU device a block of
/// them is a plain loop.
pub trait Simt: Math + Bits + Atomics + Memory {
    /// Returns this thread's position in its block (`threadIdx`).
    #[must_use]
    fn thread_idx(self) -> Dim3;
    /// Returns this block's position in the grid (`blockIdx`).
    #[must_use]
    fn block_idx(self) -> Dim3;
    /// Returns the number of threads in a block, by dimension (`blockDim`).
    #[must_use]
    fn block_dim(self) -> Dim3;
    /// Returns the number of blocks in the grid, by dimension (`gridDim`).
    #[must_use]
    fn grid_dim(self) -> Dim3;

    /// Returns `block_idx.x * block_dim.x + thread_idx.x`.
    #[must_use]
    #[inline(always)]
    fn global_x(self) -> u32 {
        self.block_idx().x * self.block_dim().x + self.thread_idx().x
    }

    /// Returns `block_idx.y * block_dim.y + thread_idx.y`.
    #[must_use]
    #[inline(always)]
    fn global_y(self) -> u32 {
        self.block_idx().y * self.block_dim().y + self.thread_idx().y
    }

    /// Loads one element of device memory. Other threads may write other elements.
    ///
    /// # Safety
    /// `p` is aligned and points to an element in an allocation of device memory. Constants of the
    /// kernel's crate are not device memory: index them, or use [`load4`](Simt::load4).
    #[must_use]
    unsafe fn load<T: Element>(self, p: *const T) -> T;
    /// Stores one element of device memory.
    ///
    /// # Safety
    /// `p` is aligned and points to an element in an allocation of device memory.
    unsafe fn store<T: Element>(self, p: *mut T, v: T);

    /// Loads four consecutive words, on a GPU in one access. They are in device memory that the
    /// kernel only reads, or in a constant.
    ///
    /// # Safety
    /// `p` is 16-byte aligned and valid for reads of 16 bytes, and no thread of the grid writes
    /// there.
    #[must_use]
    unsafe fn load4<T: Word>(self, p: *const T) -> [T; 4];
    /// Stores four consecutive words of device memory, on a GPU in one access.
    ///
    /// # Safety
    /// `p` is 16-byte aligned and points to four words in an allocation of device memory.
    unsafe fn store4<T: Word>(self, p: *mut T, v: [T; 4]);
    /// Does the same as [`store4`](Simt::store4), for data that the GPU does not read again soon
    /// (`st.global.cs`).
    ///
    /// # Safety
    /// `p` is 16-byte aligned and points to four words in an allocation of device memory.
    unsafe fn store4_streaming<T: Word>(self, p: *mut T, v: [T; 4]);
    /// Stores two consecutive words of device memory that the GPU does not read again soon, on a
    /// GPU in one access.
    ///
    /// # Safety
    /// `p` is 8-byte aligned and points to two words in an allocation of device memory.
    unsafe fn store2_streaming<T: Word>(self, p: *mut T, v: [T; 2]) {
        // SAFETY: The caller promises that both words are in device memory. `p` is 8-byte aligned,
        // so both are aligned for 4-byte words.
        unsafe {
            self.store(p, v[0]);
            self.store(p.add(1), v[1]);
        }
    }
}

/// A thread that works with the other threads of its block, by barriers, shared memory and warp
/// operations.
///
/// The block of a cooperative kernel has a multiple of 32 threads; each launch checks this. All
/// threads of the block must reach each barrier, and all 32 threads of the warp must reach each
/// warp operation. The author of the kernel promises this in [`kernel!`](crate::kernel). The CPU
/// device reports threads that diverge.
#[diagnostic::on_unimplemented(
    message = "threads over `Simt` have no barriers, shared memory and warp operations",
    label = "this needs the other threads of the block",
    note = "declare the kernel with `cx: impl Cooperative` instead of `cx: impl Simt`, and so the functions that take \
            its context. Its block then has a multiple of 32 threads"
)]
pub trait Cooperative: Simt + Warp + TensorCore {
    /// Waits until every thread of the block has reached this barrier (`__syncthreads`). After it,
    /// the block sees the shared and device memory that its threads wrote before it.
    ///
    /// Do not branch on the same value before and after a barrier. After it, call `rank()` again
    /// instead of reusing its result. With one value, rustc's jump threading on MIR, which does not
    /// know convergent calls, may duplicate the barrier, and the two sides of the branch then wait
    /// at different copies.
    fn barrier(self);
    /// Waits as [`barrier`](Cooperative::barrier) does, and returns whether `p` is true in all
    /// threads of the block (`__syncthreads_and`).
    fn barrier_and(self, p: bool) -> bool;
    /// Waits as [`barrier`](Cooperative::barrier) does, and returns whether `p` is true in at least
    /// one thread of the block (`__syncthreads_or`).
    fn barrier_or(self, p: bool) -> bool;
    /// Waits as [`barrier`](Cooperative::barrier) does, and returns the number of threads of the
    /// block in which `p` is true (`__syncthreads_count`).
    fn barrier_count(self, p: bool) -> u32;

    /// Returns this thread's index in the block, where `x` varies fastest.
    #[must_use]
    #[inline(always)]
    fn rank(self) -> u32 {
        let (t, b) = (self.thread_idx(), self.block_dim());
        (t.z * b.y + t.y) * b.x + t.x
    }
    /// Returns this thread's index in its warp, 0 to 31.
    #[must_use]
    #[inline(always)]
    fn lane(self) -> u32 {
        self.rank() % 32
    }
    /// Returns the index of this thread's warp in the block.
    #[must_use]
    #[inline(always)]
    fn warp(self) -> u32 {
        self.rank() / 32
    }

    /// Returns the value of lane `lane ^ mask`. Of the second argument of a shuffle only the low
    /// five bits count, on every device, as on a GPU: 33 is 1.
    #[must_use]
    fn shuffle_xor<T: Word>(self, v: T, mask: u32) -> T;
    /// Returns the value of lane `lane - delta`, or the thread's own if there is no such lane. Only
    /// the low five bits of `delta` count.
    #[must_use]
    fn shuffle_up<T: Word>(self, v: T, delta: u32) -> T;
    /// Returns the value of lane `lane + delta`, or the thread's own if there is no such lane. Only
    /// the low five bits of `delta` count.
    #[must_use]
    fn shuffle_down<T: Word>(self, v: T, delta: u32) -> T;
    /// Returns the value of lane `source`, which may differ between lanes. Only the low five bits
    /// of `source` count.
    #[must_use]
    fn shuffle<T: Word>(self, v: T, source: u32) -> T;
    /// Returns a word whose bit `i` says whether `p` is true in lane `i` of the warp.
    fn ballot(self, p: bool) -> u32;

    /// Returns the sum over the warp in every lane. It is a butterfly of
    /// [`shuffle_xor`](Cooperative::shuffle_xor) by 16, 8, 4, 2 and 1, so it rounds the same on
    /// both devices.
    #[must_use]
    fn warp_sum(self, v: f32) -> f32;
    /// Returns the largest value of the warp in every lane.
    #[must_use]
    fn warp_max(self, v: f32) -> f32;
    /// Returns the smallest value of the warp in every lane.
    #[must_use]
    fn warp_min(self, v: f32) -> f32;
    /// Returns the sum over the warp, modulo 2^32, in every lane.
    #[must_use]
    fn warp_sum_u32(self, v: u32) -> u32;

    /// Returns a window of the block's dynamic shared memory that starts at `byte_offset`.
    ///
    /// # Safety
    /// `byte_offset` is a multiple of the element's alignment. Accesses through the window stay
    /// inside the `shared` bytes of the declaration. (The CPU device checks both and reports a
    /// violation.)
    #[must_use]
    unsafe fn shared<T: Element>(self, byte_offset: u32) -> SharedMemory<T>;
    /// Returns the window that starts at `address`, which was computed from
    /// [`SharedMemory::address`].
    ///
    /// # Safety
    /// `address` is a multiple of the element's alignment. Accesses through the window stay inside
    /// the `shared` bytes of the declaration. (The CPU device checks both and reports a violation.)
    #[must_use]
    unsafe fn shared_at<T: Element>(self, address: u32) -> SharedMemory<T>;
    /// Loads element `i` of a window of shared memory.
    ///
    /// # Safety
    /// `i` is inside the window.
    #[must_use]
    unsafe fn shared_get<T: Element>(self, s: SharedMemory<T>, i: u32) -> T;
    /// Stores element `i` of a window of shared memory.
    ///
    /// # Safety
    /// `i` is inside the window.
    unsafe fn shared_set<T: Element>(self, s: SharedMemory<T>, i: u32, v: T);
    /// Loads words `i` to `i + 3` of a window of shared memory, on a GPU in one access.
    ///
    /// # Safety
    /// The words are inside the window, and word `i` is 16-byte aligned in the block's shared
    /// memory. (The CPU device checks both and reports a violation.)
    #[must_use]
    unsafe fn shared_get4<T: Word>(self, s: SharedMemory<T>, i: u32) -> [T; 4];
    /// Stores words `i` to `i + 3` of a window of shared memory, on a GPU in one access.
    ///
    /// # Safety
    /// The words are inside the window, and word `i` is 16-byte aligned in the block's shared
    /// memory. (The CPU device checks both and reports a violation.)
    unsafe fn shared_set4<T: Word>(self, s: SharedMemory<T>, i: u32, v: [T; 4]);
    /// Waits until every thread of the warp has reached this call (`__syncwarp`). After it, the
    /// warp sees the shared memory that its threads wrote before it.
    #[inline(always)]
    fn warp_barrier(self) {
        self.ballot(true);
    }
    /// Adds `v` to word `i` of a window of shared memory, atomically for the block. Returns the old
    /// value.
    ///
    /// # Safety
    /// `i` is inside the window.
    #[inline(always)]
    unsafe fn shared_add(self, s: SharedMemory<u32>, i: u32, v: u32) -> u32 {
        // SAFETY: The caller promises that `i` is inside the window.
        unsafe { s.atomic(i) }.add(self, v)
    }
}
