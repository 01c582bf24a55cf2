//! Who watches the accesses of a thread: nobody, or the checked device.

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

/// How an operation uses the memory that it accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// An ordinary load.
    Read,
    /// An ordinary store.
    Write,
    /// An atomic operation.
    Atomic {
        /// What it does to the memory.
        kind: Kind,
        /// What it orders.
        order: Order,
        /// Between which threads it is atomic.
        scope: Scope,
    },
}

/// What an atomic operation does to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Load,
    Store,
    /// It loads and stores, or may store.
    Update,
}

/// What an atomic operation orders.
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
