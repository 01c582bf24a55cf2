//! Pools of page-locked buffers.

use std::sync::Arc;

use super::{DeviceCopy, PinnedBuffer, element};
use crate::error::{Error, Result, Returned};
use crate::runtime::device::Device;
use crate::runtime::memory::{Pool, PoolKind};
use crate::runtime::sync_stats::HostWait;

/// A pool of page-locked memory with a budget.
///
/// Every device has [a pool of its own](Device::pinned_pool), which [`Device::pinned`] uses.
/// Another pool bounds how much memory a part of a program can lock. The memory of a dropped pool
/// goes to the device's own pool.
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
    /// Makes a pool of page-locked memory for `device`. It never holds more than `budget` bytes,
    /// lent and kept together.
    pub fn new(device: Device, budget: usize) -> Self {
        Self(Arc::new(Pool::new(device, budget, PoolKind::Budget)))
    }

    /// Like [`new`](Self::new), of write-combined memory: the processor writes it past its caches.
    ///
    /// It is for memory that the host writes once, from front to back, and a GPU reads. CUDA warns
    /// that reading it on the host is slow. Measure before you use it: on a machine with an H200
    /// neither writing, reading nor copies differed from other page-locked memory by more than a
    /// quarter, and uploads were not faster (`cargo bench --bench pinned`). On the CPU device it is
    /// memory like any other. The memory of a dropped pool goes back to the system.
    pub fn write_combined(device: Device, budget: usize) -> Self {
        Self(Arc::new(Pool::new(device, budget, PoolKind::Combined)))
    }

    pub(crate) fn of(pool: Arc<Pool>) -> Self {
        Self(pool)
    }

    /// Takes a buffer of `len` elements. It holds what an earlier buffer left in it, or zeros.
    ///
    /// If the budget is spent but buffers that were dropped on a stream will come back, the call
    /// waits for them.
    ///
    /// # Errors
    /// The budget is spent ([`Error::PinnedBudget`](crate::Error::PinnedBudget)), the system cannot
    /// lock so many pages, or the device has failed.
    #[track_caller]
    pub fn take<T: DeviceCopy>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        const { element::<T>() }
        PinnedBuffer::lent(&self.0, len)
    }

    /// The number of bytes that are lent.
    pub fn in_use(&self) -> usize {
        self.0.amounts().0
    }

    /// The number of bytes that are kept for later buffers.
    pub fn cached(&self) -> usize {
        self.0.amounts().1
    }

    /// Gives the memory that nobody uses back to the system. The call may wait for the device. It
    /// does nothing in a host function of a stream, or if the device has failed.
    #[track_caller]
    pub fn trim(&self) {
        let _wait = self.0.device().host_wait(HostWait::PinnedAllocation);
        self.0.trim();
    }
}

impl Device {
    /// Takes a page-locked buffer of `len` elements from the device's [own
    /// pool](Device::pinned_pool). It holds zeros, or what an earlier buffer left. Making the first
    /// buffer of a size takes milliseconds.
    ///
    /// # Errors
    /// The system cannot lock so many pages, the [limit](Device::limit_pinned) is reached
    /// ([`Error::PinnedBudget`](crate::Error::PinnedBudget)), or the device has failed.
    #[track_caller]
    pub fn pinned<T: DeviceCopy>(self, len: usize) -> Result<PinnedBuffer<T>> {
        const { element::<T>() }
        PinnedBuffer::lent(self.home_pool(), len)
    }

    /// Like [`pinned`](Device::pinned), with the elements of `data`.
    ///
    /// # Errors
    /// The errors of [`pinned`](Device::pinned).
    #[track_caller]
    pub fn pinned_from<T: DeviceCopy>(self, data: &[T]) -> Result<PinnedBuffer<T>> {
        const { element::<T>() }
        let mut buffer = self.pinned(data.len())?;
        buffer.copy_from_slice(data);
        Ok(buffer)
    }

    /// Page-locks the memory of a vector in place, without a copy. The buffer has its elements.
    /// When the buffer and all work on it are gone, the memory is unlocked and the vector is
    /// dropped, on a thread in the background.
    ///
    /// Locking pages takes time: 3.4 ms for 25 MB on a machine with an H200, where a copy of
    /// pageable memory takes 1.8 ms and one of page-locked memory 0.5 ms
    /// (`cargo bench --bench pinned`). So this pays for data that is there already and is copied
    /// several times.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let gpu = Device::best()?;
    /// let work = gpu.stream::<Work>()?;
    /// let host = work.bind(gpu.register(vec![1.5f32; 1000])?)?;
    /// let mut x = work.alloc(1000)?;
    /// work.copy_to_device(&host, &mut x)?;
    /// assert_eq!(work.read_blocking(&x)?, [1.5; 1000]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The system cannot lock so many pages, another library has registered some of them, or the
    /// device has failed. The vector comes back.
    #[track_caller]
    pub fn register<T: DeviceCopy>(self, elements: Vec<T>) -> Result<PinnedBuffer<T>, Returned<Vec<T>>> {
        const { element::<T>() }
        let size = size_of::<T>();
        if matches!(size, 2 | 4) && !elements.as_ptr().addr().is_multiple_of(size) {
            let (name, given) = ("elements", "a vector at an odd place".into());
            let error = Error::Parameter { name, given, expected: format!("an address that is a multiple of {size}") };
            return Err(Returned::new(error, elements));
        }
        PinnedBuffer::registered(self, elements)
    }

    /// The device's own pool of page-locked memory, which [`pinned`](Device::pinned) uses.
    ///
    /// It keeps the memory of dropped buffers for later ones, up to a bound. Lent and kept
    /// together, it never grows beyond twice the most bytes that were lent at once since the last
    /// [`trim`](Device::trim), or beyond 64 MiB if that is more. (A buffer takes a whole block,
    /// which is at most twice as large as the request. The memory of a dropped [`PinnedPool`] is
    /// added to that until the pool makes its next block.) A program that uses buffers of the same
    /// sizes again and again finds them all there. [`limit_pinned`](Device::limit_pinned) sets a
    /// further limit.
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

    /// Limits the bytes of page-locked memory that [`pinned`](Device::pinned) holds, lent and kept
    /// together. `None`, the default, means no limit but the system's. Kept memory beyond the limit
    /// is given back. Lent memory stays, and nothing more is lent before enough of it has come
    /// back.
    ///
    /// If the limit is reached but buffers that were dropped on a stream will come back, `pinned`
    /// waits for them. Other pools do not count.
    pub fn limit_pinned(self, bytes: Option<usize>) {
        self.home_pool().limit(bytes.unwrap_or(usize::MAX));
    }

    /// Gives memory that nobody uses back to the system: page-locked memory of the device's [own
    /// pool](Device::pinned_pool), and on a GPU the device memory that the driver keeps for later
    /// allocations. The call may wait for the device.
    ///
    /// Memory that was dropped on a stream is in use until the stream has passed that point.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn trim(self) -> Result<()> {
        self.ensure_usable()?;
        let _wait = self.host_wait(HostWait::PinnedAllocation);
        self.home_pool().trim();
        self.seen(self.driver().trim())
    }
}
