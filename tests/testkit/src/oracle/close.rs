//! How far a result may be from the reference, and the checks of it.

use super::PLANES;

/// The error allowed on each plane.
pub const PLANE_ERROR: [f64; PLANES] = [2e-6, 2e-6, 2e-6, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-6, 2e-6, 2e-6, 2e-5];

/// The error allowed on scores, features and tokens.
pub const SCORE_ERROR: f64 = 2e-5;

/// The error allowed on positions: that of the planes y and x.
pub const POSITION_ERROR: f64 = 2e-6;

/// The error allowed on relevance, from the spread that [`relevance`](super::relevance) returns.
///
/// A spread below 1e-6 makes relevance 1 everywhere. Near that, f32 may fall on either side, and
/// the bound is above 1; well below, as in a uniform image, rounding is no excuse.
pub fn relevance_error(spread: f64) -> f64 {
    if spread < 5e-7 { 0.0 } else { 2e-6 / spread }
}

/// The same numbers in f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// The largest absolute difference; infinite where the lengths differ or either side is not a
/// number.
pub fn max_error(got: &[f32], want: &[f64]) -> f64 {
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    let mut worst = 0.0;
    for (&g, &w) in got.iter().zip(want) {
        let error = (f64::from(g) - w).abs();
        if error.is_nan() {
            return f64::INFINITY;
        }
        worst = error.max(worst);
    }
    worst
}

/// Panics with the first element that is further than `bound` from the reference.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(g) - w).abs();
        assert!(error <= bound, "{what}[{i}] is {g}, the reference {w}: off by {error:e}, allowed {bound:e}");
    }
}

/// The same for planes `[13, H, W]`, each within its own error.
#[track_caller]
pub fn assert_planes_close(what: &str, got: &[f32], want: &[f64]) {
    let size = want.len() / PLANES;
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (plane, bound) in PLANE_ERROR.into_iter().enumerate() {
        let part = plane * size..(plane + 1) * size;
        assert_close(&format!("{what}: plane {plane}"), &got[part.clone()], &want[part], bound);
    }
}
