//! Page-locked memory, kept for the next buffer: locking pages costs milliseconds.
//!
//! **What is kept.** A buffer takes the smallest block at rest that is large enough, and at most twice as large as asked for. Where
//! there is none, a block is made. A [budget](PinnedPool::new) bounds what its pool holds, and blocks make room for one another, those
//! that were not used for the longest time first.
//!
//! A device's own pool has no budget unless it is [given one](Device::limit_pinned), so it bounds what it wastes:
//!
//! - A new block takes the place of the largest one at rest that is smaller, but not smaller than half of it. So sizes that grow leave no
//!   trail of blocks behind, and misses come to an end: each makes a block larger, or finds all blocks of about its size in use.
//! - It never grows beyond twice what was in use at once since the last [`trim`](Device::trim), or [`FLOOR`] where that is more. Blocks of all sizes
//!   that one buffer at a time needs fit in that: each is less than half as large as the next.
//!
//! What a pool gives back, it gives back where it makes a block, which waits for the device anyway, and never in a destructor.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use super::{Block, Memory, Owned, next_allocation};
use crate::error::{Error, Result};
use crate::lock;
use crate::runtime::device::Device;
use crate::runtime::event::Lease;
use crate::runtime::tally::Stall;

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

/// What a pool without a budget may hold at any rate, in bytes.
pub(crate) const FLOOR: usize = 64 << 20;

/// What a pool knows; shared with every block it lent.
#[derive(Debug)]
pub(crate) struct Pool {
    device: Device,
    /// Whether it bounds what it wastes.
    frugal: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    budget: usize,
    /// Blocks at rest, by capacity and by when they came to rest.
    free: BTreeMap<(usize, u64), Free>,
    /// How often a block came to rest.
    clock: u64,
    /// Blocks given back while work on them was pending.
    retired: Vec<Retired>,
    /// Bytes lent, retired ones included.
    lent: usize,
    /// The most bytes lent at once since the last trim.
    peak: usize,
    /// Bytes lent and free.
    held: usize,
}

/// A block of the system's.
#[derive(Debug)]
struct Free {
    ptr: NonNull<u8>,
    allocation: u64,
}
// SAFETY: exclusively the pool's.
unsafe impl Send for Free {}

/// A block and the events that must complete before it is at rest.
#[derive(Debug)]
struct Retired {
    block: Free,
    capacity: usize,
    after: Vec<Lease>,
}

