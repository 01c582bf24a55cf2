//! The transitions that a program can make, and the calls that the crate makes for each. A rule
//! that can be broken on purpose is one `if`. The clocks of `happens_before` judge the accesses.

use crate::happens_before::{Clock, HOST, HappensBefore, KEEPER, Log, Point, Race, STREAMS};

/// The stream of the second branch of a fork. Only searches with two other streams have forks.
const BRANCH: usize = 2;
/// The stream that frees the memory of the second device, in the search with two devices.
const SECOND_KEEPER: usize = 2;
/// The stream that other code made, and one that only that code knows.
const FOREIGN: u8 = 1;
const LIBRARY: usize = 2;
/// The lines on which the branches inside of a graph run. That search has one stream and one
/// thread, so they are free.
const INSIDE: [usize; 2] = [BRANCH, HOST + 1];

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
    NodeForkWithoutEdge,
    NodeJoinWithoutEdge,
    NodeOfBothBranches,
    ReplayWithoutPart,
    ThreadsNotOrdered,
    CountOrdersNothing,
    ListOrdersNothing,
    PoolOrdersNothing,
    PeerCopyElsewhere,
    PeerEventLost,
    PeerDropFreesAtOnce,
    PlainBufferOnOtherDevice,
    EnterDoesNotWait,
    LeaveDoesNotWait,
    ThreadStreamCrosses,
    LaneLeaks,
    TagOfTwoStreams,
    /// Promises of the driver, and of other code, that they do not keep.
    AllocatorDoesNotOrder,
    ReplaysOverlap,
    LibraryDoesNotFollow,
    LibraryNotJoined,
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
    /// In a capture, ordered by this branch of it; 0 is the capture's own stream.
    Captured(u8),
    /// In a capture, lent to two branches, which only read it.
    CapturedForBoth(u8, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Handle {
    pub value: Value,
    pub place: Place,
    /// Whether streams of other devices may have it, as a `PeerBuffer`.
    pub peer: bool,
    /// The thread that owns it.
    pub thread: u8,
    /// The knowledge of the thread that sent it here, until this thread has received it. It does so
    /// at the last moment: where it uses the value.
    pub carried: Option<Point>,
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
    /// The knowledge of the threads that gave handles back. The count of an `Arc` orders that.
    pub released: Vec<Point>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Split {
    pub block: u8,
    pub pieces: u8,
    pub after: Vec<u8>,
    /// The knowledge of the thread that had the lock of the list last.
    pub lock: Option<Point>,
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

/// A node of a graph, on a branch of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    Use {
        branch: u8,
        value: Value,
        write: bool,
    },
    /// The edge from what a branch has so far to another branch.
    Edge {
        from: u8,
        to: u8,
        fork: bool,
    },
}

/// A capture in progress, on a stream.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Capture {
    pub stream: u8,
    pub nodes: Vec<Node>,
    /// The branches that are not joined yet, each with the one that it is a branch of.
    pub open: Vec<(u8, u8)>,
}

/// A graph of several nodes, and the buffers that it was captured with.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Nodes {
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    pub stale: bool,
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
    /// Two threads, which send values to each other.
    pub threads: bool,
    /// The second stream is one that each thread has of its own.
    pub thread_streams: bool,
    /// Two devices, each with a stream and a buffer.
    pub devices: bool,
    /// The second stream is one of other code, which works on it and on a stream of its own.
    pub foreign: bool,
    /// Streams are lent to closures under one brand.
    pub lanes: bool,
    /// The most nodes of a graph that is captured node by node, with branches.
    pub nodes: usize,
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
        thread: u8,
    },
    Lend {
        block: u8,
        thread: u8,
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
    Prune(usize, u8),
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
    /// To the other thread, by something that orders threads.
    Send(usize),
    /// `map_peer`, or `map_local`.
    MapPeer(usize),
    /// Other code works on a buffer of its stream.
    Library(usize),
    /// A stream is lent to a closure.
    LaneBegin(u8),
    LaneEnd,
    /// Captures all buffers of a stream.
    CaptureBegin(u8),
    CaptureEnd,
    NodeRead(usize, u8),
    NodeWrite(usize, u8),
    /// The first buffer is lent to a new branch, and the second one, if any, to both.
    NodeFork(usize, Option<usize>),
    NodeJoin,
    ReplayNodes(u8),
    /// With a broken rule: an operation of another stream takes the buffer.
    WriteFrom(usize, u8),
}

