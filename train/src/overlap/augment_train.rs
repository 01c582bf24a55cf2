//! Augments the next batch of images at random on the device, beside training on this one.
//!
//! ```text
//! upload  | up 0 | up 1 | up 2      | up 3      |
//! augment        | augment 0 | augment 1 | augment 2 |
//! train                      | train 0   | train 1   | train 2   |
//! ```

use std::ops::Range;

use thalweg::overlap::stages;
use thalweg::{Activity, DeviceBuffer, DeviceCopy, DeviceSlice, Event, LiveBrand, Resource, Ring, Stream, Timeline};
use thalweg_vision::augment::{Augmentation, Augmenter, Output};

use crate::error::{Error, Result};

/// A slot of [`augment_train`](fn@augment_train): a batch of images on its way. `T` is the type of
/// the augmented images, `f32` or [`bf16`](thalweg::simt::bf16). On a stream the slot has the form
/// [`AugmentedOn<S, T>`](AugmentedOn).
#[derive(Debug, Resource)]
pub struct Augmented<T: Output + DeviceCopy> {
    /// The pixels, interleaved RGB. The samples say where each image lies.
    pub rgb: DeviceBuffer<u8>,
    /// The class of each image.
    pub labels: DeviceBuffer<i32>,
    /// The augmentation of each image: [`prepare`](thalweg_vision::augment::AugmenterOn::prepare)
    /// sets it.
    pub augmenter: Augmenter,
    images: DeviceBuffer<T>,
}

impl<T: Output + DeviceCopy> Augmented<T> {
    /// Makes a slot for batches of `images` images, which have at most `bytes` bytes of pixels
    /// together and become `size` x `size` pixels each. The host waits for nothing.
    ///
    /// # Errors
    /// An option of the augmentation is out of its range, there is no memory, or the device failed.
    pub fn new<S: LiveBrand>(
        stream: &Stream<S>,
        augmentation: &Augmentation,
        bytes: usize,
        size: u32,
        images: usize,
    ) -> Result<Event<Self>> {
        let slot = AugmentedOn {
            rgb: stream.alloc_zeroed(bytes)?,
            labels: stream.alloc_zeroed(images)?,
            augmenter: augmentation.augmenter(stream, size, images)?,
            images: stream.alloc(images * 3 * size as usize * size as usize)?,
        };
        Ok(stream.record(slot)?)
    }
}

/// Augments batch after batch and trains on the results, and returns when all work is enqueued.
///
/// `input` enqueues, on the stream `upload`, what fills [`Augmented::rgb`] and
/// [`Augmented::labels`] of an item, and prepares [`Augmented::augmenter`] with as many samples as
/// the slot has labels. The stream `augment` makes the images, [B, 3, S, S]. `train` enqueues, on
/// the third stream, what learns from the images and their labels. Three slots keep three streams
/// busy.
///
/// What happens to an image depends on its parameters alone, so the results are those of one
/// stream, bit for bit. The host waits for nothing except in the closures, and allocates nothing
/// after the first items.
///
/// # Errors
/// There are no slots, the samples are not as many as the labels, there is no memory, the device
/// failed, or a closure returned an error. Items before the one that failed are trained on.
///
/// ```
/// use thalweg::{Device, Ring, Timeline, stream_tags};
/// use thalweg_train::overlap::{Augmented, augment_train};
/// use thalweg_vision::augment::{AugmentInput, Augmentation};
///
/// stream_tags!(Upload, Augment, Train);
/// let gpu = Device::best()?;
/// let (upload, augment, train) = (gpu.stream::<Upload>()?, gpu.stream::<Augment>()?, gpu.stream::<Train>()?);
/// let augmentation = Augmentation::default();
/// let (height, width) = (30, 40);
/// let slot = |_| Augmented::<f32>::new(&upload, &augmentation, 3 * 30 * 40, 16, 1);
/// let mut slots = (0..3).map(slot).collect::<Result<Ring<_>, _>>()?;
/// let mut kept = train.bind((0..6).map(|_| gpu.pinned::<f32>(3 * 16 * 16)).collect::<Result<Vec<_>, _>>()?)?;
/// augment_train(
///     (&upload, &augment, &train),
///     &mut slots,
///     0..6,
///     |s, n, batch| {
///         s.fill(&mut batch.rgb, 40 * n as u8)?; // here an image would be uploaded
///         let parameters = augmentation.parameters(7, 0, n as u64, width, height)?; // seed, epoch, index
///         Ok(batch.augmenter.prepare(s, &[AugmentInput { start: 0, height, width, parameters }])?)
///     },
///     |s, n, images, _labels| Ok(s.copy_to_host(images, &mut kept[n])?), // here a model would learn
///     &Timeline::disabled(),
/// )?; // returns at once
/// let kept = train.record(kept)?.synchronize()?;
/// assert!(kept[0][0] < kept[5][0]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub fn augment_train<U: LiveBrand, A: LiveBrand, B: LiveBrand, T: Output + DeviceCopy>(
    (upload, augment, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    slots: &mut Ring<Augmented<T>>,
    items: Range<usize>,
    input: impl FnMut(&Stream<U>, usize, &mut AugmentedOn<U, T>) -> Result<()>,
    mut learn: impl FnMut(&Stream<B>, usize, &DeviceSlice<B, T>, &DeviceSlice<B, i32>) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    stages::<_, Error>(slots)
        .step(upload, Activity::Upload, input)
        .step(augment, Activity::Compute, |s, _, batch| Ok(batch.augmenter.launch(s, &batch.rgb, &mut batch.images)?))
        .step(train, Activity::Compute, |s, n, batch| learn(s, n, &batch.images, &batch.labels))
        .run(items, timeline)
}
