//! Finds a hidden synchronization with `SyncStats`, and removes it.
//!
//! ```text
//! before   host     | prepare 0 | read . . . . . . . | prepare 1 | read . . .
//!          up                   | copy 0 |                       | copy 1 |
//!          compute                       | kernel 0 |                     | kernel 1 |
//!
//! after    host     | prepare 0 | prepare 1 | prepare 2 | ...          | gather |
//!          up                   | copy 0 |  | copy 1 |  | copy 2 |
//!          compute                       | kernel 0 || kernel 1 | ...
//! ```
//!
//! ```text
//! cargo run --release --example hidden_sync -- --timeline hidden_sync.svg
//! ```
//!
//! Both versions run under `SyncStats`, which reports what made the host wait, how long, and in
//! which line.

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::{Arguments, sized};
use thalweg::{Activity, Device, DeviceBuffer, On, Result, Stream, Timeline, stream_tags};
use thalweg_vision::kernels::entropy;

stream_tags!(Upload, Compute);

/// The number of images.
const COUNT: usize = 24;
/// Rows and columns of an image.
const SIDE: u32 = 512;
const BYTES: usize = 3 * (SIDE * SIDE) as usize;

/// Two streams and the work that runs on them.
struct Program {
    gpu: Device,
    up: Stream<Upload>,
    compute: Stream<Compute>,
    timeline: Timeline,
}

impl Program {
    /// Prepares an image, uploads it, and enqueues its kernel, which computes one number: the
    /// entropy of the whole image.
    fn enqueue(&self, i: usize) -> Result<On<Compute, DeviceBuffer<f32>>> {
        let mut image = self.gpu.pinned::<u8>(BYTES)?;
        self.timeline.host("host", &format!("prepare {i}"), || {
            let mut state = i as u32;
            for run in image.chunks_mut(sized(self.gpu, 48, 1)) {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                run.fill((state >> 24) as u8 >> (i % 8));
            }
        });
        let image = self.up.bind(image)?;
        let mut rgb = self.up.alloc::<u8>(BYTES)?;
        let copy = || self.up.copy_to_device(&image, &mut rgb);
        self.timeline.span(&self.up, Activity::Upload, &format!("copy {i}"), copy)?;

        let rgb = self.up.hand_off(rgb, &self.compute)?;
        let mut out = self.compute.alloc::<f32>(1)?;
        let kernel = || entropy(&self.compute, SIDE, SIDE, SIDE, &rgb, &mut out);
        self.timeline.span(&self.compute, Activity::Compute, &format!("kernel {i}"), kernel)?;
        Ok(out)
    }

    /// Reads each result at once. This looks harmless, because it is only one number.
    fn before(&self) -> Result<Vec<f32>> {
        let mut results = Vec::new();
        for i in 0..COUNT {
            let out = self.enqueue(i)?;
            let read = || self.compute.read_blocking(&out);
            results.extend(self.timeline.wait("host", &format!("read {i}"), read)?);
        }
        Ok(results)
    }

    /// Avoids the wait. Numbers go to page-locked memory after their kernels, and the host waits at
    /// the end.
    fn after(&self) -> Result<Vec<f32>> {
        let mut pending = Vec::new();
        for i in 0..COUNT {
            let out = self.enqueue(i)?;
            let mut result = self.compute.bind(self.gpu.pinned::<f32>(1)?)?;
            self.compute.copy_to_host(&out, &mut result)?;
            pending.push(self.compute.record(result)?);
        }
        let gather = || pending.into_iter().map(|result| Ok(result.synchronize()?[0])).collect();
        self.timeline.wait("host", "gather", gather)
    }

    /// Runs under `SyncStats`, and prints what it found.
    fn tallied(&self, name: &str, run: impl FnOnce(&Self) -> Result<Vec<f32>>) -> Result<(Vec<f32>, Duration)> {
        self.gpu.sync_stats().enable();
        let start = Instant::now();
        let results = run(self)?;
        let time = start.elapsed();
        self.gpu.sync_stats().disable();
        println!("{name}: {time:.2?}\n{}\n", self.gpu.sync_stats().report());
        Ok((results, time))
    }
}

fn main() -> Result<()> {
    let args = Arguments::parse("Finds a hidden synchronization with the device's `SyncStats`, and removes it.");
    let gpu = args.device()?;
    let mut program = Program { gpu, up: gpu.stream()?, compute: gpu.stream()?, timeline: Timeline::disabled() };

    // Run once without `SyncStats` and with memory for all images at once, to fill the pools and
    // load the kernel.
    let full = (0..COUNT).map(|_| gpu.pinned::<u8>(BYTES)).collect::<Result<Vec<_>>>()?;
    drop(full);
    program.after()?;

    program.timeline = args.timeline(gpu)?;
    let (expected, before) = program.tallied("before", Program::before)?;
    let (results, after) = program.tallied("after", Program::after)?;
    assert_eq!(results, expected);
    assert!(results.iter().all(|bytes| (0.0..=1.0).contains(bytes)));
    let gain = before.as_secs_f64() / after.as_secs_f64();
    let gain = support::on_gpu(gpu, || format!(", {gain:.2} x as fast"));
    println!("{COUNT} images of {SIDE} x {SIDE}, the same results{gain}");
    args.finish(&program.timeline)
}
