//! The checker against an oracle that forgets nothing: random accesses of a few threads, with every
//! kind, width, order and scope, and whatever orders threads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use super::{Checker, Effect, Finding, Found, TAG};
use crate::cpu::monitor::{Access, Kind, Order, Scope};
use crate::host::{BufferKind, Parameter};
use crate::violation::{Violation, Wrong};

/// The bytes of a buffer and of shared memory that a program uses.
const BYTES: usize = 32;
const THREADS: u32 = 96;
/// Two threads of a warp, and one of each other one.
const RANKS: [u32; 4] = [0, 1, 40, 95];
/// An address that nobody dereferences.
const AT: usize = 0x10_0000;

/// What came of an access.
#[derive(Debug, PartialEq)]
enum Outcome {
    Fine,
    /// The element that does not exist.
    Outside(usize),
    Found(Finding),
}

fn outcome(access: impl FnOnce()) -> Outcome {
    match catch_unwind(AssertUnwindSafe(access)) {
        Ok(()) => Outcome::Fine,
        Err(panic) => match panic.downcast::<Found>() {
            Ok(found) => Outcome::Found(found.finding),
            Err(panic) => match panic.downcast::<Violation>().expect("a finding or a violation").what {
                Wrong::Outside { element, .. } => Outcome::Outside(element),
                Wrong::Shared(access) => panic!("{access}"),
            },
        },
    }
}

/// A launch with one buffer.
struct Launch {
    checker: Checker,
    address: usize,
}

impl Launch {
    fn new(element: usize, len: usize, written: bool) -> Self {
        let parameters = [Parameter::new::<u64>("x", Some(BufferKind { element, written }))];
        let mut slots = [AT as u64, len as u64];
        let checker = Checker::new(&parameters, &mut slots, [2, 1, 1], [4, 8, 3]);
        Self { checker, address: slots[0] as usize }
    }

    #[track_caller]
    fn global(&self, rank: u32, offset: usize, bytes: usize, access: Access) -> Outcome {
        let location = Location::caller();
        outcome(|| _ = self.checker.global(rank, self.address.wrapping_add(offset), bytes, 1, access, location))
    }

    #[track_caller]
    fn shared(&self, rank: u32, offset: usize, bytes: usize, access: Access) -> Outcome {
        let location = Location::caller();
        outcome(|| self.checker.shared(rank, (0, offset as u32, 1), bytes, access, location))
    }
}

type Thread = (u32, u32);
/// For each thread, how many of its accesses come before.
type Times = HashMap<Thread, u32>;

fn join(to: &mut Times, from: &Times) {
    from.iter().for_each(|(thread, time)| _ = to.entry(*thread).and_modify(|t| *t = *time.max(t)).or_insert(*time));
}

/// An access of a byte, as the oracle keeps it.
#[derive(Clone, Copy)]
struct Past {
    thread: Thread,
    time: u32,
    writes: bool,
    /// The scope of an atomic operation.
    atomic: Option<Scope>,
}

/// A larger number for those that may meet more accesses.
fn meets(atomic: Option<Scope>) -> u32 {
    match atomic {
        None => 0,
        Some(Scope::Block) => 1,
        Some(Scope::Device) => 2,
    }
}

/// All accesses, and what each thread knows of the others.
#[derive(Default)]
struct Oracle {
    block: u32,
    known: HashMap<Thread, Times>,
    seen: HashMap<Thread, Times>,
    fenced: HashMap<Thread, Times>,
    released: HashMap<usize, Times>,
    bytes: HashMap<usize, Vec<Past>>,
    /// Whether a byte had more accesses of a kind at once, with no order among them, than a cell of
    /// the checker has room for.
    crowded: bool,
}

impl Oracle {
    fn knows(&self, thread: Thread, past: &Past) -> bool {
        past.thread == thread || self.known.get(&thread).is_some_and(|t| t.get(&past.thread) >= Some(&past.time))
    }

    /// What a thread releases: what it knows, and its own accesses.
    fn past(&mut self, thread: Thread) -> Times {
        self.known.entry(thread).or_default().entry(thread).or_default();
        self.known[&thread].clone()
    }

