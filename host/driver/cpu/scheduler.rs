//! The seeded schedule: callers run the commands of all queues, in an order drawn from a seed.
//!
//! The threads could produce the same order, but it is a hostile one. Commands run as late as the
//! waits allow, or at once, or on one queue long before another. Copies, fills and launches stop
//! half way, and other commands run in between. So a missing wait gives wrong data under some seed,
//! and the same seed gives it again.

use std::thread;
use std::time::{Duration, Instant};

use super::command::Command;
use super::rng::Rng;
use super::{Cpu, CpuError, Queue};
use crate::driver::sync::{Mutex, lock};

/// The time that a host waits, while no command can run, for another thread to change that.
const GRACE: Duration = Duration::from_secs(1);

pub(super) struct Scheduler(Mutex<State>);

struct State {
    rng: Rng,
    queues: Vec<&'static Queue>,
    mood: Mood,
    /// The number of commands that are enqueued before the mood changes.
    lasts: usize,
    #[cfg(all(test, not(any(loom, shuttle))))]
    trace: Vec<(usize, String)>,
}

/// The behavior when a command is enqueued.
#[derive(Clone, Copy)]
enum Mood {
    /// Nothing runs at this time; commands run when the host asks or waits.
    Late,
    /// Every command that can run does.
    Eager,
    /// Up to two steps run.
    Sparse,
    /// One queue runs ahead of the others.
    Favor(usize),
}

impl Scheduler {
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(State {
            rng: Rng::new(seed),
            queues: Vec::new(),
            mood: Mood::Late,
            lasts: 0,
            #[cfg(all(test, not(any(loom, shuttle))))]
            trace: Vec::new(),
        }))
    }

    pub(super) fn reseed(&self, seed: u64) {
        let mut state = lock(&self.0);
        (state.rng, state.lasts) = (Rng::new(seed), 0);
    }

    /// Adds the queue that `new` makes from its index. The lock makes the index that of the list.
    pub(super) fn add(&self, new: impl FnOnce(usize) -> &'static Queue) -> &'static Queue {
        let queues = &mut lock(&self.0).queues;
        let queue = new(queues.len());
        queues.push(queue);
        queue
    }

    /// Reports that a command has been enqueued. The schedule may run some.
    pub(super) fn enqueued(&self, cpu: &Cpu) {
        // The holder of the lock is running commands: another thread, or this one, in a host
        // callback.
        let Ok(mut state) = self.0.try_lock() else { return };
        let state = &mut *state;
        if state.lasts == 0 {
            state.lasts = 1 << state.rng.below(8);
            state.mood = match state.rng.below(6) {
                0 | 1 => Mood::Late,
                2 => Mood::Eager,
                3 => Mood::Sparse,
                _ => Mood::Favor(state.rng.below(state.queues.len().max(1))),
            };
        }
        state.lasts -= 1;
        match state.mood {
            Mood::Late => {}
            Mood::Eager => while state.run_any(cpu) {},
            Mood::Sparse => {
                for _ in 0..state.rng.below(3) {
                    state.run_any(cpu);
                }
            }
            Mood::Favor(queue) => while state.run(cpu, queue) {},
        }
    }

    /// Reports that the host asks whether the queue is done. Half of the time, one command that the
    /// queue needs runs, so a host that asks often enough sees it done.
    pub(super) fn asked(&self, cpu: &Cpu, queue: usize) {
        let Ok(mut state) = self.0.try_lock() else { return };
        if state.rng.coin() {
            state.run_towards(cpu, queue);
        }
    }

    /// Runs commands until `done` holds, which commands of this queue cause.
    ///
    /// # Errors
    /// No command could run for a second, and no other thread changed that.
    pub(super) fn run_until(&self, cpu: &Cpu, queue: usize, done: impl Fn() -> bool) -> Result<(), CpuError> {
        let mut stuck: Option<Instant> = None;
        let as_little_as_possible = lock(&self.0).rng.coin();
        loop {
            let mut state = lock(&self.0);
            if done() {
                return Ok(());
            }
            let ran = if as_little_as_possible { state.run_towards(cpu, queue) } else { state.run_any(cpu) };
            if ran {
                stuck = None;
            } else if stuck.get_or_insert_with(Instant::now).elapsed() > GRACE {
                return Err(CpuError::Deadlock { blocked: state.describe() });
            } else {
                drop(state);
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn take_trace(&self) -> Vec<(usize, String)> {
        std::mem::take(&mut lock(&self.0).trace)
    }
}

impl State {
    /// Runs one step of a random queue that can run one.
    fn run_any(&mut self, cpu: &Cpu) -> bool {
        let n = self.queues.len();
        let first = self.rng.below(n.max(1));
        (0..n).any(|i| self.run(cpu, (first + i) % n))
    }

    /// Runs one step of the queue, or of the queue that it waits for, and so on. If that one is
    /// blocked, runs a step of any queue.
    fn run_towards(&mut self, cpu: &Cpu, mut queue: usize) -> bool {
        // Each wait is for a record that was enqueued before it, so this loop ends.
        while let Some(next) = self.queues[queue]
            .first(|command| match command {
                Command::Wait(event, ticket) => event.queue_of(*ticket),
                _ => None,
            })
            .flatten()
        {
            queue = next;
        }
        self.run(cpu, queue) || self.run_any(cpu)
    }

    /// Runs one step of the queue, if it can run one.
    fn run(&mut self, cpu: &Cpu, queue: usize) -> bool {
        let Some(&target) = self.queues.get(queue) else { return false };
        target.step(|command| {
            #[cfg(all(test, not(any(loom, shuttle))))]
            let what = format!("{command:?}");
            let step = command.step(cpu, Some(&mut self.rng));
            #[cfg(all(test, not(any(loom, shuttle))))]
            self.trace.push((queue, format!("{what}: {step:?}")));
            step
        })
    }

    /// Describes what each queue waits for.
    fn describe(&self) -> String {
        let blocked = self.queues.iter().enumerate();
        let blocked = blocked.filter_map(|(i, q)| q.first(|command| format!("queue {i} at a {command:?}")));
        blocked.collect::<Vec<_>>().join(", ")
    }
}
