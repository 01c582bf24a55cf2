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

use thalweg::overlap::{Chunks, FrameSlot, double_buffer, measure_stages, serial};
use thalweg::{AnyStream, DeviceSlice, Error, LiveBrand, Stream, Timeline, stream_tags};
use thalweg_vision::{PLANES, kernels};

stream_tags!(Upload, Compute, Download);

const PATCH: u32 = 32;

/// Enqueues the textures of a frame, and their means over patches.
fn features<S: LiveBrand>(
    s: &Stream<S>,
    [height, width]: [u32; 2],
    planes: &mut DeviceSlice<S, f32>,
    rgb: &DeviceSlice<S, u8>,
    features: &mut DeviceSlice<S, f32>,
) -> Result<(), Error> {
    kernels::textures(s, height, width, 0.5, 0.5, rgb, planes)?;
    kernels::features(s, height, width, PATCH, planes, features)
}

fn main() -> Result<(), Error> {
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
        let mut slots = (0..depth).map(|_| FrameSlot::new(gpu, bytes, results)).collect::<Result<Vec<_>, _>>()?;
        slots.iter_mut().for_each(|slot| slot.input.copy_from_slice(&frame));
        let mut time = Duration::MAX;
        for run in 0..3 {
            let start = Instant::now();
            slots = double_buffer(
                (&up, &compute, &down),
                slots,
                |n, slot| {
                    slot.input[0] = n as u8;
                    Ok(n < frames)
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
        println!(
            "depth {depth}: {:.0} frames/s, {:.0} % of the ideal (the slowest step alone), {:.1} % of the upload limit",
            frames as f64 / time.as_secs_f64(),
            100.0 * ideal.as_secs_f64() / time.as_secs_f64(),
            100.0 * (frames * bytes) as f64 / time.as_secs_f64() / limit
        );
    }
    args.finish(&timeline)
}