    fn meet(&mut self, ranks: impl Iterator<Item = u32> + Clone) {
        let block = self.block;
        let mut all = Times::new();
        ranks.clone().for_each(|rank| join(&mut all, &self.past((block, rank))));
        ranks.for_each(|rank| join(self.known.entry((block, rank)).or_default(), &all));
    }

    fn fence(&mut self, thread: Thread) {
        let seen = self.seen.get(&thread).cloned().unwrap_or_default();
        join(self.known.entry(thread).or_default(), &seen);
        let past = self.past(thread);
        self.fenced.insert(thread, past);
    }

    /// Enters an access, and returns whether it races.
    fn access(&mut self, rank: u32, offset: usize, bytes: usize, access: Access) -> bool {
        let thread = (self.block, rank);
        let (writes, atomic) = match access {
            Access::Read => (false, None),
            Access::Write => (true, None),
            Access::Atomic { kind, scope, .. } => (kind != Kind::Load, Some(scope)),
        };
        let may_meet = |past: &Past| match (past.atomic, atomic) {
            (Some(a), Some(b)) => past.thread.0 == thread.0 || (a, b) == (Scope::Device, Scope::Device),
            _ => false,
        };
        let races = |past: &Past| (writes || past.writes) && !self.knows(thread, past) && !may_meet(past);
        let empty = Vec::new();
        if (offset..offset + bytes).any(|byte| self.bytes.get(&byte).unwrap_or(&empty).iter().any(races)) {
            return true;
        }
        let time = self.past(thread)[&thread] + 1;
        self.known.entry(thread).or_default().insert(thread, time);
        for byte in offset..offset + bytes {
            let mut kept = self.bytes.remove(&byte).unwrap_or_default();
            kept.push(Past { thread, time, writes, atomic });
            // Those for which the new access does not stand.
            let own = meets(atomic);
            let open = kept.iter().filter(|past| past.writes == writes);
            let open = open.filter(|past| !self.knows(thread, past) || meets(past.atomic) < own);
            self.crowded |= open.map(|past| (past.thread, meets(past.atomic))).collect::<HashSet<_>>().len() > 1;
            self.bytes.insert(byte, kept);
        }
        let Access::Atomic { kind, order, .. } = access else { return false };
        if kind != Kind::Store
            && let Some(released) = self.released.get(&offset)
        {
            let acquires = matches!(order, Order::Acquire | Order::AcquireRelease);
            let to = if acquires { &mut self.known } else { &mut self.seen };
            join(to.entry(thread).or_default(), released);
        }
        if kind == Kind::Store {
            self.released.remove(&offset);
        }
        if kind != Kind::Load {
            let past = match order {
                Order::Release | Order::AcquireRelease => Some(self.past(thread)),
                _ => self.fenced.get(&thread).cloned(),
            };
            if let Some(past) = past {
                join(self.released.entry(offset).or_default(), &past);
            }
        }
        false
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % n
    }

    fn of<T: Copy, const N: usize>(&mut self, items: [T; N]) -> T {
        items[self.below(N as u64) as usize]
    }

    /// An access with its place. Atomic operations are of words.
    fn access(&mut self) -> (usize, usize, Access) {
        if self.below(2) == 0 {
            let order = self.of([Order::Relaxed, Order::Acquire, Order::Release, Order::AcquireRelease]);
            let (kind, scope) = (
                self.of([Kind::Load, Kind::Store, Kind::Update]),
                self.of([Scope::Block, Scope::Device, Scope::Device]),
            );
            return (4 * self.below(3) as usize, 4, Access::Atomic { kind, order, scope });
        }
        let bytes = self.of([1usize, 2, 4, 4, 8, 16]);
        (bytes * self.below((BYTES / bytes) as u64) as usize, bytes, self.of([Access::Read, Access::Write]))
    }
}

