//! Trains from JPEG files, whose next batch is decoded by the host before it is asked for, or not:
//! the same loop with 0, 1 and 2 batches ahead, and how busy the GPU's kernels are in each.
//!
//! ```text
//! 0 ahead   host  | decode 0 |           | decode 1 |
//!           train            | train 0 |            | train 1 |
//! 1 ahead   host  | decode 0 | decode 1 | decode 2 | ...
//!           train            | train 0 |  | train 1 |
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --features vision --example prefetch -- --files /tmp/photographs
//! python benches/peers/torch_loader.py /tmp/photographs
//! ```
//!
//! The host decodes with all cores in each form, and reads the loss of each step, as training loops
//! do. The first form is the loop without a loader: a step begins to decode when the loss of the
//! step before is there. All forms learn the same weights, bit for bit. The second command trains
//! PyTorch on the same files, behind its `DataLoader`.

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use thalweg::simt::bf16;
use thalweg::{Activity, DeviceBuffer, DeviceSlice, On, Size, Stream, Timeline, stream_tags};
use thalweg_kernels::train::patches;
use thalweg_loader::{
    DecodeBackend, Loader, LoaderOptions, Source, UploadMode, byte_ranges, decode_photo_to_vec, read_photo,
};
use thalweg_train::{DeviceBatch, Error, Result, Tensors, TokenTransformer, TokenTransformerConfig};
use thalweg_vision::augment::{AugmentInput, Augmentation, AugmenterOn, Parameters};

stream_tags!(Train);

const CLASSES: usize = 4;

/// The files and their size, the images of a step, the side of an image for the model and of a
/// patch, and the steps.
#[derive(Clone, Copy)]
struct Shape {
    files: usize,
    photo: [u32; 2],
    images: usize,
    side: u32,
    patch: u32,
    steps: usize,
    config: TokenTransformerConfig,
}

fn main() -> Result<()> {
    let options = &[support::TIMELINE, support::BATCH, support::STEPS, support::FILES];
    let args = support::Arguments::parse("Trains from JPEG files with 0, 1 and 2 batches ahead.", options);
    let gpu = support::device()?;
    let train = gpu.stream::<Train>()?;
    let (files, photo, images, side, patch, steps, width, depth) =
        support::sized(gpu, (256_usize, [720, 1280], 32, 224, 16, 60, 384, 6), (8, [48, 64], 2, 16, 4, 5, 8, 1));
    let (images, steps) = (args.batch(images), args.steps(steps));
    let config = TokenTransformerConfig::default()
        .with_input_dim(3 * (patch * patch) as usize)
        .with_embed_dim(width)
        .with_num_heads(if width % 64 == 0 { width / 64 } else { 2 })
        .with_depth(depth)
        .with_num_classes(CLASSES);
    let shape = Shape { files: files.next_multiple_of(images), photo, images, side, patch, steps, config };
    let folder = Folder::new(args.files(), shape)?;
    println!("{images} images of {photo:?} a step, {side} x {side} for a model of width {width} and {depth} blocks");

    let mut first: Option<Tensors> = None;
    for ahead in [0, 1, 2] {
        let timeline = Timeline::new(gpu)?; // always on, because the busy share comes from it
        let (time, weights) = run(&train, &folder, shape, ahead, &timeline)?;
        let trace = timeline.finish()?;
        let metrics = trace.metrics();
        let busy = metrics.tracks.iter().filter(|track| track.track.contains("Train")).map(|track| track.busy);
        let share = 100.0 * busy.sum::<Duration>().as_secs_f64() / time.as_secs_f64();
        let rate = steps as f64 / time.as_secs_f64();
        println!("{ahead} batches ahead: {rate:.1} steps/s, a step is under way {share:.1} % of the time");
        let first = first.get_or_insert_with(|| weights.clone());
        assert!(first.tensors == weights.tensors, "the weights differ from those without a batch ahead");
        args.save(&trace)?;
    }
    println!("the weights are the same, bit for bit");
    Ok(())
}

