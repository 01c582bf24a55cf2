//! Streams without their type, and the lists of recycled streams.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use log::debug;

use super::device::Device;
use super::event::{EventCell, EventPool, Lease};
use crate::driver::{Adopted, Fault, StreamHandle};
use crate::error::{Error, Result};
use crate::lock;

/// The options of a new stream.
///
/// ```
/// use thalweg::{AnyStream, Device, StreamOptions};
///
/// let gpu = Device::best()?;
/// let urgent = AnyStream::with(gpu, StreamOptions::default().with_priority(*gpu.priorities().start()))?;
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, thalweg_derive::__Setters)]
#[non_exhaustive]
pub struct StreamOptions {
    /// The priority: one of [`Device::priorities`], where smaller is more urgent. It is a hint for
    /// the scheduler: blocks of an urgent stream start first. Running blocks are not interrupted,
    /// and copies are not affected. On the CPU device it has no effect.
    pub priority: i32,
}

/// A stream of a device. Those of this crate are never destroyed, so handles of them are free to
/// copy, and unused ones are recycled. One that other code made exists while it is used here, as
/// [`Foreign`](crate::Foreign) ensures.
pub(crate) struct StreamInner {
    device: Device,
    handle: StreamHandle,
    serial: u64,
    /// The priority that the driver reports.
    priority: i32,
    /// The event that `hand_off` records. It is recorded on this stream only, so a wait for the
    /// newest record is a wait for every older one too. So two threads may use it at once. That
    /// relies on this: a call that returned before another one on the stream began comes before it.
    pub(crate) hand: EventCell,
    events: &'static EventPool,
    kind: Kind,
    /// The streams of the branches of the capture in progress.
    branches: Mutex<Vec<&'static StreamInner>>,
    /// The number of frees of device memory that it was given, and of those that are known to have
    /// run.
    freed: AtomicU64,
    settled: AtomicU64,
}

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Work,
    /// Captures only.
    Captures,
    /// Work, in a stream that other code made.
    Foreign,
}

impl StreamInner {
    fn new(device: Device, handle: StreamHandle, priority: i32, hand: EventCell, kind: Kind) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Self {
            device,
            handle,
            serial,
            priority,
            hand,
            events: EventPool::of(device),
            kind,
            branches: Mutex::default(),
            freed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        }
    }

    /// Whether the stream is for captures only: it keeps its work for a graph.
    pub(crate) fn captures(&self) -> bool {
        self.kind == Kind::Captures
    }

    /// Whether other code made the stream.
    pub(crate) fn is_foreign(&self) -> bool {
        self.kind == Kind::Foreign
    }

    /// Notes the stream of a branch, which is in this stream's capture until that ends.
    pub(crate) fn add_branch(&self, branch: &'static Self) {
        lock(&self.branches).push(branch);
    }

    #[inline]
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn unique_id(&self) -> u64 {
        self.serial
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Logs what the new stream is for. The caller holds no lock, because a logger is code of the
    /// user.
    #[cold]
    pub(crate) fn log_made(&self, what: &str) {
        self.handle.named(what);
        debug!(target: "thalweg::stream", "{self:?} is for {what}, with priority {}", self.priority);
    }

    /// Records an event on this stream.
    #[inline]
    #[track_caller]
    pub(crate) fn lease(&self) -> Result<Lease> {
        self.device.ensure_usable()?;
        let lease = Lease::new(self.events.take(self.device)?);
        self.device.seen(self.handle.record(lease.handle()))?;
        Ok(lease)
    }

    /// Makes the stream wait for an event, which may be of another device of the same kind.
    #[inline]
    #[track_caller]
    pub(crate) fn wait(&self, event: &Lease) -> Result<()> {
        self.device.ensure_usable()?;
        event.device().ensure_usable()?;
        self.device.seen(self.handle.wait(event.handle()))
    }

    /// Allocates device memory in stream order. If a GPU is full, waits for the frees that were
    /// enqueued so far, gives the spare memory of its pool back to the system, and tries again.
    ///
    /// Memory counts as used until its free has run. A wait for the whole context would do, too,
    /// but that invalidates every capture in it, and nobody knows whether other code captures.
    #[inline]
    #[track_caller]
    pub(crate) fn alloc(&self, bytes: usize) -> Result<u64> {
        match self.handle.alloc(bytes) {
            // It is a GPU that says so. The CPU device frees and allocates at once, so its answer
            // is final.
            Err(Fault::OutOfMemory { .. }) if bytes as u64 <= self.device.total_memory() => self.alloc_again(bytes),
            allocated => self.device.seen(allocated),
        }
    }

    #[cold]
    #[track_caller]
    fn alloc_again(&self, bytes: usize) -> Result<u64> {
        self.device.settle_frees()?;
        self.device.seen(self.device.driver().trim())?;
        self.device.seen(self.handle.alloc(bytes))
    }

    /// Frees device memory in stream order. If the call fails, the memory leaks.
    #[inline]
    pub(crate) fn free(&'static self, addr: u64, bytes: usize) {
        // SAFETY: [free] `give_back` calls this once for a whole block of this stream's device,
        // which it owns, and this stream follows all uses of the block (`When::Stream`).
        let _ = unsafe { self.handle.free(addr, bytes) };
        if self.is_foreign() {
            // Whoever waits for the free later may no longer use the stream. `hand_off` is recorded
            // on this stream only. If that fails, nobody waits for this free.
            let _ = self.handle.record(self.hand.handle());
        }
        if self.freed.fetch_add(1, Ordering::AcqRel) == 0 {
            lock(&Freeing::of(self.device).0).push(self);
        }
    }
}