/// Blocks on their way back to the system, which takes them outside the lock.
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

    /// Moves the blocks whose events are complete to rest.
    fn sweep(&mut self) {
        let mut i = 0;
        while i < self.retired.len() {
            if self.retired[i].after.iter().all(Lease::is_done) {
                let done = self.retired.swap_remove(i);
                self.rest(done.block, done.capacity);
            } else {
                i += 1;
            }
        }
    }

    fn fit(&mut self, bytes: usize) -> Option<(Free, usize)> {
        // At most twice what was asked for, so that small buffers do not eat the large blocks.
        let (&(capacity, _), _) = self.free.range((bytes, 0)..=(bytes.saturating_mul(2), u64::MAX)).next()?;
        // Of its size, the one that was used last: others may be given back some day.
        let (&key, _) = self.free.range((capacity, 0)..=(capacity, u64::MAX)).next_back()?;
        let block = self.free.remove(&key)?;
        self.lend(capacity);
        Some((block, capacity))
    }

    /// Takes a block out, to be given back to the system.
    fn spare(&mut self, key: (usize, u64), spare: &mut Spare) {
        if let Some(block) = self.free.remove(&key) {
            self.held -= key.0;
            spare.push((block, key.0));
        }
    }

    /// Takes blocks out until at most so many bytes are held, those first that were not used for the longest time.
    fn shrink(&mut self, bytes: usize, spare: &mut Spare) {
        while self.held > bytes {
            let Some(key) = self.free.keys().copied().min_by_key(|(_, rested)| *rested) else { break };
            self.spare(key, spare);
        }
    }

    /// Makes room for a new block, and counts it as lent, unless the budget is spent by what is in use.
    fn grow(&mut self, capacity: usize, frugal: bool, spare: &mut Spare) -> bool {
        if capacity > self.budget.saturating_sub(self.lent) {
            return false;
        }
        self.lend(capacity);
        self.held += capacity;
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
    pub(crate) fn new(device: Device, budget: usize, frugal: bool) -> Self {
        Self { device, frugal, state: Mutex::new(State { budget, ..State::default() }) }
    }

    /// A block of at least so many bytes.
    #[track_caller]
    pub(crate) fn lend(self: &Arc<Self>, bytes: usize) -> Result<PinnedBlock> {
        self.device.usable()?;
        let (Free { ptr, allocation }, capacity) = self.block(bytes)?;
        Ok(PinnedBlock { ptr, capacity, allocation, pool: self.clone() })
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Bytes lent out, and bytes kept for the next buffer.
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
            if state.grow(capacity, self.frugal, &mut spare) {
                drop(state);
                // Outside the lock: the calls take milliseconds.
                let _stall = self.device.stall(Stall::PinnedAllocation);
                self.free(spare);
                return match self.device.new_pinned(capacity) {
                    Ok(ptr) => Ok((Free { ptr, allocation: next_allocation() }, capacity)),
                    Err(e) => {
                        let mut state = lock(&self.state);
                        state.held -= capacity;
                        state.lent -= capacity;
                        Err(e)
                    }
                };
            }
            let Some(events) = state.retired.first().map(|r| r.after.clone()) else {
                return Err(Error::PinnedBudget { wanted: bytes, in_use: state.lent, budget: state.budget });
            };
            drop(state);
            let _stall = self.device.stall(Stall::PinnedAllocation);
            events.iter().try_for_each(|event| event.synchronize())?;
        }
    }

    pub(crate) fn give_back(&self, block: PinnedBlock, mut after: Vec<Lease>) {
        after.retain(|e| !e.is_done());
        let (capacity, block) = (block.capacity, Free { ptr: block.ptr, allocation: block.allocation });
        let mut state = lock(&self.state);
        if after.is_empty() {
            state.rest(block, capacity);
        } else {
            state.retired.push(Retired { block, capacity, after });
        }
    }

    /// Gives everything at rest back to the system, where the device may be called.
    pub(crate) fn trim(&self) {
        if self.device.usable().is_err() {
            return;
        }
        let mut spare = Spare::new();
        {
            let mut state = lock(&self.state);
            state.sweep();
            state.shrink(0, &mut spare);
            state.peak = state.lent;
        }
        self.free(spare);
    }

    /// Sets the most bytes that the pool may hold, and gives back what is at rest beyond them, where the device may be called.
    pub(crate) fn limit(&self, budget: usize) {
        let mut spare = Spare::new();
        {
            let mut state = lock(&self.state);
            state.budget = budget;
            if self.device.usable().is_ok() {
                state.sweep();
                state.shrink(budget, &mut spare);
            }
        }
        self.free(spare);
    }

    fn free(&self, spare: Spare) {
        for (block, capacity) in spare {
            self.device.free_pinned(block.ptr, capacity);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Every block holds the pool, so none is lent; retired ones are the pool's until their events complete.
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner));
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

impl Device {
    /// The device's own pool.
    pub(crate) fn home_pool(self) -> &'static Arc<Pool> {
        self.keep(|| Arc::new(Pool::new(self, usize::MAX, true)))
    }

    fn new_pinned(self, bytes: usize) -> Result<NonNull<u8>> {
        self.usable()?;
        self.seen(self.driver().host_alloc(bytes))
    }

    /// Gives page-locked memory back to the system; in doubt it leaks.
    fn free_pinned(self, ptr: NonNull<u8>, bytes: usize) {
        if self.usable().is_ok() {
            // SAFETY: a pool calls this once for a block at rest.
            let _ = unsafe { self.driver().host_free(ptr, bytes) };
        }
    }
}
