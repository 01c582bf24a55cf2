//! The transitions that a program can make, and the calls that the crate makes for each. A rule
//! that can be broken on purpose is one `if`. The clocks of `happens_before` judge the accesses.

use crate::happens_before::{Clock, HOST, HappensBefore, KEEPER, Log, Point, Race, STREAMS};

/// The stream of the second branch of a fork. Only searches with two other streams have forks.
const BRANCH: usize = 2;

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    None,
    RecordMissing,
    WaitMissing,
    HandOffWithoutWait,
    HandOffWithoutRecord,
    OneHandOffEventForAll,
    SynchronizeDoesNotWait,
    StreamNotChecked,
    DropFreesAtOnce,
    EventDropFreesAtOnce,
    PoolLendsEarly,
    EventLentWhileLeased,
    ReadingSkipsProducer,
    BindSkipsProducer,
    ReadingEndNotRecorded,
    OnlyLastReaderKept,
    OldestReaderKept,
    TurnAfterRecord,
    NoTurns,
    UnshareSkipsReaders,
    UnshareSkipsProducer,
    FailedUnshareForgetsReaders,
    UnshareWhileRead,
    SharedDropSkipsReaders,
    SharedDropSkipsProducer,
    PieceForgetsItsEvent,
    PieceFreesWhole,
    LastPieceFreesAlone,
    EventsOfPiecesForgotten,
    JoinAcrossStreams,
    ReplayBesideInputs,
    ReplayBesideLater,
    GraphComparesAddresses,
    ForkDoesNotWait,
    JoinDoesNotWait,
    BothBranchesWrite,
    /// Promises of the driver that it does not keep.
    AllocatorDoesNotOrder,
    ReplaysOverlap,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Value {
    /// Granules `lo..hi` of a block. `split` if it is a piece.
    Buf {
        block: u8,
        lo: u8,
        hi: u8,
        split: Option<u8>,
    },
    Shared(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Place {
    Idle,
    On(u8),
    /// Behind the event in this cell.
    Event(u8),
    /// Between the two calls of `hand_off`, from and to.
    HandingOff(u8, u8),
    /// In the middle of the end of a read on a stream: its turn and its event, as far as it has
    /// them.
    Ending(u8, Option<u8>, Option<u8>),
    /// Lent to the second branch of a fork of this stream, which alone may use it.
    Branch(u8),
    /// Lent to both branches of a fork of this stream, which only read it.
    Branches(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Handle {
    pub value: Value,
    pub place: Place,
}

/// An event of the driver. It is in the pool when nobody holds it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cell {
    /// The newest record; `None` for an event that was never recorded, for which nobody waits.
    pub point: Option<Point>,
    /// Back in the pool although somebody holds it (only with a broken rule).
    pub stolen: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Life {
    Unused,
    Live,
    /// A free device block, with the point of its free.
    Freed(Point),
    /// A page-locked block in its pool, which may be lent after these events.
    Pooled(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sharing {
    pub value: Value,
    pub producer: u8,
    pub holders: u8,
    /// For each stream the turn and the event of its newest read.
    pub readers: [Option<(u8, u8)>; STREAMS],
    pub turns: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Split {
    pub block: u8,
    pub pieces: u8,
    pub after: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Graph {
    /// The captured buffer.
    pub value: Value,
    /// Whether it was a part of a shared resource, which the graph only reads.
    pub shared: bool,
    /// Whether the allocation was freed since then.
    pub stale: bool,
    pub last: Option<Point>,
}

/// The transitions that a search allows, and its bounds.
#[derive(Clone, Copy, Default)]
pub struct Allow {
    pub streams: u8,
    pub device: u8,
    pub pinned: u8,
    pub share: bool,
    pub split: bool,
    pub graph: bool,
    pub copies: bool,
    pub unzip: bool,
    pub fork: bool,
    /// Calls of the driver fail in the middle of a transition, and the value comes back.
    pub failures: bool,
    /// `hand_off`, and the end of a read, in the steps that other threads can see.
    pub steps: bool,
    /// Leave out what other searches cover.
    pub no_host: bool,
    pub no_drop: bool,
    pub no_hand_off: bool,
    pub no_record: bool,
    pub no_forget: bool,
    pub handles: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    Alloc {
        s: u8,
        block: u8,
    },
    Lend {
        block: u8,
    },
    HostRead(usize),
    HostWrite(usize),
    Bind(usize, u8),
    Write(usize),
    Read(usize),
    Copy(usize, usize),
    Record(usize),
    RecordUnzip(usize, usize),
    Wait(usize, u8),
    HandOff(usize, u8),
    HandOffBegin(usize, u8),
    HandOffEnd(usize),
    Synchronize(usize),
    Drop(usize),
    Forget(usize),
    Share(usize),
    Clone(usize),
    Reading(usize, u8),
    Unshare(usize, u8),
    /// `hand_off` whose wait fails.
    HandOffFails(usize, u8),
    /// `unshare` whose last wait fails.
    UnshareFails(usize, u8),
    /// A list of events of dropped pieces loses those that are complete.
    Prune(usize),
    /// The first buffer is lent to the second branch, and the second one, if any, to both.
    Fork(usize, Option<usize>),
    BranchWrite(usize),
    BranchRead(usize),
    JoinBranches(u8),
    EndTurn(usize),
    EndRecord(usize),
    EndStore(usize),
    Split(usize),
    Join(usize, usize),
    Capture(usize),
    Replay(usize, usize),
    /// With a broken rule: an operation of another stream takes the buffer.
    WriteFrom(usize, u8),
}

/// A reason why a program is wrong.
#[derive(Clone, Copy, Debug)]
pub enum Bad {
    Race(Race),
    /// A block is used while nobody owns it.
    Dead(u8),
    /// A graph runs on memory that was freed after the capture.
    Stale,
}

impl From<Race> for Bad {
    fn from(race: Race) -> Self {
        Self::Race(race)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub hb: HappensBefore,
    pub handles: Vec<Handle>,
    pub cells: Vec<Cell>,
    pub own: [Option<Point>; STREAMS],
    pub blocks: Vec<Life>,
    pub shared: Vec<Sharing>,
    pub splits: Vec<Split>,
    pub graphs: Vec<Graph>,
    /// The stream that has forked, until it joins.
    pub forked: Option<u8>,
    /// Streams are used for the first time in order, because they are alike.
    pub used: u8,
}

pub struct Run<'a> {
    pub broken: Broken,
    pub allow: &'a Allow,
    pub log: Log,
}

type Done<T = ()> = Result<T, Bad>;

impl State {
    pub fn new(allow: &Allow) -> Self {
        let blocks = (allow.device + allow.pinned) as usize;
        let mut hb = HappensBefore::default();
        hb.memory.resize(blocks * 2, Default::default());
        Self {
            hb,
            handles: Vec::new(),
            cells: Vec::new(),
            own: [None; STREAMS],
            blocks: vec![Life::Unused; blocks],
            shared: Vec::new(),
            splits: Vec::new(),
            graphs: Vec::new(),
            forked: None,
            used: 0,
        }
    }

    // --- leases ---

    fn holders(&self, cell: u8) -> usize {
        let handles = self.handles.iter().map(|h| match h.place {
            Place::Event(c) | Place::Ending(_, _, Some(c)) => usize::from(c == cell),
            _ => 0,
        });
        let shared = self
            .shared
            .iter()
            .filter(|s| s.holders > 0)
            .map(|s| usize::from(s.producer == cell) + s.readers.iter().flatten().filter(|r| r.1 == cell).count());
        let splits = self.splits.iter().map(|s| s.after.iter().filter(|&&c| c == cell).count());
        let pooled = self.blocks.iter().map(|b| match b {
            Life::Pooled(after) => after.iter().filter(|&&c| c == cell).count(),
            _ => 0,
        });
        handles.chain(shared).chain(splits).chain(pooled).sum()
    }

    /// `StreamInner::lease`: an event of the pool, recorded on the line.
    fn lease(&mut self, line: usize, run: &mut Run) -> u8 {
        let point = self.hb.record(line, &mut run.log);
        let free = (0..self.cells.len()).find(|&c| {
            self.cells[c].stolen && run.broken == Broken::EventLentWhileLeased || self.holders(c as u8) == 0
        });
        let cell = Cell { point: (run.broken != Broken::RecordMissing).then_some(point), stolen: false };
        match free {
            Some(c) => self.cells[c] = cell,
            None => self.cells.push(cell),
        }
        free.unwrap_or(self.cells.len() - 1) as u8
    }

    /// A holder of a lease is dropped. With the broken rule, the pool takes the event back although
    /// another holder is left.
    fn dropped(&mut self, cell: u8) {
        self.cells[cell as usize].stolen = true;
    }

    fn wait(&mut self, line: usize, cell: u8, run: &mut Run) {
        if let Some(point) = self.cells[cell as usize].point {
            self.hb.wait(line, &point, &mut run.log);
        }
    }

    // --- memory ---

    fn granules(&self, value: Value) -> (u8, Vec<usize>) {
        match value {
            Value::Buf { block, lo, hi, .. } => {
                (block, (block as usize * 2 + lo as usize..block as usize * 2 + hi as usize).collect())
            }
            Value::Shared(id) => self.granules(self.shared[id as usize].value),
        }
    }

    fn use_on(&mut self, line: usize, reads: &[Value], writes: &[Value], run: &mut Run) -> Done {
        let mut sets = [Vec::new(), Vec::new()];
        for (set, values) in sets.iter_mut().zip([reads, writes]) {
            for &value in values {
                let (block, granules) = self.granules(value);
                if self.blocks[block as usize] != Life::Live {
                    return Err(Bad::Dead(block));
                }
                set.extend(granules);
            }
        }
        Ok(self.hb.access(line, &sets[0], &sets[1], &mut run.log)?)
    }

    fn is_device(&self, block: u8, run: &Run) -> bool {
        block < run.allow.device
    }

    fn free(&mut self, line: usize, block: u8, run: &mut Run) -> Done {
        let all = [block as usize * 2, block as usize * 2 + 1];
        self.hb.access(line, &[], &all, &mut run.log)?;
        let point = self.hb.record(line, &mut run.log);
        self.blocks[block as usize] = Life::Freed(point);
        for g in &mut self.graphs {
            g.stale |= matches!(g.value, Value::Buf { block: b, .. } if b == block);
        }
        Ok(())
    }

    /// `Memory::release`: gives memory back after the events.
    fn release(&mut self, value: Value, after: Vec<u8>, run: &mut Run) -> Done {
        let Value::Buf { block, split, .. } = value else { unreachable!("shared values are not released") };
        if let Some(id) = split {
            if run.broken == Broken::PieceFreesWhole {
                return self.free_block(block, after, run);
            }
            let s = &mut self.splits[id as usize];
            if run.broken != Broken::PieceForgetsItsEvent {
                s.after.extend(&after);
            }
            s.pieces -= 1;
            if s.pieces > 0 {
                return Ok(());
            }
            let all = std::mem::take(&mut s.after);
            return self.free_block(block, if run.broken == Broken::LastPieceFreesAlone { after } else { all }, run);
        }
        self.free_block(block, after, run)
    }

    fn free_block(&mut self, block: u8, after: Vec<u8>, run: &mut Run) -> Done {
        if self.is_device(block, run) {
            after.iter().for_each(|&cell| self.wait(KEEPER, cell, run));
            self.free(KEEPER, block, run)
        } else {
            self.blocks[block as usize] = Life::Pooled(after);
            Ok(())
        }
    }

    // --- reads ---

    fn draw_turn(&mut self, id: u8) -> u8 {
        let s = &mut self.shared[id as usize];
        s.turns += 1;
        s.turns
    }

    fn store_end(&mut self, id: u8, s: u8, turn: u8, cell: u8, run: &mut Run) {
        let sharing = &mut self.shared[id as usize];
        if run.broken == Broken::OnlyLastReaderKept {
            sharing.readers = [None; STREAMS];
        }
        let place = &mut sharing.readers[s as usize];
        match place {
            Some(_) if run.broken == Broken::OldestReaderKept => {}
            Some(newest) if newest.0 < turn || run.broken == Broken::NoTurns => *newest = (turn, cell),
            Some(_) => {}
            None => *place = Some((turn, cell)),
        }
    }

    /// `SharedRead::end`, in one piece.
    fn end(&mut self, id: u8, s: u8, run: &mut Run) {
        if run.broken == Broken::ReadingEndNotRecorded {
            return;
        }
        let turn = self.draw_turn(id);
        let cell = self.lease(s as usize, run);
        self.store_end(id, s, turn, cell, run);
    }

    /// A handle on, or a read of, a shared resource goes.
    fn unhold(&mut self, id: u8, run: &mut Run) -> Done {
        let s = &mut self.shared[id as usize];
        s.holders -= 1;
        if s.holders > 0 {
            return Ok(());
        }
        s.holders = 1; // until its leases are with the memory
        let mut after: Vec<u8> = match run.broken {
            Broken::SharedDropSkipsReaders => Vec::new(),
            _ => s.readers.iter().flatten().map(|r| r.1).collect(),
        };
        if run.broken != Broken::SharedDropSkipsProducer {
            after.push(s.producer);
        }
        let value = s.value;
        let released = self.release(value, after, run);
        self.shared[id as usize].holders = 0;
        released
    }

    /// `__unbind`: the value leaves its stream. A read ends.
    fn unbind(&mut self, value: Value, s: u8, run: &mut Run) {
        if let Value::Shared(id) = value {
            self.end(id, s, run);
        }
    }

    // --- transitions ---

    /// Does the transition. The handles that it takes are numbered as in `handles`.
    pub fn act(&mut self, act: Act, run: &mut Run) -> Done {
        let broken = run.broken;
        match act {
            Act::Alloc { s, block } => {
                if let Life::Freed(point) = self.blocks[block as usize].clone()
                    && broken != Broken::AllocatorDoesNotOrder
                {
                    self.hb.wait(s as usize, &point, &mut run.log); // the driver's promise
                }
                self.blocks[block as usize] = Life::Live;
                let value = Value::Buf { block, lo: 0, hi: 2, split: None };
                self.use_on(s as usize, &[], &[value], run)?;
                self.put(value, Place::On(s));
            }
            Act::Lend { block } => {
                if let Life::Pooled(after) = std::mem::replace(&mut self.blocks[block as usize], Life::Live)
                    && broken != Broken::PoolLendsEarly
                {
                    after.iter().for_each(|&cell| self.wait(HOST, cell, run)); // they have passed
                }
                let value = Value::Buf { block, lo: 0, hi: 2, split: None };
                self.use_on(HOST, &[], &[value], run)?; // `pinned_from` writes it
                self.put(value, Place::Idle);
            }
            Act::HostRead(h) => {
                let value = self.handles[h].value;
                if let Value::Shared(id) = value {
                    let producer = self.shared[id as usize].producer; // `Shared::host` has asked it
                    self.wait(HOST, producer, run);
                }
                self.use_on(HOST, &[value], &[], run)?;
            }
            Act::HostWrite(h) => self.use_on(HOST, &[], &[self.handles[h].value], run)?,
            Act::Bind(h, s) => {
                let Handle { value, .. } = self.handles.remove(h);
                if let Value::Shared(id) = value
                    && broken != Broken::BindSkipsProducer
                {
                    let producer = self.shared[id as usize].producer;
                    self.wait(s as usize, producer, run);
                }
                self.put(value, Place::On(s));
            }
            Act::Write(h) => {
                let (value, s) = self.on(h);
                self.use_on(s as usize, &[], &[value], run)?;
            }
            Act::WriteFrom(h, s) => self.use_on(s as usize, &[], &[self.handles[h].value], run)?,
            Act::Read(h) => {
                let (value, s) = self.reads_on(h);
                self.use_on(s as usize, &[value], &[], run)?;
            }
            Act::Copy(from, to) => {
                let ((from, s), (to, _)) = (self.on(from), self.on(to));
                self.use_on(s as usize, &[from], &[to], run)?;
            }
            Act::Record(h) => {
                let (value, s) = self.on(h);
                let cell = self.lease(s as usize, run);
                self.handles[h].place = Place::Event(cell); // before a read ends
                self.unbind(value, s, run);
            }
            Act::RecordUnzip(h, i) => {
                let (_, s) = self.on(h);
                let cell = self.lease(s as usize, run);
                self.handles[h].place = Place::Event(cell);
                self.handles[i].place = Place::Event(cell);
            }
            Act::Wait(h, s) => {
                let Handle { value, place: Place::Event(cell) } = self.handles[h] else { unreachable!() };
                if broken != Broken::WaitMissing {
                    self.wait(s as usize, cell, run);
                }
                self.handles[h] = Handle { value, place: Place::On(s) };
                self.dropped(cell);
            }
            Act::HandOff(h, t) => {
                self.act(Act::HandOffBegin(h, t), run)?;
                self.act(Act::HandOffEnd(h), run)?;
            }
            Act::HandOffBegin(h, t) => {
                let (value, s) = self.on(h);
                self.unbind(value, s, run);
                if broken != Broken::HandOffWithoutRecord {
                    let event = if broken == Broken::OneHandOffEventForAll { 0 } else { s as usize };
                    self.own[event] = Some(self.hb.record(s as usize, &mut run.log));
                }
                self.handles[h].place = Place::HandingOff(s, t);
            }
            Act::HandOffEnd(h) => {
                let Place::HandingOff(s, t) = self.handles[h].place else { unreachable!() };
                let event = if broken == Broken::OneHandOffEventForAll { 0 } else { s as usize };
                if let Some(point) = self.own[event]
                    && broken != Broken::HandOffWithoutWait
                {
                    self.hb.wait(t as usize, &point, &mut run.log);
                }
                self.handles[h].place = Place::On(t);
            }
            Act::Synchronize(h) => {
                let Handle { value, place: Place::Event(cell) } = self.handles[h] else { unreachable!() };
                if broken != Broken::SynchronizeDoesNotWait {
                    self.wait(HOST, cell, run);
                }
                self.handles[h] = Handle { value, place: Place::Idle };
                self.dropped(cell);
            }
            Act::Drop(h) => {
                let Handle { value, place } = self.handles[h];
                let after = match (value, place) {
                    (Value::Shared(id), Place::On(s)) => {
                        self.end(id, s, run);
                        self.handles.remove(h);
                        return self.unhold(id, run);
                    }
                    (Value::Shared(id), _) => {
                        self.handles.remove(h);
                        return self.unhold(id, run);
                    }
                    (_, Place::Idle) => Vec::new(),
                    (Value::Buf { block, split, .. }, Place::On(s)) => {
                        let at_once = broken == Broken::DropFreesAtOnce;
                        if split.is_none() && self.is_device(block, run) && !at_once {
                            self.handles.remove(h);
                            return self.free(s as usize, block, run); // `StreamInner::free`
                        }
                        if at_once { Vec::new() } else { vec![self.lease(s as usize, run)] }
                    }
                    (_, Place::Event(_)) if broken == Broken::EventDropFreesAtOnce => Vec::new(),
                    (_, Place::Event(cell)) => vec![cell],
                    (_, Place::HandingOff(..) | Place::Ending(..) | Place::Branch(_) | Place::Branches(_)) => {
                        unreachable!()
                    }
                };
                self.release(value, after, run)?;
                self.handles.remove(h);
                if let Place::Event(cell) = place {
                    self.dropped(cell);
                }
            }
            Act::Forget(h) => _ = self.handles.remove(h),
            Act::Share(h) => {
                let (value, s) = self.on(h);
                let producer = self.lease(s as usize, run);
                let new = Sharing { value, producer, holders: 1, readers: [None; STREAMS], turns: 0 };
                let id = match self.shared.iter().position(|s| s.holders == 0) {
                    Some(id) => {
                        self.shared[id] = new;
                        id
                    }
                    None => {
                        self.shared.push(new);
                        self.shared.len() - 1
                    }
                };
                self.handles[h] = Handle { value: Value::Shared(id as u8), place: Place::Idle };
            }
            Act::Clone(h) => {
                let handle = self.handles[h];
                let Value::Shared(id) = handle.value else { unreachable!() };
                self.shared[id as usize].holders += 1;
                self.handles.push(handle);
            }
            Act::Reading(h, s) => {
                let value = self.handles[h].value;
                let Value::Shared(id) = value else { unreachable!() };
                self.shared[id as usize].holders += 1;
                if broken != Broken::ReadingSkipsProducer {
                    let producer = self.shared[id as usize].producer;
                    self.wait(s as usize, producer, run);
                }
                self.put(value, Place::On(s));
            }
            Act::Unshare(h, s) => {
                let Value::Shared(id) = self.handles[h].value else { unreachable!() };
                let sharing = self.shared[id as usize].clone();
                if broken != Broken::UnshareSkipsReaders {
                    sharing.readers.iter().flatten().for_each(|r| self.wait(s as usize, r.1, run));
                }
                if broken != Broken::UnshareSkipsProducer {
                    self.wait(s as usize, sharing.producer, run);
                }
                if sharing.holders == 1 {
                    self.shared[id as usize].holders = 0;
                }
                self.handles[h] = Handle { value: sharing.value, place: Place::On(s) };
            }
            Act::HandOffFails(h, t) => {
                self.act(Act::HandOffBegin(h, t), run)?;
                let Place::HandingOff(s, _) = self.handles[h].place else { unreachable!() };
                self.handles[h].place = Place::On(s);
            }
            Act::UnshareFails(h, s) => {
                let Value::Shared(id) = self.handles[h].value else { unreachable!() };
                let sharing = self.shared[id as usize].clone();
                sharing.readers.iter().flatten().for_each(|r| self.wait(s as usize, r.1, run));
                if broken == Broken::FailedUnshareForgetsReaders {
                    self.shared[id as usize].readers = [None; STREAMS];
                }
            }
            Act::Prune(id) => {
                let after = std::mem::take(&mut self.splits[id].after);
                if broken != Broken::EventsOfPiecesForgotten {
                    after.iter().for_each(|&cell| self.wait(HOST, cell, run)); // they are complete
                }
            }
            Act::Fork(h, both) => {
                let (_, s) = self.on(h);
                let point = self.hb.record(s as usize, &mut run.log);
                if broken != Broken::ForkDoesNotWait {
                    self.hb.wait(BRANCH, &point, &mut run.log);
                }
                self.handles[h].place = Place::Branch(s);
                if let Some(i) = both {
                    self.handles[i].place = Place::Branches(s);
                }
                self.forked = Some(s);
            }
            Act::BranchWrite(h) => self.use_on(BRANCH, &[], &[self.handles[h].value], run)?,
            Act::BranchRead(h) => self.use_on(BRANCH, &[self.handles[h].value], &[], run)?,
            Act::JoinBranches(s) => {
                let point = self.hb.record(BRANCH, &mut run.log);
                if broken != Broken::JoinDoesNotWait {
                    self.hb.wait(s as usize, &point, &mut run.log);
                }
                for handle in &mut self.handles {
                    if matches!(handle.place, Place::Branch(_) | Place::Branches(_)) {
                        handle.place = Place::On(s);
                    }
                }
                self.forked = None;
            }
            Act::EndTurn(h) => {
                let Handle { value: Value::Shared(id), place } = self.handles[h] else { unreachable!() };
                let place = match place {
                    Place::On(s) if broken == Broken::TurnAfterRecord => {
                        Place::Ending(s, None, Some(self.lease(s as usize, run)))
                    }
                    Place::On(s) => Place::Ending(s, Some(self.draw_turn(id)), None),
                    _ => unreachable!(),
                };
                self.handles[h].place = place;
            }
            Act::EndRecord(h) => {
                let Handle { value: Value::Shared(id), place } = self.handles[h] else { unreachable!() };
                let place = match place {
                    Place::Ending(s, None, cell) => Place::Ending(s, Some(self.draw_turn(id)), cell),
                    Place::Ending(s, turn, _) => Place::Ending(s, turn, Some(self.lease(s as usize, run))),
                    _ => unreachable!(),
                };
                self.handles[h].place = place;
            }
            Act::EndStore(h) => {
                let Handle { value: Value::Shared(id), place: Place::Ending(s, Some(turn), Some(cell)) } =
                    self.handles[h]
                else {
                    unreachable!()
                };
                self.store_end(id, s, turn, cell, run);
                self.handles.remove(h);
                self.unhold(id, run)?;
            }
            Act::Split(h) => {
                let Handle { value: Value::Buf { block, lo, hi, split }, place } = self.handles.remove(h) else {
                    unreachable!()
                };
                let id = split.unwrap_or_else(|| {
                    let new = Split { block, pieces: 1, after: Vec::new() };
                    match self.splits.iter().position(|s| s.pieces == 0) {
                        Some(id) => {
                            self.splits[id] = new;
                            id as u8
                        }
                        None => {
                            self.splits.push(new);
                            self.splits.len() as u8 - 1
                        }
                    }
                });
                self.splits[id as usize].pieces += 1;
                for (lo, hi) in [(lo, lo + 1), (lo + 1, hi)] {
                    self.put(Value::Buf { block, lo, hi, split: Some(id) }, place);
                }
            }
            Act::Join(h, i) => {
                let Handle { value: Value::Buf { block, split: Some(id), .. }, place } = self.handles[h] else {
                    unreachable!()
                };
                self.handles[h] = Handle { value: Value::Buf { block, lo: 0, hi: 2, split: Some(id) }, place };
                self.handles.remove(i);
                self.splits[id as usize].pieces -= 1; // the other piece is dropped, idle
            }
            Act::Capture(h) => {
                let (value, s) = self.on(h);
                self.unbind(value, s, run);
                let (value, shared) = self.leaf(value);
                self.graphs.push(Graph { value, shared, stale: false, last: None });
            }
            Act::Replay(g, h) => {
                let (value, s) = self.on(h);
                self.unbind(value, s, run);
                if self.graphs[g].stale {
                    return Err(Bad::Stale);
                }
                let line = match broken {
                    Broken::ReplayBesideInputs | Broken::ReplayBesideLater => KEEPER,
                    _ => s as usize,
                };
                if broken == Broken::ReplayBesideLater {
                    let point = self.hb.record(s as usize, &mut run.log);
                    self.hb.wait(line, &point, &mut run.log);
                }
                if let Some(last) = self.graphs[g].last
                    && broken != Broken::ReplaysOverlap
                {
                    self.hb.wait(line, &last, &mut run.log); // the driver's promise
                }
                match value {
                    Value::Buf { .. } => self.use_on(line, &[], &[value], run)?,
                    Value::Shared(_) => self.use_on(line, &[value], &[], run)?,
                }
                self.graphs[g].last = Some(self.hb.record(line, &mut run.log));
            }
        }
        Ok(())
    }

    /// The buffer of a value, as a graph compares it, and whether it is shared.
    fn leaf(&self, value: Value) -> (Value, bool) {
        match value {
            Value::Buf { block, lo, hi, .. } => (Value::Buf { block, lo, hi, split: None }, false),
            Value::Shared(id) => (self.leaf(self.shared[id as usize].value).0, true),
        }
    }

    fn put(&mut self, value: Value, place: Place) {
        self.handles.push(Handle { value, place });
    }

    fn on(&self, h: usize) -> (Value, u8) {
        match self.handles[h] {
            Handle { value, place: Place::On(s) } => (value, s),
            _ => unreachable!("only enabled transitions are done"),
        }
    }

    /// The value that a stream may read, and the stream.
    fn reads_on(&self, h: usize) -> (Value, u8) {
        match self.handles[h] {
            Handle { value, place: Place::On(s) | Place::Branches(s) } => (value, s),
            _ => unreachable!("only enabled transitions are done"),
        }
    }

    /// The transitions that the types allow now.
    pub fn acts(&self, run: &Run) -> Vec<Act> {
        let a = run.allow;
        let mut out = Vec::new();
        let streams = 0..a.streams.min(self.used + 1);
        let room = self.handles.len() < a.handles;
        let has = |l: &Life| !matches!(l, Life::Live | Life::Unused);
        if room {
            // The lowest block that was never used, and each that was.
            for range in [0..a.device, a.device..a.device + a.pinned] {
                let fresh = range.clone().find(|&b| self.blocks[b as usize] == Life::Unused);
                for block in range.filter(|&b| has(&self.blocks[b as usize]) || fresh == Some(b)) {
                    if self.is_device(block, run) {
                        out.extend(streams.clone().map(|s| Act::Alloc { s, block }));
                    } else {
                        out.push(Act::Lend { block });
                    }
                }
            }
        }
        if let Some(s) = self.forked {
            out.push(Act::JoinBranches(s));
        }
        let pruned = (0..self.splits.len()).filter(|&id| !self.splits[id].after.is_empty());
        out.extend(pruned.map(Act::Prune));
        for (h, &Handle { value, place }) in self.handles.iter().enumerate() {
            if self.handles[..h].contains(&self.handles[h]) {
                continue; // two equal handles of one shared resource are alike
            }
            let (block, _) = self.granules(value);
            let shared = match value {
                Value::Shared(id) => Some(id),
                Value::Buf { .. } => None,
            };
            let droppable = !a.no_drop;
            match place {
                Place::Idle => {
                    if !self.is_device(block, run) && !a.no_host {
                        out.push(Act::HostRead(h));
                        if shared.is_none() {
                            out.push(Act::HostWrite(h));
                        }
                    }
                    if let Some(id) = shared {
                        if room {
                            out.extend(streams.clone().map(|s| Act::Reading(h, s)));
                            if !a.no_drop {
                                out.push(Act::Clone(h));
                            }
                        }
                        if self.shared[id as usize].holders == 1 || run.broken == Broken::UnshareWhileRead {
                            out.extend(streams.clone().map(|s| Act::Unshare(h, s)));
                            if a.failures {
                                out.extend(streams.clone().map(|s| Act::UnshareFails(h, s)));
                            }
                        }
                    }
                    if !(shared.is_some() && a.no_drop) {
                        out.extend(streams.clone().map(|s| Act::Bind(h, s)));
                    }
                    if droppable {
                        out.push(Act::Drop(h));
                    }
                }
                Place::On(s) => {
                    out.push(Act::Read(h));
                    if shared.is_none() {
                        out.push(Act::Write(h));
                        if a.share {
                            out.push(Act::Share(h));
                        }
                        if run.broken == Broken::StreamNotChecked {
                            out.extend(streams.clone().filter(|&t| t != s).map(|t| Act::WriteFrom(h, t)));
                        }
                    }
                    if a.steps && shared.is_some() {
                        out.push(Act::EndTurn(h));
                    } else if droppable {
                        out.push(Act::Drop(h));
                    }
                    if !a.no_record {
                        out.push(Act::Record(h));
                    }
                    if !a.no_hand_off {
                        for t in streams.clone().filter(|&t| t != s) {
                            out.push(if a.steps { Act::HandOffBegin(h, t) } else { Act::HandOff(h, t) });
                            if a.failures {
                                out.push(Act::HandOffFails(h, t));
                            }
                        }
                    }
                    if a.copies || a.unzip {
                        for (i, other) in self.handles.iter().enumerate() {
                            if i != h && other.place == place && matches!(other.value, Value::Buf { .. }) {
                                if a.copies {
                                    out.push(Act::Copy(h, i));
                                }
                                if a.unzip && i > h && shared.is_none() {
                                    out.push(Act::RecordUnzip(h, i));
                                }
                            }
                        }
                    }
                    if a.fork && self.forked.is_none() && shared.is_none() {
                        out.push(Act::Fork(h, None));
                        let others = (0..self.handles.len()).filter(|&i| i != h && self.handles[i].place == place);
                        out.extend(others.map(|i| Act::Fork(h, Some(i))));
                    }
                    if a.graph {
                        if self.graphs.is_empty() {
                            out.push(Act::Capture(h));
                        }
                        for (g, graph) in self.graphs.iter().enumerate() {
                            let same = self.leaf(value) == (graph.value, graph.shared);
                            if same && (!graph.stale || run.broken == Broken::GraphComparesAddresses) {
                                out.push(Act::Replay(g, h));
                            }
                        }
                    }
                }
                Place::Event(_) => {
                    out.extend(streams.clone().map(|s| Act::Wait(h, s)));
                    out.push(Act::Synchronize(h));
                    if droppable {
                        out.push(Act::Drop(h));
                    }
                }
                Place::Branch(s) => {
                    out.extend([Act::BranchWrite(h), Act::BranchRead(h)]);
                    if run.broken == Broken::BothBranchesWrite {
                        out.push(Act::WriteFrom(h, s));
                    }
                }
                Place::Branches(_) => out.extend([Act::Read(h), Act::BranchRead(h)]),
                Place::HandingOff(..) => out.push(Act::HandOffEnd(h)),
                Place::Ending(_, turn, cell) => {
                    out.push(if turn.is_some() && cell.is_some() { Act::EndStore(h) } else { Act::EndRecord(h) });
                }
            }
            let moving =
                matches!(place, Place::HandingOff(..) | Place::Ending(..) | Place::Branch(_) | Place::Branches(_));
            if droppable && !a.no_forget && !moving {
                out.push(Act::Forget(h));
            }
            if a.split && matches!(place, Place::On(_) | Place::Idle) {
                let Value::Buf { lo, hi, split, .. } = value else { continue };
                if room && hi - lo == 2 {
                    out.push(Act::Split(h));
                }
                for (i, other) in self.handles.iter().enumerate() {
                    let Value::Buf { lo: l, split: s, .. } = other.value else { continue };
                    let together = other.place == place
                        || run.broken == Broken::JoinAcrossStreams
                            && matches!((other.place, place), (Place::On(_), Place::On(_)));
                    if split.is_some() && s == split && l == hi && together {
                        out.push(Act::Join(h, i));
                    }
                }
            }
        }
        out
    }

    /// The stream that a transition uses for the first time, if any.
    pub fn touch(&mut self, act: Act) {
        if let Act::Alloc { s, .. }
        | Act::Bind(_, s)
        | Act::Wait(_, s)
        | Act::HandOff(_, s)
        | Act::HandOffBegin(_, s)
        | Act::HandOffFails(_, s)
        | Act::UnshareFails(_, s)
        | Act::Reading(_, s)
        | Act::Unshare(_, s)
        | Act::WriteFrom(_, s) = act
        {
            self.used = self.used.max(s + 1);
        }
    }

    /// Makes equivalent states equal: the order of handles, the numbers of events, the times.
    pub fn canonical(&mut self, broken: Broken) {
        let key = |h: &Handle, cells: &[Cell]| match h.place {
            Place::Event(c) => (h.value, Place::Event(0), cells[c as usize].point.map(|p| p.clock)),
            place => (h.value, place, None),
        };
        let cells = &self.cells;
        self.handles.sort_by_cached_key(|h| key(h, cells));
        let mut names: Vec<Option<u8>> = vec![None; self.cells.len()];
        let mut kept = Vec::new();
        let mut rename = |c: &mut u8, old: &[Cell]| {
            let new = names[*c as usize].get_or_insert_with(|| {
                kept.push(old[*c as usize].clone());
                kept.len() as u8 - 1
            });
            *c = *new;
        };
        let old = std::mem::take(&mut self.cells);
        for h in &mut self.handles {
            if let Place::Event(c) | Place::Ending(_, _, Some(c)) = &mut h.place {
                rename(c, &old);
            }
        }
        for s in &mut self.shared {
            if s.holders == 0 {
                *s = Sharing { value: Value::Shared(0), producer: 0, holders: 0, readers: [None; STREAMS], turns: 0 };
                continue;
            }
            rename(&mut s.producer, &old);
            s.readers.iter_mut().flatten().for_each(|r| rename(&mut r.1, &old));
        }
        for s in &mut self.splits {
            if s.pieces == 0 {
                *s = Split { block: 0, pieces: 0, after: Vec::new() };
            }
            s.after.iter_mut().for_each(|c| rename(c, &old));
        }
        for b in &mut self.blocks {
            if let Life::Pooled(after) = b {
                after.iter_mut().for_each(|c| rename(c, &old));
            }
        }
        if broken != Broken::EventLentWhileLeased {
            kept.iter_mut().for_each(|c: &mut Cell| c.stolen = false);
        }
        self.cells = kept;
        // Turns are compared only with one another.
        for id in 0..self.shared.len() {
            let mut turns: Vec<u8> = self.shared[id].readers.iter().flatten().map(|r| r.0).collect();
            turns.extend(self.handles.iter().filter_map(|h| match h {
                Handle { value: Value::Shared(i), place: Place::Ending(_, Some(t), _) } if *i as usize == id => {
                    Some(*t)
                }
                _ => None,
            }));
            turns.sort_unstable();
            turns.dedup();
            let rank = |t: &mut u8| *t = 1 + turns.partition_point(|&u| u < *t) as u8;
            self.shared[id].readers.iter_mut().flatten().for_each(|r| rank(&mut r.0));
            for h in &mut self.handles {
                if let Handle { value: Value::Shared(i), place: Place::Ending(_, Some(t), _) } = h
                    && *i as usize == id
                {
                    rank(t);
                }
            }
            self.shared[id].turns = turns.len() as u8;
        }
        if broken != Broken::HandOffWithoutRecord && broken != Broken::OneHandOffEventForAll {
            // The event of `hand` matters only in the middle of a `hand`.
            for s in 0..STREAMS {
                if !self.handles.iter().any(|h| matches!(h.place, Place::HandingOff(f, _) if f as usize == s)) {
                    self.own[s] = None;
                }
            }
        }
        let Self { hb, cells, own, blocks, graphs, .. } = self;
        let clocks = cells.iter_mut().filter_map(|c| c.point.as_mut());
        let clocks = clocks.chain(own.iter_mut().flatten());
        let clocks =
            clocks.chain(blocks.iter_mut().filter_map(|b| if let Life::Freed(p) = b { Some(p) } else { None }));
        let clocks = clocks.chain(graphs.iter_mut().filter_map(|g| g.last.as_mut()));
        let clocks: Vec<&mut Clock> = clocks.map(|p| &mut p.clock).collect();
        hb.compress(clocks);
    }
}
