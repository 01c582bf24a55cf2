//! From JPEG files on disk to a trained model, on the device all the way: the host reads files and
//! enqueues, and no pixel and no token comes back to it. So a data set may be larger than the
//! memory of the host.
//!
//! ```text
//! loader  | read 4..7 | read 8..11 | ...                           threads, ahead of the consumer
//! upload  | decode 0..3  | decode 4..7  | ...                      coded data and its decoding
//! tokens                 | tokens 0..3  | tokens 4..7 | ...
//! train                                 | train 0..3  | ...
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --features vision --example disk_to_model -- --timeline disk_to_model.svg
//! thalweg launch -n 2 -- target/release/examples/disk_to_model
//! ```
//!
//! Several ranks read a part of the files each. Three runs give the same weights: one on a single
//! stream, one that overlaps, and one that stops in the middle of an epoch and goes on from its
//! checkpoint. The timeline has the last ten steps of the second one. `thalweg train` is the
//! command for this if the files are passed many times: it makes the tokens once, and keeps them in
//! a file.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use thalweg::simt::bf16;
use thalweg::{LiveBrand, Ring, Size, Stream, Timeline, stream_tags};
use thalweg_collective::{BucketSizes, Comm, World};
use thalweg_loader::{
    DecodeBackend, Labeled, Loader, LoaderOptions, LoaderState, Shard, Source, UploadMode, read_photo,
};
use thalweg_train::overlap::{DataParallel, Photographs, PhotographsOn, texture_prefetch};
use thalweg_train::{Error, Result, Tensors, TokenTransformer, TokenTransformerConfig};
use thalweg_vision::{PLANES, Pipeline, TokenParams};

stream_tags!(Take, Textures, Train, Reduce);

/// The files of all ranks and their size, the photographs of a step of one rank, the width of the
/// model, and the most tokens of a photograph.
#[derive(Clone, Copy)]
struct Shape {
    files: usize,
    size: Size,
    images: usize,
    width: usize,
    tokens: u64,
}

fn main() -> Result<()> {
    let options = &[support::TIMELINE, support::BATCH, support::STEPS];
    let args =
        support::Arguments::parse("Trains from files, with their pixels and tokens on the device only.", options);
    let world = World::from_env()?;
    let gpu = world.device()?;
    let (take, textures, train) = (gpu.stream::<Take>()?, gpu.stream::<Textures>()?, gpu.stream::<Train>()?);
    let rank = world.rank();
    let comm = world.comm(gpu.stream::<Reduce>()?)?;
    let (files, size, images, steps, width, tokens) =
        support::sized(gpu, (128, [720, 1280], 8, 60, 128, 256), (12, [48, 64], 2, 15, 8, 48));
    let (images, steps) = (args.batch(images), args.steps(steps));
    let shape = Shape { files: files * comm.size(), size: size.into(), images, width, tokens };
    let folder = Folder::new(rank, shape)?;
    let timeline = args.timeline(gpu)?;

    let off = Timeline::disabled();
    let (_, _, comm) = learn((&train, &train, &train), comm, &folder, shape, &[0, 2], &off)?; // loads the kernels
    let (time, alone, comm) = learn((&train, &train, &train), comm, &folder, shape, &[0, steps], &off)?;
    let streams = (&take, &textures, &train);
    let (overlapped_time, overlapped, comm) = learn(streams, comm, &folder, shape, &[0, steps], &timeline)?;
    let halves = [0, steps / 2, steps];
    let (_, divided, comm) = learn(streams, comm, &folder, shape, &halves, &off)?;
    assert!(divided.tensors == alone.tensors, "the weights differ from those of a run without an interruption");
    if rank == 0 {
        support::note(gpu);
        println!("{} ranks, {gpu}: {} files of {size:?}, {images} of each rank a step", comm.size(), shape.files);
        support::compare(gpu, (time, alone), (overlapped_time, overlapped), steps);
        println!("so are those of the run that went on from its checkpoint after step {}", steps / 2);
        args.finish(&timeline)?;
    }
    Ok(())
}

