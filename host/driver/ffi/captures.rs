//! Calls beside captures of other code: the mode in which a thread calls the driver.
//!
//! While a thread captures a graph in CUDA's mode "global", many calls of any other thread
//! invalidate that capture, unless the other thread has said that it does not mind. It says so with
//! `cuThreadExchangeStreamCaptureMode`. A thread may want that before anybody has opened a GPU, and
//! on a machine without one. So a thread whose mode is due to change changes it at its next call of
//! the driver: every function of [`ffi`](super) asks [`apply`] first.

use std::cell::Cell;
use std::ffi::c_uint;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::sys::{CUcontext, CUctx_st, CUstreamCaptureMode};

use super::{Failure, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, cuThreadExchangeStreamCaptureMode};

/// The changes that this thread has made to its mode.
#[derive(Clone, Copy)]
struct Mode {
    /// The thread changes its mode at its next call of the driver.
    due: bool,
    /// The mode that the thread had before it changed.
    former: Option<c_uint>,
}

const UNCHANGED: Mode = Mode { due: false, former: None };

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(UNCHANGED) };
}

/// The context of the first device that was opened, which is never released. Null before that.
static CONTEXT: AtomicPtr<CUctx_st> = AtomicPtr::new(null_mut());

/// Notes that a device is open, so threads can change their modes. The context is never released.
pub(in crate::driver) fn opened(context: CUcontext) {
    _ = CONTEXT.compare_exchange(null_mut(), context, Ordering::Release, Ordering::Relaxed);
}

/// Changes the mode of this thread if that is due.
#[inline]
pub(super) fn apply() {
    if MODE.get().due {
        change();
    }
}

/// Changes the mode of this thread. If no device is open, or no device may be called from here, it
/// stays due.
#[cold]
fn change() {
    MODE.set(UNCHANGED); // because the calls below ask, too
    let former = exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_uint);
    MODE.set(Mode { due: former.is_none(), former });
}

/// Gives this thread a mode, and returns the one before; `None` if that failed.
fn exchange(mode: c_uint) -> Option<c_uint> {
    let context = CONTEXT.load(Ordering::Acquire);
    if context.is_null() {
        return None;
    }
    let swap = || {
        let mut mode = mode;
        // SAFETY: [call] The driver was started, because a device is open. The call reads and
        // stores one number.
        unsafe { cuThreadExchangeStreamCaptureMode(&mut mode) }.map(|()| mode)
    };
    let swapped = match swap() {
        // CUDA does not say whether the call needs a context, and most threads have none.
        Err(failure) if failure.blames_context() => with_context(context, swap),
        swapped => swapped,
    };
    swapped.ok()
}

/// Runs `f` while the context is current on this thread.
fn with_context<T>(context: CUcontext, f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // SAFETY: [alive] The context is that of an open device, which is never released.
    unsafe { cuCtxPushCurrent_v2(context) }?;
    let result = f();
    let mut popped = null_mut();
    // SAFETY: [call] It takes back the context that was pushed above. The call stores one handle.
    unsafe { cuCtxPopCurrent_v2(&mut popped) }?;
    result
}

/// Runs `f`, whose calls of the CUDA driver then do not disturb graphs that other threads capture.
///
/// Graphs of this crate need no such care. But other code in the process may capture in CUDA's mode
/// "global", which is the default of PyTorch's `torch.cuda.graph` and of many libraries. Then a
/// call that asks for an event, waits for a stream, or allocates memory **invalidates that
/// capture**, whichever thread makes it. This function puts the calling thread into CUDA's mode
/// "thread-local" (`cuThreadExchangeStreamCaptureMode`) while `f` runs, and gives it its former
/// mode back afterwards, also if `f` panics. Calls may be nested. A mode belongs to a thread:
/// threads that `f` starts have their own.
///
/// The threads of this crate and of the crates on top are in this mode as long as they live: those
/// of a loader, of a timeline and of collective operations, and those in which
/// [`for_each_device`](crate::for_each_device) and
/// [`overlap::per_thread`](fn@crate::overlap::per_thread) run your code. So you need it where **a
/// thread of your own** uses this crate while other code captures, such as the thread that takes
/// batches from a loader, or drops them.
///
/// ```
/// use thalweg::{Device, beside_captures};
///
/// let gpu = Device::best()?; // before anybody captures
/// let feeds = std::thread::spawn(move || {
///     beside_captures(|| gpu.per_thread(|s| s.read_blocking(&s.upload_blocking(&[1, 2, 3])?))?)
/// });
/// // Meanwhile this thread may be in `torch.cuda.graph`.
/// assert_eq!(feeds.join().expect("it does not panic")?, [1, 2, 3]);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// **What still invalidates a capture of other code**, in every mode: a wait for the whole context
/// (`cuCtxSynchronize`, `cudaDeviceSynchronize`) and an event for all of its work
/// (`cuCtxRecordEvent`). This crate makes no such call; when memory is short, it waits for the
/// frees that its own streams were given. Work on the legacy default stream
/// ([`ForeignStream::legacy`](crate::ForeignStream::legacy)) invalidates a capture of a blocking
/// stream. And a thread can always disturb a capture of its own. Open devices before others
/// capture, because the calls that open one are made in the thread's former mode.
///
/// In a program without a GPU, and in a host function of a stream, this only runs `f`.
pub fn beside_captures<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(Mode);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(former) = MODE.replace(UNCHANGED).former {
                _ = exchange(former);
            }
            MODE.set(self.0);
        }
    }
    let _restore = Restore(MODE.get());
    // At once if possible, because `f` may call another library, which calls the driver itself.
    change();
    f()
}