/// The streams of a device that have freed memory.
#[derive(Debug, Default)]
struct Freeing(Mutex<Vec<&'static StreamInner>>);

impl Freeing {
    fn of(device: Device) -> &'static Self {
        device.keep(Self::default)
    }
}

impl fmt::Debug for StreamInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {}", self.serial, self.device)
    }
}

/// A stream that other code made, by a number that no other stream of the device ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Theirs {
    /// The driver's number. A handle would not do: that of a destroyed stream may come back.
    Driver(u64),
    /// The number of a stream of ours that takes the place of one.
    StandIn(usize),
}

/// The streams of a device that other code made, as far as they were adopted.
#[derive(Debug, Default)]
struct ForeignStreams(Mutex<HashMap<Theirs, &'static StreamInner>>);

/// The streams of a device that nobody uses now.
#[derive(Debug, Default)]
struct Parked {
    /// Streams for lanes and pools.
    idle: Mutex<Vec<&'static StreamInner>>,
    /// Streams for captures.
    capture: Mutex<Vec<&'static StreamInner>>,
}

impl Parked {
    fn of(device: Device) -> &'static Self {
        device.keep(Self::default)
    }
}

impl Device {
    /// Makes a stream that nobody else has. It lasts as long as the process.
    pub(crate) fn new_stream(self, options: StreamOptions) -> Result<&'static StreamInner> {
        if !self.priorities().contains(&options.priority) {
            return Err(Error::Parameter {
                name: "priority",
                given: options.priority.to_string(),
                expected: format!("{:?} on {self}", self.priorities()),
            });
        }
        let handle = self.seen(self.driver().new_stream(options.priority))?;
        self.leak_stream(handle, Kind::Work)
    }

    fn leak_stream(self, handle: StreamHandle, kind: Kind) -> Result<&'static StreamInner> {
        let priority = self.seen(handle.priority())?;
        let hand = EventCell::new(self, false)?;
        Ok(Box::leak(Box::new(StreamInner::new(self, handle, priority, hand, kind))))
    }

    /// Returns the handle on a stream that other code made, and whether it is new: each stream has
    /// one, by the number that the driver gave it, so a stream that is adopted again and again
    /// takes no more memory. `None` if the device has no such streams, or the stream is of another
    /// device.
    ///
    /// # Safety
    /// `raw` is a stream of the driver that exists, or one of its two default streams.
    pub(crate) unsafe fn adopt_stream(self, raw: Adopted) -> Result<Option<(&'static StreamInner, bool)>> {
        self.ensure_usable()?;
        // SAFETY: [alive] The caller passes a stream that exists.
        let handle = self.seen(unsafe { self.driver().adopt_stream(raw) })?;
        let Some(handle) = handle else { return Ok(None) };
        let Some(id) = self.seen(handle.id())? else { return Ok(None) };
        self.foreign_stream(Theirs::Driver(id), || self.leak_stream(handle, Kind::Foreign)).map(Some)
    }

    /// Returns the stream that stands in for number `number` of other code, and whether it is new.
    pub(crate) fn stand_in_stream(self, number: usize) -> Result<(&'static StreamInner, bool)> {
        self.ensure_usable()?;
        self.foreign_stream(Theirs::StandIn(number), || self.new_stream(StreamOptions::default()))
    }

    fn foreign_stream(
        self,
        which: Theirs,
        make: impl FnOnce() -> Result<&'static StreamInner>,
    ) -> Result<(&'static StreamInner, bool)> {
        let mut streams = lock(&self.keep(ForeignStreams::default).0);
        if let Some(stream) = streams.get(&which) {
            return Ok((stream, false));
        }
        let stream = make()?;
        streams.insert(which, stream);
        Ok((stream, true))
    }

    /// Takes a recycled stream of this priority, or makes one.
    pub(crate) fn take_stream(self, options: StreamOptions) -> Result<&'static StreamInner> {
        self.take_scoped_stream(options).map(|(stream, _)| stream)
    }

    /// Takes a recycled stream of this priority, or makes one. Also returns whether it is new, so
    /// that the caller can [log](StreamInner::log_made) that once it holds no lock.
    pub(crate) fn take_scoped_stream(self, options: StreamOptions) -> Result<(&'static StreamInner, bool)> {
        match self.recycled_stream(options)? {
            Some(stream) => Ok((stream, false)),
            None => self.new_stream(options).map(|stream| (stream, true)),
        }
    }

    fn recycled_stream(self, options: StreamOptions) -> Result<Option<&'static StreamInner>> {
        self.ensure_usable()?;
        let mut idle = lock(&Parked::of(self).idle);
        let i = idle.iter().position(|s| s.priority() == options.priority);
        Ok(i.map(|i| idle.swap_remove(i)))
    }

    /// Waits on the host until the frees have run that were enqueued so far: for an event behind
    /// those of each stream, and never for the whole context.
    fn settle_frees(self) -> Result<()> {
        let mut pending = Vec::new();
        for &stream in lock(&Freeing::of(self).0).iter() {
            // Read before the event is recorded, so the event is behind so many frees.
            let freed = stream.freed.load(Ordering::Acquire);
            if freed > stream.settled.load(Ordering::Acquire) {
                pending.push((stream, freed));
            }
        }
        // What other code captures in one of our streams does not run, so there is nothing to wait
        // for.
        pending.retain(|(stream, _)| stream.is_foreign() || !stream.handle.is_capturing());
        for (stream, _) in pending.iter().filter(|(stream, _)| !stream.is_foreign()) {
            self.seen(stream.handle.record(stream.hand.handle()))?;
        }
        // The stream of the other frees does nothing else.
        let rest = EventPool::of(self).take(self)?;
        self.seen(self.housekeeping().record(rest.handle()))?;
        rest.synchronize()?;
        EventPool::of(self).recycle(rest);
        for (stream, freed) in pending {
            stream.hand.synchronize()?;
            stream.settled.fetch_max(freed, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Parks a stream for [`take_stream`](Self::take_stream).
    pub(crate) fn recycle_stream(self, stream: &'static StreamInner) {
        lock(&Parked::of(self).idle).push(stream);
    }

    /// Takes a recycled stream for a capture, or makes one. Capture streams are kept apart from the
    /// others: they never have pending work, and on the CPU device they can only record.
    pub(crate) fn take_capture_stream(self) -> Result<&'static StreamInner> {
        self.ensure_usable()?;
        let recycled = lock(&Parked::of(self).capture).pop();
        match recycled {
            Some(stream) => Ok(stream),
            None => self.leak_stream(self.seen(self.driver().new_capture_stream())?, Kind::Captures),
        }
    }

    /// Parks a stream for [`take_capture_stream`](Self::take_capture_stream), after its capture
    /// ended, with the streams of its branches. One that is still capturing cannot be used again.
    pub(crate) fn recycle_capture_stream(self, stream: &'static StreamInner) {
        let branches = std::mem::take(&mut *lock(&stream.branches));
        branches
            .into_iter()
            .filter(|branch| !branch.handle.is_capturing())
            .for_each(|b| self.recycle_capture_stream(b));
        lock(&Parked::of(self).capture).push(stream);
    }
}
