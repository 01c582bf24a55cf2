//! Operations on the bits of integers, on `nvptx64`.

use core::arch::asm;

use super::Gpu;
use crate::Bits;

/// Makes methods of one instruction with operands and a result of 32 bits.
macro_rules! instructions {
    ($($name:ident($($arg:ident: $t:ty),*) -> $result:ty = $text:literal;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $t),*) -> $result {
            let result;
            // SAFETY: The instruction only computes with the given registers.
            unsafe {
                asm!(
                    $text, out(reg32) result, $(in(reg32) $arg),*, options(pure, nomem, nostack, preserves_flags)
                );
            }
            result
        }
    )*};
}

impl Bits for Gpu {
    instructions! {
        dp4a_u32(a: u32, b: u32, c: u32) -> u32 = "dp4a.u32.u32 {0}, {1}, {2}, {3};";
        dp4a_i32(a: u32, b: u32, c: i32) -> i32 = "dp4a.s32.s32 {0}, {1}, {2}, {3};";
        dp2a_lo_u32(a: u32, b: u32, c: u32) -> u32 = "dp2a.lo.u32.u32 {0}, {1}, {2}, {3};";
        dp2a_hi_u32(a: u32, b: u32, c: u32) -> u32 = "dp2a.hi.u32.u32 {0}, {1}, {2}, {3};";
        dp2a_lo_i32(a: u32, b: u32, c: i32) -> i32 = "dp2a.lo.s32.s32 {0}, {1}, {2}, {3};";
        dp2a_hi_i32(a: u32, b: u32, c: i32) -> i32 = "dp2a.hi.s32.s32 {0}, {1}, {2}, {3};";
        dp2a_lo_i32_u32(a: u32, b: u32, c: i32) -> i32 = "dp2a.lo.s32.u32 {0}, {1}, {2}, {3};";
        dp2a_hi_i32_u32(a: u32, b: u32, c: i32) -> i32 = "dp2a.hi.s32.u32 {0}, {1}, {2}, {3};";
        byte_perm(a: u32, b: u32, selector: u32) -> u32 = "prmt.b32 {0}, {1}, {2}, {3};";
        clamped_bytes(low: i32, high: i32, above: u32) -> u32 = "cvt.pack.sat.u8.s32.b32 {0}, {2}, {1}, {3};";
        funnel_shift_left(low: u32, high: u32, shift: u32) -> u32 = "shf.l.wrap.b32 {0}, {1}, {2}, {3};";
        funnel_shift_right(low: u32, high: u32, shift: u32) -> u32 = "shf.r.wrap.b32 {0}, {1}, {2}, {3};";
    }
}
