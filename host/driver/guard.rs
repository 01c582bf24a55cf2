//! Refuses calls into a device in a host function of a stream, in the body of a kernel, and in a
//! child process made by `fork`.
//!
//! CUDA forbids the first and the last, and a kernel on a GPU has no host to call. On the CPU
//! device a body runs on the thread of its stream, so a call that waits for the stream would wait
//! for itself. The layers above cannot forget the check. Every function of the CUDA driver asks the
//! guard before it calls ([`ffi`](super::ffi)). The CPU device's streams, events and memory are
//! reached through [`Guarded`] only, so a program that breaks the rule gets the same error there.
//!
//! A refused call has no effect: it returns an error, or, if it frees memory, the memory leaks. So
//! a destructor that may run in a host function or in a kernel gives its work to the background
//! thread of `runtime`.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(shuttle)]
use shuttle::thread_local;

use crate::error::Error;

/// The reason why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forbidden {
    /// This thread runs a host function of a stream.
    HostFunction,
    /// This thread runs the body of a kernel.
    Kernel,
    /// This process is a forked child.
    Fork,
}

impl From<Forbidden> for Error {
    fn from(why: Forbidden) -> Self {
        match why {
            Forbidden::HostFunction => Self::InHostFunction,
            Forbidden::Kernel => Self::InKernel,
            Forbidden::Fork => Self::Forked,
        }
    }
}

thread_local! {
    /// The part of a stream's work that this thread runs.
    static RUNNING: Cell<Option<Forbidden>> = const { Cell::new(None) };
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Returns whether a device may be called from here.
#[inline]
pub(crate) fn permitted() -> Result<(), Forbidden> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Forbidden::Fork);
    }
    match RUNNING.with(Cell::get) {
        None => Ok(()),
        Some(why) => Err(why),
    }
}

/// Whether this thread runs work of a stream: a host function or the body of a kernel.
#[inline]
pub(crate) fn in_stream_work() -> bool {
    RUNNING.with(Cell::get).is_some()
}

/// Whether this process is a forked child.
#[inline]
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Runs `f` as a host function of a stream.
pub(crate) fn as_host_function<T>(f: impl FnOnce() -> T) -> T {
    while_running(Forbidden::HostFunction, f)
}

/// Runs `f`, which runs blocks of a kernel.
pub(crate) fn as_kernel<T>(f: impl FnOnce() -> T) -> T {
    while_running(Forbidden::Kernel, f)
}

/// Makes this thread one that runs kernels only. A body may use the thread pool that runs it, so
/// its own tasks can come to a thread while that runs no block.
pub(crate) fn for_kernels() {
    RUNNING.with(|running| running.set(Some(Forbidden::Kernel)));
}

fn while_running<T>(work: Forbidden, f: impl FnOnce() -> T) -> T {
    struct Leave(Option<Forbidden>);
    impl Drop for Leave {
        fn drop(&mut self) {
            RUNNING.with(|running| running.set(self.0));
        }
    }
    let _leave = Leave(RUNNING.with(|running| running.replace(Some(work))));
    f()
}

/// Notices every later `fork` of this process.
pub(crate) fn watch_for_fork() {
    #[cfg(unix)]
    {
        extern "C" fn child() {
            FORKED.store(true, Ordering::Relaxed);
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: [call] The handler only stores to an atomic flag, which is allowed in a forked
        // child. If the system has no memory for the handler, forks are not noticed.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(child));
        });
    }
}

/// A part of the CPU device. It may be called only where a driver may be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded<T>(T);

impl<T> Guarded<T> {
    pub(crate) fn new(part: T) -> Self {
        Self(part)
    }

    /// The part, if it may be called here.
    #[inline]
    pub(crate) fn enter(&self) -> Result<&T, Forbidden> {
        permitted().map(|()| &self.0)
    }

    /// The part without the check, for properties and settings that need no driver call on a GPU.
    pub(crate) fn facts(&self) -> &T {
        &self.0
    }
}
