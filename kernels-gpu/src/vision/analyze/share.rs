//! The division of the pixels of a patch among its threads.

use crate::vision::patch::Patch;

/// The most rows that are added up without compensation. Four columns of that many bytes fit 16
/// bits.
const ROWS: u32 = 32;

/// The part of a patch that a thread takes: runs of rows, in groups of columns.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// Groups of columns in a row of the patch.
    pub(super) groups: u32,
    height: u32,
    /// Base-2 logarithm of the number of threads beside one another.
    across: u32,
    /// Base-2 logarithm of the number of threads above one another.
    down: u32,
    /// Rows of a run.
    pub(super) rows: u32,
    rank: u32,
}

impl Share {
    /// Computes the part of thread `rank` of `threads`, which is a power of two and at least 32.
    #[inline(always)]
    pub(super) fn new(area: Patch, groups: u32, rank: u32, threads: u32) -> Self {
        // All are powers of two, so shifts divide.
        let across = (32 - (groups - 1).leading_zeros()).min(5);
        let down = threads.trailing_zeros() - across;
        let rows = ((area.height + (1 << down) - 1) >> down).min(ROWS);
        Self { groups, height: area.height, across, down, rows, rank }
    }

    /// The first group of the thread, and the first row of its first run.
    #[inline(always)]
    pub(super) fn first(self) -> (u32, u32) {
        (self.rank & ((1 << self.across) - 1), (self.rank >> self.across) * self.rows)
    }

    /// Calls `visit` with the group, the first row and the end of the rows of each run of the
    /// thread.
    #[inline(always)]
    pub(super) fn every(self, visit: impl Fn(u32, u32, u32)) {
        let (mut group, first) = self.first();
        while group < self.groups {
            let mut top = first;
            while top < self.height {
                visit(group, top, (top + self.rows).min(self.height));
                top += self.rows << self.down;
            }
            group += 1 << self.across;
        }
    }
}
