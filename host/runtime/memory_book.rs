//! The counts of device memory, which a device has.

use std::sync::atomic::AtomicU64;

use super::memory_log::Log;

/// The counts of a device.
#[derive(Debug, Default)]
pub(crate) struct MemoryBook {
    pub(crate) in_use: AtomicU64,
    pub(crate) peak: AtomicU64,
    pub(crate) allocations: AtomicU64,
    pub(crate) log: Log,
}