/// Trains a model in parts: from each of `ends` to the next, where all but the first go on from
/// the checkpoint of the one before. Returns how long they took together, the weights, and the
/// communicator.
fn learn<U: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand>(
    (take, textures, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    mut comm: Comm<C>,
    folder: &Folder,
    shape: Shape,
    ends: &[usize],
    timeline: &Timeline,
) -> Result<(Duration, Tensors, Comm<C>)> {
    let gpu = take.device();
    let checkpoint = folder.0.with_extension("safetensors");
    let config = TokenTransformerConfig::default()
        .with_input_dim(PLANES)
        .with_embed_dim(shape.width)
        .with_num_heads(2)
        .with_depth(2)
        .with_num_classes(CLASSES);
    let params = TokenParams::default().with_patch(16).with_sides(2..=4).with_budget(shape.tokens);
    let pipeline = Pipeline::new(gpu, params)?;
    let slots = if take.unique_id() == train.unique_id() { 1 } else { 3 };
    let slots = (0..slots).map(|_| Photographs::new(take, &pipeline, &vec![shape.size; shape.images]));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let (mut time, mut weights) = (Duration::ZERO, None);
    for part in ends.windows(2).map(|part| part[0]..part[1]) {
        let mut loader = folder.loader(take, &comm, shape, timeline)?;
        let model = match part.start {
            0 => TokenTransformer::<B, bf16>::new(train, config, 1)?,
            _ => {
                let (model, progress) = TokenTransformer::restore(train, &checkpoint)?;
                let number = |key: &str| progress[key].parse().unwrap_or_default();
                loader.resume(LoaderState { epoch: number("epoch"), samples: number("samples") })?;
                model
            }
        };
        let mut model = DataParallel::new(comm, model, BucketSizes::default())?;
        let mut go = |steps: Range<usize>, timeline: &Timeline| {
            let input = |s: &Stream<U>, _, batch: &mut PhotographsOn<U>| hand_over(&mut loader, s, batch);
            texture_prefetch((take, textures), &mut model, &mut slots, steps, input, |_, _| Ok(()), timeline)?;
            Ok(train.synchronize()?)
        };
        let last = part.end.saturating_sub(10).max(part.start);
        time += support::timed(|| {
            go(part.start..last, &Timeline::disabled())?;
            timeline.finish()?; // keeps the spans of the last ten steps only
            go(last..part.end, timeline)
        })?
        .0;
        // Each rank has its own folder, as machines do that share none.
        model.verify()?;
        let LoaderState { epoch, samples } = loader.state();
        let progress = [("epoch", epoch), ("samples", samples)].map(|(key, number)| (key.into(), number.to_string()));
        model.model().checkpoint(&checkpoint, &BTreeMap::from(progress))?;
        let (back, model) = model.into_parts();
        (comm, weights) = (back, Some(model.tensors()?));
    }
    Ok((time, weights.ok_or(Error::Lost)?, comm))
}

/// Gives a slot the next batch. The stream waits for its decoding, and the host for its files only.
/// The pixels are not copied: slot and batch change their memory, and the loader gets that of the
/// slot for a later batch.
fn hand_over<U: LiveBrand>(loader: &mut Loader<Labeled>, s: &Stream<U>, slot: &mut PhotographsOn<U>) -> Result<()> {
    let batch = loader.next().or_else(|| {
        loader.restart(); // the next epoch
        loader.next()
    });
    let batch = batch.ok_or(Error::Lost)?.map_err(|error| Error::Source(error.into()))?;
    let mut batch = s.wait(batch).map_err(|returned| returned.error)?;
    let labels: Vec<i32> = batch.meta.iter().map(|file| file.label as i32).collect();
    s.copy_to_device(&s.bind(s.device().pinned_from(&labels)?)?, &mut slot.labels)?;
    std::mem::swap(&mut batch.rgb, &mut slot.rgb);
    loader.recycle(s.record(batch)?);
    Ok(())
}

const CLASSES: usize = 4;

/// Files that are made for this run, in a folder for each class. They are removed when this value
/// is dropped, and so is the checkpoint beside them.
struct Folder(PathBuf);

impl Folder {
    fn new(rank: usize, Shape { files, size: Size { height, width }, .. }: Shape) -> Result<Self> {
        let name = format!("thalweg-disk-to-model-{}-{rank}", std::process::id());
        let made = Self(std::env::temp_dir().join(name));
        let failed = |error: &dyn std::fmt::Display| Error::Source(format!("{}: {error}", made.0.display()).into());
        for n in 0..files as u32 {
            let class = n % CLASSES as u32;
            let folder = made.0.join(class.to_string());
            fs::create_dir_all(&folder).map_err(|e| failed(&e))?;
            // Bars of a width that the class decides, at places and in colors that the file does.
            let image = image::RgbImage::from_fn(width, height, |x, y| {
                let on = (x + 5 * n + y / 8) / (4 << class) % 2;
                image::Rgb([90 + 80 * on as u8, (40 + 7 * n) as u8, (y * 200 / height) as u8])
            });
            image.save(folder.join(format!("{n:04}.jpg"))).map_err(|e| failed(&e))?;
        }
        Ok(made)
    }

    /// Loads the part of the files that belongs to this rank, in a new order in each epoch.
    fn loader<U: LiveBrand, C: LiveBrand>(
        &self,
        take: &Stream<U>,
        comm: &Comm<C>,
        shape: Shape,
        timeline: &Timeline,
    ) -> Result<Loader<Labeled>> {
        let options = LoaderOptions::default()
            .with_batch_size(shape.images)
            .with_prefetch(3)
            .with_shard(Shard::new(comm.rank() as u64, comm.size() as u64))
            .with_shuffle(Some(7))
            .with_drop_last(true) // all ranks have equally many batches
            .with_decode(DecodeBackend::Device)
            .with_upload(UploadMode::Streams)
            .with_upload_streams(3)
            .with_timeline(timeline.clone());
        let files = Source::image_folder(&self.0, &["jpg"], read_photo)?;
        Ok(Loader::new(take.device(), files.source, options)?)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_file(self.0.with_extension("safetensors"));
        _ = fs::remove_dir_all(&self.0);
    }
}
