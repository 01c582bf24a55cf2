//! Trains on the adaptive tokens of photographs: the upload of batch N + 2 and the textures,
//! scores, allocation and tokens of batch N + 1 run beside training on batch N.
//!
//! ```text
//! upload   | up 0 | up 1 | up 2    | up 3    |
//! textures        | tokens 0 | tokens 1 | tokens 2 |
//! train                      | train 0  | train 1  | train 2  |
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --features vision --example texture_prefetch -- --timeline texture_prefetch.svg
//! ```
//!
//! Each batch has labels and a query. With `--texts`, each photograph has a query, a question and
//! an answer, and the model learns to answer; with `--gate`, its query head learns, too. The host
//! never learns how many tokens a photograph got.

mod support;

use thalweg::simt::bf16;
use thalweg::{LiveBrand, Ring, Stream, Timeline, stream_tags};
use thalweg_train::overlap::{
    AskedPhotographs, AskedPhotographsOn, Photographs, PhotographsOn, texture_prefetch, texture_prefetch_texts,
};
use thalweg_train::{GateConfig, Result, Tensors, TokenTransformer, TokenTransformerConfig, VisionLanguageConfig};
use thalweg_vision::{Head, Layer, PLANES, Pipeline, Query, TokenParams};

stream_tags!(Upload, Textures, Train);

/// The numbers of a query.
const DIMENSION: usize = 32;

/// The photographs of a batch, their height and width, the batches, and the model.
#[derive(Clone, Copy)]
struct Shape {
    images: usize,
    size: [u32; 2],
    items: usize,
    config: TokenTransformerConfig,
}

fn main() -> Result<()> {
    let options = [
        support::MEASURED,
        &[
            ("--texts", "learn answers to a question about each photograph, and not classes"),
            ("--gate", "the same with a gate, by which the query head learns"),
        ],
    ];
    let purpose = "Makes the tokens of the next photographs beside training on these.";
    let args = support::Arguments::parse(purpose, &options.concat());
    let (gated, texts) = (args.has("--gate"), args.has("--texts") || args.has("--gate"));
    let gpu = support::device()?;
    let (upload, textures, train) = (gpu.stream::<Upload>()?, gpu.stream::<Textures>()?, gpu.stream::<Train>()?);
    let (images, size, items, width, depth) =
        support::sized(gpu, (16, [1080, 1920], 60, 128, 2), (2, [64, 96], 6, 16, 1));
    let (images, items) = (args.batch(images), args.steps(items));
    let config = TokenTransformerConfig::default()
        .with_input_dim(PLANES)
        .with_embed_dim(width)
        .with_num_heads(2)
        .with_depth(depth);
    let shape = Shape { images, size, items, config };
    let params = support::sized(
        gpu,
        TokenParams::default().with_budget(1024),
        TokenParams::default().with_patch(16).with_budget(96).with_sides(2..=4),
    );
    let numbers = [64 * PLANES, 64, DIMENSION * 64, DIMENSION].map(|len| support::numbers(len, len as u64));
    let [w1, b1, w2, b2] = numbers.each_ref().map(Vec::as_slice);
    let head = Head::new(Layer { weight: w1, bias: b1 }, Layer { weight: w2, bias: b2 })?;
    let queries =
        (0..4).map(|n| Query::new(&support::numbers(DIMENSION, n))).collect::<thalweg_vision::Result<Vec<_>>>()?;
    let pipeline = Pipeline::new(gpu, params)?.with_query(&head, &queries[0])?;

    let timeline = args.timeline(gpu)?;
    let asked = (&pipeline, &head, &queries[..]);
    let (one, off, slots) = ((&train, &train, &train), Timeline::disabled(), args.slots(3));
    let (serial, overlapped) = if texts {
        let gate = gated.then(|| GateConfig::default().with_query_dim(DIMENSION));
        let serial = answer(&args, one, asked, shape, gate, 1, &off)?;
        (serial, answer(&args, (&upload, &textures, &train), asked, shape, gate, slots, &timeline)?)
    } else {
        let serial = run(&args, one, asked, shape, 1, &off)?;
        (serial, run(&args, (&upload, &textures, &train), asked, shape, slots, &timeline)?)
    };
    println!("{images} photographs of {} x {} a batch, width {width}, {depth} blocks", size[0], size[1]);
    support::compare(gpu, serial, overlapped, items);
    args.finish(&timeline)
}

