//! Trains on batches in four parts each: forward of a part runs beside backward of the part before.
//!
//! ```text
//! forward | f 0 | f 1 | f 2 | f 3 |                  | f 0 | ...     after the update
//! train         | b 0    | b 1    | b 2    | b 3    | update |
//! ```
//!
//! A third run has a stage before: it makes the parts on the device, on a stream of its own.
//!
//! ```text
//! prepare | p 0 | p 1 | p 2 | p 3 |            | p 0 | ...           reads no weights, so it may be ahead
//! forward       | f 0 | f 1 | f 2 | f 3 |             | f 0 | ...
//! train               | b 0    | b 1    | b 2    | b 3    | update |
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --example micro_batches -- --timeline micro_batches.svg
//! ```

mod support;

use thalweg::simt::bf16;
use thalweg::{LiveBrand, Stream, Timeline, stream_tags};
use thalweg_train::overlap::{MicroBatch, micro_batches, micro_batches_from};
use thalweg_train::{Result, TokenBatch, TokenTransformer, TokenTransformerConfig};

stream_tags!(Prepare, Forward, Train);

const PARTS: usize = 4;

fn main() -> Result<()> {
    let args = support::Arguments::parse(
        "Forward of a micro-batch beside backward of the one before.",
        support::MEASURED_CUBLASLT,
    );
    let gpu = support::device()?;
    let (forward, train) = (gpu.stream::<Forward>()?, gpu.stream::<Train>()?);
    let ([sequences, tokens, width, heads, depth], steps) =
        support::sized(gpu, ([16, 256, 512, 8, 6], 50), ([2, 16, 16, 2, 2], 3));
    let (sequences, steps) = (args.batch(sequences * PARTS).div_ceil(PARTS), args.steps(steps));
    let config = TokenTransformerConfig::default().with_embed_dim(width).with_num_heads(heads).with_depth(depth);

    let rows = sequences * tokens;
    let cu_seqlens: Vec<i32> = (0..=sequences).map(|i| (i * tokens) as i32).collect();
    let part = |k: usize| {
        let labels: Vec<i32> = (0..sequences).map(|i| ((i + k) % config.num_classes) as i32).collect();
        (support::numbers(rows * config.input_dim, k as u64), support::numbers(2 * rows, 99), labels)
    };
    let parts: Vec<_> = (0..PARTS).map(part).collect();
    let batches: Vec<_> = parts
        .iter()
        .map(|(tokens, position, labels)| TokenBatch { tokens, position, cu_seqlens: &cu_seqlens, labels })
        .collect();

    fn run<S: LiveBrand>(
        forward: &Stream<S>,
        model: &mut TokenTransformer<Train, bf16>,
        slots: usize,
        (batches, steps): (&[TokenBatch<'_>], usize),
        timeline: &Timeline,
    ) -> Result<thalweg_train::Tensors> {
        for _ in 0..steps {
            let loss = micro_batches(forward, model, slots, batches, timeline)?;
            drop(loss); // `loss.item()` would make the host wait
        }
        model.tensors() // waits for all steps
    }
    let work = (&batches[..], steps);
    let mut model = TokenTransformer::new(&train, config, 1)?;
    model.set_matmul_backend(args.products(gpu)?);
    run(&train, &mut model, 1, (&batches, 1), &Timeline::disabled())?; // the first step makes the memory
    let serial = args.timed(&Timeline::disabled(), |timeline| run(&train, &mut model, 1, work, timeline))?;

    let timeline = args.timeline(gpu)?;
    let mut model = TokenTransformer::new(&train, config, 1)?;
    model.set_matmul_backend(args.products(gpu)?);
    let slots = args.slots(3);
    run(&forward, &mut model, slots, (&batches, 1), &Timeline::disabled())?;
    let overlapped = args.timed(&timeline, |timeline| run(&forward, &mut model, slots, work, timeline))?;
    println!("{PARTS} parts of {sequences} sequences of {tokens} tokens, width {width}, {depth} blocks");
    support::compare(gpu, serial, overlapped.clone(), steps);

    // The parts stay on the device as a set of records, and the stage before takes them from there.
    let prepare = gpu.stream::<Prepare>()?;
    let records = parts
        .iter()
        .map(|(tokens, position, labels)| {
            let numbers = (prepare.upload_blocking(tokens)?, prepare.upload_blocking(position)?);
            Ok((numbers, prepare.upload_blocking(&cu_seqlens)?, prepare.upload_blocking(labels)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut model = TokenTransformer::<_, bf16>::new(&train, config, 1)?;
    model.set_matmul_backend(args.products(gpu)?);
    let mut run = |steps: usize, timeline: &Timeline| {
        for _ in 0..steps {
            let input = |s: &Stream<Prepare>, k: usize, batch: MicroBatch<'_, Prepare>| {
                let ((tokens, position), cu_seqlens, labels) = &records[k];
                s.copy(tokens, batch.tokens)?;
                s.copy(position, batch.position)?;
                s.copy(cu_seqlens, batch.cu_seqlens)?;
                Ok(s.copy(labels, batch.labels)?)
            };
            micro_batches_from((&prepare, &forward), &mut model, slots, &[[rows, sequences]; PARTS], input, timeline)?;
        }
        model.tensors()
    };
    run(1, &Timeline::disabled())?;
    let prepared = args.timed(&Timeline::disabled(), |timeline| run(steps, timeline))?;
    support::compare_named(gpu, ("from the host", overlapped), ("made on the device", prepared), steps);
    args.finish(&timeline)
}
