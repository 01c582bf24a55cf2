//! Ranks of one process whose bytes go from device to device: by peer copies, and by our own
//! kernels where elements are reduced.
//!
//! **A send transfers ownership of a device buffer.** A rank copies a piece into a buffer of its
//! own device, records an event behind the copy, and posts both. The other rank waits for the event
//! on its stream, copies, and drops the buffer or posts it back. So the types of thalweg order all
//! uses, nothing here is unsafe, and no stream waits for an event that nobody has recorded. For
//! this a call waits on the host until the ranks that it needs have come to the same call.
//!
//! **A sum** takes the way of [`engine`](crate::engine): rank `k` gets piece `k` of every rank,
//! reduces them in the order of the ranks, and writes the result into the buffers that it was sent,
//! which go back. A sum for all ranks does this in pieces and on streams of its own: see
//! [`copies`].

mod copies;
mod watch;

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use thalweg::{Device, DeviceBuffer, DeviceKind, DeviceSlice, Event, LiveBrand, On, PeerBuffer, Stream};
use thalweg_kernels::collective::{ReduceOp, reduce};

use crate::backend::Backend;
use crate::element::{CollectiveElement, Op};
use crate::engine::mismatch;
use crate::error::{Error, Failure, Result};
use crate::exchange::{Exchange, Missing};
use crate::header::{Call, Code};
use crate::lock;
use crate::rank_handle::RankShared;
use crate::store::LONGEST_WAIT;
use copies::Copies;
use watch::Watch;

/// The operations of a rank in one process with the others.
#[derive(Debug)]
pub(crate) struct Peer {
    rank_shared: Arc<RankShared>,
    exchange: Arc<Exchange>,
    /// Made for the first sum of all ranks. The calls of a rank lock it one after another.
    pub(crate) copies: Mutex<Option<Copies>>,
    watch: Watch,
}

/// Says whether the ranks use peer copies: if the options ask for them, or if all ranks of this
/// process have a GPU each and NCCL does not serve them.
///
/// # Errors
/// The options ask for them, and the ranks are not in one process; or the ranks do not come in
/// time.
pub(crate) fn connect(rank_shared: &Arc<RankShared>, device: Device) -> Result<Option<Peer>> {
    let failed = |reason: String| Error::Connect { rank: rank_shared.rank, reason };
    let Some(exchange) = rank_shared.slot.as_ref().map(|slot| slot.exchange.clone()).filter(|_| rank_shared.size > 1)
    else {
        return match rank_shared.options.backend {
            Backend::Peer if rank_shared.size > 1 => Err(failed("peer copies are for ranks of one process".to_owned())),
            _ => Ok(None),
        };
    };
    let peer = |exchange: Arc<Exchange>| {
        let watch = Watch::new(
            rank_shared.rank,
            rank_shared.options.timeout,
            rank_shared.failure_state.clone(),
            exchange.clone(),
        )?;
        Ok(Some(Peer { rank_shared: rank_shared.clone(), exchange, copies: Mutex::default(), watch }))
    };
    match rank_shared.options.backend {
        Backend::Host | Backend::Nccl => return Ok(None),
        Backend::Peer => return peer(exchange),
        Backend::Auto => {}
    }
    let key = |rank: usize| format!("thalweg/peer/{}{rank}", rank_shared.tag);
    let cuda = device.kind() == DeviceKind::Cuda;
    rank_shared.store.set(&key(rank_shared.rank), if cuda { b"+" } else { b"-" })?;
    let deadline = Instant::now() + rank_shared.options.connect_timeout.min(LONGEST_WAIT);
    for rank in 0..if cuda { rank_shared.size } else { 0 } {
        let value = rank_shared.store.wait(&key(rank), deadline.saturating_duration_since(Instant::now()));
        if value.map_err(|why| failed(format!("rank {rank} makes no communicator: {why}")))? != b"+" {
            return Ok(None);
        }
    }
    if cuda { peer(exchange) } else { Ok(None) }
}

/// One operation under way.
pub(crate) struct Run<'p, S> {
    peer: &'p Peer,
    s: Stream<S>,
    seq: u64,
    call: Call,
    deadline: Instant,
}

/// A peer's buffer, borrowed on this rank's stream.
type Lent<S, T> = (usize, On<S, PeerBuffer<T>>);

/// A rank's part of a reduction, and the buffers that came to it.
type Reduced<S, T> = (On<S, DeviceBuffer<T>>, Vec<Lent<S, T>>);

