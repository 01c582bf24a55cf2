//! The token transformer with its optimizer, on one stream.

use std::collections::BTreeMap;
use std::path::Path;

use thalweg::{
    Brand, DeviceBuffer, Event, Graph, GraphCache, GraphWork, LiveBrand, PinnedBuffer, Resource, Ring, Stream,
};

use crate::batch::{Extent, HostBatch, StreamBatch};
use crate::error::{Error, Result};
use crate::layers::{Weights, WeightsOn};
use crate::layout::ParameterLayout;
use crate::matmul_backend::MatmulBackend;
use crate::model::{Model, Pass, PassOn, Scratch, ScratchOn, TokenTransformerConfig};
use crate::optimizer::{AdamW, AdamWState, AdamWStateOn};
use crate::precision::Precision;
use crate::tensors::Tensors;
use crate::vision_language::{Half, VisionLanguageConfig};

/// A transformer over sequences of tokens, with AdamW, on one stream: it learns classes, or to
/// answer questions about images ([`answering`](Self::answering)).
///
/// `E` is the precision: `f32`, or [`bf16`](thalweg::simt::bf16) for the operands of products and
/// attention. The weights are `f32` with both.
///
/// The first batch, and later each that is larger than all before, allocates device memory. All
/// other steps allocate none and wait for nothing. When a batch has as many tokens and sequences as
/// an earlier one, and as many ids of texts and answers, its step is captured, and later ones of
/// this shape are graphs that one call enqueues ([`set_graphs`](Self::set_graphs)). The same batches give the same bits on every
/// run on the same device, with graphs or without.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::{TokenBatch, TokenTransformerConfig, TokenTransformer};
///
/// stream_tags!(Train);
/// let train = Device::cpu()?.stream::<Train>()?;
/// let config = TokenTransformerConfig::default()
///     .with_input_dim(3)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_depth(1)
///     .with_num_classes(2);
/// let mut model = TokenTransformer::<_, f32>::new(&train, config, 7)?;
///
/// // Two sequences, of 2 tokens and of 1.
/// let batch = TokenBatch {
///     tokens: &[0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.2, 0.2, 0.2],
///     position: &[0.0, 0.0, 0.5, 0.5, 0.5, 0.5],
///     cu_seqlens: &[0, 2, 3],
///     labels: &[1, 0],
/// };
/// let first = model.step(&batch)?.item()?;
/// for _ in 0..20 {
///     model.step(&batch)?; // returns at once
/// }
/// assert!(model.evaluate(&batch)?.loss.unwrap() < first);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub struct TokenTransformer<S: LiveBrand, E: Precision> {
    pub(crate) stream: Stream<S>,
    pub(crate) model: Model,
    pub(crate) optimizer: AdamW,
    pub(crate) steps: u64,
    /// It is empty after a failure of the device that lost the memory.
    pub(crate) state: Option<State<S, E>>,
    pub(crate) pass: Option<PassOn<S, E>>,
    pub(crate) scratch: Option<(Extent, ScratchOn<S, E>)>,
    graphs: GraphCache<Shape, Graph<Whole<E>>>,
    pub(crate) products: MatmulBackend,
    /// The batches in flight of [`micro_batches`](fn@crate::overlap::micro_batches), and their
    /// room.
    pub(crate) passes: (Extent, Ring<Pass<E>>),
}

/// The most steps of a checkpoint: up to here each number of steps is an `f64`, in which the
/// optimizer counts.
const MOST_STEPS: u64 = 1 << 53;

/// The memory of the optimizer beside the weights.
#[derive(Debug, Resource)]
pub(crate) struct Moments {
    pub(crate) adamw: AdamWState,
    pub(crate) gradient: DeviceBuffer<f32>,
    /// The loss of a step over several batches.
    pub(crate) loss: DeviceBuffer<f32>,
}

/// The state that a step changes.
type State<S, E> = (WeightsOn<S, E>, MomentsOn<S>);
/// All memory of a step.
type Whole<E> = (Weights<E>, Moments, Pass<E>, Scratch<E>);
/// The shape that a step reads on the host.
type Shape = (Extent, Option<u64>);

/// A step: forward, backward and update.
struct Step<'a> {
    model: &'a Model,
    clip: Option<f64>,
}

