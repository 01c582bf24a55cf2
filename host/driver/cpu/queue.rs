//! Queues: the streams of the CPU device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Duration;

use thalweg_simt::host::{Kernel, LaunchShape};

use super::command::{Command, Flag, MAX_SLOTS, Step, Work};
use super::sync::{Condvar, Mutex, lock, sleep};
use super::{Cpu, CpuError, Event, Pattern, grid};

/// A stream of commands, carried out in the order in which they were enqueued.
///
/// Enqueueing returns at once. A queue is never destroyed: one that nobody uses any more sleeps.
pub(crate) struct Queue {
    cpu: &'static Cpu,
    index: usize,
    priority: i32,
    state: Mutex<State>,
    /// The queue's thread sleeps here while there is nothing to do.
    work: Condvar,
    /// Hosts sleep here until enough is done.
    progress: Condvar,
}

/// Commands to be enqueued any number of times.
#[derive(Debug)]
pub(crate) struct Recording(Box<[Work]>);

impl Recording {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

struct State {
    commands: VecDeque<Command>,
    enqueued: u64,
    completed: u64,
    /// The least number of completed commands that a sleeping host waits for.
    awaited: u64,
    /// Whether the queue's thread sleeps.
    sleeping: bool,
}

impl Queue {
    pub(super) fn new(cpu: &'static Cpu, index: usize, priority: i32) -> Self {
        let state = State { commands: VecDeque::new(), enqueued: 0, completed: 0, awaited: u64::MAX, sleeping: false };
        Self { cpu, index, priority, state: Mutex::new(state), work: Condvar::new(), progress: Condvar::new() }
    }

    /// What it was made with.
    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    /// The queue's device.
    pub(crate) fn cpu(&self) -> &'static Cpu {
        self.cpu
    }

    /// Copies bytes between device or host memory.
    ///
    /// # Safety
    /// Both ranges are valid and disjoint, their provenance is exposed, and until the command has
    /// passed every other access that conflicts is ordered before or after it by queues and events.
    pub(crate) unsafe fn copy(&self, dst: u64, src: u64, bytes: usize) {
        if bytes > 0 {
            self.push(Command::Work(Work::Copy { dst, src, bytes }));
        }
    }

    /// Repeats a pattern `count` times.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), and `dst` is aligned for the pattern.
    pub(crate) unsafe fn fill(&self, dst: u64, pattern: Pattern, count: usize) {
        if count > 0 {
            self.push(Command::Work(Work::Fill { dst, pattern, count }));
        }
    }

    /// Launches a kernel; a grid with a zero extent does nothing.
    ///
    /// # Errors
    /// The kernel was declared without a body.
    ///
    /// # Safety
    /// As for [`Launch::launch`](thalweg_simt::host::Launch::launch), and for its buffers as for
    /// [`copy`](Self::copy).
    pub(crate) unsafe fn launch(
        &self,
        kernel: &'static Kernel,
        shape: LaunchShape,
        slots: &[u64],
    ) -> Result<(), CpuError> {
        if kernel.cpu().is_none() {
            return Err(CpuError::NoBody { kernel: kernel.name() });
        }
        if grid::blocks(shape) > 0 {
            let mut inline = [0; MAX_SLOTS];
            inline[..slots.len()].copy_from_slice(slots);
            self.push(Command::Work(Work::Launch { kernel, shape, slots: inline, start: 0 }));
        }
        Ok(())
    }

    /// Calls `f` on the thread that carries out the queue. Its panic becomes a deferred error. On a
    /// poisoned device it is dropped instead.
    pub(crate) fn host(&self, f: Box<dyn FnOnce() + Send>) {
        self.push(Command::Host(f));
    }

    /// Gives device memory back when the queue comes here.
    ///
    /// # Safety
    /// As for [`Cpu::free`], of all uses that are not ordered before this command.
    pub(crate) unsafe fn free(&self, addr: u64, bytes: usize) {
        self.push(Command::Free { addr, bytes });
    }

    /// What a [recorder](super::Cpu::recorder) was given since it was last asked.
    pub(crate) fn take_recording(&self) -> Recording {
        let commands = std::mem::take(&mut lock(&self.state).commands);
        let work = |command| match command {
            Command::Work(work) => Some(work),
            _ => None, // a capture is given nothing else
        };
        Recording(commands.into_iter().filter_map(work).collect())
    }

    /// Enqueues everything that was recorded, in one piece.
    ///
    /// # Safety
    /// As when each part was recorded, from now on.
    pub(crate) unsafe fn replay(&self, recording: &Recording) {
        if recording.len() > 0 {
            self.enqueue(recording.len(), |commands| commands.extend(recording.0.iter().copied().map(Command::Work)));
        }
    }

    /// Marks this place with the event.
    pub(crate) fn record(&self, event: &Event) {
        self.push_with(|| Command::Record(event.clone(), event.begin(self.index)));
    }

    /// Whether the queue gets to know of the event: a seeded schedule knows its own device only.
    pub(crate) fn can_wait(&self, event: &Event) -> bool {
        std::ptr::eq(self.cpu, event.cpu()) || (self.cpu.scheduler().is_none() && event.cpu().scheduler().is_none())
    }

