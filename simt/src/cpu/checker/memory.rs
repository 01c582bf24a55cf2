//! The bytes of device memory that were ever written.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// One flag for each byte of an allocation: whether it was written.
#[derive(Debug)]
pub(super) struct Flags {
    start: usize,
    written: Box<[AtomicU8]>,
}

impl Flags {
    /// The flags of the bytes of a range of addresses, as far as the allocation has them.
    pub(super) fn range(&self, addr: usize, bytes: usize) -> &[AtomicU8] {
        let start = addr.saturating_sub(self.start).min(self.written.len());
        &self.written[start..(start + bytes).min(self.written.len())]
    }

    /// Marks the bytes as written.
    pub(super) fn set(&self, addr: usize, bytes: usize) {
        self.range(addr, bytes).iter().for_each(|flag| flag.store(1, Relaxed));
    }

    /// Returns the first byte of the range that was never written.
    pub(super) fn first_unwritten(&self, addr: usize, bytes: usize) -> Option<usize> {
        self.range(addr, bytes).iter().position(|flag| flag.load(Relaxed) == 0).map(|i| addr + i)
    }
}

/// The allocations of all checked devices, by address.
static ALLOCATIONS: RwLock<BTreeMap<usize, Arc<Flags>>> = RwLock::new(BTreeMap::new());

fn allocations() -> RwLockReadGuard<'static, BTreeMap<usize, Arc<Flags>>> {
    ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the flags of the allocation with this address.
pub(super) fn find(addr: usize) -> Option<Arc<Flags>> {
    let (_, flags) = allocations().range(..=addr).next_back().map(|(start, flags)| (*start, flags.clone()))?;
    (addr < flags.start + flags.written.len().max(1)).then_some(flags)
}

/// Notes that a checked device allocated memory. Nothing in it is written yet.
pub fn allocated(addr: usize, bytes: usize) {
    let written = (0..bytes).map(|_| AtomicU8::new(0)).collect();
    let flags = Arc::new(Flags { start: addr, written });
    ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner).insert(addr, flags);
}

/// Notes that memory was freed. Its addresses may be allocated again.
pub fn freed(addr: usize) {
    ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner).remove(&addr);
}

/// Notes that a command of a stream wrote memory.
pub fn written(addr: usize, bytes: usize) {
    if let Some(flags) = find(addr) {
        flags.set(addr, bytes);
    }
}

/// Notes that a command of a stream copied memory. A copy of bytes that were never written is
/// allowed, and the copies count as never written too.
pub fn copied(to: usize, from: usize, bytes: usize) {
    let Some(target) = find(to) else { return };
    let Some(source) = find(from) else { return target.set(to, bytes) };
    for (to, from) in target.range(to, bytes).iter().zip(source.range(from, bytes)) {
        to.store(from.load(Relaxed), Relaxed);
    }
}
