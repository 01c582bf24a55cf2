//! Accesses to a piece of memory, as the shadow memory keeps them.

use crate::cpu::warp;

/// An access: who made it and when. 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record(u64);

const RANK: u32 = 26;
const BLOCK: u32 = 36;
const ATOMIC: u64 = 1 << 62;
const IN_BLOCK: u64 = 1 << 63;

/// The threads of a warp.
pub(super) const WARP: u32 = warp::WARP as u32;

/// The largest block and tick that records tell apart.
pub(super) const LAST: u32 = (1 << 26) - 1;

/// The set of other accesses that may conflict with an atomic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Atomicity {
    /// It is an ordinary access.
    None,
    /// It is atomic for the threads of its block.
    Block,
    /// It is atomic for all threads.
    Device,
}

impl Record {
    pub(super) const NONE: Self = Self(0);

    /// Makes the record of an access at `tick`, which is at least 1.
    pub(super) fn new(block: u32, rank: u32, tick: u32, atomicity: Atomicity) -> Self {
        let flags = match atomicity {
            Atomicity::None => 0,
            Atomicity::Block => ATOMIC | IN_BLOCK,
            Atomicity::Device => ATOMIC,
        };
        Self(u64::from(tick) | u64::from(rank) << RANK | u64::from(block) << BLOCK | flags)
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }
    pub(super) fn tick(self) -> u32 {
        self.0 as u32 & LAST
    }
    pub(super) fn rank(self) -> u32 {
        (self.0 >> RANK) as u32 & 1023
    }
    pub(super) fn warp(self) -> u32 {
        self.rank() / WARP
    }
    pub(super) fn block(self) -> u32 {
        (self.0 >> BLOCK) as u32 & LAST
    }
    pub(super) fn is_atomic(self) -> bool {
        self.0 & ATOMIC != 0
    }

    /// Whether accesses may meet the other record and race with this one, so that the other one
    /// does not stand for both: a plain access before an atomic one, or one for its block before
    /// one for the device.
    fn meets_fewer(self, other: Self) -> bool {
        let kind = |r: Self| if r.is_atomic() { 1 + u32::from(r.0 & IN_BLOCK == 0) } else { 0 };
        kind(self) < kind(other)
    }

    /// Whether both accesses are atomic for each other, so that they may meet.
    pub(super) fn may_meet(self, other: Self) -> bool {
        let narrow = (self.0 | other.0) & IN_BLOCK != 0;
        self.is_atomic() && other.is_atomic() && (self.block() == other.block() || !narrow)
    }
}

/// The accesses to a piece of memory that a later one may conflict with. There are at most two
/// loads and two stores, of different threads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    /// Stores, the latest first.
    pub(super) stores: [Record; 2],
    /// Loads, the latest first.
    pub(super) loads: [Record; 2],
    /// The lines of the stores and the loads, as numbers of the checker.
    pub(super) store_lines: [u16; 2],
    pub(super) load_lines: [u16; 2],
}

/// Notes `new` among the two accesses that are kept. `ordered` says whether an access happened
/// before the new one. Such an access can be forgotten: whoever races with it races with the new
/// one too. If three accesses are not ordered, this keeps the new one, and the one that differs
/// most from it in its block or its warp.
pub(super) fn note(kept: &mut [Record; 2], lines: &mut [u16; 2], new: (Record, u16), ordered: impl Fn(Record) -> bool) {
    let far = |r: Record| (r.block() != new.0.block(), r.warp() != new.0.warp());
    let live = |r: Record| !r.is_none() && (!ordered(r) || r.meets_fewer(new.0));
    let second = match (live(kept[0]), live(kept[1])) {
        (true, true) if far(kept[1]) > far(kept[0]) => Some(1),
        (true, _) => Some(0),
        (false, true) => Some(1),
        (false, false) => None,
    };
    let (record, line) = second.map_or((Record::NONE, 0), |i| (kept[i], lines[i]));
    (*kept, *lines) = ([new.0, record], [new.1, line]);
}

/// The cells of a piece of memory: one for each granule of `1 << shift` bytes.
#[derive(Debug)]
pub(super) struct Region {
    shift: u32,
    /// Pages of cells, which exist once they are used.
    pages: Vec<Option<Box<[Cell; PAGE]>>>,
}

const PAGE: usize = 256;

impl Region {
    pub(super) fn new(shift: u32) -> Self {
        Self { shift, pages: Vec::new() }
    }

    /// Returns the cells of `bytes` bytes from `offset` on. If the granules are too large for that,
    /// it splits all of them first.
    pub(super) fn granules(&mut self, offset: usize, bytes: usize) -> std::ops::Range<usize> {
        let fits = ((offset | bytes) >> self.shift) << self.shift == offset | bytes;
        if !fits {
            self.refine((offset | bytes).trailing_zeros());
        }
        offset >> self.shift..(offset + bytes) >> self.shift
    }

    /// The first byte of a granule.
    pub(super) fn byte(&self, granule: usize) -> usize {
        granule << self.shift
    }

    #[inline]
    pub(super) fn cell(&mut self, granule: usize) -> &mut Cell {
        let page = granule / PAGE;
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let cells = self.pages[page].get_or_insert_with(|| Box::new([Cell::default(); PAGE]));
        &mut cells[granule % PAGE]
    }

    fn refine(&mut self, shift: u32) {
        let parts = 1 << (self.shift - shift);
        let mut fine = Self::new(shift);
        for (page, cells) in std::mem::take(&mut self.pages).into_iter().enumerate() {
            for (i, cell) in cells.iter().flat_map(|cells| cells.iter()).enumerate() {
                for part in 0..parts {
                    *fine.cell((page * PAGE + i) * parts + part) = *cell;
                }
            }
        }
        *self = fine;
    }
}
