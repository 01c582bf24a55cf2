//! A step of a stack of MLPs on several ranks, as `benches/peers/torch_ddp.py` has it: layer norm,
//! a linear layer to four times the width, GELU by tanh, a linear layer back, and the residual; the
//! loss is the mean of squares; AdamW.
//!
//! ```text
//! cargo bench -p thalweg-train --bench mlp --no-run        # says where the binary is
//! thalweg launch -n 2 -- BINARY --bench [WIDTH LAYERS TOKENS]
//! ```
//!
//! Activations, gradients and operands of products are `bf16`, as there. The residual stream, the
//! moments and the weights that the optimizer keeps are `f32` here, and `bf16` there. It measures a
//! step without other ranks, with one reduction behind the backward pass, and with buckets of
//! several sizes (`MLP_BUCKETS`, in MiB). What a step takes longer than the one without other ranks
//! is exposed communication.
//!
//! `MLP_PRODUCTS=cublaslt` has cuBLASLt compute the products, and `THALWEG_COLLECTIVE_CTAS` says
//! how many multiprocessors NCCL may take. `MLP_REFERENCE` names a folder with weights, inputs and
//! losses that the script wrote (`--reference`). Then the losses of the first steps are compared.
//!
//! `MLP_TRANSPORT=peer,nccl` runs the ranks as two threads of one process, without a launcher, and
//! lists who reduces: peer copies, NCCL or the host, each perhaps with the KiB of a piece and the
//! blocks of its kernels, as in `peer:4096:16` or `nccl::8`. Steps without other ranks and with
//! them take turns (`MLP_PAIRS` of them), and sums by themselves are measured before.
//! `MLP_ONLY=sums` or `steps` does one of both.

mod threads;

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{Device, DeviceBuffer, DeviceKind, LiveBrand, On, Stream, stream_tags};
use thalweg_collective::{BucketSizes, Comm, Gradients, Mean, Sum, World, WorldOptions};
use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut};
use thalweg_kernels::train::{
    GROUPS, PARTS, SETTINGS, adamw_bf16, gelu, gelu_backward_columns, gradient_norm, norm, norm_backward, norm_columns,
    round, round_columns, settings,
};
use thalweg_train::{MatmulBackend, MatmulOn};

stream_tags!(Compute, Reduce, Alone);

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;
type F32<S> = On<S, DeviceBuffer<f32>>;
type B16<S> = On<S, DeviceBuffer<bf16>>;

const RATE: f64 = 1e-4;
const DECAY: f64 = 1e-2; // PyTorch's default
const BETAS: [f64; 2] = [0.9, 0.999];

/// The shape of the model and of its batch.
#[derive(Clone, Copy)]
struct Shape {
    width: usize,
    layers: usize,
    tokens: usize,
}

impl Shape {
    /// Returns the lengths of the parts of a layer's weights: vectors (weight and bias of the norm,
    /// both biases), then the two matrices.
    fn lens(self) -> [usize; 3] {
        let d = self.width;
        [7 * d, 4 * d * d, 4 * d * d]
    }
    fn all(self) -> usize {
        self.layers * self.lens().iter().sum::<usize>()
    }
    /// The place of part `part` of a layer.
    fn place(self, layer: usize, part: usize) -> Range<usize> {
        let lens = self.lens();
        let start = layer * lens.iter().sum::<usize>() + lens[..part].iter().sum::<usize>();
        start..start + lens[part]
    }
}

/// Weights, moments and everything that a step needs, on one stream.
struct Model<S: LiveBrand> {
    shape: Shape,
    s: Stream<S>,
    weights: F32<S>,
    rounded: B16<S>,
    first: F32<S>,
    second: F32<S>,
    settings: F32<S>,
    /// The residual stream before each layer and behind the last one. The latter is the gradient of
    /// the loss up to a factor, so the backward pass makes it the gradient before each layer.
    x: Vec<F32<S>>,
    stats: Vec<F32<S>>,
    normed: Vec<B16<S>>,
    hidden: Vec<B16<S>>,
    activated: Vec<B16<S>>,
    dn: F32<S>,
    dy: B16<S>,
    dhidden: B16<S>,
    vectors: F32<S>,
    parts: F32<S>,
    loss: F32<S>,
    /// Settings that nobody reads: the kernel of the norm writes a factor.
    unused: F32<S>,
    gradients: Option<Gradients<S, bf16>>,
    buckets: Vec<Range<usize>>,
    matmul: MatmulOn<S>,
    steps: i32,
}

