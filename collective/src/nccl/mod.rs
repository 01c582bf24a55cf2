//! Ranks with a GPU each: NCCL carries out their operations.
//!
//! **Calls.** The communicator is non-blocking: a call of NCCL may return before its work is on the
//! stream, and the call here then asks until it is. Its lock is held during calls of NCCL and never
//! while waiting, so another thread can abort the communicator with no thread inside of it.
//!
//! **The watchdog.** An event on the stream behind every few operations says how far the stream has
//! come. A thread for each communicator looks at them. It asks NCCL for errors, tells the other
//! ranks what this one has called ([`log`]), reads what they tell, and notices ranks that have left
//! or are gone. An operation that does not end in time is a failure that names the ranks that have
//! not come to it.
//!
//! **A failure** takes the order of [`failure_state`](crate::failure_state): it is kept, the
//! devices fail, and only then the communicators are aborted. An aborted operation ends like any
//! other, and its stream goes on with what comes behind, also with the freeing of memory in stream
//! order, while a peer in this process may still write to that memory. Nobody sees this: the memory
//! goes back to the pool that thalweg has for this device, from which nothing can be allocated any
//! more because the device has failed. Work that was enqueued before runs on what is there, stays
//! inside its buffers, and no result of it leaves the device. Ranks of other processes do not write
//! to this one's buffers, but to memory of NCCL.

mod ending;
mod graph;
mod handshake;
mod library;
mod log;
mod peers;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ::log::debug;
use thalweg::{Device, Event, ForeignStream, LiveBrand, PinnedBuffer, Stream, beside_captures};

use crate::backend::Backend;
use crate::engine::mismatch;
use crate::error::{Error, Failure, Result};
use crate::header::{Call, Code as CallCode, Header};
use crate::link::{Abort, goodbye};
use crate::lock;
use crate::rank_handle::RankShared;
use crate::store::LONGEST_WAIT;
use ending::Ending;
pub(crate) use graph::Alive;
use handshake::NcclHandshake;
pub(crate) use handshake::{THREADS, shares};
use library::{Code, Config, IN_PROGRESS, Library, RawComm, SUCCESS, UniqueId};
use log::Log;
use peers::{Known, Peers, silence, tick};

/// Operations between two events. The timeout of an operation counts for so many of them; an event
/// behind each would cost the stream more than it tells.
const MARKED: u64 = 8;
/// Events under way at once. The driver lets a host go on by about as many launches.
const MARKS: usize = 1024;
/// The time that a rank that ends waits for the others, and that an abort waits for a thread inside
/// NCCL.
const END: Duration = Duration::from_secs(10);
/// The time that the drop of a communicator waits for its operations and for the other ranks. Then
/// they go on without it.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// A rank's communicator. Dropping it ends the communicator after its operations.
#[derive(Debug)]
pub(crate) struct Nccl {
    shared: Arc<Shared>,
    watchdog: Option<JoinHandle<()>>,
}

struct Shared {
    library: &'static Library,
    /// `None` once it is aborted.
    comm: Mutex<Option<Raw>>,
    stream: Raw,
    device: Device,
    rank_shared: Arc<RankShared>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A handle of another library: of a communicator, or of a stream.
#[derive(Clone, Copy)]
struct Raw(*mut c_void);

// SAFETY: NCCL allows the calls of a communicator from any thread, one at a time, which the lock
// around it ensures. A `CUstream` may be used from every thread.
unsafe impl Send for Raw {}
// SAFETY: A shared reference gives the handle's value only.
unsafe impl Sync for Raw {}

#[derive(Default)]
struct State {
    log: Log,
    /// The operations that are not done yet, as far as the watchdog knows.
    pending: VecDeque<Entry>,
    /// The number of entries, and of those that are on the stream.
    entered: u64,
    enqueued: u64,
    /// Events on the stream, each behind so many entries, and the number of the last one.
    marks: VecDeque<(u64, Event<PinnedBuffer<u8>>)>,
    marked: u64,
    leaving: bool,
    /// Counts the watchdog from the drop of the communicator to its own end.
    ending: Option<Ending>,
    ended: bool,
}

/// An operation under way. `peers` are the ranks that it needs.
struct Entry {
    seq: u64,
    call: Call,
    peers: Option<Vec<usize>>,
}

impl Entry {
    fn needs(&self, peer: usize) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.contains(&peer))
    }
}

