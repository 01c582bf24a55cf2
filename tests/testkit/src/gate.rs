//! Gates, which prove an order without a sleep.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use thalweg::{Device, LiveBrand, PinnedBuffer, Stream};

/// A gate. A stream waits at it until the host opens or drops it.
pub struct Gate(&'static AtomicU32);

impl Gate {
    pub fn closed(device: Device) -> Self {
        // The memory is never given back, because a stream may read it at any time. Each gate costs
        // a page.
        let word: &mut PinnedBuffer<u32> = Box::leak(Box::new(device.pinned_from(&[0]).unwrap()));
        // SAFETY: The pointer is aligned for `u32`, and the memory is leaked, so it stays valid.
        // From here on only this atomic and the streams at the gate access it.
        Self(unsafe { AtomicU32::from_ptr(word.as_mut_ptr()) })
    }

    /// Makes the stream wait here.
    pub fn hold<S: LiveBrand>(&self, stream: &Stream<S>) {
        // SAFETY: The word is page-locked memory that `closed` leaked, so it outlives the wait.
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

/// Runs `test`, and opens the gates after 20 seconds. A host that waits for a held stream then
/// fails the test instead of hanging.
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
        let done = done; // A panic drops it too.
        let value = test();
        drop(done);
        (value, watch.join().expect("it only opens gates"))
    });
    assert!(!late, "the host waited for a stream that stands at a gate");
    value
}