impl Act {
    /// The numbers of the handles that it takes.
    pub fn handles(self) -> [Option<usize>; 2] {
        match self {
            Self::Copy(h, i) | Self::RecordUnzip(h, i) | Self::Join(h, i) => [Some(h), Some(i)],
            Self::Fork(h, i) | Self::NodeFork(h, i) => [Some(h), i],
            Self::HostRead(h)
            | Self::HostWrite(h)
            | Self::Bind(h, _)
            | Self::Write(h)
            | Self::Read(h)
            | Self::Record(h)
            | Self::Wait(h, _)
            | Self::HandOff(h, _)
            | Self::HandOffBegin(h, _)
            | Self::HandOffEnd(h)
            | Self::Synchronize(h)
            | Self::Drop(h)
            | Self::Forget(h)
            | Self::Share(h)
            | Self::Clone(h)
            | Self::Reading(h, _)
            | Self::Unshare(h, _)
            | Self::HandOffFails(h, _)
            | Self::UnshareFails(h, _)
            | Self::BranchWrite(h)
            | Self::BranchRead(h)
            | Self::EndTurn(h)
            | Self::EndRecord(h)
            | Self::EndStore(h)
            | Self::Split(h)
            | Self::Capture(h)
            | Self::Replay(_, h)
            | Self::Send(h)
            | Self::MapPeer(h)
            | Self::Library(h)
            | Self::NodeRead(h, _)
            | Self::NodeWrite(h, _)
            | Self::WriteFrom(h, _) => [Some(h), None],
            Self::Alloc { .. }
            | Self::Lend { .. }
            | Self::Prune(..)
            | Self::JoinBranches(_)
            | Self::LaneBegin(_)
            | Self::LaneEnd
            | Self::CaptureBegin(_)
            | Self::CaptureEnd
            | Self::NodeJoin
            | Self::ReplayNodes(_) => [None, None],
        }
    }
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
    pub capture: Option<Capture>,
    pub nodes: Option<Nodes>,
    /// The stream that has forked, until it joins.
    pub forked: Option<u8>,
    /// The stream that a closure has now.
    pub lane: Option<u8>,
    /// The knowledge of the thread that had the lock of the pool last.
    pub pool: Option<Point>,
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
        Self {
            hb: HappensBefore::new(blocks * 2),
            handles: Vec::new(),
            cells: Vec::new(),
            own: [None; STREAMS],
            blocks: vec![Life::Unused; blocks],
            shared: Vec::new(),
            splits: Vec::new(),
            graphs: Vec::new(),
            capture: None,
            nodes: None,
            forked: None,
            lane: None,
            pool: None,
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

    // --- threads ---

    /// The knowledge of this thread, for one that takes the same lock later.
    fn now(&mut self, run: &mut Run) -> Option<Point> {
        run.allow.threads.then(|| self.hb.record(self.hb.host, &mut run.log))
    }

    /// This thread takes a lock, or gets a value, that another one had.
    fn after<'a>(&mut self, points: impl IntoIterator<Item = &'a Point>, run: &mut Run) {
        points.into_iter().for_each(|point| self.hb.wait(self.hb.host, point, &mut run.log));
    }