/// Trains a new model, and returns how long it took and the weights.
fn run(
    train: &Stream<Train>,
    folder: &Folder,
    shape: Shape,
    ahead: usize,
    timeline: &Timeline,
) -> Result<(Duration, Tensors)> {
    let Shape { images, steps, .. } = shape;
    let paths = &folder.paths;
    let mut learner = Learner::new(train, shape)?;
    let failed = |error: &dyn std::fmt::Display| Error::Source(error.to_string().into());
    if ahead == 0 {
        let mut step = |n: usize, timeline: &Timeline| {
            let first = n * images % paths.len();
            let (sizes, rgb) = decode(&paths[first..first + images]).map_err(|error| failed(&error))?;
            let rgb = train.upload_blocking(&rgb)?;
            learner.step(&rgb, &sizes, first, timeline)
        };
        step(0, &Timeline::disabled())?; // loads the kernels
        let (time, ()) = support::timed(|| (1..=steps).try_for_each(|n| step(n, timeline)))?;
        return Ok((time, learner.model.tensors()?));
    }
    let options = LoaderOptions::default()
        .with_batch_size(images)
        .with_prefetch(ahead)
        .with_decode(DecodeBackend::Host)
        .with_upload(UploadMode::Streams)
        .with_timeline(timeline.clone());
    let mut loader = Loader::new(train.device(), Source::files(paths, read_photo), options)?;
    let mut step = |timeline: &Timeline| {
        let batch = loader.next().or_else(|| {
            loader.restart(); // the next epoch
            loader.next()
        });
        let batch = batch.ok_or(Error::Lost)?.map_err(|error| failed(&error))?;
        let batch = train.wait(batch).map_err(|returned| returned.error)?;
        learner.step(&batch.rgb, &batch.sizes, batch.indices[0] as usize, timeline)?;
        loader.recycle(train.record(batch)?);
        Ok(())
    };
    step(&Timeline::disabled())?;
    let (time, ()) = support::timed(|| (0..steps).try_for_each(|_| step(timeline)))?;
    Ok((time, learner.model.tensors()?))
}

/// Decodes files with all cores, and lays them one after another as a loader does.
fn decode(paths: &[PathBuf]) -> std::result::Result<(Vec<Size>, Vec<u8>), String> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let one = |path: &PathBuf| {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        decode_photo_to_vec(&bytes).map_err(|error| error.to_string())
    };
    let decoded = thread::scope(|threads| {
        let parts = paths.chunks(paths.len().div_ceil(cores));
        let started: Vec<_> = parts.map(|part| threads.spawn(|| part.iter().map(one).collect::<Vec<_>>())).collect();
        started.into_iter().flat_map(|thread| thread.join().expect("the thread does not panic")).collect()
    });
    let decoded: std::result::Result<Vec<(Size, Vec<u8>)>, String> = decoded;
    let (sizes, images): (Vec<Size>, Vec<Vec<u8>>) = decoded?.into_iter().unzip();
    let places = byte_ranges(&sizes);
    let mut rgb = vec![0; places.last().map_or(0, |place| place.end)];
    for (place, image) in places.into_iter().zip(images) {
        rgb[place].copy_from_slice(&image);
    }
    Ok((sizes, rgb))
}

/// A model, and the device memory of a batch for it.
struct Learner<'s> {
    train: &'s Stream<Train>,
    shape: Shape,
    model: TokenTransformer<Train, bf16>,
    augmenter: AugmenterOn<Train>,
    images: On<Train, DeviceBuffer<f32>>,
    tokens: On<Train, DeviceBuffer<f32>>,
    position: On<Train, DeviceBuffer<f32>>,
    cu_seqlens: On<Train, DeviceBuffer<i32>>,
}