/// Runs a program. Returns whether it raced, and whether a cell had room for what the oracle kept.
fn program(seed: u64, global: bool) -> (bool, bool) {
    let random = &mut Random(seed);
    let (launch, mut oracle) = (Launch::new(random.of([1, 4, 8]), BYTES, true), Oracle::default());
    let launch = if global { launch } else { Launch::new(4, 8, true) };
    launch.checker.start(0);
    if !global {
        assert_eq!(launch.shared(0, 0, BYTES, Access::Write), Outcome::Fine);
        launch.checker.barrier();
    }
    let mut log = Vec::new();
    for _ in 0..24 {
        let rank = random.of(RANKS);
        let thread = (oracle.block, rank);
        match random.below(16) {
            0 => {
                log.push("barrier".to_owned());
                launch.checker.barrier();
                oracle.meet(RANKS.into_iter());
            }
            1 => {
                let warp = rank / 32;
                log.push(format!("barrier of warp {warp}"));
                launch.checker.warp_barrier(warp);
                oracle.meet(RANKS.into_iter().filter(move |rank| rank / 32 == warp));
            }
            2 => {
                let mask = random.of([0b11, 0b10, 0b101]);
                log.push(format!("barrier of lanes {mask:b} of warp 0"));
                launch.checker.lanes_barrier(0, mask);
                oracle.meet(RANKS.into_iter().filter(move |rank| *rank < 32 && mask >> rank & 1 == 1));
            }
            3 => {
                log.push(format!("fence of {thread:?}"));
                launch.checker.fence(rank);
                oracle.fence(thread);
            }
            4 if global && oracle.block == 0 => {
                log.push("the next block".to_owned());
                launch.checker.start(1);
                oracle.block = 1;
            }
            _ => {
                let (offset, bytes, access) = random.access();
                log.push(format!("{thread:?} {access:?} {bytes} bytes at {offset}"));
                let found = match global {
                    true => launch.global(rank, offset, bytes, access),
                    false => launch.shared(rank, offset, bytes, access),
                };
                let races = oracle.access(rank, offset, bytes, access);
                let found = match found {
                    Outcome::Fine => false,
                    Outcome::Found(Finding::Race { .. }) => true,
                    other => panic!("seed {seed}: {other:?}"),
                };
                assert!(races || !found, "seed {seed}: a race that is none\n{}", log.join("\n"));
                assert!(found || !races || oracle.crowded, "seed {seed}: a race is not found\n{}", log.join("\n"));
                if races {
                    return (true, !oracle.crowded);
                }
            }
        }
    }
    (false, !oracle.crowded)
}

#[test]
fn races_of_random_programs_are_those_of_the_oracle() {
    for global in [true, false] {
        let ended: Vec<_> = (0..6000).map(|seed| program(seed, global)).collect();
        let count = |races, room| ended.iter().filter(|it| **it == (races, room)).count();
        let [raced, silent] = [count(true, true), count(false, true)];
        assert!(raced > 1000 && silent > 10, "{raced} and {silent}");
    }
}

/// Of three loads that nothing orders, the last one is kept and one of another warp.
#[test]
fn a_load_of_another_warp_is_not_forgotten() {
    for order in [[40, 1, 0], [1, 40, 0]] {
        let launch = Launch::new(4, 8, true);
        launch.checker.start(0);
        for rank in order {
            assert_eq!(launch.global(rank, 0, 4, Access::Read), Outcome::Fine);
        }
        launch.checker.warp_barrier(0);
        let stored = launch.global(1, 0, 4, Access::Write);
        assert!(matches!(stored, Outcome::Found(Finding::Race { .. })), "{order:?}: {stored:?}");
    }
}

#[test]
fn each_byte_of_an_allocation_is_unwritten_at_first() {
    let start = 1 << 60; // where no test has memory
    super::memory::allocated(start, 9);
    let flags = super::memory::find(start).unwrap();
    for at in 0..9 {
        assert_eq!(flags.first_unwritten(start, 9), Some(start + at));
        super::memory::written(start + at, 1);
    }
    assert_eq!(flags.first_unwritten(start, 9), None);
    super::memory::freed(start);
    assert!(super::memory::find(start).is_none(), "other memory may be there now, which has no flags");
}