/// Trains a new model, and returns how long it took and the weights.
fn run<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    args: &support::Arguments,
    (upload, textures, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    (pipeline, head, queries): (&Pipeline, &Head, &[Query]),
    shape: Shape,
    slots: usize,
    timeline: &Timeline,
) -> Result<(std::time::Duration, Tensors)> {
    let Shape { images, size, items, config } = shape;
    let sizes = vec![size.into(); images];
    let slots = (0..slots).map(|_| Photographs::new(upload, pipeline, &sizes));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let mut model = TokenTransformer::<_, bf16>::new(train, config, 1)?;

    // The photographs stay in page-locked memory. A program would read new ones there.
    let bytes = images * 3 * (size[0] * size[1]) as usize;
    let pixels: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251 + i / 977 % 5) as u8).collect();
    let classes: Vec<i32> = (0..images).map(|i| (i % config.num_classes) as i32).collect();
    let gpu = upload.device();
    let (pixels, classes) = upload.bind((gpu.pinned_from(&pixels)?, gpu.pinned_from(&classes)?))?;

    let mut input = |s: &Stream<U>, n: usize, batch: &mut PhotographsOn<U>| {
        s.copy_to_device(&pixels, &mut batch.rgb)?;
        s.copy_to_device(&classes, &mut batch.labels)?;
        Ok(batch.workspace.set_query(s, head, &queries[n % queries.len()])?)
    };
    let mut go = |items, timeline: &Timeline| {
        texture_prefetch(
            (upload, textures),
            &mut model,
            &mut slots,
            items,
            &mut input,
            |_, loss| {
                drop(loss); // `loss.item()` would make the host wait
                Ok(())
            },
            timeline,
        )?;
        Ok(train.synchronize()?)
    };
    go(0..4, &Timeline::disabled())?; // makes the memory, and captures the graphs
    let (time, ()) = args.timed(timeline, |timeline| go(4..4 + items, timeline))?;
    Ok((time, model.tensors()?))
}

/// The ids of a question and of an answer.
const TEXT: [usize; 2] = [32, 32];

/// Trains a new model that answers, and returns how long it took and the weights.
fn answer<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    args: &support::Arguments,
    (upload, textures, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    (pipeline, head, queries): (&Pipeline, &Head, &[Query]),
    shape: Shape,
    gate: Option<GateConfig>,
    slots: usize,
    timeline: &Timeline,
) -> Result<(std::time::Duration, Tensors)> {
    let Shape { images, size, items, config } = shape;
    let (sizes, ids) = (vec![size.into(); images], images * TEXT.iter().sum::<usize>());
    let slots = (0..slots).map(|_| AskedPhotographs::new(upload, pipeline, &sizes, ids, gate));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let config = VisionLanguageConfig::default()
        .with_input_dim(PLANES)
        .with_embed_dim(config.embed_dim)
        .with_num_heads(config.num_heads)
        .with_depth(config.depth)
        .with_text_embed_dim(config.embed_dim)
        .with_text_num_heads(config.num_heads)
        .with_text_depth(config.depth)
        .with_gate(gate);
    let mut model = TokenTransformer::<_, bf16>::answering(train, config, 1)?;

    let bytes = images * 3 * (size[0] * size[1]) as usize;
    let pixels: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251 + i / 977 % 5) as u8).collect();
    let pixels = upload.bind(upload.device().pinned_from(&pixels)?)?;
    let texts: Vec<i32> = (0..ids).map(|i| (i * 7 % 255 + 1) as i32).collect();
    let ends: Vec<i32> = (0..=images).map(|b| (b * ids / images) as i32).collect();
    let question = vec![TEXT[0] as i32; images];

    let mut input = |s: &Stream<U>, n: usize, batch: &mut AskedPhotographsOn<U>| {
        s.copy_to_device(&pixels, &mut batch.rgb)?;
        let own: Vec<_> = (0..images).map(|b| queries[(n + b) % queries.len()].clone()).collect();
        batch.set_queries(s, head, &own)?;
        batch.ask(s, [&texts, &ends, &question], None)
    };
    let mut go = |items, timeline: &Timeline| {
        let seen = |_, loss| {
            drop(loss);
            Ok(())
        };
        texture_prefetch_texts((upload, textures), &mut model, &mut slots, items, &mut input, seen, timeline)?;
        Ok(train.synchronize()?)
    };
    go(0..4, &Timeline::disabled())?; // makes the memory, and captures the graphs
    let (time, ()) = args.timed(timeline, |timeline| go(4..4 + items, timeline))?;
    Ok((time, model.tensors()?))
}
