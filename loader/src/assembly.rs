//! A batch in the making: its samples, decoded or failed.

use std::time::Instant;

use thalweg::Size;

use crate::DecodeError;
use crate::error::{Error, Result};
use crate::image_sink::Pixels;

pub(crate) struct Decoded<M> {
    pub(crate) index: u64,
    pub(crate) name: String,
    pub(crate) size: Size,
    pub(crate) pixels: Pixels,
    pub(crate) meta: M,
}

/// The number of images of a batch, and their bytes together.
#[derive(Clone, Copy, Default)]
pub(crate) struct Amount {
    pub(crate) images: usize,
    pub(crate) bytes: usize,
}

/// A batch in the making.
pub(crate) struct Assembly<M> {
    /// The number of times that the loader had started when it was begun.
    pub(crate) round: u64,
    /// Its number in the round.
    pub(crate) number: u64,
    /// The position in the epoch of the first sample after it.
    pub(crate) through: u64,
    /// The time at which its last sample came.
    pub(crate) complete: Option<Instant>,
    pub(crate) slots: Vec<Option<Result<Decoded<M>>>>,
    /// The number of slots that are still empty.
    pub(crate) missing: usize,
    /// It has as many samples as a full batch, whatever becomes of them.
    pub(crate) whole: bool,
    /// The indices of the samples that failed: those whose errors were taken out, and those that
    /// were given up.
    pub(crate) failed: Vec<u64>,
    /// The number of times that the consumer was told that there is no device memory for it.
    pub(crate) refused: u32,
}

impl<M> Assembly<M> {
    pub(crate) fn new(round: u64, number: u64, through: u64, samples: usize, whole: bool) -> Self {
        let slots = (0..samples).map(|_| None).collect();
        let failed = Vec::new();
        Self { round, number, through, complete: None, slots, missing: samples, whole, failed, refused: 0 }
    }

    pub(crate) fn fill(&mut self, slot: usize, outcome: Result<Decoded<M>>) {
        self.slots[slot] = Some(outcome);
        self.missing -= 1;
        self.complete = (self.missing == 0).then(Instant::now);
    }

    pub(crate) fn images(&self) -> impl Iterator<Item = &Decoded<M>> {
        self.slots.iter().flatten().flatten()
    }

    #[cfg(feature = "jpeg-device")]
    pub(crate) fn images_mut(&mut self) -> impl Iterator<Item = &mut Decoded<M>> {
        self.slots.iter_mut().flatten().flatten()
    }

    pub(crate) fn amount(&self) -> Amount {
        self.images().fold(Amount::default(), |Amount { images, bytes }, image| Amount {
            images: images + 1,
            bytes: bytes.saturating_add(image.pixels.len()),
        })
    }

    /// Takes the errors out.
    pub(crate) fn errors(&mut self) -> Vec<Error> {
        let errors: Vec<_> =
            self.slots.extract_if(.., |slot| matches!(slot, Some(Err(_)))).filter_map(|slot| slot?.err()).collect();
        self.failed.extend(errors.iter().filter_map(Error::sample));
        errors
    }

    /// The indices of its samples, in their order.
    pub(crate) fn order(&self) -> Vec<Option<u64>> {
        let index = |slot: &Option<Result<Decoded<M>>>| match slot {
            Some(Ok(image)) => Some(image.index),
            Some(Err(error)) => error.sample(),
            None => None,
        };
        self.slots.iter().map(index).collect()
    }

    /// Turns an image into an error. Returns both.
    pub(crate) fn lose(&mut self, image: usize, cause: impl Into<DecodeError>) -> Option<(Decoded<M>, Error)> {
        let slot = self.slots.iter_mut().filter(|slot| matches!(slot, Some(Ok(_)))).nth(image)?;
        let lost = slot.take()?.ok()?;
        let error = Error::of_sample(lost.index, lost.name.clone(), cause);
        *slot = Some(Err(error.clone()));
        Some((lost, error))
    }

    /// Takes the images out. Their samples count as failed.
    pub(crate) fn give_up(&mut self) -> Vec<Decoded<M>> {
        let images: Vec<_> = std::mem::take(&mut self.slots).into_iter().flatten().flatten().collect();
        self.failed.extend(images.iter().map(|image| image.index));
        images
    }

    pub(crate) fn into_images(self) -> impl Iterator<Item = Decoded<M>> {
        self.slots.into_iter().flatten().flatten()
    }
}
