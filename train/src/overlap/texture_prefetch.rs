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
use thalweg::{Activity, DeviceBuffer, Event, LiveBrand, Resource, Ring, Size, Stream, Timeline};
use thalweg_vision::{DeviceTokenValues, Pipeline, Workspace, layout};

use super::trainable::Trainable;
use crate::batch::DeviceBatch;
use crate::error::{Error, Result};
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
            let DeviceTokenValues::F32(tokens) = batch.workspace.tokens() else {
                return Err(Error::Batch("the pipeline makes tokens of 16 bits, and a model takes those of 32".into()));
            };
            let loss = model.learn(&DeviceBatch {
                tokens,
                position: batch.workspace.position(),
                cu_seqlens: batch.workspace.image_cu_seqlens(),
                labels: &batch.labels,
                padded: true,
            })?;
            seen(n, loss)
        })
        .run(items, timeline)
}
