//! Measures the decoding of batches of JPEG files: `cargo bench -p thalweg-jpeg --bench decode --
//! BATCH FILE...`
//!
//! The batch has the given files in turn. Each time is the median of 15 runs by the host's clock:
//! reading the headers and copying the coded data into page-locked memory, then everything on the
//! device, the upload included, both one after the other, and then both at once: the host reads a
//! batch while the device decodes the one before. `decode returns after` is the host's time to
//! enqueue.
//! `RAYON_NUM_THREADS` sets the threads that read. With `--read` before BATCH, it only reads.
//! Without arguments, it decodes a golden file 4 times and says so: CI runs it like this.

use std::path::Path;
use std::time::{Duration, Instant};

use thalweg::{Device, Error, Event, stream_tags};
use thalweg_jpeg::{DecodedImages, Decoder};

stream_tags!(Decode);

const RUNS: usize = 15;

fn main() -> Result<(), Error> {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let read_only = arguments.first().is_some_and(|a| a == "--read");
    arguments.drain(..usize::from(read_only));
    let (size, paths) = match arguments.split_first() {
        Some((size, paths)) if !paths.is_empty() => (size.parse().expect("BATCH is a number"), paths.to_vec()),
        _ => {
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/jpeg/row-420-q75.jpg");
            println!("no files given: a golden file, 4 times");
            (4, vec![golden.to_string_lossy().into_owned()])
        }
    };
    let files: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).expect("the file can be read")).collect();
    // Each image has bytes of its own, which are not in the caches because another one had them.
    let copies: Vec<Vec<u8>> = (0..size).map(|i| files[i % files.len()].clone()).collect();
    let batch: Vec<&[u8]> = copies.iter().map(Vec::as_slice).collect();
    let bytes: usize = batch.iter().map(|file| file.len()).sum();

    let device = Device::best()?;
    let stream = device.stream::<Decode>()?;
    let mut decoder = Decoder::new(device);
    let (mut host, mut one_call, [mut enqueue, mut on_device, mut together]) =
        (Vec::new(), Vec::new(), [const { Vec::new() }; 3]);
    let mut pixels = 0.0;
    for run in 0..RUNS + 3 {
        let start = Instant::now();
        let read = decoder.read(&batch)?;
        let after = Instant::now();
        if run >= 3 {
            host.push(after - start);
        }
        if read_only {
            continue;
        }
        let images = decoder.decode(&stream, read)?;
        let enqueued = after.elapsed();
        let images = images.synchronize()?;
        if run >= 3 {
            enqueue.push(enqueued);
            on_device.push(after.elapsed());
            one_call.push(start.elapsed());
        }
        let size = |i| images.image(i).map(|image| f64::from(image.height) * f64::from(image.width));
        pixels = (0..images.len()).map(|i| size(i).expect("the file is decoded")).sum();
        decoder.recycle(Event::ready(images));
    }
    // The host reads the next batch while the device decodes.
    let mut before = None;
    for run in 0..RUNS + 4 {
        if read_only {
            break;
        }
        let start = Instant::now();
        let read = decoder.read(&batch)?;
        let images = decoder.decode(&stream, read)?;
        if let Some(before) = before.replace(images) {
            let done: DecodedImages = Event::synchronize(before)?;
            decoder.recycle(Event::ready(done));
        }
        if run >= 4 {
            together.push(start.elapsed());
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64()
    };
    let threads = rayon::current_num_threads();
    let host = median(host);
    println!(
        "{}: {size} images, {bytes} bytes: read in {:.2} ms by {threads} threads, {:.2} GB/s",
        device.name(),
        1e3 * host,
        bytes as f64 / host / 1e9
    );
    if read_only {
        return Ok(());
    }
    println!("{:.1} MPix, {:.3} bytes a pixel", pixels / 1e6, bytes as f64 / pixels);
    println!("decode returns after {:.1} us", 1e6 * median(enqueue));
    for (what, times) in [
        ("device with upload", on_device),
        ("reading, then the device", one_call),
        ("reading and device at once", together),
    ] {
        let time = median(times);
        println!(
            "{what} {:.2} ms: {:.0} images/s, {:.2} GPix/s, {:.2} GB/s compressed",
            1e3 * time,
            size as f64 / time,
            pixels / time / 1e9,
            bytes as f64 / time / 1e9,
        );
    }
    Ok(())
}