/// A fence passes on what its thread did before it, and not what it did since.
#[test]
fn a_fence_covers_what_is_before_it() {
    let flag = |kind, order| Access::Atomic { kind, order, scope: Scope::Device };
    let loaded = |fence_first: bool| {
        let launch = Launch::new(4, 8, true);
        launch.checker.start(0);
        if fence_first {
            launch.checker.fence(33);
        }
        assert_eq!(launch.global(33, 0, 4, Access::Write), Outcome::Fine);
        if !fence_first {
            launch.checker.fence(33);
        }
        assert_eq!(launch.global(33, 16, 4, flag(Kind::Store, Order::Relaxed)), Outcome::Fine);
        launch.checker.start(1);
        assert_eq!(launch.global(95, 16, 4, flag(Kind::Load, Order::Acquire)), Outcome::Fine);
        launch.global(95, 0, 4, Access::Read)
    };
    assert_eq!(loaded(false), Outcome::Fine);
    assert!(matches!(loaded(true), Outcome::Found(Finding::Race { .. })), "{:?}", loaded(true));
}

/// A release passes on what barriers have ordered before it, also of other threads.
#[test]
fn a_release_has_what_a_barrier_ordered() {
    let operation = |kind, order| Access::Atomic { kind, order, scope: Scope::Device };
    let loaded = |meet: fn(&Checker)| {
        let launch = Launch::new(4, 8, true);
        launch.checker.start(0);
        assert_eq!(launch.global(33, 0, 4, Access::Write), Outcome::Fine);
        meet(&launch.checker);
        assert_eq!(launch.global(40, 16, 4, operation(Kind::Store, Order::Release)), Outcome::Fine);
        launch.checker.start(1);
        assert_eq!(launch.global(95, 16, 4, operation(Kind::Load, Order::Acquire)), Outcome::Fine);
        launch.global(95, 0, 4, Access::Read)
    };
    assert_eq!(loaded(|checker| checker.barrier()), Outcome::Fine);
    assert_eq!(loaded(|checker| checker.warp_barrier(1)), Outcome::Fine);
    assert_eq!(loaded(|checker| checker.lanes_barrier(1, 1 << 1 | 1 << 8)), Outcome::Fine);
    assert!(matches!(loaded(|_| {}), Outcome::Found(Finding::Race { .. })));
    assert!(matches!(loaded(|checker| checker.warp_barrier(0)), Outcome::Found(Finding::Race { .. })));
}

/// A report names the first element that the access wants and the buffer does not have.
#[test]
fn an_access_ends_with_its_buffer() {
    for (element, bytes) in [(4isize, 4isize), (4, 8), (4, 16), (1, 1), (1, 4), (8, 16)] {
        for (len, access) in [(1, Access::Read), (8, Access::Read), (8, Access::Write)] {
            for offset in -9..8 * element + 9 {
                let end = len * element;
                let expected = match offset {
                    _ if offset < 0 => Outcome::Outside(offset.div_euclid(element) as usize),
                    _ if offset + bytes > end => Outcome::Outside((offset.max(end) / element) as usize),
                    _ => Outcome::Fine,
                };
                let launch = Launch::new(element as usize, len as usize, true);
                let found = launch.global(3, offset as usize, bytes as usize, access);
                assert_eq!(found, expected, "{bytes} bytes at {offset} of {end}");
            }
        }
    }
}

#[test]
fn an_input_is_only_read() {
    let launch = Launch::new(4, 8, false);
    assert_eq!(launch.global(0, 4, 4, Access::Read), Outcome::Fine);
    let stored = launch.global(0, 4, 4, Access::Write);
    assert!(matches!(stored, Outcome::Found(Finding::ReadOnly { .. })), "{stored:?}");
}

/// A constant of the program is in no buffer, and its address has no tag.
#[test]
fn a_constant_is_only_read() {
    let launch = Launch::new(4, 8, true);
    let at = |address, access| outcome(|| _ = launch.checker.global(0, address, 4, 4, access, Location::caller()));
    assert_eq!(at(AT + 4, Access::Read), Outcome::Fine);
    assert!(matches!(at(AT + 4, Access::Write), Outcome::Found(Finding::NoBuffer { .. })));
    assert!(matches!(at(AT + 2, Access::Read), Outcome::Found(Finding::Misaligned { .. })));
}

