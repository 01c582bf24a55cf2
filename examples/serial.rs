//! Runs one step after another, from pageable memory and from page-locked memory: the baseline for
//! all patterns.
//!
//! ```text
//! stream  | up 0 | kernel 0 | down 0 |      | up 1 | kernel 1 | down 1 |      ...
//! host    | wait.....................| next | wait.....................| next ...
//! ```
//!
//! ```text
//! cargo run --release --example serial -- --timeline serial.svg
//! ```

#[path = "support/mod.rs"]
mod support;

use std::time::Instant;

use thalweg::overlap::{Chunks, serial, serial_pageable};
use thalweg::{AnyStream, DeviceSlice, Error, LiveBrand, Stream};
use thalweg_vision::kernels;

const PATCH: u32 = 32;

fn main() -> Result<(), Error> {
    let args = support::Arguments::parse("Computes the entropies of the patches of images, one step at a time.");
    let gpu = args.device()?;
    let (frames, [height, width]) = support::sized(gpu, (24, [2160, 3840]), (12, [256, 256u32]));
    let stream = AnyStream::new(gpu)?;
    let [bytes, patches] = [3 * height * width, height.div_ceil(PATCH) * width.div_ceil(PATCH)].map(|n| n as usize);
    let chunks = Chunks::of_items(frames, bytes, patches);
    let pinned = support::images(gpu, frames, height, width)?;
    let ordinary = pinned.to_vec();

    // Each image is a chunk.
    fn entropy<S: LiveBrand>(
        s: &Stream<S>,
        [height, width]: [u32; 2],
        rgb: &DeviceSlice<S, u8>,
        entropy: &mut DeviceSlice<S, f32>,
    ) -> Result<(), Error> {
        kernels::entropy(s, height, width, PATCH, rgb, entropy)
    }
    let timeline = args.timeline(gpu)?;
    let (from_pinned, pinned, want) = support::timed(pinned, &timeline, |input, timeline| {
        serial(&stream, input, chunks, |s, x, y| entropy(s, [height, width], x, y), timeline)
    })?;
    let start = Instant::now();
    let got = serial_pageable(&stream, &ordinary, chunks, |s, x, y| entropy(s, [height, width], x, y), &timeline)?;
    let from_ordinary = start.elapsed();

    assert_eq!(got, *want);
    for (image, entropies) in pinned.chunks(bytes).zip(want.chunks(patches)) {
        assert!((first_patch(image, width as usize) - entropies[0]).abs() < 2e-5);
    }
    for (memory, time) in [("ordinary", from_ordinary), ("page-locked", from_pinned)] {
        let second = time.as_secs_f64();
        println!(
            "from {memory} memory: {:.0} images/s of {height} x {width}, {:.2} GB/s",
            frames as f64 / second,
            pinned.len() as f64 / second / 1e9
        );
    }
    args.finish(&timeline)
}

/// Computes the entropy of the luma of the first patch, in bits / 8, with a plain loop.
fn first_patch(rgb: &[u8], width: usize) -> f32 {
    let mut histogram = [0u32; 256];
    for (y, x) in (0..32).flat_map(|y| (0..32).map(move |x| (y, x))) {
        let [r, g, b] = [0, 1, 2].map(|c| u32::from(rgb[3 * (y * width + x) + c]));
        histogram[((77 * r + 150 * g + 29 * b + 128) >> 8) as usize] += 1;
    }
    let share = histogram.iter().filter(|n| **n > 0).map(|n| f64::from(*n) / 1024.0);
    (share.map(|p| -p * p.log2()).sum::<f64>() / 8.0) as f32
}
