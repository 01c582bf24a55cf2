//! Runs host threads, each with its own stream and with work on host and device.
//!
//! ```text
//! thread 0   draw | up | entropy | down | draw | up | entropy | down | ...
//! thread 1   draw   | up | entropy | down | draw | up | ...
//! thread 2   draw     | up | entropy | down | draw | ...
//! ```
//!
//! ```text
//! cargo run --release --example per_thread -- --timeline per_thread.svg
//! ```
//!
//! Every thread waits only for its own results. The program names, passes and locks no stream.

#[path = "support/mod.rs"]
mod support;

use std::thread::available_parallelism;

use thalweg::overlap::per_thread;
use thalweg::{Activity, Error, LiveBrand, Stream, Timeline};
use thalweg_vision::kernels;

const PATCH: u32 = 32;

fn main() -> Result<(), Error> {
    let args = support::Arguments::parse("Host threads, each with its own stream: images per second against threads.");
    let device = args.device()?;
    let timeline = args.timeline(device)?;
    let (count, side) = support::sized(device, (128, 1024), (24, 128));
    let seeds: Vec<u32> = (0..count).collect();

    // Serial: this thread computes one image after another.
    let off = Timeline::disabled();
    let one = |&seed: &u32| device.per_thread(|s| entropy(*s, side, seed, &off))?;
    let serial = seeds.iter().map(one).collect::<Result<Vec<_>, _>>()?;

    let most = available_parallelism().map_or(2, usize::from).min(16);
    for threads in (0..).map(|i| 1 << i).take_while(|&n| n <= most) {
        let time = support::least(2, || {
            let maps = per_thread(device, threads, &seeds, |s, &seed| entropy(*s, side, seed, &off))?;
            assert_eq!(maps.into_iter().collect::<Result<Vec<_>, _>>()?, serial);
            Ok::<_, Error>(())
        })?;
        println!("{threads:2} threads: {:8.0} images/s", f64::from(count) / time.as_secs_f64());
    }
    // Compute a few more images for the picture.
    for map in per_thread(device, most, &seeds[..4 * most.min(4)], |s, &seed| entropy(*s, side, seed, &timeline))? {
        map?;
    }
    args.finish(&timeline)
}

/// Draws an image, and measures the entropy of its patches on the device.
fn entropy<S: LiveBrand>(s: Stream<S>, side: u32, seed: u32, timeline: &Timeline) -> Result<Vec<f32>, Error> {
    let patches = ((side / PATCH) * (side / PATCH)) as usize;
    let mut image = s.device().pinned((3 * side * side) as usize)?;
    let name = format!("host {}", s.unique_id());
    timeline.host(&name, "draw", || {
        let mut state = seed;
        for byte in image.iter_mut() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 28) as u8 * (seed % 16) as u8;
        }
    });
    let (image, mut host) = s.bind((image, s.device().pinned(patches)?))?;
    let (mut rgb, mut map) = (s.alloc(image.len())?, s.alloc(patches)?);
    timeline.span(&s, Activity::Upload, "image", || s.copy_to_device(&image, &mut rgb))?;
    timeline.span(&s, Activity::Compute, "entropy", || kernels::entropy(&s, side, side, PATCH, &rgb, &mut map))?;
    timeline.span(&s, Activity::Download, "map", || s.copy_to_host(&map, &mut host))?;
    let host = s.record(host)?;
    Ok(timeline.wait(&name, "map", || host.synchronize())?.to_vec())
}
