//! The CPU device: streams, events, copies and kernels, on threads.
//!
//! It works with addresses, not types. The typed layer above guarantees that each access is in
//! bounds and ordered with the others: with its types, races do not compile.
//!
//! # Protocol
//!
//! **Queues.** A queue keeps its commands in a FIFO under the queue's lock. Its thread takes out
//! the first command, runs it without any lock, and counts it as completed under the lock. So
//! everything that the host did before it enqueued a command happens before the command: `push`
//! releases the lock and the thread acquires it. And everything that a command did happens before
//! `synchronize` or `query` returns: the count releases the lock and the host acquires it. Nothing
//! in the queues relies on a weaker ordering.
//!
//! - The queue's thread sleeps on `work` only if it saw under the lock that the FIFO is empty. It
//!   then sets `sleeping`. A caller of `push` sees that under the same lock and notifies it.
//! - A host that synchronizes sleeps on `progress` only if it saw that too few commands have
//!   completed. It puts the count it needs in `awaited`. The thread notifies when it reaches that
//!   count, not at every command.
//!
//! **Events.** When a record is enqueued, it draws a ticket from the event. The ticket is *pending*
//! until the queue reaches the record. When a wait is enqueued, it looks up the latest ticket, so a
//! later record does not affect it. If that ticket is not pending, there is nothing to wait for. A
//! queue whose first command waits for a pending ticket sleeps on the event's condition variable,
//! and so does a host that waits. When the queue reaches the record, it removes the ticket under
//! the event's lock and notifies.
//!
//! Tickets are looked up one by one and not compared, because two queues may reach their records of
//! one event in either order. A ticket is drawn under the lock of the queue that takes the record.
//! So a wait that found it pending is in another queue, or after the record in the same queue.
//! Waits therefore cannot form a circle, and only a closed gate (`wait_value`) can block a queue
//! for ever.
//!
//! **Locks.** They are taken in the order scheduler, queue, event, and a thread never holds two
//! queues or two events. User code (kernels, host functions and their drops) runs under none of
//! these locks, except that a seeded schedule holds the scheduler's.
//!
//! **Poison.** A kernel that panics, diverges or accesses memory outside its shared memory poisons
//! the device. From then on, copies, fills, launches and host functions are skipped and gates are
//! open, but records, waits and frees run as before. So every queue ends, and all who wait wake up
//! and get the error. Still no memory is freed and no event completes before the work that ran at
//! the time of the error has ended. The flag is set before the failing command counts as completed,
//! so those who waited for that command see the flag.
//!
//! **Graphs.** A capture records into a queue that has no thread and is in no schedule. A replay
//! enqueues the whole recording under one lock, so commands of other threads come before or after
//! it.
//!
//! **Schedules.** With [`Schedule::Threads`] each queue has a thread, which sleeps while its first
//! command is blocked. With [`Schedule::Seeded`] there are no threads: when a caller enqueues,
//! queries or waits, it runs steps of commands, from queues that the seed chooses. Both use the
//! same code for commands, readiness and steps.

mod command;
mod event;
mod grid;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;
mod queue;
mod recording;
mod rng;
mod scheduler;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::env::{self, VarError};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};
use thalweg_simt::cpu::{BlockError, SEED};
use thalweg_simt::host::counted;

pub(crate) use command::{Pattern, Pitch, Rows, Work};
pub(crate) use event::Event;
pub(crate) use queue::Queue;
pub(crate) use recording::Recording;

use super::guard;
use crate::driver::sync::{AtomicBool, Mutex, lock};
use memory::Ledger;
use scheduler::Scheduler;

/// The environment variable that sets how many OS threads run the blocks of kernels.
const THREADS: &str = "THALWEG_CPU_THREADS";

/// The most threads if the variable is not set. Each keeps two memory mappings for each thread of
/// the largest cooperative block it ran, and Linux allows a process 65530 mappings.
const MOST_THREADS: usize = 64;

/// The schedule of the commands of the queues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Schedule {
    /// A thread for each queue.
    Threads,
    /// The callers, in an order drawn from the seed.
    Seeded(u64),
}

/// A CPU as a device.
pub(crate) struct Cpu {
    /// The seed of the checked device; `None` on an ordinary one.
    checked: Option<AtomicU64>,
    scheduler: Option<Scheduler>,
    queues: AtomicUsize,
    threads: usize,
    pool: OnceLock<Option<ThreadPool>>,
    ledger: Ledger,
    poisoned: AtomicBool,
    /// Queues for branches of recordings that no recording has now.
    helpers: Mutex<Vec<&'static Queue>>,
    /// The first error that poisoned the device.
    cause: Mutex<Option<CpuError>>,
}

