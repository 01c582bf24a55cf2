//! The searches with the rules of the crate, and the rules that are broken on purpose.

use crate::rules::{Allow, Broken};

/// A search with the rules of the crate.
pub struct Search {
    pub name: &'static str,
    pub allow: Allow,
    /// The most transitions of a program for `model compare`, for an ordinary run, and for
    /// `model all`.
    pub small: usize,
    pub usual: usize,
    pub large: usize,
}

const fn case(name: &'static str, bounds: [usize; 3], allow: Allow) -> Search {
    Search { name, allow, small: bounds[0], usual: bounds[1], large: bounds[2] }
}

const NOTHING: Allow = Allow {
    streams: 3,
    device: 2,
    pinned: 0,
    share: false,
    split: false,
    graph: false,
    copies: false,
    unzip: false,
    fork: false,
    failures: false,
    steps: false,
    threads: false,
    thread_streams: false,
    devices: false,
    foreign: false,
    lanes: false,
    nodes: 0,
    no_host: false,
    no_drop: false,
    no_hand_off: false,
    no_record: false,
    no_forget: false,
    handles: 3,
};

pub const SEARCHES: &[Search] = &[
    case(
        "everything",
        [5, 7, 8],
        Allow { streams: 2, pinned: 1, share: true, split: true, graph: true, copies: true, unzip: true, ..NOTHING },
    ),
    case("device memory", [6, 11, 13], Allow { handles: 2, unzip: true, ..NOTHING }),
    case("page-locked memory", [6, 9, 11], Allow { device: 1, pinned: 2, copies: true, streams: 2, ..NOTHING }),
    case("shared", [6, 11, 13], Allow { device: 1, share: true, ..NOTHING }),
    case("shared, page-locked", [6, 11, 14], Allow { device: 0, pinned: 1, share: true, streams: 2, ..NOTHING }),
    case("pieces", [6, 10, 12], Allow { device: 1, split: true, ..NOTHING }),
    case("pieces, page-locked", [6, 10, 12], Allow { device: 0, pinned: 1, split: true, streams: 2, ..NOTHING }),
    case("graphs", [6, 12, 14], Allow { graph: true, share: true, device: 1, streams: 2, ..NOTHING }),
    case("forks", [6, 9, 11], Allow { fork: true, share: true, streams: 2, ..NOTHING }),
    case(
        "events",
        [6, 9, 11],
        Allow { device: 3, unzip: true, no_hand_off: true, no_forget: true, streams: 2, ..NOTHING },
    ),
    case("calls that fail", [6, 9, 11], Allow { device: 1, share: true, failures: true, ..NOTHING }),
    case("hand_off in two steps", [6, 11, 13], Allow { steps: true, handles: 2, no_host: true, ..NOTHING }),
    case(
        "ends of reads in three steps",
        [13, 18, 22],
        Allow {
            device: 1,
            share: true,
            steps: true,
            no_drop: true,
            no_hand_off: true,
            no_record: true,
            streams: 2,
            ..NOTHING
        },
    ),
    case("two threads", [5, 10, 11], Allow { threads: true, streams: 2, no_forget: true, handles: 2, ..NOTHING }),
    case(
        "two threads, page-locked",
        [5, 12, 14],
        Allow { threads: true, device: 0, pinned: 1, streams: 2, no_forget: true, ..NOTHING },
    ),
    case(
        "two threads, shared",
        [6, 10, 12],
        Allow {
            threads: true,
            device: 0,
            pinned: 1,
            share: true,
            no_hand_off: true,
            no_forget: true,
            streams: 2,
            ..NOTHING
        },
    ),
    case(
        "two threads, pieces",
        [6, 10, 12],
        Allow {
            threads: true,
            device: 1,
            split: true,
            no_hand_off: true,
            no_forget: true,
            streams: 2,
            handles: 2,
            ..NOTHING
        },
    ),
    case(
        "streams of threads",
        [5, 9, 10],
        Allow { threads: true, thread_streams: true, no_forget: true, handles: 2, ..NOTHING },
    ),
    case("two devices", [6, 12, 15], Allow { devices: true, copies: true, streams: 2, no_forget: true, ..NOTHING }),
    case(
        "foreign streams",
        [5, 9, 10],
        Allow { foreign: true, share: true, streams: 2, no_forget: true, handles: 2, ..NOTHING },
    ),
    case(
        "lanes",
        [6, 13, 16],
        Allow { lanes: true, streams: 2, no_hand_off: true, no_forget: true, handles: 2, ..NOTHING },
    ),
    case(
        "inside of graphs",
        [6, 10, 11],
        Allow { nodes: 5, streams: 1, no_record: true, no_hand_off: true, no_forget: true, ..NOTHING },
    ),
    case(
        "bundles of graphs",
        [6, 9, 10],
        Allow { nodes: 2, streams: 2, no_record: true, no_forget: true, handles: 2, ..NOTHING },
    ),
];

