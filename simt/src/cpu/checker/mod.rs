//! The checked device: shadow memory for the accesses of a launch.
//!
//! A launch gets a `Checker`, which sees each access before it happens. The blocks of the launch
//! run one after another on one OS thread. So the checker needs no locks, and a seed repeats what
//! happened.
//!
//! **Addresses.** The entry of the kernel gets *tagged* addresses: bits 56 to 63 hold the number of
//! the parameter, counted from 1. So an access past the end of one buffer is not mistaken for an
//! access to its neighbor, although both may be pieces of one allocation.
//!
//! **Written or not.** Each byte of an allocation has a flag, which copies, fills and kernels set
//! (see [`memory`]). Shared memory counts as not written when a block starts.
//!
//! **Races.** Each granule of memory keeps its latest accesses (`record::Cell`). A record holds
//! the block, the thread and a *tick*, which counts the barriers of the block. An access is ordered
//! after a recorded one if the thread is the same, or if a barrier of the block or of the warp lies
//! between them, or if the thread acquired what the other one released (`clock`). A pair that is
//! not ordered is a race, unless both only load or both are atomic. Buffers that are `In` need no
//! records: the types of the launcher say that nobody writes them. Which accesses race does not
//! depend on the order in which threads happen to run, except for atomic operations and branches
//! that depend on racing values; the permuted orders are for those.

mod clock;
mod finding;
pub mod memory;
mod record;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::{self, Location};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use clock::{Clock, Past};
pub use finding::{Finding, Other, Use};
use memory::Flags;
use record::{Atomicity, LAST, Record, Region, WARP, note};

use super::monitor::{Access, Kind, Order, Scope};
use crate::host::Parameter;
use crate::violation::{Violation, Wrong};

/// The lowest bit of an address that holds the number of the parameter.
const TAG: u32 = 56;

/// The panic payload of an access that the checker does not allow.
pub(super) struct Found {
    pub(super) location: &'static Location<'static>,
    pub(super) finding: Finding,
}

/// The shadow memory of a launch.
pub(super) struct Checker {
    state: RefCell<State>,
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}

/// A buffer of the launch.
struct Buffer {
    name: &'static str,
    address: usize,
    len: usize,
    /// The size of an element.
    size: usize,
    /// The flags of the allocation. Memory that no checked device allocated has none and counts as
    /// written.
    flags: Option<Arc<Flags>>,
    /// The records of accesses, if the kernel may write the buffer.
    region: Option<Region>,
}

struct State {
    buffers: Vec<Option<Buffer>>,
    shared: Region,
    now: Now,
    lines: Lines,
    /// The clock that was released at an address, and the part of it that a relaxed operation
    /// passes on.
    released: HashMap<usize, Clock>,
    grid: [u32; 3],
    block: [u32; 3],
}

/// The moment of the block that runs.
struct Now {
    block: u32,
    tick: u32,
    /// Accesses before this tick are ordered for the whole block.
    barrier: u32,
    /// Accesses before these ticks are ordered for a warp.
    warps: Vec<u32>,
    /// The clocks that threads know by acquires. Most kernels have none.
    known: HashMap<u32, Clock>,
    /// The clocks that relaxed operations have seen, until a fence acquires them.
    seen: HashMap<u32, Clock>,
    /// The clock that a fence released, for the relaxed operations after it.
    fenced: HashMap<u32, Clock>,
}

impl Now {
    fn new(block: u32, threads: u32) -> Self {
        Self {
            block,
            tick: 1,
            barrier: 0,
            warps: vec![0; threads.div_ceil(WARP) as usize],
            known: HashMap::new(),
            seen: HashMap::new(),
            fenced: HashMap::new(),
        }
    }

    /// Whether an earlier access is ordered before the next one of thread `rank`.
    #[inline]
    fn is_after(&self, access: Record, rank: u32) -> bool {
        if access.block() == self.block {
            let (warp, tick) = (rank / WARP, access.tick());
            if access.rank() == rank || tick < self.barrier {
                return true;
            }
            if access.warp() == warp && tick < self.warps[warp as usize] {
                return true;
            }
        }
        !self.known.is_empty() && self.known.get(&rank).is_some_and(|clock| clock.knows(access))
    }

