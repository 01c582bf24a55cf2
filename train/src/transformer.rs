//! The token transformer with its optimiser, on one stream.

use std::collections::BTreeMap;
use std::path::Path;

use thalweg::{DeviceBuffer, Event, LiveBrand, On, PinnedBuffer, Stream};
use thalweg_kernels::train::{PARTS, SETTINGS};

use crate::blocks::ScratchOn;
use crate::error::Result;
use crate::layers::Weights;
use crate::layout::Layout;
use crate::model::{Batch, Config, Model, PassOn};
use crate::optimiser::{AdamW, Update};
use crate::precision::Precision;
use crate::tensors::Tensors;

/// A transformer over sequences of tokens, with AdamW, on one stream.
///
/// `E` is the precision: `f32`, or [`bf16`](thalweg::simt::bf16) for the operands of products and
/// attention. The weights are `f32` with both.
///
/// The first batch, and later each that is larger than all before, allocates device memory. All other
/// steps allocate none and wait for nothing. The same batches give the same bits on every run on the
/// same device.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::{Batch, Config, TokenTransformer};
///
/// stream_tags!(Train);
/// let train = Device::cpu()?.stream::<Train>()?;
/// let config = Config { inputs: 3, width: 16, heads: 2, depth: 1, classes: 2, ..Config::default() };
/// let mut model = TokenTransformer::<_, f32>::new(&train, config, 7)?;
///
/// // Two sequences, of 2 tokens and of 1.
/// let batch = Batch {
///     tokens: &[0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.2, 0.2, 0.2],
///     position: &[0.0, 0.0, 0.5, 0.5, 0.5, 0.5],
///     cu_seqlens: &[0, 2, 3],
///     labels: &[1, 0],
/// };
/// let first = model.step(&batch)?.get()?;
/// for _ in 0..20 {
///     model.step(&batch)?; // returns at once
/// }
/// assert!(model.evaluate(&batch)?.loss.unwrap() < first);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub struct TokenTransformer<S: LiveBrand, E: Precision> {
    stream: Stream<S>,
    model: Model,
    optimiser: AdamW,
    steps: u64,
    weights: On<S, DeviceBuffer<f32>>,
    first: On<S, DeviceBuffer<f32>>,
    second: On<S, DeviceBuffer<f32>>,
    gradient: On<S, DeviceBuffer<f32>>,
    rounded: On<S, DeviceBuffer<E>>,
    settings: On<S, DeviceBuffer<f32>>,
    parts: On<S, DeviceBuffer<f32>>,
    norm: On<S, DeviceBuffer<f32>>,
    pass: Option<PassOn<S, E>>,
    scratch: Option<(usize, ScratchOn<S, E>)>,
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for TokenTransformer<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, optimiser, steps, .. } = self;
        let mut f = f.debug_struct("TokenTransformer");
        f.field("config", &model.config).field("optimiser", optimiser).field("steps", steps).finish_non_exhaustive()
    }
}

/// The loss of a step, which the device may still compute. It can be dropped.
#[derive(Debug)]
pub struct Loss(Event<PinnedBuffer<f32>>);

impl Loss {
    /// Waits for the step and returns its loss: the mean cross-entropy before the update.
    ///
    /// # Errors
    /// The device has failed.
    pub fn get(self) -> Result<f32> {
        Ok(self.0.synchronize()?[0])
    }
}

/// What a model says about a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean cross-entropy, if the batch has labels.
    pub loss: Option<f32>,
    /// The logits, [B, classes].
    pub logits: Vec<f32>,
    /// The class with the largest logit of each sequence. Of equal ones it is the first.
    pub classes: Vec<i32>,
}

impl<S: LiveBrand, E: Precision> TokenTransformer<S, E> {
    /// Makes a model with random weights. The same seed gives the same weights.
    ///
    /// # Errors
    /// The configuration makes no sense, or there is no memory.
    pub fn new(stream: &Stream<S>, config: Config, seed: u64) -> Result<Self> {
        let model = Model::new(config)?;
        let weights = model.layout.draw(seed);
        Self::with(stream, model, &weights)
    }

