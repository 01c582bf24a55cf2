//! The primitives that queues and events use: those of `std`, or those of loom when its tests
//! explore the interleavings.

use std::sync::PoisonError;

#[cfg(loom)]
pub(super) use loom::sync::{Arc, Condvar, Mutex, MutexGuard, atomic::AtomicBool};
#[cfg(not(loom))]
pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic::AtomicBool};

/// Locks the mutex, also if an earlier holder panicked. No user code runs under these locks, except
/// on a seeded schedule, where its panics are caught.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until notified.
pub(super) fn sleep<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