impl<S: LiveBrand> Model<S> {
    fn new(s: Stream<S>, backend: MatmulBackend, shape: Shape, weights: &[f32], input: &[f32]) -> Result<Self> {
        let Shape { width: d, layers, tokens: n } = shape;
        let each = |count: usize, elements: usize| (0..count).map(move |_| elements);
        let f32s = |count, elements| each(count, elements).map(|len| s.alloc(len)).collect::<thalweg::Result<Vec<_>>>();
        let b16s = |count, elements| each(count, elements).map(|len| s.alloc(len)).collect::<thalweg::Result<Vec<_>>>();
        let mut x = f32s(layers, n * d)?;
        x.insert(0, s.upload_blocking(input)?);
        let weights = s.upload_blocking(weights)?;
        let mut rounded = s.alloc(weights.len())?;
        round(&s, &weights, &mut rounded)?;
        Ok(Self {
            shape,
            s,
            rounded,
            first: s.alloc_zeroed(weights.len())?,
            second: s.alloc_zeroed(weights.len())?,
            settings: s.alloc_zeroed(SETTINGS)?,
            x,
            stats: f32s(layers, 2 * n)?,
            normed: b16s(layers, n * d)?,
            hidden: b16s(layers, 4 * n * d)?,
            activated: b16s(layers, 4 * n * d)?,
            dn: s.alloc(n * d)?,
            dy: s.alloc(n * d)?,
            dhidden: s.alloc(4 * n * d)?,
            vectors: s.alloc(7 * d)?,
            parts: s.alloc((2 * GROUPS * 4 * d).max(PARTS))?,
            loss: s.alloc_zeroed(1)?,
            unused: s.alloc_zeroed(SETTINGS)?,
            gradients: None,
            buckets: Vec::new(),
            matmul: MatmulOn::new(&s, backend)?,
            steps: 0,
            weights,
        })
    }

    /// Sets the sizes of the buckets, and returns how many there are.
    fn buckets(&mut self, sizes: BucketSizes) -> Result<usize> {
        let lens: Vec<usize> = (0..self.shape.layers).flat_map(|_| self.shape.lens()).collect();
        self.gradients = None;
        let gradients = Gradients::new(&self.s, &lens, sizes)?;
        self.buckets = gradients.buckets();
        self.gradients = Some(gradients);
        Ok(self.buckets.len())
    }

    fn forward(&mut self) -> Result<()> {
        let (s, shape) = (self.s, self.shape);
        let Shape { width: d, layers, tokens: n } = shape;
        for k in 0..layers {
            let wide = self.weights.slice(shape.place(k, 0))?;
            let narrow = self.rounded.slice(shape.place(k, 0))?;
            let (before, behind) = self.x.split_at_mut(k + 1);
            let (x, next) = (&before[k], &mut behind[0]);
            let affine = [wide.slice(..d)?, wide.slice(d..2 * d)?];
            norm(&s, [n as u32, d as u32], 1e-5, x, affine, &mut self.stats[k], &mut self.normed[k])?;
            let weight = Matrix::new(self.rounded.slice(shape.place(k, 1))?, 4 * d, d).transposed();
            let epilogue = Epilogue { bias: Some(narrow.slice(2 * d..6 * d)?), ..Default::default() };
            let to = MatrixMut::new(&mut self.hidden[k], n, 4 * d);
            self.matmul.matmul(&s, Matrix::new(&self.normed[k], n, d), weight, &epilogue, to)?;
            gelu(&s, false, &self.hidden[k], &mut self.activated[k])?;
            let weight = Matrix::new(self.rounded.slice(shape.place(k, 2))?, d, 4 * d).transposed();
            let (bias, residual) = (Some(wide.slice(6 * d..)?), Some(Matrix::new(x, n, d)));
            let epilogue = Epilogue { bias, residual, ..Default::default() };
            self.matmul.matmul(
                &s,
                Matrix::new(&self.activated[k], n, 4 * d),
                weight,
                &epilogue,
                MatrixMut::new(next, n, d),
            )?;
        }
        // The root of the sum of squares.
        Ok(gradient_norm(&s, &self.x[layers], 1.0, &mut self.parts, &mut self.loss, &mut self.unused)?)
    }

