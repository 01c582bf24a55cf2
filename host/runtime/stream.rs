//! Streams without their type, and where they wait for a user.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::device::Device;
use super::event::{EventCell, EventPool, Lease};
use crate::driver::StreamHandle;
use crate::error::{Error, Result};
use crate::lock;

/// How a stream is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Smaller is more urgent; within [`Device::priorities`]. A scheduling hint: blocks of an urgent stream start first, running
    /// ones are not interrupted, and copies are not affected. The CPU device keeps it and makes no use of it.
    pub priority: i32,
}

impl StreamOptions {
    /// These options with another priority.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

/// A stream of a device; parked, never destroyed, so that handles are free to copy.
pub(crate) struct StreamInner {
    device: Device,
    handle: StreamHandle,
    serial: u64,
    /// As the driver reports it.
    priority: i32,
    /// Recorded by `hand`. Only ever on this stream, so that whoever waits for the newest record waits
    /// for every older one too, and two threads may use it at once.
    pub(crate) hand: EventCell,
    events: &'static EventPool,
}

impl StreamInner {
    pub(crate) fn new(device: Device, handle: StreamHandle, priority: i32, hand: EventCell) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Self { device, handle, serial, priority, hand, events: EventPool::of(device) }
    }

    #[inline]
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// An event recorded now.
    #[inline]
    #[track_caller]
    pub(crate) fn lease(&self) -> Result<Lease> {
        self.device.usable()?;
        let cell = self.events.take(self.device)?;
        match self.handle.record(cell.handle()) {
            Ok(()) => Ok(Lease::new(cell)),
            Err(fault) => {
                self.events.recycle(cell);
                self.device.seen(Err(fault))
            }
        }
    }

    /// Makes the stream wait for an event of any device of its kind.
    #[inline]
    pub(crate) fn wait(&self, event: &Lease) -> Result<()> {
        self.device.usable()?;
        self.device.seen(self.handle.wait(event.handle()))
    }

    /// Frees in stream order; in doubt it leaks.
    #[inline]
    pub(crate) fn free(&self, addr: u64, bytes: usize) {
        // SAFETY: called once, by the buffer's owner, which the stream orders.
        let _ = unsafe { self.handle.free(addr, bytes) };
    }
}

impl fmt::Debug for StreamInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {}", self.serial, self.device)
    }
}

/// Streams of a device that nobody uses at the moment.
#[derive(Debug, Default)]
struct Parked {
    /// Of lanes and pools.
    idle: Mutex<Vec<&'static StreamInner>>,
    /// For captures.
    capture: Mutex<Vec<&'static StreamInner>>,
}

impl Parked {
    fn of(device: Device) -> &'static Self {
        device.keep(Self::default)
    }
}

impl Device {
    /// A stream that nobody else has; it is parked for the life of the process.
    pub(crate) fn new_stream(self, options: StreamOptions) -> Result<&'static StreamInner> {
        if !self.priorities().contains(&options.priority) {
            return Err(Error::Parameter {
                name: "priority",
                given: options.priority.to_string(),
                expected: format!("{:?} on {self}", self.priorities()),
            });
        }
        let handle = self.seen(self.driver().new_stream(options.priority))?;
        self.leak_stream(handle)
    }

    fn leak_stream(self, handle: StreamHandle) -> Result<&'static StreamInner> {
        let priority = self.seen(handle.priority())?;
        let hand = EventCell::new(self, false)?;
        Ok(Box::leak(Box::new(StreamInner::new(self, handle, priority, hand))))
    }

    /// A parked stream of this priority, or a new one.
    pub(crate) fn take_stream(self, options: StreamOptions) -> Result<&'static StreamInner> {
        self.usable()?;
        let mut idle = lock(&Parked::of(self).idle);
        if let Some(i) = idle.iter().position(|s| s.priority() == options.priority) {
            return Ok(idle.swap_remove(i));
        }
        drop(idle);
        self.new_stream(options)
    }

    /// Parks a stream for [`take_stream`](Self::take_stream).
    pub(crate) fn park(self, stream: &'static StreamInner) {
        lock(&Parked::of(self).idle).push(stream);
    }

    /// A parked stream for a capture, or a new one. They are kept apart from the others: no work of theirs is ever
    /// pending, and on the CPU device they can do nothing but record.
    pub(crate) fn take_capture_stream(self) -> Result<&'static StreamInner> {
        self.usable()?;
        let parked = lock(&Parked::of(self).capture).pop();
        match parked {
            Some(stream) => Ok(stream),
            None => self.leak_stream(self.seen(self.driver().new_capture_stream())?),
        }
    }

    /// Parks a stream for [`take_capture_stream`](Self::take_capture_stream).
    pub(crate) fn park_capture_stream(self, stream: &'static StreamInner) {
        lock(&Parked::of(self).capture).push(stream);
    }
}
