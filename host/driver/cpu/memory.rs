//! The memory of the CPU device.
//!
//! All of it is initialised, because reading memory that is not is undefined in Rust: device memory
//! with a poison pattern, which CUDA would leave arbitrary, and host memory with zeros. Its provenance is
//! exposed, because addresses travel through queues and launches as numbers.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::fs;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::sync::{Mutex, lock};
use super::{Cpu, CpuError};

/// What every allocation is aligned to, as on CUDA.
const ALIGNMENT: usize = 256;

/// What new device memory holds.
pub(super) const FRESH: u8 = 0xCB;

/// What freed device memory holds on a seeded schedule.
pub(super) const FREED: u8 = 0xDD;

/// Freed bytes that a seeded schedule keeps from reuse.
const QUARANTINE: usize = 64 << 20;

/// From where on an allocation asks first what there is: the system grants more than it has, and
/// ends the process when the pages are touched.
const LARGE: usize = 64 << 20;

/// Bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) free: usize,
    pub(crate) total: usize,
}

pub(super) struct Ledger {
    in_use: AtomicUsize,
    limit: AtomicUsize,
    /// Freed memory, oldest first, and its size.
    quarantine: Mutex<(VecDeque<Allocation>, usize)>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { in_use: AtomicUsize::new(0), limit: AtomicUsize::new(usize::MAX), quarantine: Mutex::default() }
    }
}

/// An allocation that nobody uses any more.
struct Allocation(NonNull<u8>, Layout);

// SAFETY: it is owned memory.
unsafe impl Send for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and owned.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// An allocation's layout; none for more bytes than an address can count.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()
}

impl Cpu {
    /// Device memory, aligned to 256 bytes, filled with a poison pattern.
    ///
    /// # Errors
    /// There is not that much.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<NonNull<u8>, CpuError> {
        let ledger = &self.ledger;
        let limit = ledger.limit.load(Relaxed);
        let reserved = ledger
            .in_use
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|used| *used <= limit))
            .is_ok();
        if !reserved {
            return Err(CpuError::OutOfMemory { bytes, free: self.memory().free });
        }
        self.new_memory(bytes, |layout| {
            // SAFETY: the layout's size is not 0.
            let p = unsafe { alloc(layout) };
            if !p.is_null() {
                // SAFETY: just allocated with this size.
                unsafe { p.write_bytes(FRESH, layout.size()) };
            }
            p
        })
        .inspect_err(|_| _ = ledger.in_use.fetch_sub(bytes, Relaxed))
    }

    /// Gives device memory back at once.
    ///
    /// # Safety
    /// It came from [`alloc`](Self::alloc) with this size, and nothing uses it any more.
    pub(crate) unsafe fn free(&self, p: NonNull<u8>, bytes: usize) {
        self.ledger.in_use.fetch_sub(bytes, Relaxed);
        let Some(layout) = layout(bytes) else { return };
        let freed = Allocation(p, layout);
        if self.scheduler().is_none() {
            return;
        }
        // SAFETY: owned from here on.
        unsafe { p.write_bytes(FREED, bytes) };
        let mut quarantine = lock(&self.ledger.quarantine);
        let (kept, size) = &mut *quarantine;
        kept.push_back(freed);
        *size += bytes;
        while *size > QUARANTINE {
            let Some(oldest) = kept.pop_front() else { break };
            *size -= oldest.1.size().min(*size);
        }
    }

    /// Host memory that queues may copy from and to, aligned to 256 bytes, all zero.
    ///
    /// # Errors
    /// There is not that much.
    pub(crate) fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, CpuError> {
        // SAFETY: the layout's size is not 0.
        self.new_memory(bytes, |layout| unsafe { alloc_zeroed(layout) })
    }

    /// Gives host memory back.
    ///
    /// # Safety
    /// It came from [`host_alloc`](Self::host_alloc) with this size, and nothing uses it any more.
    pub(crate) unsafe fn host_free(&self, p: NonNull<u8>, bytes: usize) {
        drop(layout(bytes).map(|layout| Allocation(p, layout)));
    }

    fn new_memory(&self, bytes: usize, alloc: impl Fn(Layout) -> *mut u8) -> Result<NonNull<u8>, CpuError> {
        let fits = bytes < LARGE || bytes <= system().free;
        let p = layout(bytes).filter(|_| fits).and_then(|layout| NonNull::new(alloc(layout)));
        if let Some(p) = p {
            p.as_ptr().expose_provenance();
        }
        p.ok_or_else(|| CpuError::OutOfMemory { bytes, free: self.memory().free })
    }

    /// Memory there is, of the system and within the limit.
    pub(crate) fn memory(&self) -> Memory {
        let Memory { free, total } = system();
        let limit = self.ledger.limit.load(Relaxed);
        Memory { free: free.min(limit.saturating_sub(self.in_use())), total: total.min(limit) }
    }

    /// Bytes of device memory in use.
    pub(crate) fn in_use(&self) -> usize {
        self.ledger.in_use.load(Relaxed)
    }

    /// Sets how much device memory may be in use; `None` for what the system gives.
    pub(crate) fn limit(&self, bytes: Option<usize>) {
        self.ledger.limit.store(bytes.unwrap_or(usize::MAX), Relaxed);
    }
}

/// The system's memory as Linux tells it; elsewhere, a figure that stands in no one's way.
fn system() -> Memory {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    };
    let total = field("MemTotal:").unwrap_or(1 << 40);
    Memory { free: field("MemAvailable:").unwrap_or(total), total }
}
