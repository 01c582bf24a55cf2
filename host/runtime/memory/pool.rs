//! Pools of page-locked memory. They keep memory for the next buffer, because locking pages costs
//! milliseconds.
//!
//! **What a pool keeps.** A buffer takes the smallest free block that is large enough and at most
//! twice as large as asked for. If there is none, the pool makes a block. A budget, which
//! `PinnedPool::new` sets, limits what the pool holds. To stay within it, the pool gives free
//! blocks back to the system, those first that were unused for the longest time.
//!
//! A device's own pool has no budget unless [`Device::limit_pinned`] sets one. So it limits its
//! waste:
//!
//! - A new block replaces the largest free block that is smaller than it and at least half as
//!   large. So growing sizes do not leave a trail of blocks. And misses come to an end: each miss
//!   replaces a block by a larger one, or finds that all blocks of about its size are in use.
//! - When it makes a block, it holds at most twice the largest amount that was in use at once since
//!   the last [`trim`](Device::trim), or [`FLOOR`] if that is more. Blocks of all sizes that one
//!   buffer at a time needs fit in that, because each is less than half as large as the next.
//!
//! A pool gives memory back when it makes a block, which waits for the device anyway, and when it
//! is trimmed or limited. It never does so in a destructor.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use log::debug;

use super::{Block, Memory, Owned, next_allocation};
use crate::driver::guard;
use crate::error::{Error, Result, Returned};
use crate::lock;
use crate::runtime::background::{Job, background};
use crate::runtime::device::Device;
use crate::runtime::event::Lease;
use crate::runtime::sync_stats::HostWait;

/// The target of messages about memory. They are logged without a lock, because a logger is code
/// of the user.
const TARGET: &str = "thalweg::memory";

/// An allocation in page-locked memory, lent by a pool.
#[derive(Debug)]
pub(crate) struct PinnedBlock {
    pub(crate) ptr: NonNull<u8>,
    pub(crate) capacity: usize,
    /// The number of the system's allocation, which stays the same each time a pool lends it.
    pub(crate) allocation: u64,
    home: Home,
}

/// The place to which a block returns.
#[derive(Debug)]
enum Home {
    Pool(Arc<Pool>),
    /// To the vector that the memory is of, which this drops.
    Vec(Device, Registered),
}

/// The elements of a vector that was page-locked.
struct Registered(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registered")
    }
}

// SAFETY: [thread] The block owns its memory, as a `Box` does, and page-locked memory is valid on
// every thread.
unsafe impl Send for PinnedBlock {}
// SAFETY: [thread] A shared reference gives the address only, and no access to the memory.
unsafe impl Sync for PinnedBlock {}

impl Block for PinnedBlock {
    fn release(self, after: Vec<Lease>) {
        match self.home {
            Home::Pool(pool) => {
                pool.give_back(Free { ptr: self.ptr, allocation: self.allocation }, self.capacity, after)
            }
            Home::Vec(device, elements) => {
                let memory = Free { ptr: self.ptr, allocation: self.allocation };
                once(after, move || device.unregister(memory, elements));
            }
        }
    }
    fn memory(block: Owned<Self>) -> Memory {
        Memory::Pinned(block)
    }
    fn allocation(&self) -> u64 {
        self.allocation
    }
}

/// The bytes that a pool without a budget may always hold.
pub(crate) const FLOOR: usize = 64 << 20;

/// A pool of page-locked memory. Every block that it has lent holds a reference to it.
#[derive(Debug)]
pub(crate) struct Pool {
    device: Device,
    kind: PoolKind,
    state: Mutex<State>,
}

/// The kind of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// The device's own pool, which limits its waste.
    Own,
    /// A pool with a budget.
    Budget,
    /// A pool of write-combined memory, with a budget.
    Combined,
}

#[derive(Debug, Default)]
struct State {
    budget: usize,
    /// Free blocks, by capacity and then by the time at which they became free.
    free: BTreeMap<(usize, u64), Free>,
    /// The number of times that a block has become free; this is the time in `free`.
    clock: u64,
    /// Blocks that were given back while work on them was pending.
    retired: Vec<Retired>,
    /// Bytes that are lent, those of retired blocks included.
    lent: usize,
    /// The most bytes that were lent at once since the last trim.
    peak: usize,
    /// Bytes that the pool holds: lent and free.
    held: usize,
}