pub fn named(name: &str) -> &'static Search {
    match SEARCHES.iter().find(|search| search.name == name) {
        Some(search) => search,
        None => panic!("no search is called {name}"),
    }
}

/// A rule that is broken, and the search that must find its race.
pub struct Case {
    pub broken: Broken,
    pub name: &'static str,
    pub search: &'static str,
    pub expected: Expected,
}

pub enum Expected {
    Race,
    /// No race depends on the rule, in programs of so many transitions.
    NoRace {
        depth: usize,
    },
}

const fn rule(broken: Broken, name: &'static str, search: &'static str) -> Case {
    Case { broken, name, search, expected: Expected::Race }
}

pub const RULES: &[Case] = &[
    rule(Broken::RecordMissing, "an event is made without its record", "device memory"),
    rule(Broken::WaitMissing, "wait does not make the stream wait", "device memory"),
    rule(Broken::HandOffWithoutWait, "hand_off forgets the wait", "device memory"),
    rule(Broken::HandOffWithoutRecord, "hand_off waits for an older record", "device memory"),
    rule(Broken::OneHandOffEventForAll, "hand_off has one event for all streams", "hand_off in two steps"),
    rule(Broken::SynchronizeDoesNotWait, "synchronize or query gives the value at once", "page-locked memory"),
    rule(Broken::StreamNotChecked, "an operation takes a buffer of another stream", "device memory"),
    rule(Broken::DropFreesAtOnce, "the drop of an On frees at once", "device memory"),
    rule(Broken::DropFreesAtOnce, "page-locked memory is reused at once when its On is dropped", "pieces, page-locked"),
    rule(Broken::EventDropFreesAtOnce, "the drop of an Event frees at once", "device memory"),
    rule(Broken::PoolLendsEarly, "a pool reuses a block before its events are complete", "page-locked memory"),
    rule(Broken::EventLentWhileLeased, "an event is recorded again while it is leased", "events"),
    rule(Broken::ReadingSkipsProducer, "reading does not wait for the producer", "shared"),
    rule(Broken::BindSkipsProducer, "bind of a Shared does not wait for the producer", "shared"),
    rule(Broken::ReadingEndNotRecorded, "the end of a read is not recorded", "shared"),
    rule(Broken::OnlyLastReaderKept, "one event is kept for the readers of all streams", "shared"),
    rule(Broken::OldestReaderKept, "the oldest read of a stream is kept, not its newest", "shared"),
    rule(Broken::TurnAfterRecord, "the turn of a read is drawn after its record", "ends of reads in three steps"),
    rule(Broken::NoTurns, "the read that is stored last is kept", "ends of reads in three steps"),
    rule(Broken::UnshareSkipsReaders, "unshare does not wait for the readers", "shared"),
    rule(Broken::UnshareSkipsProducer, "unshare does not wait for the producer", "shared"),
    rule(Broken::FailedUnshareForgetsReaders, "unshare that fails forgets the readers", "calls that fail"),
    rule(Broken::UnshareWhileRead, "unshare works while a read is alive", "shared"),
    rule(Broken::SharedDropSkipsReaders, "the last handle frees without the readers", "shared"),
    rule(Broken::SharedDropSkipsProducer, "the last handle frees without the producer", "shared"),
    rule(Broken::PieceForgetsItsEvent, "a dropped piece forgets its event", "pieces"),
    rule(Broken::PieceFreesWhole, "a dropped piece frees the whole", "pieces"),
    rule(Broken::LastPieceFreesAlone, "the last piece frees after its own event only", "pieces"),
    rule(Broken::EventsOfPiecesForgotten, "events of dropped pieces are removed before they are complete", "pieces"),
    rule(Broken::JoinAcrossStreams, "join takes pieces of two streams", "pieces"),
    rule(Broken::ReplayBesideInputs, "a replay does not come after its inputs", "graphs"),
    rule(Broken::ReplayBesideLater, "later work does not come after a replay", "graphs"),
    rule(Broken::GraphComparesAddresses, "a graph compares addresses and not allocations", "graphs"),
    rule(Broken::ForkDoesNotWait, "a branch does not wait for the fork", "forks"),
    rule(Broken::JoinDoesNotWait, "the stream does not wait for the branch at the join", "forks"),
    rule(Broken::BothBranchesWrite, "both branches of a fork write one buffer", "forks"),
    rule(Broken::NodeForkWithoutEdge, "in a graph, a branch does not come after the fork", "inside of graphs"),
    rule(
        Broken::NodeJoinWithoutEdge,
        "in a graph, what follows a join does not come after the branch",
        "inside of graphs",
    ),
    rule(Broken::NodeOfBothBranches, "in a graph, both branches write one buffer", "inside of graphs"),
    rule(Broken::ReplayWithoutPart, "a replay takes a bundle that lacks a captured buffer", "bundles of graphs"),
    rule(Broken::ThreadsNotOrdered, "a value gets to another thread without an order", "two threads, page-locked"),
    rule(Broken::CountOrdersNothing, "the count of holders does not order threads", "two threads, shared"),
    rule(Broken::ListOrdersNothing, "the list of events of pieces does not order threads", "two threads, pieces"),
    rule(Broken::PoolOrdersNothing, "a pool does not order threads", "two threads, page-locked"),
    rule(
        Broken::ThreadStreamCrosses,
        "a buffer of the stream of a thread gets to another thread",
        "streams of threads",
    ),
    rule(Broken::PeerCopyElsewhere, "a copy between devices runs on a stream of the other device", "two devices"),
    rule(Broken::PeerEventLost, "map_peer and map_local lose the event", "two devices"),
    rule(Broken::PeerDropFreesAtOnce, "memory of another device is freed at once", "two devices"),
    rule(Broken::EnterDoesNotWait, "a foreign stream does not wait for what it gets", "foreign streams"),
    rule(Broken::LeaveDoesNotWait, "nobody waits for what a foreign stream gives back", "foreign streams"),
    rule(Broken::LaneLeaks, "a buffer leaves the closure that has its stream", "lanes"),
    rule(Broken::TagOfTwoStreams, "one brand is two streams", "lanes"),
    rule(Broken::LibraryDoesNotFollow, "other code does not wait for its stream (assumed to)", "foreign streams"),
    rule(Broken::LibraryNotJoined, "other code is not done when its stream is (assumed to be)", "foreign streams"),
    rule(Broken::AllocatorDoesNotOrder, "the driver reuses memory before its free (assumed not to)", "device memory"),
    Case {
        broken: Broken::ReplaysOverlap,
        name: "the driver runs two replays of a graph at once",
        search: "graphs",
        expected: Expected::NoRace { depth: 11 },
    },
    Case {
        broken: Broken::PlainBufferOnOtherDevice,
        name: "a stream takes a plain buffer of another device",
        search: "two devices",
        expected: Expected::NoRace { depth: 8 },
    },
];
