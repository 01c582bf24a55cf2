//! The models that the patterns train: a model on one device, or on several ranks.

use thalweg::{LiveBrand, Stream};

use crate::batch::StreamBatch;
use crate::error::Result;
use crate::precision::Precision;
use crate::transformer::{Loss, TokenTransformer};

/// A model that learns on stream `S` from batches that are on the device: a [`TokenTransformer`],
/// or `DataParallel`, with which several ranks learn together.
pub trait Trainable<S: LiveBrand> {
    /// Returns the stream that orders the model.
    fn stream(&self) -> Stream<S>;

    /// Enqueues a step, and returns at once. If there are several ranks, all of them call it.
    /// `losses` is the number of labels, or of ids that answer, of all of them together; without
    /// it each has as many as this one.
    ///
    /// # Errors
    /// The errors of [`TokenTransformer::step_on`] and of `DataParallel::step_on`.
    fn learn(&mut self, batch: &impl StreamBatch<S>, losses: Option<usize>) -> Result<Loss>;
}

impl<S: LiveBrand, E: Precision> Trainable<S> for TokenTransformer<S, E> {
    fn stream(&self) -> Stream<S> {
        Self::stream(self)
    }

    fn learn(&mut self, batch: &impl StreamBatch<S>, _: Option<usize>) -> Result<Loss> {
        self.step_on(batch)
    }
}
