//! The context on `nvptx64`. Most methods are one or two instructions.

mod atomics;
mod bits;
mod math;
mod memory;
mod tensor;
mod warp;

use core::arch::{asm, global_asm, nvptx};
use core::marker::PhantomData;
use core::mem::MaybeUninit;

use crate::element::loadable;
use crate::{Cooperative, Dim3, Element, SharedMemory, Simt, Word};

/// A thread of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Gpu(());

impl Gpu {
    /// Returns the context of the calling thread. The entries that [`kernel!`](crate::kernel)
    /// declares call it.
    ///
    /// # Safety
    /// The caller is a kernel entry. Its launch passed the `require` clause and has the grid, block
    /// and shared memory of the declaration.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Gpu(())
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `trap` has no precondition. It ends the kernel with an error that the host sees.
    unsafe { nvptx::trap() }
}

global_asm!(".extern .shared .align 16 .b8 thalweg_shared[];");

unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, v: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(mask: u32, v: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_down(mask: u32, v: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: u32, v: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: u32, p: bool) -> u32;
    #[link_name = "llvm.nvvm.barrier.cta.red.and.aligned.all"]
    fn barrier_and(barrier: u32, p: bool) -> bool;
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    fn barrier_or(barrier: u32, p: bool) -> bool;
    #[link_name = "llvm.nvvm.barrier.cta.red.popc.aligned.all"]
    fn barrier_count(barrier: u32, p: bool) -> u32;
}

const FULL: u32 = u32::MAX;

impl Simt for Gpu {
    #[inline(always)]
    fn thread_idx(self) -> Dim3 {
        // SAFETY: The intrinsics only read special registers.
        unsafe {
            Dim3 {
                x: nvptx::_thread_idx_x() as u32,
                y: nvptx::_thread_idx_y() as u32,
                z: nvptx::_thread_idx_z() as u32,
            }
        }
    }
    #[inline(always)]
    fn block_idx(self) -> Dim3 {
        // SAFETY: The intrinsics only read special registers.
        unsafe {
            Dim3 { x: nvptx::_block_idx_x() as u32, y: nvptx::_block_idx_y() as u32, z: nvptx::_block_idx_z() as u32 }
        }
    }
    #[inline(always)]
    fn block_dim(self) -> Dim3 {
        // SAFETY: The intrinsics only read special registers.
        unsafe {
            Dim3 { x: nvptx::_block_dim_x() as u32, y: nvptx::_block_dim_y() as u32, z: nvptx::_block_dim_z() as u32 }
        }
    }
    #[inline(always)]
    fn grid_dim(self) -> Dim3 {
        // SAFETY: The intrinsics only read special registers.
        unsafe {
            Dim3 { x: nvptx::_grid_dim_x() as u32, y: nvptx::_grid_dim_y() as u32, z: nvptx::_grid_dim_z() as u32 }
        }
    }

    #[inline(always)]
    unsafe fn load<T: Element>(self, p: *const T) -> T {
        const { loadable::<T>() };
        // SAFETY: The caller promises that `p` is aligned and points to an element of device
        // memory.
        unsafe { *p }
    }
    #[inline(always)]
    unsafe fn store<T: Element>(self, p: *mut T, v: T) {
        const { loadable::<T>() };
        // SAFETY: The caller promises that `p` is aligned and points to an element of device
        // memory.
        unsafe { *p = v }
    }

