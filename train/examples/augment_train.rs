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
//! The model takes patches of the augmented images as tokens.

mod support;

use thalweg::simt::bf16;
use thalweg::{DeviceSlice, LiveBrand, Ring, Stream, Timeline, stream_tags};
use thalweg_kernels::train::patches;
use thalweg_train::overlap::{Augmented, AugmentedOn, augment_train};
use thalweg_train::{DeviceBatch, Result, Tensors, TokenTransformer, TokenTransformerConfig};
use thalweg_vision::augment::{AugmentInput, Augmentation};

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
    let timeline = args.timeline(gpu)?;
    let serial = run(&args, (&train, &train, &train), shape, 1, &Timeline::disabled())?;
    let overlapped = run(&args, (&upload, &augment, &train), shape, args.slots(3), &timeline)?;
    println!("{images} images of {side} x {side} a batch, augmented to {size} x {size}, width {width}, {depth} blocks");
    support::compare(gpu, serial, overlapped, items);
    args.finish(&timeline)
}

/// Trains a new model, and returns how long it took and the weights.
fn run<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    args: &support::Arguments,
    (upload, augment, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    shape: Shape,
    slots: usize,
    timeline: &Timeline,
) -> Result<(std::time::Duration, Tensors)> {
    let Shape { images, side, size, patch, items, config } = shape;
    let augmentation = Augmentation::default();
    let bytes = 3 * (side * side) as usize;
    let slots = (0..slots).map(|_| Augmented::<f32>::new(upload, &augmentation, images * bytes, size, images));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let mut model = TokenTransformer::<_, bf16>::new(train, config, 1)?;

    // The images stay in page-locked memory. A program would read new ones there.
    let pixels: Vec<u8> = (0..images * bytes).map(|i| (i * 31 % 251 + i / 977 % 5) as u8).collect();
    let classes: Vec<i32> = (0..images).map(|i| (i % config.num_classes) as i32).collect();
    let gpu = upload.device();
    let (pixels, classes) = upload.bind((gpu.pinned_from(&pixels)?, gpu.pinned_from(&classes)?))?;

    // The tokens are patches, so where they lie is the same for each batch.
    let across = size / patch;
    let count = (across * across) as usize;
    let place = |at: u32| (at as f32 + 0.5) / across as f32;
    let place: Vec<f32> = (0..across * across).flat_map(|i| [place(i / across), place(i % across)]).collect();
    let ends: Vec<i32> = (0..=images).map(|i| (i * count) as i32).collect();
    let (position, cu_seqlens) = (train.upload_blocking(&place.repeat(images))?, train.upload_blocking(&ends)?);
    let mut tokens = train.alloc::<f32>(images * count * config.input_dim)?;

    let mut input = |s: &Stream<U>, n: usize, batch: &mut AugmentedOn<U, f32>| {
        s.copy_to_device(&pixels, &mut batch.rgb)?;
        s.copy_to_device(&classes, &mut batch.labels)?;
        let sample = |i: usize| {
            let (seed, epoch, index) = (7, 0, (n * images + i) as u64);
            let parameters = augmentation.parameters(seed, epoch, index, side, side)?;
            Ok(AugmentInput { start: i * bytes, height: side, width: side, parameters })
        };
        let samples = (0..images).map(sample).collect::<thalweg::Result<Vec<_>>>()?;
        Ok(batch.augmenter.prepare(s, &samples)?)
    };
    let mut learn = |s: &Stream<B>, _, images: &DeviceSlice<B, f32>, labels: &DeviceSlice<B, i32>| {
        patches(s, [shape.images as u32, 3, size, patch], images, &mut tokens)?;
        let (position, cu_seqlens) = (&*position, &*cu_seqlens);
        let batch = DeviceBatch { tokens: &tokens, position, cu_seqlens, labels, padded: false };
        drop(model.step_on(&batch)?); // `item` of the loss would make the host wait
        Ok(())
    };
    let mut go = |items, timeline: &Timeline| {
        augment_train((upload, augment, train), &mut slots, items, &mut input, &mut learn, timeline)?;
        Ok(train.synchronize()?)
    };
    go(0..4, &Timeline::disabled())?; // makes the memory, and captures the graphs
    let (time, ()) = args.timed(timeline, |timeline| go(4..4 + items, timeline))?;
    Ok((time, model.tensors()?))
}
