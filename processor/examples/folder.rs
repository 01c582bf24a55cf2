//! Goes from a folder of photographs to the input of a model on the device, batch after batch.
//!
//! ```text
//! read      | 0 | 1 | 2 | 3 | ...            threads of the loader
//! decode        | 0 | 1 | 2 | 3 | ...        streams of the loader: upload and decoding
//! process           | 0 | 1 | 2 | 3 | ...    two launches for a batch of any sizes
//! ```
//!
//! The device orders all of it. The host enqueues, and waits only for files. It compares the first
//! batch with its own path, bit for bit.
//!
//! ```text
//! cargo run --release -p thalweg-processor --example folder -- ~/photographs --images 4096 --timeline folder.svg
//! ```

#[path = "../../examples/support/command_line.rs"]
mod command_line;

use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{Activity, Device, DeviceKind, Event, Stream, Timeline, stream_tags};
use thalweg_loader::{
    BatchOn, DecodeBackend, Loader, LoaderOptions, Source, UploadMode, byte_ranges, list_folder, read_photo,
};
use thalweg_processor::{DeviceImage, DeviceProcessor, ModelInputs, Processor, RgbImage};

use command_line::{CommandLine, TIMELINE, refuse};

stream_tags!(Process);

/// The batches that the device may have before the host waits for the first of them.
const AHEAD: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let line = CommandLine::parse(
        "Goes from a folder of photographs to the input of a model on the device.",
        &[("FOLDER", "JPEG, PNG and WebP files (default: assets/photos)")],
        &[
            ("--model MODEL", "qwen (Qwen2.5-VL, the default), naflex, siglip, or none to decode and upload only"),
            ("--batch N", "the photographs of a batch (default: 8)"),
            ("--images N", "take the files in turn until there are so many (default: each once)"),
            TIMELINE,
        ],
    );
    let processor = match line.text("--model").unwrap_or("qwen") {
        "qwen" => Some(Processor::qwen2_5_vl()),
        "naflex" => Some(Processor::siglip2_naflex(256)?),
        "siglip" => Some(Processor::siglip(384)?),
        "none" => None,
        other => refuse(&format!("--model cannot be `{other}`")),
    };
    let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/photos");
    let folder = line.words().first().map_or(assets, String::as_str);
    let files = list_folder(folder, &["jpg", "jpeg", "png", "webp"], false).files;
    if files.is_empty() {
        return Err(format!("{folder}: found no photographs").into());
    }
    let count = line.value("--images").unwrap_or(files.len());
    let files: Vec<PathBuf> = files.iter().cycle().take(count).cloned().collect();

    let device = Device::from_env()?.device;
    let timeline = if line.timeline().is_some() { Timeline::new(device)? } else { Timeline::disabled() };
    let options = LoaderOptions::from_env()?
        .with_batch_size(line.value("--batch").unwrap_or(8))
        .with_upload(if device.kind() == DeviceKind::Cuda { UploadMode::Streams } else { UploadMode::Sequential })
        .with_upload_streams(3)
        .with_timeline(timeline.clone());
    let mut loader = Loader::new(device, Source::files(&files, read_photo), options.clone())?;
    let mut run = Run { stream: device.stream()?, processor: processor.map(DeviceProcessor::new), timeline };
    run.check(device, &files, options)?;

    // The first time does not count: memory is allocated, kernels are loaded, and files come into
    // the page cache.
    run.epoch(&mut loader)?;
    run.timeline.finish()?;
    loader.restart();
    let start = Instant::now();
    let done = run.epoch(&mut loader)?;
    let rate = done as f64 / start.elapsed().as_secs_f64();
    let goal = if run.processor.is_some() { "pixel_values" } else { "pixels" };
    println!("{}: {done} photographs, {rate:.0} a second from files to {goal}", device.name());
    println!("{}", loader.stats());
    if let Some(path) = line.timeline() {
        let trace = run.timeline.finish()?;
        trace.save(path)?;
        println!("{}\n{}\ntimeline: {}", trace.metrics(), trace.by_label(), path.display());
    }
    Ok(())
}

