//! Three ways to lose the overlap of streams without an error, each found by a tool and mended:
//! a host that waits too often, an event that is recorded too late, and work on the legacy default
//! stream.
//!
//! ```text
//! cargo run --release --example pitfalls -- --timeline pitfalls.svg
//! ```
//!
//! 1. **Over-synchronization.** The host waits after each step, so the device is idle while the
//!    host prepares the next one. `SyncStats` names the line.
//! 2. **A false dependency.** The host hands a result over after it has enqueued unrelated work
//!    behind it. The event is recorded after that work, so the reader waits for it, too. The
//!    timeline shows when the reader starts.
//! 3. **The legacy default stream.** Streams that other libraries make wait for it and it waits for
//!    them. The streams of this crate do not. The timeline shows which of them overlap.
//!
//! Each part compares the result of both versions.

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::{Arguments, images, sized};
use thalweg::{
    Activity, Device, DeviceBuffer, DeviceKind, ForeignStream, LiveBrand, On, Result, Shared, Stream, Timeline,
    stream_tags,
};
use thalweg_vision::kernels::entropy;

stream_tags!(Compute, Reader);

/// The side of an image on a GPU and on the CPU device.
const GPU: u32 = 2048;
const CPU: u32 = 256;

/// The work of all parts: the entropy of the patches of an image.
struct Work {
    gpu: Device,
    side: u32,
    image: Shared<DeviceBuffer<u8>>,
}

impl Work {
    /// Enqueues the kernel `times` times.
    fn enqueue<S: LiveBrand>(&self, s: &Stream<S>, times: usize) -> Result<On<S, DeviceBuffer<f32>>> {
        let image = s.reading(&self.image)?;
        let patches = (self.side.div_ceil(32) * self.side.div_ceil(32)) as usize;
        let mut out = s.alloc::<f32>(patches)?;
        for _ in 0..times {
            entropy(s, self.side, self.side, 32, &image, &mut out)?;
        }
        Ok(out)
    }
}

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v)).sum()
}

/// Runs twice, the first time to fill the pools, and returns the result and the time of the second.
fn timed<T>(mut run: impl FnMut() -> Result<T>) -> Result<(T, Duration)> {
    run()?;
    let start = Instant::now();
    let result = run()?;
    Ok((result, start.elapsed()))
}

fn over_synchronization(work: &Work) -> Result<()> {
    const STEPS: usize = 100;
    let compute = work.gpu.stream::<Compute>()?;
    let prepare = || std::hint::black_box((0..20_000u64).fold(0, |a, b| a ^ b.wrapping_mul(a | 1)));
    let run = |waits: bool| -> Result<Vec<f32>> {
        let mut total = Vec::new();
        for _ in 0..STEPS {
            prepare();
            let out = work.enqueue(&compute, 1)?;
            if waits {
                compute.synchronize()?; // "to be sure that it is done"
            }
            total.push(out);
        }
        let last = total.pop().expect("there are steps");
        compute.read_blocking(&last)
    };
    let (before, slow) = timed(|| run(true))?;
    work.gpu.sync_stats().enable();
    run(true)?;
    work.gpu.sync_stats().disable();
    let (after, fast) = timed(|| run(false))?;
    assert_eq!(before, after);
    println!("1. over-synchronization: {slow:.2?}, without the waits {fast:.2?}{}", ratio(work.gpu, slow, fast));
    println!("{}\n", work.gpu.sync_stats().report());
    Ok(())
}

fn false_dependency(work: &Work, timeline: &Timeline) -> Result<()> {
    let (compute, reader) = (work.gpu.stream::<Compute>()?, work.gpu.stream::<Reader>()?);
    let unrelated = sized(work.gpu, 200, 10);
    // The host's time until the reader has the result.
    let run = |label: &str, late: bool| -> Result<(f64, Duration)> {
        let start = Instant::now();
        let result =
            timeline.span(&compute, Activity::Compute, &format!("{label}: result"), || work.enqueue(&compute, 1))?;
        let more = || {
            timeline
                .span(&compute, Activity::Compute, &format!("{label}: unrelated"), || work.enqueue(&compute, unrelated))
        };
        let (result, other) = if late {
            let other = more()?;
            (compute.hand_off(result, &reader)?, other) // waits for the unrelated work, too
        } else {
            let result = compute.hand_off(result, &reader)?; // right behind the kernel that made it
            (result, more()?)
        };
        let read = || reader.read_blocking(&result);
        let result = timeline.span(&reader, Activity::Download, &format!("{label}: read"), read)?;
        let latency = start.elapsed();
        drop(other);
        compute.synchronize()?;
        Ok((sum(&result), latency))
    };
    run("warm", true)?;
    let ((before, late), (after, early)) = (run("late", true)?, run("early", false)?);
    assert_eq!(before, after);
    println!(
        "2. a false dependency: the reader has its result after {late:.2?}, and after {early:.2?} if the event is recorded first{}\n",
        ratio(work.gpu, late, early)
    );
    Ok(())
}