    #[inline(always)]
    unsafe fn load4<T: Word>(self, p: *const T) -> [T; 4] {
        let (a, b, c, d): (u32, u32, u32, u32);
        // The type of `p` promises only 4-byte alignment, for which LLVM would make four loads.
        // Assembly makes one, which may use the read-only cache (`nc`).
        // SAFETY: The caller promises that `p` is 16-byte aligned and valid for reads of 16 bytes,
        // and that no thread of the grid writes there.
        unsafe {
            asm!(
                "ld.global.nc.v4.u32 {{{0}, {1}, {2}, {3}}}, [{4}];",
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) p,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
    }
    #[inline(always)]
    unsafe fn store4<T: Word>(self, p: *mut T, v: [T; 4]) {
        // SAFETY: The caller promises that `p` is 16-byte aligned and points to four words of
        // device memory.
        unsafe {
            asm!(
                "st.global.v4.u32 [{0}], {{{1}, {2}, {3}, {4}}};",
                in(reg64) p, in(reg32) v[0].to_word(), in(reg32) v[1].to_word(),
                in(reg32) v[2].to_word(), in(reg32) v[3].to_word(),
                options(nostack, preserves_flags)
            );
        }
    }
    #[inline(always)]
    unsafe fn store4_streaming<T: Word>(self, p: *mut T, v: [T; 4]) {
        // SAFETY: The caller promises that `p` is 16-byte aligned and points to four words of
        // device memory.
        unsafe {
            asm!(
                "st.global.cs.v4.u32 [{0}], {{{1}, {2}, {3}, {4}}};",
                in(reg64) p, in(reg32) v[0].to_word(), in(reg32) v[1].to_word(),
                in(reg32) v[2].to_word(), in(reg32) v[3].to_word(),
                options(nostack, preserves_flags)
            );
        }
    }
    #[inline(always)]
    unsafe fn store2_streaming<T: Word>(self, p: *mut T, v: [T; 2]) {
        // SAFETY: The caller promises that `p` is 8-byte aligned and points to two words of device
        // memory.
        unsafe {
            asm!(
                "st.global.cs.v2.u32 [{0}], {{{1}, {2}}};",
                in(reg64) p, in(reg32) v[0].to_word(), in(reg32) v[1].to_word(), options(nostack, preserves_flags)
            );
        }
    }
}

/// Reduces over the warp in five steps of a butterfly. Every lane gets the result.
#[inline(always)]
fn butterfly<T: Word>(mut v: T, op: impl Fn(T, T) -> T) -> T {
    let mut mask = 16;
    while mask > 0 {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        let other = unsafe { shfl_bfly(FULL, v.to_word(), mask, 31) };
        v = op(v, T::from_word(other));
        mask /= 2;
    }
    v
}

/// Loads an element of shared memory in pieces as large as its alignment.
///
/// # Safety
/// `i` is inside the window.
#[inline(always)]
unsafe fn pieces_get<T: Element>(cx: Gpu, s: SharedMemory<T>, i: u32) -> T {
    let mut v = MaybeUninit::<T>::uninit();
    let (to, piece) = (v.as_mut_ptr(), align_of::<T>());
    for k in 0..size_of::<T>() / piece {
        let at = s.start + i * size_of::<T>() as u32 + (k * piece) as u32;
        // SAFETY: The callers of `shared` and of this function promise that the element is inside
        // the block's shared memory and aligned. Piece `k` is inside the element, and each arm
        // loads as many bytes as a piece has.
        unsafe {
            match piece {
                1 => to.cast::<u8>().add(k).write(cx.shared_get(cx.shared_at(at), 0)),
                2 => to.cast::<u16>().add(k).write(cx.shared_get(cx.shared_at(at), 0)),
                4 => to.cast::<u32>().add(k).write(cx.shared_get(cx.shared_at(at), 0)),
                8 => to.cast::<u64>().add(k).write(cx.shared_get(cx.shared_at(at), 0)),
                _ => to.cast::<[u32; 4]>().add(k).write(cx.shared_get4(cx.shared_at(at), 0)),
            }
        }
    }
    // SAFETY: The pieces fill the element, and every bit pattern is a valid `Element`.
    unsafe { v.assume_init() }
}

/// Stores an element of shared memory in pieces as large as its alignment.
///
/// # Safety
/// `i` is inside the window.
#[inline(always)]
unsafe fn pieces_set<T: Element>(cx: Gpu, s: SharedMemory<T>, i: u32, v: T) {
    let (from, piece) = (&raw const v, align_of::<T>());
    for k in 0..size_of::<T>() / piece {
        let at = s.start + i * size_of::<T>() as u32 + (k * piece) as u32;
        // SAFETY: The callers of `shared` and of this function promise that the element is inside
        // the block's shared memory and aligned. Piece `k` is inside the element, and each arm
        // stores as many bytes as a piece has. An element has no padding, so its bytes are
        // initialized.
        unsafe {
            match piece {
                1 => cx.shared_set(cx.shared_at(at), 0, from.cast::<u8>().add(k).read()),
                2 => cx.shared_set(cx.shared_at(at), 0, from.cast::<u16>().add(k).read()),
                4 => cx.shared_set(cx.shared_at(at), 0, from.cast::<u32>().add(k).read()),
                8 => cx.shared_set(cx.shared_at(at), 0, from.cast::<u64>().add(k).read()),
                _ => cx.shared_set4(cx.shared_at(at), 0, from.cast::<[u32; 4]>().add(k).read()),
            }
        }
    }
}

impl Cooperative for Gpu {
    #[inline(always)]
    fn barrier(self) {
        // SAFETY: All threads of the block execute this: the author of a cooperative kernel
        // promises it (see `kernel!`).
        unsafe { nvptx::_syncthreads() }
    }
    #[inline(always)]
    fn barrier_and(self, p: bool) -> bool {
        // SAFETY: All threads of the block execute this: the author of a cooperative kernel
        // promises it (see `kernel!`).
        unsafe { barrier_and(0, p) }
    }
    #[inline(always)]
    fn barrier_or(self, p: bool) -> bool {
        // SAFETY: All threads of the block execute this: the author of a cooperative kernel
        // promises it (see `kernel!`).
        unsafe { barrier_or(0, p) }
    }
    #[inline(always)]
    fn barrier_count(self, p: bool) -> u32 {
        // SAFETY: All threads of the block execute this: the author of a cooperative kernel
        // promises it (see `kernel!`).
        unsafe { barrier_count(0, p) }
    }

