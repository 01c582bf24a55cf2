//! The watchdog of operations by peer copies.
//!
//! A call waits on the host until the other ranks have called the same, so it notices ranks that do
//! not call. This thread notices those that have called, but whose device does not come to the
//! operation: it looks at an event where an operation has its turn and at one behind it. It cannot
//! end what a device waits for, so streams stay blocked as long as the device of that rank is.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thalweg::{DeviceBuffer, Event, beside_captures};

use crate::error::{Failure, Result};
use crate::exchange::Exchange;
use crate::failure_state::FailureState;
use crate::header::Call;
use crate::lock;

/// The time between two looks of the watchdog.
const TICK: Duration = Duration::from_millis(20);

/// A point of a stream.
type Point = Event<DeviceBuffer<u8>>;

/// The watchdog of a rank. Its thread ends after the last operation, or when the ranks have failed.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    rank: usize,
    timeout: Duration,
    failure_state: Arc<FailureState>,
    exchange: Arc<Exchange>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: VecDeque<Watched>,
    leaving: bool,
}

#[derive(Debug)]
struct Watched {
    seq: u64,
    call: Call,
    turn: Point,
    /// `None` while it is enqueued.
    end: Option<Point>,
}

impl Watch {
    pub(crate) fn new(
        rank: usize,
        timeout: Duration,
        failure_state: Arc<FailureState>,
        exchange: Arc<Exchange>,
    ) -> Result<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { rank, timeout, failure_state, exchange, state, changed });
        let run = shared.clone();
        let thread = thread::Builder::new().name("thalweg peer".to_owned());
        let thread = thread.spawn(move || beside_captures(|| run.patrol()));
        thread.map_err(|why| thalweg::Error::Thread { reason: why.to_string() })?;
        Ok(Self(shared))
    }

    /// Notes an operation, which has its turn at this point.
    pub(crate) fn turn(&self, seq: u64, call: Call, turn: Point) {
        lock(&self.0.state).pending.push_back(Watched { seq, call, turn, end: None });
    }

    /// Notes the end of the last operation.
    pub(crate) fn end(&self, end: Point) {
        if let Some(last) = lock(&self.0.state).pending.back_mut() {
            last.end = Some(end);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.leaving = true;
        // No call is under way, so these were given up: their end never comes.
        state.pending.retain(|watched| watched.end.is_some());
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn patrol(&self) {
        // The operation that has its turn, and since when.
        let mut current: Option<(u64, Instant)> = None;
        loop {
            let mut state = lock(&self.state);
            if state.leaving && state.pending.is_empty() {
                return;
            }
            state = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
            if self.failure_state.failure().is_some() {
                return;
            }
            let own = &self.exchange.turns[self.rank];
            while let Some(first) = state.pending.front()
                && first.end.as_ref().is_some_and(Event::is_known_complete)
            {
                own.fetch_max(first.seq, Ordering::AcqRel);
                state.pending.pop_front();
            }
            let Some(first) =
                state.pending.front().filter(|first| first.end.is_some() && first.turn.is_known_complete())
            else {
                current = None;
                continue;
            };
            for other in state.pending.iter().take_while(|other| other.turn.is_known_complete()) {
                own.fetch_max(other.seq, Ordering::AcqRel);
            }
            let (seq, since) = *current.filter(|(seq, _)| *seq == first.seq).get_or_insert((first.seq, Instant::now()));
            current = Some((seq, since));
            if since.elapsed() >= self.timeout {
                let op = first.call.text();
                drop(state);
                let turns = self.exchange.turns.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
                let late: Vec<(usize, bool)> =
                    turns.map(|(rank, turn)| (rank, turn.load(Ordering::Acquire) < seq)).collect();
                // If all have come to it, nobody knows who holds it up.
                let any = late.iter().any(|(_, late)| *late);
                let lagging = late.into_iter().filter(|(_, late)| *late || !any).map(|(rank, _)| rank).collect();
                self.failure_state.fail(Failure::Timeout { seq, op, lagging, waited: self.timeout });
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg::Device;

    use super::*;
    use crate::comm::call;
    use crate::header::Code;

    /// A call that panics has its turn and no end. The thread ends with the communicator, although
    /// no rank has failed.
    #[test]
    fn the_thread_ends_though_an_operation_was_given_up() {
        let failure_state = Arc::new(FailureState::new(None, ""));
        let watch =
            Watch::new(0, Duration::from_secs(3600), failure_state.clone(), Arc::new(Exchange::new(2))).unwrap();
        let turn = Event::ready(DeviceBuffer::empty(Device::cpu().unwrap()));
        watch.turn(1, call::<u8>(Code::Barrier, None, 0), turn);
        let shared = Arc::downgrade(&watch.0);
        drop(watch);
        let begin = Instant::now();
        while shared.strong_count() > 0 && begin.elapsed() < Duration::from_secs(20) {
            thread::sleep(TICK);
        }
        assert_eq!(shared.strong_count(), 0, "the thread still runs");
        assert!(failure_state.failure().is_none());
    }
}