impl<E: Precision> GraphWork<Whole<E>> for Step<'_> {
    fn enqueue<S: Brand>(&self, s: &Stream<S>, whole: &mut <Whole<E> as Resource>::On<S>) -> thalweg::Result<()> {
        let (parameters, moments, pass, scratch) = whole;
        self.model.predict(s, parameters, pass)?;
        self.model.backward(s, parameters.view(), pass, scratch, &mut moments.gradient, false)?;
        let learned = self.model.learned();
        AdamW::update_all(s, self.clip, learned, &moments.gradient, &mut parameters.values, &mut moments.adamw)
    }
}

impl Model {
    /// Rounds the weights, and computes logits and loss.
    fn predict<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        parameters: &mut WeightsOn<S, E>,
        pass: &mut PassOn<S, E>,
    ) -> thalweg::Result<()> {
        parameters.round(s)?;
        self.forward(s, parameters.view(), pass)?;
        self.loss(s, pass.extent.losses(), pass)
    }
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for TokenTransformer<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, optimizer, steps, .. } = self;
        let mut f = f.debug_struct("TokenTransformer");
        f.field("config", &model.config).field("optimizer", optimizer).field("steps", steps).finish_non_exhaustive()
    }
}

/// The loss of a step, which the device may still compute. It can be dropped.
#[derive(Debug)]
pub struct Loss {
    numbers: Event<PinnedBuffer<f32>>,
    /// The number of losses, one for each sequence or each id that answers, that all ranks should
    /// have had together. Then the second number says how many they had.
    sequences: Option<usize>,
}

impl Loss {
    pub(crate) fn new(numbers: Event<PinnedBuffer<f32>>) -> Self {
        Self { numbers, sequences: None }
    }

    #[cfg(feature = "collective")]
    pub(crate) fn of_ranks(numbers: Event<PinnedBuffer<f32>>, sequences: usize) -> Self {
        Self { numbers, sequences: Some(sequences) }
    }

    /// Waits for the step and returns its loss: the mean cross-entropy before the update.
    ///
    /// # Errors
    /// The device has failed. Or, of a step of several ranks, they did not have as many sequences
    /// together as this rank said.
    pub fn item(self) -> Result<f32> {
        let numbers = self.numbers.synchronize()?;
        // Larger numbers are not exact.
        if let Some(sequences) = self.sequences.filter(|&n| n < 1 << 24)
            && numbers[1] != sequences as f32
        {
            let what = format!("all ranks have {} losses together, and this one says {sequences}", numbers[1]);
            return Err(Error::Batch(what));
        }
        Ok(numbers[0])
    }
}

/// The outputs of a model for a batch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// The mean cross-entropy, if the batch has labels.
    pub loss: Option<f32>,
    /// The logits, [B, `num_classes`]. Of a model that answers there is a row for each id of an
    /// answer: that of the row before it, [A, `vocab_size`].
    pub logits: Vec<f32>,
    /// The class, or the id, with the largest logit of each row. Of equal ones it is the first.
    pub predictions: Vec<i32>,
}

impl<S: LiveBrand, E: Precision> TokenTransformer<S, E> {
    /// Makes a model with random weights. The same seed gives the same weights.
    ///
    /// # Errors
    /// The configuration makes no sense, or there is no memory.
    pub fn new(stream: &Stream<S>, config: TokenTransformerConfig, seed: u64) -> Result<Self> {
        let model = Model::new(config)?;
        let weights = model.layout.init(seed)?;
        Self::with(stream, model, &weights)
    }

    /// Makes a vision-language model that learns from [`TextBatch`](crate::TextBatch)es, with random
    /// weights. The same seed gives the weights of [`VisionLanguageConfig::init`].
    ///
    /// # Errors
    /// The configuration makes no sense, or there is no memory.
    pub fn answering(stream: &Stream<S>, config: VisionLanguageConfig, seed: u64) -> Result<Self> {
        Self::from_tensors(stream, &config.init(seed)?)
    }

