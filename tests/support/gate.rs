//! Gates, which prove an order without sleeping.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use thalweg::{Device, PinnedBuffer, Stream, StreamTag};

/// A gate that streams stand at until the host opens it, or drops it.
pub struct Gate(&'static AtomicU32);

impl Gate {
    pub fn closed(device: Device) -> Self {
        // Never given back, because a stream may look at it at any time; a page a gate.
        let word: &mut PinnedBuffer<u32> = Box::leak(Box::new(device.pinned_from(&[0]).unwrap()));
        // SAFETY: an aligned word of leaked memory, which from here on is accessed
        // through this only.
        Self(unsafe { AtomicU32::from_ptr(word.as_mut_ptr()) })
    }

    /// Makes the stream stand here.
    pub fn hold<S: StreamTag>(&self, stream: &Stream<S>) {
        // SAFETY: the word is page-locked and never given back.
        unsafe { stream.wait_value(self.0, 1) }.unwrap();
    }

    pub fn open(&self) {
        self.0.store(1, Ordering::Release);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Runs `test`, and opens the gates if it takes long: so a host that waits for a stream that
/// stands at one fails the test instead of hanging.
#[track_caller]
pub fn guarded<T>(gates: &[&Gate], test: impl FnOnce() -> T) -> T {
    let (done, over) = mpsc::channel::<()>();
    let (value, late) = std::thread::scope(|threads| {
        let watch = threads.spawn(move || {
            let late = over.recv_timeout(Duration::from_secs(20)) == Err(RecvTimeoutError::Timeout);
            if late {
                eprintln!("the host has waited for a stream that stands at a gate, which is opened now");
                gates.iter().for_each(|gate| gate.open());
            }
            late
        });
        let done = done; // dropped by a panic too
        let value = test();
        drop(done);
        (value, watch.join().expect("it only opens gates"))
    });
    assert!(!late, "the host waited for a stream that stands at a gate");
    value
}
