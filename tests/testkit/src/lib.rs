//! Code that tests of all crates share: the f64 reference, devices, gates and fences, files,
//! generated images, and processes. It is not published, and crates take it as a dev-dependency by
//! its path.
#![allow(missing_docs, missing_debug_implementations)] // for tests only

pub mod compile_fail;
pub mod devices;
pub mod drivers;
pub mod fence;
pub mod files;
#[cfg(unix)]
pub mod fork;
pub mod gate;
pub mod images;
pub mod oracle;
pub mod process;
pub mod tasks;

use proptest::test_runner::Config;

/// Gives the configuration of a property test with `count` cases, or with `THALWEG_CASES` cases if
/// that variable is set.
///
/// It turns off proptest's files of failing seeds. A failure prints its smallest input; write a
/// test for that input.
pub fn cases(count: u32) -> Config {
    let asked = std::env::var("THALWEG_CASES").map(|n| n.parse().expect("THALWEG_CASES is a number of cases"));
    Config { cases: asked.unwrap_or(count), failure_persistence: None, ..Config::default() }
}