fn legacy_stream(work: &Work, timeline: &Timeline) -> Result<()> {
    if work.gpu.kind() != DeviceKind::Cuda {
        println!("3. the legacy default stream: not measured, {} has none", work.gpu);
        return Ok(());
    }
    let times = 50;
    let library = blocking_stream(work.gpu)?;
    let legacy = ForeignStream::legacy(work.gpu)?;
    // First kernels on the legacy stream, then as many on another one, whose result is read.
    let run = |label: &str, ours: bool| -> Result<(f64, Duration)> {
        let compute = work.gpu.stream::<Compute>()?;
        compute.synchronize()?;
        let start = Instant::now();
        let result = legacy.enter(|l| {
            drop(timeline.span(l, Activity::Compute, &format!("{label}: legacy"), || work.enqueue(l, times))?);
            if ours {
                let other = timeline
                    .span(&compute, Activity::Compute, &format!("{label}: stream"), || work.enqueue(&compute, times))?;
                compute.read_blocking(&other)
            } else {
                library.enter(|b| {
                    let other =
                        timeline.span(b, Activity::Compute, &format!("{label}: stream"), || work.enqueue(b, times))?;
                    b.read_blocking(&other)
                })
            }
        })?;
        let latency = start.elapsed();
        legacy.enter(|l| l.synchronize())?;
        Ok((sum(&result), latency))
    };
    run("warm", false)?;
    run("warm", true)?;
    let ((before, blocking), (after, ours)) = (run("blocking stream", false)?, run("stream of thalweg", true)?);
    assert_eq!(before, after);
    println!(
        "3. the legacy default stream: beside {times} kernels there, the result of a blocking stream comes after {blocking:.2?}, that of a stream of this crate after {ours:.2?}{}",
        ratio(work.gpu, blocking, ours)
    );
    Ok(())
}

/// A stream as other libraries make it, with the driver's default flags.
fn blocking_stream(gpu: Device) -> Result<ForeignStream> {
    use cudarc::driver::sys;
    let mut stream = std::ptr::null_mut();
    // SAFETY: `Device::cuda` has started the driver and made the device's context current on this
    // thread. The call stores one handle.
    let made = unsafe { sys::cuStreamCreate(&mut stream, sys::CUstream_flags_enum::CU_STREAM_DEFAULT as u32) };
    assert_eq!(made, sys::CUresult::CUDA_SUCCESS);
    // SAFETY: The stream was just made, nothing destroys it, and nothing captures it.
    unsafe { ForeignStream::from_raw(gpu, stream.cast()) }
}

fn ratio(gpu: Device, slow: Duration, fast: Duration) -> String {
    support::on_gpu(gpu, || format!(": {:.2} x", slow.as_secs_f64() / fast.as_secs_f64()))
}

fn main() -> Result<()> {
    let args = Arguments::parse("Three ways to lose the overlap of streams, each found by a tool and mended.");
    let gpu = args.device()?;
    let side = sized(gpu, GPU, CPU);
    let compute = gpu.stream::<Compute>()?;
    let host = compute.bind(images(gpu, 1, side, side)?)?;
    let mut image = compute.alloc::<u8>(3 * (side * side) as usize)?;
    compute.copy_to_device(&host, &mut image)?;
    let work = Work { gpu, side, image: compute.share(image)? };

    let timeline = args.timeline(gpu)?;
    over_synchronization(&work)?;
    false_dependency(&work, &timeline)?;
    legacy_stream(&work, &timeline)?;
    args.finish(&timeline)
}
