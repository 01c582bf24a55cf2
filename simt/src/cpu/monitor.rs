//! The monitor of the accesses of a thread: nobody, or the checked device.

use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}
}

/// Whether the accesses of a thread are checked. Each kernel has an entry for either kind, so the
/// ordinary CPU device pays nothing for the checks.
pub trait Monitor: sealed::Sealed + Copy + Debug + 'static {
    /// Whether each access goes to the checker of the launch.
    const CHECKED: bool;
}

/// The monitor of the ordinary CPU device, which lets every access pass.
#[derive(Clone, Copy, Debug)]
pub enum Unchecked {}

impl sealed::Sealed for Unchecked {}
impl Monitor for Unchecked {
    const CHECKED: bool = false;
}

/// The monitor of the checked device.
#[derive(Clone, Copy, Debug)]
pub enum Checked {}

impl sealed::Sealed for Checked {}
impl Monitor for Checked {
    const CHECKED: bool = true;
}

/// The kind of an operation's access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// An ordinary load.
    Read,
    /// An ordinary store.
    Write,
    /// An atomic operation.
    Atomic {
        /// The effect on the memory.
        kind: Kind,
        /// The ordering of the operation.
        order: Order,
        /// Between which threads it is atomic.
        scope: Scope,
    },
}

/// The effect of an atomic operation on the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Load,
    Store,
    /// It loads and stores, or may store.
    Update,
}

/// The ordering of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

/// The threads for which an operation is atomic or ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Block,
    Device,
}
