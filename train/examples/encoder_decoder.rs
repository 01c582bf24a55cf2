//! Trains a model on the features of a frozen image encoder, which encodes the next batch
//! meanwhile.
//!
//! ```text
//! encode | encode 0 | encode 1 | encode 2 | encode 3 |
//! train             | train 0     | train 1     | train 2     | train 3     |
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --example encoder_decoder -- --timeline encoder_decoder.svg
//! ```
//!
//! On a GPU the encoder is as large as ViT-B and the model has four blocks. The weights are random.

mod support;

use thalweg::simt::bf16;
use thalweg::{LiveBrand, Ring, Stream, Timeline, stream_tags};
use thalweg_train::overlap::{Encoded, encoder_decoder};
use thalweg_train::{
    EncoderConfig, Gelu, ImageEncoder, MatmulBackend, Pooling, Result, Tensors, TokenTransformer,
    TokenTransformerConfig,
};

stream_tags!(Encode, Train);

fn main() -> Result<()> {
    let args = support::Arguments::parse(
        "A frozen encoder encodes batch N + 1 while a model trains on batch N.",
        support::MEASURED_CUBLASLT,
    );
    let gpu = support::device()?;
    let (encode, train) = (gpu.stream::<Encode>()?, gpu.stream::<Train>()?);
    let ([size, patch, width, heads, depth], images, items) =
        support::sized(gpu, ([224, 16, 768, 12, 12], 32, 100), ([32, 8, 16, 2, 2], 2, 6));
    let (images, items, products) = (args.batch(images), args.steps(items), args.products(gpu)?);
    let shape = EncoderConfig::default()
        .with_image_size(size)
        .with_patch_size(patch)
        .with_class_token(false)
        .with_embed_dim(width)
        .with_num_heads(heads)
        .with_depth(depth)
        .with_num_classes(0)
        .with_norm_eps(1e-6)
        .with_gelu(Gelu::Tanh)
        .with_pooling(Pooling::Mean);
    let classes = support::sized(gpu, 1000, 10);
    let config = TokenTransformerConfig::default()
        .with_input_dim(width)
        .with_embed_dim(width)
        .with_num_heads(heads)
        .with_depth(4)
        .with_num_classes(classes);

    // Some batches that stay on the device. A program would upload new ones to where these are
    // copied.
    let sets: Vec<_> = (0..4).map(|n| support::numbers(images * 3 * size * size, n)).collect();
    let labels: Vec<i32> = (0..images).map(|i| (i % config.num_classes) as i32).collect();

    let (models, data) = ((shape, config, products), (&sets[..], &labels[..]));
    let timeline = args.timeline(gpu)?;
    let serial = learn(&args, (&train, &train), models, data, 1, items, &Timeline::disabled())?;
    let overlapped = learn(&args, (&encode, &train), models, data, args.slots(2), items, &timeline)?;
    println!("{images} images of {size} x {size} a batch, an encoder of {depth} blocks, a model of 4, width {width}");
    support::compare(gpu, serial, overlapped, items);
    args.finish(&timeline)
}

/// Trains a new model, and returns how long it took and the weights.
fn learn<A: LiveBrand, B: LiveBrand>(
    args: &support::Arguments,
    (encode, train): (&Stream<A>, &Stream<B>),
    (shape, config, products): (EncoderConfig, TokenTransformerConfig, MatmulBackend),
    (sets, labels): (&[Vec<f32>], &[i32]),
    slots: usize,
    items: usize,
    timeline: &Timeline,
) -> Result<(std::time::Duration, Tensors)> {
    let mut encoder = ImageEncoder::<_, bf16>::new(encode, shape, 1)?;
    let mut model = TokenTransformer::<_, bf16>::new(train, config, 2)?;
    encoder.set_matmul_backend(products);
    model.set_matmul_backend(products);
    let mut slots = (0..slots).map(|_| Encoded::new(&encoder, labels.len())).collect::<Result<Ring<_>>>()?;
    let sets = sets.iter().map(|set| encode.upload_blocking(set)).collect::<thalweg::Result<Vec<_>>>()?;
    let labels = encode.upload_blocking(labels)?;
    let mut go = |items, timeline: &Timeline| {
        encoder_decoder(
            &mut encoder,
            &mut model,
            &mut slots,
            items,
            |s, n, batch| {
                s.copy(&sets[n % sets.len()], &mut batch.pixels)?;
                Ok(s.copy(&labels, &mut batch.labels)?)
            },
            |_, loss| {
                drop(loss); // `loss.item()` would make the host wait
                Ok(())
            },
            timeline,
        )
    };
    go(0..4, &Timeline::disabled())?; // makes the memory, and captures the graphs
    encode.synchronize()?;
    train.synchronize()?;
    let (time, ()) = args.timed(timeline, |timeline| {
        go(4..4 + items, timeline)?;
        encode.synchronize()?;
        Ok(train.synchronize()?)
    })?;
    Ok((time, model.tensors()?))
}
