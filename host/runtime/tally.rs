//! A tally of hidden synchronisation: every call that made the host wait, or that makes streams take turns, and where it stands.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::lock;

/// What made the host wait, or streams take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stall {
    /// A `synchronize`: the host waited for a stream or an event.
    Synchronize,
    /// A copy from or to ordinary, pageable memory.
    BlockingCopy,
    /// Page-locked memory was made or given back, because a pool had none that fits.
    PinnedAllocation,
    /// Device memory that took longer than 100 us, because the device's pool had to grow or to be emptied first.
    DeviceAllocation,
    /// An event was made, because none was left over from before.
    EventCreation,
    /// The driver compiled PTX, at the first launch of a kernel. The place is where the kernel is declared.
    ModuleLoad,
}

impl fmt::Display for Stall {
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

/// The calls of one kind at one place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stalls {
    /// What it was.
    pub kind: Stall,
    /// Where the program called.
    pub location: &'static Location<'static>,
    /// How often.
    pub count: u64,
    /// Host time of all of them.
    pub total: Duration,
    /// Host time of the longest.
    pub longest: Duration,
}

/// What a device's tally found, the costliest first. Prints as a table.
#[derive(Clone, Debug, Default)]
pub struct TallyReport {
    stalls: Vec<Stalls>,
}

/// A device's tally of hidden synchronisation; off until [`enable`](Tally::enable). A handle, free to copy.
///
/// While it is off, it costs one load on calls that are slow anyway, and nothing on records, waits, launches and copies. A call inside another
/// one, such as the wait inside a blocking copy, counts as part of that. A method that is passed by its name, as in `.map(Event::synchronize)`,
/// shows this crate's line instead of the caller's: a closure shows the caller's.
///
/// ```
/// use thalweg::{Device, Stall, stream_tags};
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// gpu.tally().enable();
/// let x = work.upload_blocking(&[1, 2, 3])?; // this waits
/// gpu.tally().disable();
///
/// let report = gpu.tally().report();
/// let copy = report.stalls().iter().find(|s| s.kind == Stall::BlockingCopy).expect("one");
/// assert_eq!((copy.count, copy.location.file()), (1, file!()));
/// println!("{report}");
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tally(&'static Book);

impl Tally {
    /// Starts counting, from nothing.
    pub fn enable(self) {
        lock(&self.0.stalls).clear();
        self.0.on.store(true, Ordering::Relaxed);
    }

    /// Stops counting; what was counted stays until it is enabled again.
    pub fn disable(self) {
        self.0.on.store(false, Ordering::Relaxed);
    }

    /// What was counted so far, the largest total time first.
    pub fn report(self) -> TallyReport {
        let mut stalls = lock(&self.0.stalls).clone();
        stalls.sort_by_key(|s| std::cmp::Reverse(s.total));
        TallyReport { stalls }
    }
}

impl TallyReport {
    /// The calls by kind and place, the largest total time first.
    pub fn stalls(&self) -> &[Stalls] {
        &self.stalls
    }

    /// Host time of all of them.
    pub fn total(&self) -> Duration {
        self.stalls.iter().map(|s| s.total).sum()
    }
}

impl fmt::Display for TallyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(f, "{:>7} {:>11} {:>11}  {:17}  where", "calls", "total ms", "longest ms", "what")?;
        for s in &self.stalls {
            let (total, longest) = (ms(s.total), ms(s.longest));
            write!(f, "\n{:>7} {total:>11.3} {longest:>11.3}  {:17}  {}", s.count, s.kind, s.location)?;
        }
        if self.stalls.is_empty() {
            write!(f, "\n      0  nothing made the host wait")?;
        }
        Ok(())
    }
}

/// What a device counts.
#[derive(Debug, Default)]
pub(crate) struct Book {
    on: AtomicBool,
    /// Places are few.
    stalls: Mutex<Vec<Stalls>>,
}

thread_local! {
    /// Whether a call that counts is running on this thread.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// A call that counts, until it is dropped.
#[must_use = "it counts the time until it is dropped"]
pub(crate) struct Stalled {
    book: &'static Book,
    kind: Stall,
    location: &'static Location<'static>,
    start: Instant,
    /// Shorter ones do not count.
    least: Duration,
}

impl Tally {
    pub(crate) fn of(book: &'static Book) -> Self {
        Self(book)
    }
}

impl Book {
    /// Counts what follows, until the value is dropped, if the tally is on.
    #[inline]
    #[track_caller]
    pub(crate) fn stall(&'static self, kind: Stall) -> Option<Stalled> {
        if self.on.load(Ordering::Relaxed) { self.start(kind, Location::caller()) } else { None }
    }

    #[cold]
    fn start(&'static self, kind: Stall, location: &'static Location<'static>) -> Option<Stalled> {
        // Only the outermost call counts.
        if RUNNING.try_with(|running| running.replace(true)).unwrap_or(true) {
            return None;
        }
        let least = if kind == Stall::DeviceAllocation { Duration::from_micros(100) } else { Duration::ZERO };
        Some(Stalled { book: self, kind, location, start: Instant::now(), least })
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        let time = self.start.elapsed();
        let _ = RUNNING.try_with(|running| running.set(false));
        if time < self.least {
            return;
        }
        let mut stalls = lock(&self.book.stalls);
        let at = stalls.iter().position(|s| s.kind == self.kind && s.location == self.location).unwrap_or_else(|| {
            let (kind, location) = (self.kind, self.location);
            stalls.push(Stalls { kind, location, count: 0, total: Duration::ZERO, longest: Duration::ZERO });
            stalls.len() - 1
        });
        let stalls = &mut stalls[at];
        stalls.count += 1;
        stalls.total += time;
        stalls.longest = stalls.longest.max(time);
    }
}
