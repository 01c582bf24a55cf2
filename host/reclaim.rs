//! What becomes of memory whose handle was dropped, and the thread that finishes what a destructor must not.
//!
//! A destructor never blocks, never panics and runs no user code but wakers. It hands memory to
//! [`give_back`], which frees device memory in stream order and lends page-locked memory again once an
//! event says so. Where completion cannot be proven (a failed record, a poisoned device), it leaks.

use std::sync::{Condvar, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use crate::driver::guard::{forked, in_host_function};
use crate::driver::{EventHandle, GraphHandle};
use crate::event::Lease;
use crate::lock;
use crate::memory::{Memory, Owned};
use crate::stream::StreamInner;

/// After what memory may be given back.
#[derive(Debug)]
pub(crate) enum When {
    /// After these events; at once where there are none.
    After(Vec<Lease>),
    /// After everything that this stream has been given so far.
    Stream(&'static StreamInner),
}

/// Gives memory back once `when` has passed. Never blocks and never fails: in doubt it leaks.
pub(crate) fn give_back(memory: Memory, when: When) {
    if memory.is_empty() {
        return;
    }
    if forked() {
        std::mem::forget(memory);
        return;
    }
    if in_host_function() {
        background(Job::GiveBack(memory, when));
        return;
    }
    match when {
        When::After(events) => memory.release(events),
        When::Stream(stream) => match memory {
            // A peer's memory is freed by its own device, after an event.
            Memory::Device(Owned::Whole(block)) if block.device == stream.device() => {
                stream.free(block.addr, block.bytes);
            }
            memory => match stream.lease() {
                Ok(event) => memory.release(vec![event]),
                Err(_) => std::mem::forget(memory),
            },
        },
    }
}

/// What the background thread does.
pub(crate) enum Job {
    /// What a destructor inside a host function could not do.
    GiveBack(Memory, When),
    /// The same, for a graph.
    Graph(GraphHandle),
    /// The same, for an event.
    Event(EventHandle),
    /// Wakes a task once an event is complete.
    Wake(Lease, Waker),
}

/// Wakes a task. A waker is the executor's code, and so is its destructor; neither may end a
/// destructor or the background thread.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        let woken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
        std::mem::forget(woken.err());
    }
}

struct Background {
    jobs: Mutex<Vec<Job>>,
    some: Condvar,
}

/// Hands a job to the background thread, which starts with the first.
pub(crate) fn background(job: Job) {
    static BACKGROUND: OnceLock<&'static Background> = OnceLock::new();
    let background = BACKGROUND.get_or_init(|| {
        let shared: &'static Background =
            Box::leak(Box::new(Background { jobs: Mutex::default(), some: Condvar::new() }));
        // Without the thread, memory leaks and tasks are woken by nobody but their next poll.
        let _ = std::thread::Builder::new().name("thalweg-reclaim".into()).spawn(|| shared.run());
        shared
    });
    lock(&background.jobs).push(job);
    background.some.notify_one();
}

impl Background {
    /// Looks at the events that tasks wait for, less often the longer none completes.
    fn run(&self) {
        let mut waiting: Vec<(Lease, Waker)> = Vec::new();
        let mut pause = Duration::ZERO;
        loop {
            let mut jobs = lock(&self.jobs);
            while jobs.is_empty() && waiting.is_empty() {
                jobs = self.some.wait(jobs).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            if jobs.is_empty() {
                let waited = self.some.wait_timeout(jobs, pause);
                jobs = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            }
            for job in std::mem::take(&mut *jobs) {
                match job {
                    Job::GiveBack(memory, when) => {
                        drop(jobs);
                        give_back(memory, when);
                        jobs = lock(&self.jobs);
                    }
                    Job::Graph(graph) => graph.destroy(),
                    Job::Event(event) => event.destroy(),
                    Job::Wake(event, waker) => {
                        waiting.push((event, waker));
                        pause = Duration::ZERO;
                    }
                }
            }
            drop(jobs);
            let before = waiting.len();
            for (event, waker) in waiting.extract_if(.., |(event, _)| !matches!(event.query(), Ok(false))) {
                drop(event);
                wake(Some(waker));
            }
            let progress = waiting.len() < before;
            pause = if progress { Duration::ZERO } else { (pause * 2).clamp(MIN_PAUSE, MAX_PAUSE) };
        }
    }
}

/// Between two looks at the events that tasks wait for: from 10 us, while things happen, to 1 ms.
const MIN_PAUSE: Duration = Duration::from_micros(10);
const MAX_PAUSE: Duration = Duration::from_millis(1);
