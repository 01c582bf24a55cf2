//! The memory that blocks need while they run, kept from one block to the next.

use std::fmt;

use corosensei::stack::DefaultStack;

use super::warp::Lane;

/// Coroutine stacks and shared memory, kept from block to block. OS threads that run blocks at the
/// same time need a workspace each.
///
/// A workspace grows to what the largest block so far needed. The stack of a cooperative thread has
/// 128 KiB. A body that overflows it reaches a guard page, which ends the process as any stack
/// overflow does.
#[derive(Default)]
pub struct BlockWorkspace {
    pub(super) fibers: FiberSpace,
    pub(super) shared: Vec<u128>,
}

/// The stacks and the lanes of the coroutines of a block.
#[derive(Default)]
pub(super) struct FiberSpace {
    pub(super) stacks: Vec<DefaultStack>,
    pub(super) lanes: Vec<Lane>,
}

impl BlockWorkspace {
    /// Makes an empty workspace.
    #[must_use]
    pub const fn new() -> Self {
        Self { fibers: FiberSpace { stacks: Vec::new(), lanes: Vec::new() }, shared: Vec::new() }
    }
}

impl fmt::Debug for BlockWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace")
            .field("stacks", &self.fibers.stacks.len())
            .field("shared", &size_of_val(&*self.shared))
            .finish()
    }
}
