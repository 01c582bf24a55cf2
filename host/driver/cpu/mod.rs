//! The CPU device: streams, events, copies and kernels, on threads.
//!
//! It knows addresses, not types: that each access is in bounds and ordered against the others is
//! promised by the typed layer above, which is where races do not compile.
//!
//! # Protocol
//!
//! **Queues.** A queue's commands stand in a FIFO under the queue's lock; its thread takes the first
//! out, carries it out without holding any lock, and under the lock again counts it as completed. So
//! what the host did before it enqueued a command happens before the command (lock released by `push`,
//! acquired by the thread), and what a command did happens before `synchronize` or `query` returns
//! (lock released by the count, acquired by the host). Nothing here relies on any weaker ordering.
//!
//! - The queue's thread sleeps on `work` only if it saw the FIFO empty under the lock, and says so in
//!   `sleeping`; who pushes sees that under the same lock and notifies.
//! - A host that synchronises sleeps on `progress` only if it saw too few completed, and leaves the
//!   count it needs in `awaited`; the thread notifies once it gets there, not at every command.
//!
//! **Events.** `record` draws a ticket from the event when it is enqueued; the ticket is *pending*
//! until the queue gets there. `wait` looks up the latest ticket when it is enqueued, so that a later
//! record changes nothing; where that is not pending there is nothing to wait for. A queue whose first
//! command waits for a pending ticket sleeps on the event's condition, as does a host; reaching the
//! record removes the ticket under the event's lock and notifies. Tickets are looked up one by one and
//! not compared, because records of one event in two queues may be reached in either order. A ticket
//! is drawn under the lock of the queue that takes the record, so a wait that found it pending is
//! enqueued after the record or in another queue; waits cannot form a circle, and only a closed gate
//! (`wait_value`) can hold a queue for ever.
//!
//! **Locks.** Scheduler, then queue, then event; no two queues, no two events. User code (kernels, host
//! callbacks and their drops) runs under none of them, except under the scheduler's on a seeded schedule.
//!
//! **Poison.** A kernel that panics, diverges or leaves its shared memory poisons the device. From then
//! on copies, fills, launches and host callbacks are passed over and gates stand open, while records,
//! waits and frees are carried out as before. So everything ends, whoever waits wakes and gets the
//! error, and still no memory is freed and no event complete before what was running when the error
//! struck has ended. The flag is set before the failing command counts as completed, so whoever waited
//! for that command sees it.
//!
//! **Graphs.** A capture records into a queue that has no thread and that no schedule knows. A replay enqueues all
//! of it under one lock, so that commands of other threads come before or after it.
//!
//! **Schedules.** With [`Schedule::Threads`] each queue has a thread, which sleeps where a command is
//! blocked. With [`Schedule::Seeded`] there are none: callers take steps of commands, of whichever
//! queue the seed says, where they would enqueue, ask or wait. Commands, readiness and steps are the
//! same code.

mod command;
mod event;
mod grid;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;
mod queue;
mod rng;
mod scheduler;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

use std::env::{self, VarError};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};
use thalweg_simt::cpu::BlockError;
use thalweg_simt::host::counted;

pub(crate) use command::Pattern;
pub(crate) use event::Event;
pub(crate) use queue::{Queue, Recording};

use memory::Ledger;
use scheduler::Scheduler;
use sync::{AtomicBool, Mutex, lock};

/// Sets how many OS threads run the blocks of kernels.
const THREADS: &str = "THALWEG_CPU_THREADS";

/// The most threads without being told: each keeps two memory mappings for each thread of the largest
/// cooperative block, of the 65530 that Linux allows a process.
const MOST_THREADS: usize = 64;

/// Who carries out the queues, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Schedule {
    /// A thread for each queue.
    Threads,
    /// Whoever calls, in an order drawn from the seed.
    Seeded(u64),
}

/// A CPU as a device.
pub(crate) struct Cpu {
    scheduler: Option<Scheduler>,
    queues: AtomicUsize,
    threads: usize,
    pool: OnceLock<Option<ThreadPool>>,
    ledger: Ledger,
    poisoned: AtomicBool,
    deferred: AtomicBool,
    faults: Mutex<Faults>,
}

/// The first error of each kind.
#[derive(Default)]
struct Faults {
    sticky: Option<CpuError>,
    deferred: Option<CpuError>,
}

impl Cpu {
    /// A device with this schedule.
    ///
    /// # Errors
    /// `THALWEG_CPU_THREADS` is set to something else than a positive number.
    pub(crate) fn new(schedule: Schedule) -> Result<Self, CpuError> {
        let threads = thread_count(env::var(THREADS))?;
        let scheduler = match schedule {
            Schedule::Threads => None,
            Schedule::Seeded(seed) => Some(Scheduler::new(seed)),
        };
        Ok(Self {
            scheduler,
            queues: AtomicUsize::new(0),
            threads,
            pool: OnceLock::new(),
            ledger: Ledger::new(),
            poisoned: AtomicBool::new(false),
            deferred: AtomicBool::new(false),
            faults: Mutex::default(),
        })
    }

