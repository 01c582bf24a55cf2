//! The commands of a queue, and how they run.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_simt::host::{Kernel, LaunchShape, MAX_PARAMETERS, counted};

use super::rng::Rng;
use super::{Cpu, CpuError, Event, grid};
use crate::contain;
use crate::driver::work_log::WorkKind;

/// The value that a fill repeats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    U8(u8),
    U16(u16),
    U32(u32),
}

impl Pattern {
    pub(crate) fn size(self) -> usize {
        match self {
            Self::U8(v) => size_of_val(&v),
            Self::U16(v) => size_of_val(&v),
            Self::U32(v) => size_of_val(&v),
        }
    }
}

/// The layout of rows of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pitch {
    /// The address of the first row.
    pub(crate) addr: u64,
    /// The bytes from the start of a row to that of the next.
    pub(crate) row: usize,
    /// The rows from the start of a plane to that of the next.
    pub(crate) plane: usize,
}

/// A copy of planes of rows. The rows of the target do not overlap, neither one another nor the
/// source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) to: Pitch,
    pub(crate) from: Pitch,
    /// The bytes of a row.
    pub(crate) bytes: usize,
    /// The rows of a plane.
    pub(crate) rows: usize,
    pub(crate) planes: usize,
}

/// A command that accesses buffers only. It can be recorded and run any number of times.
///
/// Every address is of memory that is valid until the command has passed, and whose provenance is
/// exposed.
#[allow(clippy::large_enum_variant)]
#[derive(Clone)]
pub(crate) enum Work {
    /// Copies bytes between device or host memory. The ranges are disjoint.
    Copy { dst: u64, src: u64, bytes: usize },
    /// Copies rows, from row `start` on.
    CopyRows { copy: Rows, start: usize },
    /// Repeats a pattern `count` times, every `stride` bytes. `dst` and `stride` are aligned for
    /// it.
    Fill { dst: u64, stride: usize, pattern: Pattern, count: usize },
    /// Runs a kernel, which [`launch`](Self::launch) made.
    Launch { kernel: &'static Kernel, shape: LaunchShape, slots: Slots, start: usize },
}

/// The parameters of a launch. Up to 512 bytes are stored inline, because a box would cost an
/// allocation for each launch.
#[allow(clippy::large_enum_variant)]
#[derive(Clone)]
pub(crate) enum Slots {
    Inline([u64; 2 * MAX_PARAMETERS]),
    Boxed(Arc<[u64]>),
}

impl Slots {
    fn new(slots: &[u64]) -> Self {
        let mut inline = [0; 2 * MAX_PARAMETERS];
        match inline.get_mut(..slots.len()) {
            Some(start) => {
                start.copy_from_slice(slots);
                Self::Inline(inline)
            }
            None => Self::Boxed(slots.into()),
        }
    }

    /// The parameters, with zeros after them if they are inline.
    fn get(&self) -> &[u64] {
        match self {
            Self::Inline(slots) => slots,
            Self::Boxed(slots) => slots,
        }
    }
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
    /// Two branches of a capture. Only a recorder has this command.
    Fork([VecDeque<Command>; 2]),
    /// A `Host` whose callback has been taken out to run.
    Spent,
}

/// A word that the host writes while a queue waits for it.
#[derive(Clone, Copy)]
pub(super) struct Flag(pub(super) *const AtomicU32);

// SAFETY: [thread] The caller of `Queue::wait_value` keeps the word alive until the queue has
// passed the wait, and an atomic may be used from any thread.
unsafe impl Send for Flag {}

/// The result of one step of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// A part is done, and the command holds the rest. This happens on a seeded schedule only.
    Part,
    /// Nothing is done: what the command waits for has not happened.
    Blocked,
}

impl Command {
    /// Whether a step can run now.
    pub(super) fn is_ready(&self, cpu: &Cpu) -> bool {
        match self {
            Self::Wait(event, ticket) => event.is_complete(*ticket),
            Self::WaitValue(flag, value) => {
                // SAFETY: [alive] The caller of `Queue::wait_value` keeps the word alive until the
                // queue has passed this command, which is still to run.
                let now = unsafe { &*flag.0 }.load(Ordering::Acquire);
                (now.wrapping_sub(*value) as i32) >= 0 || cpu.is_poisoned()
            }
            _ => true,
        }
    }

