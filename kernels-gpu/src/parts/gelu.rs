//! GELU, in its two forms.

use thalweg_simt::Simt;

/// log2 of e.
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// Computes `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
#[inline(always)]
pub(crate) fn gelu_tanh(cx: impl Simt, x: f32) -> f32 {
    // (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)). If the exponential overflows, the reciprocal is 0.
    let u = 0.797_884_6 * x * cx.fma(0.044_715 * x, x, 1.0);
    x * cx.recip_approx(1.0 + cx.exp2_approx(-2.0 * LOG2_E * u))
}

/// Computes `x / 2 * (1 + erf(x / sqrt(2)))`.
#[inline(always)]
pub(crate) fn gelu_erf(cx: impl Simt, x: f32) -> f32 {
    // Abramowitz and Stegun, formula 7.1.26: for z >= 0, 1 - erf z = (a1 t + ... + a5 t^5)
    // exp(-z^2) with t = 1 / (1 + p z), and an error of at most 1.5e-7.
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
