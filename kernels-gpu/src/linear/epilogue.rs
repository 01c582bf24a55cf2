//! The epilogue: the changes to a sum before it is stored.
//!
//! ```text
//! v = sum + bias[column]                   if there is a bias
//! v = gelu(v)                              if there is an activation
//! v = v + residual[row, column]            if there is a residual
//! v = v + C[row, column]                   if the product is added to C
//! C[row, column] = v, rounded to the type of C
//! ```

use thalweg_simt::Simt;

use crate::parts::gelu::{gelu_erf, gelu_tanh};

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
