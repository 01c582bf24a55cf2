//! The log of what devices did, for a timeline that asks: each kernel, copy and fill, also those
//! that nobody wrapped in a span.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
/// The device whose work is logged.
static DEVICE: AtomicUsize = AtomicUsize::new(0);
static DONE: Mutex<Vec<Done>> = Mutex::new(Vec::new());

/// Begins to log what a device does. Returns false if somebody else logs.
pub(crate) fn start(device: usize) -> bool {
    let mut done = lock(&DONE);
    if ON.load(Ordering::Relaxed) {
        return false;
    }
    done.clear();
    DEVICE.store(device, Ordering::Relaxed);
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

/// Adds work, if somebody logs that of its device.
pub(crate) fn add(work: Done) {
    let mut done = lock(&DONE);
    if is_on() && work.device == DEVICE.load(Ordering::Relaxed) {
        done.push(work);
    }
}

/// Takes the work.
pub(crate) fn take() -> Vec<Done> {
    std::mem::take(&mut lock(&DONE))
}
