//! Measures the way from JPEG bytes to the input of a model on a GPU: `cargo bench -p
//! thalweg-processor --bench device -- [MODEL] BATCH FILE...`
//!
//! MODEL is `qwen` (Qwen2.5-VL, if it is left out), `qwen-1m` (with at most 1280 tokens an image),
//! `naflex` or `siglip`. The batch has the given
//! files in turn. First, the bits are compared with the host's path. Then each time is the median
//! of 15 runs by the host's clock, of 8 launches one after another for the stages on the device.
//!
//! The floor of a stage is the bytes that it must move by the bandwidth of a copy on this device:
//! what it reads once and writes once. Without arguments, it takes golden files and says so.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use thalweg::simt::bf16;
use thalweg::{Device, DeviceBuffer, Event, On, Size, Stream, stream_tags};
use thalweg_jpeg::{Decoder, HostDecoder};
use thalweg_processor::{DeviceImage, DeviceProcessor, InputFormat, ModelInputs, Processor, ProcessorParams, RgbImage};

stream_tags!(Work);

const RUNS: usize = 15;
const LAUNCHES: usize = 8;

/// Returns the median of the times that `run` returns, after three runs that do not count.
fn median<E>(mut run: impl FnMut() -> Result<Duration, E>) -> Result<f64, E> {
    let mut times = Vec::new();
    for i in 0..RUNS + 3 {
        let time = run()?;
        if i >= 3 {
            times.push(time);
        }
    }
    times.sort();
    Ok(times[times.len() / 2].as_secs_f64())
}