    /// Returns the clock that thread `rank` makes visible if it releases now.
    fn past(&self, rank: u32) -> Clock {
        let mut clock = self.known.get(&rank).cloned().unwrap_or_default();
        clock.add(Past {
            block: self.block,
            rank,
            of_block: self.barrier,
            of_warp: self.warps[(rank / WARP) as usize],
            own: self.tick + 1,
        });
        clock
    }

    fn advance(&mut self) -> u32 {
        self.tick = (self.tick + 1).min(LAST);
        self.tick
    }

    /// Gives each thread of `ranks` what any of them knows.
    fn pool(&mut self, ranks: std::ops::Range<u32>) {
        if self.known.is_empty() {
            return;
        }
        let mut all = Clock::default();
        ranks.clone().filter_map(|rank| self.known.get(&rank)).for_each(|clock| all.join(clock));
        self.known.extend(ranks.map(|rank| (rank, all.clone())));
    }
}

/// The lines of the kernel that access memory, by small numbers.
struct Lines {
    all: Vec<&'static Location<'static>>,
    numbers: HashMap<usize, u16>,
    last: (usize, u16),
}

impl Lines {
    #[inline]
    fn number(&mut self, location: &'static Location<'static>) -> u16 {
        let address = std::ptr::from_ref(location).addr();
        if self.last.0 != address {
            let number = *self.numbers.entry(address).or_insert_with(|| {
                // With so many lines, the last one stands for the rest.
                let number = self.all.len().min(usize::from(u16::MAX));
                self.all.truncate(number);
                self.all.push(location);
                number as u16
            });
            self.last = (address, number);
        }
        self.last.1
    }
}

/// The effect of an access on its record.
#[derive(Clone, Copy)]
struct Effect {
    reads: bool,
    writes: bool,
    atomicity: Atomicity,
}

impl From<Access> for Effect {
    #[inline]
    fn from(access: Access) -> Self {
        let (reads, writes, atomicity) = match access {
            Access::Read => (true, false, Atomicity::None),
            Access::Write => (false, true, Atomicity::None),
            Access::Atomic { kind, scope, .. } => {
                let atomicity = if scope == Scope::Block { Atomicity::Block } else { Atomicity::Device };
                (kind != Kind::Store, kind != Kind::Load, atomicity)
            }
        };
        Self { reads, writes, atomicity }
    }
}

/// An access of a thread: who makes it, how and where.
#[derive(Clone, Copy)]
struct By {
    rank: u32,
    access: Access,
    line: u16,
}

/// The records that an access races with.
struct Clash {
    granule: usize,
    store: bool,
    other: Record,
    line: u16,
}

/// Notes an access in the records of a region. `live` says which records count.
fn record(
    region: &mut Region,
    now: &Now,
    range: std::ops::Range<usize>,
    by: By,
    live: impl Fn(Record) -> bool,
) -> Result<(), Clash> {
    let how = Effect::from(by.access);
    let new = Record::new(now.block, by.rank, now.tick, how.atomicity);
    let ordered = |r: Record| r.is_none() || !live(r) || now.is_after(r, by.rank);
    for granule in range {
        let cell = region.cell(granule);
        for i in 0..2 {
            let other = cell.stores[i];
            if !ordered(other) && !new.may_meet(other) {
                return Err(Clash { granule, store: true, other, line: cell.store_lines[i] });
            }
            let other = cell.loads[i];
            if how.writes && !ordered(other) && !new.may_meet(other) {
                return Err(Clash { granule, store: false, other, line: cell.load_lines[i] });
            }
        }
        if how.writes {
            note(&mut cell.stores, &mut cell.store_lines, (new, by.line), ordered);
        } else {
            note(&mut cell.loads, &mut cell.load_lines, (new, by.line), ordered);
        }
    }
    Ok(())
}

impl Checker {
    /// Makes the checker of a launch, and tags the addresses in its slots.
    pub(super) fn new(parameters: &[Parameter], mut slots: &mut [u64], grid: [u32; 3], block: [u32; 3]) -> Self {
        let mut buffers = Vec::new();
        for (parameter, tag) in parameters.iter().zip(1..) {
            let (own, rest) = slots.split_at_mut(parameter.slots());
            slots = rest;
            buffers.push(parameter.buffer().map(|kind| {
                let (address, len) = (own[0] as usize, own[1] as usize);
                own[0] |= tag << TAG;
                let region = kind.written.then(|| Region::new(kind.element.trailing_zeros().min(3)));
                let flags = memory::find(address);
                Buffer { name: parameter.name(), address, len, size: kind.element, flags, region }
            }));
        }
        let lines = Lines { all: Vec::new(), numbers: HashMap::new(), last: (0, 0) };
        let threads = block.iter().product();
        let state = State {
            buffers,
            shared: Region::new(2),
            now: Now::new(0, threads),
            lines,
            released: HashMap::new(),
            grid,
            block,
        };
        Self { state: RefCell::new(state) }
    }

