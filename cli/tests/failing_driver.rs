//! What the command says about a GPU that cannot be opened: one run goes on on the CPU device and
//! says why, and a rank among several ends. The driver that fails is the test's own.
#![cfg(target_os = "linux")]

use testkit::drivers::Drivers;

use crate::support::{Bench, Run, photo, thalweg};

#[test]
fn the_command_says_why_it_has_no_gpu() {
    let (drivers, bench) = (Drivers::new(env!("CARGO_TARGET_TMPDIR"), "failing_driver_command"), Bench::new());
    let why =
        "the NVIDIA driver cannot be used: cuInit failed: CUDA_ERROR_ON_PURPOSE (999): this driver fails on purpose";
    let command = || {
        let mut command = thalweg();
        drivers.give(&mut command, "failing", "cuInit 999");
        command
    };
    let run =
        Run::of(command().args(["tokens", "--budget=64"]).arg(photo("chelsea.png")).arg("--out").arg(bench.out()));
    run.expect(0, &[&format!("thalweg: running on the CPU device: {why}")]);
    let run = Run::of(command().arg("devices")).expect(0, &[]);
    assert!(run.out.contains(&format!("auto: running on the CPU device: {why}")), "{run:#?}");
    let place = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    let mut rank = command();
    rank.arg("train").arg(bench.input("")).arg("--out").arg(bench.out().with_extension("safetensors")).envs(place);
    Run::of(&mut rank)
        .expect(1, &[&format!("rank 0 needs a GPU of its own: {why}; or use --device cpu for all ranks")]);
}