/// A report counts elements from the start of the buffer, or of the window.
#[test]
fn a_report_names_the_element() {
    let launch = Launch::new(4, 8, false);
    let stored = launch.global(0, 12, 4, Access::Write);
    assert_eq!(stored, Outcome::Found(Finding::ReadOnly { memory: "element 3 of `x`".into() }));
    let loaded = outcome(|| launch.checker.shared(0, (8, 3, 4), 4, Access::Read, Location::caller()));
    let memory = "element 3 of the window at byte 8 of shared memory".into();
    assert_eq!(loaded, Outcome::Found(Finding::Unwritten { memory }));
}

/// A load of several words is of memory that somebody wrote, in each word.
#[test]
fn each_word_of_a_load_was_written() {
    for missing in 0..4 {
        let launch = Launch::new(4, 8, true);
        launch.checker.start(0);
        for word in (0..4).filter(|word| *word != missing) {
            assert_eq!(launch.shared(0, 4 * word, 4, Access::Write), Outcome::Fine);
        }
        let loaded = launch.shared(0, 0, 16, Access::Read);
        assert!(matches!(loaded, Outcome::Found(Finding::Unwritten { .. })), "{missing}: {loaded:?}");
    }
}

/// An atomic store needs no value before it, and any other atomic operation does.
#[test]
fn an_atomic_operation_reads_unless_it_stores() {
    let operation = |kind| Access::Atomic { kind, order: Order::Relaxed, scope: Scope::Device };
    let launch = Launch::new(4, 8, true);
    launch.checker.start(0);
    assert_eq!(launch.shared(0, 0, 4, operation(Kind::Store)), Outcome::Fine);
    for kind in [Kind::Load, Kind::Update] {
        let found = launch.shared(0, 4, 4, operation(kind));
        assert!(matches!(found, Outcome::Found(Finding::Unwritten { .. })), "{kind:?}: {found:?}");
    }
}

/// Of threads and blocks with several coordinates, a report has all of them.
#[test]
fn a_report_names_the_other_thread_and_what_it_did() {
    let relaxed = |kind| Access::Atomic { kind, order: Order::Relaxed, scope: Scope::Device };
    let cases = [(Access::Read, "loads"), (Access::Write, "stores to"), (relaxed(Kind::Update), "updates atomically")];
    for (access, did) in cases {
        let launch = Launch::new(4, 8, true);
        launch.checker.start(0);
        assert_eq!(launch.global(THREADS - 1, 0, 4, access), Outcome::Fine);
        launch.checker.start(1);
        let Outcome::Found(finding) = launch.global(0, 0, 4, Access::Write) else { panic!("{did}") };
        let text = finding.to_string();
        assert!(text.starts_with("stores to element 0 of `x`, and nothing orders this"), "{text}");
        assert!(text.contains(&format!("thread [3, 7, 2] of block [0, 0, 0], which {did} it at")), "{text}");
    }
}

/// Every access that a kernel can make: each kind and width, and for atomic operations each order
/// and scope.
fn every_access() -> Vec<(usize, Access)> {
    let plain = [1, 2, 4, 8, 16].into_iter().flat_map(|bytes| [Access::Read, Access::Write].map(|it| (bytes, it)));
    let mut all: Vec<_> = plain.collect();
    for kind in [Kind::Load, Kind::Store, Kind::Update] {
        for order in [Order::Relaxed, Order::Acquire, Order::Release, Order::AcquireRelease] {
            for scope in [Scope::Block, Scope::Device] {
                all.extend([4, 8].map(|bytes| (bytes, Access::Atomic { kind, order, scope })));
            }
        }
    }
    all
}

