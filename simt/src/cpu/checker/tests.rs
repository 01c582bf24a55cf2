//! The checker against an oracle that forgets nothing: random accesses of a few threads, with every
//! kind, width, order and scope, and whatever orders threads.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use super::{Checker, Finding, Found};
use crate::cpu::monitor::{Access, Kind, Order, Scope};
use crate::host::{BufferKind, Parameter};
use crate::violation::Violation;

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
    Outside,
    Found(Finding),
}

fn outcome(access: impl FnOnce()) -> Outcome {
    match catch_unwind(AssertUnwindSafe(access)) {
        Ok(()) => Outcome::Fine,
        Err(panic) => match panic.downcast::<Found>() {
            Ok(found) => Outcome::Found(found.finding),
            Err(panic) => {
                assert!(panic.is::<Violation>());
                Outcome::Outside
            }
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
        outcome(|| _ = self.checker.global(rank, self.address + offset, bytes, 1, access, location))
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
fn an_access_ends_with_its_buffer() {
    for (element, bytes) in [(4, 4), (4, 8), (4, 16), (1, 1), (1, 4), (8, 16)] {
        for offset in 0..8 * element + 9 {
            for access in [Access::Read, Access::Write] {
                let inside = offset + bytes <= 8 * element;
                let found = Launch::new(element, 8, true).global(3, offset, bytes, access);
                assert_eq!(found == Outcome::Outside, !inside, "{bytes} bytes at {offset} of {}", 8 * element);
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
