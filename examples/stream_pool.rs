//! Processes many images on a pool of 1 to 16 streams.
//!
//! ```text
//! lane 0   | up | textures | features | down | up | textures | ...
//! lane 1     | up | textures | features | down | up | ...
//! lane 2       | up | textures | features | down | ...
//! ```
//!
//! ```text
//! cargo run --release --example stream_pool -- --timeline stream_pool.svg
//! ```
//!
//! One of these images does not fill a GPU, and its kernels wait for its copy. More lanes help
//! until the device is full.

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::features::{Done, features};
use thalweg::overlap::stream_pool;
use thalweg::{Error, StreamPool, Timeline};

fn main() -> Result<(), Error> {
    let args =
        support::Arguments::parse("Processes many images on a pool of streams: images per second with 1 to 16 lanes.");
    let device = args.device()?;
    let timeline = args.timeline(device)?;
    let (count, side) = support::sized(device, (256, 512), (12, 128));
    let mut images = support::images(device, count, side, side)?.split(count)?;

    // Serial: finish each image before the next one starts.
    let one = StreamPool::new(device, 1)?;
    let off = Timeline::off();
    let mut serial = Vec::new();
    for image in std::mem::take(&mut images) {
        let (image, features) = one.lane(|s| features(s, side, image, &off))?.synchronize()?;
        images.push(image);
        serial.push(features);
    }

    for lanes in [1, 2, 4, 8, 16] {
        let pool = StreamPool::new(device, lanes)?;
        let mut least = Duration::MAX;
        // Record only the run with four lanes, because a picture of more lanes is hard to read.
        for timeline in [&off, &off, if lanes == 4 { &timeline } else { &off }] {
            let start = Instant::now();
            let done = stream_pool(&pool, images, |s, image| features(s, side, image, timeline));
            let done: Vec<Done> = done.collect::<Result<_, _>>()?;
            least = least.min(start.elapsed());
            let results: Vec<_>;
            (images, results) = done.into_iter().unzip();
            assert!(
                results.iter().zip(&serial).all(|(got, want)| got[..] == want[..]),
                "the results differ from the serial ones"
            );
        }
        println!("{lanes:2} lanes: {:8.0} images/s", count as f64 / least.as_secs_f64());
    }
    args.finish(&timeline)
}