    /// Notes that block `block`, counted along `x`, `y` and `z`, starts.
    pub(super) fn start(&self, block: u32) {
        let state = &mut *self.state.borrow_mut();
        state.now = Now::new(block, state.block.iter().product());
    }

    /// Notes that all threads of the block met at a barrier.
    pub(super) fn barrier(&self) {
        let state = &mut *self.state.borrow_mut();
        state.now.barrier = state.now.advance();
        state.now.pool(0..state.block.iter().product());
    }

    /// Notes that all threads of a warp met at a barrier.
    pub(super) fn warp_barrier(&self, warp: u32) {
        let now = &mut self.state.borrow_mut().now;
        now.warps[warp as usize] = now.advance();
        now.pool(WARP * warp..WARP * warp + WARP);
    }

    /// Notes that the lanes of a mask met at a barrier of their own.
    pub(super) fn lanes_barrier(&self, warp: u32, mask: u32) {
        if mask == u32::MAX {
            return self.warp_barrier(warp);
        }
        let now = &mut self.state.borrow_mut().now;
        let lanes = || (0..WARP).filter(|lane| mask >> lane & 1 == 1).map(|lane| WARP * warp + lane);
        let mut all = Clock::default();
        lanes().for_each(|rank| all.join(&now.past(rank)));
        lanes().for_each(|rank| now.known.entry(rank).or_default().join(&all));
        now.advance();
    }

    /// Notes a fence of thread `rank`.
    pub(super) fn fence(&self, rank: u32) {
        let now = &mut self.state.borrow_mut().now;
        if let Some(seen) = now.seen.get(&rank) {
            now.known.entry(rank).or_default().join(seen);
        }
        let past = now.past(rank);
        now.fenced.insert(rank, past);
        now.advance();
    }

    /// Checks an access to global memory and returns the address without the tag.
    #[inline(never)]
    pub(super) fn global(
        &self,
        rank: u32,
        tagged: usize,
        bytes: usize,
        align: usize,
        access: Access,
        location: &'static Location<'static>,
    ) -> usize {
        let outcome = self.state.borrow_mut().global(rank, tagged, bytes, align, access, location);
        match outcome {
            Ok(address) => address,
            Err(Bad::Outside { element, address, len }) => {
                panic::resume_unwind(Box::new(Violation { location, what: Wrong::Outside { element, address, len } }))
            }
            Err(Bad::Found(finding)) => panic::resume_unwind(Box::new(Found { location, finding })),
        }
    }

    /// Checks an access to `bytes` bytes of shared memory from `start` on, which are inside it.
    /// They are element `i` and its successors of a window that starts at byte `window`.
    #[inline(never)]
    pub(super) fn shared(
        &self,
        rank: u32,
        (window, i, size): (u32, u32, usize),
        bytes: usize,
        access: Access,
        location: &'static Location<'static>,
    ) {
        let state = &mut *self.state.borrow_mut();
        let line = state.lines.number(location);
        let by = By { rank, access, line };
        let how = Effect::from(access);
        let start = window as usize + i as usize * size;
        let block = state.now.block;
        let describe = |byte: usize| {
            let element = (byte - window as usize) / size;
            format!("element {element} of the window at byte {window} of shared memory")
        };
        let range = state.shared.granules(start, bytes);
        if how.reads
            && let Some(granule) = range.clone().find(|&granule| {
                let store = state.shared.cell(granule).stores[0];
                store.is_none() || store.block() != block
            })
        {
            let memory = describe(state.shared.byte(granule).max(start));
            panic::resume_unwind(Box::new(Found { location, finding: Finding::Unwritten { memory } }));
        }
        if let Err(clash) = record(&mut state.shared, &state.now, range, by, |r| r.block() == block) {
            let memory = describe(state.shared.byte(clash.granule).max(start));
            let finding = state.race(memory, by, clash);
            panic::resume_unwind(Box::new(Found { location, finding }));
        }
        // The top bit tells addresses of shared memory from those of global memory.
        state.synchronize(rank, start | 1 << 63, access);
    }
}