struct Run {
    stream: Stream<Process>,
    processor: Option<DeviceProcessor<bf16>>,
    timeline: Timeline,
}

impl Run {
    /// Enqueues the work that makes the input of a model from a batch of the loader.
    fn process(
        &mut self,
        batch: &BatchOn<Process, PathBuf>,
    ) -> thalweg_processor::Result<Option<Event<ModelInputs<bf16>>>> {
        let Some(processor) = &mut self.processor else { return Ok(None) };
        let image = |(range, size): (std::ops::Range<usize>, &thalweg::Size)| DeviceImage {
            start: range.start,
            height: size.height,
            width: size.width,
        };
        let images: Vec<_> = byte_ranges(&batch.sizes).into_iter().zip(&batch.sizes).map(image).collect();
        let stream = &self.stream;
        self.timeline
            .span(stream, Activity::Compute, "process", || Ok(processor.process(stream, &batch.rgb, &images)))?
            .map(Some)
    }

    /// Processes all batches of an epoch, and returns the number of images.
    fn epoch(&mut self, loader: &mut Loader<PathBuf>) -> Result<usize, Box<dyn Error>> {
        let (mut under_way, mut done) = (VecDeque::new(), 0);
        while let Some(batch) = loader.next() {
            let batch = match batch {
                Ok(batch) => self.stream.wait(batch)?,
                Err(thalweg_loader::Error::Sample { name, cause, .. }) => {
                    eprintln!("{name}: {cause}");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            done += batch.sizes.len();
            under_way.extend(self.process(&batch)?);
            loader.recycle(self.stream.record(batch)?);
            if under_way.len() > AHEAD
                && let Some(inputs) = under_way.pop_front()
            {
                // A model would take them here.
                self.recycle(inputs)?;
            }
        }
        for inputs in under_way {
            self.recycle(inputs)?;
        }
        self.stream.synchronize()?;
        Ok(done)
    }

    /// Waits for inputs, and gives their memory to later ones.
    fn recycle(&mut self, inputs: Event<ModelInputs<bf16>>) -> thalweg::Result<()> {
        let inputs = Event::ready(inputs.synchronize()?);
        if let Some(processor) = &mut self.processor {
            processor.recycle(inputs);
        }
        Ok(())
    }

    /// Compares the first batch with the host's path.
    fn check(&mut self, device: Device, files: &[PathBuf], options: LoaderOptions) -> Result<(), Box<dyn Error>> {
        let files = &files[..options.batch_size.min(files.len())];
        let read = |path: &Path, sink: &mut thalweg_loader::ImageSink<'_>| read_photo(path, sink);
        let on_host = options.clone().with_upload(UploadMode::Off).with_decode(DecodeBackend::Host);
        let mut loaders =
            [options, on_host].into_iter().map(|options| Loader::new(device, Source::files(files, read), options));
        let mut next =
            || loaders.next().ok_or("two loaders")??.next().ok_or("no batch")?.map_err(Box::<dyn Error>::from);
        let batch = self.stream.wait(next()?)?;
        let (Some(made), Some(processor)) = (self.process(&batch)?, &self.processor) else { return Ok(()) };
        let made = self.stream.wait(made)?;
        let numbers = self.stream.read_blocking(&made.pixel_values)?;
        let host = next()?.synchronize()?;
        let view =
            |i: usize| RgbImage { height: host.sizes[i].height, width: host.sizes[i].width, rgb: host.pixels(i) };
        let views: Vec<_> = (0..host.len()).map(view).collect();
        let expected = processor.processor().process::<bf16>(&views)?;
        assert!(expected.pixel_values == numbers, "the device computes other bits than the host");
        println!("{} photographs are equal to the host's path in every bit", views.len());
        Ok(())
    }
}
