//! Runs upload, kernel and download of successive chunks on three streams.
//!
//! ```text
//! up       | copy 0 | copy 1 | copy 2 | ...
//! compute           | kernel 0 | kernel 1 | ...
//! down                         | copy 0   | copy 1 | ...
//! ```
//!
//! ```text
//! cargo run --release --example quickstart
//! ```
//!
//! If you replace `compute` by `up` in the kernel's line, or leave out a `hand_off`, the program
//! does not compile.

#[path = "support/mod.rs"]
mod support;

use std::time::Instant;

use thalweg::{Error, Event, PinnedBuffer, stream_tags};
use thalweg_vision::kernels;

stream_tags!(Upload, Compute, Download);

/// Each chunk is an image of this many rows and columns.
const SIDE: u32 = 512;
const CHUNKS: usize = 8;

fn main() -> Result<(), Error> {
    let gpu = support::device("Runs upload, kernel and download of successive chunks on three streams.")?;
    let (up, compute, down) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?, gpu.stream::<Download>()?);
    let pixels = (SIDE * SIDE) as usize;

    let chunks: Vec<Vec<u8>> =
        (0..CHUNKS).map(|c| (0..3 * pixels).map(|i| ((i * 7 + c * 31) % 256) as u8).collect()).collect();
    let images = chunks.iter().map(|chunk| gpu.pinned_from(chunk)).collect::<Result<Vec<_>, _>>()?;

    let start = Instant::now();
    let mut results: Vec<Event<PinnedBuffer<f32>>> = Vec::new();
    for image in images {
        let image = up.bind(image)?;
        let mut rgb = up.alloc::<u8>(3 * pixels)?;
        up.copy_to_device(&image, &mut rgb)?;
        let rgb = up.hand_off(rgb, &compute)?;

        let mut entropy = compute.alloc::<f32>(pixels / 1024)?;
        kernels::entropy(&compute, SIDE, SIDE, 32, &rgb, &mut entropy)?;
        let entropy = compute.hand_off(entropy, &down)?;

        let mut result = down.bind(gpu.pinned::<f32>(pixels / 1024)?)?;
        down.copy_to_host(&entropy, &mut result)?;
        results.push(down.record(result)?);
    }
    // Nothing in the loop waits for the device. Each result is a slice once its own event is
    // complete.
    let results = results.into_iter().map(Event::synchronize).collect::<Result<Vec<_>, _>>()?;
    let elapsed = start.elapsed();

    for (chunk, result) in chunks.iter().zip(&results) {
        assert!((result[0] - first_patch(chunk)).abs() < 2e-5);
    }
    println!("{CHUNKS} images of {SIDE} x {SIDE} on {gpu} in {elapsed:.2?}; the first patches' entropies are right");
    Ok(())
}

/// Computes the entropy of the luma of the first 32 x 32 pixels, in bits / 8, with a plain loop.
fn first_patch(rgb: &[u8]) -> f32 {
    let mut histogram = [0u32; 256];
    for y in 0..32 {
        for x in 0..32 {
            let p = 3 * (y * SIDE as usize + x);
            let [r, g, b] = [rgb[p], rgb[p + 1], rgb[p + 2]].map(u32::from);
            histogram[((77 * r + 150 * g + 29 * b + 128) >> 8) as usize] += 1;
        }
    }
    let entropy = |n: &u32| if *n == 0 { 0.0 } else { -(f64::from(*n) / 1024.0) * (f64::from(*n) / 1024.0).log2() };
    (histogram.iter().map(entropy).sum::<f64>() / 8.0) as f32
}