/// The defect of an access to global memory.
enum Bad {
    Outside { element: usize, address: usize, len: usize },
    Found(Finding),
}

impl State {
    fn global(
        &mut self,
        rank: u32,
        tagged: usize,
        bytes: usize,
        align: usize,
        access: Access,
        location: &'static Location<'static>,
    ) -> Result<usize, Bad> {
        let (tag, address) = (tagged >> TAG, tagged & ((1 << TAG) - 1));
        let how = Effect::from(access);
        let found = |finding| Err(Bad::Found(finding));
        let Some(buffer) = tag.checked_sub(1).and_then(|i| self.buffers.get_mut(i)?.as_mut()) else {
            // Constants of the kernel's crate have no tag.
            let constant = tag == 0 && !how.writes;
            if constant && !address.is_multiple_of(align) {
                return found(Finding::Misaligned { memory: "a constant".into(), align });
            }
            return if constant { Ok(address) } else { found(Finding::NoBuffer { address }) };
        };
        let describe = |byte: usize| format!("element {} of `{}`", (byte - buffer.address) / buffer.size, buffer.name);
        let offset = address.wrapping_sub(buffer.address);
        let end = buffer.len * buffer.size;
        if offset > end || bytes > end - offset {
            let past = if (offset as isize) < 0 { offset } else { offset.max(end) };
            let element = (past as isize).div_euclid(buffer.size as isize) as usize;
            return Err(Bad::Outside { element, address: buffer.address | tag << TAG, len: buffer.len });
        }
        if !address.is_multiple_of(align) {
            return found(Finding::Misaligned { memory: describe(address), align });
        }
        if how.reads
            && let Some(flags) = &buffer.flags
            && let Some(byte) = flags.first_unwritten(address, bytes)
        {
            return found(Finding::Unwritten { memory: describe(byte) });
        }
        let Some(region) = &mut buffer.region else {
            return if how.writes { found(Finding::ReadOnly { memory: describe(address) }) } else { Ok(address) };
        };
        if how.writes
            && let Some(flags) = &buffer.flags
        {
            flags.range(address, bytes).iter().for_each(|flag| flag.store(1, Relaxed));
        }
        let by = By { rank, access, line: self.lines.number(location) };
        let range = region.granules(offset, bytes);
        if let Err(clash) = record(region, &self.now, range, by, |_| true) {
            let memory = describe(buffer.address + region.byte(clash.granule).max(offset));
            let finding = self.race(memory, by, clash);
            return found(finding);
        }
        self.synchronize(rank, address, access);
        Ok(address)
    }

    /// Follows what an atomic operation releases and acquires.
    #[inline]
    fn synchronize(&mut self, rank: u32, address: usize, access: Access) {
        let Access::Atomic { kind, order, .. } = access else { return };
        let Self { now, released, .. } = self;
        let (acquires, releases) = match order {
            Order::Relaxed => (false, false),
            Order::Acquire => (true, false),
            Order::Release => (false, true),
            Order::AcquireRelease => (true, true),
        };
        if kind != Kind::Store
            && let Some(clock) = released.get(&address)
        {
            let to = if acquires { &mut now.known } else { &mut now.seen };
            to.entry(rank).or_default().join(clock);
        }
        if kind == Kind::Load {
            return;
        }
        if kind == Kind::Store {
            // A store by which nobody releases ends the chain of releases before it.
            released.remove(&address);
        }
        if releases {
            released.entry(address).or_default().join(&now.past(rank));
            now.advance();
        } else if let Some(fenced) = now.fenced.get(&rank) {
            released.entry(address).or_default().join(fenced);
        }
    }

    #[cold]
    fn race(&self, memory: String, by: By, clash: Clash) -> Finding {
        let used = |record: Record, store: bool| match (record.is_atomic(), store) {
            (true, _) => Use::Atomic,
            (false, true) => Use::Store,
            (false, false) => Use::Load,
        };
        let position = |i: u32, [x, y, _]: [u32; 3]| [i % x, i / x % y, i / (x * y)];
        let how = Effect::from(by.access);
        let access = used(Record::new(0, 0, 1, how.atomicity), how.writes);
        let other = Other {
            access: used(clash.other, clash.store),
            block: position(clash.other.block(), self.grid),
            thread: position(clash.other.rank(), self.block),
            location: self.lines.all[usize::from(clash.line)],
        };
        Finding::Race { memory, access, other }
    }
}
