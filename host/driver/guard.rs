//! Where calls into a device are forbidden: in a host function of a stream, and in a child made by `fork`.
//!
//! CUDA forbids both. Nothing above the seam can forget to ask: every function of the CUDA driver asks before it calls
//! ([`ffi`](super::ffi)), and the CPU device's streams, events and memory are reached through [`Guarded`] only, so that a program
//! that breaks the rule breaks it there too. What is refused did not happen: calls give a typed error, and memory leaks. So a
//! destructor that may run in a host function hands its work to [`reclaim`](crate::reclaim) instead.

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

/// Whether a device may be called from here.
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

/// Notices forks from now on.
pub(crate) fn watch_for_fork() {
    #[cfg(unix)]
    {
        extern "C" fn child() {
            FORKED.store(true, Ordering::Relaxed);
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: registers a handler that stores one flag; without memory for it, forks go unnoticed.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(child));
        });
    }
}

/// A part of the CPU device, which may be called where a driver may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded<T>(T);

impl<T> Guarded<T> {
    pub(crate) fn new(part: T) -> Self {
        Self(part)
    }

    /// The part, where it may be called.
    #[inline]
    pub(crate) fn enter(&self) -> Result<&T, Forbidden> {
        permitted().map(|()| &self.0)
    }

    /// The part, for facts and settings that on a GPU take no driver call.
    pub(crate) fn facts(&self) -> &T {
        &self.0
    }
}
