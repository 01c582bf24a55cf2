//! Arithmetic on the host.

use super::monitor::Monitor;
use super::thread::CpuThread;
use crate::{Bits, Math};

impl<M: Monitor> Math for CpuThread<'_, M> {
    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        // If the target lacks the instruction, `mul_add` is a slow library call.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
    }
    #[inline(always)]
    fn fma_rn(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn fma_f64(self, a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn sqrt_f64(self, x: f64) -> f64 {
        x.sqrt()
    }
    #[inline(always)]
    fn sqrt(self, x: f32) -> f32 {
        x.sqrt()
    }
    #[inline(always)]
    fn floor(self, x: f32) -> f32 {
        x.floor()
    }
    #[inline(always)]
    fn ceil(self, x: f32) -> f32 {
        x.ceil()
    }
    #[inline(always)]
    fn trunc(self, x: f32) -> f32 {
        x.trunc()
    }
    #[inline(always)]
    fn round(self, x: f32) -> f32 {
        x.round()
    }
    #[inline(always)]
    fn round_ties_even(self, x: f32) -> f32 {
        x.round_ties_even()
    }

    #[inline(always)]
    fn cbrt_approx(self, x: f32) -> f32 {
        // The first guess divides the exponent by 3. Each of the two steps of Halley's method
        // triples the number of correct digits.
        let mut r = f32::from_bits(x.to_bits() / 3 + 0x2a51_37a0);
        for _ in 0..2 {
            let cube = r * r * r;
            r *= (cube + 2.0 * x) / (2.0 * cube + x);
        }
        r
    }
    #[inline(always)]
    fn log2_approx(self, x: f32) -> f32 {
        x.log2()
    }
    #[inline(always)]
    fn exp2_approx(self, x: f32) -> f32 {
        x.exp2()
    }
    #[inline(always)]
    fn recip_approx(self, x: f32) -> f32 {
        x.recip()
    }
}

impl<M: Monitor> Bits for CpuThread<'_, M> {}