    /// Enqueues a step.
    fn step<C: LiveBrand>(&mut self, comm: &mut Comm<C>) -> Result<()> {
        let (s, shape) = (self.s, self.shape);
        let Shape { width: d, layers, tokens: n } = shape;
        self.steps += 1;
        let [b1, b2] = BETAS;
        let rate = RATE / (1.0 - b1.powi(self.steps));
        let root = 1.0 / (1.0 - b2.powi(self.steps)).sqrt();
        let (decay, [f1, f2]) = ((1.0 - RATE * DECAY) as f32, BETAS.map(|b| b as f32));
        settings(&s, decay, rate as f32, root as f32, f1, f2, 1e-8, &mut self.settings)?;
        // The gradient of the loss is 2 x / (n d). The pass carries x, and the optimizer
        // multiplies.
        s.fill(self.settings.slice_mut(6..7)?, 2.0 / (n * d) as f32)?;
        self.forward()?;

        let (mut pass, grads) = comm.backward(Mean, self.gradients.take().ok_or("no gradients")?)?;
        let mut grads = grads.into_iter().rev();
        let none = Epilogue::default();
        let (x, dx) = self.x.split_at_mut(layers);
        let dx = &mut dx[0];
        for k in (0..layers).rev() {
            let (Some(mut gb), Some(mut ga), Some(mut gv)) = (grads.next(), grads.next(), grads.next()) else {
                return Err("three gradients a layer".into());
            };
            let (norms, biases) = self.vectors.split_at_mut(2 * d)?;
            let (bias_a, bias_b) = biases.split_at_mut(4 * d)?;
            let narrow = [n as u32, d as u32];
            round_columns(&s, narrow, false, dx, &mut self.dy, &mut self.parts, bias_b)?;
            let dy = Matrix::new(&self.dy, n, d);
            let activated = Matrix::new(&self.activated[k], n, 4 * d);
            self.matmul.matmul(&s, dy.transposed(), activated, &none, MatrixMut::new(&mut gb, d, 4 * d))?;
            pass.mark_ready(gb)?;
            let weight = Matrix::new(self.rounded.slice(shape.place(k, 2))?, d, 4 * d);
            self.matmul.matmul(&s, dy, weight, &none, MatrixMut::new(&mut self.dhidden, n, 4 * d))?;
            let wide = [n as u32, 4 * d as u32];
            let hidden = &self.hidden[k];
            gelu_backward_columns(&s, wide, false, false, hidden, &mut self.dhidden, &mut self.parts, bias_a)?;
            let dh = Matrix::new(&self.dhidden, n, 4 * d);
            let normed = Matrix::new(&self.normed[k], n, d);
            self.matmul.matmul(&s, dh.transposed(), normed, &none, MatrixMut::new(&mut ga, 4 * d, d))?;
            pass.mark_ready(ga)?;
            let weight = Matrix::new(self.rounded.slice(shape.place(k, 1))?, 4 * d, d);
            self.matmul.matmul(&s, dh, weight, &Epilogue::default(), MatrixMut::new(&mut self.dn, n, d))?;
            let (norm_weight, norm_bias) = norms.split_at_mut(d)?;
            let (x, stats) = (&x[k], &self.stats[k]);
            norm_columns(&s, narrow, false, &self.dn, x, stats, &mut self.parts, [norm_weight, norm_bias])?;
            let weight = self.weights.slice(shape.place(k, 0))?.slice(..d)?;
            norm_backward(&s, narrow[0], narrow[1], true, &self.dn, x, stats, weight, dx)?;
            round(&s, &self.vectors, &mut gv)?;
            pass.mark_ready(gv)?;
        }
        let Self { weights, rounded, first, second, settings, .. } = self;
        self.gradients = Some(pass.finish(|range, means| -> Result<()> {
            let moments = [first.slice_mut(range.clone())?, second.slice_mut(range.clone())?];
            let (weights, rounded) = (weights.slice_mut(range.clone())?, rounded.slice_mut(range)?);
            Ok(adamw_bf16(&s, settings, means, weights, moments, rounded)?)
        })?);
        Ok(())
    }

