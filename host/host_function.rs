//! Host functions: code of the program that a stream runs between its other work.

use std::sync::atomic::AtomicU32;

use crate::brand::{Brand, StreamTag};
use crate::driver::guard;
use crate::error::{Error, Result};
use crate::stream::Stream;

impl<S: Brand> Stream<S> {
    /// Runs `f` on a thread of the driver once the stream comes to it; what follows on the stream waits for it.
    ///
    /// `f` must not call into a device: that gives [`Error::InHostFunction`]. It may drop resources, whose memory is then given
    /// back by another thread; a [`Reading`] dropped in it leaks its resource, because it cannot be recorded. A panic is caught and reported by [`Device::check`] and [`synchronize`](Stream::synchronize).
    ///
    /// # Errors
    /// The device has failed; `f` is dropped.
    pub fn launch_host(self, f: impl FnOnce() + Send + 'static) -> Result<()>
    where
        S: StreamTag,
    {
        let device = self.device();
        let mut f = HostFunction(Some(f));
        let guarded = move || {
            let run = std::panic::AssertUnwindSafe(|| f.run());
            if let Err(panic) = std::panic::catch_unwind(run) {
                let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                    (Some(s), _) => (*s).to_owned(),
                    (_, Some(s)) => s.clone(),
                    _ => "a value that is no text".to_owned(),
                };
                // The payload is the user's; dropping it may panic again, and there is nobody left to catch it.
                std::mem::forget(panic);
                device.defer(Error::HostFunctionPanicked { message });
            }
        };
        self.call(|s| s.launch_host(Box::new(guarded)))
    }

    /// Blocks the stream until the word in page-locked memory is at least `value`: a gate for tests.
    ///
    /// # Safety
    /// `flag` lies in page-locked memory, is aligned, and stays valid until the stream is past this point.
    ///
    /// # Errors
    /// The device has failed or does not support it.
    pub unsafe fn wait_value(self, flag: *const AtomicU32, value: u32) -> Result<()>
    where
        S: StreamTag,
    {
        // SAFETY: the caller's promise.
        self.call(|s| unsafe { s.wait_value(flag, value) })
    }
}

/// A host function: called, or dropped by a queue that passes it over, as one.
struct HostFunction<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> HostFunction<F> {
    fn run(&mut self) {
        if let Some(f) = self.0.take() {
            guard::as_host_function(f);
        }
    }
}

impl<F: FnOnce()> Drop for HostFunction<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            guard::as_host_function(|| drop(f));
        }
    }
}