    /// Makes a model with the weights of a file (see [`TokenTransformerConfig::from_tensors`]). The
    /// file of a vision-language model gives one that answers.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn from_tensors(stream: &Stream<S>, file: &Tensors) -> Result<Self> {
        let model = Model::of(file)?;
        let weights = model.layout.flatten(file, "")?;
        Self::with(stream, model, &weights)
    }

    fn with(stream: &Stream<S>, model: Model, weights: &[f32]) -> Result<Self> {
        let moments = MomentsOn {
            adamw: AdamWStateOn::new(stream, weights.len())?,
            gradient: stream.alloc_zeroed(weights.len())?,
            loss: stream.alloc(1)?,
        };
        Ok(Self {
            stream: *stream,
            optimizer: AdamW::default(),
            steps: 0,
            state: Some((WeightsOn::new(stream, weights)?, moments)),
            pass: None,
            scratch: None,
            graphs: GraphCache::default(),
            products: MatmulBackend::default(),
            passes: (Extent::default(), Ring::default()),
            model,
        })
    }

    /// Returns the stream that orders the model.
    #[must_use]
    pub fn stream(&self) -> Stream<S> {
        self.stream
    }

    /// Sets whether steps whose shape repeats become graphs. They do at first. The results are the
    /// same, bit for bit.
    pub fn set_graphs(&mut self, graphs: bool) {
        self.graphs = GraphCache::default().with_graphs(graphs);
    }

    /// Sets what computes the products of matrices from now on. At first it is thalweg's kernels.
    pub fn set_matmul_backend(&mut self, products: MatmulBackend) {
        self.products = products;
        self.graphs.clear();
        (self.pass, self.scratch) = (None, None); // they have the workspace
        self.passes.1 = Ring::default();
    }

    /// Returns the number of shapes whose step is a graph. The eight that were used last are kept.
    #[must_use]
    pub fn graphs(&self) -> usize {
        self.graphs.len()
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn config(&self) -> &TokenTransformerConfig {
        &self.model.config
    }

    /// Returns the shape of the vision-language model, if it is one. [`config`](Self::config) has
    /// that of its encoder then.
    #[must_use]
    pub fn vision_language(&self) -> Option<&VisionLanguageConfig> {
        self.model.texts()
    }

    /// Freezes a half of a vision-language model from the next step on, or none. Its weights stay,
    /// and the norm of a gradient that is clipped is without them. A frozen encoder has no backward
    /// pass. A checkpoint keeps which half it is.
    ///
    /// The corrections of the moments count all steps of the model. So a half that is freed after
    /// many steps begins with steps that are up to 6.6 times as large: lower the rate for them.
    ///
    /// # Errors
    /// The model learns classes.
    pub fn freeze(&mut self, half: Option<Half>) -> Result<()> {
        self.graphs.clear();
        self.model.freeze(half)
    }

    /// Returns where each tensor lies in the flat buffers.
    #[must_use]
    pub fn layout(&self) -> &ParameterLayout {
        &self.model.layout
    }

    /// Returns the options of the optimizer.
    #[must_use]
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// Returns the options of the optimizer to change them. They count from the next step on.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    /// Returns the number of steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Enqueues a step: forward, backward and update. It returns at once.
    ///
    /// # Errors
    /// The batch does not fit the model, there is no memory, or the device failed. The weights and
    /// the optimizer are then those of the step before.
    pub fn step(&mut self, batch: &impl HostBatch) -> Result<Loss> {
        let extent = self.model.check(batch, true)?;
        self.learn(extent, |s, pass| Ok(pass.upload(s, batch, extent)?))
    }

    /// Enqueues a step on a batch that is on the device. It returns at once. The batch is copied,
    /// so its buffers are free as soon as the stream has passed the copies.
    ///
    /// What the buffers hold is not checked. If `cu_seqlens` does not rise, or a sequence is empty,
    /// the results mean nothing; a label that is no class, or an id that is none, makes the loss
    /// NaN.
    ///
    /// # Errors
    /// The lengths of the batch do not fit the model, there is no memory, or the device failed. The
    /// weights and the optimizer are then those of the step before.
    pub fn step_on(&mut self, batch: &impl StreamBatch<S>) -> Result<Loss> {
        let parts = batch.parts();
        let extent = self.model.extent(&parts)?;
        self.learn(extent, |s, pass| Ok(pass.take(s, &parts, extent)?))
    }

    fn learn(
        &mut self,
        extent: Extent,
        fill: impl FnOnce(&Stream<S>, &mut PassOn<S, E>) -> Result<()>,
    ) -> Result<Loss> {
        let mut loss = self.stream.bind(self.stream.device().pinned::<f32>(1)?)?;
        self.make_room(extent, true)?;
        let (s, clip) = (self.stream, self.optimizer.max_grad_norm);
        let (Some((parameters, mut moments)), Some(mut pass), Some((rows, scratch))) =
            (self.state.take(), self.pass.take(), self.scratch.take())
        else {
            return Err(Error::Lost);
        };
        let filled =
            fill(&s, &mut pass).and_then(|()| Ok(self.optimizer.prepare(&s, self.steps, &mut moments.adamw)?));
        let whole = (parameters, moments, pass, scratch);
        let (whole, enqueued) = match filled {
            Err(error) => (whole, Err(error)),
            Ok(()) => {
                let work = Step { model: &self.model, clip };
                match self.graphs.enqueue(&s, (extent, clip.map(f64::to_bits)), whole, &work) {
                    Ok(whole) => (whole, Ok(())),
                    Err(returned) => (returned.value, Err(returned.error.into())),
                }
            }
        };
        let (parameters, moments, pass, scratch) = whole;
        let copied = enqueued.and_then(|()| {
            self.steps += 1;
            Ok(s.copy_to_host(&pass.loss, &mut loss)?)
        });
        (self.state, self.pass, self.scratch) = (Some((parameters, moments)), Some(pass), Some((rows, scratch)));
        copied?;
        Ok(Loss::new(s.record(loss)?))
    }

    /// Makes room for a batch, and if it `learns` for gradients.
    pub(crate) fn make_room(&mut self, extent: Extent, learns: bool) -> Result<()> {
        let Self { stream: s, model, pass, products, .. } = self;
        let before = pass.as_ref().map(PassOn::room);
        if before.is_none_or(|room| !extent.fits(room)) {
            self.graphs.clear();
            // As much as before at least: batches of many rows and batches of many sequences may
            // take turns.
            *pass = None; // its memory is free before the new one is allocated
            *pass = Some(model.pass(s, *products, before.map_or(extent, |room| extent.or(room)))?);
        }
        if learns { self.make_scratch(extent) } else { Ok(()) }
    }

    /// Makes room for the gradients of a batch.
    pub(crate) fn make_scratch(&mut self, extent: Extent) -> Result<()> {
        let before = self.scratch.as_ref().map(|(room, _)| *room);
        if before.is_none_or(|room| !extent.fits(room)) {
            self.graphs.clear();
            self.scratch = None;
            let room = before.map_or(extent, |room| extent.or(room));
            self.scratch = Some((room, self.model.scratch(&self.stream, self.products, room)?));
        }
        Ok(())
    }

    /// Computes the logits and the loss of a batch from the host.
    fn predict(&mut self, batch: &impl HostBatch, learns: bool) -> Result<&mut PassOn<S, E>> {
        let extent = self.model.check(batch, learns)?;
        self.make_room(extent, learns)?;
        let Self { stream: s, model, state: Some((parameters, _)), pass: Some(pass), .. } = self else {
            return Err(Error::Lost);
        };
        pass.upload(s, batch, extent)?;
        model.predict(s, parameters, pass)?;
        Ok(pass)
    }

    fn state(&self) -> Result<&State<S, E>> {
        self.state.as_ref().ok_or(Error::Lost)
    }

    /// Computes logits, loss and the most likely classes of a batch, and waits for them. The
    /// weights do not change.
    ///
    /// # Errors
    /// The batch does not fit the model, there is no memory, or the device failed.
    pub fn evaluate(&mut self, batch: &impl HostBatch) -> Result<Evaluation> {
        let (s, classes) = (self.stream, self.model.config.num_classes);
        let labeled = batch.texts().is_some() || !batch.sequences().labels.is_empty();
        let pass = self.predict(batch, false)?;
        let b = pass.extent.losses();
        Ok(Evaluation {
            loss: if labeled { Some(s.read_blocking(&pass.loss)?[0]) } else { None },
            logits: s.read_blocking(pass.logits.slice(..b * classes)?)?,
            predictions: s.read_blocking(pass.best.slice(..b)?)?,
        })
    }

    /// Computes the tokens of a batch as the model sees them, [T, `input_dim`], and waits for them:
    /// those of a model with a [gate](crate::GateConfig) are multiplied by the gates of their
    /// patches.
    ///
    /// # Errors
    /// The batch does not fit the model, there is no memory, or the device failed.
    pub fn gated(&mut self, batch: &impl HostBatch) -> Result<Vec<f32>> {
        let (s, n) = (self.stream, batch.sequences().tokens.len());
        let pass = self.predict(batch, false)?;
        match &pass.gate {
            Some(gate) => Ok(s.read_blocking(gate.tokens(n)?)?),
            None => Ok(batch.sequences().tokens.to_vec()),
        }
    }

    /// Computes the gradients of a batch and waits for them. The weights do not change.
    ///
    /// # Errors
    /// The batch does not fit the model, there is no memory, or the device failed.
    pub fn gradients(&mut self, batch: &impl HostBatch) -> Result<Tensors> {
        self.predict(batch, true)?;
        let Self { stream: s, model, state: Some((parameters, moments)), pass, scratch, .. } = self else {
            return Err(Error::Lost);
        };
        let (Some(pass), Some((_, scratch))) = (pass, scratch) else { return Err(Error::Lost) };
        model.backward(s, parameters.view(), pass, scratch, &mut moments.gradient, false)?;
        let mut tensors = Tensors::default();
        model.layout.unflatten(&s.read_blocking(&moments.gradient)?, "", &mut tensors);
        Ok(tensors)
    }

    /// Returns the weights, and in the metadata the configuration. It waits for all steps.
    ///
    /// # Errors
    /// The device has failed.
    pub fn tensors(&self) -> Result<Tensors> {
        let mut tensors = Tensors::default();
        self.model.describe(&mut tensors);
        self.model.layout.unflatten(&self.stream.read_blocking(&self.state()?.0.values)?, "", &mut tensors);
        Ok(tensors)
    }

    /// Writes the weights to a safetensors file (see [`Tensors::save`]).
    ///
    /// # Errors
    /// The device has failed, or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.tensors()?.save(path)
    }

    /// Writes a checkpoint: weights, both moments, the number of steps, and what else the caller
    /// needs to go on, `progress`: its place in the data, and the state of its random numbers. The
    /// file is written beside its place and then renamed.
    ///
    /// # Errors
    /// The device has failed, or the file cannot be written. The last checkpoint is then still
    /// there.
    pub fn checkpoint(&self, path: impl AsRef<Path>, progress: &BTreeMap<String, String>) -> Result<()> {
        let mut tensors = self.tensors()?;
        let (layout, (_, moments)) = (&self.model.layout, self.state()?);
        layout.unflatten(&self.stream.read_blocking(&moments.adamw.first)?, "first.", &mut tensors);
        layout.unflatten(&self.stream.read_blocking(&moments.adamw.second)?, "second.", &mut tensors);
        tensors.metadata.insert("steps".into(), self.steps.to_string());
        if let Some(half) = self.model.frozen() {
            tensors.metadata.insert("frozen".into(), half.name().into());
        }
        for (key, value) in progress {
            tensors.metadata.insert(format!("progress.{key}"), value.clone());
        }
        tensors.save(path)
    }

    /// Makes a model from a checkpoint, and returns it with the progress that was saved. The next
    /// steps have the bits that they would have had without the interruption. Set the options of
    /// the optimizer again: a checkpoint does not have them.
    ///
    /// # Errors
    /// The file cannot be read or is no checkpoint, or there is no memory.
    pub fn restore(stream: &Stream<S>, path: impl AsRef<Path>) -> Result<(Self, BTreeMap<String, String>)> {
        let tensors = Tensors::load(path)?;
        let mut model = Self::from_tensors(stream, &tensors)?;
        let steps =
            tensors.value("steps")?.ok_or_else(|| tensors.format_error("the metadata has no `steps`".into()))?;
        if steps > MOST_STEPS {
            return Err(tensors.format_error(format!("`steps` is {steps}, and {MOST_STEPS} are the most")));
        }
        model.steps = steps;
        if let Some(name) = tensors.metadata.get("frozen") {
            let half = Half::ALL.into_iter().find(|half| half.name() == name);
            model.freeze(Some(half.ok_or_else(|| tensors.format_error(format!("`frozen` is {name:?}")))?))?;
        }
        let Self { model: Model { layout, .. }, state: Some((_, moments)), .. } = &mut model else {
            return Err(Error::Lost);
        };
        stream.write_blocking(&layout.flatten(&tensors, "first.")?, &mut moments.adamw.first)?;
        stream.write_blocking(&layout.flatten(&tensors, "second.")?, &mut moments.adamw.second)?;
        let progress = tensors.metadata.iter();
        let progress = progress.filter_map(|(k, v)| Some((k.strip_prefix("progress.")?.to_owned(), v.clone())));
        Ok((model, progress.collect()))
    }
}
