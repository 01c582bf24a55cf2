//! A batch on its way to the device.

use thalweg::{Error, Event};

use crate::assembly::Assembly;
use crate::batch::Batch;

/// A batch that left the decoders and is not yet ready for the consumer. Several uploads may end in
/// any order, and the consumer gets their batches in the order of the source.
pub(crate) struct InFlight<M: Clone + Send + 'static> {
    /// The number of the batch.
    pub(crate) number: u64,
    /// The position in the epoch of the first sample after it.
    pub(crate) through: u64,
    /// The bytes of its images.
    pub(crate) bytes: usize,
    /// It has its device memory.
    pub(crate) has_memory: bool,
    /// The errors that the consumer should hear before it gets the batch.
    pub(crate) errors: Vec<crate::Error>,
    pub(crate) holder: Holder<M>,
}

/// The holder of the batch.
pub(crate) enum Holder<M: Clone + Send + 'static> {
    /// The thread that uploads it.
    Thread,
    /// Nobody. There was no device memory, and it is tried again.
    Refused(Assembly<M>),
    Done(Outcome<M>),
}

impl<M: Clone + Send + 'static> InFlight<M> {
    pub(crate) fn new(front: &Assembly<M>) -> Self {
        let (number, through, bytes) = (front.number, front.through, front.amount().bytes);
        Self { number, through, bytes, has_memory: false, errors: Vec::new(), holder: Holder::Thread }
    }

    /// Whether it may still ask for device memory.
    pub(crate) fn wants_memory(&self) -> bool {
        match self.holder {
            Holder::Thread => !self.has_memory,
            Holder::Refused(_) => true,
            Holder::Done(_) => false,
        }
    }
}

/// The reason why a batch is not on the device.
pub(crate) enum Refused<M> {
    /// There is no device memory. The images are unchanged.
    NoMemory(Error, Assembly<M>),
    /// The files of some images cannot be read, or not decoded on the device. These images have
    /// become errors, or the host has decoded them.
    Unread(Assembly<M>),
    /// The device has failed.
    Failed(Error),
}

impl<M> From<Error> for Refused<M> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The result of the upload of a batch.
pub(crate) enum Outcome<M: Clone + Send + 'static> {
    /// There are none.
    Nothing,
    Batch(Event<Batch<M>>),
    NoMemory(Error, Assembly<M>),
    Failed(crate::Error),
}
