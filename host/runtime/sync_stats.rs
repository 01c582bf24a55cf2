//! Statistics of hidden synchronization: `SyncStats` counts each call that made the host wait, or
//! that may make streams take turns, with the place in the source.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::lock;

/// A kind of call that makes the host wait, or that may make streams take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostWait {
    /// The host waited for a stream or an event, by `synchronize`.
    Synchronize,
    /// The host waited for a copy from or to ordinary, pageable memory.
    BlockingCopy,
    /// A pool had no page-locked block that fits, so it made one or waited for one. Or it gave
    /// page-locked memory back to the system.
    PinnedAllocation,
    /// An allocation of device memory took 100 us or longer. Usually the device's pool had to grow
    /// or to be emptied first.
    DeviceAllocation,
    /// The driver made an event, because the device had no spare one.
    EventCreation,
    /// A kernel was looked up at its first launch, for which the driver may have compiled PTX. The
    /// place is that of the launch.
    ModuleLoad,
}

impl fmt::Display for HostWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Synchronize => "synchronize",
            Self::BlockingCopy => "blocking copy",
            Self::PinnedAllocation => "pinned allocation",
            Self::DeviceAllocation => "device allocation",
            Self::EventCreation => "event creation",
            Self::ModuleLoad => "module load",
        })
    }
}

/// The counted calls of one kind at one place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostWaits {
    /// The kind of the calls.
    pub kind: HostWait,
    /// The place in the program that made the calls.
    pub location: &'static Location<'static>,
    /// The number of calls.
    pub count: u64,
    /// The host time of all calls together.
    pub total: Duration,
    /// The host time of the longest call.
    pub longest: Duration,
}

/// The counts of [`SyncStats`], the largest total time first. Prints as a table.
#[derive(Clone, Debug, Default)]
pub struct SyncReport {
    waits: Vec<HostWaits>,
    /// Whether the statistics were ever on.
    enabled: bool,
}

/// The statistics of a device's hidden synchronization: the number and the host time of the calls
/// that made the host wait, or that may make streams take turns, by kind ([`HostWait`]) and line of
/// the program. It is a handle ([`Device::sync_stats`](crate::Device::sync_stats)), which is free
/// to copy.
///
/// It is off until [`enable`](SyncStats::enable). While it is off, it costs one load on calls that
/// are slow anyway, and nothing on records, waits, launches and copies.
///
/// A call inside another, such as the wait inside a blocking copy, counts as part of the outer
/// call. If a method is passed by its name, as in `.map(Event::synchronize)`, the report shows a
/// line of this crate. If it is called in a closure, the report shows the caller's line.
///
/// ```
/// use thalweg::{Device, HostWait, stream_tags};
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// gpu.sync_stats().enable();
/// let x = work.upload_blocking(&[1, 2, 3])?; // this waits
/// gpu.sync_stats().disable();
///
/// let report = gpu.sync_stats().report();
/// let copy = report.waits().iter().find(|s| s.kind == HostWait::BlockingCopy).expect("one");
/// assert_eq!((copy.count, copy.location.file()), (1, file!()));
/// println!("{report}");
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SyncStats(&'static SyncLog);

impl SyncStats {
    /// Forgets earlier counts and starts to count.
    pub fn enable(self) {
        lock(&self.0.waits).clear();
        self.0.enabled.store(true, Ordering::Relaxed);
        self.0.on.store(true, Ordering::Relaxed);
    }

    /// Stops counting. The counts stay until the statistics are enabled again.
    pub fn disable(self) {
        self.0.on.store(false, Ordering::Relaxed);
    }

    /// Returns the counts so far, the largest total time first.
    pub fn report(self) -> SyncReport {
        let mut stalls = lock(&self.0.waits).clone();
        stalls.sort_by_key(|s| std::cmp::Reverse(s.total));
        SyncReport { waits: stalls, enabled: self.0.enabled.load(Ordering::Relaxed) }
    }
}

impl SyncReport {
    /// Returns the calls by kind and place, the largest total time first.
    pub fn waits(&self) -> &[HostWaits] {
        &self.waits
    }

    /// Returns the host time of all calls together.
    pub fn total(&self) -> Duration {
        self.waits.iter().map(|s| s.total).sum()
    }
}

impl fmt::Display for SyncReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(f, "{:>7} {:>11} {:>11}  {:17}  where", "calls", "total ms", "longest ms", "what")?;
        for s in &self.waits {
            let (total, longest) = (ms(s.total), ms(s.longest));
            write!(f, "\n{:>7} {total:>11.3} {longest:>11.3}  {:17}  {}", s.count, s.kind, s.location)?;
        }
        if self.waits.is_empty() {
            let none = "nothing made the host wait";
            let text = if self.enabled {
                none
            } else {
                "the statistics of waits were not enabled: call `device.sync_stats().enable()` first"
            };
            write!(f, "\n      0  {text}")?;
        }
        Ok(())
    }
}

/// The counts of a device.
#[derive(Debug, Default)]
pub(crate) struct SyncLog {
    on: AtomicBool,
    /// Whether it was ever on.
    enabled: AtomicBool,
    /// One entry for each kind and place. It is a list, because places are few.
    waits: Mutex<Vec<HostWaits>>,
}

thread_local! {
    /// Whether a counted call is running on this thread.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// A counted call, which lasts until this value is dropped.
#[must_use = "it counts the time until it is dropped"]
pub(crate) struct Waiting {
    log: &'static SyncLog,
    kind: HostWait,
    location: &'static Location<'static>,
    start: Instant,
    /// Calls shorter than this do not count.
    least: Duration,
}

impl SyncStats {
    pub(crate) fn of(book: &'static SyncLog) -> Self {
        Self(book)
    }
}

impl SyncLog {
    /// Counts a call from here until the value is dropped, if the statistics of waits are on.
    #[inline]
    #[track_caller]
    pub(crate) fn wait(&'static self, kind: HostWait) -> Option<Waiting> {
        if self.on.load(Ordering::Relaxed) { self.start(kind, Location::caller()) } else { None }
    }

    #[cold]
    fn start(&'static self, kind: HostWait, location: &'static Location<'static>) -> Option<Waiting> {
        // Only the outermost call counts.
        if RUNNING.try_with(|running| running.replace(true)).unwrap_or(true) {
            return None;
        }
        let least = if kind == HostWait::DeviceAllocation { Duration::from_micros(100) } else { Duration::ZERO };
        Some(Waiting { log: self, kind, location, start: Instant::now(), least })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let time = self.start.elapsed();
        let _ = RUNNING.try_with(|running| running.set(false));
        if time < self.least {
            return;
        }
        let mut stalls = lock(&self.log.waits);
        let at = stalls.iter().position(|s| s.kind == self.kind && s.location == self.location).unwrap_or_else(|| {
            let (kind, location) = (self.kind, self.location);
            stalls.push(HostWaits { kind, location, count: 0, total: Duration::ZERO, longest: Duration::ZERO });
            stalls.len() - 1
        });
        let stalls = &mut stalls[at];
        stalls.count += 1;
        stalls.total += time;
        stalls.longest = stalls.longest.max(time);
    }
}
