//! Code that the integration tests share: files, generated images, devices, gates and fences.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod devices;
pub mod fence;
pub mod files;
#[cfg(unix)]
pub mod fork;
pub mod gate;
pub mod images;
pub mod run;
pub mod tasks;

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
