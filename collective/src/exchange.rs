//! The exchange through which the ranks of one process post messages to one another.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::link::Abort;
use crate::lock;

/// The time that a rank waits for another one before it sleeps. Ranks that run the same program
/// come to an operation within this time, and the operation takes less than it takes to wake a
/// thread.
const AWAKE: Duration = Duration::from_micros(200);

/// The queues in which the ranks of a process post messages to one another.
pub(crate) struct Exchange {
    size: usize,
    open: Mutex<Open>,
    changed: Condvar,
    /// The number of changes.
    changes: AtomicU64,
    /// The number of the last operation that has had its turn on the device of each rank.
    pub(crate) turns: Vec<AtomicU64>,
}

struct Open {
    /// The posted messages, by sender and receiver: events of buffers of any element.
    posted: Vec<VecDeque<Box<dyn Any + Send>>>,
    /// Ranks that have dropped their communicator.
    left: Vec<bool>,
    aborted: bool,
}

/// The reason why nothing comes from a rank.
pub(crate) enum Missing {
    Late,
    Left,
    Aborted,
}

impl Exchange {
    pub(crate) fn new(size: usize) -> Self {
        let posted = (0..size * size).map(|_| VecDeque::new()).collect();
        let open = Mutex::new(Open { posted, left: vec![false; size], aborted: false });
        let turns = (0..size).map(|_| AtomicU64::new(0)).collect();
        Self { size, open, changed: Condvar::new(), changes: AtomicU64::new(0), turns }
    }

    pub(crate) fn post(&self, from: usize, to: usize, what: Box<dyn Any + Send>) {
        self.change(|open| open.posted[from * self.size + to].push_back(what));
    }

    fn change(&self, f: impl FnOnce(&mut Open)) {
        f(&mut lock(&self.open));
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_all();
    }

    pub(crate) fn take(
        &self,
        from: usize,
        to: usize,
        deadline: Instant,
    ) -> std::result::Result<Box<dyn Any + Send>, Missing> {
        let mut seen = self.changes.load(Ordering::Acquire);
        let mut open = lock(&self.open);
        let soon = Instant::now() + AWAKE;
        loop {
            if open.aborted {
                return Err(Missing::Aborted);
            }
            if let Some(what) = open.posted[from * self.size + to].pop_front() {
                return Ok(what);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if open.left[from] {
                return Err(Missing::Left);
            }
            if left.is_zero() {
                return Err(Missing::Late);
            }
            if Instant::now() < soon {
                drop(open);
                while self.changes.load(Ordering::Acquire) == seen && Instant::now() < soon {
                    std::thread::yield_now();
                }
                seen = self.changes.load(Ordering::Acquire);
                open = lock(&self.open);
                continue;
            }
            open = self.changed.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Abort for Exchange {
    fn abort(&self) {
        self.change(|open| open.aborted = true);
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange of {} ranks", self.size)
    }
}

/// A rank's place in the exchange. Dropping it tells the others that the rank has left.
#[derive(Debug)]
pub(crate) struct PeerSlot {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) rank: usize,
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        self.exchange.change(|open| open.left[self.rank] = true);
    }
}