    #[inline(always)]
    fn shuffle_xor<T: Word>(self, v: T, mask: u32) -> T {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        T::from_word(unsafe { shfl_bfly(FULL, v.to_word(), mask, 31) })
    }
    #[inline(always)]
    fn shuffle_up<T: Word>(self, v: T, delta: u32) -> T {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        T::from_word(unsafe { shfl_up(FULL, v.to_word(), delta, 0) })
    }
    #[inline(always)]
    fn shuffle_down<T: Word>(self, v: T, delta: u32) -> T {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        T::from_word(unsafe { shfl_down(FULL, v.to_word(), delta, 31) })
    }
    #[inline(always)]
    fn shuffle<T: Word>(self, v: T, source: u32) -> T {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        T::from_word(unsafe { shfl_idx(FULL, v.to_word(), source, 31) })
    }
    #[inline(always)]
    fn ballot(self, p: bool) -> u32 {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        unsafe { vote_ballot(FULL, p) }
    }

    #[inline(always)]
    fn warp_sum(self, v: f32) -> f32 {
        butterfly(v, |a, b| a + b)
    }
    #[inline(always)]
    fn warp_max(self, v: f32) -> f32 {
        butterfly(v, f32::max)
    }
    #[inline(always)]
    fn warp_min(self, v: f32) -> f32 {
        butterfly(v, f32::min)
    }
    #[inline(always)]
    fn warp_sum_u32(self, v: u32) -> u32 {
        butterfly(v, u32::wrapping_add)
    }