impl Cpu {
    /// The device's number in the work log.
    pub(crate) fn number_in_log(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Makes a device with this schedule.
    ///
    /// # Errors
    /// `THALWEG_CPU_THREADS` is set, but not to a positive number, or `THALWEG_CHECK_SEED` is set,
    /// but not to a number.
    pub(crate) fn new(schedule: Schedule, checked: bool) -> Result<Self, CpuError> {
        let checked = if checked { Some(AtomicU64::new(check_seed(env::var(SEED))?)) } else { None };
        let threads = thread_count(env::var(THREADS))?;
        let scheduler = match schedule {
            Schedule::Threads => None,
            Schedule::Seeded(seed) => Some(Scheduler::new(seed)),
        };
        Ok(Self {
            checked,
            scheduler,
            queues: AtomicUsize::new(0),
            threads,
            pool: OnceLock::new(),
            ledger: Ledger::new(),
            poisoned: AtomicBool::new(false),
            helpers: Mutex::default(),
            cause: Mutex::default(),
        })
    }

    /// Makes a queue, which lives as long as the process. It reports its priority, which does not
    /// affect when its commands run.
    ///
    /// # Errors
    /// The system cannot start a thread for it.
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

    /// Makes a queue whose commands nobody runs. It keeps them for [`Queue::take_recording`].
    pub(crate) fn recorder(&'static self) -> &'static Queue {
        Box::leak(Box::new(Queue::new(self, usize::MAX, 0)))
    }

    /// Makes an event that is not recorded yet.
    pub(crate) fn event(&'static self) -> Event {
        Event::new(self)
    }

    /// Reports the error that poisons the device.
    ///
    /// # Errors
    /// There is one.
    pub(crate) fn check(&self) -> Result<(), CpuError> {
        match self.is_poisoned() {
            true => lock(&self.cause).clone().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// The seed of the checked device; `None` on an ordinary one.
    pub(crate) fn checked(&self) -> Option<u64> {
        self.checked.as_ref().map(|seed| seed.load(Ordering::Relaxed))
    }

    /// Whether calls run the work of the streams, in an order that a seed decides.
    pub(crate) fn is_seeded(&self) -> bool {
        self.scheduler.is_some()
    }

    /// The number of OS threads that run the blocks of kernels.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Draws the rest of the schedule, and the orders of a checked device, from another seed. Does
    /// nothing if there are none.
    pub(crate) fn reseed(&self, seed: u64) {
        if let Some(checked) = &self.checked {
            checked.store(seed, Ordering::Relaxed);
        }
        if let Some(scheduler) = &self.scheduler {
            scheduler.reseed(seed);
        }
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    fn poison(&self, error: CpuError) {
        lock(&self.cause).get_or_insert(error);
        self.poisoned.store(true, Ordering::Release);
    }

    fn scheduler(&self) -> Option<&Scheduler> {
        self.scheduler.as_ref()
    }

    fn nudge(&self, queue: usize) {
        if let Some(scheduler) = &self.scheduler {
            scheduler.asked(self, queue);
        }
    }

    /// The pool that runs blocks, which the first large launch starts; `None` if the system cannot
    /// start its threads. Rayon's global pool does not serve: inside a caller's own parallel
    /// iterator it may have no free thread.
    fn pool(&self) -> Option<&ThreadPool> {
        let start = || {
            let pool = ThreadPoolBuilder::new().num_threads(self.threads);
            let pool = pool.thread_name(|i| format!("thalweg block {i}"));
            pool.start_handler(|_| guard::for_kernels()).build().ok()
        };
        self.pool.get_or_init(start).as_ref()
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("threads", &self.threads).field("in_use", &self.in_use()).finish_non_exhaustive()
    }
}

/// The number of threads that [`THREADS`] sets; without it, one for each core, up to
/// [`MOST_THREADS`].
fn thread_count(setting: Result<String, VarError>) -> Result<usize, CpuError> {
    let value = match setting {
        Err(VarError::NotPresent) => {
            return Ok(thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS)));
        }
        Err(VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
        Ok(value) => value,
    };
    let threads = value.parse().ok().filter(|n| *n > 0);
    threads.ok_or(CpuError::Variable { name: THREADS, given: value, expected: "a positive number" })
}

/// The seed that [`SEED`] sets; 0 without it.
fn check_seed(setting: Result<String, VarError>) -> Result<u64, CpuError> {
    let value = match setting {
        Err(VarError::NotPresent) => return Ok(0),
        Err(VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
        Ok(value) => value,
    };
    let expected = "a number from 0 to 2^64 - 1";
    value.parse().map_err(|_| CpuError::Variable { name: SEED, given: value, expected })
}

/// A failure of a CPU device.
#[derive(Clone, Debug)]
pub(crate) enum CpuError {
    /// A kernel failed; the device is poisoned.
    Block(BlockError),
    /// A stream was to wait for work of another device, which has failed. This device has not.
    Behind { reason: String },
    /// A kernel was declared without a body.
    NoBody { kernel: &'static str },
    /// A kernel was built without a body for checked devices.
    NoCheckedBody { kernel: &'static str },
    /// There is not enough memory.
    OutOfMemory { bytes: usize, free: usize },
    /// The system cannot start a thread for a queue.
    Thread { reason: String },
    /// A variable of the environment has another value than expected.
    Variable { name: &'static str, given: String, expected: &'static str },
    /// A host waits on a seeded schedule, but no command can run.
    Deadlock { blocked: String },
}

impl CpuError {
    /// Whether the failure poisons the device, so that every later call reports it.
    pub(crate) fn is_sticky(&self) -> bool {
        matches!(self, Self::Block(_))
    }
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(error) => error.fmt(f),
            Self::Behind { reason } => write!(f, "the work to wait for is on a device that has failed: {reason}"),
            Self::NoBody { kernel } => {
                write!(f, "kernel `{kernel}` was declared without a body, so it cannot run on the CPU device")
            }
            Self::NoCheckedBody { kernel } => {
                write!(f, "kernel `{kernel}` was built without debug assertions, so it cannot run on a checked device")
            }
            Self::OutOfMemory { bytes, free } => {
                write!(f, "the CPU device has no {} of memory; free: {free}", counted(*bytes, "byte"))
            }
            Self::Thread { reason } => write!(f, "the CPU device got no thread for a stream: {reason}"),
            Self::Variable { name, given, expected } => write!(f, "{name} is {given}, expected {expected}"),
            Self::Deadlock { blocked } => {
                write!(f, "no stream of the CPU device can go on: {blocked}")
            }
        }
    }
}

impl std::error::Error for CpuError {}
