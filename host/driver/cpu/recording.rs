//! Recordings: commands that a queue can run any number of times.
//!
//! A recording is a list of work. A [`Fork`] in it is two lists that run side by side: one on the
//! queue that replays the recording, the other on a helper queue. Events make the helper wait for
//! what comes before the fork, and the queue for the helper.

use std::collections::VecDeque;

use super::command::{Command, Work};
use super::{Cpu, CpuError, Event, Queue};
use crate::driver::sync::{Arc, lock};

/// Commands that can be enqueued any number of times.
#[derive(Debug)]
pub(crate) struct Recording(Box<[Node]>);

// Most nodes are work, which a replay copies from here into a queue.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum Node {
    Work(Work),
    Fork(Box<Fork>),
}

/// Two branches of a recording.
#[derive(Debug)]
struct Fork {
    here: Recording,
    there: Recording,
    /// The forks of one list run one after another, so they share a helper. Those in a branch have
    /// another.
    helper: Arc<Helper>,
    /// An event that completes when the work before the branches is done.
    begun: Event,
    /// The branch on the helper is done.
    ended: Event,
}

/// A queue for branches, which goes back to its device for a later recording.
#[derive(Debug)]
struct Helper(&'static Queue);

impl Fork {
    fn of(
        cpu: &'static Cpu,
        [here, there]: [VecDeque<Command>; 2],
        helper: &mut Option<Arc<Helper>>,
    ) -> Result<Self, CpuError> {
        let helper = match helper {
            Some(helper) => helper.clone(),
            None => helper.insert(Arc::new(Helper::take(cpu)?)).clone(),
        };
        Ok(Self {
            here: Recording::of(cpu, here)?,
            there: Recording::of(cpu, there)?,
            helper,
            begun: cpu.event(),
            ended: cpu.event(),
        })
    }
}

impl Helper {
    fn take(cpu: &'static Cpu) -> Result<Self, CpuError> {
        let spare = lock(&cpu.helpers).pop();
        spare.map_or_else(|| cpu.queue(0), Ok).map(Self)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Work that is pending there stays in front of a later user's.
        lock(&self.0.cpu().helpers).push(self.0);
    }
}

impl Recording {
    /// Makes a recording of what a recorder was given. A capture takes no other commands.
    fn of(cpu: &'static Cpu, commands: VecDeque<Command>) -> Result<Self, CpuError> {
        let mut helper = None;
        let node = |command| match command {
            Command::Work(work) => Some(Ok(Node::Work(work))),
            Command::Fork(branches) => {
                Some(Fork::of(cpu, branches, &mut helper).map(|fork| Node::Fork(Box::new(fork))))
            }
            _ => None,
        };
        commands.into_iter().filter_map(node).collect::<Result<_, _>>().map(Self)
    }

    /// A number that no other recording with commands has while this one exists.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    /// The number of commands, those of branches included.
    pub(crate) fn len(&self) -> usize {
        let count = |node: &Node| match node {
            Node::Work(_) => 1,
            Node::Fork(fork) => fork.here.len() + fork.there.len(),
        };
        self.0.iter().map(count).sum()
    }
}

impl Queue {
    /// Takes what a [recorder](super::Cpu::recorder) was given since the last call.
    ///
    /// # Errors
    /// There is no thread for a branch.
    pub(crate) fn take_recording(&self) -> Result<Recording, CpuError> {
        Recording::of(self.cpu(), self.take_commands(0))
    }

    /// Makes the commands that this recorder was given from number `from` on one branch, and those
    /// of `other` the other.
    pub(crate) fn join(&self, from: usize, other: &Self) {
        self.push(Command::Fork([self.take_commands(from), other.take_commands(0)]));
    }

    /// Enqueues the whole recording. If it has no branches, no other command comes in between.
    ///
    /// # Safety
    /// What each recorded command required holds again, as if it were enqueued here now. No other
    /// call replays the recording at the same time.
    pub(crate) unsafe fn replay(&self, recording: &Recording) -> Result<(), CpuError> {
        let mut rest = &*recording.0;
        while !rest.is_empty() {
            let works =
                rest.iter().map_while(|node| if let Node::Work(work) = node { Some(work.clone()) } else { None });
            let count = works.clone().count();
            if count > 0 {
                self.enqueue(count, |commands| commands.extend(works.map(Command::Work)));
            }
            rest = &rest[count..];
            if let Some((Node::Fork(fork), after)) = rest.split_first() {
                let helper = fork.helper.0;
                self.record(&fork.begun);
                helper.wait(&fork.begun)?;
                // SAFETY: [graph] The caller guarantees it for the commands of both branches. The
                // events order them after what comes before, and what comes later after them.
                unsafe {
                    helper.replay(&fork.there)?;
                    helper.record(&fork.ended);
                    self.replay(&fork.here)?;
                }
                self.wait(&fork.ended)?;
                rest = after;
            }
        }
        Ok(())
    }
}
