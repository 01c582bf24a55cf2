//! A disk that becomes full while the command writes results leaves no incomplete file.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::Command;

mod support;
use support::{Bench, Run, photo, repository, thalweg};

#[test]
fn a_full_disk_leaves_no_half_file() {
    let bench = Bench::new();
    fs::create_dir(bench.out()).unwrap();
    let disk = fs::canonicalize(bench.out()).unwrap();
    let library = bench.folder.path().join("libsmall_disk.so");
    let source = repository("cli").join("tests/fixtures/small_disk.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiled = Command::new(&rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([&library, Path::new(&source)])
        .status()
        .unwrap_or_else(|e| panic!("this test needs a Rust compiler, and {} does not start: {e}", rustc.display()));
    assert!(compiled.success(), "the small disk compiles: {compiled}");

    let run = |bytes: usize| {
        Run::of(
            thalweg()
                .arg("tokens")
                .args([photo("row.png"), photo("eye.png")])
                .args(["--budget=1024", "--heatmap", "--out"])
                .arg(&disk)
                .env("LD_PRELOAD", &library)
                .env("SMALL_DISK", &disk)
                .env("SMALL_DISK_BYTES", bytes.to_string()),
        )
    };
    run(128 << 10).expect(1, &["1 of 2 inputs failed", "eye.png: cannot write", "No space left on device"]);
    assert_eq!(bench.results(), ["row.heatmap.png", "row.safetensors"]);
    bench.read("row");
    // A disk with enough room holds all results.
    run(16 << 20).expect(0, &[]);
    assert_eq!(bench.results(), ["eye.heatmap.png", "eye.safetensors", "row.heatmap.png", "row.safetensors"]);
}
