//! The reasons why a launch is refused.

use std::fmt::{self, Debug};

use super::counted::counted;
use super::kernel::Kernel;

/// The most dynamic shared memory that a supported GPU grants to a block, in bytes. The CPU device
/// grants as much.
#[doc(hidden)]
pub const MAX_SHARED: u32 = 227 << 10;

/// A launch whose arguments the declaration does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchError {
    /// A predicate of `require` is false.
    Requirement {
        /// The kernel's name.
        kernel: &'static str,
        /// The predicate's text.
        requirement: &'static str,
        /// The arguments of the launch.
        arguments: String,
    },
    /// The grid, the block or the shared memory is outside the limits of a launch.
    Shape {
        /// The kernel's name.
        kernel: &'static str,
        /// The extents of the grid.
        grid: Vec<u128>,
        /// The extents of a block.
        block: Vec<u128>,
        /// The bytes of shared memory.
        shared: u128,
    },
    /// A block has more threads than the declaration's `bounds` allow.
    Bounds {
        /// The kernel's name.
        kernel: &'static str,
        /// The extents of a block.
        block: Vec<u128>,
        /// The most threads of a block.
        most: u32,
    },
    /// The device grants less shared memory than the launch asks for.
    SharedMemory {
        /// The kernel's name.
        kernel: &'static str,
        /// The bytes of dynamic shared memory that a block asks for.
        shared: u32,
        /// The most bytes that the device grants.
        granted: u32,
    },
    /// A buffer of a kernel without `unsafe` does not have as many elements as its extents say.
    Extents {
        /// The kernel's name.
        kernel: &'static str,
        /// The buffer's name.
        buffer: &'static str,
        /// The numbers of each element of the declaration: more than one if that is an array.
        count: usize,
        /// The extents of the declaration.
        extents: Vec<u128>,
        /// The number of elements in the buffer.
        len: u128,
    },
    /// A buffer of a kernel without `unsafe` starts where its elements cannot be one access.
    Alignment {
        /// The kernel's name.
        kernel: &'static str,
        /// The buffer's name.
        buffer: &'static str,
        /// The bytes to a multiple of which it must be aligned.
        bytes: usize,
    },
    /// A kernel without `unsafe` has 2^32 threads or more along one axis of its grid.
    Positions {
        /// The kernel's name.
        kernel: &'static str,
        /// The number of blocks along the axis.
        blocks: u32,
        /// The number of threads of a block along the axis.
        threads: u32,
    },
}

impl LaunchError {
    /// Makes the error of a launch whose arguments leave a predicate `unmet`.
    #[doc(hidden)]
    #[cold]
    pub fn requirement(kernel: &Kernel, unmet: Option<&'static str>, arguments: &[(&str, &dyn Debug)]) -> Self {
        let requirement = unmet.unwrap_or_default();
        let arguments = arguments.iter().map(|(name, v)| format!("{name} = {v:?}")).collect::<Vec<_>>().join(", ");
        Self::Requirement { kernel: kernel.name(), requirement, arguments }
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requirement { kernel, requirement, arguments } => {
                write!(f, "kernel `{kernel}` requires `{requirement}`, but was given {arguments}")
            }
            Self::Shape { kernel, grid, block, shared } => write!(
                f,
                "kernel `{kernel}` cannot be launched as grid {grid:?}, block {block:?}, {} of shared memory \
                 (a grid is at most [2147483647, 65535, 65535]; a block has 1 to 1024 threads, at most 64 of them in \
                 its third extent, and a multiple of 32 if its threads cooperate; shared memory is at most \
                 {MAX_SHARED} bytes)",
                counted(*shared, "byte")
            ),
            Self::Bounds { kernel, block, most } => write!(
                f,
                "kernel `{kernel}` declares bounds of {} for a block, but was launched with blocks of {block:?}",
                counted(*most, "thread")
            ),
            Self::SharedMemory { kernel, shared, granted } => write!(
                f,
                "kernel `{kernel}` asks for {} of shared memory for each block, but the device grants at most \
                 {granted}",
                counted(*shared, "byte")
            ),
            Self::Extents { kernel, buffer, count, extents, len } => {
                write!(f, "kernel `{kernel}` declares `{buffer}` with extents {extents:?}")?;
                if *count > 1 {
                    write!(f, " of {count} numbers each")?;
                }
                write!(f, ", but was given {} (their product is the length, below 2^32)", counted(*len, "element"))
            }
            Self::Alignment { kernel, buffer, bytes } => write!(
                f,
                "kernel `{kernel}` accesses {bytes} bytes of `{buffer}` at once, but was given a buffer that does not start \
                 on a multiple of {bytes} bytes"
            ),
            Self::Positions { kernel, blocks, threads } => write!(
                f,
                "kernel `{kernel}` cannot be launched with {} of {} along one axis: a kernel without `unsafe` has \
                 fewer than 2^32 threads there",
                counted(*blocks, "block"),
                counted(*threads, "thread")
            ),
        }
    }
}
impl std::error::Error for LaunchError {}
