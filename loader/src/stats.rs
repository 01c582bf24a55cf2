//! What a loader has done so far.

use std::time::Duration;

/// What a loader has done so far, over all epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Images decoded.
    pub images: u64,
    /// Bytes of these images.
    pub bytes: u64,
    /// Samples that failed, and the images of batches that were given up for want of device memory.
    pub failed: u64,
    /// Images for which no memory could be page-locked.
    pub pageable: u64,
    /// Time in decoders and in reads for [`Canvas::rgb_in_file`](crate::Canvas::rgb_in_file),
    /// summed over threads.
    pub decode: Duration,
    /// Time that the consumer spent in `next`, waiting for a batch.
    pub wait: Duration,
}
