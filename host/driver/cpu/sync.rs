//! The primitives the queues and events stand on: of `std`, or of loom when it explores their
//! interleavings.

use std::sync::PoisonError;

#[cfg(loom)]
pub(super) use loom::sync::{Arc, Condvar, Mutex, MutexGuard, atomic::AtomicBool};
#[cfg(not(loom))]
pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic::AtomicBool};

/// Locks, whatever happened to an earlier holder: no user code runs under these locks except on the
/// seeded schedule, which catches its panics.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until notified.
pub(super) fn sleep<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
