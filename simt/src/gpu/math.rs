//! Arithmetic of floating-point numbers, on `nvptx64`.

use core::arch::asm;

use super::Gpu;
use crate::Math;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.lg2.approx.ftz.f"]
    fn lg2_approx(x: f32) -> f32;
    #[link_name = "llvm.nvvm.ex2.approx.ftz.f"]
    fn ex2_approx(x: f32) -> f32;
    #[link_name = "llvm.nvvm.sqrt.approx.ftz.f"]
    fn sqrt_approx(x: f32) -> f32;
    #[link_name = "llvm.nvvm.rcp.approx.ftz.f"]
    fn rcp_approx(x: f32) -> f32;
}

/// Makes methods of one instruction with operands and a result of 32 bits.
macro_rules! instructions {
    ($($name:ident($($arg:ident),*) = $text:literal;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: f32),*) -> f32 {
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

impl Math for Gpu {
    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        core::f32::math::mul_add(a, b, c)
    }
    #[inline(always)]
    fn fma_rn(self, a: f32, b: f32, c: f32) -> f32 {
        core::f32::math::mul_add(a, b, c)
    }
    #[inline(always)]
    fn fma_f64(self, a: f64, b: f64, c: f64) -> f64 {
        core::f64::math::mul_add(a, b, c)
    }
    #[inline(always)]
    fn sqrt_f64(self, x: f64) -> f64 {
        core::f64::math::sqrt(x)
    }
    #[inline(always)]
    fn sqrt(self, x: f32) -> f32 {
        core::f32::math::sqrt(x)
    }
    #[inline(always)]
    fn floor(self, x: f32) -> f32 {
        core::f32::math::floor(x)
    }
    #[inline(always)]
    fn ceil(self, x: f32) -> f32 {
        core::f32::math::ceil(x)
    }
    #[inline(always)]
    fn trunc(self, x: f32) -> f32 {
        core::f32::math::trunc(x)
    }
    #[inline(always)]
    fn round(self, x: f32) -> f32 {
        core::f32::math::round(x)
    }
    #[inline(always)]
    fn round_ties_even(self, x: f32) -> f32 {
        core::f32::math::round_ties_even(x)
    }

    #[inline(always)]
    fn sqrt_approx(self, x: f32) -> f32 {
        // SAFETY: The intrinsic only computes with its argument.
        unsafe { sqrt_approx(x) }
    }
    #[inline(always)]
    fn cbrt_approx(self, x: f32) -> f32 {
        self.exp2_approx(self.log2_approx(x) * (1.0 / 3.0))
    }
    #[inline(always)]
    fn log2_approx(self, x: f32) -> f32 {
        // SAFETY: The intrinsic only computes with its argument.
        unsafe { lg2_approx(x) }
    }
    #[inline(always)]
    fn exp2_approx(self, x: f32) -> f32 {
        // SAFETY: The intrinsic only computes with its argument.
        unsafe { ex2_approx(x) }
    }
    #[inline(always)]
    fn recip_approx(self, x: f32) -> f32 {
        // SAFETY: The intrinsic only computes with its argument.
        unsafe { rcp_approx(x) }
    }

    instructions! {
        rsqrt_approx(x) = "rsqrt.approx.ftz.f32 {0}, {1};";
        sin_approx(x) = "sin.approx.ftz.f32 {0}, {1};";
        cos_approx(x) = "cos.approx.ftz.f32 {0}, {1};";
        saturate(x) = "cvt.sat.f32.f32 {0}, {1};";
        add_sat(a, b) = "add.sat.f32 {0}, {1}, {2};";
        sub_sat(a, b) = "sub.sat.f32 {0}, {1}, {2};";
        mul_sat(a, b) = "mul.sat.f32 {0}, {1}, {2};";
        fma_sat(a, b, c) = "fma.rn.sat.f32 {0}, {1}, {2}, {3};";
    }
}
