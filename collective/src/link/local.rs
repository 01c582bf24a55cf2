//! Ranks that are threads of one process: queues in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::{Abort, Link, LinkError, goodbye};
use crate::header::{Code, Header};
use crate::lock;

type Message = (Header, Arc<[u8]>);

/// The bytes from one rank to another that may wait there when an operation ends. A rank that sends
/// more than the other one receives waits, as it does over TCP.
const WAITING: usize = 64 << 20;

/// The messages on their way to one rank.
#[derive(Debug)]
struct Inbox {
    /// A queue for each rank that sends.
    from: Mutex<Vec<VecDeque<Message>>>,
    changed: Condvar,
}

/// The place where the ranks of a process exchange messages.
#[derive(Debug)]
pub(crate) struct Mailboxes {
    inboxes: Vec<Inbox>,
    aborted: AtomicBool,
}

impl Mailboxes {
    pub(crate) fn new(size: usize) -> Arc<Self> {
        let inbox = |_| Inbox { from: Mutex::new(vec![VecDeque::new(); size]), changed: Condvar::new() };
        Arc::new(Self { inboxes: (0..size).map(inbox).collect(), aborted: AtomicBool::new(false) })
    }
}

/// One rank among the mailboxes. Dropping it tells the others that it has left.
#[derive(Debug)]
pub(crate) struct LocalLink {
    mailboxes: Arc<Mailboxes>,
    rank: usize,
    /// The bytes of the message whose head came last, from each rank.
    opened: Mutex<Vec<Option<Arc<[u8]>>>>,
}

impl LocalLink {
    pub(crate) fn new(mailboxes: Arc<Mailboxes>, rank: usize) -> Self {
        let opened = Mutex::new(vec![None; mailboxes.inboxes.len()]);
        Self { mailboxes, rank, opened }
    }
}

impl Link for LocalLink {
    fn send(&self, to: usize, head: &Header, bytes: &Arc<[u8]>) {
        let inbox = &self.mailboxes.inboxes[to];
        let mut queues = lock(&inbox.from);
        let queue = &mut queues[self.rank];
        // A later log has all that an earlier one says, so a rank that does not read has one of
        // them.
        if let Some((last, _)) = queue.back()
            && [last.call.code, head.call.code] == [Code::Log; 2]
        {
            queue.pop_back();
        }
        queue.push_back((*head, bytes.clone()));
        drop(queues);
        inbox.changed.notify_all();
    }

