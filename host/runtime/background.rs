//! The background thread. It finishes what a destructor may not do, and wakes tasks that wait for
//! events.

use std::sync::{Condvar, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use crate::driver::beside_captures;
use crate::{contain, lock};

/// Something that may hold now or later.
type Condition = Box<dyn Fn() -> bool + Send>;

/// A task of the background thread.
type Action = Box<dyn FnOnce() + Send>;

/// A job of the background thread.
pub(crate) enum Job {
    /// Finishes what a destructor inside a host function could not do. It runs no user code, but a
    /// seeded device may run what its streams hold.
    Finish(Action),
    /// Calls the closure as soon as the condition holds, for example that an event is complete. The
    /// closure does not panic.
    When(Condition, Action),
}

/// Wakes a task. A waker and its destructor are the executor's code, whose panic must not end the
/// background thread.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

struct Background {
    jobs: Mutex<Vec<Job>>,
    some: Condvar,
}

/// Gives a job to the background thread. The first job starts the thread.
pub(crate) fn background(job: Job) {
    static BACKGROUND: OnceLock<&'static Background> = OnceLock::new();
    let background = BACKGROUND.get_or_init(|| {
        let shared: &'static Background =
            Box::leak(Box::new(Background { jobs: Mutex::default(), some: Condvar::new() }));
        // If the thread cannot start, memory leaks, and nothing wakes the tasks.
        let _ = std::thread::Builder::new().name("thalweg jobs".into()).spawn(|| beside_captures(|| shared.run()));
        shared
    });
    lock(&background.jobs).push(job);
    background.some.notify_one();
}

impl Background {
    /// Runs jobs and polls the conditions that tasks wait for. It polls less often the longer none
    /// becomes true.
    fn run(&self) {
        let mut waiting: Vec<(Condition, Action)> = Vec::new();
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
                    Job::When(is_due, then) => {
                        waiting.push((is_due, then));
                        pause = Duration::ZERO;
                    }
                }
            }
            drop(jobs);
            let before = waiting.len();
            for (is_due, then) in waiting.extract_if(.., |(is_due, _)| is_due()) {
                drop(is_due);
                then();
            }
            let progress = waiting.len() < before;
            pause = if progress { Duration::ZERO } else { (pause * 2).clamp(MIN_PAUSE, MAX_PAUSE) };
        }
    }
}

/// The pause between two polls doubles from `MIN_PAUSE` to `MAX_PAUSE` while no condition becomes
/// true.
const MIN_PAUSE: Duration = Duration::from_micros(10);
const MAX_PAUSE: Duration = Duration::from_millis(1);
