//! Trains on a data set that stays on the device: it is uploaded once, and each step gathers its
//! batch there, in a new order in each epoch. No byte of it crosses the bus again.
//!
//! ```text
//! from the host   | upload 0 | train 0 | upload 1 | train 1 |          by `step`, on one stream
//! on the device   | gather 0 | train 0 | gather 1 | train 1 |          by copies within the device
//! ```
//!
//! ```text
//! cargo run --release -p thalweg-train --example resident -- --timeline resident.svg
//! ```
//!
//! It leaves the bus to others, and needs the memory: use `texture_prefetch` or `disk_to_model` for
//! a data set that is larger than that of the device. It is not faster by itself: on an H200 it
//! takes 386 steps/s, and uploads of 492 kB a step 413, because it enqueues copies for each
//! sequence. Both runs learn the same weights, bit for bit.

mod support;

use thalweg::simt::bf16;
use thalweg::{Activity, DeviceBuffer, On, Stream, Timeline, stream_tags};
use thalweg_train::{DeviceBatch, Result, TokenBatch, TokenTransformer, TokenTransformerConfig};

stream_tags!(Train);

/// The sequences of a data set and of a batch, the tokens of each, and the numbers of a token.
#[derive(Clone, Copy)]
struct Shape {
    sequences: usize,
    batch: usize,
    tokens: usize,
    inputs: usize,
}

/// A data set: tokens, positions and classes, one sequence after another.
struct Data<F, I> {
    tokens: F,
    position: F,
    labels: I,
}

type OnHost = Data<Vec<f32>, Vec<i32>>;
type OnDevice = Data<On<Train, DeviceBuffer<f32>>, On<Train, DeviceBuffer<i32>>>;
type Model = TokenTransformer<Train, bf16>;

impl OnHost {
    fn new(Shape { sequences, tokens, inputs, .. }: Shape) -> Self {
        Self {
            tokens: support::numbers(sequences * tokens * inputs, 1),
            position: support::numbers(sequences * tokens * 2, 2),
            labels: (0..sequences as i32).map(|i| i % 10).collect(),
        }
    }

    /// Packs a batch on the host, and takes a step, which uploads it.
    fn step(&self, model: &mut Model, shape: Shape, places: &[usize], ends: &[i32]) -> Result<()> {
        let rows = |data: &[f32], n: usize| -> Vec<f32> {
            places.iter().flat_map(|&place| &data[place * n..(place + 1) * n]).copied().collect()
        };
        let labels: Vec<i32> = places.iter().map(|&place| self.labels[place]).collect();
        let (tokens, position) =
            (rows(&self.tokens, shape.tokens * shape.inputs), rows(&self.position, 2 * shape.tokens));
        let batch = TokenBatch { tokens: &tokens, position: &position, cu_seqlens: ends, labels: &labels };
        drop(model.step(&batch)?); // `item` of the loss would make the host wait
        Ok(())
    }

    fn upload(&self, s: &Stream<Train>) -> Result<OnDevice> {
        Ok(Data {
            tokens: s.upload_blocking(&self.tokens)?,
            position: s.upload_blocking(&self.position)?,
            labels: s.upload_blocking(&self.labels)?,
        })
    }
}

impl OnDevice {
    /// Copies the sequences of a batch together.
    fn gather(&self, s: &Stream<Train>, shape: Shape, places: &[usize], to: &mut Self) -> thalweg::Result<()> {
        let [tokens, position] = [shape.tokens * shape.inputs, 2 * shape.tokens];
        for (k, &place) in places.iter().enumerate() {
            let (from, into) = (place * tokens..(place + 1) * tokens, k * tokens..(k + 1) * tokens);
            s.copy(self.tokens.slice(from)?, to.tokens.slice_mut(into)?)?;
            let (from, into) = (place * position..(place + 1) * position, k * position..(k + 1) * position);
            s.copy(self.position.slice(from)?, to.position.slice_mut(into)?)?;
            s.copy(self.labels.slice(place..=place)?, to.labels.slice_mut(k..=k)?)?;
        }
        Ok(())
    }
}

/// The sequences of each step: in each epoch all of them, in another order.
fn places(shape: Shape, step: usize) -> Vec<usize> {
    let first = step * shape.batch;
    let place = |i: usize| {
        let (epoch, at) = (i / shape.sequences, i % shape.sequences);
        // Both factors are odd and the number of sequences is a power of two, so each comes once.
        (at * (2 * epoch + 5) + 7 * epoch) % shape.sequences
    };
    (first..first + shape.batch).map(place).collect()
}

fn main() -> Result<()> {
    let args = support::Arguments::parse("Trains on a data set that stays on the device.", support::MEASURED);
    let gpu = support::device()?;
    let train = gpu.stream::<Train>()?;
    let (sequences, batch, tokens, steps, width, depth) =
        support::sized(gpu, (4096, 32, 256, 100, 256, 2), (16, 4, 8, 8, 8, 1));
    let (batch, steps) = (args.batch(batch), args.steps(steps));
    let config =
        TokenTransformerConfig::default().with_embed_dim(width).with_num_heads((width / 64).max(2)).with_depth(depth);
    let shape = Shape { sequences, batch, tokens, inputs: config.input_dim };
    let ends: Vec<i32> = (0..=batch).map(|i| (i * tokens) as i32).collect();

    let host = OnHost::new(shape);
    let run = |step: &mut dyn FnMut(&mut Model, usize, &Timeline) -> Result<()>, timeline: &Timeline| {
        let mut model = Model::new(&train, config, 1)?;
        (0..4).try_for_each(|n| step(&mut model, n, &Timeline::disabled()))?; // makes the memory, and captures a graph
        args.timed(timeline, |timeline| {
            (4..4 + steps).try_for_each(|n| step(&mut model, n, timeline))?;
            model.tensors() // waits for all steps
        })
    };
    let uploads = run(&mut |model, n, _| host.step(model, shape, &places(shape, n), &ends), &Timeline::disabled())?;

    let all = host.upload(&train)?;
    let mut own: OnDevice = Data {
        tokens: train.alloc(batch * tokens * shape.inputs)?,
        position: train.alloc(batch * tokens * 2)?,
        labels: train.alloc(batch)?,
    };
    let cu_seqlens = train.upload_blocking(&ends)?;
    let timeline = args.timeline(gpu)?;
    let mut step = |model: &mut Model, n: usize, timeline: &Timeline| {
        timeline.span(&train, Activity::Copy, "gather", || all.gather(&train, shape, &places(shape, n), &mut own))?;
        let Data { tokens, position, labels } = &own;
        let batch = DeviceBatch { tokens, position, cu_seqlens: &cu_seqlens, labels, padded: false };
        let mut loss = None;
        timeline.span(&train, Activity::Compute, "train", || {
            loss = Some(model.step_on(&batch));
            Ok(())
        })?;
        loss.transpose().map(drop)
    };
    let resident = run(&mut step, &timeline)?;
    let bytes = 4 * batch * (tokens * (shape.inputs + 2) + 1);
    println!(
        "{sequences} sequences of {tokens} tokens, {batch} a step: {:.1} kB a step stay on the device",
        bytes as f64 / 1e3
    );
    support::compare_named(gpu, ("uploads", uploads), ("on the device", resident), steps);
    args.finish(&timeline)
}
