//! Allocations without the type of their elements: their owners, and how they are given back.

mod pool;
mod reclaim;
mod split;
mod stats;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use pool::{PinnedBlock, Pool, PoolKind};
pub(crate) use reclaim::{When, give_back};
pub(crate) use split::{Split, adjacent};
pub use stats::MemoryStats;

use super::device::Device;
use super::event::Lease;
use super::memory_log::Allocator;

/// Returns a number that no other allocation has or will have. It tells an allocation from a later
/// one at the same address. The number 0 means no memory.
pub(crate) fn next_allocation() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// An allocation, or a piece of one, of either kind of memory.
#[derive(Debug)]
pub(crate) enum Memory {
    Device(Owned<DeviceBlock>),
    Pinned(Owned<PinnedBlock>),
}

/// The share that a buffer has in an allocation.
#[derive(Debug)]
pub(crate) enum Owned<B: Block> {
    /// The whole allocation.
    Whole(B),
    /// A piece of an allocation of which others may hold pieces too.
    Piece(Arc<Split<B>>),
    /// Nothing: the buffer has no elements, or its memory was taken.
    Empty,
}

/// An allocation that can be given back once events are complete.
pub(crate) trait Block: Send + Sync + Sized + 'static {
    /// Gives the allocation back after the events, without blocking. [`Memory::release`] calls
    /// this.
    fn release(self, after: Vec<Lease>);
    /// Wraps it as memory, without the block's type.
    fn memory(block: Owned<Self>) -> Memory;
    /// The number of the allocation, from [`next_allocation`].
    fn allocation(&self) -> u64;
}

/// An allocation in device memory.
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    pub(crate) addr: u64,
    pub(crate) bytes: usize,
    pub(crate) allocation: u64,
    pub(crate) device: Device,
}

impl DeviceBlock {
    #[track_caller]
    pub(crate) fn new(device: Device, addr: u64, bytes: usize, by: Allocator) -> Self {
        let allocation = next_allocation();
        stats::count(device, allocation, bytes, by);
        Self { addr, bytes, allocation, device }
    }
}

/// A block counts as in use as long as it has an owner.
impl Drop for DeviceBlock {
    fn drop(&mut self) {
        stats::count_less(self.device, self.allocation, self.bytes);
    }
}

impl Block for DeviceBlock {
    fn release(self, after: Vec<Lease>) {
        self.device.free(self.addr, self.bytes, &after);
    }
    fn memory(block: Owned<Self>) -> Memory {
        Memory::Device(block)
    }
    fn allocation(&self) -> u64 {
        self.allocation
    }
}

impl<B: Block> Owned<B> {
    /// Takes the allocation and leaves [`Empty`](Self::Empty).
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Empty)
    }

    fn release(self, after: Vec<Lease>) {
        match self {
            Self::Whole(block) => block.release(after),
            Self::Piece(split) => after.into_iter().for_each(|event| split.add(event)),
            Self::Empty => {}
        }
    }

    /// The number of the allocation, or of the one that this is a piece of; 0 for none.
    #[inline]
    pub(crate) fn allocation(&self) -> u64 {
        match self {
            Self::Whole(block) => block.allocation(),
            Self::Piece(split) => split.allocation(),
            Self::Empty => 0,
        }
    }

    /// The shared form, which can be split into pieces; `None` for no memory.
    pub(crate) fn share(self) -> Option<Arc<Split<B>>> {
        match self {
            Self::Whole(block) => Some(Arc::new(Split::new(block))),
            Self::Piece(split) => Some(split),
            Self::Empty => None,
        }
    }
}

impl Memory {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Device(Owned::Empty) | Self::Pinned(Owned::Empty))
    }

    /// Gives the memory back after the events, or at once if there are none. Only [`give_back`]
    /// calls this, because it checks whether the device may be called here.
    pub(crate) fn release(self, after: Vec<Lease>) {
        match self {
            Self::Device(block) => block.release(after),
            Self::Pinned(block) => block.release(after),
        }
    }
}
