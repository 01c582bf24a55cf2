//! The amount of device memory that the buffers of this program have.

use std::fmt;
use std::sync::atomic::Ordering;

use crate::runtime::device::Device;
use crate::runtime::memory_log::{Allocator, MemoryLog};

/// Counts an allocation.
#[track_caller]
pub(super) fn count(device: Device, allocation: u64, bytes: usize, by: Allocator) {
    let (book, bytes) = (device.memory_book(), bytes as u64);
    let before = book.in_use.fetch_add(bytes, Ordering::Relaxed);
    book.peak.fetch_max(before + bytes, Ordering::Relaxed);
    book.allocations.fetch_add(1, Ordering::Relaxed);
    book.log.made(allocation, bytes, by, &book.in_use);
}

/// Notes that an allocation has no owner any more.
pub(super) fn count_less(device: Device, allocation: u64, bytes: usize) {
    let (book, bytes) = (device.memory_book(), bytes as u64);
    book.in_use.fetch_sub(bytes, Ordering::Relaxed);
    book.log.freed(allocation, &book.in_use);
}

/// The memory that buffers of this program have on a device, and what its pool of page-locked
/// memory has. [`Device::memory_stats`] returns it. Prints as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The bytes of all device buffers that have an owner. Memory whose free is enqueued does not
    /// count, although the device may use it until then.
    pub in_use: u64,
    /// The most bytes that were in use at once, since the device was opened or
    /// [`Device::reset_peak_memory`] was called.
    pub peak: u64,
    /// The number of device buffers that were made.
    pub allocations: u64,
    /// The bytes of the device that are not free, for this program and all others.
    pub of_device: u64,
    /// The bytes of page-locked memory that buffers of the device's own pool have.
    pub pinned: usize,
    /// The bytes of page-locked memory that the pool keeps for the next buffers.
    pub pinned_kept: usize,
}

impl fmt::Display for MemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Self { in_use, peak, allocations, of_device, pinned, pinned_kept } = *self;
        writeln!(
            f,
            "device memory      in use {:10.1} MiB   peak {:10.1} MiB   {allocations} buffers made",
            mib(in_use),
            mib(peak)
        )?;
        writeln!(f, "of all programs    in use {:10.1} MiB", mib(of_device))?;
        write!(
            f,
            "page-locked        in use {:10.1} MiB   kept {:10.1} MiB",
            mib(pinned as u64),
            mib(pinned_kept as u64)
        )
    }
}

impl Device {
    /// Returns how much memory buffers of this program have on the device, the most that they had,
    /// and what the pool of page-locked memory has. What other libraries allocate counts in
    /// [`MemoryStats::of_device`] only.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let cpu = Device::new_cpu()?;
    /// let work = cpu.stream::<Work>()?;
    /// let kept = work.alloc::<u8>(1000)?;
    /// drop(work.alloc::<u8>(5000)?);
    /// let stats = cpu.memory_stats()?;
    /// assert_eq!((stats.in_use, stats.peak, stats.allocations), (1000, 6000, 2));
    /// println!("{stats}");
    /// # drop(kept);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device has failed.
    pub fn memory_stats(self) -> crate::Result<MemoryStats> {
        let of_device = self.total_memory().saturating_sub(self.free_memory()?);
        let (book, (pinned, pinned_kept)) = (self.memory_book(), self.home_pool().amounts());
        let [in_use, peak, allocations] =
            [&book.in_use, &book.peak, &book.allocations].map(|count| count.load(Ordering::Relaxed));
        Ok(MemoryStats { in_use, peak, allocations, of_device, pinned, pinned_kept })
    }

    /// Returns the log of the device's memory by line, by stream and over time.
    pub fn memory_log(self) -> MemoryLog {
        MemoryLog::of(&self.memory_book().log)
    }

    /// Makes the most memory that was in use that which is in use now.
    pub fn reset_peak_memory(self) {
        let book = self.memory_book();
        book.peak.store(book.in_use.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
