//! The team on a GPU: the code of a block runs in each of its threads.

use core::arch::asm;
use core::cell::Cell;
use core::hint::assert_unchecked;

use super::team::{Exchange, Sealed, Team};
use crate::{Cooperative, Gpu, Simt};

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier0.or"]
    fn barrier_or(p: i32) -> i32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn warp_barrier(mask: u32);
}

/// Tells the compiler the extents of a block that the declaration states as numbers, so that it can
/// unroll loops and leave out what a block of one or two dimensions does not need. An extent of 0
/// is not known, and those after the last one are 1.
///
/// # Safety
/// The caller is a kernel entry, and the block of the launch has these extents.
#[doc(hidden)]
#[inline(always)]
pub unsafe fn __shaped<const B: usize>(block: [u32; B]) {
    // SAFETY: The caller is a kernel entry.
    let cx = unsafe { Gpu::new() };
    let (dim, thread) = (cx.block_dim(), cx.thread_idx());
    let known = |i: usize, dim: u32, thread: u32| {
        let extent = block.get(i).copied().unwrap_or(1);
        if extent != 0 {
            // SAFETY: The caller promises the extent, and a thread's position is below it. (With
            // one condition for both, the compiler would not replace the extent by its number.)
            unsafe {
                assert_unchecked(dim == extent);
                assert_unchecked(thread < extent);
            }
        }
    };
    known(0, dim.x, thread.x);
    known(1, dim.y, thread.y);
    known(2, dim.z, thread.z);
}

impl Sealed for Gpu {}
impl Team for Gpu {
    type Cx = Gpu;
    type Values<T: Copy> = Cell<T>;

    #[inline(always)]
    fn first(self) -> Gpu {
        self
    }
    #[inline(always)]
    fn shared_bytes(self) -> u32 {
        let bytes;
        // SAFETY: The instruction only reads a special register.
        unsafe { asm!("mov.u32 {0}, %dynamic_smem_size;", out(reg32) bytes, options(pure, nomem, nostack)) };
        bytes
    }
    #[inline(always)]
    fn each<T: Copy>(self, _: bool, f: impl Fn(Gpu) -> T) -> Cell<T> {
        Cell::new(f(self))
    }
    #[inline(always)]
    fn value<T: Copy>(values: &Cell<T>, _: Gpu) -> &Cell<T> {
        values
    }
    #[inline(always)]
    unsafe fn meet(self) {
        self.barrier();
    }
    #[inline(always)]
    unsafe fn any(self, values: &Cell<bool>) -> bool {
        // SAFETY: The caller promises that all threads of the block reach this call.
        unsafe { barrier_or(i32::from(values.get())) != 0 }
    }
    #[inline(always)]
    unsafe fn exchange(self, op: Exchange, values: &Cell<u32>, argument: u32) -> Cell<u32> {
        let v = values.get();
        let float = f32::from_bits(v);
        Cell::new(match op {
            Exchange::Xor => self.shuffle_xor(v, argument),
            Exchange::Up => self.shuffle_up(v, argument),
            Exchange::Down => self.shuffle_down(v, argument),
            Exchange::Ballot => self.ballot(v != 0),
            Exchange::SumF32 => self.warp_sum(float).to_bits(),
            Exchange::MaxF32 => self.warp_max(float).to_bits(),
            Exchange::MinF32 => self.warp_min(float).to_bits(),
            Exchange::SumU32 => self.warp_sum_u32(v),
        })
    }
    #[inline(always)]
    unsafe fn multiply_bytes<const N: usize>(
        self,
        signed: bool,
        a: &Cell<[u32; 4]>,
        b: &Cell<[[u32; 2]; N]>,
        c: &Cell<[[i32; 4]; N]>,
    ) -> Cell<[[i32; 4]; N]> {
        let (a, b, mut sums) = (a.get(), b.get(), c.get());
        // SAFETY: The caller promises that all threads of the block reach this call.
        //
        // All lanes of a warp must execute a product together. LLVM does not know that of its
        // intrinsic, nor of assembly: it may copy them into both branches of a condition around
        // them, or move them into one. It knows it of this barrier, so it does not copy the code in
        // which it stands, and it does not move assembly that is not `pure`.
        unsafe { warp_barrier(u32::MAX) };
        macro_rules! multiply {
            ($sign:literal $i:ident) => {
                asm!(
                    concat!(
                        "mma.sync.aligned.m16n8k32.row.col.s32.", $sign, "8.u8.s32 {{{0}, {1}, {2}, {3}}}, ",
                        "{{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};"
                    ),
                    inout(reg32) sums[$i][0], inout(reg32) sums[$i][1], inout(reg32) sums[$i][2], inout(reg32) sums[$i][3],
                    in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[$i][0],
                    in(reg32) b[$i][1], options(nomem, nostack)
                )
            };
        }
        let mut one = |i: usize| {
            // SAFETY: The caller promises that all threads of the block reach this call, and the
            // barrier keeps it that way.
            unsafe {
                match signed {
                    true => multiply!("s" i),
                    false => multiply!("u" i),
                }
            }
        };
        for i in 0..N {
            one(i);
        }
        Cell::new(sums)
    }
}