    /// A new queue, which lives as long as the process. It keeps its priority, which changes nothing about when its commands run.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn queue(&'static self, priority: i32) -> Result<&'static Queue, CpuError> {
        let new = |index| &*Box::leak(Box::new(Queue::new(self, index, priority)));
        if let Some(scheduler) = &self.scheduler {
            return Ok(scheduler.add(new));
        }
        let index = self.queues.fetch_add(1, Ordering::Relaxed);
        let queue = new(index);
        thread::Builder::new()
            .name(format!("thalweg queue {index}"))
            .spawn(|| queue.work(u64::MAX))
            .map_err(|e| CpuError::Thread { reason: e.to_string() })?;
        Ok(queue)
    }

    /// A queue that nobody carries out: it keeps what it is given for [`Queue::take_recording`].
    pub(crate) fn recorder(&'static self) -> &'static Queue {
        Box::leak(Box::new(Queue::new(self, usize::MAX, 0)))
    }

    /// A new event, never recorded.
    pub(crate) fn event(&'static self) -> Event {
        Event::new(self)
    }

    /// The error that poisons the device, or else the one that a host callback left, which is then
    /// forgotten.
    ///
    /// # Errors
    /// That one.
    pub(crate) fn check(&self) -> Result<(), CpuError> {
        self.check_sticky()?;
        if self.deferred.load(Ordering::Acquire) {
            let mut faults = lock(&self.faults);
            self.deferred.store(false, Ordering::Relaxed);
            return faults.deferred.take().map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// OS threads that run the blocks of kernels.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Draws the schedule from another seed from here on, if it is a seeded one.
    pub(crate) fn reseed(&self, seed: u64) {
        if let Some(scheduler) = &self.scheduler {
            scheduler.reseed(seed);
        }
    }

    fn check_sticky(&self) -> Result<(), CpuError> {
        match self.is_poisoned() {
            true => lock(&self.faults).sticky.clone().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    fn poison(&self, error: CpuError) {
        lock(&self.faults).sticky.get_or_insert(error);
        self.poisoned.store(true, Ordering::Release);
    }

    fn defer(&self, error: CpuError) {
        lock(&self.faults).deferred.get_or_insert(error);
        self.deferred.store(true, Ordering::Release);
    }

    fn scheduler(&self) -> Option<&Scheduler> {
        self.scheduler.as_ref()
    }

    fn nudge(&self, queue: usize) {
        if let Some(scheduler) = &self.scheduler {
            scheduler.asked(self, queue);
        }
    }

    /// The pool that runs blocks, started at the first large launch; none where the system gives no
    /// threads. Never rayon's global one: inside a caller's own parallel iterator that one may have no
    /// thread left for us.
    fn pool(&self) -> Option<&ThreadPool> {
        let start = || {
            let pool = ThreadPoolBuilder::new().num_threads(self.threads);
            pool.thread_name(|i| format!("thalweg block {i}")).build().ok()
        };
        self.pool.get_or_init(start).as_ref()
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("threads", &self.threads).field("in_use", &self.in_use()).finish_non_exhaustive()
    }
}

/// What [`THREADS`] asks for, else a thread for each core, up to [`MOST_THREADS`].
fn thread_count(setting: Result<String, VarError>) -> Result<usize, CpuError> {
    let value = match setting {
        Err(VarError::NotPresent) => {
            return Ok(thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS)));
        }
        Err(VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
        Ok(value) => value,
    };
    value.parse().ok().filter(|n| *n > 0).ok_or(CpuError::ThreadCount { value })
}

/// What goes wrong on a CPU device.
#[derive(Clone, Debug)]
pub(crate) enum CpuError {
    /// A kernel failed; the device is poisoned.
    Block(BlockError),
    /// A host callback panicked.
    HostPanicked { message: String },
    /// A kernel was declared without a body.
    NoBody { kernel: &'static str },
    /// There is not that much memory.
    OutOfMemory { bytes: usize, free: usize },
    /// There is no thread for a queue.
    Thread { reason: String },
    /// `THALWEG_CPU_THREADS` is not a positive number.
    ThreadCount { value: String },
    /// On a seeded schedule: every command that could be carried out has been.
    Deadlock { blocked: String },
}

impl CpuError {
    /// Whether every later call reports it as well.
    pub(crate) fn is_sticky(&self) -> bool {
        matches!(self, Self::Block(_))
    }
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(error) => error.fmt(f),
            Self::HostPanicked { message } => write!(f, "a host callback panicked: {message}"),
            Self::NoBody { kernel } => {
                write!(f, "kernel `{kernel}` was declared without a body, so it cannot run on the CPU device")
            }
            Self::OutOfMemory { bytes, free } => {
                write!(f, "the CPU device has no {} of memory; free: {free}", counted(*bytes, "byte"))
            }
            Self::Thread { reason } => write!(f, "the CPU device got no thread for a stream: {reason}"),
            Self::ThreadCount { value } => write!(f, "{THREADS} must be a positive number, not `{value}`"),
            Self::Deadlock { blocked } => {
                write!(f, "no stream of the CPU device can go on: {blocked}")
            }
        }
    }
}

impl std::error::Error for CpuError {}
