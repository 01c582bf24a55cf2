//! Threads that end communicators, and the end of the process.
//!
//! An exit runs NCCL's own destructors. A thread that is inside NCCL then crashes the process, or
//! hangs it. So the exit first waits for the threads that end communicators.

use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Instant;

use super::END;
use crate::lock;

/// The threads that end a communicator.
static ENDING: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();
/// The process whose threads those are, and not one that was forked from it.
static PROCESS: Mutex<u32> = Mutex::new(0);

/// Counts a thread that ends a communicator, or is about to.
#[derive(Debug)]
pub(super) struct Ending(());

impl Ending {
    pub(super) fn new() -> Self {
        *lock(&ENDING) += 1;
        Self(())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        *lock(&ENDING) -= 1;
        CHANGED.notify_all();
    }
}

unsafe extern "C" {
    fn atexit(run: extern "C" fn()) -> std::ffi::c_int;
}

/// Makes the exit of the process wait. What is registered last runs first, so this is called once
/// NCCL has made a communicator, and with it its statics.
pub(super) fn wait_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        *lock(&PROCESS) = std::process::id();
        // SAFETY: `at_exit` is a function of this program, which does not unwind. A failure leaves
        // the exit as it was.
        unsafe { atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    if *lock(&PROCESS) == std::process::id() {
        wait(Instant::now() + END);
    }
}

/// Waits until no thread ends a communicator.
fn wait(until: Instant) {
    let mut ending = lock(&ENDING);
    while *ending > 0 {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        ending = CHANGED.wait_timeout(ending, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Ending, wait};

    /// One test, because the count is one for the process.
    #[test]
    fn the_exit_waits_for_threads_that_end_communicators() {
        static ENDED: AtomicBool = AtomicBool::new(false);
        let started = Instant::now();
        let long = Duration::from_secs(60);
        wait(started + long);
        assert!(started.elapsed() < long / 2, "nobody ends one");

        let ending = Ending::new();
        wait(Instant::now() + Duration::from_millis(10)); // it gives up
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            ENDED.store(true, Ordering::Release);
            drop(ending);
        });
        wait(started + long);
        assert!(ENDED.load(Ordering::Acquire) && started.elapsed() < long / 2);
    }
}
