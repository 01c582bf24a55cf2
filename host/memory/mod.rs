//! Buffers in device memory and in page-locked host memory.

mod buffer;
mod peer;
mod pinned;
mod pool;
mod split;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use buffer::DeviceBuffer;
pub use peer::{PeerBuffer, PeerSlice};
pub use pinned::PinnedBuffer;
pub use pool::PinnedPool;
pub(crate) use pool::Pool;
pub(crate) use split::Split;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::Lease;

/// Plain data that a buffer can hold: any bit pattern is a value, and nothing is behind a pointer.
///
/// Implemented for every [`bytemuck::Pod`] type that threads may share; buffers of a type of size 0 do not compile.
#[diagnostic::on_unimplemented(
    message = "a buffer cannot hold elements of `{Self}`",
    label = "not plain data",
    note = "elements are `bytemuck::Pod`, such as numbers and arrays of them; for a struct of them derive `Pod`, for `bool` use `u8`"
)]
pub trait Plain: bytemuck::Pod + Send + Sync {}
impl<T: bytemuck::Pod + Send + Sync> Plain for T {}

/// Alignment of every allocation, in bytes.
pub(crate) const ALIGNMENT: usize = 256;

/// An address for buffers without elements.
pub(crate) const EMPTY: NonNull<u8> = NonNull::new(std::ptr::without_provenance_mut(ALIGNMENT)).expect("not null");

/// Refuses element types that no buffer can hold. Called in a constant of each public function that makes buffers, since
/// the compiler shows where the function that holds the constant is used.
pub(crate) const fn element<T: Plain>() {
    assert!(size_of::<T>() > 0, "a buffer's element type must have a size");
    assert!(align_of::<T>() <= ALIGNMENT, "a buffer's element type is aligned to at most 256 bytes");
}

/// The bytes of `len` elements.
pub(crate) fn byte_len<T: Plain>(len: usize) -> Result<usize> {
    const { element::<T>() }
    len.checked_mul(size_of::<T>())
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or(Error::TooLarge { elements: len, size: size_of::<T>() })
}

/// A number for an allocation that no other has or will have, so that one is told from a later one in the same place. 0 is for no
/// memory.
pub(crate) fn next_allocation() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// What kind of leaf, for the check against a stream's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafKind {
    /// Device memory: usable on streams of its own device.
    Device,
    /// Page-locked memory: usable on streams of every device of its kind.
    Pinned,
    /// Device memory for copies between devices.
    Peer,
}

/// A range of memory and how it is given back.
#[derive(Debug)]
pub(crate) enum Memory {
    Device(Owned<DeviceBlock>),
    Pinned(Owned<PinnedBlock>),
}

/// A whole allocation, or a piece of one that others hold pieces of too.
#[derive(Debug)]
pub(crate) enum Owned<B: Block> {
    Whole(B),
    Piece(Arc<Split<B>>),
    /// Nothing: a buffer without elements, or one whose memory was taken.
    Empty,
}

/// An allocation that can be given back once events are complete.
pub(crate) trait Block: Send + Sync + Sized + 'static {
    /// Gives the allocation back after the events; never blocks. For [`Memory::release`].
    fn release(self, after: Vec<Lease>);
    /// Its memory, without the block's type.
    fn memory(block: Owned<Self>) -> Memory;
    /// The number of the allocation.
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

/// An allocation in page-locked memory, lent by a pool.
#[derive(Debug)]
pub(crate) struct PinnedBlock {
    pub(crate) ptr: NonNull<u8>,
    pub(crate) capacity: usize,
    /// Of the system's allocation, which a pool lends again and again.
    pub(crate) allocation: u64,
    pub(crate) pool: Arc<Pool>,
}

// SAFETY: it owns its memory as a `Box` would.
unsafe impl Send for PinnedBlock {}
// SAFETY: as above; it gives no access to the memory.
unsafe impl Sync for PinnedBlock {}

impl Block for PinnedBlock {
    fn release(self, after: Vec<Lease>) {
        let pool = self.pool.clone();
        pool.give_back(self, after);
    }
    fn memory(block: Owned<Self>) -> Memory {
        Memory::Pinned(block)
    }
    fn allocation(&self) -> u64 {
        self.allocation
    }
}

impl<B: Block> Owned<B> {
    /// Takes the allocation and leaves nothing.
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

    /// The number of the allocation that this is, or is a piece of.
    #[inline]
    pub(crate) fn allocation(&self) -> u64 {
        match self {
            Self::Whole(block) => block.allocation(),
            Self::Piece(split) => split.allocation(),
            Self::Empty => 0,
        }
    }

    /// The shared form, for splitting.
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

    /// Gives the memory back after the events, or at once where there are none. For
    /// [`reclaim::give_back`](crate::reclaim::give_back), which knows where this may be called.
    pub(crate) fn release(self, after: Vec<Lease>) {
        match self {
            Self::Device(block) => block.release(after),
            Self::Pinned(block) => block.release(after),
        }
    }
}
