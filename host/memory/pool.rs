//! Pools of page-locked buffers.

use std::sync::Arc;

use super::{PinnedBuffer, Plain, element};
use crate::error::Result;
use crate::runtime::device::Device;
use crate::runtime::memory::Pool;
use crate::runtime::tally::Stall;

/// A pool of page-locked memory with a budget.
///
/// Every device has [one of its own](Device::pinned_pool), which [`Device::pinned`] uses. Another bounds what a part of a program can
/// lock. What a dropped pool held goes to the device's.
///
/// ```
/// use thalweg::{Device, Error, PinnedPool};
///
/// let pool = PinnedPool::new(Device::best()?, 1 << 20);
/// let a = pool.take::<u8>(1 << 20)?;
/// assert!(matches!(pool.take::<u8>(1), Err(Error::PinnedBudget { .. })));
/// drop(a); // idle, so its memory can be used again at once
/// pool.take::<u8>(1 << 19)?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PinnedPool(Arc<Pool>);

impl PinnedPool {
    /// A pool of page-locked memory for `device` that never holds more than `budget` bytes, lent and kept together.
    pub fn new(device: Device, budget: usize) -> Self {
        Self(Arc::new(Pool::new(device, budget, false)))
    }

    pub(crate) fn of(pool: Arc<Pool>) -> Self {
        Self(pool)
    }

    /// A buffer of `len` elements; whatever an earlier buffer left in it, or zeros.
    ///
    /// Where the budget is spent but buffers dropped on a stream are about to come back, it waits for them.
    ///
    /// # Errors
    /// The budget is spent ([`Error::PinnedBudget`]), or the system cannot lock as many pages.
    #[track_caller]
    pub fn take<T: Plain>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        const { element::<T>() }
        PinnedBuffer::lent(&self.0, len)
    }

    /// Bytes lent out.
    pub fn in_use(&self) -> usize {
        self.0.amounts().0
    }

    /// Bytes kept for the next buffer.
    pub fn cached(&self) -> usize {
        self.0.amounts().1
    }

    /// Gives the memory that nobody uses back to the system; may wait for the device. In a host function of a stream it does nothing.
    #[track_caller]
    pub fn trim(&self) {
        let _stall = self.0.device().stall(Stall::PinnedAllocation);
        self.0.trim();
    }
}

impl Device {
    /// A page-locked buffer of `len` elements from the device's [own pool](Device::pinned_pool): zeros, or whatever an earlier
    /// buffer left. The first of its size takes milliseconds.
    ///
    /// # Errors
    /// The system cannot lock as many pages, or the [limit](Device::limit_pinned) is reached ([`Error::PinnedBudget`]).
    #[track_caller]
    pub fn pinned<T: Plain>(self, len: usize) -> Result<PinnedBuffer<T>> {
        const { element::<T>() }
        PinnedBuffer::lent(self.home_pool(), len)
    }

    /// As [`pinned`](Device::pinned), with the elements of `data`.
    ///
    /// # Errors
    /// As [`pinned`](Device::pinned).
    #[track_caller]
    pub fn pinned_from<T: Plain>(self, data: &[T]) -> Result<PinnedBuffer<T>> {
        const { element::<T>() }
        let mut buffer = self.pinned(data.len())?;
        buffer.copy_from_slice(data);
        Ok(buffer)
    }

    /// The device's own pool of page-locked memory, which [`pinned`](Device::pinned) uses.
    ///
    /// It keeps what buffers give back, for the next ones, up to a bound: lent and kept together, it never grows beyond twice the most bytes that
    /// were lent at once since the last [`trim`](Device::trim), or 64 MiB where that is more. (A buffer is lent a whole block, which is at most
    /// twice as large as asked for; and what a dropped [`PinnedPool`] kept comes on top until the next block is made.) Programs whose buffers come in the
    /// same sizes again and again find them all there. [`limit_pinned`](Device::limit_pinned) sets a limit on top.
    ///
    /// ```
    /// use thalweg::Device;
    ///
    /// let gpu = Device::new_cpu()?;
    /// for len in 1..300 {
    ///     drop(gpu.pinned::<u8>(len << 16)?); // ever larger, one at a time
    /// }
    /// let pool = gpu.pinned_pool();
    /// assert_eq!(pool.in_use(), 0);
    /// assert!(pool.cached() <= 64 << 20);
    /// gpu.trim()?;
    /// assert_eq!(pool.cached(), 0);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    pub fn pinned_pool(self) -> PinnedPool {
        PinnedPool::of(self.home_pool().clone())
    }

    /// Sets the most bytes of page-locked memory that [`pinned`](Device::pinned) holds, lent and kept together; `None`, as at first, for no limit
    /// but the system's. What is kept beyond it is given back; what is lent stays, and nothing more is lent before enough of it has come back.
    ///
    /// Where the limit is reached but buffers dropped on a stream are about to come back, `pinned` waits for them. Pools of your own are not
    /// counted.
    pub fn limit_pinned(self, bytes: Option<usize>) {
        self.home_pool().limit(bytes.unwrap_or(usize::MAX));
    }

    /// Gives memory that nobody uses back to the system: page-locked memory of the device's [own pool](Device::pinned_pool), and on a GPU the
    /// device memory that the driver keeps for the next allocation. May wait for the device.
    ///
    /// Memory that was dropped on a stream is in use until the stream has come to that point.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn trim(self) -> Result<()> {
        self.usable()?;
        let _stall = self.stall(Stall::PinnedAllocation);
        self.home_pool().trim();
        self.seen(self.driver().trim())
    }
}
