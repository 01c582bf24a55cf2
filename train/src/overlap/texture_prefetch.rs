//! Makes the adaptive tokens of the next batch of photographs beside training on this one.
//!
//! ```text
//! upload   | up 0 | up 1 | up 2    | up 3    |
//! textures        | textures, scores, allocation, tokens 0 | 1        | 2        |
//! train                                                    | train 0  | train 1  | train 2  |
//! ```
//!
//! The number of tokens is known on the device only, and no stage needs it on the host: a step
//! takes all rows that the budget allows, and the rows behind the last token are
//! [padding](crate::DeviceBatch::padded).

use std::ops::Range;

use thalweg::overlap::stages;
use thalweg::{Activity, Brand, DeviceBuffer, DeviceSlice, Event, LiveBrand, Resource, Ring, Size, Stream, Timeline};
use thalweg_vision::{DeviceTokenValues, Head, Pipeline, Query, Workspace, WorkspaceOn, layout};

use super::trainable::Trainable;
use crate::batch::{DeviceBatch, DevicePatches, DeviceTextBatch, Gated, TextBatch, upload};
use crate::error::{Error, Result};
use crate::gate::GateConfig;
use crate::transformer::Loss;

/// A slot of [`texture_prefetch`](fn@texture_prefetch): a batch of photographs on its way. On a
/// stream it has the form [`PhotographsOn<S>`](PhotographsOn).
#[derive(Debug, Resource)]
pub struct Photographs {
    /// The pixels, interleaved RGB, one image after another.
    /// [`BatchLayout::byte_range`](thalweg_vision::kernels::BatchLayout::byte_range) says where
    /// each image lies.
    pub rgb: DeviceBuffer<u8>,
    /// The class of each image.
    pub labels: DeviceBuffer<i32>,
    /// The workspace that makes the tokens. [`set_query`](thalweg_vision::WorkspaceOn::set_query)
    /// gives it the query of the batch.
    pub workspace: Workspace,
}

impl Photographs {
    /// Makes a slot for batches of images of these sizes (height, width). The host waits for
    /// nothing.
    ///
    /// # Errors
    /// The pipeline cannot make tokens of such images, there is no memory, or the device failed.
    pub fn new<S: LiveBrand>(stream: &Stream<S>, pipeline: &Pipeline, sizes: &[Size]) -> Result<Event<Self>> {
        let layout = layout(sizes, pipeline.params().patch)?;
        let slot = PhotographsOn {
            rgb: stream.alloc_zeroed(layout.bytes() as usize)?,
            labels: stream.alloc_zeroed(sizes.len())?,
            workspace: pipeline.workspace(stream, sizes)?,
        };
        Ok(stream.record(slot)?)
    }
}