    /// Runs the command; with a generator, perhaps only a part of it.
    ///
    /// On a poisoned device only records, waits and frees run: what keeps the order and the memory
    /// correct.
    pub(super) fn step(&mut self, cpu: &Cpu, rng: Option<&mut Rng>) -> Step {
        if !self.is_ready(cpu) {
            return Step::Blocked;
        }
        match self {
            Self::Free { addr, bytes } => {
                let p = ptr::with_exposed_provenance_mut(*addr as usize);
                if let Some(p) = NonNull::new(p) {
                    // SAFETY: [free] The caller of `Queue::free` passed an allocation of this
                    // device that nothing uses after this command, and this command runs once.
                    unsafe { cpu.free(p, *bytes) };
                }
                Step::Done
            }
            Self::Record(event, ticket) => {
                event.complete(*ticket);
                Step::Done
            }
            Self::Wait(event, _) => {
                // A poisoned device still completes its events, but the work before them is
                // unfinished. So the poison spreads to the device that waits.
                if !ptr::eq(cpu, event.cpu())
                    && let Err(error) = event.cpu().check()
                {
                    cpu.poison(error);
                }
                Step::Done
            }
            Self::WaitValue(..) | Self::Fork(_) | Self::Spent => Step::Done,
            Self::Host(_) => {
                let Self::Host(f) = std::mem::replace(self, Self::Spent) else { return Step::Done };
                let run = !cpu.is_poisoned();
                // The typed layer reports the panic of a host function. What is left is the
                // destructor of one that is not called, because the device has failed.
                contain(|| if run { f() } else { drop(f) });
                Step::Done
            }
            Self::Work(_) if cpu.is_poisoned() => Step::Done,
            Self::Work(work) => work.step(cpu, rng),
        }
    }
}

impl Command {
    /// The kind and the label of the command in the work log; `None` for what is no work of a
    /// device.
    pub(super) fn in_log(&self) -> Option<(WorkKind, String)> {
        let Self::Work(work) = self else { return None };
        Some(match work {
            Work::Launch { kernel, .. } => (WorkKind::Kernel, kernel.name().to_owned()),
            Work::Fill { .. } => (WorkKind::Fill, "fill".to_owned()),
            Work::Copy { bytes, .. } => (WorkKind::Copy, format!("copy of {bytes} bytes")),
            Work::CopyRows { copy, .. } => {
                (WorkKind::Copy, format!("copy of {} bytes", copy.bytes * copy.rows * copy.planes))
            }
        })
    }
}

