//! Random safe programs on three streams, compared with a serial interpreter.
//!
//! A program is a list of small numbers. Each step does something that is possible at that point:
//! it moves buffers between their states, splits, joins, shares, drops and forgets them, and
//! enqueues copies, fills and kernels on them. The test keeps for each buffer the contents it would
//! have if every step ran to its end before the next. What the host reads must equal that, while
//! the program runs and for everything that is left at its end. `tests/mutations` takes waits out
//! of the library to see this test fail.
//!
//! `THALWEG_CASES` sets how many programs run on each device.

mod buffers;
mod failure;
mod operations;
mod program;
mod slots;
mod three;
mod world;

use std::io::Write;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use thalweg::{AnyStream, Device, DeviceKind, LiveBrand};

use failure::Failure;
use program::Op;
use testkit::devices::{alone_on, devices};
use three::Streams;
use world::World;

/// Runs a program.
fn run<A: LiveBrand, B: LiveBrand, C: LiveBrand>(
    device: Device,
    on: Streams<A, B, C>,
    program: &[Op],
) -> Result<(), TestCaseError> {
    let fail = |failure: Failure, trace: &[String]| {
        TestCaseError::fail(format!("{device}: {failure}, after these steps:\n{}", trace.join("\n")))
    };
    let mut world = World::new(device, on).map_err(|f| fail(f, &[]))?;
    for &op in program {
        world.step(op).map_err(|f| fail(f, &world.trace))?;
    }
    let trace = world.trace.clone();
    world.finish().map_err(|f| fail(f, &trace))
}

/// Runs random programs on a device, each under `schedules` schedules.
fn explore(device: Device, programs: u32, schedules: u64) {
    let streams = [(); 3].map(|()| AnyStream::new(device).unwrap());
    let config = testkit::cases(programs);
    let programs = config.cases;
    let op = (0..89u8, any::<u8>(), any::<u8>(), any::<u8>());
    let input = (any::<u64>().no_shrink(), vec(op, 0..120));
    let result = TestRunner::new(config).run(&input, |(seed, program)| {
        let [a, b, c] = &streams;
        (0..schedules).try_for_each(|schedule| {
            device.reseed(seed.wrapping_add(schedule));
            a.enter(|&a| b.enter(|&b| c.enter(|&c| run(device, Streams { a, b, c }, &program))))
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    // The harness hides what a passing test prints with `print!`.
    let report = format!("covered: {programs} programs on {device}, {schedules} schedule(s) each\n");
    let _ = std::io::stderr().write_all(report.as_bytes());
}

#[test]
fn under_seeded_schedules() {
    explore(Device::seeded_cpu(0).unwrap(), 4000, 6);
}

#[test]
fn on_every_device() {
    for &device in devices() {
        let _alone = alone_on(device);
        // A GPU's driver page-locks new memory for each program.
        explore(device, if device.kind() == DeviceKind::Cpu { 2000 } else { 300 }, 1);
    }
}