    /// Waits for the loss of the last step.
    fn loss(&self) -> Result<f64> {
        let norm = f64::from(self.s.read_blocking(&self.loss)?[0]);
        Ok(norm * norm / (self.shape.tokens * self.shape.width) as f64)
    }
}

/// The median of the times of several steps, in ms, after three that do not count. All ranks begin
/// a step together, and each is waited for, as the script does.
fn median<C: LiveBrand>(
    together: &mut Comm<C>,
    steps: usize,
    mut step: impl FnMut(&mut Comm<C>) -> Result<()>,
    s: impl Fn() -> thalweg::Result<()>,
) -> Result<f64> {
    let mut times = Vec::new();
    for k in 0..steps + 3 {
        s()?;
        together.barrier()?;
        together.synchronize()?;
        let start = Instant::now();
        step(together)?;
        s()?;
        if k >= 3 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Uniform numbers from -1 to 1.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mix = |i: u64| (i + seed * 0x1_0001).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..n as u64).map(|i| ((mix(mix(i) >> 20) >> 40) as f32) / (1u64 << 23) as f32 - 1.0).collect()
}

/// Draws weights as PyTorch does: uniform in the linear layers, up to one over the root of the
/// inputs.
fn drawn(shape: Shape) -> Vec<f32> {
    let d = shape.width;
    let mut weights = numbers(shape.all(), 1);
    for k in 0..shape.layers {
        let (a, b) = (1.0 / (d as f32).sqrt(), 1.0 / (4.0 * d as f32).sqrt());
        let vectors = &mut weights[shape.place(k, 0)];
        vectors[..d].fill(1.0);
        vectors[d..2 * d].fill(0.0);
        vectors[2 * d..6 * d].iter_mut().for_each(|v| *v *= a);
        vectors[6 * d..].iter_mut().for_each(|v| *v *= b);
        weights[shape.place(k, 1)].iter_mut().for_each(|v| *v *= a);
        weights[shape.place(k, 2)].iter_mut().for_each(|v| *v *= b);
    }
    weights
}

/// The file that the script wrote: weights, inputs, and the losses of the first steps.
struct Reference(PathBuf);

impl Reference {
    fn bf16(&self, name: &str) -> Result<Vec<f32>> {
        let bytes = std::fs::read(self.0.join(name))?;
        Ok(bytes.chunks_exact(2).map(|b| bf16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32()).collect())
    }
    fn losses(&self, name: &str) -> Result<Vec<f64>> {
        let text = std::fs::read_to_string(self.0.join(name))?;
        Ok(text.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?)
    }
}

/// The backend that `MLP_PRODUCTS` names.
fn backend(device: Device) -> Result<MatmulBackend> {
    match std::env::var("MLP_PRODUCTS").as_deref() {
        Ok("cublaslt") => Ok(MatmulBackend::cublaslt(device)?),
        _ => Ok(MatmulBackend::default()),
    }
}

/// The numbers that a variable lists.
fn listed<T: std::str::FromStr>(name: &str) -> Result<Option<Vec<T>>>
where
    T::Err: std::error::Error + 'static,
{
    let Ok(list) = std::env::var(name) else { return Ok(None) };
    Ok(Some(list.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?))
}