/// One message of a group: the other rank, whether it is sent, what it is, and the address.
pub(crate) struct Transfer {
    pub(crate) peer: usize,
    pub(crate) sends: bool,
    pub(crate) call: Call,
    pub(crate) address: u64,
}

/// Makes the communicator of a rank, if all ranks have a GPU and NCCL. Every rank with a GPU waits
/// for the others here.
///
/// # Errors
/// The options ask for NCCL, and a rank cannot have it; or the ranks do not come in time; or they
/// share a GPU and may not.
pub(crate) fn connect(
    rank_shared: &Arc<RankShared>,
    device: Device,
    stream: Option<*mut c_void>,
) -> Result<Option<Nccl>> {
    if rank_shared.size < 2 || rank_shared.engine.is_none() {
        return Ok(None);
    }
    let failed = |reason: String| Error::Connect { rank: rank_shared.rank, reason };
    let found = match (rank_shared.options.backend, device.uuid(), stream) {
        (Backend::Host | Backend::Peer, ..) => Err("its options ask for something else".to_owned()),
        (_, Some(gpu), Some(stream)) => Library::get().map(|l| (l, gpu, Raw(stream))).map_err(str::to_owned),
        _ => Err(format!("its device is {device}")),
    };
    let key = |rank: usize| format!("thalweg/nccl/{}{rank}", rank_shared.tag);
    let value = match &found {
        Err(why) => [b"-", why.as_bytes()].concat(),
        &Ok((library, gpu, _)) => {
            let mut id = UniqueId([0; 128]);
            if rank_shared.rank == 0 {
                // SAFETY: The call stores the 128 bytes of `id`.
                let code = device.with_context(|| unsafe { (library.unique_id)(&mut id) })?;
                if code != SUCCESS {
                    return Err(failed(format!("ncclGetUniqueId: {}", library.meaning(code))));
                }
            }
            let own =
                NcclHandshake { version: library.version(), id, gpu, process: handshake::process(), shares: shares() };
            [b"+", &own.encode()[..]].concat()
        }
    };
    rank_shared.store.set(&key(rank_shared.rank), &value)?;
    let refused = |rank: usize, why: &str| {
        if rank_shared.options.backend == Backend::Nccl {
            return Err(failed(format!("rank {rank} cannot use NCCL: {why}")));
        }
        debug!(target: "thalweg_collective::nccl", "operations go through the host, because rank {rank} cannot use NCCL: {why}");
        Ok(None)
    };
    let (library, stream) = match found {
        Ok((library, _, stream)) => (library, stream),
        Err(why) => return refused(rank_shared.rank, &why),
    };
    let deadline = Instant::now() + rank_shared.options.connect_timeout.min(LONGEST_WAIT);
    let mut handshakes = Vec::with_capacity(rank_shared.size);
    for rank in 0..rank_shared.size {
        let value = rank_shared.store.wait(&key(rank), deadline.saturating_duration_since(Instant::now()));
        let value = value.map_err(|why| failed(format!("rank {rank} makes no communicator: {why}")))?;
        match value.split_first() {
            Some((b'+', said)) => match NcclHandshake::decode(said) {
                Some(handshake) if handshake.version == library.version() => handshakes.push(handshake),
                _ => return refused(rank, "it has another version of the library"),
            },
            Some((_, why)) => return refused(rank, &String::from_utf8_lossy(why)),
            None => return refused(rank, "it does not say why"),
        }
    }
    if handshake::share(&handshakes)? {
        debug!(target: "thalweg_collective::nccl", "several ranks share a GPU, where operations are slow");
    }
    let id = handshakes[0].id;
    Nccl::new(library, id, rank_shared, device, stream, deadline).map(Some)
}