    /// Makes a model with the weights of a file (see [`Config::of`]).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let model = Model::new(Config::of(file)?)?;
        let weights = model.layout.flatten(file, "")?;
        Self::with(stream, model, &weights)
    }

    fn with(stream: &Stream<S>, model: Model, weights: &[f32]) -> Result<Self> {
        let n = weights.len();
        Ok(Self {
            stream: *stream,
            optimiser: AdamW::default(),
            steps: 0,
            weights: stream.upload_blocking(weights)?,
            first: stream.alloc_zeroed(n)?,
            second: stream.alloc_zeroed(n)?,
            gradient: stream.alloc_zeroed(n)?,
            rounded: stream.alloc(n * E::ROOM)?,
            settings: stream.alloc(SETTINGS)?,
            parts: stream.alloc(PARTS)?,
            norm: stream.alloc(1)?,
            pass: None,
            scratch: None,
            model,
        })
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// Returns where each tensor lies in the flat buffers.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.model.layout
    }

    /// Returns the options of the optimiser.
    #[must_use]
    pub fn optimiser(&self) -> &AdamW {
        &self.optimiser
    }

    /// Returns the options of the optimiser to change them. They count from the next step on.
    pub fn optimiser_mut(&mut self) -> &mut AdamW {
        &mut self.optimiser
    }

    /// Returns the number of steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Enqueues a step: forward, backward and update. It returns at once.
    ///
    /// # Errors
    /// The batch does not fit the model, there is no memory, or the device failed. The weights and the
    /// optimiser are then those of the step before.
    pub fn step(&mut self, batch: &Batch<'_>) -> Result<Loss> {
        batch.check(&self.model.config, true)?;
        let loss = self.stream.bind(self.stream.device().pinned::<f32>(1)?)?;
        self.differentiate(batch)?;
        let Self { stream: s, pass, .. } = self;
        let mut loss = loss;
        let pass = pass.as_ref().expect("`differentiate` has made the pass");
        s.copy_to_host(&pass.loss, &mut loss)?;
        let loss = s.record(loss)?;
        let update = Update {
            weights: &mut self.weights,
            first: &mut self.first,
            second: &mut self.second,
            gradient: &self.gradient,
            settings: &mut self.settings,
            parts: &mut self.parts,
            norm: &mut self.norm,
        };
        self.optimiser.update(s, self.steps, update)?;
        self.steps += 1;
        Ok(Loss(loss))
    }

    /// Makes room for a batch, and computes its logits and its loss.
    fn predict(&mut self, batch: &Batch<'_>) -> Result<()> {
        let Self { stream: s, model, weights, rounded, pass, .. } = self;
        let [rows, sequences] = [batch.rows(), batch.sequences()];
        if !pass.as_ref().is_some_and(|pass| pass.fits(rows, sequences)) {
            *pass = None; // its memory is free before the new one is allocated
        }
        let pass = match pass {
            Some(pass) => pass,
            None => pass.insert(PassOn::new(s, &model.config, [rows, sequences])?),
        };
        pass.upload(s, batch)?;
        let operands = E::rounded(s, weights, rounded)?;
        model.forward(s, Weights { wide: weights, operands }, pass)?;
        Ok(model.loss(s, sequences, pass)?)
    }

    /// Computes the gradient of a batch.
    fn differentiate(&mut self, batch: &Batch<'_>) -> Result<()> {
        let rows = batch.rows();
        if self.scratch.as_ref().is_none_or(|(room, _)| *room < rows) {
            self.scratch = None;
            self.scratch = Some((rows, self.model.scratch(&self.stream, rows)?));
        }
        self.predict(batch)?;
        let Self { stream: s, model, weights, rounded, pass, scratch, gradient, .. } = self;
        let (Some(pass), Some((_, scratch))) = (pass, scratch) else {
            unreachable!("both were made above");
        };
        let w = Weights { wide: weights, operands: E::operands(weights, rounded) };
        Ok(model.backward(s, w, pass, scratch, (gradient, false))?)
    }

    /// Computes logits, loss and the most likely classes of a batch, and waits for them. The weights do
    /// not change.
    ///
    /// # Errors
    /// The batch does not fit the model, there is no memory, or the device failed.
    pub fn evaluate(&mut self, batch: &Batch<'_>) -> Result<Evaluation> {
        batch.check(&self.model.config, false)?;
        self.predict(batch)?;
        let pass = self.pass.as_ref().expect("`predict` has made the pass");
        let (b, classes) = (pass.sequences, self.model.config.classes);
        Ok(Evaluation {
            loss: match batch.labels {
                [] => None,
                _ => Some(self.stream.read_blocking(&pass.loss)?[0]),
            },
            logits: self.stream.read_blocking(pass.logits.slice(..b * classes)?)?,
            classes: self.stream.read_blocking(pass.best.slice(..b)?)?,
        })
    }

    /// Computes the gradients of a batch and waits for them. The weights do not change.
    ///
    /// # Errors
    /// The batch does not fit the model, there is no memory, or the device failed.
    pub fn gradients(&mut self, batch: &Batch<'_>) -> Result<Tensors> {
        batch.check(&self.model.config, true)?;
        self.differentiate(batch)?;
        let mut tensors = Tensors::default();
        self.model.layout.unflatten(&self.stream.read_blocking(&self.gradient)?, "", &mut tensors);
        Ok(tensors)
    }

    /// Returns the weights, and in the metadata the configuration. It waits for all steps.
    ///
    /// # Errors
    /// The device has failed.
    pub fn tensors(&self) -> Result<Tensors> {
        let mut tensors = Tensors::default();
        self.model.config.describe(&mut tensors);
        self.model.layout.unflatten(&self.stream.read_blocking(&self.weights)?, "", &mut tensors);
        Ok(tensors)
    }

    /// Writes the weights to a safetensors file (see [`Tensors::save`]).
    ///
    /// # Errors
    /// The device has failed, or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.tensors()?.save(path)
    }

    /// Writes a checkpoint: weights, both moments, the number of steps, and what else the caller needs
    /// to go on, `progress`: its place in the data, and the state of its random numbers. The file is
    /// written beside its place and then renamed.
    ///
    /// # Errors
    /// The device has failed, or the file cannot be written. The last checkpoint is then still there.
    pub fn checkpoint(&self, path: impl AsRef<Path>, progress: &BTreeMap<String, String>) -> Result<()> {
        let mut tensors = self.tensors()?;
        let layout = &self.model.layout;
        layout.unflatten(&self.stream.read_blocking(&self.first)?, "first.", &mut tensors);
        layout.unflatten(&self.stream.read_blocking(&self.second)?, "second.", &mut tensors);
        tensors.metadata.insert("steps".into(), self.steps.to_string());
        for (key, value) in progress {
            tensors.metadata.insert(format!("progress.{key}"), value.clone());
        }
        tensors.save(path)
    }

    /// Makes a model from a checkpoint, and returns it with the progress that was saved. The next steps
    /// have the bits that they would have had without the interruption. Set the options of the
    /// optimiser again: a checkpoint does not have them.
    ///
    /// # Errors
    /// The file cannot be read or is no checkpoint, or there is no memory.
    pub fn restore(stream: &Stream<S>, path: impl AsRef<Path>) -> Result<(Self, BTreeMap<String, String>)> {
        let tensors = Tensors::load(path)?;
        let mut model = Self::from_tensors(stream, &tensors)?;
        let layout = &model.model.layout;
        model.first = stream.upload_blocking(&layout.flatten(&tensors, "first.")?)?;
        model.second = stream.upload_blocking(&layout.flatten(&tensors, "second.")?)?;
        let steps = tensors.value("steps")?;
        model.steps = steps.ok_or_else(|| tensors.wrong("the metadata has no `steps`".into()))?;
        let progress = tensors.metadata.iter();
        let progress = progress.filter_map(|(k, v)| Some((k.strip_prefix("progress.")?.to_owned(), v.clone())));
        Ok((model, progress.collect()))
    }
}
