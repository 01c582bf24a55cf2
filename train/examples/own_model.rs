//! Trains a model of your own on several ranks: two layers, written with the products and kernels
//! of `thalweg_kernels`.
//!
//! ```text
//! compute | forward | gradients of layer 2 | of layer 1 |      | update bucket 0 | update bucket 1 |
//! reduce                                   | bucket 0   | bucket 1 |
//! ```
//!
//! Alone:          `cargo run --release -p thalweg-train --example own_model -- points.safetensors`
//! Two processes:  `thalweg launch -n 2 -- target/release/examples/own_model points.safetensors`
//!
//! The file is the checkpoint. If it is there, the run goes on from it, with the bits that it would
//! have had. So when a rank is gone, start the same command again. A second argument is the number
//! of steps.

mod support;

use std::ops::Range;
use std::path::Path;

use thalweg::{DeviceBuffer, LiveBrand, On, Stream, stream_tags};
use thalweg_collective::overlap::data_parallel;
use thalweg_collective::{BucketSizes, Comm, Gradients, Mean, World};
use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut, matmul};
use thalweg_kernels::train::{GROUPS, SETTINGS, adamw, cross_entropy, gelu, gelu_backward, settings, sum_rows};
use thalweg_train::{Result, Tensors};

stream_tags!(Compute, Reduce);

/// The numbers of a point, of the hidden layer, and the classes.
const INPUTS: usize = 2;
const HIDDEN: usize = 64;
const CLASSES: usize = 4;
/// The points of a step, of each rank.
const BATCH: usize = 128;
/// The parameters, which lie in one buffer: weight and bias of both layers. A bucket has a layer.
const LENS: [usize; 4] = [HIDDEN * INPUTS, HIDDEN, CLASSES * HIDDEN, CLASSES];

type Buffer = On<Compute, DeviceBuffer<f32>>;

struct Model {
    s: Stream<Compute>,
    step: i32,
    /// Weights and both moments of the optimizer.
    state: [Buffer; 3],
    settings: Buffer,
    // What the passes keep.
    x: Buffer,
    labels: On<Compute, DeviceBuffer<i32>>,
    hidden: Buffer,
    activated: Buffer,
    logits: Buffer,
    losses: Buffer,
    dlogits: Buffer,
    dhidden: Buffer,
    parts: Buffer,
}

impl Model {
    /// Makes a model, or reads that of a checkpoint.
    fn new(s: Stream<Compute>, checkpoint: &Path) -> Result<Self> {
        let n = LENS.iter().sum();
        let (step, state) = if checkpoint.exists() {
            let file = Tensors::load(checkpoint)?;
            let read = |name| -> Result<Buffer> { Ok(s.upload_blocking(file.f32(name, &[n])?)?) };
            let step = file.value("step")?.ok_or_else(|| file.wrong("it has no `step`".into()))?;
            (step, [read("weights")?, read("first")?, read("second")?])
        } else {
            let weights: Vec<f32> = (0..n).map(|i| 0.4 * number(i as u64)).collect();
            (0, [s.upload_blocking(&weights)?, s.alloc_zeroed(n)?, s.alloc_zeroed(n)?])
        };
        let layer = |columns| s.alloc::<f32>(BATCH * columns);
        Ok(Self {
            s,
            step,
            state,
            settings: s.alloc(SETTINGS)?,
            x: layer(INPUTS)?,
            labels: s.alloc(BATCH)?,
            hidden: layer(HIDDEN)?,
            activated: layer(HIDDEN)?,
            logits: layer(CLASSES)?,
            losses: layer(1)?,
            dlogits: layer(CLASSES)?,
            dhidden: layer(HIDDEN)?,
            parts: s.alloc(GROUPS * HIDDEN)?,
        })
    }

    /// Takes a step, of which this rank has a batch.
    fn step<C: LiveBrand>(
        &mut self,
        comm: &mut Comm<C>,
        gradients: Gradients<Compute, f32>,
    ) -> Result<Gradients<Compute, f32>> {
        let s = self.s;
        let (x, labels) = points(self.step as u64 * comm.size() as u64 + comm.rank() as u64);
        s.write_blocking(&x, &mut self.x)?;
        s.write_blocking(&labels, &mut self.labels)?;
        self.step += 1;
        let ([b1, b2], t) = ([0.9f32, 0.999], self.step);
        let (rate, root) = (0.01 / (1.0 - b1.powi(t)), 1.0 / (1.0 - b2.powi(t)).sqrt());
        settings(&s, 1.0, rate, root, b1, b2, 1e-8, &mut self.settings)?;

        data_parallel(
            comm,
            Mean,
            gradients,
            self,
            |model, pass, grads| {
                model.forward()?;
                let [mut w1, mut b1, mut w2, mut b2] = <[_; 4]>::try_from(grads).expect("a gradient of each parameter");
                let (rows, none) = (BATCH as u32, Epilogue::default());
                let dlogits = Matrix::new(&model.dlogits, BATCH, CLASSES);
                sum_rows(&s, [rows, CLASSES as u32], false, &model.dlogits, &mut model.parts, &mut b2)?;
                let activated = Matrix::new(&model.activated, BATCH, HIDDEN);
                matmul(&s, 1, dlogits.transposed(), activated, &none, MatrixMut::new(&mut w2, CLASSES, HIDDEN))?;
                pass.mark_ready(b2)?;
                pass.mark_ready(w2)?; // the bucket is whole: its reduction runs beside the rest
                let weight = Matrix::new(model.state[0].slice(place(2))?, CLASSES, HIDDEN);
                matmul(&s, 1, dlogits, weight, &none, MatrixMut::new(&mut model.dhidden, BATCH, HIDDEN))?;
                gelu_backward(&s, false, &model.hidden, &mut model.dhidden)?;
                sum_rows(&s, [rows, HIDDEN as u32], false, &model.dhidden, &mut model.parts, &mut b1)?;
                let (dhidden, x) = (Matrix::new(&model.dhidden, BATCH, HIDDEN), Matrix::new(&model.x, BATCH, INPUTS));
                matmul(&s, 1, dhidden.transposed(), x, &none, MatrixMut::new(&mut w1, HIDDEN, INPUTS))?;
                pass.mark_ready(b1)?;
                Ok(pass.mark_ready(w1)?)
            },
            |model, at, gradient| {
                let [w, m, v] = &mut model.state;
                let (w, m, v) = (w.slice_mut(at.clone())?, m.slice_mut(at.clone())?, v.slice_mut(at)?);
                Ok(adamw(&s, gradient.len() as u32, &model.settings, gradient, w, m, v)?)
            },
        )
    }

