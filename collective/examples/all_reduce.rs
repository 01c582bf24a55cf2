//! One all-reduce: each rank brings its gradient, and all go on with the mean.
//!
//! ```text
//! compute  [ gradient ]~~~~~~~~~~~~~~~~~[ step ]     ~ waits on the device
//! reduce              \[ all-reduce ]/               the host enqueues everything at once
//! ```
//!
//! Alone:                `cargo run -p thalweg-collective --example all_reduce`
//! Two processes:        `thalweg launch -n 2 -- target/debug/examples/all_reduce`
//! PyTorch's launcher:   `torchrun --nproc-per-node 2 --no-python target/debug/examples/all_reduce`

#[path = "../../examples/support/command_line.rs"]
mod command_line;

use std::time::Instant;

use thalweg::stream_tags;
use thalweg_collective::{Mean, World};

stream_tags!(Compute, Reduce);

const ELEMENTS: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    command_line::CommandLine::parse("Each rank brings a gradient, and all go on with the mean.", &[], &[]);
    let world = World::from_env()?;
    let (rank, size) = (world.rank(), world.size());
    let device = world.device()?;
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let mut comm = world.comm(reduce)?;

    // What a backward pass would make: rank r has r + 1 everywhere, so the mean is (size + 1) / 2.
    let mut gradient = compute.alloc::<f32>(ELEMENTS)?;
    compute.fill(&mut gradient, rank as f32 + 1.0)?;

    let mut gradient = compute.hand_off(gradient, &reduce)?;
    comm.all_reduce_in_place(Mean, &mut gradient)?;
    let gradient = reduce.hand_off(gradient, &compute)?;
    let mean = compute.read_blocking(&gradient).map_err(|error| comm.failure_or(error))?;
    let expected = (size as f32 + 1.0) / 2.0;
    assert!(mean.iter().all(|&v| v == expected), "{} is not {expected}", mean[0]);

    // How long one takes, after the first.
    let mut gradient = compute.hand_off(gradient, &reduce)?;
    let start = Instant::now();
    for _ in 0..10 {
        comm.all_reduce_in_place(Mean, &mut gradient)?;
    }
    comm.synchronize()?;
    let time = start.elapsed() / 10;
    println!(
        "rank {rank} of {size} on {device}: the mean of {ELEMENTS} x f32 is {expected}, {:.1} ms each by {:?}",
        time.as_secs_f64() * 1e3,
        comm.backend()
    );
    Ok(())
}
