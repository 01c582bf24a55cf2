//! Refuses calls into a device in a host function of a stream, and in a child process made by
//! `fork`.
//!
//! CUDA forbids both. The layers above cannot forget the check. Every function of the CUDA driver
//! asks the guard before it calls ([`ffi`](super::ffi)). The CPU device's streams, events and
//! memory are reached through [`Guarded`] only, so a program that breaks the rule gets the same
//! error there.
//!
//! A refused call has no effect: it returns an error, or, if it frees memory, the memory leaks. So
//! a destructor that may run in a host function gives its work to the background thread of
//! `runtime`.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forbidden {
    /// This thread runs a host function of a stream.
    HostFunction,
    /// This process is a forked child.
    Fork,
}

impl From<Forbidden> for Error {
    fn from(why: Forbidden) -> Self {
        match why {
            Forbidden::HostFunction => Self::InHostFunction,
            Forbidden::Fork => Self::Forked,
        }
    }
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Returns whether a device may be called from here.
#[inline]
pub(crate) fn permitted() -> Result<(), Forbidden> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Forbidden::Fork);
    }
    if IN_HOST_FUNCTION.get() {
        return Err(Forbidden::HostFunction);
    }
    Ok(())
}

/// Whether this thread runs a host function of a stream.
#[inline]
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// Whether this process is a forked child.
#[inline]
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Runs `f` as a host function of a stream.
pub(crate) fn as_host_function<T>(f: impl FnOnce() -> T) -> T {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_HOST_FUNCTION.set(self.0);
        }
    }
    let _leave = Leave(IN_HOST_FUNCTION.replace(true));
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
        // SAFETY: The handler only stores to an atomic flag, which is allowed in a forked child. If
        // the system has no memory for the handler, forks are not noticed.
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
