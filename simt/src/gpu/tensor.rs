//! Asynchronous copies and matrix operations on `nvptx64`.

use core::arch::asm;

use super::Gpu;
use crate::{Element, SharedMemory, TensorCore};

/// The four sums of a lane, as LLVM's intrinsics return them.
#[repr(C)]
struct Sums(f32, f32, f32, f32);

// rustc passes arguments to intrinsics of LLVM as they are only with this ABI. LLVM knows neither
// of these intrinsics nor of assembly that they are convergent: it may copy them into both sides of
// a branch around them. The author of a cooperative kernel promises that the condition of such a
// branch is the same in all lanes of a warp. So they still execute one copy together.
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.mma.m16n8k16.row.col.bf16"]
    fn mma_bf16(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32) -> Sums;
    #[link_name = "llvm.nvvm.mma.m16n8k8.row.col.tf32"]
    fn mma_tf32(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32) -> Sums;
}

/// Returns the address in shared space of element `i` of a window.
#[inline(always)]
fn address<T>(s: SharedMemory<T>, i: u32) -> u32 {
    s.start + i * size_of::<T>() as u32
}

impl TensorCore for Gpu {
    #[inline(always)]
    unsafe fn copy_async<T: Element, const BYTES: usize>(self, to: SharedMemory<T>, i: u32, from: *const T) {
        let to = address(to, i);
        // SAFETY: The caller promises that both places have `BYTES` bytes and are aligned to them,
        // and that nobody conflicts with the copy until it is complete.
        unsafe {
            match BYTES {
                4 => asm!("cp.async.ca.shared.global [{0}], [{1}], 4;", in(reg32) to, in(reg64) from, options(nostack)),
                8 => asm!("cp.async.ca.shared.global [{0}], [{1}], 8;", in(reg32) to, in(reg64) from, options(nostack)),
                16 => {
                    asm!("cp.async.cg.shared.global [{0}], [{1}], 16;", in(reg32) to, in(reg64) from, options(nostack))
                }
                _ => const { assert!(matches!(BYTES, 4 | 8 | 16), "a copy has 4, 8 or 16 bytes") },
            }
        }
    }
    #[inline(always)]
    unsafe fn copy_async_or_zero<T: Element, const BYTES: usize>(
        self,
        to: SharedMemory<T>,
        i: u32,
        from: *const T,
        copy: bool,
    ) {
        let to = address(to, i);
        // The rest of the bytes becomes zero. ptxas makes a predicate of a size that is all or
        // none.
        let bytes = if copy { BYTES as u32 } else { 0 };
        // SAFETY: The caller promises that both places have `BYTES` bytes and are aligned to them,
        // and that nobody conflicts with the copy until it is complete. With a size of 0 the
        // instruction reads nothing.
        unsafe {
            match BYTES {
                4 => asm!(
                    "cp.async.ca.shared.global [{0}], [{1}], 4, {2};",
                    in(reg32) to, in(reg64) from, in(reg32) bytes, options(nostack)
                ),
                8 => asm!(
                    "cp.async.ca.shared.global [{0}], [{1}], 8, {2};",
                    in(reg32) to, in(reg64) from, in(reg32) bytes, options(nostack)
                ),
                16 => asm!(
                    "cp.async.cg.shared.global [{0}], [{1}], 16, {2};",
                    in(reg32) to, in(reg64) from, in(reg32) bytes, options(nostack)
                ),
                _ => const { assert!(matches!(BYTES, 4 | 8 | 16), "a copy has 4, 8 or 16 bytes") },
            }
        }
    }
    #[inline(always)]
    fn copy_async_commit(self) {
        // SAFETY: The instruction has no precondition.
        unsafe { asm!("cp.async.commit_group;", options(nostack)) };
    }
    #[inline(always)]
    fn copy_async_wait<const PENDING: u32>(self) {
        // SAFETY: The instruction has no precondition.
        unsafe { asm!("cp.async.wait_group {0};", const PENDING, options(nostack)) };
    }

    #[inline(always)]
    unsafe fn load_matrices<T: Element, const N: usize>(self, s: SharedMemory<T>, i: u32) -> [u32; N] {
        let at = address(s, i);
        let mut words = [0; N];
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it (see
        // `kernel!`). The caller promises that the rows are inside the window and aligned.
        unsafe {
            match N {
                1 => asm!(
                    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{{0}}}, [{1}];",
                    out(reg32) words[0], in(reg32) at, options(nostack)
                ),
                2 => asm!(
                    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{{0}, {1}}}, [{2}];",
                    out(reg32) words[0], out(reg32) words[1], in(reg32) at, options(nostack)
                ),
                4 => asm!(
                    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) words[0], out(reg32) words[1], out(reg32) words[2], out(reg32) words[3],
                    in(reg32) at, options(nostack)
                ),
                _ => const { assert!(matches!(N, 1 | 2 | 4), "one, two or four matrices are loaded at once") },
            }
        }
        words
    }
    #[inline(always)]
    unsafe fn load_matrices_transposed<T: Element, const N: usize>(self, s: SharedMemory<T>, i: u32) -> [u32; N] {
        let at = address(s, i);
        let mut words = [0; N];
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it (see
        // `kernel!`). The caller promises that the rows are inside the window and aligned.
        unsafe {
            match N {
                1 => asm!(
                    "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{{0}}}, [{1}];",
                    out(reg32) words[0], in(reg32) at, options(nostack)
                ),
                2 => asm!(
                    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{{0}, {1}}}, [{2}];",
                    out(reg32) words[0], out(reg32) words[1], in(reg32) at, options(nostack)
                ),
                4 => asm!(
                    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) words[0], out(reg32) words[1], out(reg32) words[2], out(reg32) words[3],
                    in(reg32) at, options(nostack)
                ),
                _ => const { assert!(matches!(N, 1 | 2 | 4), "one, two or four matrices are loaded at once") },
            }
        }
        words
    }

    #[inline(always)]
    fn mma_f16(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        let mut d = c;
        // The intrinsic takes vectors of two halves, which rustc does not pass to it, so this is
        // assembly. It is not `pure`, so LLVM does not move it into a branch.
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it (see
        // `kernel!`).
        unsafe {
            asm!(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, \
                 {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};",
                inout(reg32) d[0], inout(reg32) d[1], inout(reg32) d[2], inout(reg32) d[3],
                in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
                options(nomem, nostack)
            );
        }
        d
    }
    #[inline(always)]
    fn mma_bf16(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it (see
        // `kernel!`).
        let d = unsafe { mma_bf16(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
        [d.0, d.1, d.2, d.3]
    }
    #[inline(always)]
    fn mma_tf32(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: All 32 lanes execute this: the author of a cooperative kernel promises it (see
        // `kernel!`).
        let d = unsafe { mma_tf32(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
        [d.0, d.1, d.2, d.3]
    }
}