impl Peer {
    /// Begins an operation, and compares it with what the other ranks call.
    pub(crate) fn begin<S: LiveBrand>(&self, s: Stream<S>, seq: u64, call: Call) -> Result<Run<'_, S>> {
        let rank_shared = &self.rank_shared;
        if let Some(call_log) = &rank_shared.call_log
            && call.code != Code::Message
            && let Err((first, theirs)) = call_log.call(seq, rank_shared.rank, call)
        {
            let calls = vec![(first, theirs.text()), (rank_shared.rank, call.text())];
            return Err(Error::Failed(rank_shared.failure_state.fail(mismatch(seq, calls)).clone()));
        }
        let deadline = Instant::now() + rank_shared.options.timeout.min(LONGEST_WAIT);
        Ok(Run { peer: self, s, seq, call, deadline })
    }

    /// Reduces a bucket that has just been finished on another stream of this rank: see
    /// [`Copies::bucket`].
    pub(crate) fn bucket<S: LiveBrand, F: LiveBrand, T: CollectiveElement>(
        &self,
        run: &Run<'_, S>,
        from: Stream<F>,
        bucket: On<F, DeviceBuffer<T>>,
    ) -> Result<Event<DeviceBuffer<T>>> {
        run.or_fail(run.with_copies(|copies| copies.bucket(run, from, bucket)))
    }

    /// Compares one side of a message with the other.
    pub(crate) fn compare(&self, way: (usize, usize), sends: bool, seq: u64, call: Call) -> Result<()> {
        let (rank_shared, other) = (&self.rank_shared, if sends { way.1 } else { way.0 });
        match rank_shared.call_log.as_ref().map(|call_log| call_log.message(way, sends, call)) {
            Some(Err(theirs)) => {
                let calls = vec![(rank_shared.rank, call.text()), (other, theirs.text())];
                Err(Error::Failed(rank_shared.failure_state.fail(mismatch(seq, calls)).clone()))
            }
            _ => Ok(()),
        }
    }
}

