//! The errors of a block.

use std::any::Any;
use std::fmt;
use std::panic::Location;

use super::checker::{Finding, Found};
use super::place::Place;
use crate::Dim3;
use crate::host::counted;
use crate::violation::{Violation, Wrong};

/// The environment variable with the seed of the checked device.
pub const SEED: &str = "THALWEG_CHECK_SEED";

/// A block that did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockError {
    /// The kernel's name.
    pub kernel: &'static str,
    /// The block's position in the grid.
    pub block: [u32; 3],
    /// The fault.
    pub fault: Fault,
    /// The seed of the order in which the checked device ran the blocks and the threads.
    pub seed: Option<u64>,
}

/// The reason why a block ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A thread panicked.
    Panicked {
        /// The thread's position in the block.
        thread: [u32; 3],
        /// The panic's message.
        message: String,
    },
    /// Threads wait for others that returned or that wait somewhere else, so they would wait for
    /// ever.
    Diverged {
        /// The place of each thread, by rank in the block. `x` varies fastest.
        threads: String,
    },
    /// A thread used an element that a buffer does not have.
    OutOfBounds {
        /// The thread's position in the block.
        thread: [u32; 3],
        /// The line of the kernel.
        location: &'static Location<'static>,
        /// The name of the parameter.
        buffer: &'static str,
        /// The index of the element.
        element: i64,
        /// The number of elements of the buffer, or of the part of it that the thread used.
        len: u64,
    },
    /// The checked device does not allow an access of a thread.
    Found {
        /// The thread's position in the block.
        thread: [u32; 3],
        /// The line of the kernel.
        location: &'static Location<'static>,
        /// The defect of the access.
        finding: Finding,
    },
    /// A thread used shared memory outside the bytes of the declaration, or misaligned.
    SharedMemory {
        /// The thread's position in the block.
        thread: [u32; 3],
        /// The line of the kernel.
        location: &'static Location<'static>,
        /// The accessed memory.
        access: String,
        /// The number of bytes of shared memory that the declaration asks for.
        shared: u32,
    },
    /// The operating system gave no memory for the stacks of the block's threads.
    Stacks {
        /// The number of threads in the block.
        threads: usize,
        /// The operating system's message.
        reason: String,
    },
}

impl Fault {
    /// Returns the fault of the thread `rank`, whose body panicked with `payload`.
    #[cold]
    pub(super) fn of_panic(payload: Box<dyn Any + Send>, place: &Place<'_>, rank: u32) -> Self {
        let Dim3 { x, y, z } = place.thread(rank);
        let thread = [x, y, z];
        let payload = match payload.downcast::<Violation>() {
            Ok(violation) => {
                let Violation { location, what } = *violation;
                return match what {
                    Wrong::Shared(access) => Self::SharedMemory { thread, location, access, shared: place.shared_len },
                    Wrong::Outside { element, address, len } => Self::OutOfBounds {
                        thread,
                        location,
                        buffer: place.buffer_at(address),
                        element: element as i64,
                        len: len as u64,
                    },
                };
            }
            Err(payload) => payload,
        };
        let payload = match payload.downcast::<Found>() {
            Ok(found) => return Self::Found { thread, location: found.location, finding: found.finding },
            Err(payload) => payload,
        };
        let message = match payload.downcast::<String>() {
            Ok(message) => *message,
            Err(payload) => {
                let message = payload.downcast_ref::<&str>().map_or_else(|| "(no message)".into(), |s| (*s).into());
                // Dropping a payload of another type could panic again.
                std::mem::forget(payload);
                message
            }
        };
        Self::Panicked { thread, message }
    }
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, block, fault, seed } = self;
        write!(f, "kernel `{kernel}`, block {block:?}: ")?;
        match fault {
            Fault::Panicked { thread, message } => write!(f, "thread {thread:?} panicked: {message}"),
            Fault::Diverged { threads } => write!(
                f,
                "its threads diverged: {threads} (a barrier must be reached by every thread of the block, a warp \
                 operation by all 32 threads of the warp)"
            ),
            Fault::OutOfBounds { thread, location, buffer, element, len } => {
                let len = counted(*len, "element");
                write!(f, "thread {thread:?} used element {element} of `{buffer}`, which has {len}, at {location}")
            }
            Fault::Found { thread, location, finding } => write!(f, "thread {thread:?} {finding}, at {location}"),
            Fault::SharedMemory { thread, location, access, shared } => {
                let shared = counted(*shared, "byte");
                write!(
                    f,
                    "thread {thread:?} accessed {access}; the kernel declares {shared} of shared memory, at {location}"
                )
            }
            Fault::Stacks { threads, reason } => {
                let threads = counted(*threads, "cooperating thread");
                write!(f, "there is no memory for the stacks of {threads}: {reason}")
            }
        }?;
        match seed {
            Some(seed) => write!(f, " (to repeat it: {SEED}={seed})"),
            None => Ok(()),
        }
    }
}
impl std::error::Error for BlockError {}
