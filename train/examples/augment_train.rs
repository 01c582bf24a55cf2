//! Trains on randomly augmented images: the upload of batch N + 2 and the augmentation of batch N +
//! 1 run beside training on batch N.
//!
//! ```text
//! upload  | up 0 | up 1 | up 2      | up 3      |
//! augment        | augment 0 | augment 1 | augment 2 |
//! train                      | train 0   | train 1   | train 2   |
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --features vision --example augment_train -- --timeline augment_train.svg
//! ```
//!
//! The model takes patches of the augmented images as tokens. A row says what the same loop does if
//! the host augments, with all cores, while the device trains on the batch before: the baseline.

mod support;

#[path = "support/host_augment.rs"]
mod host_augment;

use std::collections::VecDeque;
use std::time::Duration;

use thalweg::simt::bf16;
use thalweg::{DeviceBuffer, DeviceSlice, Event, LiveBrand, On, PinnedBuffer, Ring, Stream, Timeline, stream_tags};
use thalweg_kernels::train::patches;
use thalweg_train::overlap::{Augmented, AugmentedOn, augment_train};
use thalweg_train::{DeviceBatch, Result, Tensors, TokenTransformer, TokenTransformerConfig};
use thalweg_vision::augment::{AugmentInput, Augmentation, Parameters};

stream_tags!(Upload, Augment, Train);

/// The images of a batch, the side of an image, of an augmented one and of a patch, and the
/// batches.
#[derive(Clone, Copy)]
struct Shape {
    images: usize,
    side: u32,
    size: u32,
    patch: u32,
    items: usize,
    config: TokenTransformerConfig,
}

fn main() -> Result<()> {
    let args = support::Arguments::parse(
        "Uploads, augments and trains on successive batches at the same time.",
        support::MEASURED,
    );
    let gpu = support::device()?;
    let (upload, augment, train) = (gpu.stream::<Upload>()?, gpu.stream::<Augment>()?, gpu.stream::<Train>()?);
    let (images, side, size, patch, items, width, depth) =
        support::sized(gpu, (64, 768, 224, 16, 60, 256, 2), (3, 40, 16, 4, 6, 16, 1));
    let (images, items) = (args.batch(images), args.steps(items));
    let heads = if width % 64 == 0 { width / 64 } else { 2 };
    let config = TokenTransformerConfig::default()
        .with_input_dim(3 * (patch * patch) as usize)
        .with_embed_dim(width)
        .with_num_heads(heads)
        .with_depth(depth);
    let shape = Shape { images, side, size, patch, items, config };
    let by_host = by_host(&args, &train, shape)?;
    let serial = run(&args, (&train, &train, &train), shape, 1, &Timeline::disabled())?;
    let timeline = args.timeline(gpu)?;
    let overlapped = run(&args, (&upload, &augment, &train), shape, args.slots(3), &timeline)?;
    println!("{images} images of {side} x {side} a batch, augmented to {size} x {size}, width {width}, {depth} blocks");
    let rate = items as f64 / by_host.as_secs_f64();
    println!("augmented by the host: {rate:.1} steps/s{}", support::gain(gpu, by_host, overlapped.0));
    support::compare(gpu, serial, overlapped, items);
    args.finish(&timeline)
}

impl Shape {
    /// Returns the bytes of the images of a batch, and their classes. A program would read others.
    fn images(self) -> (Vec<u8>, Vec<i32>) {
        let bytes = 3 * self.images * (self.side * self.side) as usize;
        let pixels = (0..bytes).map(|i| (i * 31 % 251 + i / 977 % 5) as u8).collect();
        (pixels, (0..self.images).map(|i| (i % self.config.num_classes) as i32).collect())
    }

    /// Returns what happens to the images of a batch.
    fn parameters(self, augmentation: &Augmentation, item: usize) -> thalweg::Result<Vec<Parameters>> {
        let (seed, epoch, first) = (7, 0, item * self.images);
        let one = |i: usize| augmentation.parameters(seed, epoch, (first + i) as u64, self.side, self.side);
        (0..self.images).map(one).collect()
    }
}

/// A model that learns from augmented images, as sequences of their patches.
struct Learner<B: LiveBrand> {
    shape: Shape,
    model: TokenTransformer<B, bf16>,
    /// The places of the tokens, which are the same for each batch.
    position: On<B, DeviceBuffer<f32>>,
    cu_seqlens: On<B, DeviceBuffer<i32>>,
    tokens: On<B, DeviceBuffer<f32>>,
}

impl<B: LiveBrand> Learner<B> {
    fn new(train: &Stream<B>, shape: Shape) -> Result<Self> {
        let Shape { images, size, patch, config, .. } = shape;
        let across = size / patch;
        let count = (across * across) as usize;
        let place = |at: u32| (at as f32 + 0.5) / across as f32;
        let place: Vec<f32> = (0..across * across).flat_map(|i| [place(i / across), place(i % across)]).collect();
        let ends: Vec<i32> = (0..=images).map(|i| (i * count) as i32).collect();
        Ok(Self {
            shape,
            model: TokenTransformer::new(train, config, 1)?,
            position: train.upload_blocking(&place.repeat(images))?,
            cu_seqlens: train.upload_blocking(&ends)?,
            tokens: train.alloc(images * count * config.input_dim)?,
        })
    }