    /// Has what is enqueued from here on wait for the latest record of the event, as it is now.
    ///
    /// # Errors
    /// The event is complete, but of another device that is poisoned, so that what it guards may be unfinished. (Where it
    /// completes later, this device is poisoned then.)
    pub(crate) fn wait(&self, event: &Event) -> Result<(), CpuError> {
        match event.latest_pending() {
            Some((ticket, _)) => self.push(Command::Wait(event.clone(), ticket)),
            None if !std::ptr::eq(self.cpu, event.cpu()) => event.cpu().check_sticky()?,
            None => {}
        }
        Ok(())
    }

    /// Has what is enqueued from here on wait until the word is `value` or up to 2^31 - 1 past it.
    ///
    /// # Safety
    /// The word lives until the queue has passed this command.
    pub(crate) unsafe fn wait_value(&self, flag: *const AtomicU32, value: u32) {
        self.push(Command::WaitValue(Flag(flag), value));
    }

    /// Blocks until everything enqueued so far has been carried out.
    ///
    /// # Errors
    /// The device is poisoned, or a host callback panicked; everything has been passed then. Or, on a
    /// seeded schedule only, it cannot be carried out.
    pub(crate) fn synchronize(&self) -> Result<(), CpuError> {
        let target = lock(&self.state).enqueued;
        match self.cpu.scheduler() {
            Some(scheduler) => {
                scheduler.run_until(self.cpu, self.index, || lock(&self.state).completed >= target)?;
            }
            None => self.block(target),
        }
        self.cpu.check()
    }

    /// Sleeps until this many commands have completed.
    pub(super) fn block(&self, target: u64) {
        let mut state = lock(&self.state);
        while state.completed < target {
            state.awaited = state.awaited.min(target);
            state = sleep(&self.progress, state);
        }
    }

    /// Whether everything enqueued so far has been carried out.
    ///
    /// # Errors
    /// It has, and the device is poisoned or a host callback panicked.
    pub(crate) fn query(&self) -> Result<bool, CpuError> {
        self.cpu.nudge(self.index);
        let done = {
            let state = lock(&self.state);
            state.completed == state.enqueued
        };
        if done { self.cpu.check().map(|()| true) } else { Ok(false) }
    }

    fn push(&self, command: Command) {
        self.push_with(|| command);
    }

    /// Enqueues what is made under the queue's lock.
    fn push_with(&self, command: impl FnOnce() -> Command) {
        self.enqueue(1, |commands| commands.push_back(command()));
    }

    /// Enqueues as many commands as `add` adds.
    #[inline]
    fn enqueue(&self, count: usize, add: impl FnOnce(&mut VecDeque<Command>)) {
        let mut state = lock(&self.state);
        add(&mut state.commands);
        state.enqueued += count as u64;
        if state.sleeping {
            self.work.notify_one();
        }
        drop(state);
        if let Some(scheduler) = self.cpu.scheduler() {
            scheduler.enqueued(self.cpu);
        }
    }

    /// What the queue's thread does: carries out commands until this many have completed.
    pub(super) fn work(&self, until: u64) {
        let mut state = lock(&self.state);
        while state.completed < until {
            let Some(mut command) = state.commands.pop_front() else {
                state.sleeping = true;
                state = sleep(&self.work, state);
                state.sleeping = false;
                continue;
            };
            drop(state);
            self.carry_out(&mut command);
            drop(command);
            state = lock(&self.state);
            state.completed += 1;
            if state.completed >= state.awaited {
                // Those who wait for more say so again when they wake.
                state.awaited = u64::MAX;
                self.progress.notify_all();
            }
        }
    }

    fn carry_out(&self, command: &mut Command) {
        let mut naps = 0;
        loop {
            match (command.step(self.cpu, None), &*command) {
                (Step::Done, _) => return,
                (Step::Blocked, Command::Wait(event, ticket)) => event.block(*ticket),
                (Step::Blocked, _) => {
                    // Nobody tells when the host writes the word.
                    thread::sleep(Duration::from_micros(10 << naps.min(6)));
                    naps += 1;
                }
                (Step::Part, _) => {}
            }
        }
    }

    /// For the seeded schedule: one step of the first command. The command is out of the queue meanwhile,
    /// because it may call back into it.
    pub(super) fn step(&self, step: impl FnOnce(&mut Command) -> Step) -> bool {
        let Some(mut command) = lock(&self.state).commands.pop_front() else { return false };
        let result = step(&mut command);
        let mut state = lock(&self.state);
        if result == Step::Done {
            state.completed += 1;
            drop(state);
            drop(command);
        } else {
            state.commands.push_front(command);
        }
        result != Step::Blocked
    }

    /// How many commands have ever been enqueued.
    #[cfg(all(test, loom))]
    pub(super) fn enqueued(&self) -> u64 {
        lock(&self.state).enqueued
    }

    /// For the seeded schedule: looks at the first command.
    pub(super) fn first<T>(&self, look: impl FnOnce(&Command) -> T) -> Option<T> {
        lock(&self.state).commands.front().map(look)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("index", &self.index).finish_non_exhaustive()
    }
}
