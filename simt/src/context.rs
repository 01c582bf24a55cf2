//! The two traits a kernel body is generic over.

use core::marker::PhantomData;

use crate::{Element, Word};

/// A position or an extent in up to three dimensions; `x` varies fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim3 {
    /// Fastest dimension.
    pub x: u32,
    /// Second dimension.
    pub y: u32,
    /// Slowest dimension.
    pub z: u32,
}

/// One thread of a grid: where it is, arithmetic, and memory.
///
/// Bodies over `Simt` alone have independent threads: on the CPU a block of them is a plain loop.
pub trait Simt: Copy {
    /// This thread's position in its block (`threadIdx`).
    fn thread_idx(self) -> Dim3;
    /// This block's position in the grid (`blockIdx`).
    fn block_idx(self) -> Dim3;
    /// Threads in a block (`blockDim`).
    fn block_dim(self) -> Dim3;
    /// Blocks in the grid (`gridDim`).
    fn grid_dim(self) -> Dim3;

    /// `block_idx.x * block_dim.x + thread_idx.x`.
    #[inline(always)]
    fn global_x(self) -> u32 {
        self.block_idx().x * self.block_dim().x + self.thread_idx().x
    }

    /// `block_idx.y * block_dim.y + thread_idx.y`.
    #[inline(always)]
    fn global_y(self) -> u32 {
        self.block_idx().y * self.block_dim().y + self.thread_idx().y
    }

    /// `a * b + c`: one rounding on the GPU, one or two on the CPU device.
    fn fma(self, a: f32, b: f32, c: f32) -> f32;
    /// Square root, correctly rounded.
    fn sqrt(self, x: f32) -> f32;
    /// Square root; at least as exact as `sqrt.approx.ftz.f32` (relative error 2^-23), a third of the
    /// instructions of [`sqrt`](Simt::sqrt) on a GPU.
    #[inline(always)]
    fn sqrt_approx(self, x: f32) -> f32 {
        self.sqrt(x)
    }
    /// Cube root of a positive normal number; relative error at most 2^-20.
    #[inline(always)]
    fn cbrt(self, x: f32) -> f32 {
        // A third of the exponent, then two of Halley's steps, each of which triples the digits.
        let mut r = f32::from_bits(x.to_bits() / 3 + 0x2a51_37a0);
        for _ in 0..2 {
            let cube = r * r * r;
            r *= (cube + 2.0 * x) / (2.0 * cube + x);
        }
        r
    }
    /// Base-2 logarithm; at least as exact as `lg2.approx.ftz.f32` (absolute error 2^-22 near 1,
    /// relative 2^-22 elsewhere; subnormals are zero).
    fn log2(self, x: f32) -> f32;
    /// 2 to the power `x`; at least as exact as `ex2.approx.ftz.f32` (relative error 2^-22).
    fn exp2(self, x: f32) -> f32;
    /// `1 / x`; at least as exact as `rcp.approx.ftz.f32` (1 ulp).
    fn recip(self, x: f32) -> f32;

    /// Loads one element; other threads may write other elements.
    ///
    /// # Safety
    /// `p` is aligned and valid for reads on this device.
    unsafe fn load<T: Element>(self, p: *const T) -> T;
    /// Stores one element.
    ///
    /// # Safety
    /// `p` is aligned and valid for writes on this device.
    unsafe fn store<T: Element>(self, p: *mut T, v: T);

    /// Loads four consecutive words in one access; the memory is read-only for the whole kernel.
    ///
    /// # Safety
    /// `p` is 16-byte aligned and valid for reads of 16 bytes, and no thread of the grid writes there.
    unsafe fn load4<T: Word>(self, p: *const T) -> [T; 4];
    /// Stores four consecutive words in one access.
    ///
    /// # Safety
    /// `p` is 16-byte aligned and valid for writes of 16 bytes.
    unsafe fn store4<T: Word>(self, p: *mut T, v: [T; 4]);
    /// As [`store4`](Simt::store4), for data the GPU will not read again soon (`st.global.cs`).
    ///
    /// # Safety
    /// As [`store4`](Simt::store4).
    unsafe fn store4_streaming<T: Word>(self, p: *mut T, v: [T; 4]);