impl<S: LiveBrand> Run<'_, S> {
    /// Carries out an operation whose elements are all in `x`.
    pub(crate) fn in_place<T: CollectiveElement>(&self, x: &mut DeviceSlice<S, T>) -> Result<()> {
        let rank = self.peer.rank_shared.rank;
        self.watched(|| match self.call.code {
            Code::AllReduce => self.with_copies(|copies| copies.in_place(self, x)),
            Code::Reduce => self.reduce(x, false).and_then(|(result, lent)| {
                self.give(&result, lent)?;
                self.collect(&result, x)
            }),
            Code::AllGather => {
                self.part(x, self.block(rank)).and_then(|own| self.share(own)).and_then(|()| self.blocks(x))
            }
            Code::Broadcast => match self.call.root {
                Some(root) if root != rank => self.receive(root, x),
                _ => self.share(x),
            },
            _ => self.barrier(),
        })
    }

    /// Carries out an operation that reads `from` and writes `to`, as far as this rank has them.
    pub(crate) fn apart<T: CollectiveElement>(
        &self,
        from: Option<&DeviceSlice<S, T>>,
        to: Option<&mut DeviceSlice<S, T>>,
    ) -> Result<()> {
        let rank = self.peer.rank_shared.rank;
        self.watched(|| match (self.call.code, from, to) {
            (Code::AllReduce, Some(from), Some(to)) => {
                self.s.copy(from, to)?;
                self.with_copies(|copies| copies.in_place(self, to))
            }
            (Code::Reduce, Some(from), to) => self.reduce(from, false).and_then(|(result, lent)| {
                self.give(&result, lent)?;
                to.map_or(Ok(()), |to| self.collect(&result, to))
            }),
            (Code::ReduceScatter, Some(from), Some(to)) => {
                self.reduce(from, true).and_then(|(result, _)| Ok(self.s.copy(&result, to)?))
            }
            (Code::AllGather, Some(from), Some(to)) => self.share(from).and_then(|()| {
                self.s.copy(from, to.slice_mut(self.block(rank)).map_err(thalweg::Error::from)?)?;
                self.blocks(to)
            }),
            (Code::Broadcast, _, Some(to)) => self.receive(self.call.root.unwrap_or(0), to),
            (Code::Broadcast, Some(from), _) => self.share(from),
            _ => self.barrier(),
        })
    }

    /// Carries out the messages of a group: sends all, then receives all.
    pub(crate) fn exchange(
        &self,
        sends: &[(usize, Call, &DeviceSlice<S, u8>)],
        receives: Vec<(usize, Call, &mut DeviceSlice<S, u8>)>,
    ) -> Result<()> {
        self.or_fail(
            sends
                .iter()
                .try_for_each(|(to, _, x)| self.send(*to, x))
                .and_then(|()| receives.into_iter().try_for_each(|(from, _, x)| self.receive(from, x))),
        )
    }

    /// Carries out an operation of the stream, with the watchdog told where it begins and ends.
    fn watched(&self, operation: impl FnOnce() -> Result<()>) -> Result<()> {
        let lanes = self.call.code == Code::AllReduce; // they tell it themselves
        self.or_fail((|| {
            if !lanes {
                self.turn(&self.s)?;
            }
            operation()?;
            if lanes { Ok(()) } else { self.end(&self.s) }
        })())
    }

    /// Tells the watchdog where on a stream the operation has its turn.
    pub(crate) fn turn<L: LiveBrand>(&self, lane: &Stream<L>) -> Result<()> {
        let turn = lane.record(lane.alloc::<u8>(0)?)?;
        self.peer.watch.turn(self.seq, self.call, turn);
        Ok(())
    }

    /// Tells the watchdog behind what the operation is done.
    pub(crate) fn end<L: LiveBrand>(&self, lane: &Stream<L>) -> Result<()> {
        self.peer.watch.end(lane.record(lane.alloc::<u8>(0)?)?);
        Ok(())
    }

    fn with_copies<R>(&self, f: impl FnOnce(&mut Copies) -> Result<R>) -> Result<R> {
        let mut copies = lock(&self.peer.copies);
        match &mut *copies {
            Some(copies) => f(copies),
            none => f(none.insert(Copies::new(self, self.s.device())?)),
        }
    }

    pub(crate) fn rank_shared(&self) -> &RankShared {
        &self.peer.rank_shared
    }

    pub(crate) fn stream(&self) -> Stream<S> {
        self.s
    }

    pub(crate) fn op(&self) -> ReduceOp {
        match self.call.op {
            Some(Op::Mean) => ReduceOp::Mean,
            Some(Op::Min) => ReduceOp::Min,
            Some(Op::Max) => ReduceOp::Max,
            _ => ReduceOp::Sum,
        }
    }

    /// If the device cannot carry the operation out, the ranks fail: the others wait for what it
    /// would have posted. If it cannot because they have failed, that is the error.
    fn or_fail<R>(&self, done: Result<R>) -> Result<R> {
        let Err(Error::Device(error)) = done else { return done };
        if let Some(failure) = self.peer.rank_shared.failure_state.failure() {
            return Err(Error::Failed(failure.clone()));
        }
        self.abandoned();
        Err(Error::Device(error))
    }

    /// Fails the ranks because this one cannot carry the operation out.
    pub(crate) fn abandoned(&self) -> Error {
        let RankShared { rank, failure_state, .. } = &*self.peer.rank_shared;
        let failure = Failure::Abandoned { rank: *rank, seq: self.seq, op: self.call.text() };
        Error::Failed(failure_state.fail(failure).clone())
    }

    fn part<'x, T: CollectiveElement>(
        &self,
        x: &'x DeviceSlice<S, T>,
        part: Range<usize>,
    ) -> Result<&'x DeviceSlice<S, T>> {
        Ok(x.slice(part).map_err(thalweg::Error::from)?)
    }

    /// The other ranks, from the next one on, so that not all send to the same one first.
    fn others(&self) -> impl Iterator<Item = usize> + use<S> {
        let RankShared { rank, size, .. } = *self.peer.rank_shared;
        (1..size).map(move |k| (rank + k) % size)
    }

    /// The elements of piece `k` of `count`.
    fn piece(&self, k: usize) -> Range<usize> {
        let at = |k: usize| (self.call.count as u128 * k as u128 / self.peer.rank_shared.size as u128) as usize;
        at(k)..at(k + 1)
    }

    /// The elements of block `k`.
    fn block(&self, k: usize) -> Range<usize> {
        k * self.call.count..(k + 1) * self.call.count
    }

    /// Sends a copy of these elements.
    fn send<T: CollectiveElement>(&self, to: usize, x: &DeviceSlice<S, T>) -> Result<()> {
        let mut copy = self.s.alloc::<T>(x.len())?;
        self.s.copy(x, &mut copy)?;
        let event = self.s.record(copy).map_err(thalweg::Error::from)?;
        self.post(to, event.map_peer());
        Ok(())
    }

    /// Posts something for another rank.
    pub(crate) fn post<M: Send + 'static>(&self, to: usize, what: M) {
        self.peer.exchange.post(self.peer.rank_shared.rank, to, Box::new(what));
    }

    /// Takes what a rank posted.
    pub(crate) fn take<M: 'static>(&self, from: usize) -> Result<M> {
        let RankShared { rank, failure_state, options, .. } = &*self.peer.rank_shared;
        let (seq, op) = (self.seq, self.call.text());
        let failure = match self.peer.exchange.take(from, *rank, self.deadline) {
            Ok(what) => match what.downcast::<M>() {
                Ok(what) => return Ok(*what),
                // The calls were compared, so only a mistake of this crate comes here.
                Err(_) => Failure::Garbled { rank: from, reason: format!("elements of another type in {op}") },
            },
            Err(Missing::Late) => Failure::Timeout { seq, op, lagging: vec![from], waited: options.timeout },
            Err(Missing::Left) => Failure::LeftEarly { rank: from, seq, op },
            Err(Missing::Aborted) => failure_state.failure().cloned().unwrap_or(Failure::Gone { rank: from, seq, op }),
        };
        Err(Error::Failed(failure_state.fail(failure).clone()))
    }

    fn wait<T: CollectiveElement>(&self, from: usize) -> Result<On<S, PeerBuffer<T>>> {
        Ok(self.s.wait(self.take::<Event<PeerBuffer<T>>>(from)?).map_err(thalweg::Error::from)?)
    }

    /// Receives what a rank sent.
    fn receive<T: CollectiveElement>(&self, from: usize, to: &mut DeviceSlice<S, T>) -> Result<()> {
        let sent = self.wait::<T>(from)?;
        Ok(self.s.copy_from_peer(&sent, to)?)
    }

    /// The first half of a reduction: sends each rank its part of `x`, reduces this rank's parts of
    /// all, and gives the result with the buffers that the others sent. `blocks` says whether a
    /// part is a block or a piece.
    fn reduce<T: CollectiveElement>(&self, x: &DeviceSlice<S, T>, blocks: bool) -> Result<Reduced<S, T>> {
        let RankShared { rank, size, .. } = *self.peer.rank_shared;
        let part = |k: usize| if blocks { self.block(k) } else { self.piece(k) };
        for to in self.others() {
            self.send(to, self.part(x, part(to))?)?;
        }
        let own = part(rank);
        let n = own.len();
        let mut all = self.s.alloc::<T>(size * n)?;
        let place = |k: usize| k * n..(k + 1) * n;
        self.s.copy(self.part(x, own)?, all.slice_mut(place(rank)).map_err(thalweg::Error::from)?)?;
        let mut lent = Vec::with_capacity(size - 1);
        for from in self.others() {
            let sent = self.wait::<T>(from)?;
            self.s.copy_from_peer(&sent, all.slice_mut(place(from)).map_err(thalweg::Error::from)?)?;
            lent.push((from, sent));
        }
        let mut result = self.s.alloc::<T>(n)?;
        if n > 0 {
            reduce(&self.s, self.op(), size as u32, &all, &mut result)?;
        }
        Ok((result, lent))
    }

    /// The second half of a reduction to all ranks, or to one: gives the result back in the buffers
    /// that were sent.
    fn give<T: CollectiveElement>(&self, result: &DeviceSlice<S, T>, lent: Vec<Lent<S, T>>) -> Result<()> {
        for (to, mut buffer) in lent {
            if self.call.root.is_none_or(|root| root == to) {
                self.s.copy_to_peer(result, &mut buffer)?;
                let event = self.s.record(buffer).map_err(thalweg::Error::from)?;
                self.post(to, event);
            }
        }
        Ok(())
    }

    /// Puts the results of all pieces together: this rank's own, and those that come back.
    fn collect<T: CollectiveElement>(&self, result: &DeviceSlice<S, T>, to: &mut DeviceSlice<S, T>) -> Result<()> {
        let own = self.piece(self.peer.rank_shared.rank);
        self.s.copy(result, to.slice_mut(own).map_err(thalweg::Error::from)?)?;
        for from in self.others() {
            let back = self.take::<Event<PeerBuffer<T>>>(from)?.map_local();
            let back = self.s.wait(back).map_err(thalweg::Error::from)?;
            self.s.copy(&back, to.slice_mut(self.piece(from)).map_err(thalweg::Error::from)?)?;
        }
        Ok(())
    }

    /// Sends these elements to all other ranks.
    fn share<T: CollectiveElement>(&self, x: &DeviceSlice<S, T>) -> Result<()> {
        self.others().try_for_each(|to| self.send(to, x))
    }

    /// Receives a block of each other rank.
    fn blocks<T: CollectiveElement>(&self, to: &mut DeviceSlice<S, T>) -> Result<()> {
        for from in self.others() {
            self.receive(from, to.slice_mut(self.block(from)).map_err(thalweg::Error::from)?)?;
        }
        Ok(())
    }

    /// Waits on the stream until the streams of all ranks have come here.
    fn barrier(&self) -> Result<()> {
        for to in self.others() {
            self.send::<u8>(to, self.s.alloc(0)?.slice(..).map_err(thalweg::Error::from)?)?;
        }
        for from in self.others() {
            drop(self.wait::<u8>(from)?);
        }
        Ok(())
    }
}
