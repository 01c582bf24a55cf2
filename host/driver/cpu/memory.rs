//! The memory of the CPU device.
//!
//! All of it is initialized, because in Rust it is undefined behavior to read memory that is not.
//! Device memory gets a poison pattern (CUDA leaves it arbitrary), and host memory gets zeros. The
//! provenance of all of it is exposed, because addresses travel through queues and launches as
//! numbers.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::fs;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use thalweg_simt::cpu::checker::memory as checker;

use super::{Cpu, CpuError};
use crate::driver::sync::{Mutex, lock};

/// The alignment of every allocation, the same as on CUDA.
const ALIGNMENT: usize = 256;

/// The byte that fills new device memory.
pub(super) const FRESH: u8 = 0xCB;

/// The byte that fills freed device memory on a seeded schedule.
pub(super) const FREED: u8 = 0xDD;

/// The most freed bytes that a seeded schedule keeps, so that they are not reused at once.
const QUARANTINE: usize = 64 << 20;

/// An allocation of this size or more first checks how much memory is free. The system grants more
/// than it has, and ends the process when the pages are accessed.
const LARGE: usize = 64 << 20;

/// Amounts of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) free: usize,
    pub(crate) total: usize,
}

pub(super) struct Ledger {
    in_use: AtomicUsize,
    limit: AtomicUsize,
    /// Freed memory, the oldest first, and its size in bytes.
    quarantine: Mutex<(VecDeque<Allocation>, usize)>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { in_use: AtomicUsize::new(0), limit: AtomicUsize::new(usize::MAX), quarantine: Mutex::default() }
    }
}

/// An allocation that nobody uses any more.
struct Allocation(NonNull<u8>, Layout);

// SAFETY: [thread] The value owns its memory, and the system's allocator may free it on any thread.
unsafe impl Send for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: [free] `Cpu::new_memory` allocated the memory with the layout of the same size,
        // and the callers of `Cpu::free` and `Cpu::host_free` gave up all use of it.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// The layout of an allocation; `None` if it is larger than Rust allows.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()
}

impl Cpu {
    /// Allocates device memory, aligned to 256 bytes and filled with a poison pattern.
    ///
    /// # Errors
    /// There is not enough memory.
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
            // SAFETY: [owner] `layout` never gives a size of 0.
            let p = unsafe { alloc(layout) };
            if !p.is_null() {
                // SAFETY: [owner] `p` is not null and has just been allocated with this size.
                unsafe { p.write_bytes(FRESH, layout.size()) };
            }
            p
        })
        .inspect(|p| {
            if self.checked.is_some() {
                checker::allocated(p.addr().get(), bytes);
            }
        })
        .inspect_err(|_| _ = ledger.in_use.fetch_sub(bytes, Relaxed))
    }

    /// Frees device memory at once. On a seeded schedule it goes to the quarantine.
    ///
    /// # Safety
    /// [`alloc`](Self::alloc) returned `p` for the same `bytes`, it is freed once, and nothing uses
    /// the memory any more.
    pub(crate) unsafe fn free(&self, p: NonNull<u8>, bytes: usize) {
        self.ledger.in_use.fetch_sub(bytes, Relaxed);
        if self.checked.is_some() {
            checker::freed(p.addr().get());
        }
        let Some(layout) = layout(bytes) else { return };
        let freed = Allocation(p, layout);
        if self.scheduler().is_none() {
            return;
        }
        // SAFETY: [free] The caller gave up an allocation of this size, which `freed` owns now.
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

    /// Notes that a command wrote `bytes` bytes from `addr` on. Every command that writes device
    /// memory, other than a kernel, calls this or [`noted_copy`](Self::noted_copy).
    pub(super) fn noted_write(&self, addr: u64, bytes: usize) {
        if self.checked.is_some() {
            checker::written(addr as usize, bytes);
        }
    }

    /// Marks the destination as initialized in the race checker. No-op on unchecked devices.
    pub(super) fn noted_copy(&self, to: u64, from: u64, bytes: usize) {
        if self.checked.is_some() {
            checker::copied(to as usize, from as usize, bytes);
        }
    }

    /// Allocates host memory that queues may copy from and to, aligned to 256 bytes and zeroed.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, CpuError> {
        // SAFETY: [owner] `layout` never gives a size of 0.
        self.new_memory(bytes, |layout| unsafe { alloc_zeroed(layout) })
    }

    /// Frees host memory.
    ///
    /// # Safety
    /// [`host_alloc`](Self::host_alloc) returned `p` for the same `bytes`, it is freed once, and
    /// nothing uses the memory any more.
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

    /// The free and the total memory of the system, or what the limit leaves of them if that is
    /// less.
    pub(crate) fn memory(&self) -> Memory {
        let Memory { free, total } = system();
        let limit = self.ledger.limit.load(Relaxed);
        Memory { free: free.min(limit.saturating_sub(self.in_use())), total: total.min(limit) }
    }

    /// Bytes of device memory in use.
    pub(crate) fn in_use(&self) -> usize {
        self.ledger.in_use.load(Relaxed)
    }

    /// Limits how much device memory may be in use at once; `None` removes the limit.
    pub(crate) fn limit(&self, bytes: Option<usize>) {
        self.ledger.limit.store(bytes.unwrap_or(usize::MAX), Relaxed);
    }
}

/// The memory of the system as Linux reports it. On other systems, 1 TiB, so that nothing is
/// refused.
fn system() -> Memory {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    };
    let total = field("MemTotal:").unwrap_or(1 << 40);
    Memory { free: field("MemAvailable:").unwrap_or(total), total }
}
