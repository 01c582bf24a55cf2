//! Which memory is there: allocations, page-locked memory, and what was freed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::race::Call;

/// The kind of memory that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Live {
    Device,
    PageLocked,
}

/// Bytes that a call freed.
#[derive(Clone, Debug)]
pub(super) struct Freed {
    pub(super) end: u64,
    pub(super) call: Arc<Call>,
}

/// The memory of a log at one moment.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Disjoint ranges, by their starts.
    live: BTreeMap<u64, (u64, Live)>,
    /// Disjoint ranges that were freed and not allocated since.
    freed: BTreeMap<u64, Freed>,
    /// Addresses by which kernels access page-locked memory that has another one on the host.
    mapped: BTreeMap<u64, (u64, u64)>,
}

impl Memory {
    /// Adds memory.
    pub(super) fn add(&mut self, bytes: Range<u64>, kind: Live) {
        self.allocated_again(&bytes);
        let old: Vec<u64> = overlapping(&self.live, &bytes, |&(end, _)| end).map(|(start, _)| start).collect();
        old.iter().for_each(|start| _ = self.live.remove(start));
        self.live.insert(bytes.start, (bytes.end, kind));
    }

    /// Adds device memory that other code allocated, unless it is there.
    pub(super) fn adopt(&mut self, bytes: Range<u64>) {
        if self.live.get(&bytes.start).is_none_or(|&(_, kind)| kind != Live::Device) {
            self.add(bytes, Live::Device);
        }
    }

    /// Forgets that these bytes were freed, and not those around them.
    fn allocated_again(&mut self, bytes: &Range<u64>) {
        let starts: Vec<u64> = overlapping(&self.freed, bytes, |freed| freed.end).map(|(start, _)| start).collect();
        for start in starts {
            let Some(freed) = self.freed.remove(&start) else { continue };
            if start < bytes.start {
                self.freed.insert(start, Freed { end: bytes.start, ..freed.clone() });
            }
            if bytes.end < freed.end {
                self.freed.insert(bytes.end, freed);
            }
        }
    }

    /// Removes memory that begins here. Returns its end.
    pub(super) fn remove(&mut self, start: u64, kind: Live) -> Option<u64> {
        let &(end, found) = self.live.get(&start)?;
        (found == kind).then(|| self.live.remove(&start))?;
        let maps: Vec<u64> = self.mapped.iter().filter(|(_, to)| to.1 == start).map(|(&at, _)| at).collect();
        maps.iter().for_each(|at| _ = self.mapped.remove(at));
        Some(end)
    }

    /// Notes that the bytes were freed.
    pub(super) fn freed(&mut self, start: u64, freed: Freed) {
        self.allocated_again(&(start..freed.end));
        self.freed.insert(start, freed);
    }

    /// Notes that kernels access the page-locked memory of `addr` at `at`.
    pub(super) fn map(&mut self, addr: u64, at: u64) {
        if let Some((&start, &(end, Live::PageLocked))) = self.live.range(..=addr).next_back()
            && addr < end
            && let Some(first) = at.checked_sub(addr - start)
        {
            self.mapped.insert(first, (first.saturating_add(end - start), start));
        }
    }

    /// The address on the host of what kernels access at `addr`.
    pub(super) fn on_host(&self, addr: u64) -> u64 {
        match self.mapped.range(..=addr).next_back() {
            Some((&start, &(end, to))) if addr < end => to + (addr - start),
            _ => addr,
        }
    }

    /// Returns true if the whole range is page-locked memory.
    pub(super) fn is_page_locked(&self, bytes: &Range<u64>) -> bool {
        let last = self.live.range(..=bytes.start).next_back();
        last.is_some_and(|(_, &(end, kind))| bytes.end <= end && kind == Live::PageLocked)
    }

    /// The free of one of these bytes, and the bytes that it freed of them.
    pub(super) fn find_freed(&self, bytes: &Range<u64>) -> Option<(Range<u64>, &Freed)> {
        let (start, freed) = overlapping(&self.freed, bytes, |freed| freed.end).next()?;
        Some((start.max(bytes.start)..freed.end.min(bytes.end), freed))
    }
}

/// The entries of a map of disjoint ranges that overlap these bytes.
fn overlapping<'m, T>(
    map: &'m BTreeMap<u64, T>,
    bytes: &Range<u64>,
    end: impl Fn(&T) -> u64 + 'm,
) -> impl Iterator<Item = (u64, &'m T)> {
    let before = map.range(..bytes.start).next_back();
    let start = bytes.start;
    let before = before.filter(move |(_, entry)| end(entry) > start);
    before.into_iter().chain(map.range(bytes.clone())).map(|(&start, entry)| (start, entry))
}
