//! What the integration tests share: files, generated images, devices.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod devices;
pub mod fence;
pub mod files;
pub mod gate;
pub mod images;
pub mod run;

use proptest::test_runner::Config;

/// The configuration of a property test of `count` cases, or of as many as the variable `THALWEG_CASES` says.
///
/// proptest would keep failing seeds beside the nearest `lib.rs` or `main.rs` above the test, and there is
/// none. A failure prints its smallest input; that belongs in a test of its own.
pub fn cases(count: u32) -> Config {
    let asked = std::env::var("THALWEG_CASES").map(|n| n.parse().expect("THALWEG_CASES is a number of cases"));
    Config { cases: asked.unwrap_or(count), failure_persistence: None, ..Config::default() }
}
