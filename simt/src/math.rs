//! Arithmetic of floating-point numbers.

use crate::functions;

/// Arithmetic of floating-point numbers, for kernels.
///
/// The exact forms have the names of Rust's methods of `f32`. They are one text for both devices
/// and take every number, also subnormal ones, infinities and NaN, as Rust's methods do. The forms
/// with the suffix `_approx` are the instructions of a GPU. The CPU device computes them at least
/// as exactly.
///
/// Errors are the largest ones. One ulp is the distance of two neighbors of `f32` at the result.
/// The exact forms were compared with `f64` for every 13th of all numbers, and the tests compare
/// both forms for every 4093rd one on each device.
///
/// | function | error of the exact form | error of `_approx` | what a GPU executes for `_approx` |
/// |---|---|---|---|
/// | `sqrt` | correctly rounded (`sqrt.rn`) | 2^-23 relative | `sqrt.approx.ftz` |
/// | `rsqrt` | 0.51 ulp | 2^-22 relative | `rsqrt.approx.ftz` |
/// | `recip` | correctly rounded (`rcp.rn`) | 1 ulp | `rcp.approx.ftz` |
/// | `cbrt` | 0.51 ulp | see [`cbrt_approx`](Math::cbrt_approx) | `lg2`, `mul`, `ex2` |
/// | `exp2` | 1 ulp | 2^-22 relative | `ex2.approx.ftz` |
/// | `exp` | 1.1 ulp | (2 + abs(x)) 2^-23 relative | `mul`, `ex2` |
/// | `exp_m1` | 1.5 ulp | | |
/// | `log2` | 1.3 ulp | 2^-22, absolute from 1/2 to 2, relative elsewhere | `lg2.approx.ftz` |
/// | `ln` | 1 ulp | 2^-21, as for `log2` | `lg2`, `mul` |
/// | `log10` | 1.5 ulp | 2^-21, as for `log2` | `lg2`, `mul` |
/// | `ln_1p` | 1 ulp | | |
/// | `sin`, `cos` | 1 ulp | 2^-20 absolute, from -2 pi to 2 pi | `sin.approx.ftz`, `cos.approx.ftz` |
/// | `tan` | 2.5 ulp | | |
/// | `tanh` | 1.5 ulp | 2^-20 absolute | `mul`, `ex2`, `add`, `rcp`, `fma` |
/// | `erf` | 1.5 ulp | | |
/// | `powf` | 1.5 ulp | see [`powf_approx`](Math::powf_approx) | `lg2`, `mul`, `ex2` |
/// | `floor`, `ceil`, `trunc`, `round`, `round_ties_even` | exact | | |
/// | `fma_rn`, `fma_f64`, `sqrt_f64` | correctly rounded | | |
///
/// The instructions with `ftz` take subnormal numbers for zero and return zero instead of them.
/// Rust's own `+`, `-`, `*` and `/` are correctly rounded on both devices, and `abs`, `min`, `max`
/// and `copysign` are Rust's methods. A GPU makes one instruction of each but the division.
///
/// ```
/// use thalweg_simt::{kernel, ptx};
///
/// # fn main() {}
/// ptx! {}
///
/// kernel! {
///     /// Computes the logistic function, with one rounding of each step and by the fast instructions.
///     unsafe fn logistic(cx: impl Simt, n: u32, x: In<f32>, y: Out<f32>, fast: Out<f32>)
///     require { x.len() == n, y.len() == n, fast.len() == n }
///     grid(n.div_ceil(256)) block(256)
///     {
///         let i = cx.global_x();
///         if i < n {
///             let x = x.get(cx, i);
///             y.set(cx, i, 1.0 / (1.0 + cx.exp(-x)));
///             fast.set(cx, i, cx.recip_approx(1.0 + cx.exp_approx(-x)));
///         }
///     }
/// }
/// ```
pub trait Math: Copy {
    /// Computes `a * b + c`, with one rounding on a GPU and one or two on the CPU device.
    #[must_use]
    fn fma(self, a: f32, b: f32, c: f32) -> f32;
    /// Computes `a * b + c` with one rounding, on each device (`fma.rn`). The CPU device calls a
    /// function for it if it was compiled for processors without the instruction, so
    /// [`fma`](Math::fma) is faster there.
    #[must_use]
    fn fma_rn(self, a: f32, b: f32, c: f32) -> f32;
    /// Computes `a * b + c` with one rounding, on each device (`fma.rn.f64`).
    #[must_use]
    fn fma_f64(self, a: f64, b: f64, c: f64) -> f64;
    /// Computes the square root, correctly rounded (`sqrt.rn.f64`).
    #[must_use]
    fn sqrt_f64(self, x: f64) -> f64;
    /// Computes the square root, correctly rounded (`sqrt.rn`).
    #[must_use]
    fn sqrt(self, x: f32) -> f32;
    /// Computes 1 over the square root. The error is at most 0.51 ulp.
    #[must_use]
    #[inline(always)]
    fn rsqrt(self, x: f32) -> f32 {
        functions::rsqrt(x)
    }
    /// Computes the cube root. The error is at most 0.51 ulp.
    #[must_use]
    #[inline(always)]
    fn cbrt(self, x: f32) -> f32 {
        functions::cbrt(x)
    }
    /// Computes e to the power `x`. The error is at most 1.1 ulp.
    #[must_use]
    #[inline(always)]
    fn exp(self, x: f32) -> f32 {
        functions::exp(x)
    }
    /// Computes 2 to the power `x`. The error is at most 1 ulp.
    #[must_use]
    #[inline(always)]
    fn exp2(self, x: f32) -> f32 {
        functions::exp2(x)
    }
    /// Computes e to the power `x`, less 1. The error is at most 1.5 ulp, also near 0.
    #[must_use]
    #[inline(always)]
    fn exp_m1(self, x: f32) -> f32 {
        functions::exp_m1(x)
    }
    /// Computes the natural logarithm. The error is at most 1 ulp.
    #[must_use]
    #[inline(always)]
    fn ln(self, x: f32) -> f32 {
        functions::ln(x)
    }
    /// Computes the base-2 logarithm. The error is at most 1.3 ulp.
    #[must_use]
    #[inline(always)]
    fn log2(self, x: f32) -> f32 {
        functions::log2(x)
    }
    /// Computes the base-10 logarithm. The error is at most 1.5 ulp.
    #[must_use]
    #[inline(always)]
    fn log10(self, x: f32) -> f32 {
        functions::log10(x)
    }
    /// Computes the natural logarithm of `1 + x`. The error is at most 1 ulp, also near 0.
    #[must_use]
    #[inline(always)]
    fn ln_1p(self, x: f32) -> f32 {
        functions::ln_1p(x)
    }
    /// Computes the sine. The error is at most 1 ulp, for every number.
    #[must_use]
    #[inline(always)]
    fn sin(self, x: f32) -> f32 {
        functions::sin(x)
    }
    /// Computes the cosine. The error is at most 1 ulp, for every number.
    #[must_use]
    #[inline(always)]
    fn cos(self, x: f32) -> f32 {
        functions::cos(x)
    }
    /// Computes the tangent. The error is at most 2.5 ulp, for every number.
    #[must_use]
    #[inline(always)]
    fn tan(self, x: f32) -> f32 {
        functions::tan(x)
    }
    /// Computes the hyperbolic tangent. The error is at most 1.5 ulp.
    #[must_use]
    #[inline(always)]
    fn tanh(self, x: f32) -> f32 {
        functions::tanh(x)
    }
    /// Computes the error function. The error is at most 1.5 ulp.
    #[must_use]
    #[inline(always)]
    fn erf(self, x: f32) -> f32 {
        functions::erf(x)
    }
    /// Computes `x` to the power `y`. The error is at most 1.5 ulp. Special cases are those of
    /// `f32::powf`: the power is NaN if `x` is negative and `y` is no integer.
    #[must_use]
    #[inline(always)]
    fn powf(self, x: f32, y: f32) -> f32 {
        functions::powf(x, y)
    }
    /// Computes `1 / x`, correctly rounded (`rcp.rn`).
    #[must_use]
    #[inline(always)]
    fn recip(self, x: f32) -> f32 {
        1.0 / x
    }

