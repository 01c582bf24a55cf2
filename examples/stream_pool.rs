//! Processes many images on a pool of 1 to 16 streams.
//!
//! ```text
//! stream 0   | up | textures | features | down | up | textures | ...
//! stream 1     | up | textures | features | down | up | ...
//! stream 2       | up | textures | features | down | ...
//! ```
//!
//! ```text
//! cargo run --release --example stream_pool -- --timeline stream_pool.svg
//! ```
//!
//! One of these images does not fill a GPU, and its kernels wait for its copy. More scoped streams
//! help until the device is full.

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::features::{Done, features};
use thalweg::overlap::stream_pool;
use thalweg::{Error, StreamPool, Timeline};

fn main() -> Result<(), Error> {
    let args = support::Arguments::parse(
        "Processes many images on a pool of streams: images per second with 1 to 16 streams.",
    );
    let device = args.device()?;
    let timeline = args.timeline(device)?;
    let (count, side) = support::sized(device, (256, 512), (12, 128));
    let mut images = support::images(device, count, side, side)?.split_even(count)?;

    // Serial: finish each image before the next one starts.
    let one = StreamPool::new(device, 1)?;
    let off = Timeline::disabled();
    let mut serial = Vec::new();
    for image in std::mem::take(&mut images) {
        let (image, features) = one.with_stream(|s| features(s, side, image, &off))?.synchronize()?;
        images.push(image);
        serial.push(features);
    }

    for streams in [1, 2, 4, 8, 16] {
        let pool = StreamPool::new(device, streams)?;
        let mut least = Duration::MAX;
        // Record only the run with four scoped streams, because a picture of more scoped streams is
        // hard to read.
        for timeline in [&off, &off, if streams == 4 { &timeline } else { &off }] {
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
        println!("{streams:2} streams: {:8.0} images/s", count as f64 / least.as_secs_f64());
    }
    args.finish(&timeline)
}