/// A page-locked block that the pool owns.
#[derive(Debug)]
struct Free {
    ptr: NonNull<u8>,
    allocation: u64,
}
// SAFETY: [thread] The value owns its memory, and page-locked memory is valid on every thread.
unsafe impl Send for Free {}

/// A block, and the events that must complete before it is free.
#[derive(Debug)]
struct Retired {
    block: Free,
    capacity: usize,
    after: Vec<Lease>,
}

/// Blocks that go back to the system, with their capacities. They are freed outside the lock.
type Spare = Vec<(Free, usize)>;

impl State {
    fn lend(&mut self, capacity: usize) {
        self.lent += capacity;
        self.peak = self.peak.max(self.lent);
    }

    fn rest(&mut self, block: Free, capacity: usize) {
        self.lent -= capacity;
        self.keep(block, capacity);
    }

    fn keep(&mut self, block: Free, capacity: usize) {
        self.clock += 1;
        self.free.insert((capacity, self.clock), block);
    }

    /// Makes the retired blocks free whose events are complete.
    fn sweep(&mut self) {
        let mut i = 0;
        while i < self.retired.len() {
            if self.retired[i].after.iter().all(Lease::is_known_complete) {
                let done = self.retired.swap_remove(i);
                self.rest(done.block, done.capacity);
            } else {
                i += 1;
            }
        }
    }

    fn fit(&mut self, bytes: usize) -> Option<(Free, usize)> {
        // At most twice what was asked for, so that small buffers do not take the large blocks, and
        // no more than the budget leaves.
        let most = bytes.saturating_mul(2).min(self.budget.saturating_sub(self.lent));
        if most < bytes {
            return None; // `range` panics on such bounds
        }
        let (&(capacity, _), _) = self.free.range((bytes, 0)..=(most, u64::MAX)).next()?;
        // Among blocks of this size, take the one that was used last, so that the others become old
        // and may go back to the system.
        let (&key, _) = self.free.range((capacity, 0)..=(capacity, u64::MAX)).next_back()?;
        let block = self.free.remove(&key)?;
        self.lend(capacity);
        Some((block, capacity))
    }

    /// Moves a free block to `spare`, which goes back to the system.
    fn spare(&mut self, key: (usize, u64), spare: &mut Spare) {
        if let Some(block) = self.free.remove(&key) {
            self.held -= key.0;
            spare.push((block, key.0));
        }
    }

    /// Moves free blocks to `spare` until the pool holds at most so many bytes, those first that
    /// were unused for the longest time.
    fn shrink(&mut self, bytes: usize, spare: &mut Spare) {
        while self.held > bytes {
            let Some(key) = self.free.keys().copied().min_by_key(|(_, rested)| *rested) else { break };
            self.spare(key, spare);
        }
    }

    /// Makes room for a new block and counts it as lent. Returns false if what is in use leaves too
    /// little of the budget.
    fn grow(&mut self, capacity: usize, frugal: bool, spare: &mut Spare) -> bool {
        if capacity > self.budget.saturating_sub(self.lent) {
            return false;
        }
        // Blocks that the pool keeps, and absurd ones that two threads ask for at once, may exceed
        // a number.
        let Some(held) = self.held.checked_add(capacity) else { return false };
        self.lend(capacity);
        self.held = held;
        let mut most = self.budget;
        if frugal {
            let near = self.free.range((capacity / 2, 0)..(capacity, 0)).next_back().map(|(&key, _)| key);
            if let Some(key) = near {
                self.spare(key, spare);
            }
            most = most.min(FLOOR.max(self.peak.saturating_mul(2)));
        }
        self.shrink(most, spare);
        true
    }
}

impl Pool {
    pub(crate) fn new(device: Device, budget: usize, kind: PoolKind) -> Self {
        Self { device, kind, state: Mutex::new(State { budget, ..State::default() }) }
    }

