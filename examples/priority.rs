//! Runs small urgent kernels beside background work that fills the device, without and with
//! priority.
//!
//! ```text
//! background   | block | block | block | block | block | block | ...   more are waiting
//! without                ? .  .  .  .  .  .  .  .  .  .  .  | urgent | after everything that waited before it
//! with                   ? .  .  | urgent |                            after the first blocks that end
//! ```
//!
//! ```text
//! cargo run --release --example priority
//! ```
//!
//! A priority has limits. It does not interrupt a running block, so with longer background blocks
//! even an urgent kernel waits longer. It does not order copies. It gains nothing if the device is
//! not full.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use thalweg::overlap::measure_priority;
use thalweg::{
    Activity, AnyStream, Device, DeviceBuffer, DeviceKind, Error, Event, LiveBrand, PinnedBuffer, Scoped, Shared,
    Stream, Timeline,
};
use thalweg_vision::kernels;

/// Columns and rows of the urgent image, which is a single patch and so a single block.
const SMALL: u32 = 64;

fn main() -> Result<(), Error> {
    let args =
        support::Arguments::parse("Latency of urgent kernels beside background work, with and without priority.");
    let device = args.device()?;
    let (timeline, off) = (args.timeline(device)?, Timeline::disabled());
    let (side, samples) = support::sized(device, (16384, 1000), (256, 10));
    let stream = AnyStream::new(device)?;
    let image = support::images(device, 1, SMALL, SMALL)?;
    let small = stream.enter(|s| Ok::<_, Error>(s.share(s.upload_blocking(&image)?)?))?;
    let large = blank(device, side)?;
    let urgent = || stream.enter(|s| s.read_blocking(&s.wait(entropy(s, SMALL, SMALL, &small, &off)?)?));
    let alone = urgent()?;
    assert!(alone[0] > 0.0);

    let say = |text: &dyn std::fmt::Display| print!("{}", support::on_gpu(device, || format!("{text}\n")));
    say(&format_args!("from enqueueing a small kernel until the host knows that it is done, {samples} samples"));
    if device.kind() == DeviceKind::Cpu {
        println!("the CPU device has no priorities: results are compared, and no latency is printed");
    }
    for patch in support::sized(device, [32, 128, 512], [32, 64, 128]) {
        let probe = |samples, timeline: &Timeline| {
            let background = |s: &Stream<Scoped<'_>>| entropy(s, side, patch, &large, timeline);
            measure_priority(device, samples, background, |s| entropy(s, SMALL, SMALL, &small, timeline))
        };
        let (block, found) = (one_block(device, patch)?, probe(samples, &off)?);
        say(&format_args!("\nbeside kernels, {block:.1?} a block\n{found}"));
        probe(2, &timeline)?; // for the picture
        // The kernel's results beside the background equal its results alone.
        let busy = AnyStream::new(device)?.enter(|s| entropy(s, side, patch, &large, &off))?;
        assert_eq!(urgent()?, alone);
        busy.synchronize()?;
    }
    let bytes = support::sized(device, 64 << 20, 1 << 20);
    let (small, large) = (page_locked(device, 4096)?, page_locked(device, bytes)?);
    let found = measure_priority(device, samples, |s| upload(s, &large), |s| upload(s, &small))?;
    say(&format_args!("\na copy of 4 KiB beside copies of {} MiB\n{found}", bytes >> 20));
    args.finish(&timeline)
}

/// Makes an image whose pixels are all equal, so that all threads of a block count into one bin and
/// blocks run long.
fn blank(device: Device, side: u32) -> Result<Shared<DeviceBuffer<u8>>, Error> {
    AnyStream::new(device)?.enter(|s| Ok(s.share(s.alloc_zeroed(3 * (side * side) as usize)?)?))
}

fn page_locked(device: Device, bytes: usize) -> Result<Shared<PinnedBuffer<u8>>, Error> {
    AnyStream::new(device)?.enter(|s| Ok(s.share(s.bind(device.pinned(bytes)?)?)?))
}

/// Enqueues a kernel with one block for each patch. The duration of a block grows with the patch's
/// area.
fn entropy<S: LiveBrand>(
    s: &Stream<S>,
    side: u32,
    patch: u32,
    rgb: &Shared<DeviceBuffer<u8>>,
    timeline: &Timeline,
) -> Result<Event<DeviceBuffer<f32>>, Error> {
    let mut map = s.alloc((side.div_ceil(patch) * side.div_ceil(patch)) as usize)?;
    let (rgb, label) = (s.reading(rgb)?, if side == SMALL { "urgent" } else { "background" });
    timeline.span(s, Activity::Compute, label, || kernels::entropy(s, side, side, patch, &rgb, &mut map))?;
    Ok(s.record(map)?)
}

fn upload<S: LiveBrand>(s: &Stream<S>, from: &Shared<PinnedBuffer<u8>>) -> Result<Event<DeviceBuffer<u8>>, Error> {
    let from = s.reading(from)?;
    let mut to = s.alloc(from.len())?;
    s.copy_to_device(&from, &mut to)?;
    Ok(s.record(to)?)
}

/// Measures the device time of one block when nothing else runs.
fn one_block(device: Device, patch: u32) -> Result<Duration, Error> {
    let rgb = blank(device, patch)?;
    AnyStream::new(device)?.enter(|s| {
        drop(entropy(s, patch, patch, &rgb, &Timeline::disabled())?);
        let start = s.timestamp()?;
        drop(entropy(s, patch, patch, &rgb, &Timeline::disabled())?);
        let end = s.timestamp()?;
        end.synchronize()?;
        Ok(end.elapsed(&start)?.unwrap_or_default())
    })
}
