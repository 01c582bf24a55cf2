//! How fast batches of JPEG files are decoded:
//! `cargo bench -p thalweg-jpeg --bench decode -- BATCH FILE...`
//!
//! The batch has the given files in turn. Each time is the median of 15 runs by the host's clock:
//! reading the headers and copying the coded data, and then everything on the device, the upload
//! included. Without arguments, it decodes the golden files once and says so: CI runs it like this.

use std::path::Path;
use std::time::{Duration, Instant};

use thalweg::{Device, Error, stream_tags};
use thalweg_jpeg::{Batch, Decoder};

stream_tags!(Decode);

const RUNS: usize = 15;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let (size, paths) = match arguments.split_first() {
        Some((size, paths)) if !paths.is_empty() => (size.parse().expect("BATCH is a number"), paths.to_vec()),
        _ => {
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/jpeg/row-420-q75.jpg");
            println!("no files given: a golden file, 4 times");
            (4, vec![golden.to_string_lossy().into_owned()])
        }
    };
    let files: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).expect("the file can be read")).collect();
    let batch: Vec<&[u8]> = (0..size).map(|i| &files[i % files.len()][..]).collect();

    let device = Device::best()?;
    let stream = device.stream::<Decode>()?;
    let decoder = Decoder::new(&stream);
    let (mut host, mut on_device) = (Vec::new(), Vec::new());
    let mut pixels = 0.0;
    for run in 0..RUNS + 3 {
        let start = Instant::now();
        let read = Batch::new(&batch);
        let after = Instant::now();
        let images = decoder.decode(&read)?.synchronize()?;
        let end = Instant::now();
        if run >= 3 {
            host.push(after - start);
            on_device.push(end - after);
        }
        let size = |i| images.image(i).map(|image| f64::from(image.height) * f64::from(image.width));
        pixels = (0..images.len()).map(|i| size(i).expect("the file is decoded")).sum();
    }
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64()
    };
    let (host, on_device) = (median(host), median(on_device));
    let bytes: usize = batch.iter().map(|file| file.len()).sum();
    println!(
        "{}: {size} images, {:.1} MPix, {:.3} bytes a pixel: host {:.2} ms, device with upload {:.2} ms: {:.0} images/s, {:.2} GPix/s, {:.2} GB/s compressed",
        device.name(),
        pixels / 1e6,
        bytes as f64 / pixels,
        1e3 * host,
        1e3 * on_device,
        size as f64 / on_device,
        pixels / on_device / 1e9,
        bytes as f64 / on_device / 1e9,
    );
    Ok(())
}