    /// The thread that does a transition.
    fn thread(&self, act: Act) -> u8 {
        match act {
            Act::Alloc { thread, .. } | Act::Lend { thread, .. } | Act::Prune(_, thread) => thread,
            act => act.handles()[0].map_or(0, |h| self.handles[h].thread),
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

    /// Whether a stream is of the device that has the block.
    fn at_home(block: u8, s: u8, run: &Run) -> bool {
        !run.allow.devices || block == s
    }

    /// `Stream::admits`: whether a stream may have the buffer of a handle.
    fn admits(&self, handle: &Handle, s: u8, run: &Run) -> bool {
        handle.peer
            || run.broken == Broken::PlainBufferOnOtherDevice
            || Self::at_home(self.granules(handle.value).0, s, run)
    }

    fn free(&mut self, line: usize, block: u8, run: &mut Run) -> Done {
        let all = [block as usize * 2, block as usize * 2 + 1];
        self.hb.access(line, &[], &all, &mut run.log)?;
        let point = self.hb.record(line, &mut run.log);
        self.blocks[block as usize] = Life::Freed(point);
        for g in &mut self.graphs {
            g.stale |= matches!(g.value, Value::Buf { block: b, .. } if b == block);
        }
        if let Some(g) = &mut self.nodes {
            g.stale |= g.values.iter().any(|v| matches!(v, Value::Buf { block: b, .. } if *b == block));
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
            self.lock_list(id as usize, run);
            let s = &mut self.splits[id as usize];
            if run.broken != Broken::PieceForgetsItsEvent {
                s.after.extend(&after);
            }
            s.pieces -= 1;
            if s.pieces > 0 {
                return Ok(());
            }
            let all = std::mem::take(&mut s.after);
            s.lock = None;
            return self.free_block(block, if run.broken == Broken::LastPieceFreesAlone { after } else { all }, run);
        }
        self.free_block(block, after, run)
    }

    /// The lock of a list of events of dropped pieces.
    fn lock_list(&mut self, id: usize, run: &mut Run) {
        let lock = self.splits[id].lock.take().filter(|_| run.broken != Broken::ListOrdersNothing);
        self.after(&lock, run);
        self.splits[id].lock = self.now(run);
    }

    /// The lock of a pool.
    fn lock_pool(&mut self, run: &mut Run) {
        let lock = self.pool.take().filter(|_| run.broken != Broken::PoolOrdersNothing);
        self.after(&lock, run);
        self.pool = self.now(run);
    }

    fn free_block(&mut self, block: u8, after: Vec<u8>, run: &mut Run) -> Done {
        if self.is_device(block, run) {
            let keeper = if Self::at_home(block, 0, run) { KEEPER } else { SECOND_KEEPER };
            after.iter().for_each(|&cell| self.wait(keeper, cell, run));
            self.free(keeper, block, run)
        } else {
            self.lock_pool(run);
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
            let now = self.now(run);
            self.shared[id as usize].released.extend(now);
            return Ok(());
        }
        s.holders = 1; // until its leases are with the memory
        self.last_holder(id, run);
        let s = &self.shared[id as usize];
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

    /// The count of an `Arc` says that one holder is left, which comes after all that gave theirs
    /// back.
    fn last_holder(&mut self, id: u8, run: &mut Run) {
        let released = std::mem::take(&mut self.shared[id as usize].released);
        if run.broken != Broken::CountOrdersNothing {
            self.after(&released, run);
        }
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
        self.hb.host = HOST + self.thread(act) as usize;
        for h in act.handles().into_iter().flatten() {
            let carried = self.handles[h].carried.take().filter(|_| broken != Broken::ThreadsNotOrdered);
            self.after(&carried, run);
        }
        match act {
            Act::Alloc { s, block, .. } => {
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
            Act::Lend { block, .. } => {
                self.lock_pool(run);
                if let Life::Pooled(after) = std::mem::replace(&mut self.blocks[block as usize], Life::Live)
                    && broken != Broken::PoolLendsEarly
                {
                    after.iter().for_each(|&cell| self.wait(self.hb.host, cell, run)); // they have passed
                }
                let value = Value::Buf { block, lo: 0, hi: 2, split: None };
                self.use_on(self.hb.host, &[], &[value], run)?; // `pinned_from` writes it
                self.put(value, Place::Idle);
            }
            Act::HostRead(h) => {
                let value = self.handles[h].value;
                if let Value::Shared(id) = value {
                    let producer = self.shared[id as usize].producer; // `Shared::host` has asked it
                    self.wait(self.hb.host, producer, run);
                }
                self.use_on(self.hb.host, &[value], &[], run)?;
            }
            Act::HostWrite(h) => self.use_on(self.hb.host, &[], &[self.handles[h].value], run)?,
            Act::Bind(h, s) => {
                let Handle { value, .. } = self.handles[h];
                if let Value::Shared(id) = value
                    && broken != Broken::BindSkipsProducer
                {
                    let producer = self.shared[id as usize].producer;
                    self.wait(s as usize, producer, run);
                }
                self.handles[h].place = Place::On(s);
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
                let between = self.handles[from].peer || self.handles[to].peer;
                let ((from, s), (to, _)) = (self.on(from), self.on(to));
                let s = if between && broken == Broken::PeerCopyElsewhere { 1 - s } else { s };
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
                let Place::Event(cell) = self.handles[h].place else { unreachable!() };
                if broken != Broken::WaitMissing {
                    self.wait(s as usize, cell, run);
                }
                self.handles[h].place = Place::On(s);
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
                let skipped = match broken {
                    Broken::HandOffWithoutWait => true,
                    Broken::EnterDoesNotWait => run.allow.foreign && t == FOREIGN,
                    Broken::LeaveDoesNotWait => run.allow.foreign && s == FOREIGN,
                    _ => false,
                };
                if let Some(point) = self.own[event]
                    && !skipped
                {
                    self.hb.wait(t as usize, &point, &mut run.log);
                }
                self.handles[h].place = Place::On(t);
            }
            Act::Synchronize(h) => {
                let Place::Event(cell) = self.handles[h].place else { unreachable!() };
                if broken != Broken::SynchronizeDoesNotWait {
                    self.wait(self.hb.host, cell, run);
                }
                self.handles[h].place = Place::Idle;
                self.dropped(cell);
            }
            Act::Drop(h) => {
                let Handle { value, place, .. } = self.handles[h];
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
                        let home = Self::at_home(block, s, run);
                        let at_once =
                            broken == Broken::DropFreesAtOnce || broken == Broken::PeerDropFreesAtOnce && !home;
                        if split.is_none() && self.is_device(block, run) && home && !at_once {
                            self.handles.remove(h);
                            return self.free(s as usize, block, run); // `StreamInner::free`
                        }
                        if at_once { Vec::new() } else { vec![self.lease(s as usize, run)] }
                    }
                    (_, Place::Event(_)) if broken == Broken::EventDropFreesAtOnce => Vec::new(),
                    (_, Place::Event(cell)) => vec![cell],
                    _ => unreachable!("only enabled transitions are done"),
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
                let new =
                    Sharing { value, producer, holders: 1, readers: [None; STREAMS], turns: 0, released: Vec::new() };
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
                self.handles[h].value = Value::Shared(id as u8);
                self.handles[h].place = Place::Idle;
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
                self.last_holder(id, run);
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
                self.handles[h].value = sharing.value;
                self.handles[h].place = Place::On(s);
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
            Act::Prune(id, _) => {
                let lock = self.splits[id].lock.take().filter(|_| broken != Broken::ListOrdersNothing);
                self.after(&lock, run);
                let after = std::mem::take(&mut self.splits[id].after);
                if broken != Broken::EventsOfPiecesForgotten {
                    after.iter().for_each(|&cell| self.wait(self.hb.host, cell, run)); // they are complete
                }
                self.splits[id].lock = self.now(run);
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
                let Handle { value: Value::Shared(id), place, .. } = self.handles[h] else { unreachable!() };
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
                let Handle { value: Value::Shared(id), place, .. } = self.handles[h] else { unreachable!() };
                let place = match place {
                    Place::Ending(s, None, cell) => Place::Ending(s, Some(self.draw_turn(id)), cell),
                    Place::Ending(s, turn, _) => Place::Ending(s, turn, Some(self.lease(s as usize, run))),
                    _ => unreachable!(),
                };
                self.handles[h].place = place;
            }
            Act::EndStore(h) => {
                let Handle { value: Value::Shared(id), place: Place::Ending(s, Some(turn), Some(cell)), .. } =
                    self.handles[h]
                else {
                    unreachable!()
                };
                self.store_end(id, s, turn, cell, run);
                self.handles.remove(h);
                self.unhold(id, run)?;
            }
            Act::Split(h) => {
                let Handle { value: Value::Buf { block, lo, hi, split }, place, .. } = self.handles.remove(h) else {
                    unreachable!()
                };
                let id = split.unwrap_or_else(|| {
                    let new = Split { block, pieces: 1, after: Vec::new(), lock: None };
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
                let Value::Buf { block, split: Some(id), .. } = self.handles[h].value else { unreachable!() };
                self.handles[h].value = Value::Buf { block, lo: 0, hi: 2, split: Some(id) };
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
            Act::Send(h) => {
                self.handles[h].carried = self.now(run);
                let own = FOREIGN + self.handles[h].thread;
                self.handles[h].thread ^= 1;
                if run.allow.thread_streams && self.handles[h].place == Place::On(own) {
                    // On the other thread, the same name is another stream.
                    self.handles[h].place = Place::On(FOREIGN + self.handles[h].thread);
                }
            }
            Act::MapPeer(h) => {
                self.handles[h].peer ^= true;
                if broken == Broken::PeerEventLost {
                    self.handles[h].place = Place::Idle;
                }
            }
            Act::Library(h) => {
                let (value, s) = self.on(h);
                if broken != Broken::LibraryDoesNotFollow {
                    let point = self.hb.record(s as usize, &mut run.log);
                    self.hb.wait(LIBRARY, &point, &mut run.log);
                }
                self.use_on(LIBRARY, &[], &[value], run)?;
                if broken != Broken::LibraryNotJoined {
                    let point = self.hb.record(LIBRARY, &mut run.log);
                    self.hb.wait(s as usize, &point, &mut run.log);
                }
            }
            Act::LaneBegin(s) => {
                // What has the brand belongs to the stream that has the brand. With the rules in
                // force there is nothing.
                for handle in &mut self.handles {
                    if let Place::On(_) = handle.place {
                        handle.place = Place::On(s);
                    }
                }
                self.lane = Some(s);
            }
            Act::LaneEnd => self.lane = None,
            Act::CaptureBegin(stream) => {
                for handle in self.handles.iter_mut().filter(|h| h.place == Place::On(stream)) {
                    handle.place = Place::Captured(0);
                }
                self.capture = Some(Capture { stream, nodes: Vec::new(), open: Vec::new() });
            }
            Act::NodeRead(h, branch) => self.node(Node::Use { branch, value: self.handles[h].value, write: false }),
            Act::NodeWrite(h, branch) => self.node(Node::Use { branch, value: self.handles[h].value, write: true }),
            Act::NodeFork(h, both) => {
                let Place::Captured(from) = self.handles[h].place else { unreachable!() };
                let capture = self.capture.as_mut().expect("a capture is in progress");
                let to = 1 + capture.open.len() as u8;
                capture.open.push((to, from));
                self.handles[h].place = Place::Captured(to);
                if let Some(i) = both {
                    self.handles[i].place = Place::CapturedForBoth(from, to);
                }
                self.node(Node::Edge { from, to, fork: true });
            }
            Act::NodeJoin => {
                let capture = self.capture.as_mut().expect("a capture is in progress");
                let (from, to) = capture.open.pop().expect("a branch is open");
                for handle in &mut self.handles {
                    if handle.place == Place::Captured(from) || handle.place == Place::CapturedForBoth(to, from) {
                        handle.place = Place::Captured(to);
                    }
                }
                self.node(Node::Edge { from, to, fork: false });
            }
            Act::CaptureEnd => {
                let Capture { stream, nodes, .. } = self.capture.take().expect("a capture is in progress");
                let mut values = Vec::new();
                for handle in self.handles.iter_mut().filter(|h| h.place == Place::Captured(0)) {
                    handle.place = Place::On(stream);
                    values.push(handle.value);
                }
                self.nodes = Some(Nodes { values, nodes, stale: false });
            }
            Act::ReplayNodes(s) => {
                let nodes = self.nodes.as_ref().expect("there is a graph").nodes.clone();
                let line = |branch: u8| if branch == 0 { s as usize } else { INSIDE[branch as usize - 1] };
                let edge = |state: &mut Self, from: usize, to: usize, run: &mut Run| {
                    let point = state.hb.record(from, &mut run.log);
                    state.hb.wait(to, &point, &mut run.log);
                };
                // A launch is one piece of work of its stream. Inside, the edges alone order nodes.
                INSIDE.iter().for_each(|&inside| edge(self, s as usize, inside, run));
                for node in nodes {
                    match node {
                        Node::Use { branch, value, write: true } => self.use_on(line(branch), &[], &[value], run)?,
                        Node::Use { branch, value, write: false } => self.use_on(line(branch), &[value], &[], run)?,
                        Node::Edge { fork: true, .. } if broken == Broken::NodeForkWithoutEdge => {}
                        Node::Edge { fork: false, .. } if broken == Broken::NodeJoinWithoutEdge => {}
                        Node::Edge { from, to, .. } => edge(self, line(from), line(to), run),
                    }
                }
                INSIDE.iter().for_each(|&inside| edge(self, inside, s as usize, run));
            }
        }
        Ok(())
    }

    fn node(&mut self, node: Node) {
        self.capture.as_mut().expect("a capture is in progress").nodes.push(node);
    }

    /// The buffer of a value, as a graph compares it, and whether it is shared.
    fn leaf(&self, value: Value) -> (Value, bool) {
        match value {
            Value::Buf { block, lo, hi, .. } => (Value::Buf { block, lo, hi, split: None }, false),
            Value::Shared(id) => (self.leaf(self.shared[id as usize].value).0, true),
        }
    }

    fn put(&mut self, value: Value, place: Place) {
        let thread = (self.hb.host - HOST) as u8;
        self.handles.push(Handle { value, place, peer: false, thread, carried: None });
    }

    fn on(&self, h: usize) -> (Value, u8) {
        match self.handles[h] {
            Handle { value, place: Place::On(s), .. } => (value, s),
            _ => unreachable!("only enabled transitions are done"),
        }
    }

    /// The value that a stream may read, and the stream.
    fn reads_on(&self, h: usize) -> (Value, u8) {
        match self.handles[h] {
            Handle { value, place: Place::On(s) | Place::Branches(s), .. } => (value, s),
            _ => unreachable!("only enabled transitions are done"),
        }
    }

    /// The transitions that the types allow now.
    pub fn acts(&self, run: &Run) -> Vec<Act> {
        let a = run.allow;
        let mut out = Vec::new();
        let threads = if a.threads { 0..2 } else { 0..1 };
        // The streams that a thread has, of those that are used and the next one.
        let streams_of = |thread: u8| {
            let used =
                if a.devices || a.foreign || a.thread_streams { a.streams } else { a.streams.min(self.used + 1) };
            (0..used).filter(move |&s| {
                (!a.lanes || self.lane == Some(s)) && (!a.thread_streams || s == 0 || s == FOREIGN + thread)
            })
        };
        let room = self.handles.len() < a.handles;
        let has = |l: &Life| !matches!(l, Life::Live | Life::Unused);
        if room {
            // The lowest block that was never used, and each that was.
            for range in [0..a.device, a.device..a.device + a.pinned] {
                let unused = |b: u8| self.blocks[b as usize] == Life::Unused;
                let fresh = range.clone().find(|&b| unused(b));
                for block in
                    range.filter(|&b| has(&self.blocks[b as usize]) || fresh == Some(b) || a.devices && unused(b))
                {
                    // The threads are alike, so the first one makes what is new.
                    for thread in threads.clone().filter(|&t| t == 0 || fresh != Some(block)) {
                        if self.is_device(block, run) {
                            let streams = streams_of(thread).filter(|&s| Self::at_home(block, s, run));
                            out.extend(streams.map(|s| Act::Alloc { s, block, thread }));
                        } else {
                            out.push(Act::Lend { block, thread });
                        }
                    }
                }
            }
        }
        if let Some(s) = self.forked {
            out.push(Act::JoinBranches(s));
        }
        let pruned = (0..self.splits.len()).filter(|&id| !self.splits[id].after.is_empty());
        out.extend(pruned.flat_map(|id| threads.clone().map(move |thread| Act::Prune(id, thread))));
        if a.lanes {
            match self.lane {
                None => out.extend((0..a.streams.min(self.used + 1)).map(Act::LaneBegin)),
                Some(lane) => {
                    let empty = !self.handles.iter().any(|h| matches!(h.place, Place::On(_)));
                    if empty || run.broken == Broken::LaneLeaks {
                        out.push(Act::LaneEnd);
                    }
                    if run.broken == Broken::TagOfTwoStreams {
                        out.extend((0..a.streams).filter(|&s| s != lane).map(Act::LaneBegin));
                    }
                }
            }
        }
        if a.nodes > 0 {
            self.acts_of_graphs(run, &mut out);
        }
        for (h, handle) in self.handles.iter().enumerate() {
            if self.handles[..h].contains(handle) {
                continue; // two equal handles of one shared resource are alike
            }
            let &Handle { value, place, peer, thread, carried } = handle;
            let streams = streams_of(thread).filter(|&s| self.admits(handle, s, run));
            let own_stream = a.thread_streams && place == Place::On(FOREIGN + thread);
            if a.threads
                && carried.is_none()
                && matches!(place, Place::Idle | Place::On(_) | Place::Event(_))
                && (!own_stream || run.broken == Broken::ThreadStreamCrosses)
            {
                out.push(Act::Send(h));
            }
            if a.devices && matches!(place, Place::Idle | Place::Event(_)) {
                out.push(Act::MapPeer(h));
            }
            if a.lanes && self.lane.is_none() && matches!(place, Place::On(_)) {
                continue; // only with a broken rule
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
                    // Kernels do not take buffers of other devices.
                    if !peer {
                        out.push(Act::Read(h));
                    }
                    if a.foreign && s == FOREIGN && shared.is_none() {
                        out.push(Act::Library(h));
                    }
                    if shared.is_none() {
                        if !peer {
                            out.push(Act::Write(h));
                        }
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
                            if i != h
                                && other.place == place
                                && other.thread == thread
                                && matches!(other.value, Value::Buf { .. })
                            {
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
                Place::Captured(_) | Place::CapturedForBoth(..) => {}
                Place::HandingOff(..) => out.push(Act::HandOffEnd(h)),
                Place::Ending(_, turn, cell) => {
                    out.push(if turn.is_some() && cell.is_some() { Act::EndStore(h) } else { Act::EndRecord(h) });
                }
            }
            let owned = matches!(place, Place::Idle | Place::On(_) | Place::Event(_));
            if droppable && !a.no_forget && owned {
                out.push(Act::Forget(h));
            }
            if a.split && matches!(place, Place::On(_) | Place::Idle) {
                let Value::Buf { lo, hi, split, .. } = value else { continue };
                if room && hi - lo == 2 {
                    out.push(Act::Split(h));
                }
                for (i, other) in self.handles.iter().enumerate() {
                    let Value::Buf { lo: l, split: s, .. } = other.value else { continue };
                    let together = other.thread == thread && other.place == place
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

    /// The transitions of a capture that is in progress, or of a graph that was captured so.
    fn acts_of_graphs(&self, run: &Run, out: &mut Vec<Act>) {
        let Some(capture) = &self.capture else {
            let on = |s: u8| self.handles.iter().filter(move |h| h.place == Place::On(s));
            match &self.nodes {
                None => out.extend((0..run.allow.streams).filter(|&s| on(s).count() > 0).map(Act::CaptureBegin)),
                Some(graph) if !graph.stale => {
                    // The bundle has each buffer of the graph.
                    out.extend(
                        (0..run.allow.streams)
                            .filter(|&s| {
                                let has = |value: &Value| on(s).any(|h| h.value == *value);
                                match run.broken {
                                    Broken::ReplayWithoutPart => graph.values.iter().any(has),
                                    _ => graph.values.iter().all(has),
                                }
                            })
                            .map(Act::ReplayNodes),
                    );
                }
                Some(_) => {}
            }
            return;
        };
        if capture.open.is_empty() && !capture.nodes.is_empty() {
            out.push(Act::CaptureEnd);
        }
        if !capture.open.is_empty() {
            out.push(Act::NodeJoin);
        }
        for (h, handle) in self.handles.iter().enumerate() {
            let room = capture.nodes.len() < run.allow.nodes;
            match handle.place {
                Place::Captured(branch) if room => {
                    out.extend([Act::NodeRead(h, branch), Act::NodeWrite(h, branch)]);
                    if run.broken == Broken::NodeOfBothBranches {
                        let from = capture.open.iter().filter(|open| open.0 == branch);
                        out.extend(from.map(|&(_, from)| Act::NodeWrite(h, from)));
                    }
                    if capture.open.len() < INSIDE.len() {
                        out.push(Act::NodeFork(h, None));
                        let others = self.handles.iter().enumerate();
                        let others = others.filter(|&(i, other)| i != h && other.place == handle.place);
                        out.extend(others.map(|(i, _)| Act::NodeFork(h, Some(i))));
                    }
                }
                Place::CapturedForBoth(one, other) if room => {
                    out.extend([Act::NodeRead(h, one), Act::NodeRead(h, other)]);
                }
                _ => {}
            }
        }
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
        | Act::LaneBegin(s)
        | Act::WriteFrom(_, s) = act
        {
            self.used = self.used.max(s + 1);
        }
    }

    /// Makes equivalent states equal: the order of handles, the numbers of events, the times.
    pub fn canonical(&mut self, broken: Broken) {
        self.hb.host = HOST;
        // A thread learns nothing from what it knows.
        for h in &mut self.handles {
            let known = self.hb.clocks[HOST + h.thread as usize];
            h.carried = h.carried.filter(|p| p.clock.0.iter().zip(known.0).any(|(at, known)| *at > known));
        }
        let rest = |h: &Handle| (h.peer, h.thread, h.carried.map(|p| p.clock));
        let key = |h: &Handle, cells: &[Cell]| match h.place {
            Place::Event(c) => (h.value, Place::Event(0), cells[c as usize].point.map(|p| p.clock), rest(h)),
            place => (h.value, place, None, rest(h)),
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
                let (value, readers) = (Value::Shared(0), [None; STREAMS]);
                *s = Sharing { value, producer: 0, holders: 0, readers, turns: 0, released: Vec::new() };
                continue;
            }
            rename(&mut s.producer, &old);
            s.readers.iter_mut().flatten().for_each(|r| rename(&mut r.1, &old));
        }
        for s in &mut self.splits {
            if s.pieces == 0 {
                *s = Split { block: 0, pieces: 0, after: Vec::new(), lock: None };
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
                Handle { value: Value::Shared(i), place: Place::Ending(_, Some(t), _), .. } if *i as usize == id => {
                    Some(*t)
                }
                _ => None,
            }));
            turns.sort_unstable();
            turns.dedup();
            let rank = |t: &mut u8| *t = 1 + turns.partition_point(|&u| u < *t) as u8;
            self.shared[id].readers.iter_mut().flatten().for_each(|r| rank(&mut r.0));
            for h in &mut self.handles {
                if let Handle { value: Value::Shared(i), place: Place::Ending(_, Some(t), _), .. } = h
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
        let Self { hb, cells, own, blocks, graphs, handles, shared, splits, pool, .. } = self;
        let clocks = cells.iter_mut().filter_map(|c| c.point.as_mut());
        let clocks = clocks.chain(own.iter_mut().flatten());
        let clocks =
            clocks.chain(blocks.iter_mut().filter_map(|b| if let Life::Freed(p) = b { Some(p) } else { None }));
        let clocks = clocks.chain(graphs.iter_mut().filter_map(|g| g.last.as_mut()));
        let clocks = clocks.chain(handles.iter_mut().filter_map(|h| h.carried.as_mut()));
        let clocks = clocks.chain(shared.iter_mut().flat_map(|s| &mut s.released));
        let clocks = clocks.chain(splits.iter_mut().filter_map(|s| s.lock.as_mut())).chain(pool);
        let clocks: Vec<&mut Clock> = clocks.map(|p| &mut p.clock).collect();
        hb.compress(clocks);
    }
}
