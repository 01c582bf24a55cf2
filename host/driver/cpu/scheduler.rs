//! The seeded schedule: all queues carried out by whoever calls, in an order drawn from a seed.
//!
//! The order is one the threads could have produced, and a hostile one: commands run as late as the
//! waits allow, or at once, or on one queue long before another; copies, fills and launches stop half
//! way for others to run. So a missing wait shows as wrong data under some seed, and the seed shows it
//! again.

use std::thread;
use std::time::{Duration, Instant};

use super::command::Command;
use super::rng::Rng;
use super::sync::{Mutex, lock};
use super::{Cpu, CpuError, Queue};

/// How long a host that waits while nothing can run gives other threads to change that.
const GRACE: Duration = Duration::from_secs(1);

pub(super) struct Scheduler(Mutex<State>);

struct State {
    rng: Rng,
    queues: Vec<&'static Queue>,
    mood: Mood,
    /// Commands that will be enqueued before the mood changes.
    lasts: usize,
    #[cfg(all(test, not(loom)))]
    trace: Vec<(usize, String)>,
}

/// What happens when a command is enqueued.
#[derive(Clone, Copy)]
enum Mood {
    /// Nothing runs before the host waits for it.
    Late,
    /// Everything that can runs at once.
    Eager,
    /// Now and then something runs.
    Sparse,
    /// One queue runs ahead of the others.
    Favour(usize),
}

impl Scheduler {
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(State {
            rng: Rng::new(seed),
            queues: Vec::new(),
            mood: Mood::Late,
            lasts: 0,
            #[cfg(all(test, not(loom)))]
            trace: Vec::new(),
        }))
    }

    pub(super) fn reseed(&self, seed: u64) {
        let mut state = lock(&self.0);
        (state.rng, state.lasts) = (Rng::new(seed), 0);
    }

    /// A queue by its index, under the lock that makes the two agree.
    pub(super) fn add(&self, new: impl FnOnce(usize) -> &'static Queue) -> &'static Queue {
        let queues = &mut lock(&self.0).queues;
        let queue = new(queues.len());
        queues.push(queue);
        queue
    }

    /// A command has been enqueued: perhaps something runs.
    pub(super) fn enqueued(&self, cpu: &Cpu) {
        // Whoever holds the lock runs commands already: another thread, or this one, in a host callback.
        let Ok(mut state) = self.0.try_lock() else { return };
        let state = &mut *state;
        if state.lasts == 0 {
            state.lasts = 1 << state.rng.below(8);
            state.mood = match state.rng.below(6) {
                0 | 1 => Mood::Late,
                2 => Mood::Eager,
                3 => Mood::Sparse,
                _ => Mood::Favour(state.rng.below(state.queues.len().max(1))),
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
            Mood::Favour(queue) => while state.run(cpu, queue) {},
        }
    }

    /// Someone asks whether the queue is done: perhaps one command on the way there runs, so that
    /// asking often enough gets there.
    pub(super) fn asked(&self, cpu: &Cpu, queue: usize) {
        let Ok(mut state) = self.0.try_lock() else { return };
        if state.rng.coin() {
            state.run_towards(cpu, queue);
        }
    }

    /// Runs commands until `done`, which commands of the queue bring about.
    ///
    /// # Errors
    /// No command can run, and for a second no other thread has changed that.
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

    #[cfg(all(test, not(loom)))]
    pub(super) fn take_trace(&self) -> Vec<(usize, String)> {
        std::mem::take(&mut lock(&self.0).trace)
    }
}

impl State {
    /// One step of a random queue that can take one.
    fn run_any(&mut self, cpu: &Cpu) -> bool {
        let n = self.queues.len();
        let first = self.rng.below(n.max(1));
        (0..n).any(|i| self.run(cpu, (first + i) % n))
    }

    /// One step of the queue, or of the one that it waits for, and so on; of any, where that one waits
    /// for the host.
    fn run_towards(&mut self, cpu: &Cpu, mut queue: usize) -> bool {
        // A wait is for a record that was enqueued before it, so this comes to an end.
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

    /// One step of the queue, if it can take one.
    fn run(&mut self, cpu: &Cpu, queue: usize) -> bool {
        let Some(&target) = self.queues.get(queue) else { return false };
        target.step(|command| {
            #[cfg(all(test, not(loom)))]
            let what = format!("{command:?}");
            let step = command.step(cpu, Some(&mut self.rng));
            #[cfg(all(test, not(loom)))]
            self.trace.push((queue, format!("{what}: {step:?}")));
            step
        })
    }

    /// What the queues wait for.
    fn describe(&self) -> String {
        let blocked = self.queues.iter().enumerate();
        let blocked = blocked.filter_map(|(i, q)| q.first(|command| format!("queue {i} at a {command:?}")));
        blocked.collect::<Vec<_>>().join(", ")
    }
}