/// Returns the time of one of the launches that `enqueue` enqueues.
fn stage<E: From<thalweg::Error>>(stream: &Stream<Work>, mut enqueue: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    median(|| {
        stream.synchronize()?;
        let start = Instant::now();
        (0..LAUNCHES).try_for_each(|_| enqueue())?;
        stream.synchronize()?;
        Ok(start.elapsed() / LAUNCHES as u32)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let model = match arguments.first().map(String::as_str) {
        Some("qwen" | "qwen-1m" | "naflex" | "siglip") => arguments.remove(0),
        _ => "qwen".into(),
    };
    let processor = match &*model {
        "qwen" => Processor::qwen2_5_vl(),
        "qwen-1m" => {
            let mut params = ProcessorParams::qwen2_vl();
            params.format = InputFormat::Qwen { patch: 14, merge: 2, min_pixels: 3136, max_pixels: 1_003_520 };
            Processor::new(params)?
        }
        "naflex" => Processor::siglip2_naflex(256)?,
        _ => Processor::siglip(384)?,
    };
    let (size, paths) = match arguments.split_first() {
        Some((size, paths)) if !paths.is_empty() => (size.parse()?, paths.to_vec()),
        _ => {
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/jpeg");
            println!("no files given: two golden files, 2 times");
            (4, ["row-420-q75.jpg", "eye-444-q95.jpg"].map(|file| golden.join(file).display().to_string()).to_vec())
        }
    };
    let files = paths.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?;
    // Each image has bytes of its own, which are not in the caches because another one had them.
    let copies: Vec<Vec<u8>> = (0..size).map(|i: usize| files[i % files.len()].clone()).collect();
    let batch: Vec<&[u8]> = copies.iter().map(Vec::as_slice).collect();

    let device = Device::best()?;
    let stream = device.stream::<Work>()?;
    let mut decoder = Decoder::new(device);
    let mut processor = DeviceProcessor::<bf16>::new(processor);
    let read = decoder.read(&batch)?;
    let places = (0..size).map(|i| read.image(i)).collect::<Result<Vec<_>, _>>()?;
    let image = |place: &thalweg_jpeg::DecodedImage| DeviceImage {
        start: place.bytes.start,
        height: place.height,
        width: place.width,
    };
    let images: Vec<_> = places.iter().map(image).collect();
    let pixels: usize = places.iter().map(|place| place.bytes.len()).sum();
    let mut rgb = stream.alloc::<u8>(read.rgb_bytes().next_multiple_of(4))?;
    let report = decoder.decode_into(&stream, read, &mut rgb)?.synchronize()?;
    (0..size).try_for_each(|i| report.image(i).map(drop))?;

    check(&stream, &mut processor, &rgb, &batch[..size.min(files.len())], &images)?;
    let sizes: Vec<_> = images.iter().map(|image| Size::new(image.height, image.width)).collect();
    let layout = processor.processor().layout(&sizes)?;
    let mut to = stream.alloc::<bf16>(layout.elements())?;
    let written = 2 * layout.elements();
    println!("{}: {model}, {size} images of {:.1} MPix together", device.name(), pixels as f64 / 3e6);

    let bandwidth = copied(&stream, pixels + written)?;
    println!("a copy of as many bytes: {:.0} GB/s", bandwidth / 1e9);
    let line = |what: &str, time: f64, bytes: usize| {
        let floor = bytes as f64 / bandwidth;
        println!(
            "{what:<28} {:>9.1} us, {:>8.0} images/s, floor {:>8.1} us: {:>3.0} % of the copy",
            1e6 * time,
            size as f64 / time,
            1e6 * floor,
            1e2 * floor / time
        );
    };
    let time = stage(&stream, || processor.process_into(&stream, &layout, &rgb, &images, &mut to))?;
    line("pixels to pixel_values", time, pixels + written);
    let enqueuing = median(|| {
        stream.synchronize()?;
        let start = Instant::now();
        processor.process_into(&stream, &layout, &rgb, &images, &mut to)?;
        Ok::<_, Box<dyn Error>>(start.elapsed())
    })?;
    println!("{:<28} {:>9.1} us, of it on the host, until it is enqueued", "", 1e6 * enqueuing);
    let compressed: usize = batch.iter().map(|file| file.len()).sum();
    let reading = median(|| {
        let start = Instant::now();
        decoder.read(&batch)?;
        Ok::<_, thalweg::Error>(start.elapsed())
    })?;
    println!(
        "{:<28} {:>9.1} us, {:>8.0} images/s, on the host",
        "reading headers and data",
        1e6 * reading,
        size as f64 / reading
    );
    let decoding = median(|| {
        let read = decoder.read(&batch)?;
        stream.synchronize()?;
        let start = Instant::now();
        decoder.decode_into(&stream, read, &mut rgb)?.synchronize()?;
        Ok::<_, thalweg::Error>(start.elapsed())
    })?;
    line("upload and decoding", decoding, compressed + pixels);

    // The host reads the next batch while the device works on the one before it.
    let mut before: Option<Event<ModelInputs<bf16>>> = None;
    let both = median(|| {
        let start = Instant::now();
        let read = decoder.read(&batch)?;
        drop(decoder.decode_into(&stream, read, &mut rgb)?);
        let next = processor.process(&stream, &rgb, &images)?;
        if let Some(done) = before.replace(next) {
            processor.recycle(Event::ready(done.synchronize()?));
        }
        Ok::<_, thalweg_processor::Error>(start.elapsed())
    })?;
    line("JPEG bytes to pixel_values", both, compressed + 2 * pixels + written);
    Ok(())
}

/// Compares the first images with the host's path, bit for bit.
fn check(
    stream: &Stream<Work>,
    processor: &mut DeviceProcessor<bf16>,
    rgb: &On<Work, DeviceBuffer<u8>>,
    files: &[&[u8]],
    images: &[DeviceImage],
) -> Result<(), Box<dyn Error>> {
    let images = &images[..files.len()];
    let mut decoded = Vec::new();
    for (file, image) in files.iter().zip(images) {
        decoded.push(vec![0; 3 * image.height as usize * image.width as usize]);
        HostDecoder::new().decode(file, decoded.last_mut().ok_or("no image")?)?;
    }
    let view = |(image, rgb): (&DeviceImage, _)| RgbImage { height: image.height, width: image.width, rgb };
    let views: Vec<_> = images.iter().zip(decoded.iter().map(Vec::as_slice)).map(view).collect();
    let host = processor.processor().process::<bf16>(&views)?;
    let inputs = stream.wait(processor.process(stream, rgb, images)?)?;
    let made = stream.read_blocking(&inputs.pixel_values)?;
    assert!(made == host.pixel_values, "the device makes other bits than the host");
    println!("{} images are equal to the host's path in every bit", files.len());
    Ok(())
}

/// Returns the bytes a second that a copy on the device reads and writes together.
fn copied(stream: &Stream<Work>, bytes: usize) -> thalweg::Result<f64> {
    let half = (bytes / 2).max(1);
    let (from, mut to) = (stream.alloc_zeroed::<u8>(half)?, stream.alloc::<u8>(half)?);
    let time = stage(stream, || stream.copy(&from, &mut to))?;
    Ok(2.0 * half as f64 / time)
}