fn main() -> Result<()> {
    if let Ok(transports) = std::env::var("MLP_TRANSPORT") {
        let given: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
        return threads::run(&transports, &given);
    }
    let world = World::from_env()?;
    let (rank, size, device) = (world.rank(), world.size(), world.device()?);
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let shapes: Vec<[usize; 3]> = match (&given[..], device.kind()) {
        (&[width, layers, tokens], _) => vec![[width, layers, tokens]],
        (_, DeviceKind::Cpu) => vec![[16, 2, 8]],
        _ => vec![[1024, 12, 4096], [1024, 12, 16384], [2048, 12, 8192]],
    };
    let steps = if device.kind() == DeviceKind::Cpu { 3 } else { 15 };
    let buckets = listed("MLP_BUCKETS")?.unwrap_or(vec![1, 4, 10, 25, 50, 100]);
    let reference = std::env::var_os("MLP_REFERENCE").map(|folder| Reference(folder.into()));
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let mut comm = world.comm(reduce)?;
    let say = |text: String| {
        if rank == 0 {
            println!("{text}");
        }
    };
    let backend = backend(device)?;
    let settings = WorldOptions::from_env()?;
    say(format!("{size} ranks, {device}, {:?}, products by {backend:?}, CTAs {:?}", comm.backend(), settings.ctas));
    let wait = || compute.synchronize();
    for [width, layers, tokens] in shapes {
        let shape = Shape { width, layers, tokens };
        let name = |what: &str| format!("{width}_{tokens}.{what}");
        let (weights, input) = match &reference {
            Some(reference) => (reference.bf16(&name("weights"))?, reference.bf16(&name("input"))?),
            None => (drawn(shape), numbers(tokens * width, 2 + rank as u64)),
        };
        let mut model = Model::new(compute, backend, shape, &weights, &input)?;
        model.buckets(BucketSizes::default())?;
        if let Some(reference) = &reference {
            // With the weights and the input of the script on every rank, the means are its
            // gradients.
            let mut worst = 0.0f64;
            let theirs = reference.losses(&name("losses"))?;
            for theirs in &theirs {
                model.step(&mut comm)?;
                worst = worst.max((model.loss()? / theirs - 1.0).abs());
            }
            say(format!(
                "width {width}, {tokens} tokens: {} losses from {:.4} to {:.4} differ from the script's by {worst:.1e} at most",
                theirs.len(),
                theirs[0],
                theirs[theirs.len() - 1],
            ));
            assert!(worst < 1e-2, "the losses are those of the script");
        } else {
            model.step(&mut comm)?;
            assert!(model.loss()?.is_finite());
        }
        let mib = (2 * shape.all()) as f64 / f64::from(1 << 20);
        let sizes = buckets.iter().map(|&mib| {
            (format!("buckets of {mib} MiB"), BucketSizes::default().with_first(1 << 20).with_others(mib << 20))
        });
        let mut flat = reduce.alloc_zeroed::<bf16>(shape.all())?;
        let reduction =
            median(&mut comm, steps, |comm| Ok(comm.all_reduce_in_place(Sum, &mut flat)?), || reduce.synchronize())?;
        drop(flat);
        // A step without other ranks, which all ranks run at once.
        let mut single = World::single().comm(device.stream::<Alone>()?)?;
        let alone = median(&mut comm, steps, |_| model.step(&mut single), wait)?;
        say(format!(
            "width {width}, {layers} layers, {tokens} tokens, {mib:.0} MiB of gradients: alone {alone:.3} ms, all-reduce alone {reduction:.3} ms"
        ));
        let whole = BucketSizes::default().with_first(usize::MAX).with_others(usize::MAX);
        let sizes: Vec<_> = [("reduced behind the pass".to_owned(), whole)].into_iter().chain(sizes).collect();
        // The models went apart in the steps alone.
        model = Model::new(compute, backend, shape, &weights, &input)?;
        for (name, sizes) in &sizes {
            let count = model.buckets(*sizes)?;
            // The second pass of a bucket captures its reduction.
            (0..2).try_for_each(|_| model.step(&mut comm))?;
            let ms = median(&mut comm, steps, |comm| model.step(comm), wait)?;
            let exposed = ms - alone;
            say(format!(
                "  {name} ({count}): {ms:.3} ms, exposed {exposed:.3} ms: {:.1} % of a step, {:.1} % of the all-reduce; {:.1} % of perfect hiding",
                100.0 * exposed / alone,
                100.0 * exposed / reduction,
                100.0 * alone / ms
            ));
        }
        let weights = model.s.read_blocking(&model.rounded)?;
        let hash =
            weights.iter().fold(0u64, |hash, v| hash.rotate_left(5) ^ u64::from(v.to_bits()).wrapping_mul(0x9e37_79b9));
        comm.verify_equal("the weights", hash)?;
    }
    comm.barrier()?;
    Ok(comm.synchronize()?)
}
