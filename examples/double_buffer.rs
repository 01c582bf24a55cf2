//! Loads and uploads frame N + 1 while the device works on frame N, with 1, 2, 3 and 6 slots.
//!
//! ```text
//! host      | load 0 | load 1 |    | load 2 |    | load 3 |
//! upload             | up 0 | up 1 |        | up 2 |      | up 3 |
//! compute                   | kernel 0 | kernel 1 |    | kernel 2 |
//! download                             | down 0 | down 1 |     ...
//! ```
//!
//! Frames arrive in page-locked memory, like those of a camera. Loading a frame means writing its
//! number into it.
//!
//! ```text
//! cargo run --release --example double_buffer -- --timeline double_buffer.svg
//! ```

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use thalweg::overlap::{Chunks, measure_stages, serial, stages};
use thalweg::{
    Activity, AnyStream, Device, DeviceBuffer, DeviceCopy, DeviceSlice, Error, Event, LiveBrand, PinnedBuffer,
    Resource, Result, Ring, Stream, Timeline, stream_tags,
};
use thalweg_vision::{PLANES, kernels};

stream_tags!(Upload, Compute, Download);

const PATCH: u32 = 32;

/// A frame and its results, in page-locked memory and in device memory.
#[derive(Debug, Resource)]
pub struct FrameSlot<T: DeviceCopy, U: DeviceCopy> {
    /// The frame, which the host fills.
    pub input: PinnedBuffer<T>,
    /// The results, which the host receives.
    pub output: PinnedBuffer<U>,
    on_device: (DeviceBuffer<T>, DeviceBuffer<U>),
}

impl<T: DeviceCopy, U: DeviceCopy> FrameSlot<T, U> {
    /// Makes a slot for frames of `input` elements and results of `output` elements.
    pub fn new(device: Device, input: usize, output: usize) -> Result<Self> {
        let on_device = AnyStream::new(device)?.enter(|s| {
            let on_device = s.record((s.alloc(input)?, s.alloc(output)?))?;
            Ok::<_, Error>(on_device.synchronize()?)
        })?;
        Ok(Self { input: device.pinned(input)?, output: device.pinned(output)?, on_device })
    }
}

/// The pattern: sends `frames` frames through slots that are used in turn. `load` fills
/// [`FrameSlot::input`]. Upload, `stage` and download run on the three streams. `take` sees
/// [`FrameSlot::output`].
///
/// Two slots overlap the upload of a frame with the work on the frame before it. With three, the
/// host can take the results of a frame and load the next one without a gap on the upload stream.
/// More slots absorb jitter. The host waits for one thing only: the results of the frame whose slot
/// is loaded next. No memory is allocated for a frame.
pub fn double_buffer<A: LiveBrand, B: LiveBrand, C: LiveBrand, T: DeviceCopy, U: DeviceCopy>(
    (up, compute, down): (&Stream<A>, &Stream<B>, &Stream<C>),
    slots: &mut Ring<FrameSlot<T, U>>,
    frames: usize,
    load: impl FnMut(usize, &mut FrameSlot<T, U>) -> Result<()>,
    mut stage: impl FnMut(&Stream<B>, &DeviceSlice<B, T>, &mut DeviceSlice<B, U>) -> Result<()>,
    take: impl FnMut(usize, &mut FrameSlot<T, U>) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    stages(slots)
        .host(load)
        .step(up, Activity::Upload, |s, _, slot| s.copy_to_device(&slot.input, &mut slot.on_device.0))
        .step(compute, Activity::Compute, |s, _, slot| stage(s, &slot.on_device.0, &mut slot.on_device.1))
        .step(down, Activity::Download, |s, _, slot| s.copy_to_host(&slot.on_device.1, &mut slot.output))
        .run_and_take(0..frames, take, timeline)
}

/// Enqueues the textures of a frame, and their means over patches.
fn features<S: LiveBrand>(
    s: &Stream<S>,
    [height, width]: [u32; 2],
    planes: &mut DeviceSlice<S, f32>,
    rgb: &DeviceSlice<S, u8>,
    features: &mut DeviceSlice<S, f32>,
) -> Result<()> {
    kernels::textures(s, height, width, 0.5, 0.5, rgb, planes)?;
    kernels::features(s, height, width, PATCH, planes, features)
}

fn main() -> Result<()> {
    let args = support::Arguments::parse("Loads and uploads a frame while the device works on the previous one.");
    let gpu = args.device()?;
    let (frames, size) = support::sized(gpu, (60, [2160, 3840]), (12, [192, 256u32]));
    let [bytes, patches] =
        [3 * size[0] * size[1], size[0].div_ceil(PATCH) * size[1].div_ceil(PATCH)].map(|n| n as usize);
    let (pixels, results) = (bytes / 3, PLANES * patches);
    let (up, compute, down) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?, gpu.stream::<Download>()?);
    let timeline = args.timeline(gpu)?;

    // The results of `serial`, frame by frame, to compare with.
    let (lane, off) = (AnyStream::new(gpu)?, Timeline::disabled());
    let one = Chunks::of_items(1, bytes, results);
    let frame = support::images(gpu, 1, size[0], size[1])?;
    let (times, mut frame) =
        measure_stages(&lane, frame, one, |s, x, y| features(s, size, &mut *s.alloc(PLANES * pixels)?, x, y))?;
    let mut want = Vec::new();
    for n in 0..frames {
        frame[0] = n as u8;
        let (back, output) =
            serial(&lane, frame, one, |s, x, y| features(s, size, &mut *s.alloc(PLANES * pixels)?, x, y), &off)?;
        want.push(output.to_vec());
        frame = back;
    }
    let limit = support::upload_limit(gpu, bytes)?;
    println!("a {} x {} frame alone: {times}; upload limit {:.1} GB/s", size[0], size[1], limit / 1e9);

    let ideal = times.longest() * frames as u32;
    let mut planes = compute.alloc(PLANES * pixels)?;
    for depth in [1, 2, 3, 6] {
        let slot = |_| {
            let mut slot = FrameSlot::new(gpu, bytes, results)?;
            slot.input.copy_from_slice(&frame);
            Ok(Event::ready(slot))
        };
        let mut slots = (0..depth).map(slot).collect::<Result<Ring<_>>>()?;
        let mut time = Duration::MAX;
        for run in 0..3 {
            let start = Instant::now();
            double_buffer(
                (&up, &compute, &down),
                &mut slots,
                frames,
                |n, slot| {
                    slot.input[0] = n as u8;
                    Ok(())
                },
                |s, rgb, y| features(s, size, &mut planes, rgb, y),
                |n, slot| {
                    assert!(*slot.output == *want[n], "frame {n} differs from that of `serial`");
                    Ok(())
                },
                if depth == 3 && run == 2 { &timeline } else { &off },
            )?;
            time = time.min(start.elapsed());
        }
        let seconds = time.as_secs_f64();
        let shares = support::on_gpu(gpu, || {
            format!(
                ", {:.0} % of the ideal (the slowest step alone), {:.1} % of the upload limit",
                100.0 * ideal.as_secs_f64() / seconds,
                100.0 * (frames * bytes) as f64 / seconds / limit
            )
        });
        println!("depth {depth}: {:.0} frames/s{shares}", frames as f64 / seconds);
    }
    args.finish(&timeline)
}