/// Trains a model on the tokens of photographs, batch after batch, and returns when all work is
/// enqueued.
///
/// `input` enqueues, on the stream `upload`, what fills [`Photographs::rgb`] and
/// [`Photographs::labels`] of an item, and if the pipeline has a query, the query of the item. The
/// stream `textures` makes the tokens, each image one sequence, and the model learns from them on
/// its own stream. `seen` gets the loss of each step. Read it some steps later, or never: reading
/// makes the host wait. Three slots keep three streams busy.
///
/// With [`DataParallel`](super::DataParallel) as the model, several ranks learn from their own
/// photographs, and the reduction of the gradients runs beside the backward pass. Each needs as
/// many items.
///
/// If all stages are on one stream, the results are the same, bit for bit. The host waits for
/// nothing except in the closures, and allocates nothing after the first items.
///
/// # Errors
/// There are no slots, the tokens do not fit the model or have 16 bits, there is no memory, the
/// device failed, or a closure returned an error. The model is then as after the last item whose
/// loss `seen` got.
///
/// ```
/// use thalweg::{Device, Ring, Size, Timeline, stream_tags};
/// use thalweg_train::overlap::{Photographs, texture_prefetch};
/// use thalweg_train::{TokenTransformerConfig, TokenTransformer};
/// use thalweg_vision::{PLANES, TokenParams, Pipeline};
///
/// stream_tags!(Upload, Textures, Train);
/// let gpu = Device::best()?;
/// let (upload, textures) = (gpu.stream::<Upload>()?, gpu.stream::<Textures>()?);
/// let pipeline = Pipeline::new(gpu, TokenParams::default().with_patch(8).with_budget(64).with_sides(2..=4))?;
/// let config = TokenTransformerConfig::default()
///     .with_input_dim(PLANES)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_depth(1)
///     .with_num_classes(2);
/// let mut model = TokenTransformer::<_, f32>::new(&gpu.stream::<Train>()?, config, 7)?;
///
/// let sizes = [Size::new(32, 40), Size::new(24, 24)]; // two images a batch
/// let slots = (0..3).map(|_| Photographs::new(&upload, &pipeline, &sizes));
/// let mut slots = slots.collect::<Result<Ring<_>, _>>()?;
/// let mut losses = Vec::new();
/// texture_prefetch(
///     (&upload, &textures),
///     &mut model,
///     &mut slots,
///     0..30,
///     |s, n, batch| {
///         s.fill(&mut batch.rgb, if n % 2 == 0 { 30 } else { 200 })?; // here photographs would be uploaded
///         Ok(s.fill(&mut batch.labels, (n % 2) as i32)?)
///     },
///     |_, loss| Ok(losses.push(loss)),
///     &Timeline::disabled(),
/// )?; // returns at once
/// let losses = losses.into_iter().map(|loss| loss.item()).collect::<Result<Vec<_>, _>>()?;
/// assert!(losses[29] < losses[1]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub fn texture_prefetch<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    (upload, textures): (&Stream<U>, &Stream<A>),
    model: &mut impl Trainable<B>,
    slots: &mut Ring<Photographs>,
    items: Range<usize>,
    input: impl FnMut(&Stream<U>, usize, &mut PhotographsOn<U>) -> Result<()>,
    mut seen: impl FnMut(usize, Loss) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    let train = model.stream();
    stages::<_, Error>(slots)
        .step(upload, Activity::Upload, input)
        .step(textures, Activity::Compute, |s, _, batch| Ok(batch.workspace.enqueue(s, &batch.rgb)?))
        .step(&train, Activity::Compute, |_, n, batch| {
            let batch = DeviceBatch {
                tokens: numbers(&batch.workspace)?,
                position: batch.workspace.position(),
                cu_seqlens: batch.workspace.image_cu_seqlens(),
                labels: &batch.labels,
                padded: true,
            };
            seen(n, model.learn(&batch, None)?)
        })
        .run(items, timeline)
}

/// A slot of [`texture_prefetch_texts`]: a batch of photographs with a question and an answer for
/// each, on its way. On a stream it has the form [`AskedPhotographsOn<S>`](AskedPhotographsOn).
#[derive(Debug, Resource)]
pub struct AskedPhotographs {
    /// The pixels, as in [`Photographs`].
    pub rgb: DeviceBuffer<u8>,
    /// The workspace that makes the tokens. [`set_queries`](AskedPhotographsOn::set_queries) gives it
    /// the queries of the batch.
    pub workspace: Workspace,
    ids: DeviceBuffer<i32>,
    ends: DeviceBuffer<i32>,
    question: DeviceBuffer<i32>,
    /// The queries as the gate of the model takes them, or nothing if it has none.
    query: DeviceBuffer<f32>,
    cu_patches: DeviceBuffer<i32>,
    /// The numbers of ids and of those that answer.
    #[resource(plain)]
    counts: [usize; 2],
    /// The number of ids of all ranks that answer, if it was given.
    #[resource(plain)]
    of_all: Option<usize>,
    /// Whether the gate has its queries.
    #[resource(plain)]
    asked: bool,
}

impl AskedPhotographs {
    /// Makes a slot for batches of images of these sizes (height, width), with at most `ids` ids of
    /// texts together. The host waits for nothing. `gate` is that of the model, if it has one.
    ///
    /// # Errors
    /// The pipeline has no query or cannot make tokens of such images, there is no memory, or the
    /// device failed.
    pub fn new<S: LiveBrand>(
        stream: &Stream<S>,
        pipeline: &Pipeline,
        sizes: &[Size],
        ids: usize,
        gate: Option<GateConfig>,
    ) -> Result<Event<Self>> {
        let (layout, images) = (layout(sizes, pipeline.params().patch)?, sizes.len());
        let patches = sizes.iter().scan(0, |end, &size| {
            let Size { height, width } = pipeline.params().grid(size);
            *end += (height * width) as i32;
            Some(*end)
        });
        let mut cu_patches = stream.alloc(images + 1)?;
        upload(stream, &[0].into_iter().chain(patches).collect::<Vec<_>>(), &mut cu_patches)?;
        let slot = AskedPhotographsOn {
            rgb: stream.alloc_zeroed(layout.bytes() as usize)?,
            workspace: pipeline.workspace_for_queries(stream, sizes)?,
            ids: stream.alloc(ids)?,
            ends: stream.alloc(images + 1)?,
            question: stream.alloc(images)?,
            query: stream.alloc(gate.map_or(0, |gate| gate.query_dim.saturating_mul(images)))?,
            cu_patches,
            counts: [0; 2],
            of_all: None,
            asked: false,
        };
        Ok(stream.record(slot)?)
    }
}