    /// Returns the largest integer that is at most `x` (`cvt.rmi`).
    #[must_use]
    fn floor(self, x: f32) -> f32;
    /// Returns the smallest integer that is at least `x` (`cvt.rpi`).
    #[must_use]
    fn ceil(self, x: f32) -> f32;
    /// Returns the integer part of `x` (`cvt.rzi`).
    #[must_use]
    fn trunc(self, x: f32) -> f32;
    /// Rounds `x` to the nearest integer. Ties go away from 0.
    #[must_use]
    fn round(self, x: f32) -> f32;
    /// Rounds `x` to the nearest integer. Ties go to the even one (`cvt.rni`, `rintf`).
    #[must_use]
    fn round_ties_even(self, x: f32) -> f32;

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

    /// Computes 1 over the square root, with a relative error of at most 2^-22
    /// (`rsqrt.approx.ftz.f32`).
    #[must_use]
    #[inline(always)]
    fn rsqrt_approx(self, x: f32) -> f32 {
        self.rsqrt(x)
    }
    /// Computes e to the power `x` by [`exp2_approx`](Math::exp2_approx). The relative error is at
    /// most (2 + abs(x)) 2^-23.
    #[must_use]
    #[inline(always)]
    fn exp_approx(self, x: f32) -> f32 {
        self.exp2_approx(x * core::f32::consts::LOG2_E)
    }
    /// Computes the natural logarithm by [`log2_approx`](Math::log2_approx). The error is at most
    /// 2^-21: absolute for `x` from 1/2 to 2, relative elsewhere.
    #[must_use]
    #[inline(always)]
    fn ln_approx(self, x: f32) -> f32 {
        self.log2_approx(x) * core::f32::consts::LN_2
    }
    /// Computes the base-10 logarithm by [`log2_approx`](Math::log2_approx). The error is at most
    /// 2^-21: absolute for `x` from 1/2 to 2, relative elsewhere.
    #[must_use]
    #[inline(always)]
    fn log10_approx(self, x: f32) -> f32 {
        self.log2_approx(x) * core::f32::consts::LOG10_2
    }
    /// Computes the sine of an angle from -2 pi to 2 pi with an absolute error of at most 2^-20
    /// (`sin.approx.ftz.f32`). Beyond this range the error grows with the angle.
    #[must_use]
    #[inline(always)]
    fn sin_approx(self, x: f32) -> f32 {
        self.sin(x)
    }
    /// Computes the cosine of an angle from -2 pi to 2 pi with an absolute error of at most 2^-20
    /// (`cos.approx.ftz.f32`). Beyond this range the error grows with the angle.
    #[must_use]
    #[inline(always)]
    fn cos_approx(self, x: f32) -> f32 {
        self.cos(x)
    }
    /// Computes the hyperbolic tangent with an absolute error of at most 2^-20, by
    /// [`exp2_approx`](Math::exp2_approx) and [`recip_approx`](Math::recip_approx).
    #[must_use]
    #[inline(always)]
    fn tanh_approx(self, x: f32) -> f32 {
        self.fma(-2.0, self.recip_approx(1.0 + self.exp2_approx(x * (2.0 * core::f32::consts::LOG2_E))), 1.0)
    }
    /// Computes a positive `x` to the power `y`, by [`log2_approx`](Math::log2_approx) and
    /// [`exp2_approx`](Math::exp2_approx). The base-2 logarithm of the result is wrong by at most
    /// (1 + abs(y) + abs(y log2 x)) 2^-21.
    #[must_use]
    #[inline(always)]
    fn powf_approx(self, x: f32, y: f32) -> f32 {
        self.exp2_approx(y * self.log2_approx(x))
    }

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
