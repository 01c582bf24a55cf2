//! What a queue holds, and what it does with it.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_simt::host::{Kernel, LaunchShape, counted};

use super::rng::Rng;
use super::{Cpu, CpuError, Event, grid};

/// Parameters a kernel can have.
pub(super) const MAX_SLOTS: usize = 32;

/// What a fill repeats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    U8(u8),
    U16(u16),
    U32(u32),
}

impl Pattern {
    fn size(self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }
}

/// What can be recorded and carried out any number of times: a command that touches buffers and nothing else.
// Inline, because a box for each launch would be an allocation for each launch.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy)]
pub(super) enum Work {
    Copy { dst: u64, src: u64, bytes: usize },
    Fill { dst: u64, pattern: Pattern, count: usize },
    Launch { kernel: &'static Kernel, shape: LaunchShape, slots: [u64; MAX_SLOTS], start: usize },
}

#[allow(clippy::large_enum_variant)]
pub(super) enum Command {
    Work(Work),
    Host(Box<dyn FnOnce() + Send>),
    Free {
        addr: u64,
        bytes: usize,
    },
    Record(Event, u64),
    Wait(Event, u64),
    WaitValue(Flag, u32),
    /// What is left of a `Host` that has run.
    Spent,
}

/// A word that the host writes while a queue waits for it.
#[derive(Clone, Copy)]
pub(super) struct Flag(pub(super) *const AtomicU32);

// SAFETY: whoever enqueued the wait promised that the word lives until the queue has passed it; an
// atomic may be used from any thread.
unsafe impl Send for Flag {}

/// How far a command came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// Part of it; the rest is left in the command. On a seeded schedule only.
    Part,
    /// Nothing: what it waits for has not happened.
    Blocked,
}

impl Command {
    /// Whether a step would do something.
    pub(super) fn is_ready(&self, cpu: &Cpu) -> bool {
        match self {
            Self::Wait(event, ticket) => event.is_done(*ticket),
            Self::WaitValue(flag, value) => {
                // SAFETY: the word lives until the queue has passed this command.
                let now = unsafe { &*flag.0 }.load(Ordering::Acquire);
                (now.wrapping_sub(*value) as i32) >= 0 || cpu.is_poisoned()
            }
            _ => true,
        }
    }

    /// Carries out the command; with a generator, perhaps only a part of it.
    ///
    /// On a poisoned device only what keeps order and memory in order is carried out: records, waits
    /// for them, and frees.
    pub(super) fn step(&mut self, cpu: &Cpu, rng: Option<&mut Rng>) -> Step {
        if !self.is_ready(cpu) {
            return Step::Blocked;
        }
        match self {
            Self::Free { addr, bytes } => {
                let p = ptr::with_exposed_provenance_mut(*addr as usize);
                if let Some(p) = NonNull::new(p) {
                    // SAFETY: whoever enqueued it promised that this is an allocation of the device that
                    // nothing uses after this command.
                    unsafe { cpu.free(p, *bytes) };
                }
                Step::Done
            }
            Self::Record(event, ticket) => {
                event.complete(*ticket);
                Step::Done
            }
            Self::Wait(event, _) => {
                // A poisoned device completes its events all the same; what they guard is unfinished.
                if !ptr::eq(cpu, event.cpu())
                    && let Err(error) = event.cpu().check_sticky()
                {
                    cpu.poison(error);
                }
                Step::Done
            }
            Self::WaitValue(..) | Self::Spent => Step::Done,
            Self::Host(_) => {
                let Self::Host(f) = std::mem::replace(self, Self::Spent) else { return Step::Done };
                let run = !cpu.is_poisoned();
                // What is called or dropped is the user's. What it leaves behind broken is its own: it
                // is `'static`.
                let outcome = panic::catch_unwind(AssertUnwindSafe(|| if run { f() } else { drop(f) }));
                if let Err(payload) = outcome {
                    cpu.defer(CpuError::HostPanicked { message: message(payload) });
                }
                Step::Done
            }
            Self::Work(_) if cpu.is_poisoned() => Step::Done,
            Self::Work(work) => work.step(cpu, rng),
        }
    }
}

impl Work {
    /// Carries it out; with a generator, perhaps only a part of it, and the rest is left.
    fn step(&mut self, cpu: &Cpu, rng: Option<&mut Rng>) -> Step {
        match self {
            Self::Copy { dst, src, bytes } => {
                let part = portion(*bytes, rng);
                let (from, to) = (*src as usize, *dst as usize);
                // SAFETY: whoever enqueued it promised that both are valid for the bytes, and that from
                // the enqueue until this command has passed, all other uses of them are ordered before
                // or after it by queues and events. The addresses' provenance was exposed when they
                // became numbers.
                unsafe {
                    ptr::copy_nonoverlapping(
                        ptr::with_exposed_provenance::<u8>(from),
                        ptr::with_exposed_provenance_mut::<u8>(to),
                        part,
                    );
                }
                (*dst, *src, *bytes) = (*dst + part as u64, *src + part as u64, *bytes - part);
                if *bytes == 0 { Step::Done } else { Step::Part }
            }
            Self::Fill { dst, pattern, count } => {
                let part = portion(*count, rng);
                let p = ptr::with_exposed_provenance_mut::<u8>(*dst as usize);
                // SAFETY: as for a copy; aligned for the pattern.
                unsafe {
                    match *pattern {
                        Pattern::U8(v) => p.write_bytes(v, part),
                        Pattern::U16(v) => (0..part).for_each(|i| p.cast::<u16>().add(i).write(v)),
                        Pattern::U32(v) => (0..part).for_each(|i| p.cast::<u32>().add(i).write(v)),
                    }
                }
                (*dst, *count) = (*dst + (part * pattern.size()) as u64, *count - part);
                if *count == 0 { Step::Done } else { Step::Part }
            }
            Self::Launch { kernel, shape, slots, start } => {
                let all = grid::blocks(*shape);
                let end = *start + portion(all - *start, rng);
                // SAFETY: whoever enqueued it promised that the kernel is sound for these arguments,
                // and as for a copy.
                let outcome = unsafe { grid::run(cpu, kernel, *shape, slots, *start..end) };
                if let Err(error) = outcome {
                    cpu.poison(CpuError::Block(error));
                    return Step::Done;
                }
                *start = end;
                if end == all { Step::Done } else { Step::Part }
            }
        }
    }
}

/// All of it, or what a schedule makes of it: half of the time a part, but not nothing.
fn portion(all: usize, rng: Option<&mut Rng>) -> usize {
    let Some(rng) = rng else { return all };
    if all > 1 && rng.coin() { 1 + rng.below(all - 1) } else { all }
}

/// The message of a panic.
fn message(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => {
            let message = payload.downcast_ref::<&str>().map_or_else(|| "(no message)".into(), |s| (*s).into());
            // The drop of a payload of any other type could panic again.
            std::mem::forget(payload);
            message
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(work) => work.fmt(f),
            Self::Host(_) | Self::Spent => f.write_str("host callback"),
            Self::Free { bytes, .. } => write!(f, "free of {}", counted(*bytes, "byte")),
            Self::Record(..) => f.write_str("record"),
            Self::Wait(..) => f.write_str("wait for an event"),
            Self::WaitValue(_, value) => write!(f, "wait for a flag to reach {value}"),
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy { bytes, .. } => write!(f, "copy of {}", counted(*bytes, "byte")),
            Self::Fill { count, pattern, .. } => write!(f, "fill of {}", counted(count * pattern.size(), "byte")),
            Self::Launch { kernel, .. } => write!(f, "launch of `{}`", kernel.name()),
        }
    }
}
