//! Answers requests by a vision-language model: while the text about one photograph is written, the
//! next ones are encoded, cut into tokens and uploaded, each stage on a stream of its own.
//!
//! ```text
//! upload  | up 0 | up 1  | up 2     | up 3     |
//! prepare        | cut 0 | cut 1    | cut 2    |
//! encode                 | encode 0 | encode 1 | encode 2 |
//! decode                            | text 0           | text 1           |
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --example vlm_pipeline -- --timeline vlm_pipeline.svg
//! ```
//!
//! On a GPU the encoder is as large as ViT-B, and the decoder has four blocks. The weights are
//! random.

mod support;

use std::time::Duration;

use thalweg::overlap::stages;
use thalweg::simt::bf16;
use thalweg::{Activity, LiveBrand, Ring, Stream, Timeline, stream_tags};
use thalweg_kernels::train::patches;
use thalweg_train::overlap::{Request, vlm_pipeline};
use thalweg_train::{Error, Gelu, Result, Tensors, TextDecoder, VisionEncoder, VisionLanguageConfig};

stream_tags!(Upload, Prepare, Encode, Decode);

/// The state that all runs share.
struct Work {
    weights: Tensors,
    size: usize,
    patch: usize,
    /// The tokens of a text, and the requests.
    count: usize,
    requests: usize,
}

fn main() -> Result<()> {
    let args = support::Arguments::parse(
        "Answers requests: upload, preparation, encoder and decoder run at once.",
        support::MEASURED,
    );
    let gpu = support::device()?;
    let ([size, patch, width, heads, depth, text_depth], [vocabulary, count, requests]) =
        support::sized(gpu, ([224, 16, 768, 12, 12, 4], [32_000, 16, 40]), ([32, 8, 16, 2, 2, 1], [50, 5, 8]));
    let (count, requests) = (args.batch(count), args.steps(requests));
    let config = VisionLanguageConfig::default()
        .with_input_dim(3 * patch * patch)
        .with_embed_dim(width)
        .with_num_heads(heads)
        .with_depth(depth)
        .with_text_embed_dim(width)
        .with_text_num_heads(heads)
        .with_text_depth(text_depth)
        .with_vocab_size(vocabulary)
        .with_max_tokens(64.max(count + 2))
        .with_norm_eps(1e-5)
        .with_gelu(Gelu::Tanh);
    let work = Work { weights: config.init(7)?, size, patch, count, requests };
    let one = gpu.stream::<Encode>()?;
    let streams = (&gpu.stream::<Upload>()?, &gpu.stream::<Prepare>()?, &one, &gpu.stream::<Decode>()?);
    let serial = run(&args, &work, (&one, &one, &one, &one), 1, &Timeline::disabled())?;
    let timeline = args.timeline(gpu)?;
    let overlapped = run(&args, &work, streams, args.slots(4), &timeline)?;
    assert!(serial.1 == overlapped.1, "the texts differ from those of one stream");
    let rate = |time: Duration| requests as f64 / time.as_secs_f64();
    println!(
        "{requests} photographs of {size} x {size}, {count} tokens each: one stream {:.1} requests/s, overlapped {:.1} requests/s{}; \
         the texts are the same",
        rate(serial.0),
        rate(overlapped.0),
        support::gain(gpu, serial.0, overlapped.0)
    );
    args.finish(&timeline)
}

/// Answers all requests. Returns how long it took, and the texts.
fn run<U: LiveBrand, P: LiveBrand, A: LiveBrand, B: LiveBrand>(
    args: &support::Arguments,
    work: &Work,
    (upload, prepare, encode, decode): (&Stream<U>, &Stream<P>, &Stream<A>, &Stream<B>),
    slots: usize,
    timeline: &Timeline,
) -> Result<(Duration, Vec<Vec<i32>>)> {
    let &Work { ref weights, size, patch, count, requests } = work;
    let mut encoder = VisionEncoder::<_, bf16>::from_tensors(encode, weights)?;
    let mut decoder = TextDecoder::<_, bf16>::from_tensors(decode, weights)?;
    let (across, pixels) = (size / patch, 3 * size * size);
    let rows = across * across;
    let slots = (0..slots).map(|_| Request::new(&encoder, pixels, rows, count));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    // Photographs in page-locked memory, and the places of the patches on the device.
    let photos = (0..4).map(|n| upload.device().pinned_from(&support::numbers(pixels, n)));
    let photos = upload.bind(photos.collect::<thalweg::Result<Vec<_>>>()?)?;
    let part = |n: usize| (n as f32 + 0.5) / across as f32;
    let places: Vec<f32> = (0..rows).flat_map(|n| [part(n / across), part(n % across)]).collect();
    let places = prepare.upload_blocking(&places)?;

    let mut go = |items: std::ops::Range<usize>, timeline: &Timeline| {
        let mut texts = Vec::new();
        let before = stages::<_, Error>(&mut slots)
            .step(upload, Activity::Upload, |s, n, request| {
                (request.rows, request.count) = (rows, count);
                request.prompt.clear();
                request.prompt.extend([1, 2 + n as i32 % 7]);
                Ok(s.copy_to_device(&photos[n % photos.len()], &mut request.pixels)?)
            })
            .step(prepare, Activity::Compute, |s, _, request| {
                s.copy(&places, &mut request.position)?;
                let extents = [1, 3, size as u32, patch as u32];
                Ok(patches(s, extents, &request.pixels, &mut request.tokens)?)
            });
        let seen = |_, text| {
            texts.push(text); // `text.item()` would make the host wait
            Ok(())
        };
        vlm_pipeline(before, &mut encoder, &mut decoder, items, seen, timeline)?;
        texts.into_iter().map(|text| text.get()).collect::<Result<Vec<_>>>()
    };
    go(0..2, &Timeline::disabled())?; // makes the memory
    args.timed(timeline, |timeline| go(0..requests, timeline))
}
