//! Times the overlap patterns of training beside their serial forms.
//!
//! ```text
//! cargo bench -p thalweg-train --bench overlap [-- NAME...] [--batch 8,32,128] [--cublaslt]
//! ```
//!
//! - `encoder_decoder`: a frozen encoder of the shape of ViT-B (bf16, 224 x 224) and a model of 4
//!   blocks. Call by call on one stream, as graphs on one stream, and as graphs on two streams.
//! - `micro_batches`: a batch in 4 parts, on one stream and on two. The model has 6 blocks of width
//!   768 and sequences of 196 tokens.
//! - `augment_train`: 64 images a batch, augmented to 224 x 224, and a model of 1 block of width
//!   128 over patches. The side of the images is searched so that the upload takes as long as the
//!   rest.
//! - `texture_prefetch`: 16 photographs of 1080p a batch. The budget of tokens and the number of
//!   blocks are searched so that the upload takes as long as the rest.
//!
//! Each number is the median of five runs, after one run that is not timed. The CPU device takes
//! small shapes, which check that the benchmark works.

mod photographs;
#[path = "../../examples/support/mod.rs"]
mod support;

use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{LiveBrand, Ring, Stream, Timeline, stream_tags};
use thalweg_train::overlap::{Encoded, EncodedOn, encoder_decoder, micro_batches};
use thalweg_train::{
    EncoderConfig, Gelu, ImageEncoder, MatmulBackend, Pooling, Result, TokenBatch, TokenTransformer,
    TokenTransformerConfig,
};

stream_tags!(First, Second, Third);

const RUNS: usize = 5;
const NAMES: [&str; 4] = ["encoder_decoder", "micro_batches", "augment_train", "texture_prefetch"];

/// Returns the steps in a second: the median over some runs of `steps` steps.
fn rate(steps: usize, mut run: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    run(steps)?;
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        run(steps)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(steps as f64 / times[RUNS / 2])
}

/// The shapes of a benchmark.
struct Shapes {
    products: MatmulBackend,
    encoder: EncoderConfig,
    head: TokenTransformerConfig,
    deep: TokenTransformerConfig,
    tokens: usize,
    steps: usize,
}

/// Returns the rates at each number of images, for each of `forms`: call by call or as graphs.
fn encode_and_train<A: LiveBrand, B: LiveBrand>(
    first: &Stream<A>,
    second: &Stream<B>,
    shapes: &Shapes,
    batches: &[usize],
    count: usize,
    forms: &[bool],
) -> Result<Vec<Vec<f64>>> {
    let mut encoder = ImageEncoder::<_, bf16>::new(first, shapes.encoder, 1)?;
    let mut model = TokenTransformer::<_, bf16>::new(second, shapes.head, 2)?;
    encoder.set_matmul_backend(shapes.products);
    model.set_matmul_backend(shapes.products);
    let size = shapes.encoder.image_size;
    let mut measure = |images: usize, graphs| {
        encoder.set_graphs(graphs);
        model.set_graphs(graphs);
        let mut slots = (0..count).map(|_| Encoded::new(&encoder, images)).collect::<Result<Ring<_>>>()?;
        let sets = (0..4).map(|n| first.upload_blocking(&support::numbers(images * 3 * size * size, n)));
        let sets = sets.collect::<thalweg::Result<Vec<_>>>()?;
        let labels: Vec<i32> = (0..images).map(|i| (i % shapes.head.num_classes) as i32).collect();
        let labels = first.upload_blocking(&labels)?;
        rate(shapes.steps, |steps| {
            let input = |s: &Stream<A>, n: usize, batch: &mut EncodedOn<A>| {
                s.copy(&sets[n % 4], &mut batch.pixels)?;
                Ok(s.copy(&labels, &mut batch.labels)?)
            };
            encoder_decoder(
                &mut encoder,
                &mut model,
                &mut slots,
                0..steps,
                input,
                |_, _| Ok(()),
                &Timeline::disabled(),
            )?;
            first.synchronize()?;
            Ok(second.synchronize()?)
        })
    };
    batches.iter().map(|&images| forms.iter().map(|&graphs| measure(images, graphs)).collect()).collect()
}