impl Work {
    /// The launch of a kernel on a device that is checked or not. To submit it, what
    /// [`Launch::launch`](thalweg_simt::host::Launch::launch) requires must hold.
    ///
    /// # Errors
    /// The kernel was declared without a body, or built without one for a checked device.
    pub(crate) fn launch(
        checked: bool,
        kernel: &'static Kernel,
        shape: LaunchShape,
        slots: &[u64],
    ) -> Result<Self, CpuError> {
        let entry = kernel.cpu().ok_or(CpuError::NoBody { kernel: kernel.name() })?;
        if checked && entry.checked.is_none() {
            return Err(CpuError::NoCheckedBody { kernel: kernel.name() });
        }
        Ok(Self::Launch { kernel, shape, slots: Slots::new(slots), start: 0 })
    }

    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Copy { bytes, .. } => *bytes == 0,
            Self::CopyRows { copy, .. } => copy.bytes * copy.rows * copy.planes == 0,
            Self::Fill { count, .. } => *count == 0,
            Self::Launch { shape, .. } => grid::blocks(*shape) == 0,
        }
    }

    /// Runs the command; with a generator, perhaps only a part of it. Then `self` is the rest.
    fn step(&mut self, cpu: &Cpu, rng: Option<&mut Rng>) -> Step {
        match self {
            Self::Copy { dst, src, bytes } => {
                let part = portion(*bytes, rng);
                let (from, to) = (*src as usize, *dst as usize);
                // SAFETY: [order] The caller of `Queue::submit`, or of `Queue::replay` for a
                // recorded copy, guarantees that both ranges are valid and disjoint, that their
                // provenance is exposed, and that queues and events order every other conflicting
                // access before or after this command.
                unsafe {
                    ptr::copy_nonoverlapping(
                        ptr::with_exposed_provenance::<u8>(from),
                        ptr::with_exposed_provenance_mut::<u8>(to),
                        part,
                    );
                }
                cpu.noted_copy(*dst, *src, part);
                (*dst, *src, *bytes) = (*dst + part as u64, *src + part as u64, *bytes - part);
                if *bytes == 0 { Step::Done } else { Step::Part }
            }
            Self::CopyRows { copy, start } => {
                let all = copy.rows * copy.planes;
                let end = *start + portion(all - *start, rng);
                for i in *start..end {
                    let at = |p: &Pitch| (p.addr as usize) + (i / copy.rows * p.plane + i % copy.rows) * p.row;
                    // SAFETY: [order] The caller of `Queue::submit`, or of `Queue::replay` for a
                    // recorded copy, guarantees that all rows are valid and disjoint, that their
                    // provenance is exposed, and that queues and events order every other
                    // conflicting access before or after this command.
                    unsafe {
                        ptr::copy_nonoverlapping(
                            ptr::with_exposed_provenance::<u8>(at(&copy.from)),
                            ptr::with_exposed_provenance_mut::<u8>(at(&copy.to)),
                            copy.bytes,
                        );
                    }
                    cpu.noted_copy(at(&copy.to) as u64, at(&copy.from) as u64, copy.bytes);
                }
                *start = end;
                if end == all { Step::Done } else { Step::Part }
            }
            Self::Fill { dst, stride, pattern, count } => {
                let part = portion(*count, rng);
                let p = ptr::with_exposed_provenance_mut::<u8>(*dst as usize);
                // SAFETY: [order] The caller of `Queue::submit`, or of `Queue::replay` for a
                // recorded fill, guarantees that the range is valid and aligned for the pattern,
                // that its provenance is exposed, and that queues and events order every other
                // access to it before or after this command.
                unsafe {
                    match *pattern {
                        Pattern::U8(v) if *stride == 1 => p.write_bytes(v, part),
                        Pattern::U8(v) => (0..part).for_each(|i| p.add(i * *stride).write(v)),
                        Pattern::U16(v) => (0..part).for_each(|i| p.add(i * *stride).cast::<u16>().write(v)),
                        Pattern::U32(v) => (0..part).for_each(|i| p.add(i * *stride).cast::<u32>().write(v)),
                    }
                }
                if *stride == pattern.size() {
                    cpu.noted_write(*dst, part * *stride);
                } else {
                    (0..part).for_each(|i| cpu.noted_write(*dst + (i * *stride) as u64, pattern.size()));
                }
                (*dst, *count) = (*dst + (part * *stride) as u64, *count - part);
                if *count == 0 { Step::Done } else { Step::Part }
            }
            Self::Launch { kernel, shape, slots, start } => {
                let all = grid::blocks(*shape);
                // A checked launch keeps records of all its blocks, so it runs as a whole.
                let rng = rng.filter(|_| cpu.checked().is_none());
                let end = *start + portion(all - *start, rng);
                // SAFETY: [kernel] The caller of `Queue::submit`, or of `Queue::replay` for a
                // recorded launch, guarantees that the kernel is sound for these arguments, and
                // that queues and events order every other conflicting access to its buffers before
                // or after this command.
                let outcome = unsafe { grid::run(cpu, kernel, *shape, slots.get(), *start..end) };
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

/// Returns the size of a step: all of it without a generator; with one, half of the time only a
/// part, but never nothing.
fn portion(all: usize, rng: Option<&mut Rng>) -> usize {
    let Some(rng) = rng else { return all };
    if all > 1 && rng.coin() { 1 + rng.below(all - 1) } else { all }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(work) => work.fmt(f),
            Self::Host(_) | Self::Spent => f.write_str("host function"),
            Self::Free { bytes, .. } => write!(f, "free of {}", counted(*bytes, "byte")),
            Self::Record(..) => f.write_str("record"),
            Self::Wait(..) => f.write_str("wait for an event"),
            Self::Fork(_) => f.write_str("branches"),
            Self::WaitValue(_, value) => write!(f, "wait for a flag to reach {value}"),
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy { bytes, .. } => write!(f, "copy of {}", counted(*bytes, "byte")),
            Self::CopyRows { copy, .. } => {
                write!(f, "copy of {} of {}", counted(copy.rows * copy.planes, "row"), counted(copy.bytes, "byte"))
            }
            Self::Fill { count, pattern, .. } => write!(f, "fill of {}", counted(count * pattern.size(), "byte")),
            Self::Launch { kernel, .. } => write!(f, "launch of `{}`", kernel.name()),
        }
    }
}
