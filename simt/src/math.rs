//! Arithmetic of floating-point numbers.

/// Arithmetic of floating-point numbers, for kernels.
pub trait Math: Copy {
    /// Computes `a * b + c`, with one rounding on a GPU and one or two on the CPU device.
    #[must_use]
    fn fma(self, a: f32, b: f32, c: f32) -> f32;
    /// Computes `a * b + c` with one rounding, on each device (`fma.rn`). The CPU device calls a
    /// function for it if it was compiled for processors without the instruction, so
    /// [`fma`](Math::fma) is faster there.
    #[must_use]
    fn fma_rn(self, a: f32, b: f32, c: f32) -> f32;
    /// Computes the square root, correctly rounded (`sqrt.rn`).
    #[must_use]
    fn sqrt(self, x: f32) -> f32;

    /// Computes the square root at least as exactly as `sqrt.approx.ftz.f32` (relative error
    /// 2^-23). On a GPU it takes fewer instructions than [`sqrt`](Math::sqrt).
    #[must_use]
    #[inline(always)]
    fn sqrt_approx(self, x: f32) -> f32 {
        self.sqrt(x)
    }
    /// Computes the cube root of a positive normal number below 2^126.
    ///
    /// The relative error is at most 2^-20 for `x` from 2^-7 to 2^7. On a GPU it grows with the
    /// distance of log2 `x` from 0, to at most 2^-16.
    #[must_use]
    fn cbrt_approx(self, x: f32) -> f32;
    /// Computes the base-2 logarithm at least as exactly as `lg2.approx.ftz.f32`, whose error is
    /// 2^-22: absolute for `x` near 1, relative elsewhere. The instruction takes subnormal numbers
    /// for zero.
    #[must_use]
    fn log2_approx(self, x: f32) -> f32;
    /// Computes 2 to the power `x` at least as exactly as `ex2.approx.ftz.f32` (relative error
    /// 2^-22).
    #[must_use]
    fn exp2_approx(self, x: f32) -> f32;
    /// Computes `1 / x` at least as exactly as `rcp.approx.ftz.f32` (1 ulp).
    #[must_use]
    fn recip_approx(self, x: f32) -> f32;

    /// Clamps `x` to [0, 1]. NaN becomes 0 (`cvt.sat`, `__saturatef`).
    #[must_use]
    #[inline(always)]
    fn saturate(self, x: f32) -> f32 {
        if x > 0.0 { x.min(1.0) } else { 0.0 }
    }
    /// Computes `a + b`, clamped to [0, 1]. NaN becomes 0 (`add.sat`).
    #[must_use]
    #[inline(always)]
    fn add_sat(self, a: f32, b: f32) -> f32 {
        self.saturate(a + b)
    }
    /// Computes `a - b`, clamped to [0, 1]. NaN becomes 0 (`sub.sat`).
    #[must_use]
    #[inline(always)]
    fn sub_sat(self, a: f32, b: f32) -> f32 {
        self.saturate(a - b)
    }
    /// Computes `a * b`, clamped to [0, 1]. NaN becomes 0 (`mul.sat`).
    #[must_use]
    #[inline(always)]
    fn mul_sat(self, a: f32, b: f32) -> f32 {
        self.saturate(a * b)
    }
    /// Computes [`fma`](Math::fma), clamped to [0, 1]. NaN becomes 0 (`fma.rn.sat`).
    #[must_use]
    #[inline(always)]
    fn fma_sat(self, a: f32, b: f32, c: f32) -> f32 {
        self.saturate(self.fma(a, b, c))
    }
}
