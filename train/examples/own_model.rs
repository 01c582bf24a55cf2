//! Trains a classifier of your own, on one rank or several: two linear layers with GELU between
//! them learn in which of four rings around the center a point lies. At the end it checks what they
//! say of points that nobody has learned.
//!
//! ```text
//! compute | forward | gradients of layer 2 | of layer 1 |      | update bucket 0 | update bucket 1 |
//! reduce                                   | bucket 0   | bucket 1 |
//! ```
//!
//! Alone:          `cargo run --release -p thalweg-train --example own_model`
//! Two processes:  `thalweg launch -n 2 -- target/release/examples/own_model`
mod support;

use thalweg::stream_tags;
use thalweg_collective::{BucketSizes, Gradients, Mean, World};
use thalweg_train::layers::{BackwardPass, BackwardScratchOn, CrossEntropy, ForwardPass, Gelu, Linear, WeightsOn};
use thalweg_train::{AdamW, AdamWStateOn, MatmulOn, ParameterLayout, Result, overlap::BucketSink};

stream_tags!(Compute, Reduce);

const ROWS: usize = 128; // the points of a batch of a rank
const HIDDEN: usize = 64; // the numbers between the layers
const RINGS: usize = 4;

fn main() -> Result<()> {
    let purpose = "own_model: trains a small classifier of layers, alone or by `thalweg launch` on several ranks";
    let arguments = support::Arguments::parse(purpose, &[support::STEPS, support::CUBLASLT]);
    let (world, steps) = (World::from_env()?, arguments.steps(300) as u64);
    let (rank, size, device) = (world.rank() as u64, world.size() as u64, world.device()?);
    let (s, mut comm) = (device.stream::<Compute>()?, world.comm(device.stream::<Reduce>()?)?);
    let backend = arguments.products(device)?;

    let mut layout = ParameterLayout::default();
    let layer1 = Linear::new(&mut layout, "layer1", 2, HIDDEN)?;
    let layer2 = Linear::new(&mut layout, "layer2", HIDDEN, RINGS)?;
    let (rings, gelu, options) = (CrossEntropy::new(RINGS), Gelu::Tanh, AdamW::default().with_lr(0.01));
    let mut weights = WeightsOn::<_, f32>::new(&s, &layout.init(7)?)?; // the same on every rank
    let (mut state, mut matmul) = (AdamWStateOn::new(&s, layout.len())?, MatmulOn::new(&s, backend)?);
    let mut scratch = BackwardScratchOn::new(&s, backend, &layout)?;
    let buckets = BucketSizes::default().with_first(1200).with_others(1200); // bytes: those of a layer
    let mut gradients = Gradients::new(&s, &layout.lens(), buckets)?;

    let rows = |columns| s.alloc::<f32>(ROWS * columns);
    let (mut x, mut labels, mut losses) = (rows(2)?, s.alloc(ROWS)?, rows(1)?);
    let (mut hidden, mut activated, mut dhidden) = (rows(HIDDEN)?, rows(HIDDEN)?, rows(HIDDEN)?);
    let (mut logits, mut dlogits) = (rows(RINGS)?, rows(RINGS)?);
    for step in 0..=steps {
        let points = support::numbers(2 * ROWS, step * size + rank);
        let ring = |p: &[f32]| (4.0 * p[0].hypot(p[1])).min(3.0) as i32;
        let expected: Vec<i32> = points.chunks(2).map(ring).collect();
        s.write_blocking(&points, &mut x)?;
        s.write_blocking(&expected, &mut labels)?;
        let mut f = ForwardPass::new(&s, weights.view(), &mut matmul);
        layer1.forward(&mut f, ROWS, &x, &mut hidden)?;
        gelu.forward(&s, &hidden, &mut activated)?;
        layer2.forward(&mut f, ROWS, &activated, &mut logits)?;
        rings.forward(&s, ROWS, &logits, &labels, &mut losses, &mut dlogits)?;
        if step == steps {
            // If a rank is gone, this read fails, and `failure_or` says which one.
            let logits = s.read_blocking(&logits).map_err(|error| comm.failure_or(error))?;
            let says = |logits: &[f32]| (0..RINGS).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            let right = logits.chunks(RINGS).zip(&expected).filter(|(l, e)| says(l) == Some(**e as usize)).count();
            println!("rank {rank} of {size} on {device}: {right} of {ROWS} points are in the ring that it says");
            assert!(steps < 300 || 10 * right > 9 * ROWS, "it has learned the rings");
            break;
        }
        options.prepare(&s, step, &mut state)?;
        let (mut pass, grads) = comm.backward(Mean, gradients)?;
        let mut sink = BucketSink::new(&layout, &mut pass, grads);
        let mut b = BackwardPass::new(&s, weights.view(), &mut sink, &mut scratch);
        layer2.backward_weight(&mut b, ROWS, &activated, &dlogits)?; // its bucket is reduced beside the rest
        layer2.backward_input(&mut b, ROWS, &dlogits, &mut dhidden)?;
        gelu.backward(&s, &hidden, &mut dhidden)?;
        layer1.backward_weight(&mut b, ROWS, &x, &dhidden)?;
        sink.finish()?;
        gradients =
            pass.finish(|range, means| -> Result<()> { Ok(state.update(&s, range, means, weights.values_mut())?) })?;
    }
    Ok(comm.synchronize()?)
}
