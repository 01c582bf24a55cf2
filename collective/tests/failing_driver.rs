//! A rank whose GPU cannot be opened gets the reason, and not a CPU device that would hold up all
//! others. The drivers that fail are the test's own.
#![cfg(target_os = "linux")]

use testkit::drivers::Drivers;
use testkit::process::again;
use thalweg::DeviceKind;
use thalweg_collective::{Error, World};

/// If this variable is set, this process is the rank that finds the driver.
const CHILD: &str = "FAILING_DRIVER_CHILD";

fn rank() {
    match World::single().device() {
        Ok(device) if device.kind() == DeviceKind::Cpu => println!("\n= cpu"),
        Ok(_) => println!("\n= gpu"),
        Err(error @ Error::NoGpu { rank: 0, .. }) => println!("\n= {error}"),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn a_rank_is_told_why_it_has_no_gpu() {
    if std::env::var_os(CHILD).is_some() {
        return rank();
    }
    let drivers = Drivers::new(env!("CARGO_TARGET_TMPDIR"), "failing_driver_rank");
    for (fails, environment, told) in [
        (
            "cuInit 999",
            None,
            "rank 0 cannot open its GPU: the NVIDIA driver cannot be used: cuInit failed: CUDA_ERROR_ON_PURPOSE (999): this \
             driver fails on purpose; with THALWEG_DEVICE=cpu it takes the CPU device",
        ),
        (
            "cuDevicePrimaryCtxRetain 2",
            Some(("THALWEG_DEVICE", "auto")),
            "rank 0 cannot open its GPU: cuDevicePrimaryCtxRetain failed: CUDA_ERROR_ON_PURPOSE (2): this driver fails on \
             purpose; with THALWEG_DEVICE=cpu it takes the CPU device",
        ),
        ("cuInit 999", Some(("THALWEG_DEVICE", "cpu")), "cpu"),
        ("cuInit 100", Some(("CUDA_VISIBLE_DEVICES", "")), "cpu"),
    ] {
        let mut command = again(concat!(module_path!(), "::a_rank_is_told_why_it_has_no_gpu"));
        command.env(CHILD, "1");
        drivers.give(&mut command, "failing", fails);
        command.envs(environment);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("= ")).collect();
        assert_eq!(lines, [told], "{fails} {environment:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
