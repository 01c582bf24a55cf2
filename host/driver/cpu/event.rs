//! Events: marks in a queue that other queues and the host wait for.

use std::fmt;
use std::time::Instant;

use super::{Cpu, CpuError};
use crate::driver::sync::{Arc, Condvar, Mutex, lock, sleep};

/// A mark that a queue reaches. It can be recorded again, and then stands for the latest record.
#[derive(Clone)]
pub(crate) struct Event(Arc<Inner>);

struct Inner {
    cpu: &'static Cpu,
    state: Mutex<State>,
    completion: Condvar,
}

#[derive(Default)]
struct State {
    /// The ticket of the latest record. Tickets count from 1.
    recorded: u64,
    /// The tickets of records that are not reached yet, each with the index of its queue. There are
    /// several only if an event is recorded again before it completes. They may complete in any
    /// order.
    pending: Vec<(u64, usize)>,
    completed_at: Option<Instant>,
    sleepers: usize,
}

impl State {
    fn is_complete(&self, ticket: u64) -> bool {
        self.pending.iter().all(|p| p.0 != ticket)
    }
}

impl Event {
    pub(super) fn new(cpu: &'static Cpu) -> Self {
        Self(Arc::new(Inner { cpu, state: Mutex::default(), completion: Condvar::new() }))
    }

    pub(super) fn cpu(&self) -> &'static Cpu {
        self.0.cpu
    }

    /// A number that no other event has while this one exists.
    pub(crate) fn address(&self) -> u64 {
        Arc::as_ptr(&self.0).addr() as u64
    }

    /// Whether the latest record has been reached. This never runs commands.
    pub(crate) fn is_known_complete(&self) -> bool {
        self.latest_pending().is_none()
    }

    /// Whether the latest record has been reached; true for an event that was never recorded.
    ///
    /// # Errors
    /// It has, and the device is poisoned.
    pub(crate) fn query(&self) -> Result<bool, CpuError> {
        if let Some((_, queue)) = self.latest_pending() {
            self.0.cpu.nudge(queue);
        }
        let done = self.latest_pending().is_none();
        if done { self.0.cpu.check().map(|()| true) } else { Ok(false) }
    }

    /// Blocks until the latest record has been reached. Returns at once if the event was never
    /// recorded.
    ///
    /// # Errors
    /// It has been reached, and the device is poisoned. On a seeded schedule only: no command can
    /// run.
    pub(crate) fn synchronize(&self) -> Result<(), CpuError> {
        if let Some((ticket, queue)) = self.latest_pending() {
            match self.0.cpu.scheduler() {
                Some(scheduler) => scheduler.run_until(self.0.cpu, queue, || self.is_complete(ticket))?,
                None => self.block(ticket),
            }
        }
        self.0.cpu.check()
    }

    /// Returns the time at which the latest record was reached; `None` before that.
    pub(crate) fn completed_at(&self) -> Option<Instant> {
        let state = lock(&self.0.state);
        state.completed_at.filter(|_| state.is_complete(state.recorded))
    }

    /// Registers a record in the queue of this index. Returns its ticket.
    pub(super) fn begin(&self, queue: usize) -> u64 {
        let mut state = lock(&self.0.state);
        state.recorded += 1;
        let ticket = state.recorded;
        state.pending.push((ticket, queue));
        ticket
    }

    /// Marks the record as reached.
    pub(super) fn complete(&self, ticket: u64) {
        let mut state = lock(&self.0.state);
        state.pending.retain(|p| p.0 != ticket);
        if ticket == state.recorded {
            state.completed_at = Some(Instant::now());
        }
        if state.sleepers > 0 {
            self.0.completion.notify_all();
        }
    }

    pub(super) fn is_complete(&self, ticket: u64) -> bool {
        lock(&self.0.state).is_complete(ticket)
    }

    /// Sleeps until the record has been reached.
    pub(super) fn block(&self, ticket: u64) {
        let mut state = lock(&self.0.state);
        while !state.is_complete(ticket) {
            state.sleepers += 1;
            state = sleep(&self.0.completion, state);
            state.sleepers -= 1;
        }
    }

    /// The ticket and the queue of the latest record; `None` if it has been reached.
    pub(super) fn latest_pending(&self) -> Option<(u64, usize)> {
        let state = lock(&self.0.state);
        state.pending.iter().copied().find(|p| p.0 == state.recorded)
    }

    /// The queue of a record; `None` if it has been reached.
    pub(super) fn queue_of(&self, ticket: u64) -> Option<usize> {
        lock(&self.0.state).pending.iter().find(|p| p.0 == ticket).map(|p| p.1)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("pending", &self.latest_pending().is_some()).finish()
    }
}
