//! Queues: the streams of the CPU device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

use super::command::{Command, Flag, Step, Work};
use super::{Cpu, CpuError, Event};
use crate::driver::sync::{Condvar, Mutex, lock, sleep};
use crate::driver::trace;
use crate::driver::work_log::{self, Done};

/// The times between two looks at a word of the host.
const FIRST_NAP: Duration = Duration::from_micros(10);
const LONGEST_NAP: Duration = Duration::from_micros(640);

/// A stream of commands, which run in the order in which they were enqueued.
///
/// On threads, enqueueing returns at once; on a seeded schedule it may run commands first. A queue
/// is never destroyed. One that nobody uses any more sleeps.
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

    /// The priority that the queue was made with.
    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    /// The queue's number in the work log.
    pub(crate) fn number_in_log(&self) -> u64 {
        self.index as u64
    }

    /// The queue's device.
    pub(crate) fn cpu(&self) -> &'static Cpu {
        self.cpu
    }

    /// Enqueues work on buffers. Work on nothing is left out.
    ///
    /// # Safety
    /// What the variant of [`Work`] says holds. Queues and events order every other access that
    /// conflicts with the work before or after it.
    pub(crate) unsafe fn submit(&self, work: Work) {
        if !work.is_empty() {
            self.push(Command::Work(work));
        }
    }

    /// Calls `f` on the thread that runs the queue's commands. A panic stops there, unreported.
    /// On a poisoned device, `f` is dropped instead.
    pub(crate) fn host(&self, f: Box<dyn FnOnce() + Send>) {
        self.push(Command::Host(f));
    }

    /// Frees device memory when the queue reaches this command.
    ///
    /// # Safety
    /// [`Cpu::alloc`] returned the address for the same `bytes`, it is freed once, and queues and
    /// events order all uses of the memory before this command.
    pub(crate) unsafe fn free(&self, addr: u64, bytes: usize) {
        self.push(Command::Free { addr, bytes });
    }

    /// Takes the commands from number `from` on. Only a [recorder](super::Cpu::recorder), which
    /// runs nothing, keeps its commands.
    pub(super) fn take_commands(&self, from: usize) -> VecDeque<Command> {
        lock(&self.state).commands.split_off(from)
    }

    /// The number of commands that a [recorder](super::Cpu::recorder) has.
    pub(crate) fn recorded(&self) -> usize {
        lock(&self.state).commands.len()
    }

    /// Records the event here.
    pub(crate) fn record(&self, event: &Event) {
        self.push_with(|| Command::Record(event.clone(), event.begin(self.index)));
    }

    /// Whether the queue can wait for the event. A seeded schedule runs the queues of its own
    /// device only, so waits between it and another device are refused.
    pub(crate) fn can_wait(&self, event: &Event) -> bool {
        std::ptr::eq(self.cpu, event.cpu()) || (self.cpu.scheduler().is_none() && event.cpu().scheduler().is_none())
    }

    /// Makes everything enqueued later wait for the record of the event that is the latest now.
    ///
    /// # Errors
    /// The event is complete but belongs to another device that is poisoned, so the work before it
    /// may be unfinished. (If it is not complete yet and its device is poisoned when the queue
    /// passes the wait, this device becomes poisoned too.)
    pub(crate) fn wait(&self, event: &Event) -> Result<(), CpuError> {
        match event.latest_pending() {
            Some((ticket, _)) => self.push(Command::Wait(event.clone(), ticket)),
            None if !std::ptr::eq(self.cpu, event.cpu()) => {
                let failed = event.cpu().check();
                failed.map_err(|error| CpuError::Behind { reason: error.to_string() })?;
            }
            None => {}
        }
        Ok(())
    }

    /// Makes everything enqueued later wait until the word is `value` or up to 2^31 - 1 more, with
    /// wrap-around.
    ///
    /// # Safety
    /// The word lives until the queue has passed this command.
    pub(crate) unsafe fn wait_value(&self, flag: *const AtomicU32, value: u32) {
        self.push(Command::WaitValue(Flag(flag), value));
    }

    /// Blocks until the queue has passed everything enqueued so far.
    ///
    /// # Errors
    /// The device is poisoned; the queue has passed everything then too. On a seeded schedule only:
    /// no command can run.
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

    /// Whether the queue has passed everything enqueued so far.
    ///
    /// # Errors
    /// It has, and the device is poisoned.
    pub(crate) fn query(&self) -> Result<bool, CpuError> {
        self.cpu.nudge(self.index);
        let done = {
            let state = lock(&self.state);
            state.completed == state.enqueued
        };
        if done { self.cpu.check().map(|()| true) } else { Ok(false) }
    }

    pub(super) fn push(&self, command: Command) {
        self.push_with(|| command);
    }

    /// Enqueues a command, which `command` makes under the queue's lock.
    fn push_with(&self, command: impl FnOnce() -> Command) {
        self.enqueue(1, |commands| commands.push_back(command()));
    }

    /// Enqueues the `count` commands that `add` adds.
    #[inline]
    pub(super) fn enqueue(&self, count: usize, add: impl FnOnce(&mut VecDeque<Command>)) {
        let mut state = lock(&self.state);
        add(&mut state.commands);
        state.enqueued += count as u64;
        trace::flush();
        if state.sleeping {
            self.work.notify_one();
        }
        drop(state);
        if let Some(scheduler) = self.cpu.scheduler() {
            scheduler.enqueued(self.cpu);
        }
    }

    /// Runs commands until this many have completed. The queue's thread does this.
    pub(super) fn work(&self, until: u64) {
        let mut state = lock(&self.state);
        while state.completed < until {
            let Some(command) = state.commands.pop_front() else {
                state.sleeping = true;
                state = sleep(&self.work, state);
                state.sleeping = false;
                continue;
            };
            drop(state);
            self.carry_out(command);
            state = lock(&self.state);
            state.completed += 1;
            if state.completed >= state.awaited {
                // Hosts that wait for more commands wake too and set `awaited` again.
                state.awaited = u64::MAX;
                self.progress.notify_all();
            }
        }
    }

    /// Runs a command, and notes when it ran, if a timeline asks for that.
    #[inline]
    fn logged<T>(&self, command: &mut Command, run: impl FnOnce(&mut Command) -> T) -> T {
        let Some((kind, label)) = work_log::is_on().then(|| command.in_log()).flatten() else { return run(command) };
        let start = Instant::now();
        let result = run(command);
        let (device, stream) = (self.cpu.number_in_log(), self.number_in_log());
        work_log::add(Done { device, stream, kind, label, start, end: Instant::now() });
        result
    }

    fn carry_out(&self, mut command: Command) {
        let mut nap = FIRST_NAP;
        self.logged(&mut command, |command| {
            loop {
                match (command.step(self.cpu, None), &*command) {
                    (Step::Done, _) => return,
                    (Step::Blocked, Command::Wait(event, ticket)) => event.block(*ticket),
                    (Step::Blocked, _) => {
                        // The host's write of the word notifies nobody, so look again later.
                        thread::sleep(nap);
                        nap = (nap * 2).min(LONGEST_NAP);
                    }
                    (Step::Part, _) => {}
                }
            }
        });
    }

    /// Runs one step of the first command, for the seeded schedule. The command is out of the queue
    /// meanwhile, because it may call back into the queue.
    pub(super) fn step(&self, step: impl FnOnce(&mut Command) -> Step) -> bool {
        let Some(mut command) = lock(&self.state).commands.pop_front() else { return false };
        let result = self.logged(&mut command, step);
        let mut state = lock(&self.state);
        if result == Step::Done {
            state.completed += 1;
        } else {
            state.commands.push_front(command);
        }
        result != Step::Blocked
    }

    /// Returns the number of commands that have ever been enqueued.
    #[cfg(all(test, loom))]
    pub(super) fn enqueued(&self) -> u64 {
        lock(&self.state).enqueued
    }

    /// Looks at the first command, for the seeded schedule.
    pub(super) fn first<T>(&self, look: impl FnOnce(&Command) -> T) -> Option<T> {
        lock(&self.state).commands.front().map(look)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("index", &self.index).finish_non_exhaustive()
    }
}
