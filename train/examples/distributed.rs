//! Several ranks learn one model from photographs: each loads its shard, and upload, tokens or
//! augmentation, training, and the reduction of the gradients run at the same time.
//!
//! ```text
//! upload            | up 0 | up 1 | up 2     | up 3     |
//! textures, augment        | make 0 | make 1 | make 2   |
//! train                             | forward, backward 0 | update | forward, backward 1 | update |
//! reduce                                 | buckets of 0   |           | buckets of 1   |
//! ```
//!
//! Alone:           `cargo run --release -p thalweg-train --features vision --example distributed`
//! Two processes:   `thalweg launch -n 2 -- target/release/examples/distributed`
//! Two GPUs:        `torchrun --nproc-per-node 2 --no-python target/release/examples/distributed`
//!
//! One model learns from adaptive tokens, another one from patches of augmented images. Some
//! photographs are broken; all ranks have the same number of batches nevertheless.

mod support;

use std::sync::Arc;
use std::time::Duration;

use thalweg::simt::bf16;
use thalweg::{Device, DeviceSlice, LiveBrand, Ring, Stream, Timeline, stream_tags};
use thalweg_collective::{BucketSizes, Comm, World};
use thalweg_kernels::train::patches;
use thalweg_loader::{Loader, LoaderOptions, Sample, Source, UploadMode};
use thalweg_train::overlap::{Augmented, DataParallel, Photographs, Trainable, augment_train, texture_prefetch};
use thalweg_train::{DeviceBatch, Error, Result, Tensors, TokenTransformer, TokenTransformerConfig};
use thalweg_vision::augment::{self, Augmentation};
use thalweg_vision::{PLANES, Pipeline, TokenParams};

stream_tags!(Up, Make, Train, Reduce);

/// The photographs of a batch of one rank, their height and width, the batches, and the width of
/// the model.
#[derive(Clone, Copy)]
struct Shape {
    images: usize,
    size: [u32; 2],
    items: usize,
    width: usize,
}

type Model<C, B> = DataParallel<C, B, bf16>;
type Run = (Duration, Tensors);

fn main() -> Result<()> {
    let args =
        support::Arguments::parse("Trains on several ranks, from their shards of photographs.", &[support::TIMELINE]);
    let world = World::from_env()?;
    let (rank, size) = (world.rank(), world.size());
    let gpu = world.device()?;
    let (up, make, train) = (gpu.stream::<Up>()?, gpu.stream::<Make>()?, gpu.stream::<Train>()?);
    let mut comm = world.comm(gpu.stream::<Reduce>()?)?;
    let (images, size_of, items, width) = support::sized(gpu, (32, [768, 768], 40, 512), (2, [64, 64], 6, 16));
    let shape = Shape { images, size: size_of, items, width };

    let timeline = args.timeline(gpu)?;
    let serial = tokens((&train, &train, &train), comm, shape, 1, &Timeline::disabled())?;
    let overlapped = tokens((&up, &make, &train), serial.1, shape, 3, &timeline)?;
    comm = overlapped.1;
    if rank == 0 {
        support::note(gpu);
        println!("{size} ranks, {gpu}, {:?}; {images} photographs of each a batch, adaptive tokens", comm.backend());
        support::compare(gpu, serial.0, overlapped.0, items);
    }
    let serial = augmented((&train, &train, &train), comm, shape, 1, &Timeline::disabled())?;
    let overlapped = augmented((&up, &make, &train), serial.1, shape, 3, &timeline)?;
    if rank == 0 {
        println!("patches of augmented images");
        support::compare(gpu, serial.0, overlapped.0, items);
        args.finish(&timeline)?;
    }
    Ok(())
}

/// The photographs of this rank, in batches that never end.
struct Shard(Loader<i32>);

impl Shard {
    fn new(gpu: Device, rank: usize, ranks: usize, Shape { images, size: [height, width], .. }: Shape) -> Result<Self> {
        // Here a program would list the files of a folder. These are made once, so that reading
        // costs little.
        let bytes = 3 * (height * width) as u64;
        let draw = |k: u64| (0..bytes).map(|i| (i * (3 + k) / 64 + k * 17) as u8).collect();
        let pictures: Vec<Arc<[u8]>> = (0..10).map(draw).collect();
        let source = Source::indexed(1000, move |index| {
            let picture = pictures[index as usize % pictures.len()].clone();
            Sample::new(format!("photograph {index}"), (index % 10) as i32, move |sink| {
                if index % 11 == 5 {
                    return Err("this one is broken".into());
                }
                sink.rgb(height, width)?.copy_from_slice(&picture);
                Ok(())
            })
        });
        let options = LoaderOptions::default()
            .with_batch_size(images)
            .with_shard(thalweg_loader::Shard::new(rank as u64, ranks as u64))
            .with_shuffle(Some(7))
            .with_drop_last(true)
            // all ranks have the same number of batches, whatever is broken
            .with_skip_errors(true)
            .with_upload(UploadMode::Off);
        Ok(Self(Loader::new(gpu, source, options)?))
    }