/// Returns the rates at each number of sequences.
fn accumulate<A: LiveBrand, B: LiveBrand>(
    first: &Stream<A>,
    second: &Stream<B>,
    shapes: &Shapes,
    batches: &[usize],
    slots: usize,
) -> Result<Vec<f64>> {
    let mut model = TokenTransformer::<_, bf16>::new(second, shapes.deep, 2)?;
    model.set_matmul_backend(shapes.products);
    let mut measure = |sequences: usize| {
        let part = sequences.div_ceil(4);
        let rows = part * shapes.tokens;
        let (tokens, position) = (support::numbers(rows * shapes.deep.input_dim, 1), support::numbers(2 * rows, 2));
        let cu_seqlens: Vec<i32> = (0..=part).map(|i| (i * shapes.tokens) as i32).collect();
        let labels: Vec<i32> = (0..part).map(|i| (i % shapes.deep.num_classes) as i32).collect();
        let batch = TokenBatch { tokens: &tokens, position: &position, cu_seqlens: &cu_seqlens, labels: &labels };
        rate(shapes.steps, |steps| {
            for _ in 0..steps {
                micro_batches(first, &mut model, slots, &[batch; 4], &Timeline::disabled())?;
            }
            Ok(second.synchronize()?)
        })
    };
    batches.iter().map(|&sequences| measure(sequences)).collect()
}

fn main() -> Result<()> {
    let device = support::device()?;
    let given: Vec<String> = std::env::args().skip(1).collect();
    let wants = |name: &str| {
        let named = |word: &String| NAMES.contains(&word.as_str());
        given.iter().any(|word| word == name) || !given.iter().any(named)
    };
    let listed = given.iter().position(|word| word == "--batch").and_then(|i| given.get(i + 1));
    let batches: Vec<usize> = match listed {
        Some(list) => list.split(',').filter_map(|n| n.parse().ok()).collect(),
        None => support::sized(device, vec![8, 32, 128], vec![4]),
    };
    let (first, second) = (device.stream::<First>()?, device.stream::<Second>()?);
    let ([size, patch, width, heads, depth], steps) =
        support::sized(device, ([224, 16, 768, 12, 12], 24), ([32, 8, 16, 2, 2], 3));
    let cublaslt = given.iter().any(|word| word == "--cublaslt");
    let shapes = Shapes {
        products: if cublaslt { MatmulBackend::cublaslt(device)? } else { MatmulBackend::default() },
        encoder: EncoderConfig::default()
            .with_image_size(size)
            .with_patch_size(patch)
            .with_class_token(false)
            .with_embed_dim(width)
            .with_num_heads(heads)
            .with_depth(depth)
            .with_num_classes(0)
            .with_norm_eps(1e-6)
            .with_gelu(Gelu::Tanh)
            .with_pooling(Pooling::Mean),
        head: TokenTransformerConfig::default()
            .with_input_dim(width)
            .with_embed_dim(width)
            .with_num_heads(heads)
            .with_depth(4)
            .with_num_classes(1000),
        deep: TokenTransformerConfig::default().with_embed_dim(width).with_num_heads(heads).with_depth(depth / 2),
        tokens: (size / patch).pow(2),
        steps,
    };
    if wants("encoder_decoder") {
        let one = encode_and_train(&second, &second, &shapes, &batches, 1, &[false, true])?;
        let two = encode_and_train(&first, &second, &shapes, &batches, 2, &[true])?;
        for ((batch, one), two) in batches.iter().zip(one).zip(two) {
            let (calls, graphs, two) = (one[0], one[1], two[0]);
            println!(
                "encoder_decoder, batch {batch:4}: calls {calls:7.1}, graphs {graphs:7.1}, two streams {two:7.1} steps/s; gain {:.3}",
                two / graphs
            );
        }
    }
    if wants("micro_batches") {
        let one = accumulate(&second, &second, &shapes, &batches, 1)?;
        let two = accumulate(&first, &second, &shapes, &batches, 3)?;
        for ((batch, one), two) in batches.iter().zip(one).zip(two) {
            println!(
                "micro_batches,   batch {batch:4}: one stream {one:7.1}, two streams {two:7.1} steps/s; gain {:.3}",
                two / one
            );
        }
    }
    let streams = (&first, &device.stream::<Third>()?, &second);
    if wants("augment_train") {
        photographs::augmentation(device, streams)?;
    }
    if wants("texture_prefetch") {
        photographs::photographs(device, streams)?;
    }
    Ok(())
}
