//! The log of what devices did, for a timeline that asks: each kernel, copy and fill, also those
//! that nobody wrapped in a span.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::lock;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    Kernel,
    Upload,
    Download,
    Copy,
    Fill,
}

/// A piece of work that a device has finished.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// The device: the ordinal of a GPU, or the address of a CPU device.
    pub(crate) device: usize,
    /// The stream: CUPTI's number, or that of a queue of the CPU device.
    pub(crate) stream: u64,
    pub(crate) kind: WorkKind,
    pub(crate) label: String,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

static ON: AtomicBool = AtomicBool::new(false);
static DONE: Mutex<Vec<Done>> = Mutex::new(Vec::new());

/// Begins to log. Returns false if somebody else logs.
pub(crate) fn start() -> bool {
    let mut done = lock(&DONE);
    if ON.load(Ordering::Relaxed) {
        return false;
    }
    done.clear();
    ON.store(true, Ordering::Relaxed);
    true
}

/// Ends the log.
pub(crate) fn stop() {
    ON.store(false, Ordering::Relaxed);
    lock(&DONE).clear();
}

#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Adds work, if somebody logs.
pub(crate) fn add(work: Done) {
    if is_on() {
        lock(&DONE).push(work);
    }
}

/// Takes the work of a device.
pub(crate) fn take(device: usize) -> Vec<Done> {
    let mut done = lock(&DONE);
    let (own, others) = std::mem::take(&mut *done).into_iter().partition(|work| work.device == device);
    *done = others;
    own
}