impl<'s> Learner<'s> {
    fn new(train: &'s Stream<Train>, shape: Shape) -> Result<Self> {
        let Shape { images, side, patch, config, .. } = shape;
        let across = side / patch;
        let count = (across * across) as usize;
        let place = |at: u32| (at as f32 + 0.5) / across as f32;
        let place: Vec<f32> = (0..across * across).flat_map(|i| [place(i / across), place(i % across)]).collect();
        let ends: Vec<i32> = (0..=images).map(|i| (i * count) as i32).collect();
        Ok(Self {
            train,
            shape,
            model: TokenTransformer::new(train, config, 1)?,
            augmenter: Augmentation::none().augmenter(train, side, images)?, // only resizes and normalizes
            images: train.alloc(images * 3 * (side * side) as usize)?,
            tokens: train.alloc(images * count * config.input_dim)?,
            position: train.upload_blocking(&place.repeat(images))?,
            cu_seqlens: train.upload_blocking(&ends)?,
        })
    }

    /// Takes a step, and waits for its loss.
    fn step(&mut self, rgb: &DeviceSlice<Train, u8>, sizes: &[Size], first: usize, timeline: &Timeline) -> Result<()> {
        let Self { train, shape, model, augmenter, images, tokens, position, cu_seqlens } = self;
        let samples: Vec<_> = sizes
            .iter()
            .zip(byte_ranges(sizes))
            .map(|(&Size { height, width }, place)| {
                let parameters = Parameters::identity(width, height);
                AugmentInput { start: place.start, height, width, parameters }
            })
            .collect();
        let labels: Vec<i32> = (first..first + sizes.len()).map(|index| (index % CLASSES) as i32).collect();
        let labels = train.upload_blocking(&labels)?;
        augmenter.prepare(train, &samples)?;
        let mut loss = None;
        timeline.span(train, Activity::Compute, "resize and train", || {
            augmenter.launch(train, rgb, images)?;
            patches(*train, [shape.images as u32, 3, shape.side, shape.patch], images, tokens)?;
            let batch = DeviceBatch { tokens, position, cu_seqlens, labels: &labels, padded: false };
            loss = Some(model.step_on(&batch));
            Ok(())
        })?;
        if let Some(loss) = loss {
            loss?.item()?;
        }
        Ok(())
    }
}

/// JPEG files: those of the folder that was named, which stay, or others, which are removed when
/// this value is dropped.
struct Folder {
    paths: Vec<PathBuf>,
    made: Option<PathBuf>,
}

impl Folder {
    fn new(named: Option<&Path>, Shape { files, photo: [height, width], .. }: Shape) -> Result<Self> {
        let own = || std::env::temp_dir().join(format!("thalweg-prefetch-{}", std::process::id()));
        let path = named.map_or_else(own, Path::to_path_buf);
        let failed = |error: &dyn std::fmt::Display| Error::Source(format!("{}: {error}", path.display()).into());
        let made = named.is_none().then(|| path.clone());
        fs::create_dir_all(&path).map_err(|error| failed(&error))?;
        let paths: Vec<_> = (0..files).map(|n| path.join(format!("{n:04}.jpg"))).collect();
        let folder = Self { paths, made };
        for (n, path) in (0..).zip(&folder.paths).filter(|(_, path)| !path.exists()) {
            // Bars, with noise that a decoder has to read.
            let image = image::RgbImage::from_fn(width, height, |x, y| {
                let noise = (x.wrapping_mul(73) ^ y.wrapping_mul(151) ^ n) % 23;
                let on = (x + 5 * n + y / 8) / (4 << (n % CLASSES as u32)) % 2;
                image::Rgb([(90 + 80 * on + noise) as u8, (40 + 7 * n + noise) as u8, (y * 200 / height) as u8])
            });
            image.save(path).map_err(|error| failed(&error))?;
        }
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(folder) = &self.made {
            _ = fs::remove_dir_all(folder);
        }
    }
}