    /// Lends a block of at least so many bytes.
    #[track_caller]
    pub(crate) fn lend(self: &Arc<Self>, bytes: usize) -> Result<PinnedBlock> {
        self.device.ensure_usable()?;
        let (Free { ptr, allocation }, capacity) = self.block(bytes)?;
        Ok(PinnedBlock { ptr, capacity, allocation, home: Home::Pool(self.clone()) })
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// The bytes that are lent, and the bytes that are kept for the next buffer.
    pub(crate) fn amounts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.lent, state.held - state.lent)
    }

    #[track_caller]
    fn block(&self, bytes: usize) -> Result<(Free, usize)> {
        let capacity = bytes.max(4096).checked_next_multiple_of(4096).filter(|&c| c <= isize::MAX as usize);
        let Some(capacity) = capacity else {
            return Err(Error::TooLarge { elements: bytes, size: 1 });
        };
        loop {
            let mut state = lock(&self.state);
            state.sweep();
            if let Some(found) = state.fit(capacity) {
                return Ok(found);
            }
            let mut spare = Spare::new();
            if state.grow(capacity, self.kind == PoolKind::Own, &mut spare) {
                drop(state);
                // Without the lock, because these calls take milliseconds.
                let _wait = self.device.host_wait(HostWait::PinnedAllocation);
                self.free(spare);
                return match self.device.new_pinned(capacity, self.kind == PoolKind::Combined) {
                    Ok(ptr) => {
                        debug!(target: TARGET, "page-locked {capacity} bytes for {}", self.device);
                        Ok((Free { ptr, allocation: next_allocation() }, capacity))
                    }
                    Err(e) => {
                        let mut state = lock(&self.state);
                        state.held -= capacity;
                        state.lent -= capacity;
                        Err(e)
                    }
                };
            }
            let (in_use, budget) = (state.lent, state.budget);
            let events = state.retired.first().map(|r| r.after.clone());
            drop(state);
            debug!(
                target: TARGET,
                "a pool of {} has no room for {bytes} bytes: {in_use} of {budget} are in use{}",
                self.device,
                if events.is_some() { "; it waits for some that come back" } else { "" },
            );
            let Some(events) = events else {
                return Err(Error::PinnedBudget { wanted: bytes, in_use, budget });
            };
            let _wait = self.device.host_wait(HostWait::PinnedAllocation);
            events.iter().try_for_each(|event| event.synchronize())?;
        }
    }

    fn give_back(&self, block: Free, capacity: usize, mut after: Vec<Lease>) {
        after.retain(|e| !e.is_known_complete());
        let mut state = lock(&self.state);
        if after.is_empty() {
            state.rest(block, capacity);
        } else {
            state.retired.push(Retired { block, capacity, after });
        }
    }

    /// Gives all free blocks back to the system. Does nothing if the device cannot be called.
    pub(crate) fn trim(&self) {
        if self.device.ensure_usable().is_err() {
            return;
        }
        let mut spare = Spare::new();
        {
            let mut state = lock(&self.state);
            state.sweep();
            state.shrink(0, &mut spare);
            state.peak = state.lent;
        }
        let bytes: usize = spare.iter().map(|(_, capacity)| capacity).sum();
        self.free(spare);
        debug!(target: TARGET, "a pool of {} was trimmed by {bytes} bytes", self.device);
    }

    /// Sets the most bytes that the pool may hold. If the device can be called, gives free blocks
    /// beyond that back to the system.
    pub(crate) fn limit(&self, budget: usize) {
        let mut spare = Spare::new();
        {
            let mut state = lock(&self.state);
            state.budget = budget;
            if self.device.ensure_usable().is_ok() {
                state.sweep();
                state.shrink(budget, &mut spare);
            }
        }
        self.free(spare);
    }

    fn free(&self, spare: Spare) {
        for (block, capacity) in spare {
            self.device.free_pinned(block, capacity);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Every lent block holds the pool, so none is lent. The device's own pool takes over the
        // free and the retired blocks.
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner));
        if guard::forked() {
            std::mem::forget(state); // another thread may have held the lock below at the fork
            return;
        }
        if self.kind == PoolKind::Combined {
            // Memory of this kind is slow for other uses, so it goes back to the system.
            let device = self.device;
            for ((capacity, _), block) in state.free {
                once(Vec::new(), move || device.free_pinned(block, capacity));
            }
            for Retired { block, capacity, after } in state.retired {
                once(after, move || device.free_pinned(block, capacity));
            }
            return;
        }
        let mut home = lock(&self.device.home_pool().state);
        for ((capacity, _), block) in state.free {
            home.held += capacity;
            home.keep(block, capacity);
        }
        for retired in state.retired {
            home.held += retired.capacity;
            home.lend(retired.capacity);
            home.retired.push(retired);
        }
    }
}

