//! Findings of the checked device about an access.

use std::fmt;
use std::panic::Location;

/// An access that the checked device does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// An access is at an address that is not a multiple of what it needs.
    Misaligned {
        /// The accessed memory.
        memory: String,
        /// The number of bytes of which the address must be a multiple.
        align: usize,
    },
    /// A load reads memory that nobody has written.
    Unwritten {
        /// The loaded memory.
        memory: String,
    },
    /// A store goes to a buffer that is an `In` parameter.
    ReadOnly {
        /// The memory that was stored to.
        memory: String,
    },
    /// An access is at an address that belongs to none of the launch's buffers.
    NoBuffer {
        /// The address.
        address: usize,
    },
    /// Two threads access the same memory, at least one of them stores, and nothing orders the two
    /// accesses.
    Race {
        /// The accessed memory.
        memory: String,
        /// This thread's access to it.
        access: Use,
        /// The earlier access of the other thread.
        other: Other,
    },
}

/// The kind of a thread's access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Use {
    /// By a load.
    Load,
    /// By a store.
    Store,
    /// By an atomic operation.
    Atomic,
}

/// An earlier access of another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// The kind of its access to the memory.
    pub access: Use,
    /// The position of its block in the grid.
    pub block: [u32; 3],
    /// Its position in its block.
    pub thread: [u32; 3],
    /// The line of the kernel.
    pub location: &'static Location<'static>,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "loads",
            Self::Store => "stores to",
            Self::Atomic => "updates atomically",
        })
    }
}

impl fmt::Display for Finding {
    /// Writes what the thread does. The text follows the words "thread [0, 0, 0]".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { memory, align } => {
                write!(f, "accesses {memory} at an address that is not a multiple of {align}")
            }
            Self::Unwritten { memory } => write!(f, "loads {memory}, which nobody has written"),
            Self::ReadOnly { memory } => write!(f, "stores to {memory}, which is an `In` parameter"),
            Self::NoBuffer { address } => {
                write!(f, "accesses address {address:#x}, which is in none of the launch's buffers")
            }
            Self::Race { memory, access, other } => write!(
                f,
                "{access} {memory}, and nothing orders this after thread {:?} of block {:?}, which {} it at {}",
                other.thread, other.block, other.access, other.location
            ),
        }
    }
}
