//! The asynchronous copies of a thread that are not made yet.

use std::collections::VecDeque;

use crate::SharedMemory;

/// A copy to shared memory that was started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) to: SharedMemory<u8>,
    /// The address of the source, whose provenance is exposed, or `None` if the bytes become zero.
    pub(super) from: Option<usize>,
    /// 4, 8 or 16.
    pub(super) bytes: usize,
}

/// The copies of a thread, oldest first.
#[derive(Debug, Default)]
pub(super) struct Copies {
    groups: VecDeque<Vec<Pending>>,
    /// The copies since the last commit.
    open: Vec<Pending>,
}

impl Copies {
    pub(super) fn start(&mut self, copy: Pending) {
        self.open.push(copy);
    }

    /// Forgets all copies, such as those of a thread that failed.
    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.open.clear();
    }

    /// Makes a group of the copies since the last commit.
    pub(super) fn commit(&mut self) {
        self.groups.push_back(std::mem::take(&mut self.open));
    }

    /// Removes and returns the copies of all groups but the `pending` newest ones.
    pub(super) fn take(&mut self, pending: u32) -> Vec<Pending> {
        let done = self.groups.len().saturating_sub(pending as usize);
        self.groups.drain(..done).flatten().collect()
    }
}
