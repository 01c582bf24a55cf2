//! Ranks that are threads of one process: queues in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::{Abort, Link, Trouble, bye};
use crate::head::Head;
use crate::lock;

type Message = (Head, Arc<[u8]>);

/// What is on its way to one rank.
#[derive(Debug)]
struct Inbox {
    /// A queue for each rank that sends.
    from: Mutex<Vec<VecDeque<Message>>>,
    changed: Condvar,
}

/// The place where the ranks of a process exchange messages.
#[derive(Debug)]
pub(crate) struct Hall {
    inboxes: Vec<Inbox>,
    aborted: AtomicBool,
}

impl Hall {
    pub(crate) fn new(size: usize) -> Arc<Self> {
        let inbox = |_| Inbox { from: Mutex::new(vec![VecDeque::new(); size]), changed: Condvar::new() };
        Arc::new(Self { inboxes: (0..size).map(inbox).collect(), aborted: AtomicBool::new(false) })
    }
}

/// One rank in the hall. Dropping it tells the others that it has left.
#[derive(Debug)]
pub(crate) struct LocalLink {
    hall: Arc<Hall>,
    rank: usize,
    /// The bytes of the message whose head came last, from each rank.
    opened: Mutex<Vec<Option<Arc<[u8]>>>>,
}

impl LocalLink {
    pub(crate) fn new(hall: Arc<Hall>, rank: usize) -> Self {
        let opened = Mutex::new(vec![None; hall.inboxes.len()]);
        Self { hall, rank, opened }
    }
}

impl Link for LocalLink {
    fn send(&self, to: usize, head: &Head, bytes: &Arc<[u8]>) {
        let inbox = &self.hall.inboxes[to];
        lock(&inbox.from)[self.rank].push_back((*head, bytes.clone()));
        inbox.changed.notify_all();
    }

    fn head(&self, from: usize, deadline: Instant) -> Result<Head, Trouble> {
        let inbox = &self.hall.inboxes[self.rank];
        let mut queues = lock(&inbox.from);
        loop {
            if self.hall.aborted.load(Ordering::Acquire) {
                return Err(Trouble::Aborted);
            }
            if let Some((head, bytes)) = queues[from].pop_front() {
                drop(queues);
                lock(&self.opened)[from] = Some(bytes);
                return Ok(head);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Trouble::Late);
            }
            queues = inbox.changed.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn body(&self, from: usize, to: &mut [u8], _: Instant) -> Result<(), Trouble> {
        match lock(&self.opened)[from].take() {
            Some(bytes) if bytes.len() == to.len() => to.copy_from_slice(&bytes),
            other => return Err(Trouble::Garbled(format!("{:?} bytes for {}", other.map(|b| b.len()), to.len()))),
        }
        Ok(())
    }

    fn arrived(&self, from: usize) -> bool {
        !lock(&self.hall.inboxes[self.rank].from)[from].is_empty()
    }

    fn flush(&self, _: Instant) -> Result<(), Vec<usize>> {
        Ok(())
    }
}

impl Abort for LocalLink {
    fn abort(&self) {
        self.hall.aborted.store(true, Ordering::Release);
        for inbox in &self.hall.inboxes {
            // Under the lock, so that nobody is between the look at the flag and the wait.
            let _queues = lock(&inbox.from);
            inbox.changed.notify_all();
        }
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        let none: Arc<[u8]> = Arc::new([]);
        for to in (0..self.hall.inboxes.len()).filter(|&to| to != self.rank) {
            self.send(to, &bye(), &none);
        }
    }
}
