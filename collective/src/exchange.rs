//! Where the ranks of one process post what they send to one another.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::link::Abort;
use crate::lock;

/// Where the ranks of a process post what they send to one another.
pub(crate) struct Exchange {
    size: usize,
    open: Mutex<Open>,
    changed: Condvar,
    /// The number of the last operation that has had its turn on the device of each rank.
    pub(crate) turns: Vec<AtomicU64>,
}

struct Open {
    /// What was posted, by sender and receiver: events of buffers of any element.
    posted: Vec<VecDeque<Box<dyn Any + Send>>>,
    /// Ranks that have dropped their communicator.
    left: Vec<bool>,
    aborted: bool,
}

/// Why nothing comes from a rank.
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
        Self { size, open, changed: Condvar::new(), turns }
    }

    pub(crate) fn post(&self, from: usize, to: usize, what: Box<dyn Any + Send>) {
        lock(&self.open).posted[from * self.size + to].push_back(what);
        self.changed.notify_all();
    }

    pub(crate) fn take(
        &self,
        from: usize,
        to: usize,
        deadline: Instant,
    ) -> std::result::Result<Box<dyn Any + Send>, Missing> {
        let mut open = lock(&self.open);
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
            open = self.changed.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Abort for Exchange {
    fn abort(&self) {
        lock(&self.open).aborted = true;
        self.changed.notify_all();
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange of {} ranks", self.size)
    }
}

/// A rank's place in the exchange. Dropping it tells the others that the rank has left.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) rank: usize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.exchange.open).left[self.rank] = true;
        self.exchange.changed.notify_all();
    }
}