/// How many mistakes and twins of each rule there were.
#[derive(Default)]
struct Counts(BTreeMap<&'static str, [u32; 2]>);

impl Counts {
    #[track_caller]
    fn mistake(&mut self, rule: &'static str, found: Outcome, fits: fn(&Outcome) -> bool, what: impl fmt::Debug) {
        assert!(fits(&found), "{rule}: {found:?} by {what:?}");
        self.0.entry(rule).or_default()[0] += 1;
    }

    #[track_caller]
    fn twin(&mut self, rule: &'static str, found: Outcome, what: impl fmt::Debug) {
        assert_eq!(found, Outcome::Fine, "{rule}: {what:?}");
        self.0.entry(rule).or_default()[1] += 1;
    }
}

/// The rules of `docs/checked-device.md` for one access: a mistake with each, and a twin that
/// differs in what the rule is about.
#[test]
fn every_access_is_checked_by_each_rule() {
    let (mut counts, mut launch) = (Counts::default(), Launch::new(4, 8, true));
    let at = |launch: &Launch, tagged: usize, bytes: usize, access| {
        outcome(|| _ = launch.checker.global(3, tagged, bytes, bytes, access, Location::caller()))
    };
    for (bytes, access) in every_access() {
        let (what, how) = ((bytes, access), Effect::from(access));
        for (wrong, right) in [(32, 32 - bytes), (0usize.wrapping_sub(bytes), 0)] {
            launch = Launch::new(4, 8, true);
            let [wrong, right] = [wrong, right].map(|by| at(&launch, launch.address.wrapping_add(by), bytes, access));
            counts.mistake("bounds", wrong, |it| matches!(it, Outcome::Outside(_)), what);
            counts.twin("bounds", right, what);
        }
        if bytes > 1 {
            let wrong = at(&launch, launch.address + bytes / 2, bytes, access);
            counts.mistake("alignment", wrong, |it| matches!(it, Outcome::Found(Finding::Misaligned { .. })), what);
            counts.twin("alignment", at(&launch, launch.address, bytes, access), what);
        }
        let wrong = at(&launch, AT | 2 << TAG, bytes, access);
        counts.mistake("no buffer", wrong, |it| matches!(it, Outcome::Found(Finding::NoBuffer { .. })), what);
        counts.twin("no buffer", at(&launch, AT | 1 << TAG, bytes, access), what);
        if how.writes {
            let wrong = at(&Launch::new(4, 8, false), launch.address, bytes, access);
            counts.mistake("input", wrong, |it| matches!(it, Outcome::Found(Finding::ReadOnly { .. })), what);
            counts.twin("input", at(&launch, launch.address, bytes, access), what);
        }
        if how.reads {
            launch.checker.start(0);
            if bytes > 4 {
                assert_eq!(launch.shared(3, 0, bytes - 4, Access::Write), Outcome::Fine);
            }
            let wrong = launch.shared(3, 0, bytes, access);
            counts.mistake("unwritten", wrong, |it| matches!(it, Outcome::Found(Finding::Unwritten { .. })), what);
            assert_eq!(launch.shared(3, bytes - bytes.min(4), bytes.min(4), Access::Write), Outcome::Fine);
            counts.twin("unwritten", launch.shared(3, 0, bytes, access), what);
        }
    }
    let expected = [
        ("alignment", [56, 56]),
        ("bounds", [116, 116]),
        ("input", [37, 37]),
        ("no buffer", [58, 58]),
        ("unwritten", [37, 37]),
    ];
    assert_eq!(counts.0, BTreeMap::from(expected));
}

/// What thread 0 or 1 of a pair does between an access of each.
#[derive(Clone, Copy, Debug)]
enum Step {
    Flag(Kind, Order),
    Fence,
    Barrier,
    WarpBarrier,
    /// A barrier of lane 1 and another one of warp 1.
    Lanes(u32),
}

/// Steps, and whether they order two threads of a warp, of a block, and of two blocks.
type Between = (&'static [(usize, Step)], [bool; 3]);

const BETWEEN: [Between; 12] = {
    use Kind::{Load, Store, Update};
    use Order::{Acquire, AcquireRelease, Relaxed, Release};
    use Step::{Barrier, Fence, Flag, Lanes, WarpBarrier};
    [
        (&[], [false; 3]),
        (&[(0, Barrier)], [true, true, false]),
        (&[(0, WarpBarrier)], [true, false, false]),
        (&[(0, Lanes(8))], [true, false, false]),
        (&[(0, Lanes(9))], [false; 3]),
        (&[(0, Flag(Store, Release)), (1, Flag(Load, Acquire))], [true; 3]),
        (&[(0, Flag(Update, AcquireRelease)), (1, Flag(Update, AcquireRelease))], [true; 3]),
        (&[(0, Fence), (0, Flag(Store, Relaxed)), (1, Flag(Load, Relaxed)), (1, Fence)], [true; 3]),
        (&[(0, Flag(Store, Relaxed)), (1, Flag(Load, Acquire))], [false; 3]),
        (&[(0, Flag(Store, Release)), (1, Flag(Load, Relaxed))], [false; 3]),
        (&[(0, Fence), (0, Flag(Store, Relaxed)), (1, Flag(Load, Relaxed))], [false; 3]),
        (&[(0, Flag(Store, Relaxed)), (0, Fence), (1, Flag(Load, Acquire))], [false; 3]),
    ]
};

/// Two threads access the same bytes with steps in between, or bytes beside them. Returns what the
/// second one finds.
fn pair(threads: [Thread; 2], accesses: [(usize, Access); 2], steps: &[(usize, Step)], apart: bool) -> Outcome {
    const FLAG: usize = 60;
    let ([(first_bytes, first), (second_bytes, second)], launch) = (accesses, Launch::new(4, 16, true));
    launch.checker.start(0);
    assert_eq!(launch.global(threads[0].1, 16 - first_bytes, first_bytes, first), Outcome::Fine);
    let mut now = 0;
    let mut run = |block: u32| {
        if std::mem::replace(&mut now, block) != block {
            launch.checker.start(block);
        }
    };
    for &(who, step) in steps {
        let (block, rank) = threads[who];
        run(block);
        match step {
            Step::Flag(kind, order) => {
                let flag = Access::Atomic { kind, order, scope: Scope::Device };
                assert_eq!(launch.global(rank, FLAG, 4, flag), Outcome::Fine);
            }
            Step::Fence => launch.checker.fence(rank),
            Step::Barrier => launch.checker.barrier(),
            Step::WarpBarrier => launch.checker.warp_barrier(1),
            Step::Lanes(other) => launch.checker.lanes_barrier(1, 1 << 1 | 1 << other),
        }
    }
    run(threads[1].0);
    launch.global(threads[1].1, if apart { 16 } else { 16 - second_bytes }, second_bytes, second)
}

/// Every pair of accesses, with every kind of steps in between that orders threads or does not.
#[test]
fn every_pair_of_accesses_races_unless_something_orders_it() {
    const PLACES: [(&str, [Thread; 2]); 3] =
        [("in a warp", [(0, 33), (0, 40)]), ("in a block", [(0, 33), (0, 95)]), ("of two blocks", [(0, 33), (1, 40)])];
    let (mut counts, all) = (Counts::default(), every_access());
    for (place, (rule, threads)) in PLACES.into_iter().enumerate() {
        for accesses in all.iter().flat_map(|first| all.iter().map(|second| [*first, *second])) {
            let atomic = accesses.iter().all(|(_, access)| match access {
                Access::Atomic { scope, .. } => place < 2 || *scope == Scope::Device,
                _ => false,
            });
            if atomic || accesses.iter().all(|(_, access)| !Effect::from(*access).writes) {
                counts.twin(rule, pair(threads, accesses, &[], false), accesses);
                continue;
            }
            counts.twin(rule, pair(threads, accesses, &[], true), accesses);
            for (steps, orders) in BETWEEN {
                let (found, what) = (pair(threads, accesses, steps, false), (accesses, steps));
                if orders[place] {
                    counts.twin(rule, found, what);
                } else {
                    counts.mistake(rule, found, |it| matches!(it, Outcome::Found(Finding::Race { .. })), what);
                }
            }
        }
    }
    assert_eq!(
        counts.0,
        BTreeMap::from([("in a block", [7000, 6864]), ("in a warp", [5250, 8614]), ("of two blocks", [21699, 10597])])
    );
}
