//! One program text on every device of the machine, with the same stream tags.
//!
//! ```text
//! cargo run --release --example n_devices
//! ```
//!
//! ```text
//! rank 0  cuda:0  up      | copy 0 | copy 2 | copy 4 | ...
//!                 compute          | image 0| image 2| ...
//! rank 1  cuda:1  up      | copy 1 | copy 3 | copy 5 | ...
//!                 compute          | image 1| image 3| ...
//! ```
//!
//! `ranks` runs the program on each device at once, each in a scope of its own. The tags `Upload`
//! and `Compute` name one stream of each scope, and the compiler keeps the buffers of the devices
//! apart. On a machine with one device, a second CPU device shows the same. The example computes
//! the entropy of images on one device and on all, and compares the results.

#[path = "support/mod.rs"]
mod support;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use support::{Arguments, images, sized};
use thalweg::{Device, DeviceKind, DeviceRank, Event, PinnedBuffer, Result, for_each_device, stream_tags};
use thalweg_vision::kernels::entropy;

stream_tags!(Upload, Compute);

/// The number of images that are under way on a device.
const DEPTH: usize = 3;

/// The work of each device.
struct Job {
    /// The side of an image.
    side: u32,
    /// The number of images of all devices together.
    count: usize,
}

/// Computes the entropy of the images of this rank: those whose number, divided by the number of
/// ranks, leaves the rank's index. At most `DEPTH` images are under way. Returns the entropy of
/// each source and the time.
fn program(rank: DeviceRank<'_>, job: &Job) -> Result<([f32; DEPTH], Duration)> {
    let (up, compute) = (rank.stream::<Upload>()?, rank.stream::<Compute>()?);
    let &Job { side, count } = job;
    let bytes = 3 * (side * side) as usize;
    // The images come from a few page-locked sources, which go round.
    let sources = images(rank.device(), DEPTH, side, side)?.split_even(DEPTH)?;
    let mut sources: VecDeque<(usize, Event<PinnedBuffer<u8>>)> =
        sources.into_iter().map(Event::ready).enumerate().collect();
    let mut pending: VecDeque<(usize, Event<PinnedBuffer<f32>>)> = VecDeque::new();
    let mut results = [f32::NAN; DEPTH];
    let start = Instant::now();
    for _ in (rank.index()..count).step_by(rank.size()) {
        if pending.len() == DEPTH {
            let (n, done) = pending.pop_front().expect("it is full");
            results[n] = done.synchronize()?[0];
        }
        let (n, source) = sources.pop_front().expect("there are as many as are under way");
        let source = up.wait(source)?;
        let mut image = up.alloc::<u8>(bytes)?;
        up.copy_to_device(&source, &mut image)?;
        sources.push_back((n, up.record(source)?));
        let image = up.hand_off(image, &compute)?;
        let mut out = compute.alloc::<f32>(1)?;
        entropy(&compute, side, side, side, &image, &mut out)?;
        let mut host = compute.bind(rank.device().pinned::<f32>(1)?)?;
        compute.copy_to_host(&out, &mut host)?;
        pending.push_back((n, compute.record(host)?));
    }
    for (n, done) in pending {
        results[n] = done.synchronize()?[0];
    }
    Ok((results, start.elapsed()))
}

/// Runs the program on these devices. Returns the results of each, and the time of the slowest.
fn run(devices: &[Device], job: &Job) -> Result<(Vec<[f32; DEPTH]>, Duration)> {
    let each = for_each_device(devices, |rank| program(rank, job)).into_iter().collect::<Result<Vec<_>>>()?;
    let slowest = each.iter().map(|(_, time)| *time).max().unwrap_or_default();
    Ok((each.into_iter().map(|(results, _)| results).collect(), slowest))
}

fn main() -> Result<()> {
    let args = Arguments::parse("One program text on every device of the machine, with the same stream tags.");
    let first = args.device()?;
    let mut devices: Vec<Device> = Device::all().into_iter().filter(|device| device.kind() == first.kind()).collect();
    if devices.len() == 1 && first.kind() == DeviceKind::Cpu {
        devices.push(Device::new_cpu()?);
    }
    let job = Job { side: sized(first, 2048, 128), count: sized(first, 1200, 24) };
    run(&devices, &job)?; // fills the pools
    let (want, one) = run(&devices[..1], &job)?;
    let rate = |time: Duration| job.count as f64 / time.as_secs_f64();
    println!("1 device: {:.0} images/s of {} x {}", rate(one), job.side, job.side);
    if devices.len() > 1 {
        let (results, all) = run(&devices, &job)?;
        assert!(results.iter().all(|of_device| *of_device == want[0]), "{results:?} and {want:?}");
        let gain = support::on_gpu(first, || format!(", {:.2} x one", rate(all) / rate(one)));
        println!("{} devices: {:.0} images/s{gain}", devices.len(), rate(all));
    }
    Ok(())
}