    /// Adds to a word in device memory, atomically in the whole device; returns what was there.
    ///
    /// # Safety
    /// `p` is aligned, valid for reads and writes.
    unsafe fn atomic_add(self, p: *mut u32, v: u32) -> u32;
    /// Replaces a word in device memory by the larger of it and `v`; returns what was there.
    ///
    /// # Safety
    /// `p` is aligned, valid for reads and writes.
    unsafe fn atomic_max(self, p: *mut u32, v: u32) -> u32;
    /// Replaces a word in device memory by the smaller of it and `v`; returns what was there.
    ///
    /// # Safety
    /// `p` is aligned, valid for reads and writes.
    unsafe fn atomic_min(self, p: *mut u32, v: u32) -> u32;
}

/// A thread that works with the others of its block: barriers, shared memory, warp operations.
///
/// A cooperative kernel's block has a multiple of 32 threads, and every warp operation and barrier
/// is reached by all threads of the warp or block: the CPU device reports it where they diverge.
pub trait Cooperative: Simt {
    /// Waits until every thread of the block is here; shared and device memory written before is
    /// visible to the block after (`__syncthreads`).
    fn barrier(self);

    /// This thread's index in the block, `x` fastest.
    #[inline(always)]
    fn rank(self) -> u32 {
        let (t, b) = (self.thread_idx(), self.block_dim());
        (t.z * b.y + t.y) * b.x + t.x
    }
    /// This thread's index in its warp, 0 to 31.
    #[inline(always)]
    fn lane(self) -> u32 {
        self.rank() % 32
    }
    /// This thread's warp in the block.
    #[inline(always)]
    fn warp(self) -> u32 {
        self.rank() / 32
    }

    /// The value of lane `lane ^ mask`.
    fn shuffle_xor<T: Word>(self, v: T, mask: u32) -> T;
    /// The value of lane `lane - delta`; one's own where there is none.
    fn shuffle_up<T: Word>(self, v: T, delta: u32) -> T;
    /// The value of lane `lane + delta`; one's own where there is none.
    fn shuffle_down<T: Word>(self, v: T, delta: u32) -> T;
    /// The value of lane `source` (0 to 31, the same or different in each lane).
    fn shuffle<T: Word>(self, v: T, source: u32) -> T;
    /// A bit for each lane of the warp where `p` holds.
    fn ballot(self, p: bool) -> u32;

    /// Sum over the warp in every lane, by the butterfly of [`shuffle_xor`](Cooperative::shuffle_xor)
    /// 16, 8, 4, 2, 1: the same rounding on both machines.
    fn warp_sum(self, v: f32) -> f32;
    /// Largest value of the warp, in every lane.
    fn warp_max(self, v: f32) -> f32;
    /// Smallest value of the warp, in every lane.
    fn warp_min(self, v: f32) -> f32;
    /// Sum over the warp in every lane, modulo 2^32.
    fn warp_sum_u32(self, v: u32) -> u32;

    /// A window of the block's dynamic shared memory, from `byte_offset`.
    ///
    /// # Safety
    /// `byte_offset` is a multiple of the element's size, and accesses stay below the `shared` bytes
    /// of the declaration. (The CPU device checks both and reports a violation.)
    unsafe fn shared<T: Element>(self, byte_offset: u32) -> Shared<T>;
    /// Loads from shared memory.
    ///
    /// # Safety
    /// `i` is inside the window.
    unsafe fn shared_get<T: Element>(self, s: Shared<T>, i: u32) -> T;
    /// Stores to shared memory.
    ///
    /// # Safety
    /// `i` is inside the window.
    unsafe fn shared_set<T: Element>(self, s: Shared<T>, i: u32, v: T);
    /// Loads words `i` to `i + 3` from shared memory in one access.
    ///
    /// # Safety
    /// They are inside the window, and word `i` is 16-byte aligned. (The CPU device checks both.)
    unsafe fn shared_get4<T: Word>(self, s: Shared<T>, i: u32) -> [T; 4];
    /// Stores words `i` to `i + 3` to shared memory in one access.
    ///
    /// # Safety
    /// As for [`shared_get4`](Cooperative::shared_get4).
    unsafe fn shared_set4<T: Word>(self, s: Shared<T>, i: u32, v: [T; 4]);
    /// Adds to a word of shared memory, atomically in the block; returns what was there.
    ///
    /// # Safety
    /// `i` is inside the window.
    unsafe fn shared_add(self, s: Shared<u32>, i: u32, v: u32) -> u32;
}

/// A window of a block's shared memory, as elements of `T`.
#[derive(Debug)]
pub struct Shared<T> {
    /// Its first byte: an offset on the CPU, a shared-space address on the GPU.
    pub(crate) start: u32,
    pub(crate) element: PhantomData<T>,
}

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}