/// Calls `then` once the events are complete, in the background thread, because what it does may
/// wait for the device. If the device of an event fails, `then` is forgotten.
fn once(after: Vec<Lease>, then: impl FnOnce() + Send + 'static) {
    let events = Arc::new(after);
    let asked = events.clone();
    let due = move || asked.iter().all(|event| !matches!(event.query(), Ok(false)));
    let run = move || match events.iter().all(|event| matches!(event.query(), Ok(true))) {
        true => then(),
        // Work of the failed device may still use the memory.
        false => std::mem::forget(then),
    };
    background(Job::When(Box::new(due), Box::new(run)));
}

impl Device {
    /// The device's own pool.
    pub(crate) fn home_pool(self) -> &'static Arc<Pool> {
        self.keep(|| Arc::new(Pool::new(self, usize::MAX, PoolKind::Own)))
    }

    fn new_pinned(self, bytes: usize, combined: bool) -> Result<NonNull<u8>> {
        self.seen(self.driver().host_alloc(bytes, combined))
    }

    /// Page-locks the memory of a vector, and returns it as a block. `None` for a vector without
    /// bytes.
    pub(crate) fn page_lock<T: Send + Sync + Copy + 'static>(
        self,
        elements: Vec<T>,
    ) -> Result<Option<PinnedBlock>, Returned<Vec<T>>> {
        if let Err(error) = self.ensure_usable() {
            return Err(Returned::new(error, elements));
        }
        let mut elements = ManuallyDrop::new(elements);
        let bytes = size_of_val(elements.as_slice());
        let Some(ptr) = NonNull::new(elements.as_mut_ptr().cast()).filter(|_| !elements.is_empty()) else {
            drop(ManuallyDrop::into_inner(elements));
            return Ok(None);
        };
        let _wait = self.host_wait(HostWait::PinnedAllocation);
        // SAFETY: [owner] The vector is dropped after `unregister` only, and its elements are
        // initialized.
        if let Err(error) = self.seen(unsafe { self.driver().host_register(ptr, bytes) }) {
            return Err(Returned::new(error, ManuallyDrop::into_inner(elements)));
        }
        // The vector keeps its memory where it is, whatever becomes of the value that owns it.
        let drop_elements = move || drop(ManuallyDrop::into_inner(elements));
        let home = Home::Vec(self, Registered(Box::new(drop_elements)));
        Ok(Some(PinnedBlock { ptr, capacity: bytes, allocation: next_allocation(), home }))
    }

    /// Makes registered memory ordinary again, and drops the vector that it is of. If the device
    /// cannot be called, the vector leaks.
    fn unregister(self, memory: Free, elements: Registered) {
        // SAFETY: [free] `page_lock` registered the memory, and `once` has waited for all uses of
        // it.
        if self.ensure_usable().is_ok() && self.seen(unsafe { self.driver().host_unregister(memory.ptr) }).is_ok() {
            (elements.0)(); // which otherwise leaves the vector in its `ManuallyDrop`
        }
    }

    /// Gives page-locked memory back to the system. If the device cannot be called, the memory
    /// leaks.
    fn free_pinned(self, block: Free, bytes: usize) {
        if self.ensure_usable().is_ok() {
            // SAFETY: [free] `new_pinned` of this device made the block with this capacity. Its
            // pool removed it from the free blocks and calls this once, so nothing uses it.
            let _ = unsafe { self.driver().host_free(block.ptr, bytes) };
        }
    }
}
