//! The weights of the three scores, from what a balancer says.

use thalweg_simt::Simt;

/// log2 of e.
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// Computes the place between two poles that each of three tensions takes: `1 / (1 + exp(-v))`.
#[inline(always)]
pub(crate) fn tension(cx: impl Simt, v: [f32; 3]) -> [f32; 3] {
    // If the exponential overflows, the reciprocal is 0.
    v.map(|v| cx.recip_approx(1.0 + cx.exp2_approx(-LOG2_E * v)))
}

/// Computes the weights of entropy, salience and participatory score: the softmax of `v`, or those
/// of three tensions between two scores each. Their sum is 1.
#[inline(always)]
pub(crate) fn mix(cx: impl Simt, tensions: bool, v: [f32; 3]) -> [f32; 3] {
    let [a, b, c] = v;
    if tensions {
        let [scope, tempering, priority] = tension(cx, v);
        return [scope - tempering, priority - scope, tempering - priority].map(|v| (1.0 + v) * (1.0 / 3.0));
    }
    let most = a.max(b).max(c);
    let powers = v.map(|v| cx.exp2_approx((v - most) * LOG2_E));
    let sum = powers[0] + powers[1] + powers[2];
    powers.map(|power| power / sum)
}