    #[inline(always)]
    unsafe fn shared<T: Element>(self, byte_offset: u32) -> SharedMemory<T> {
        let base: u32;
        // SAFETY: The instruction only reads an address.
        unsafe { asm!("mov.u32 {0}, thalweg_shared;", out(reg32) base, options(pure, nomem, nostack)) };
        SharedMemory { start: base + byte_offset, element: PhantomData }
    }
    #[inline(always)]
    unsafe fn shared_at<T: Element>(self, address: u32) -> SharedMemory<T> {
        SharedMemory { start: address, element: PhantomData }
    }
    #[inline(always)]
    unsafe fn shared_get<T: Element>(self, s: SharedMemory<T>, i: u32) -> T {
        const { loadable::<T>() };
        if size_of::<T>() != align_of::<T>() || size_of::<T>() > 8 {
            // SAFETY: The caller promises that `i` is inside the window.
            return unsafe { pieces_get(self, s, i) };
        }
        let at = s.start + i * size_of::<T>() as u32;
        // The assembly is not `pure`, because another thread may store there between two loads.
        // SAFETY: The callers of `shared` and of this function promise that the element is inside
        // the block's shared memory and aligned. Each arm loads as many bytes as the element has,
        // and every bit pattern is a valid `Element`.
        unsafe {
            match size_of::<T>() {
                1 => {
                    let v: u16;
                    asm!("ld.shared.u8 {0}, [{1}];", out(reg16) v, in(reg32) at, options(nostack));
                    core::mem::transmute_copy(&v)
                }
                2 => {
                    let v: u16;
                    asm!("ld.shared.u16 {0}, [{1}];", out(reg16) v, in(reg32) at, options(nostack));
                    core::mem::transmute_copy(&v)
                }
                4 => {
                    let v: u32;
                    asm!("ld.shared.u32 {0}, [{1}];", out(reg32) v, in(reg32) at, options(nostack));
                    core::mem::transmute_copy(&v)
                }
                _ => {
                    let v: u64;
                    asm!("ld.shared.u64 {0}, [{1}];", out(reg64) v, in(reg32) at, options(nostack));
                    core::mem::transmute_copy(&v)
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn shared_set<T: Element>(self, s: SharedMemory<T>, i: u32, v: T) {
        const { loadable::<T>() };
        if size_of::<T>() != align_of::<T>() || size_of::<T>() > 8 {
            // SAFETY: The caller promises that `i` is inside the window.
            return unsafe { pieces_set(self, s, i, v) };
        }
        let at = s.start + i * size_of::<T>() as u32;
        // SAFETY: The callers of `shared` and of this function promise that the element is inside
        // the block's shared memory and aligned. Each arm stores as many bytes as the element has.
        unsafe {
            match size_of::<T>() {
                1 => {
                    let v: u8 = core::mem::transmute_copy(&v);
                    asm!("st.shared.u8 [{0}], {1};", in(reg32) at, in(reg16) u16::from(v), options(nostack));
                }
                2 => {
                    let v: u16 = core::mem::transmute_copy(&v);
                    asm!("st.shared.u16 [{0}], {1};", in(reg32) at, in(reg16) v, options(nostack));
                }
                4 => {
                    let v: u32 = core::mem::transmute_copy(&v);
                    asm!("st.shared.u32 [{0}], {1};", in(reg32) at, in(reg32) v, options(nostack));
                }
                _ => {
                    let v: u64 = core::mem::transmute_copy(&v);
                    asm!("st.shared.u64 [{0}], {1};", in(reg32) at, in(reg64) v, options(nostack));
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn shared_get4<T: Word>(self, s: SharedMemory<T>, i: u32) -> [T; 4] {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: The caller promises that the four words are inside the window and start at a
        // multiple of 16 bytes.
        unsafe {
            asm!(
                "ld.shared.v4.u32 {{{0}, {1}, {2}, {3}}}, [{4}];",
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) s.start + i * 4,
                options(nostack)
            );
        }
        [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
    }
    #[inline(always)]
    unsafe fn shared_set4<T: Word>(self, s: SharedMemory<T>, i: u32, v: [T; 4]) {
        // SAFETY: The caller promises that the four words are inside the window and start at a
        // multiple of 16 bytes.
        unsafe {
            asm!(
                "st.shared.v4.u32 [{0}], {{{1}, {2}, {3}, {4}}};",
                in(reg32) s.start + i * 4, in(reg32) v[0].to_word(), in(reg32) v[1].to_word(),
                in(reg32) v[2].to_word(), in(reg32) v[3].to_word(),
                options(nostack)
            );
        }
    }
    #[inline(always)]
    fn warp_barrier(self) {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        unsafe { warp::bar_warp_sync(FULL) };
    }
}