    fn step(&mut self, s: &Stream<B>, images: &DeviceSlice<B, f32>, labels: &DeviceSlice<B, i32>) -> Result<()> {
        let Self { shape, model, position, cu_seqlens, tokens } = self;
        patches(s, [shape.images as u32, 3, shape.size, shape.patch], images, tokens)?;
        let batch = DeviceBatch { tokens, position, cu_seqlens, labels, padded: false };
        drop(model.step_on(&batch)?); // `item` of the loss would make the host wait
        Ok(())
    }
}

/// Trains a new model on images that the host augments, and returns how long it took. The device
/// trains on a batch while the host augments the next one.
fn by_host(args: &support::Arguments, train: &Stream<Train>, shape: Shape) -> Result<Duration> {
    let Shape { images, side, size, .. } = shape;
    let (augmentation, gpu) = (Augmentation::default(), train.device());
    let (pixels, classes) = shape.images();
    let bytes = 3 * (side * side) as usize;
    let augmented = |item: usize, out: &mut [f32]| {
        let inputs = pixels.chunks_exact(bytes).zip(shape.parameters(&augmentation, item)?).collect::<Vec<_>>();
        host_augment::augment(&inputs, side, &augmentation, size, out);
        Ok(())
    };
    let len = images * 3 * (size * size) as usize;
    check(train, shape, &augmentation, &pixels, augmented)?;

    let mut learner = Learner::new(train, shape)?;
    let labels = train.upload_blocking(&classes)?;
    let mut batch = train.alloc::<f32>(len)?;
    // The host fills one while the copies of the others are under way.
    let mut buffers: VecDeque<Event<PinnedBuffer<f32>>> = VecDeque::new();
    for _ in 0..3 {
        buffers.push_back(train.record(train.bind(gpu.pinned::<f32>(len)?)?)?);
    }
    let mut step = |item: usize| {
        if let Some(buffer) = buffers.pop_front() {
            let mut buffer = buffer.synchronize()?;
            augmented(item, &mut buffer)?;
            let buffer = train.bind(buffer)?;
            train.copy_to_device(&buffer, &mut batch)?;
            buffers.push_back(train.record(buffer)?);
        }
        learner.step(train, &batch, &labels)
    };
    let mut go = |mut items: std::ops::Range<usize>| {
        items.try_for_each(&mut step)?;
        Ok(train.synchronize()?)
    };
    go(0..4)?;
    let (time, ()) = args.timed(&Timeline::disabled(), |_| go(4..4 + shape.items))?;
    Ok(time)
}

/// Checks that host and device augment alike.
fn check(
    train: &Stream<Train>,
    shape: Shape,
    augmentation: &Augmentation,
    pixels: &[u8],
    augmented: impl Fn(usize, &mut [f32]) -> thalweg::Result<()>,
) -> Result<()> {
    let Shape { images, side, size, .. } = shape;
    let bytes = 3 * (side * side) as usize;
    let samples: Vec<_> = (0..)
        .zip(shape.parameters(augmentation, 0)?)
        .map(|(i, parameters)| AugmentInput { start: i * bytes, height: side, width: side, parameters })
        .collect();
    let mut augmenter = augmentation.augmenter(train, size, images)?;
    let mut out = train.alloc::<f32>(images * 3 * (size * size) as usize)?;
    augmenter.prepare(train, &samples)?;
    augmenter.launch(train, &train.upload_blocking(pixels)?, &mut out)?;
    let on_device = train.read_blocking(&out)?;
    let mut on_host = vec![0.0; on_device.len()];
    augmented(0, &mut on_host)?;
    let worst = on_device.iter().zip(&on_host).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "host and device differ by {worst}");
    println!("host and device augment alike: the largest difference is {worst:.1e}");
    Ok(())
}

/// Trains a new model, and returns how long it took and the weights.
fn run<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    args: &support::Arguments,
    (upload, augment, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    shape: Shape,
    slots: usize,
    timeline: &Timeline,
) -> Result<(Duration, Tensors)> {
    let Shape { images, side, size, items, .. } = shape;
    let augmentation = Augmentation::default();
    let bytes = 3 * (side * side) as usize;
    let slots = (0..slots).map(|_| Augmented::<f32>::new(upload, &augmentation, images * bytes, size, images));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let mut learner = Learner::new(train, shape)?;

    // The images stay in page-locked memory.
    let (pixels, classes) = shape.images();
    let gpu = upload.device();
    let (pixels, classes) = upload.bind((gpu.pinned_from(&pixels)?, gpu.pinned_from(&classes)?))?;

    let mut input = |s: &Stream<U>, n: usize, batch: &mut AugmentedOn<U, f32>| {
        s.copy_to_device(&pixels, &mut batch.rgb)?;
        s.copy_to_device(&classes, &mut batch.labels)?;
        let sample = |(i, parameters)| AugmentInput { start: i * bytes, height: side, width: side, parameters };
        let samples: Vec<_> = (0..).zip(shape.parameters(&augmentation, n)?).map(sample).collect();
        Ok(batch.augmenter.prepare(s, &samples)?)
    };
    let mut learn =
        |s: &Stream<B>, _, images: &DeviceSlice<B, f32>, labels: &DeviceSlice<B, i32>| learner.step(s, images, labels);
    let mut go = |items, timeline: &Timeline| {
        augment_train((upload, augment, train), &mut slots, items, &mut input, &mut learn, timeline)?;
        Ok(train.synchronize()?)
    };
    go(0..4, &Timeline::disabled())?; // makes the memory, and captures the graphs
    let (time, ()) = args.timed(timeline, |timeline| go(4..4 + items, timeline))?;
    Ok((time, learner.model.tensors()?))
}