impl<S: LiveBrand> AskedPhotographsOn<S> {
    /// Enqueues the copies of the texts of a batch: `ids`, `text_cu_seqlens` and `question` are
    /// those of a [`TextBatch`]. The host waits for nothing. `answers` is the number of ids that
    /// answer of all ranks together; without it each rank has as many as this one. The slot does
    /// not know the model: an id that this does not have makes the loss NaN.
    ///
    /// # Errors
    /// The texts do not fit one another, the images or the slot, there is no memory, or the device
    /// failed.
    pub fn ask(
        &mut self,
        stream: &Stream<S>,
        [ids, text_cu_seqlens, question]: [&[i32]; 3],
        answers: Option<usize>,
    ) -> Result<()> {
        let texts = TextBatch { tokens: &[], position: &[], cu_seqlens: &[], ids, text_cu_seqlens, question };
        texts.check(self.ends.len() - 1, [usize::MAX, i32::MAX as usize])?;
        if ids.len() > self.ids.len() {
            return Err(Error::Batch(format!("{} ids of texts, and room for {}", ids.len(), self.ids.len())));
        }
        upload(stream, ids, &mut self.ids)?;
        upload(stream, text_cu_seqlens, &mut self.ends)?;
        upload(stream, question, &mut self.question)?;
        (self.counts, self.of_all) = ([ids.len(), texts.answers()], answers);
        Ok(())
    }

    /// Enqueues the copies of the queries of a batch, one for each image, to the scores of the
    /// pipeline and to the gate of the model. `head` is the pipeline's.
    ///
    /// # Errors
    /// The errors of [`set_queries`](thalweg_vision::WorkspaceOn::set_queries), or the gate takes
    /// queries of another dimension.
    pub fn set_queries(&mut self, stream: &Stream<S>, head: &Head, queries: &[Query]) -> Result<()> {
        let numbers: Vec<_> = queries.iter().flat_map(Query::numbers).copied().collect();
        let gated = !self.query.is_empty();
        if gated && numbers.len() != self.query.len() {
            let what = format!("queries of {} numbers together, and not {}", numbers.len(), self.query.len());
            return Err(Error::Batch(what));
        }
        self.workspace.set_queries(stream, head, queries)?;
        if gated {
            upload(stream, &numbers, &mut self.query)?;
        }
        self.asked = true;
        Ok(())
    }
}

