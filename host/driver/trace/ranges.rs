//! Who accessed which bytes last: a map of disjoint ranges.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::clock::{Clock, Line};
use super::race::{Call, Race, Wrong};

/// An access: the line that made it, its number there, and the call.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) line: Line,
    pub(super) time: u32,
    pub(super) call: Arc<Call>,
}

impl Mark {
    fn is_known(&self, known: &Clock) -> bool {
        self.time <= known.of(self.line)
    }
}

/// The accesses to the bytes of a range that a later one may conflict with.
#[derive(Clone, Debug, Default)]
struct Accessed {
    end: u64,
    write: Option<Mark>,
    /// The last read of each line since the write.
    reads: Vec<Mark>,
}

/// An earlier access that nothing orders with a new one.
#[derive(Debug)]
pub(super) struct Conflict {
    pub(super) earlier: Mark,
    pub(super) earlier_writes: bool,
    /// The bytes that both access, or a part of them.
    pub(super) bytes: Range<u64>,
}

impl Conflict {
    /// The report of the conflict with a later access.
    pub(super) fn race(self, writes: bool, later: Arc<Call>) -> Box<Race> {
        let wrong = Wrong::Unordered { earlier: self.earlier.call, writes: [self.earlier_writes, writes] };
        Box::new(Race { wrong, bytes: self.bytes, later })
    }
}

/// The accesses to all bytes, by the starts of their ranges.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, Accessed>);

impl Ranges {
    /// Makes `addr` a boundary.
    fn cut(&mut self, addr: u64) {
        let Some((&start, accessed)) = self.0.range_mut(..addr).next_back() else { return };
        if start < addr && addr < accessed.end {
            let right = accessed.clone();
            accessed.end = addr;
            self.0.insert(addr, right);
        }
    }

    /// Adds an access by a line that knows `known`. Afterwards the map has it, conflict or not.
    pub(super) fn access(&mut self, bytes: Range<u64>, writes: bool, mark: &Mark, known: &Clock) -> Option<Conflict> {
        self.cut(bytes.start);
        self.cut(bytes.end);
        let (mut conflict, mut gaps, mut next) = (None, Vec::new(), bytes.start);
        // The ranges behind the first one, if this access makes one range of all.
        let mut covered = Vec::new();
        for (&start, accessed) in self.0.range_mut(bytes.clone()) {
            if next < start {
                gaps.push((next, start));
            }
            next = accessed.end;
            let unknown = |mark: &&Mark| !mark.is_known(known);
            let write = accessed.write.iter().find(unknown).map(|mark| (mark, true));
            let found = write.or_else(|| accessed.reads.iter().filter(|_| writes).find(unknown).map(|m| (m, false)));
            if let (None, Some((earlier, earlier_writes))) = (&conflict, found) {
                conflict = Some(Conflict { earlier: earlier.clone(), earlier_writes, bytes: start..accessed.end });
            }
            if !writes {
                // A read that comes before this one need not be kept.
                accessed.reads.retain(|read| !read.is_known(known));
                accessed.reads.push(mark.clone());
            } else if start == bytes.start {
                *accessed = Accessed { end: bytes.end, write: Some(mark.clone()), reads: Vec::new() };
            } else {
                covered.push(start);
            }
        }
        if writes {
            covered.iter().for_each(|start| _ = self.0.remove(start));
            let whole = || Accessed { end: bytes.end, write: Some(mark.clone()), reads: Vec::new() };
            if gaps.first().is_some_and(|gap| gap.0 == bytes.start) || next == bytes.start {
                self.0.insert(bytes.start, whole());
            }
            return conflict;
        }
        if next < bytes.end {
            gaps.push((next, bytes.end));
        }
        for (start, end) in gaps {
            self.0.insert(start, Accessed { end, write: None, reads: vec![mark.clone()] });
        }
        conflict
    }

    /// Forgets all accesses to these bytes.
    pub(super) fn forget(&mut self, bytes: Range<u64>) {
        self.cut(bytes.start);
        self.cut(bytes.end);
        let gone: Vec<u64> = self.0.range(bytes).map(|(&start, _)| start).collect();
        gone.iter().for_each(|start| _ = self.0.remove(start));
    }
}
