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
    /// `a - b`, clamped to [0, 1]; neither is NaN.
    #[inline(always)]
    fn sub_sat(self, a: f32, b: f32) -> f32 {
        (a - b).clamp(0.0, 1.0)
    }
    /// Base-2 logarithm; at least as exact as `lg2.approx.ftz.f32` (absolute error 2^-22 near 1,
    /// relative 2^-22 elsewhere; subnormals are zero).
    fn log2(self, x: f32) -> f32;
    /// 2 to the power `x`; at least as exact as `ex2.approx.ftz.f32` (relative error 2^-22).
    fn exp2(self, x: f32) -> f32;
    /// `1 / x`; at least as exact as `rcp.approx.ftz.f32` (1 ulp).
    fn recip(self, x: f32) -> f32;

    /// `c` plus the products of the halves of `weights` (low, high) and bytes 0 and 1 of `v`, modulo 2^32.
    #[inline(always)]
    fn dot2_low(self, weights: u32, v: u32, c: u32) -> u32 {
        c.wrapping_add((weights & 0xffff) * (v & 255)).wrapping_add((weights >> 16) * (v >> 8 & 255))
    }
    /// As [`dot2_low`](Simt::dot2_low), with bytes 2 and 3 of `v`.
    #[inline(always)]
    fn dot2_high(self, weights: u32, v: u32, c: u32) -> u32 {
        self.dot2_low(weights, v >> 16, c)
    }
    /// `c` plus the products of the bytes of `weights` and `v`, modulo 2^32.
    #[inline(always)]
    fn dot4(self, weights: u32, v: u32, c: u32) -> u32 {
        let products = weights.to_le_bytes().into_iter().zip(v.to_le_bytes()).map(|(a, b)| u32::from(a) * u32::from(b));
        products.fold(c, u32::wrapping_add)
    }
    /// `v * scale`, rounded once, for `v` below 2^23.
    #[inline(always)]
    fn scale(self, v: u32, scale: f32) -> f32 {
        v as f32 * scale
    }

    /// The integer nearest to `v * scale`, ties to even, of exactly their product; that is within 0 to 2^22.
    #[inline(always)]
    fn nearest(self, v: f32, scale: f32) -> u32 {
        // The product is exact; its last place after the sum with 2^52 is 1.
        (f64::from(v) * f64::from(scale) + 4_503_599_627_370_496.0).to_bits() as u32
    }

    /// The IEEE half nearest to `v`, ties to even; from 65520 on infinite; NaN stays one.
    #[inline(always)]
    fn to_f16_bits(self, v: f32) -> u16 {
        if v.is_nan() {
            return 0x7fff;
        }
        let (bits, sign) = (v.to_bits() & 0x7fff_ffff, (v.to_bits() >> 16 & 0x8000) as u16);
        sign | if bits >= 0x4780_0000 {
            // 2^16 or more.
            0x7c00
        } else if bits < 0x3880_0000 {
            // Subnormal: in a sum with a half the last place is 2^-24, too, so it is rounded as it should be.
            ((f32::from_bits(bits) + 0.5).to_bits() - 0x3f00_0000) as u16
        } else {
            ((bits - 0x3800_0000 + 0xfff + (bits >> 13 & 1)) >> 13) as u16
        }
    }
    /// Two halves in a word, as [`to_f16_bits`](Simt::to_f16_bits) makes them; the first is the low one.
    #[inline(always)]
    fn to_f16_pair(self, low: f32, high: f32) -> u32 {
        u32::from(self.to_f16_bits(low)) | u32::from(self.to_f16_bits(high)) << 16
    }
    /// The bfloat16 nearest to `v`, ties to even; NaN stays one.
    #[inline(always)]
    fn to_bf16_bits(self, v: f32) -> u16 {
        let bits = v.to_bits();
        if v.is_nan() { 0x7fff } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
    }

    /// Loads one element of device memory; other threads may write other elements.
    ///
    /// # Safety
    /// `p` is aligned and points into an allocation of device memory, where it is valid for reads. Constants of the
    /// kernel's crate are not device memory: index them, or use [`load4`](Simt::load4).
    unsafe fn load<T: Element>(self, p: *const T) -> T;
    /// Stores one element.
    ///
    /// # Safety
    /// `p` is aligned and valid for writes on this device.
    unsafe fn store<T: Element>(self, p: *mut T, v: T);

    /// Loads four consecutive words in one access, of device memory that the kernel only reads or of a constant.
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
    /// As [`store4_streaming`](Simt::store4_streaming), of two words.
    ///
    /// # Safety
    /// `p` is 8-byte aligned and valid for writes of 8 bytes.
    unsafe fn store2_streaming<T: Word>(self, p: *mut T, v: [T; 2]) {
        // SAFETY: the caller's promise covers both words.
        unsafe {
            self.store(p, v[0]);
            self.store(p.add(1), v[1]);
        }
    }

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
    ///
    /// Do not branch on one and the same value before and after it: rustc's jump threading on MIR, which knows no convergent
    /// calls, may then make two copies of the barrier, one for each side. Ask anew after it (`rank()` again, not a `let`).
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
    /// Waits until every thread of the warp is here; shared memory written before is visible to the warp
    /// after (`__syncwarp`).
    #[inline(always)]
    fn warp_barrier(self) {
        self.ballot(true);
    }
    /// Loads element `i`, `i` being byte `k` (0 to 3) of `v`; one instruction for the address on a GPU.
    ///
    /// # Safety
    /// The window has 256 elements, and `k` is at most 3.
    #[inline(always)]
    unsafe fn shared_lookup<T: Word>(self, table: Shared<T>, v: u32, k: u32) -> T {
        // SAFETY: a byte is at most 255.
        unsafe { self.shared_get(table, v >> (8 * k) & 255) }
    }
    /// Adds 1 to element `i`, atomically in the block, `i` being byte `k` (0 to 3) of `v`; as
    /// [`shared_lookup`](Cooperative::shared_lookup).
    ///
    /// # Safety
    /// As for [`shared_lookup`](Cooperative::shared_lookup).
    #[inline(always)]
    unsafe fn shared_count(self, counts: Shared<u32>, v: u32, k: u32) {
        // SAFETY: a byte is at most 255.
        unsafe { self.shared_add(counts, v >> (8 * k) & 255, 1) };
    }
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
