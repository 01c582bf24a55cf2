//! The position of a consumer.

/// The position of a consumer: what [`Loader::state`](crate::Loader::state) returns and
/// [`Loader::resume`](crate::Loader::resume) takes. Store its two numbers in a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderState {
    /// The number of the epoch.
    pub epoch: u64,
    /// The number of samples of this rank that the consumer has got in this epoch: those of all
    /// batches that `next` has returned, including those that failed.
    pub samples: u64,
}
