//! Encodes batch N + 1 by a frozen encoder beside training on the features of batch N.
//!
//! ```text
//! encoder | encode 0 | encode 1 | encode 2 | encode 3 |
//! model              | train 0     | train 1     | train 2     | train 3     |
//! ```

use std::ops::Range;

use thalweg::overlap::stages;
use thalweg::{Activity, DeviceBuffer, Event, LiveBrand, Resource, Ring, Stream, Timeline};

use crate::batch::{DeviceBatch, upload};
use crate::encoder::ImageEncoder;
use crate::error::{Error, Result};
use crate::precision::Precision;
use crate::transformer::{Loss, TokenTransformer};

/// A slot of [`encoder_decoder`](fn@encoder_decoder): a batch of images on its way. On a stream it
/// has the form [`EncodedOn<S>`](EncodedOn).
#[derive(Debug, Resource)]
pub struct Encoded {
    /// The images, [images, 3, size, size], as the encoder takes them.
    pub pixels: DeviceBuffer<f32>,
    /// The class of each image.
    pub labels: DeviceBuffer<i32>,
    /// The rows behind the encoder's last norm, and where they lie.
    features: DeviceBuffer<f32>,
    position: DeviceBuffer<f32>,
    cu_seqlens: DeviceBuffer<i32>,
}

impl Encoded {
    /// Makes a slot for batches of `images` images. The host waits for nothing.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new<S: LiveBrand, E: Precision>(encoder: &ImageEncoder<S, E>, images: usize) -> Result<Event<Self>> {
        let (s, config) = (encoder.stream(), encoder.config());
        let rows = config.rows();
        let mut slot = EncodedOn {
            pixels: s.alloc(images * config.pixels())?,
            labels: s.alloc_zeroed(images)?,
            features: s.alloc(images * rows * config.embed_dim)?,
            position: s.alloc(2 * images * rows)?,
            cu_seqlens: s.alloc(images + 1)?,
        };
        upload(&s, &config.positions().repeat(images), &mut slot.position)?;
        let ends: Vec<i32> = (0..=images).map(|i| (i * rows) as i32).collect();
        upload(&s, &ends, &mut slot.cu_seqlens)?;
        Ok(s.record(slot)?)
    }
}

/// Trains a model on the features that a frozen encoder computes of batch after batch, and returns
/// when all work is enqueued.
///
/// `input` enqueues, on the encoder's stream, what fills [`Encoded::pixels`] and
/// [`Encoded::labels`] of an item. The model, on its own stream, takes each image as a sequence of
/// the encoder's rows, so its tokens have as many numbers as a row of the encoder. `seen` gets the
/// loss of each step. Read it some steps later, or never: reading makes the host wait. With two
/// slots, encoding is one batch ahead.
///
/// If encoder and model are on the same stream, or there is one slot, the results are the same, bit
/// for bit. The host waits for nothing except in the closures, and allocates nothing after the
/// first items.
///
/// # Errors
/// There are no slots, the features do not fit the model, there is no memory, the device failed, or
/// a closure returned an error. The model is then as after the last item whose loss `seen` got.
///
/// ```
/// use thalweg::{Device, Ring, Timeline, stream_tags};
/// use thalweg_train::overlap::{Encoded, encoder_decoder};
/// use thalweg_train::{TokenTransformerConfig, EncoderConfig, ImageEncoder, TokenTransformer};
///
/// stream_tags!(Encode, Train);
/// let gpu = Device::best()?;
/// let (encode, train) = (gpu.stream::<Encode>()?, gpu.stream::<Train>()?);
/// let shape = EncoderConfig::default()
///     .with_image_size(32)
///     .with_patch_size(8)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_depth(2)
///     .with_num_classes(0);
/// let mut encoder = ImageEncoder::<_, f32>::new(&encode, shape, 1)?; // or `from_tensors`, with trained weights
/// let config = TokenTransformerConfig::default()
///     .with_input_dim(encoder.config().embed_dim)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_depth(1)
///     .with_num_classes(2);
/// let mut head = TokenTransformer::<_, f32>::new(&train, config, 7)?;
///
/// let mut slots = (0..2).map(|_| Encoded::new(&encoder, 3)).collect::<Result<Ring<_>, _>>()?;
/// let mut losses = Vec::new();
/// encoder_decoder(
///     &mut encoder,
///     &mut head,
///     &mut slots,
///     0..20,
///     |s, n, batch| {
///         s.fill(&mut batch.pixels, if n % 2 == 0 { 0.5 } else { -0.5 })?; // here images would be uploaded
///         Ok(s.fill(&mut batch.labels, (n % 2) as i32)?)
///     },
///     |_, loss| Ok(losses.push(loss)),
///     &Timeline::disabled(),
/// )?; // returns at once
/// let losses = losses.into_iter().map(|loss| loss.item()).collect::<Result<Vec<_>, _>>()?;
/// assert!(losses[19] < losses[1]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub fn encoder_decoder<A: LiveBrand, B: LiveBrand, E: Precision, H: Precision>(
    encoder: &mut ImageEncoder<A, E>,
    model: &mut TokenTransformer<B, H>,
    slots: &mut Ring<Encoded>,
    items: Range<usize>,
    mut input: impl FnMut(&Stream<A>, usize, &mut EncodedOn<A>) -> Result<()>,
    mut seen: impl FnMut(usize, Loss) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    let (encode, train) = (encoder.stream(), model.stream());
    stages::<_, Error>(slots)
        .step(&encode, Activity::Compute, |s, n, batch| {
            input(s, n, batch)?;
            Ok(s.copy(encoder.features(&batch.pixels)?, &mut batch.features)?)
        })
        .step(&train, Activity::Compute, |_, n, batch| {
            let loss = model.step_on(&DeviceBatch {
                tokens: &batch.features,
                position: &batch.position,
                cu_seqlens: &batch.cu_seqlens,
                labels: &batch.labels,
                padded: false,
            })?;
            seen(n, loss)
        })
        .run(items, timeline)
}