    /// Computes the losses and the gradient of the logits.
    fn forward(&mut self) -> Result<()> {
        let s = self.s;
        let parameter = |k| self.state[0].slice(place(k));
        let bias = |bias| Epilogue { bias: Some(bias), ..Epilogue::default() };
        let (x, weight) =
            (Matrix::new(&self.x, BATCH, INPUTS), Matrix::new(parameter(0)?, HIDDEN, INPUTS).transposed());
        matmul(&s, 1, x, weight, &bias(parameter(1)?), MatrixMut::new(&mut self.hidden, BATCH, HIDDEN))?;
        gelu(&s, false, &self.hidden, &mut self.activated)?;
        let activated = Matrix::new(&self.activated, BATCH, HIDDEN);
        let weight = Matrix::new(parameter(2)?, CLASSES, HIDDEN).transposed();
        matmul(&s, 1, activated, weight, &bias(parameter(3)?), MatrixMut::new(&mut self.logits, BATCH, CLASSES))?;
        let (rows, classes, scale) = (BATCH as u32, CLASSES as u32, 1.0 / BATCH as f32);
        let (losses, gradient) = (&mut self.losses, &mut self.dlogits);
        Ok(cross_entropy(&s, rows, classes, scale, &self.logits, &self.labels, losses, gradient)?)
    }

    /// Writes the checkpoint. A file that is there is replaced in one step.
    fn save(&self, path: &Path) -> Result<()> {
        let mut file = Tensors::default();
        for (name, numbers) in ["weights", "first", "second"].into_iter().zip(&self.state) {
            file.insert(name, &[numbers.len()], self.s.read_blocking(numbers)?);
        }
        file.metadata.insert("step".into(), self.step.to_string());
        file.save(path)
    }
}

/// Returns the range of a parameter in the flat buffer.
fn place(k: usize) -> Range<usize> {
    let start = LENS[..k].iter().sum();
    start..start + LENS[k]
}

/// A number from -1 to 1.
fn number(i: u64) -> f32 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

/// The points of a batch, and in which of four rings around the center each of them is.
fn points(batch: u64) -> (Vec<f32>, Vec<i32>) {
    let x: Vec<f32> = (0..(BATCH * INPUTS) as u64).map(|i| number((batch << 32) + i)).collect();
    let ring = |p: &[f32]| ((p[0] * p[0] + p[1] * p[1]).sqrt() * 4.0).min(3.0) as i32;
    let labels = x.chunks(INPUTS).map(ring).collect();
    (x, labels)
}

fn main() -> Result<()> {
    let usage = "own_model [CHECKPOINT [STEPS]]: trains to a number of steps, on from the checkpoint if it is there";
    let arguments = support::words(usage, 2);
    let checkpoint = Path::new(arguments.first().map_or("points.safetensors", String::as_str));
    let Ok(steps) = arguments.get(1).map_or(Ok(300), |steps| steps.parse()) else {
        println!("{usage}");
        std::process::exit(2)
    };

    let world = World::from_env()?;
    let (rank, size, device) = (world.rank(), world.size(), world.device()?);
    let (s, mut comm) = (device.stream::<Compute>()?, world.comm(device.stream::<Reduce>()?)?);
    // Every rank reads the checkpoint: here they are on one machine. Otherwise rank 0 reads it and
    // `Comm::broadcast` sends it.
    let mut model = Model::new(s, checkpoint)?;
    let buckets = BucketSizes::default().with_first(4 * (LENS[2] + LENS[3])).with_others(4 * (LENS[0] + LENS[1]));
    let mut gradients = Gradients::new(&s, &LENS, buckets)?;
    while model.step < steps {
        gradients = model.step(&mut comm, gradients)?;
        if model.step % 50 == 0 || model.step == steps {
            // If a rank is gone, this read fails, and `failure_or` says which one and in which
            // operation.
            let losses = s.read_blocking(&model.losses).map_err(|error| comm.failure_or(error))?;
            let weights = s.read_blocking(&model.state[0]).map_err(|error| comm.failure_or(error))?;
            let sum = weights.iter().fold(0u64, |sum, w| sum.rotate_left(5) ^ u64::from(w.to_bits()));
            comm.verify_equal("the weights", sum)?; // all ranks have the same bits
            if rank == 0 {
                model.save(checkpoint)?;
                let loss: f32 = losses.iter().sum();
                println!("step {} on {size} x {device}: loss {loss:.4}", model.step);
            }
        }
    }
    comm.barrier()?; // rank 0 may still be writing
    comm.synchronize()?;
    Ok(())
}