impl Nccl {
    fn new(
        library: &'static Library,
        id: UniqueId,
        rank_shared: &Arc<RankShared>,
        device: Device,
        stream: Raw,
        deadline: Instant,
    ) -> Result<Self> {
        let failed = |reason: String| Error::Connect { rank: rank_shared.rank, reason: format!("NCCL: {reason}") };
        let number = |n: usize| i32::try_from(n).map_err(|_| failed(format!("there are {n} ranks")));
        let (size, rank) = (number(rank_shared.size)?, number(rank_shared.rank)?);
        // It is never freed: NCCL may keep the address until the communicator is made.
        let made: &'static mut RawComm = Box::leak(Box::new(std::ptr::null_mut()));
        let code = device.with_context(|| {
            // SAFETY: The device's context is current. `id` is what rank 0 got, `rank` is below
            // `size`, and each rank calls this once with its own number. The call reads the options
            // and stores a handle.
            unsafe { (library.init)(made, size, id, rank, &mut Config::non_blocking(rank_shared.options.ctas)) }
        })?;
        if (code != SUCCESS && code != IN_PROGRESS) || made.is_null() {
            return Err(failed(library.meaning(code)));
        }
        let shared = Arc::new(Shared {
            library,
            comm: Mutex::new(Some(Raw(*made))),
            stream,
            device,
            rank_shared: rank_shared.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        rank_shared.failure_state.watch(&(shared.clone() as Arc<dyn Abort>));
        if let Err(why) = shared.settle(IN_PROGRESS, Some(deadline)) {
            shared.abort();
            return Err(rank_shared
                .failure_state
                .failure()
                .map_or_else(|| failed(why), |failure| Error::Failed(failure.clone())));
        }
        ending::wait_at_exit();
        let run = shared.clone();
        let watchdog =
            thread::Builder::new().name("thalweg nccl".to_owned()).spawn(move || beside_captures(move || run.watch()));
        let watchdog = watchdog.map_err(|why| thalweg::Error::Thread { reason: why.to_string() })?;
        debug!(target: "thalweg_collective::nccl", "rank {rank} of {size} is connected on {device}");
        Ok(Self { shared, watchdog: Some(watchdog) })
    }

    /// Enqueues a collective operation.
    ///
    /// # Safety
    /// At `from` and `to` are as many elements as the operation reads and writes on this rank, in
    /// device memory whose uses the stream orders, and they are the same or do not overlap, as NCCL
    /// allows for this operation.
    pub(crate) unsafe fn collective(&self, seq: u64, call: Call, from: u64, to: u64) -> Result<()> {
        self.announce(seq, call)?;
        let entry = Entry { seq, call, peers: None };
        self.shared.enqueue(entry, true, |l, comm, stream| {
            // SAFETY: The communicator is not destroyed, because its lock is held. The caller
            // passes memory for the operation; the stream is never destroyed.
            unsafe { issue(l, call, from, to, comm, stream) }
        })
    }

    /// Compares an operation with what the other ranks of this process call.
    pub(crate) fn announce(&self, seq: u64, call: Call) -> Result<()> {
        let rank_shared = &self.shared.rank_shared;
        if let Some(call_log) = &rank_shared.call_log
            && let Err((first, theirs)) = call_log.call(seq, rank_shared.rank, call)
        {
            let calls = vec![(first, theirs.text()), (rank_shared.rank, call.text())];
            return Err(self.shared.fail(mismatch(seq, calls)));
        }
        Ok(())
    }

    /// Enqueues the messages of a group together.
    ///
    /// # Safety
    /// Each address has the elements of its message, in device memory whose uses the stream orders.
    /// What is received overlaps nothing else.
    pub(crate) unsafe fn exchange(&self, seq: u64, messages: &[Transfer]) -> Result<()> {
        let Some(first) = messages.first() else { return Ok(()) };
        let own = self.shared.rank_shared.rank;
        for Transfer { peer, sends, call, .. } in messages {
            let way = if *sends { (own, *peer) } else { (*peer, own) };
            if let Some(call_log) = &self.shared.rank_shared.call_log
                && let Err(theirs) = call_log.message(way, *sends, *call)
            {
                return Err(self.shared.fail(mismatch(seq, vec![(own, call.text()), (*peer, theirs.text())])));
            }
        }
        let mut peers: Vec<usize> = messages.iter().map(|message| message.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let entry = Entry { seq, call: first.call, peers: Some(peers) };
        self.shared.enqueue(entry, false, |l, comm, stream| {
            // SAFETY: A group has no arguments. It is closed below in every case.
            let mut code = unsafe { (l.group_start)() };
            for Transfer { peer, sends, call, address } in messages.iter().filter(|message| message.call.count > 0) {
                let (at, kind, peer) = (*address as usize as *mut c_void, library::kind(call.kind), *peer as i32);
                if code == SUCCESS || code == IN_PROGRESS {
                    // SAFETY: The communicator is not destroyed, because its lock is held. The
                    // caller passes memory for each message; the stream is never destroyed.
                    code = unsafe {
                        match sends {
                            true => (l.send)(at, call.count, kind, peer, comm, stream),
                            false => (l.receive)(at, call.count, kind, peer, comm, stream),
                        }
                    };
                }
            }
            // SAFETY: It closes the group that this thread opened above.
            let closed = unsafe { (l.group_end)() };
            if code == SUCCESS || code == IN_PROGRESS { closed } else { code }
        })
    }
}

impl Nccl {
    /// Notes how far `stream`, that of the communicator, has come. Call it after each operation.
    pub(crate) fn mark<S: LiveBrand>(&self, stream: &Stream<S>) {
        self.shared.mark(stream, MARKED);
    }
}

/// Calls NCCL for a collective operation.
///
/// # Safety
/// The communicator is not destroyed, and no other thread is inside NCCL with it. At `from` and
/// `to` are as many elements as the operation reads and writes on this rank, and the stream orders
/// all uses of that memory.
unsafe fn issue(l: &Library, call: Call, from: u64, to: u64, comm: RawComm, stream: *mut c_void) -> Code {
    if call.count == 0 && call.code != CallCode::Barrier {
        return SUCCESS;
    }
    let (from, to) = (from as usize as *const c_void, to as usize as *mut c_void);
    let (kind, op) = (library::kind(call.kind), call.op.map_or(0, library::op));
    let root = call.root.unwrap_or(0) as i32;
    // SAFETY: The caller promises what the functions need.
    unsafe {
        match call.code {
            CallCode::AllReduce => (l.all_reduce)(from, to, call.count, kind, op, comm, stream),
            CallCode::Broadcast => (l.broadcast)(from, to, call.count, kind, root, comm, stream),
            CallCode::Reduce => (l.reduce)(from, to, call.count, kind, op, root, comm, stream),
            CallCode::ReduceScatter => (l.reduce_scatter)(from, to, call.count, kind, op, comm, stream),
            CallCode::AllGather => (l.all_gather)(from, to, call.count, kind, comm, stream),
            // NCCL has no barrier: all ranks sum one byte.
            _ => (l.all_reduce)(from, to, 1, library::kind(crate::element::Kind::U8), 0, comm, stream),
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.rank_shared.forked() {
            return; // the watchdog is a thread of the parent, and so is the communicator
        }
        let mut state = lock(&shared.state);
        state.leaving = true;
        state.ending = (!state.ended).then(Ending::new);
        shared.changed.notify_all();
        let until = Instant::now() + SHUTDOWN_GRACE;
        while !state.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return; // the watchdog goes on, and ends after the last operation
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        if let Some(watchdog) = self.watchdog.take() {
            _ = watchdog.join();
        }
    }
}

impl Shared {
    /// Keeps a failure, and gives the first one as an error.
    fn fail(&self, failure: Failure) -> Error {
        Error::Failed(self.rank_shared.failure_state.fail(failure).clone())
    }

    /// Calls NCCL for an operation, and returns once it is on the stream.
    fn enqueue(
        &self,
        entry: Entry,
        collective: bool,
        f: impl FnOnce(&Library, RawComm, *mut c_void) -> Code,
    ) -> Result<()> {
        let (rank, seq, call) = (self.rank_shared.rank, entry.seq, entry.call);
        if let Err(error) = self.device.ensure_usable() {
            if self.rank_shared.failure_state.failure().is_none() && matches!(error, thalweg::Error::Poisoned { .. }) {
                return Err(self.fail(Failure::Abandoned { rank, seq, op: call.text() }));
            }
            return Err(self
                .rank_shared
                .failure_state
                .failure()
                .map_or(error.into(), |failure| Error::Failed(failure.clone())));
        }
        {
            let mut state = lock(&self.state);
            state.entered += 1;
            state.pending.push_back(entry);
            if collective {
                state.log.push(call);
            }
        }
        let code = match *lock(&self.comm) {
            Some(Raw(comm)) => f(self.library, comm, self.stream.0),
            None => IN_PROGRESS, // `settle` finds it aborted
        };
        if let Err(reason) = self.settle(code, None) {
            return Err(self.fail(Failure::Library { rank, seq, op: call.text(), reason }));
        }
        lock(&self.state).enqueued += 1;
        Ok(())
    }

    /// Waits until what was called is done on the host, which takes NCCL some 40 us for an
    /// operation. The error says what NCCL reports; if the ranks have failed meanwhile, nobody
    /// reads it.
    fn settle(&self, mut code: Code, deadline: Option<Instant>) -> Result<(), String> {
        for round in 0u32.. {
            match code {
                SUCCESS => return Ok(()),
                IN_PROGRESS => {}
                _ => return Err(self.library.meaning(code)),
            }
            if self.rank_shared.failure_state.failure().is_some() {
                return Err(ABORTED.to_owned());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err("the ranks do not come together in time".to_owned());
            }
            match round {
                0..1000 => std::hint::spin_loop(),
                1000..2000 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
            code = self.asynchronous().ok_or(ABORTED)?;
        }
        Ok(())
    }

    /// Returns NCCL's error of the communicator; `None` if it is aborted.
    fn asynchronous(&self) -> Option<Code> {
        self.error_of(*lock(&self.comm))
    }

    /// Returns NCCL's error of a communicator whose lock the caller holds.
    fn error_of(&self, comm: Option<Raw>) -> Option<Code> {
        let Raw(raw) = comm?;
        let mut state = SUCCESS;
        // SAFETY: The communicator is not destroyed, because its lock is held. The call stores one
        // number in `state`.
        let code = unsafe { (self.library.async_error)(raw, &mut state) };
        Some(if code == SUCCESS { state } else { code })
    }

    /// The thread of the watchdog.
    fn watch(&self) {
        self.patrol();
        let mut state = lock(&self.state);
        state.ended = true;
        state.ending = None;
        self.changed.notify_all();
    }

    /// Looks after the operations until the communicator is dropped and they are done, or the ranks
    /// have failed.
    fn patrol(&self) {
        // SAFETY: Streams of thalweg are never destroyed, and it captures on streams of its own.
        let stream = match unsafe { ForeignStream::from_raw(self.device, self.stream.0) } {
            Ok(stream) => stream,
            Err(error) => {
                self.fail(Failure::Library {
                    rank: self.rank_shared.rank,
                    seq: 0,
                    op: "the start".into(),
                    reason: error.to_string(),
                });
                return;
            }
        };
        let mut done = 0;
        let mut peers = Peers::new(self.rank_shared.size);
        let (mut since, mut left) = (Instant::now(), None);
        let tick = tick(self.rank_shared.size);
        loop {
            let (leaving, entered) = {
                let state = lock(&self.state);
                let short = if state.leaving { Duration::from_millis(1) } else { tick };
                let waited = self.changed.wait_timeout(state, short).unwrap_or_else(PoisonError::into_inner);
                (waited.0.leaving, waited.0.entered)
            };
            if self.rank_shared.failure_state.failure().is_some() {
                return;
            }
            stream.enter(|s| self.mark(s, 1));
            // Without the lock while the driver is asked: a call must not wait for it.
            while let Some((count, event)) = self.first_mark() {
                match event.is_complete() {
                    Ok(true) => {
                        lock(&self.state).pending.drain(..(count - done) as usize);
                        done = count;
                        since = Instant::now();
                    }
                    Ok(false) => {
                        lock(&self.state).marks.push_front((count, event));
                        break;
                    }
                    Err(_) => break, // the device has failed, which is noticed below
                }
            }
            if entered == done {
                since = Instant::now();
            }
            if let Err(failure) = self.inspect(&mut peers, since) {
                // The failure of another rank may have come first.
                self.fail(failure);
                return;
            }
            if leaving && entered == done {
                let since = *left.get_or_insert_with(|| {
                    self.leave();
                    Instant::now()
                });
                // A peer may still read memory of this communicator until its own operations are
                // done.
                if peers.have_left(self.rank_shared.rank) || since.elapsed() > END {
                    // Not `ncclCommDestroy`, which waits for all ranks of the machine.
                    return self.abort();
                }
            }
        }
    }

    fn first_mark(&self) -> Option<(u64, Event<PinnedBuffer<u8>>)> {
        lock(&self.state).marks.pop_front()
    }

    /// Records an event if there are at least `least` operations behind the last one. An error
    /// means that the device has failed, which the watchdog notices.
    fn mark<S: LiveBrand>(&self, stream: &Stream<S>, least: u64) {
        let mut state = lock(&self.state); // so that events are in the order of their counts
        let count = state.enqueued;
        if count - state.marked >= least
            && state.marks.len() < MARKS
            && let Ok(empty) = stream.bind(PinnedBuffer::empty(self.device))
            && let Ok(event) = stream.record(empty)
        {
            state.marks.push_back((count, event));
            state.marked = count;
        }
    }

    /// Talks with the other ranks, and looks for what may be wrong.
    fn inspect(&self, peers: &mut Peers, since: Instant) -> Result<(), Failure> {
        let RankShared { rank, size, .. } = *self.rank_shared;
        let Some(engine) = &self.rank_shared.engine else { return Ok(()) };
        let link = engine.link();
        let now = Instant::now();
        let (count, told) = {
            let log = &lock(&self.state).log;
            (log.count(), log.encode())
        };
        if peers.told != Some(count) || peers.spoken.elapsed() > silence(size) / 4 {
            (peers.told, peers.spoken) = (Some(count), now);
            let head =
                Header { call: Call { code: CallCode::Log, ..goodbye().call }, seq: 0, step: 0, len: told.len() };
            let told = Arc::from(told);
            for peer in (0..size).filter(|&peer| peer != rank && peers.known[peer].gone.is_none()) {
                link.send(peer, &head, &told);
            }
        }
        for (peer, known) in peers.known.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
            known.hear(link, peer, END)?;
        }
        let state = lock(&self.state);
        for known in &peers.known {
            let Some(said) = &known.said else { continue };
            if let Some((seq, own, theirs)) = state.log.difference(said) {
                let others = peers
                    .known
                    .iter()
                    .enumerate()
                    .filter_map(|(peer, known)| Some((peer, known.said.as_ref()?.at(seq)?.text())));
                let mut calls: Vec<(usize, String)> = others.collect();
                calls.push((rank, own.text()));
                if theirs.is_none() {
                    let earlier = "and an operation before it differs";
                    calls.iter_mut().for_each(|(_, call)| *call = format!("{call}, {earlier}"));
                }
                return Err(mismatch(seq, calls));
            }
        }
        // The marks are rare, so some of what is pending may be done. What counts is the first
        // operation to which another rank has not come.
        let (Some(front), Some(back)) = (state.pending.front(), state.pending.back()) else { return Ok(()) };
        let others = || peers.known.iter().enumerate().filter(|(peer, _)| *peer != rank);
        let behind = |entry: &Entry, known: &Known| {
            entry.peers.is_none() && known.said.as_ref().map_or(0, |said| said.count) < entry.seq
        };
        for (peer, known) in others() {
            let missed = match known.gone {
                None => None,
                Some(Some(count)) => state.pending.iter().find(|entry| entry.peers.is_none() && entry.seq > count),
                Some(None) => {
                    let missed = state.pending.iter().find(|entry| behind(entry, known));
                    missed.or(Some(back)).filter(|entry| entry.needs(peer))
                }
            };
            let Some(Entry { seq, call, .. }) = missed else { continue };
            let (seq, op) = (*seq, call.text());
            return Err(match known.gone {
                Some(Some(_)) => Failure::LeftEarly { rank: peer, seq, op },
                _ => Failure::Gone { rank: peer, seq, op },
            });
        }
        let waited = self.rank_shared.options.timeout;
        if since.elapsed() >= waited {
            let late = |entry: &Entry, test: &dyn Fn(&Known) -> bool| -> Vec<usize> {
                let late = others().filter(|(peer, known)| entry.needs(*peer) && test(known));
                late.map(|(peer, _)| peer).collect()
            };
            // Those that have not called it; if all have, those that say nothing any more; else
            // all.
            let first = state.pending.iter().find(|entry| others().any(|(_, known)| behind(entry, known)));
            let entry = first.unwrap_or(front);
            let mut lagging = late(entry, &|known| behind(entry, known));
            if lagging.is_empty() {
                lagging = late(entry, &|known| known.heard.elapsed() > silence(size));
            }
            if lagging.is_empty() {
                lagging = late(entry, &|_| true);
            }
            return Err(Failure::Timeout { seq: entry.seq, op: entry.call.text(), lagging, waited });
        }
        let (seq, op) = (front.seq, front.call.text());
        drop(state);
        if self.device.ensure_usable().is_err() {
            return Err(Failure::Abandoned { rank, seq, op });
        }
        // Without waiting: a thread that hangs inside NCCL has the lock, and the time goes on.
        let said = match self.comm.try_lock() {
            Ok(comm) => self.error_of(*comm),
            Err(TryLockError::Poisoned(comm)) => self.error_of(*comm.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        match said {
            Some(SUCCESS | IN_PROGRESS) | None => Ok(()),
            Some(code) => Err(Failure::Library { rank, seq, op, reason: self.library.meaning(code) }),
        }
    }

    /// Tells the others that no more operations come from this rank.
    fn leave(&self) {
        let count = lock(&self.state).log.count();
        if let Some(engine) = &self.rank_shared.engine {
            let none: Arc<[u8]> = Arc::new([]);
            for peer in (0..self.rank_shared.size).filter(|&peer| peer != self.rank_shared.rank) {
                engine.link().send(peer, &Header { seq: count, ..goodbye() }, &none);
            }
        }
    }
}

/// The text of the error of calls after the communicator is aborted. The failure of the ranks is
/// there before it.
const ABORTED: &str = "the communicator is aborted";

impl Abort for Shared {
    fn abort(&self) {
        let until = Instant::now() + END;
        let mut comm = loop {
            match self.comm.try_lock() {
                Ok(comm) => break comm,
                Err(TryLockError::Poisoned(comm)) => break comm.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(Duration::from_micros(200)),
                Err(TryLockError::WouldBlock) => {
                    // Its memory may be in use as long as the thread is inside NCCL.
                    let cause = self.rank_shared.failure_state.failure().map(Failure::to_string).unwrap_or_default();
                    eprintln!("thalweg: {cause}; a thread does not come back from NCCL, so the process ends");
                    std::process::abort();
                }
            }
        };
        if let Some(raw) = comm.take() {
            let (library, ending) = (self.library, Ending::new());
            let abort = move || {
                let Raw(raw) = { raw };
                // SAFETY: It was taken out of its place, and no thread is inside NCCL with it,
                // because the lock was held. So nobody uses it again.
                _ = beside_captures(|| unsafe { (library.abort)(raw) });
                drop(ending);
            };
            // NCCL first tells its kernels to end, and then waits for the graphs that have
            // operations of the communicator. Nobody here waits for those.
            match graph::any_alive() {
                false => abort(),
                true => drop(thread::Builder::new().name("thalweg abort".to_owned()).spawn(abort)),
            }
        }
        self.changed.notify_all();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} on {}", library::version(self.library.version()), self.device)
    }
}