    fn header(&self, from: usize, deadline: Instant) -> Result<Header, LinkError> {
        let inbox = &self.mailboxes.inboxes[self.rank];
        let mut queues = lock(&inbox.from);
        loop {
            if self.mailboxes.aborted.load(Ordering::Acquire) {
                return Err(LinkError::Aborted);
            }
            if let Some((head, bytes)) = queues[from].pop_front() {
                drop(queues);
                inbox.changed.notify_all(); // for a rank that waits in `flush`
                lock(&self.opened)[from] = Some(bytes);
                return Ok(head);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::Late);
            }
            queues = inbox.changed.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn body(&self, from: usize, to: &mut [u8], _: Instant) -> Result<(), LinkError> {
        match lock(&self.opened)[from].take() {
            Some(bytes) if bytes.len() == to.len() => to.copy_from_slice(&bytes),
            other => return Err(LinkError::Garbled(format!("{:?} bytes for {}", other.map(|b| b.len()), to.len()))),
        }
        Ok(())
    }

    fn arrived(&self, from: usize) -> bool {
        !lock(&self.mailboxes.inboxes[self.rank].from)[from].is_empty()
    }

    fn flush(&self, deadline: Instant) -> Result<(), Vec<usize>> {
        let waiting = |queue: &VecDeque<Message>| queue.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let mut stuck = Vec::new();
        for (to, inbox) in self.mailboxes.inboxes.iter().enumerate() {
            let mut queues = lock(&inbox.from);
            while waiting(&queues[self.rank]) > WAITING && !self.mailboxes.aborted.load(Ordering::Acquire) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    stuck.push(to);
                    break;
                }
                queues = inbox.changed.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        if stuck.is_empty() { Ok(()) } else { Err(stuck) }
    }
}

impl Abort for LocalLink {
    fn abort(&self) {
        self.mailboxes.aborted.store(true, Ordering::Release);
        for inbox in &self.mailboxes.inboxes {
            // Under the lock, so that nobody is between the look at the flag and the wait.
            let _queues = lock(&inbox.from);
            inbox.changed.notify_all();
        }
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        let none: Arc<[u8]> = Arc::new([]);
        for to in (0..self.mailboxes.inboxes.len()).filter(|&to| to != self.rank) {
            self.send(to, &goodbye(), &none);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Abort, Link, LinkError, LocalLink, Mailboxes, WAITING, goodbye};
    use crate::element::Kind;
    use crate::header::{Call, Code, Header};

    fn head(code: Code, seq: u64, len: usize) -> Header {
        Header { call: Call { code, kind: Kind::U8, op: None, root: None, count: len }, seq, step: 1, len }
    }

    /// Messages to a rank that does not read are bounded, and go on when it does.
    #[test]
    fn a_rank_that_takes_nothing_is_waited_for() {
        let mailboxes = Mailboxes::new(2);
        let [a, b] = [0, 1].map(|rank| LocalLink::new(mailboxes.clone(), rank));
        let bytes: Arc<[u8]> = Arc::from(vec![0; WAITING / 4]);
        let message = head(Code::Message, 1, bytes.len());
        let soon = || Instant::now() + Duration::from_millis(20);
        for _ in 0..4 {
            a.send(1, &message, &bytes);
            assert_eq!(a.flush(soon()), Ok(()));
        }
        a.send(1, &message, &bytes);
        assert_eq!(a.flush(soon()), Err(vec![1]));
        thread::scope(|threads| {
            let waits = threads.spawn(|| a.flush(Instant::now() + Duration::from_secs(20)));
            thread::sleep(Duration::from_millis(20));
            assert_eq!(b.header(0, soon()), Ok(message));
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
    }

    /// Who waits hears a message when it comes, and not at the deadline. The last one says that the
    /// other rank has gone.
    #[test]
    fn who_waits_is_woken_and_told_of_the_end() {
        let mailboxes = Mailboxes::new(2);
        let [a, b] = [0, 1].map(|rank| LocalLink::new(mailboxes.clone(), rank));
        let message = head(Code::Message, 1, 0);
        let start = Instant::now();
        thread::scope(|threads| {
            let heard = threads.spawn(|| b.header(0, start + Duration::from_secs(40)));
            thread::sleep(Duration::from_millis(20));
            a.send(1, &message, &Arc::from([]));
            assert_eq!(heard.join().unwrap(), Ok(message));
        });
        assert!(start.elapsed() < Duration::from_secs(20), "it is not woken by the message");
        drop(a);
        assert_eq!(b.header(0, Instant::now()), Ok(goodbye()));
    }

    /// Who waits for a message, or until another rank has taken what it sent, hears of an abort.
    #[test]
    fn who_waits_hears_of_an_abort() {
        let mailboxes = Mailboxes::new(2);
        let [a, b] = [0, 1].map(|rank| LocalLink::new(mailboxes.clone(), rank));
        let bytes: Arc<[u8]> = Arc::from(vec![0; WAITING + 1]);
        a.send(1, &head(Code::Message, 1, bytes.len()), &bytes);
        let start = Instant::now();
        let deadline = start + Duration::from_secs(40);
        thread::scope(|threads| {
            let hears = threads.spawn(|| a.header(1, deadline));
            let flushes = threads.spawn(|| a.flush(deadline));
            thread::sleep(Duration::from_millis(100)); // until both wait
            assert!(!hears.is_finished() && !flushes.is_finished());
            b.abort();
            assert_eq!(hears.join().unwrap(), Err(LinkError::Aborted));
            assert_eq!(flushes.join().unwrap(), Ok(()));
        });
        assert!(start.elapsed() < Duration::from_secs(20), "it is not woken by the abort");
    }

    /// Logs that nobody reads do not pile up; messages between them stay.
    #[test]
    fn the_last_log_replaces_those_before() {
        let mailboxes = Mailboxes::new(2);
        let [a, b] = [0, 1].map(|rank| LocalLink::new(mailboxes.clone(), rank));
        let none: Arc<[u8]> = Arc::from([]);
        for seq in 0..100 {
            a.send(1, &head(Code::Log, seq, 0), &none);
        }
        a.send(1, &head(Code::Message, 0, 0), &none);
        a.send(1, &head(Code::Log, 100, 0), &none);
        let heard = || b.header(0, Instant::now()).map(|head| (head.call.code, head.seq));
        assert_eq!([heard(), heard(), heard()], [Ok((Code::Log, 99)), Ok((Code::Message, 0)), Ok((Code::Log, 100))]);
        assert!(heard().is_err());
    }
}