/// Trains a model that answers on photographs with questions, batch after batch, and returns when
/// all work is enqueued: [`texture_prefetch`](fn@texture_prefetch) with texts in the place of
/// classes.
///
/// `input` enqueues, on the stream `upload`, what fills [`AskedPhotographs::rgb`] of an item, its
/// texts ([`ask`](AskedPhotographsOn::ask)) and its queries
/// ([`set_queries`](AskedPhotographsOn::set_queries)). The stream `textures` makes the tokens of
/// each image for its query, and the model learns from tokens, question and answer on its own
/// stream. If it has a [gate](GateConfig), the query head learns, too; the allocation is that of
/// the head that `input` gives.
///
/// If all stages are on one stream, the results are the same, bit for bit. The host waits for
/// nothing except in the closures, and allocates nothing after the first items if no item has more
/// ids, or more that answer, than those before, and there are at most eight pairs of these numbers,
/// for each of which the model keeps a graph.
///
/// # Errors
/// The errors of [`texture_prefetch`](fn@texture_prefetch), or a slot of a model with a gate never
/// had queries.
///
/// ```
/// use thalweg::{Device, Ring, Size, Timeline, stream_tags};
/// use thalweg_train::overlap::{AskedPhotographs, texture_prefetch_texts};
/// use thalweg_train::{GateConfig, TokenTransformer, VisionLanguageConfig};
/// use thalweg_vision::{Head, PLANES, Pipeline, Query, TokenParams};
///
/// stream_tags!(Upload, Textures, Train);
/// let gpu = Device::best()?;
/// let (upload, textures) = (gpu.stream::<Upload>()?, gpu.stream::<Textures>()?);
/// let gate = Some(GateConfig::default().with_query_dim(2));
/// let config = VisionLanguageConfig::default()
///     .with_input_dim(PLANES)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_depth(1)
///     .with_text_embed_dim(16)
///     .with_text_num_heads(2)
///     .with_text_depth(1)
///     .with_vocab_size(8)
///     .with_gate(gate);
/// let mut model = TokenTransformer::<_, f32>::answering(&gpu.stream::<Train>()?, config, 7)?;
///
/// // The head is the model's own: its file has the names that the head reads.
/// let path = std::env::temp_dir().join(format!("thalweg-asked-{}.safetensors", std::process::id()));
/// model.save(&path)?;
/// let head = Head::from_safetensors(&std::fs::read(&path).unwrap())?;
/// # std::fs::remove_file(&path).unwrap();
/// let queries = [Query::new(&[1.0, 0.0])?, Query::new(&[0.0, 1.0])?];
/// let params = TokenParams::default().with_patch(8).with_budget(64).with_sides(2..=4);
/// let pipeline = Pipeline::new(gpu, params)?.with_query(&head, &queries[0])?;
///
/// let sizes = [Size::new(32, 40), Size::new(24, 24)]; // two images a batch
/// let slots = (0..3).map(|_| AskedPhotographs::new(&upload, &pipeline, &sizes, 16, gate));
/// let mut slots = slots.collect::<Result<Ring<_>, _>>()?;
/// let mut losses = Vec::new();
/// texture_prefetch_texts(
///     (&upload, &textures),
///     &mut model,
///     &mut slots,
///     0..30,
///     |s, n, batch| {
///         s.fill(&mut batch.rgb, 200)?; // here photographs would be uploaded
///         batch.set_queries(s, &head, &queries)?;
///         let answer = 4 + (n % 2) as i32;
///         // "1" is answered by 4 or 5, as "1 2" is.
///         batch.ask(s, [&[1, answer, 0, 1, 2, answer, 0], &[0, 3, 7], &[1, 2]], None)
///     },
///     |_, loss| Ok(losses.push(loss)),
///     &Timeline::disabled(),
/// )?; // returns at once
/// let losses = losses.into_iter().map(|loss| loss.item()).collect::<Result<Vec<_>, _>>()?;
/// assert!(losses[29] < losses[1]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub fn texture_prefetch_texts<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    (upload, textures): (&Stream<U>, &Stream<A>),
    model: &mut impl Trainable<B>,
    slots: &mut Ring<AskedPhotographs>,
    items: Range<usize>,
    input: impl FnMut(&Stream<U>, usize, &mut AskedPhotographsOn<U>) -> Result<()>,
    mut seen: impl FnMut(usize, Loss) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    let train = model.stream();
    stages::<_, Error>(slots)
        .step(upload, Activity::Upload, input)
        .step(textures, Activity::Compute, |s, _, batch| Ok(batch.workspace.enqueue(s, &batch.rgb)?))
        .step(&train, Activity::Compute, |_, n, slot| {
            let (workspace, [ids, answers], of) = (&slot.workspace, slot.counts, slot.of_all);
            let batch = DeviceTextBatch {
                tokens: numbers(workspace)?,
                position: workspace.position(),
                cu_seqlens: workspace.image_cu_seqlens(),
                ids: slot.ids.slice(..ids)?,
                text_cu_seqlens: &slot.ends,
                question: &slot.question,
                answers,
                padded: true,
            };
            let loss = if slot.query.is_empty() {
                model.learn(&batch, of)
            } else if !slot.asked {
                Err(Error::Batch("the gate has no queries: `set_queries` gives them".into()))
            } else {
                let patches = DevicePatches {
                    features: workspace.features(),
                    entropy: workspace.entropy(),
                    salience: workspace.salience(),
                    cu_patches: &slot.cu_patches,
                    cu_seqlens: workspace.cu_seqlens(),
                    patch_id: workspace.patch_id(),
                    query: &slot.query,
                };
                model.learn(&Gated { batch, patches }, of)
            };
            seen(n, loss?)
        })
        .run(items, timeline)
}

/// Returns the tokens of a workspace, which a model takes in 32 bits.
fn numbers<S: Brand>(workspace: &WorkspaceOn<S>) -> Result<&DeviceSlice<S, f32>> {
    match workspace.tokens() {
        DeviceTokenValues::F32(tokens) => Ok(tokens),
        _ => Err(Error::Batch("the pipeline makes tokens of 16 bits, and a model takes those of 32".into())),
    }
}
