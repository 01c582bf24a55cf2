//! Code that the integration tests share: the f64 reference, files, generated images, devices,
//! gates and fences.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod devices;
pub mod fence;
pub mod files;
pub mod gate;
pub mod images;
pub mod reference;
pub mod run;

use proptest::test_runner::Config;

/// Gives the configuration of a property test with `count` cases, or with `THALWEG_CASES` cases if
/// that variable is set.
///
/// It turns off proptest's files of failing seeds, which belong beside a `lib.rs` or `main.rs` that
/// most test binaries do not have. A failure prints its smallest input; write a test for that
/// input.
pub fn cases(count: u32) -> Config {
    let asked = std::env::var("THALWEG_CASES").map(|n| n.parse().expect("THALWEG_CASES is a number of cases"));
    Config { cases: asked.unwrap_or(count), failure_persistence: None, ..Config::default() }
}

/// Gives the largest absolute difference. It is infinite if the lengths differ or a value is NaN.
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

/// Panics at the first element that is further than `bound` from the reference.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(g) - w).abs();
        assert!(error <= bound, "{what}[{i}] is {g}, the reference {w}: off by {error:e}, allowed {bound:e}");
    }
}
