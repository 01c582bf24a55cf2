//! Page-locked memory, kept for the next buffer: locking pages costs milliseconds.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use super::{PinnedBlock, PinnedBuffer, Plain, byte_len, element};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::Lease;
use crate::lock;
use crate::tally::Stall;

/// A pool of page-locked memory with a budget.
///
/// Every device has one without a limit, which [`Device::pinned`] uses. A pool of one's own bounds what a part of a
/// program can lock.
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
        Self(Arc::new(Pool::new(device, budget)))
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
        self.0.buffer(len)
    }

    /// Bytes lent out.
    pub fn in_use(&self) -> usize {
        lock(&self.0.state).lent
    }

    /// Bytes kept for the next buffer.
    pub fn cached(&self) -> usize {
        let state = lock(&self.0.state);
        state.held - state.lent
    }

    /// Gives the memory that nobody uses back to the system; may wait for the device.
    #[track_caller]
    pub fn trim(&self) {
        let _stall = self.0.device.stall(Stall::PinnedAllocation);
        self.0.trim();
    }
}

/// What a pool knows; shared with every block it lent.
#[derive(Debug)]
pub(crate) struct Pool {
    device: Device,
    budget: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Blocks at rest, by capacity.
    free: BTreeMap<usize, Vec<Free>>,
    /// Blocks given back while work on them was pending.
    retired: Vec<Retired>,
    /// Bytes lent, retired ones included.
    lent: usize,
    /// Bytes lent and free.
    held: usize,
}

/// A block at rest.
#[derive(Debug)]
struct Free(NonNull<u8>);
// SAFETY: exclusively the pool's.
unsafe impl Send for Free {}

/// A block and the events that must complete before it is at rest.
#[derive(Debug)]
pub(crate) struct Retired {
    ptr: Free,
    capacity: usize,
    after: Vec<Lease>,
}

impl State {
    fn rest(&mut self, ptr: Free, capacity: usize) {
        self.lent -= capacity;
        self.free.entry(capacity).or_default().push(ptr);
    }

    /// Moves the blocks whose events are complete to rest.
    fn sweep(&mut self) {
        let mut i = 0;
        while i < self.retired.len() {
            if self.retired[i].after.iter().all(Lease::is_done) {
                let done = self.retired.swap_remove(i);
                self.rest(done.ptr, done.capacity);
            } else {
                i += 1;
            }
        }
    }

    fn fit(&mut self, bytes: usize) -> Option<(NonNull<u8>, usize)> {
        // At most twice what was asked for, so that small buffers do not eat the large blocks.
        let (&capacity, blocks) = self.free.range_mut(bytes..=bytes.saturating_mul(2)).find(|(_, b)| !b.is_empty())?;
        let Free(ptr) = blocks.pop()?;
        self.lent += capacity;
        Some((ptr, capacity))
    }
}

impl Pool {
    pub(crate) fn new(device: Device, budget: usize) -> Self {
        Self { device, budget, state: Mutex::default() }
    }

    #[track_caller]
    pub(crate) fn buffer<T: Plain>(self: &Arc<Self>, len: usize) -> Result<PinnedBuffer<T>> {
        let bytes = byte_len::<T>(len)?;
        if bytes == 0 {
            return Ok(PinnedBuffer::empty(self.device));
        }
        self.device.usable()?;
        let (ptr, capacity) = self.block(bytes)?;
        let block = PinnedBlock { ptr, capacity, pool: self.clone() };
        // SAFETY: the pool lends the block to nobody else, and its memory was zeroed when it was made.
        Ok(unsafe { PinnedBuffer::from_block(block, len, self.device) })
    }

    #[track_caller]
    fn block(&self, bytes: usize) -> Result<(NonNull<u8>, usize)> {
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
            if capacity <= self.budget.saturating_sub(state.held) {
                state.held += capacity;
                state.lent += capacity;
                drop(state);
                // Outside the lock: the call takes milliseconds.
                let _stall = self.device.stall(Stall::PinnedAllocation);
                return match self.device.new_pinned(capacity) {
                    Ok(ptr) => Ok((ptr, capacity)),
                    Err(e) => {
                        let mut state = lock(&self.state);
                        state.held -= capacity;
                        state.lent -= capacity;
                        Err(e)
                    }
                };
            }
            if state.held > state.lent {
                drop(state);
                let _stall = self.device.stall(Stall::PinnedAllocation);
                self.trim(); // blocks of other sizes are in the way
                continue;
            }
            let Some(events) = state.retired.first().map(|r| r.after.clone()) else {
                return Err(Error::PinnedBudget { wanted: bytes, in_use: state.lent, budget: self.budget });
            };
            drop(state);
            let _stall = self.device.stall(Stall::PinnedAllocation);
            events.iter().try_for_each(|event| event.synchronize())?;
        }
    }

    pub(crate) fn give_back(&self, block: PinnedBlock, mut after: Vec<Lease>) {
        after.retain(|e| !e.is_done());
        let mut state = lock(&self.state);
        if after.is_empty() {
            state.rest(Free(block.ptr), block.capacity);
        } else {
            state.retired.push(Retired { ptr: Free(block.ptr), capacity: block.capacity, after });
        }
    }

    fn trim(&self) {
        let free = {
            let mut state = lock(&self.state);
            let free = std::mem::take(&mut state.free);
            state.held -= free.iter().map(|(capacity, blocks)| capacity * blocks.len()).sum::<usize>();
            free
        };
        for (capacity, blocks) in free {
            for Free(ptr) in blocks {
                self.device.free_pinned(ptr, capacity);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Every block holds the pool, so none is lent; retired ones are the pool's until their events complete.
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner));
        let mut home = lock(&self.device.pinned_pool().state);
        for (capacity, blocks) in state.free {
            home.held += capacity * blocks.len();
            home.free.entry(capacity).or_default().extend(blocks);
        }
        for retired in state.retired {
            home.held += retired.capacity;
            home.lent += retired.capacity;
            home.retired.push(retired);
        }
    }
}
