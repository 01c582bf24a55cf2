//! What happens to a sum before it is stored.
//!
//! ```text
//! v = sum + bias[column]                   if there is a bias
//! v = gelu(v)                              if there is an activation
//! v = v + residual[row, column]            if there is a residual
//! v = v + C[row, column]                   if the product is added to C
//! C[row, column] = v, rounded to the type of C
//! ```

use thalweg_simt::Simt;

/// There is a bias.
pub(super) const BIAS: u32 = 1;
/// The activation is GELU by the hyperbolic tangent.
pub(super) const GELU_TANH: u32 = 2;
/// The activation is GELU by the error function.
pub(super) const GELU_ERF: u32 = 4;
/// There is a residual.
pub(super) const RESIDUAL: u32 = 8;
/// The old elements of C are added.
pub(super) const ACCUMULATE: u32 = 16;
/// The elements of C, of the bias and of the residual are `f32`, and not of the operands' type.
pub(super) const WIDE: u32 = 32;
/// The rows of C start at multiples of 16 bytes.
pub(super) const ALIGNED: u32 = 64;
/// A, or B, is stored along k. Only the kernel for operands of any order looks at it.
pub(super) const A_ALONG_K: u32 = 128;
pub(super) const B_ALONG_K: u32 = 256;

/// Computes an element of C, not yet rounded, from its sum. `bias`, `residual` and `old` count only
/// if `flags` say so.
#[inline(always)]
pub(super) fn finish(cx: impl Simt, flags: u32, sum: f32, bias: f32, residual: f32, old: f32) -> f32 {
    let mut v = sum;
    if flags & BIAS != 0 {
        v += bias;
    }
    if flags & GELU_TANH != 0 {
        v = gelu_tanh(cx, v);
    }
    if flags & GELU_ERF != 0 {
        v = gelu_erf(cx, v);
    }
    if flags & RESIDUAL != 0 {
        v += residual;
    }
    if flags & ACCUMULATE != 0 {
        v += old;
    }
    v
}

/// log2 of e.
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// Computes `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
#[inline(always)]
fn gelu_tanh(cx: impl Simt, x: f32) -> f32 {
    // (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)). If the exponential overflows, the reciprocal is 0.
    let u = 0.797_884_6 * x * cx.fma(0.044_715 * x, x, 1.0);
    x * cx.recip_approx(1.0 + cx.exp2_approx(-2.0 * LOG2_E * u))
}

/// Computes `x / 2 * (1 + erf(x / sqrt(2)))`.
#[inline(always)]
fn gelu_erf(cx: impl Simt, x: f32) -> f32 {
    // Abramowitz and Stegun, formula 7.1.26: for z >= 0, 1 - erf z = (a1 t + ... + a5 t^5) exp(-z^2)
    // with t = 1 / (1 + p z), and an error of at most 1.5e-7.
    let z = core::f32::consts::FRAC_1_SQRT_2 * x.abs();
    let t = cx.recip_approx(cx.fma(0.327_591_1, z, 1.0));
    let mut tail = 1.061_405_4;
    tail = cx.fma(tail, t, -1.453_152);
    tail = cx.fma(tail, t, 1.421_413_7);
    tail = cx.fma(tail, t, -0.284_496_74);
    tail = cx.fma(tail, t, 0.254_829_6);
    let tail = 0.5 * tail * t * cx.exp2_approx(-LOG2_E * z * z);
    x * if x < 0.0 { tail } else { 1.0 - tail }
}
