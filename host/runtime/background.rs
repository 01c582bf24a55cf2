//! The thread that finishes what a destructor must not, and wakes tasks that wait for events.

use std::sync::{Condvar, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use crate::lock;

/// What the background thread does.
pub(crate) enum Job {
    /// What a destructor inside a host function could not do. It runs no code of a user.
    Finish(Box<dyn FnOnce() + Send>),
    /// Wakes a task once the condition holds, such as that an event is complete.
    Wake(Box<dyn Fn() -> bool + Send>, Waker),
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
    /// Looks at what tasks wait for, less often the longer nothing of it comes.
    fn run(&self) {
        let mut waiting: Vec<(Box<dyn Fn() -> bool + Send>, Waker)> = Vec::new();
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
                    Job::Finish(finish) => {
                        drop(jobs);
                        finish();
                        jobs = lock(&self.jobs);
                    }
                    Job::Wake(is_due, waker) => {
                        waiting.push((is_due, waker));
                        pause = Duration::ZERO;
                    }
                }
            }
            drop(jobs);
            let before = waiting.len();
            for (is_due, waker) in waiting.extract_if(.., |(is_due, _)| is_due()) {
                drop(is_due);
                wake(Some(waker));
            }
            let progress = waiting.len() < before;
            pause = if progress { Duration::ZERO } else { (pause * 2).clamp(MIN_PAUSE, MAX_PAUSE) };
        }
    }
}

/// Between two looks at what tasks wait for: from 10 us, while things happen, to 1 ms.
const MIN_PAUSE: Duration = Duration::from_micros(10);
const MAX_PAUSE: Duration = Duration::from_millis(1);