    /// Enqueues the upload of the next batch. Photographs that are left take the places of broken
    /// ones; if all of them are broken, those of an earlier batch stay. Returns the indices of what
    /// is uploaded.
    fn upload<U: LiveBrand>(
        &mut self,
        s: &Stream<U>,
        rgb: &mut DeviceSlice<U, u8>,
        labels: &mut DeviceSlice<U, i32>,
    ) -> Result<Vec<u64>> {
        let batch = loop {
            match self.0.next() {
                Some(batch) => break batch.map_err(|error| Error::Source(error.into()))?.synchronize()?,
                None => self.0.restart(),
            }
        };
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let places = labels.len();
        let of = |place: usize| place % batch.sizes.len();
        let classes: Vec<i32> = (0..places).map(|place| batch.meta[of(place)]).collect();
        let indices = (0..places).map(|place| batch.indices[of(place)]).collect();
        let bytes = rgb.len() / places;
        let kept = batch.sizes.len();
        let (images, classes) = s.bind((batch.images, s.device().pinned_from(&classes)?))?;
        for place in 0..places {
            s.copy_to_device(&images[place % kept], rgb.slice_mut(place * bytes..(place + 1) * bytes)?)?;
        }
        s.copy_to_device(&classes, labels)?;
        Ok(indices)
    }
}

/// A new model, the same on every rank.
fn model<C: LiveBrand, B: LiveBrand>(
    train: &Stream<B>,
    comm: Comm<C>,
    inputs: usize,
    width: usize,
) -> Result<Model<C, B>> {
    let heads = if width.is_multiple_of(64) { width / 64 } else { 2 };
    let config = TokenTransformerConfig::default()
        .with_input_dim(inputs)
        .with_embed_dim(width)
        .with_num_heads(heads)
        .with_depth(4);
    DataParallel::new(comm, TokenTransformer::new(train, config, 1)?, BucketSizes::default())
}

/// Compares the weights of the ranks, and returns them and how long the run took.
fn end<C: LiveBrand, B: LiveBrand>(time: Duration, mut model: Model<C, B>) -> Result<(Run, Comm<C>)> {
    model.verify()?;
    let (comm, model) = model.into_parts();
    Ok(((time, model.tensors()?), comm))
}

/// Trains on adaptive tokens.
fn tokens<U: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand>(
    (up, make, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    comm: Comm<C>,
    shape: Shape,
    slots: usize,
    timeline: &Timeline,
) -> Result<(Run, Comm<C>)> {
    let gpu = up.device();
    let mut shard = Shard::new(gpu, comm.rank(), comm.size(), shape)?;
    let params = TokenParams::default().with_patch(16).with_sides(2..=4).with_budget(256);
    let pipeline = Pipeline::new(gpu, params)?;
    let slots = (0..slots).map(|_| Photographs::new(up, &pipeline, &vec![shape.size.into(); shape.images]));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let mut model = model(train, comm, PLANES, shape.width)?;
    let mut go = |items, timeline: &Timeline| {
        let input = |s: &Stream<U>, _, batch: &mut thalweg_train::overlap::PhotographsOn<U>| {
            shard.upload(s, &mut batch.rgb, &mut batch.labels).map(drop)
        };
        texture_prefetch((up, make), &mut model, &mut slots, items, input, |_, _| Ok(()), timeline)?;
        Ok(train.synchronize()?)
    };
    go(0..4, &Timeline::disabled())?; // makes the memory
    let (time, ()) = support::timed(|| go(4..4 + shape.items, timeline))?;
    end(time, model)
}

/// Trains on patches of augmented images.
fn augmented<U: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand>(
    (up, make, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    comm: Comm<C>,
    shape: Shape,
    slots: usize,
    timeline: &Timeline,
) -> Result<(Run, Comm<C>)> {
    let Shape { images, size: [height, width], .. } = shape;
    let gpu = up.device();
    let mut shard = Shard::new(gpu, comm.rank(), comm.size(), shape)?;
    let (side, patch) = support::sized(gpu, (224, 16), (16, 4));
    let augmentation = Augmentation::default();
    let bytes = 3 * (height * width) as usize;
    let slots = (0..slots).map(|_| Augmented::<f32>::new(up, &augmentation, images * bytes, side, images));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let mut model = model(train, comm, 3 * (patch * patch) as usize, shape.width)?;

    // The tokens are patches, so where they lie is the same for each batch.
    let across = side / patch;
    let count = (across * across) as usize;
    let place = |at: u32| (at as f32 + 0.5) / across as f32;
    let place: Vec<f32> = (0..across * across).flat_map(|i| [place(i / across), place(i % across)]).collect();
    let ends: Vec<i32> = (0..=images).map(|i| (i * count) as i32).collect();
    let (position, cu_seqlens) = (train.upload_blocking(&place.repeat(images))?, train.upload_blocking(&ends)?);
    let mut tokens = train.alloc::<f32>(images * count * 3 * (patch * patch) as usize)?;
    let mut go = |items, timeline: &Timeline| {
        augment_train(
            (up, make, train),
            &mut slots,
            items,
            |s, n, batch| {
                let indices = shard.upload(s, &mut batch.rgb, &mut batch.labels)?;
                let sample = |place: usize| {
                    let index = indices.get(place).copied().unwrap_or_default();
                    let parameters = augmentation.parameters(7, n as u32, index, width, height)?;
                    Ok(augment::AugmentInput { start: place * bytes, height, width, parameters })
                };
                let samples = (0..images).map(sample).collect::<thalweg::Result<Vec<_>>>()?;
                Ok(batch.augmenter.prepare(s, &samples)?)
            },
            |s, _, augmented, labels| {
                patches(s, [images as u32, 3, side, patch], augmented, &mut tokens)?;
                let (position, cu_seqlens) = (&*position, &*cu_seqlens);
                let batch = DeviceBatch { tokens: &tokens, position, cu_seqlens, labels, padded: false };
                drop(model.learn(&batch, None)?); // `item` of the loss would make the host wait
                Ok(())
            },
            timeline,
        )?;
        Ok(train.synchronize()?)
    };
    go(0..4, &Timeline::disabled())?; // makes the memory
    let (time, ()) = support::timed(|| go(4..4 + shape.items, timeline))?;
    end(time, model)
}
