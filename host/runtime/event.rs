//! Events of the driver, and their owners.

use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::background::{Job, background, wake};
use super::device::{Device, DeviceKind};
use super::sync_stats::HostWait;
use crate::driver::{EventHandle, Fault, guard};
use crate::error::Result;
use crate::lock;

/// An event of the driver. Dropping the last holder destroys it.
#[derive(Debug)]
pub(crate) struct EventCell {
    device: Device,
    /// The pool that takes the event when the last lease of it is dropped.
    pool: &'static EventPool,
    handle: ManuallyDrop<EventHandle>,
}

impl EventCell {
    pub(crate) fn new(device: Device, timed: bool) -> Result<Self> {
        let handle = device.seen(device.driver().new_event(timed))?;
        Ok(Self { device, pool: EventPool::of(device), handle: ManuallyDrop::new(handle) })
    }

    #[inline]
    pub(crate) fn handle(&self) -> &EventHandle {
        &self.handle
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Waits on the host for the latest record.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.ask(EventHandle::synchronize)
    }

    /// Calls the driver, if the device can be called.
    fn ask<T>(&self, call: impl FnOnce(&EventHandle) -> Result<T, Fault>) -> Result<T> {
        self.device.ensure_usable()?;
        let answer = self.device.seen(call(&self.handle))?;
        // Once more: a host function of the work before may have failed the device.
        self.device.ensure_usable().map(|()| answer)
    }
}

impl Drop for EventCell {
    fn drop(&mut self) {
        // SAFETY: [once] Only this destructor takes the handle, it runs once, and nothing uses the
        // handle later.
        let handle = unsafe { ManuallyDrop::take(&mut self.handle) };
        if guard::forked() {
            std::mem::forget(handle);
        } else if guard::in_stream_work() {
            background(Job::Finish(Box::new(|| handle.destroy())));
        } else {
            handle.destroy();
        }
    }
}

/// An event that is recorded on a stream. The last holder gives it back to the device's pool, so it
/// is recorded again only when nobody can ask about the old record. (If the last two holders drop
/// it at the same moment, it is destroyed instead.)
#[derive(Debug)]
pub(crate) struct Lease(Option<Arc<EventCell>>);

impl Lease {
    /// Makes a lease of an event that only the caller holds.
    #[inline]
    pub(crate) fn new(cell: Arc<EventCell>) -> Self {
        Self(Some(cell))
    }

    #[inline]
    fn cell(&self) -> &EventCell {
        match &self.0 {
            Some(cell) => cell,
            None => unreachable!("only `drop` takes the event"),
        }
    }

    #[inline]
    pub(crate) fn device(&self) -> Device {
        self.cell().device
    }

    #[inline]
    pub(crate) fn handle(&self) -> &EventHandle {
        self.cell().handle()
    }

    /// Whether the work before the record is done.
    pub(crate) fn query(&self) -> Result<bool> {
        self.cell().ask(EventHandle::is_complete)
    }

    /// Whether the work before the record is done; false if that cannot be known.
    pub(crate) fn is_known_complete(&self) -> bool {
        self.handle().is_known_complete()
    }

    /// Wakes the task when the work before the record is done or the device has failed.
    pub(crate) fn wake(&self, waker: &Waker) {
        let (event, waker) = (self.clone(), waker.clone());
        background(Job::When(Box::new(move || !matches!(event.query(), Ok(false))), Box::new(|| wake(waker))));
    }

    /// Waits on the host, and asks a GPU from time to time instead of keeping a core busy.
    #[track_caller]
    pub(crate) fn synchronize_sleeping(&self) -> Result<()> {
        let _wait = self.device().host_wait(HostWait::Synchronize);
        if self.device().kind() == DeviceKind::Cpu {
            return self.cell().synchronize(); // its threads wake the one that waits
        }
        let begin = Instant::now();
        while !self.query()? {
            std::thread::sleep((begin.elapsed() / 16).clamp(Duration::from_micros(20), Duration::from_millis(1)));
        }
        Ok(())
    }

    /// Waits on the host.
    #[track_caller]
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _wait = self.device().host_wait(HostWait::Synchronize);
        self.cell().synchronize()
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        if let Some(cell) = self.0.take()
            && Arc::strong_count(&cell) == 1
        {
            // Pairs with the release in the drop of the last other clone, on whichever thread that
            // was.
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            cell.pool.recycle(cell);
        }
    }
}

/// The spare events of a device.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    /// One spare event (from `Arc::into_raw`), or null. Because of it the usual `record` and `wait`
    /// need no lock.
    spare: AtomicPtr<EventCell>,
    rest: Mutex<Vec<Arc<EventCell>>>,
}

/// The most spare events that a device keeps in the list.
const EVENTS_KEPT: usize = 1024;

impl EventPool {
    pub(crate) fn of(device: Device) -> &'static Self {
        device.keep(Self::default)
    }

    /// Takes a spare event, or makes one. Nobody else holds it.
    #[inline]
    #[track_caller]
    pub(crate) fn take(&self, device: Device) -> Result<Arc<EventCell>> {
        let spare = self.spare.swap(null_mut(), Ordering::Acquire);
        if spare.is_null() {
            return self.take_locked(device);
        }
        // SAFETY: [once] `recycle` made the pointer with `Arc::into_raw`, and the swap gave it to
        // this call alone.
        Ok(unsafe { Arc::from_raw(spare) })
    }

    #[track_caller]
    fn take_locked(&self, device: Device) -> Result<Arc<EventCell>> {
        let pooled = lock(&self.rest).pop();
        match pooled {
            Some(cell) => Ok(cell),
            None => {
                let _wait = device.host_wait(HostWait::EventCreation);
                EventCell::new(device, false).map(Arc::new)
            }
        }
    }

    /// Takes back an event that nobody else holds.
    #[inline]
    pub(crate) fn recycle(&self, cell: Arc<EventCell>) {
        let cell = Arc::into_raw(cell).cast_mut();
        let put = self.spare.compare_exchange(null_mut(), cell, Ordering::Release, Ordering::Relaxed);
        if put.is_err() {
            // SAFETY: [once] `Arc::into_raw` made the pointer above, and the exchange failed, so it
            // is not stored.
            self.recycle_locked(unsafe { Arc::from_raw(cell) });
        }
    }

    fn recycle_locked(&self, cell: Arc<EventCell>) {
        if guard::forked() {
            std::mem::forget(cell); // another thread may have held the lock at the fork
            return;
        }
        let mut events = lock(&self.rest);
        if events.len() < EVENTS_KEPT {
            events.push(cell);
        }
    }
}

impl Device {
    /// Frees device memory after the events, without blocking. If that cannot be ordered, the
    /// memory leaks.
    pub(crate) fn free(self, addr: u64, bytes: usize, after: &[Lease]) {
        let stream = self.housekeeping();
        if after.iter().all(|event| stream.wait(event.handle()).is_ok()) {
            // SAFETY: [free] The last owner of the allocation calls this once, and the stream has
            // just been made to wait for the events, which follow all uses.
            let _ = unsafe { stream.free(addr, bytes) };
        }
    }
}
