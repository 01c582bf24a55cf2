//! Communicators.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg::{DeviceBuffer, DeviceSlice, Event, LiveBrand, On, Stream};

use crate::backend::Backend;
use crate::element::{CollectiveElement, HasKind, HasOp, Reduction};
use crate::engine::{Message, mismatch};
use crate::error::{Error, Failure, Result, StoreError};
use crate::header::{Call, Code};
use crate::nccl::Transfer;
use crate::rank_handle::{RankHandle, RankShared};
use crate::transport::Transport;

/// The communicator of a rank: operations in which all ranks take part, enqueued on one stream.
///
/// Every rank calls the same operations in the same order. A call enqueues its operation and does
/// not wait (by [peer copies](crate::Backend::Peer) it waits on the host until the other ranks have
/// called the same); the operation begins when the stream comes to it on every rank. The buffers
/// are those of the communicator's stream, as for any other operation: [`Stream::hand_off`] brings
/// a buffer to it and back, and until the stream has passed the operation no other stream and no
/// host can touch the buffer. Calls take `&mut self`, so two threads never use a communicator at
/// once.
///
/// If a rank is late, gone, or calls something else, the ranks fail: see [`Failure`]. From then on
/// each call gives [`Error::Failed`], and every device of the ranks has failed too, so nobody can
/// read what the operations after the failure left. There is no way back but new processes, or, in
/// one process, new CPU devices.
///
/// [`WorldOptions::backend`](crate::WorldOptions::backend) says who carries out the operations.
/// Without NCCL, the bytes go through page-locked memory of the size of the largest operation,
/// which the communicator keeps.
pub struct Comm<S: LiveBrand> {
    member: RankHandle,
    pub(crate) transport: Transport<S>,
    pub(crate) stream: Stream<S>,
    /// The number of collective operations so far.
    seq: u64,
    /// Tells this communicator from the others of the process.
    pub(crate) number: u64,
    /// The number of graphs that it has captured.
    pub(crate) graphs: u64,
}

/// The messages of a group: see [`Comm::group`].
pub struct MessageGroup<'b, S> {
    rank: usize,
    size: usize,
    sends: Vec<(usize, Call, &'b DeviceSlice<S, u8>)>,
    receives: Vec<(usize, Call, &'b mut DeviceSlice<S, u8>)>,
}

/// A bucket behind its reduction, or as it came.
type Sent<F, T> = std::result::Result<Event<DeviceBuffer<T>>, On<F, DeviceBuffer<T>>>;

/// The communicators of this process so far.
static MADE: AtomicU64 = AtomicU64::new(0);

impl<S: LiveBrand> Comm<S> {
    pub(crate) fn new(member: RankHandle, stream: Stream<S>) -> Result<Self> {
        let transport = Transport::connect(&member.0, stream)?;
        Ok(Self { member, transport, stream, seq: 0, number: MADE.fetch_add(1, Ordering::Relaxed), graphs: 0 })
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank_shared().rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.rank_shared().size
    }

    /// Returns the backend that carries out the operations: never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        self.transport.backend()
    }

    /// The stream on which the operations run.
    pub fn stream(&self) -> Stream<S> {
        self.stream
    }

    /// The first failure of the ranks, if there is one.
    pub fn failure(&self) -> Option<&Failure> {
        self.rank_shared().failure_state.failure()
    }

    /// The failure of the ranks, if they have failed, and otherwise the error given. A call of the
    /// device reports a failure of the ranks as [`thalweg::Error::Poisoned`], with its text; this
    /// gives the failure itself.
    pub fn failure_or(&self, error: impl Into<Error>) -> Error {
        self.failure().map_or_else(|| error.into(), |failure| Error::Failed(failure.clone()))
    }

    fn rank_shared(&self) -> &Arc<RankShared> {
        &self.member.0
    }

    /// Waits on the host until the operations so far are done.
    ///
    /// # Errors
    /// The ranks have failed, or the device of this rank.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(|error| self.failure_or(error))
    }

    pub(crate) fn replays(&self) -> bool {
        self.rank_shared().options.graphs && self.rank_shared().local.1 == self.size()
    }

    pub(crate) fn healthy(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |failure| Err(Error::Failed(failure.clone())))
    }

    /// Reduces the elements of all ranks: `to` becomes the same on every rank.
    ///
    /// # Errors
    /// The lengths of `from` and `to` differ, or the ranks or the device have failed.
    pub fn all_reduce<T: CollectiveElement, R: Reduction<T>>(
        &mut self,
        _: R,
        from: &DeviceSlice<S, T>,
        to: &mut DeviceSlice<S, T>,
    ) -> Result<()> {
        if from.len() != to.len() {
            let (op, from, to) = ("all-reduce", from.len(), to.len());
            return Err(Error::Length { op, from, to, expected: "equal lengths" });
        }
        let call = self.reduction::<T, R>(Code::AllReduce, None, from.len());
        let all = 0..from.byte_len();
        self.apart(call, all.len(), Some((from, all.clone())), Some((to, all)))
    }

    /// Reduces the elements of all ranks: `x` becomes the same on every rank.
    ///
    /// # Errors
    /// The ranks or the device have failed.
    pub fn all_reduce_in_place<T: CollectiveElement, R: Reduction<T>>(
        &mut self,
        _: R,
        x: &mut DeviceSlice<S, T>,
    ) -> Result<()> {
        let call = self.reduction::<T, R>(Code::AllReduce, None, x.len());
        self.in_place(call, x)
    }

    /// Reduces the elements of all ranks: `x` of rank `root` becomes the result. That of the others
    /// does not change.
    ///
    /// # Errors
    /// `root` is no rank, or the ranks or the device have failed.
    pub fn reduce<T: CollectiveElement, R: Reduction<T>>(
        &mut self,
        _: R,
        root: usize,
        x: &mut DeviceSlice<S, T>,
    ) -> Result<()> {
        self.root(root)?;
        let call = self.reduction::<T, R>(Code::Reduce, Some(root), x.len());
        if self.rank() == root {
            return self.in_place(call, x);
        }
        self.apart(call, x.byte_len(), Some((x, 0..x.byte_len())), None)
    }

    /// Reduces the elements of all ranks and gives each rank a block of the result: rank `r` gets
    /// block `r` of `from`, which has as many blocks of the length of `to` as there are ranks.
    ///
    /// # Errors
    /// `from` is not that long, or the ranks or the device have failed.
    pub fn reduce_scatter<T: CollectiveElement, R: Reduction<T>>(
        &mut self,
        _: R,
        from: &DeviceSlice<S, T>,
        to: &mut DeviceSlice<S, T>,
    ) -> Result<()> {
        self.blocks("reduce-scatter", (from.len(), to.len()), to.len(), from.len())?;
        let call = self.reduction::<T, R>(Code::ReduceScatter, None, to.len());
        let own = self.block(to.byte_len());
        let all = 0..from.byte_len();
        self.apart(call, all.len(), Some((from, all)), Some((to, own)))
    }

    /// Gives every rank the elements of all: block `r` of `to` becomes `from` of rank `r`.
    ///
    /// # Errors
    /// `to` has not a block of the length of `from` for each rank, or the ranks or the device have
    /// failed.
    pub fn all_gather<T: CollectiveElement>(
        &mut self,
        from: &DeviceSlice<S, T>,
        to: &mut DeviceSlice<S, T>,
    ) -> Result<()> {
        self.blocks("all-gather", (from.len(), to.len()), from.len(), to.len())?;
        let call = call::<T>(Code::AllGather, None, from.len());
        let (own, all) = (self.block(from.byte_len()), 0..to.byte_len());
        self.apart(call, all.len(), Some((from, own)), Some((to, all)))
    }

    /// Gives every rank the elements of all: `x` has a block for each rank, and rank `r` brings
    /// block `r`.
    ///
    /// # Errors
    /// The length of `x` is not a multiple of the number of ranks, or the ranks or the device have
    /// failed.
    pub fn all_gather_in_place<T: CollectiveElement>(&mut self, x: &mut DeviceSlice<S, T>) -> Result<()> {
        let count = x.len() / self.size();
        self.blocks("all-gather", (count, x.len()), count, x.len())?;
        self.in_place(call::<T>(Code::AllGather, None, count), x)
    }

    /// Gives every rank the elements of rank `root`.
    ///
    /// # Errors
    /// `root` is no rank, or the ranks or the device have failed.
    pub fn broadcast<T: CollectiveElement>(&mut self, root: usize, x: &mut DeviceSlice<S, T>) -> Result<()> {
        self.root(root)?;
        let call = call::<T>(Code::Broadcast, Some(root), x.len());
        if self.rank() == root {
            return self.apart(call, x.byte_len(), Some((x, 0..x.byte_len())), None);
        }
        let all = 0..x.byte_len();
        self.apart(call, all.len(), None, Some((x, all)))
    }

    /// Makes the stream wait until the streams of all ranks have come here. The host does not wait:
    /// [`synchronize`](Self::synchronize) does.
    ///
    /// # Errors
    /// The ranks or the device have failed.
    pub fn barrier(&mut self) -> Result<()> {
        self.apart::<u8>(call::<u8>(Code::Barrier, None, 0), 0, None, None)
    }

    /// Compares a number of all ranks, such as a checksum of weights that must be the same
    /// everywhere. Waits for the answer.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] on every rank if the numbers differ; or the ranks or the device have
    /// failed.
    pub fn verify_equal(&mut self, what: &'static str, number: u64) -> Result<()> {
        let s = self.stream;
        let own = s.upload_blocking(&[number])?;
        let mut all = s.alloc(self.size())?;
        self.all_gather(&own, &mut all)?;
        let all = s.read_blocking(&all).map_err(|error| self.failure_or(error))?;
        let most = all.iter().find(|&&number| 2 * all.iter().filter(|&&other| other == number).count() > all.len());
        let differing: Vec<usize> = (0..all.len()).filter(|&rank| Some(&all[rank]) != most).collect();
        if differing.is_empty() { Ok(()) } else { Err(Error::RanksDiffer { what, differing }) }
    }

    /// Sends elements to another rank, which [receives](Self::recv) them. Two ranks that send to
    /// one another do it in a [`group`](Self::group).
    ///
    /// # Errors
    /// `to` is no other rank, or the ranks or the device have failed.
    pub fn send<T: CollectiveElement>(&mut self, to: usize, x: &DeviceSlice<S, T>) -> Result<()> {
        self.group(|group| group.send(to, x))
    }

    /// Receives as many elements as `x` has from another rank.
    ///
    /// # Errors
    /// `from` is no other rank, or the ranks or the device have failed.
    pub fn recv<T: CollectiveElement>(&mut self, from: usize, x: &mut DeviceSlice<S, T>) -> Result<()> {
        self.group(|group| group.recv(from, x))
    }

    /// Sends and receives several messages at once, so that no rank waits for another one's order.
    ///
    /// The closure only lists the messages; they are enqueued together when it returns. If it
    /// returns an error or panics, nothing is enqueued, so a group cannot stay open.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    /// use thalweg_collective::{WorldOptions, Result, ranks};
    ///
    /// stream_tags!(Exchange);
    /// let devices = [Device::new_cpu()?, Device::new_cpu()?, Device::new_cpu()?];
    /// let passed = ranks(&devices, WorldOptions::default(), |rank, world| -> Result<Vec<i32>> {
    ///     let stream = rank.stream::<Exchange>()?;
    ///     let mut comm = world.comm(stream)?;
    ///     let (x, mut y) = (stream.upload_blocking(&[rank.index() as i32])?, stream.alloc(1)?);
    ///     let (next, last) = ((rank.index() + 1) % 3, (rank.index() + 2) % 3);
    ///     comm.group(|group| {
    ///         group.send(next, &x)?;
    ///         group.recv(last, &mut y)
    ///     })?;
    ///     Ok(stream.read_blocking(&y)?)
    /// });
    /// assert_eq!(passed.into_iter().collect::<Result<Vec<_>>>().unwrap(), [[2], [0], [1]]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the closure, or the ranks or the device have failed.
    pub fn group<'b>(&'b mut self, f: impl FnOnce(&mut MessageGroup<'b, S>) -> Result<()>) -> Result<()> {
        let mut group = MessageGroup { rank: self.rank(), size: self.size(), sends: Vec::new(), receives: Vec::new() };
        f(&mut group)?;
        self.healthy()?;
        let Some(first) = group.sends.first().map(|m| m.1).or(group.receives.first().map(|m| m.1)) else {
            return Ok(());
        };
        let (own, seq) = (self.rank(), self.seq);
        match &mut self.transport {
            Transport::Alone => Ok(()), // nobody to list a message for
            Transport::Nccl { nccl, .. } => {
                let sends = group.sends.into_iter().map(|(peer, call, x)| (peer, true, call, x.device_ptr()));
                let receives = group.receives.into_iter().map(|(peer, call, x)| (peer, false, call, x.device_ptr()));
                let all = sends.chain(receives);
                let all: Vec<Transfer> =
                    all.map(|(peer, sends, call, address)| Transfer { peer, sends, call, address }).collect();
                // SAFETY: The slices of the group have the elements that their calls say, this
                // stream orders all uses of their memory, and each that is received into is
                // borrowed exclusively.
                unsafe { nccl.exchange(seq, &all) }?;
                let [sent, received] = [true, false].map(|sends| -> Vec<_> {
                    let own = all.iter().filter(|message| message.sends == sends);
                    own.map(|message| (message.address, message.call.count * message.call.kind.size())).collect()
                });
                self.stream.trace_work("NCCL messages", &sent, &received);
                nccl.mark(&self.stream);
                Ok(())
            }
            Transport::Peer(peer) => {
                for (to, call, _) in &group.sends {
                    peer.compare((own, *to), true, seq, *call)?;
                }
                for (from, call, _) in &group.receives {
                    peer.compare((*from, own), false, seq, *call)?;
                }
                peer.begin(self.stream, seq, first)?.exchange(&group.sends, group.receives)
            }
            Transport::Host(staging) => {
                let mut end = 0;
                let mut message = |peer, call, len| {
                    end += len;
                    Message { peer, call, bytes: end - len..end }
                };
                let sends: Vec<_> = group.sends.iter().map(|(to, call, x)| message(*to, *call, x.len())).collect();
                let receives: Vec<_> =
                    group.receives.iter().map(|(from, call, x)| message(*from, *call, x.len())).collect();
                staging.reserve(end)?;
                for (message, (_, _, x)) in sends.iter().zip(&group.sends) {
                    staging.copy_in(x, message.bytes.clone())?;
                }
                let places: Vec<Range<usize>> = receives.iter().map(|message| message.bytes.clone()).collect();
                staging.launch(first, seq, end, move |engine, bytes| engine.exchange(seq, &sends, &receives, bytes))?;
                for ((_, _, x), place) in group.receives.into_iter().zip(places) {
                    staging.copy_out(place, x)?;
                }
                Ok(())
            }
        }
    }

    fn reduction<T: CollectiveElement, R: Reduction<T>>(&self, code: Code, root: Option<usize>, count: usize) -> Call {
        Call { op: Some(<R as HasOp>::OP), ..call::<T>(code, root, count) }
    }

    /// Enqueues a collective operation on the elements of `x`.
    fn in_place<T: CollectiveElement>(&mut self, call: Call, x: &mut DeviceSlice<S, T>) -> Result<()> {
        let bytes = x.byte_len();
        let Some(seq) = self.begin(call, bytes)? else { return Ok(()) };
        let (own, size) = (self.block(bytes / self.size()), self.size());
        match &mut self.transport {
            Transport::Alone => Ok(()),
            Transport::Nccl { nccl, .. } => {
                let to = x.device_ptr();
                let from = if call.code == Code::AllGather { to + own.start as u64 } else { to };
                // SAFETY: `x` has the elements that the call says, with those of this rank in their
                // place. This stream orders all uses of its memory, and it is borrowed exclusively.
                unsafe { nccl.collective(seq, call, from, to) }?;
                let (reads, writes) = call.spans(from, to, size);
                self.stream.trace_work("NCCL collective", &[reads], &[writes]);
                nccl.mark(&self.stream);
                Ok(())
            }
            Transport::Peer(peer) => peer.begin(self.stream, seq, call)?.in_place(x),
            Transport::Host(staging) => {
                staging.copy_in(x.cast(), 0..bytes)?;
                staging.launch(call, seq, bytes, move |engine, bytes| engine.run(seq, call, bytes))?;
                staging.copy_out(0..bytes, x.cast_mut())
            }
        }
    }

    /// Reduces a bucket that has just been finished on another stream, if peer copies carry
    /// operations out: they take it straight from there. Otherwise it comes back.
    pub(crate) fn all_reduce_bucket<F: LiveBrand, T: CollectiveElement, R: Reduction<T>>(
        &mut self,
        _: R,
        from: Stream<F>,
        bucket: On<F, DeviceBuffer<T>>,
    ) -> Result<Sent<F, T>> {
        if self.transport.peer().is_none() {
            return Ok(Err(bucket));
        }
        let call = self.reduction::<T, R>(Code::AllReduce, None, bucket.len());
        match (self.begin(call, 0)?, self.transport.peer()) {
            (Some(seq), Some(peer)) => peer.bucket(&peer.begin(self.stream, seq, call)?, from, bucket).map(Ok),
            _ => Ok(Err(bucket)),
        }
    }

    /// Enqueues a collective operation on `bytes` of staging memory, with the places in it of what
    /// goes in and out.
    fn apart<T: CollectiveElement>(
        &mut self,
        call: Call,
        bytes: usize,
        from: Option<(&DeviceSlice<S, T>, Range<usize>)>,
        to: Option<(&mut DeviceSlice<S, T>, Range<usize>)>,
    ) -> Result<()> {
        let Some(seq) = self.begin(call, bytes)? else {
            return match (from, to) {
                (Some((from, _)), Some((to, _))) => Ok(self.stream.copy(from, to)?),
                _ => Ok(()),
            };
        };
        let size = self.size();
        match &mut self.transport {
            Transport::Alone => Ok(()),
            Transport::Nccl { nccl, barrier } => {
                let from = from.map(|(from, _)| from.device_ptr());
                let to = to.map(|(to, _)| to.device_ptr());
                let one = from.or(to).unwrap_or_else(|| barrier.device_ptr());
                // SAFETY: The caller passes what the call says; a rank that only reads or only
                // writes names the same memory on both sides, where NCCL does not write, or does
                // not read. A barrier has a byte of its own. This stream orders all uses of the
                // memory.
                unsafe { nccl.collective(seq, call, from.unwrap_or(one), to.unwrap_or(one)) }?;
                let (reads, writes) = call.spans(from.unwrap_or(one), to.unwrap_or(one), size);
                let [reads, writes] = [(from, reads), (to, writes)].map(|(side, span)| side.map_or((0, 0), |_| span));
                self.stream.trace_work("NCCL collective", &[reads], &[writes]);
                nccl.mark(&self.stream);
                Ok(())
            }
            Transport::Peer(peer) => {
                peer.begin(self.stream, seq, call)?.apart(from.map(|(from, _)| from), to.map(|(to, _)| to))
            }
            Transport::Host(staging) => {
                if let Some((from, place)) = from {
                    staging.copy_in(from.cast(), place)?;
                }
                staging.launch(call, seq, bytes, move |engine, bytes| engine.run(seq, call, bytes))?;
                to.map_or(Ok(()), |(to, place)| staging.copy_out(place, to.cast_mut()))
            }
        }
    }

    /// Counts a collective operation, and compares it with those of the other ranks if the options
    /// say so. `None` for a single rank. The host needs `bytes` of staging memory for it, and
    /// without them it does not count: the other ranks would wait for it.
    pub(crate) fn begin(&mut self, call: Call, bytes: usize) -> Result<Option<u64>> {
        self.healthy()?;
        if let Transport::Host(staging) = &mut self.transport {
            staging.reserve(bytes)?;
        }
        self.seq += 1;
        let (rank_shared, seq) = (self.rank_shared(), self.seq);
        if let Transport::Alone = self.transport {
            return Ok(None);
        }
        if rank_shared.options.check_consistency {
            let (op, timeout) = (call.text(), rank_shared.options.timeout);
            let name = format!("thalweg/{}compare/{seq}", rank_shared.tag);
            let failure =
                match rank_shared.store.all_gather(&name, rank_shared.rank, rank_shared.size, op.as_bytes(), timeout) {
                    Ok(calls) if calls.iter().all(|other| other == op.as_bytes()) => return Ok(Some(seq)),
                    Ok(calls) => {
                        let calls = calls.iter().map(|call| String::from_utf8_lossy(call).into_owned());
                        mismatch(seq, calls.enumerate().collect())
                    }
                    Err(StoreError::Missing { missing, waited, .. }) => {
                        Failure::Timeout { seq, op, lagging: missing, waited }
                    }
                    Err(why) => Failure::StoreGone { seq, op, reason: why.to_string() },
                };
            return Err(Error::Failed(rank_shared.failure_state.fail(failure).clone()));
        }
        Ok(Some(seq))
    }

    fn root(&self, root: usize) -> Result<()> {
        if root < self.size() {
            return Ok(());
        }
        Err(Error::Rank { rank: root, role: "the root", this: self.rank(), size: self.size() })
    }

    /// Checks that `all` elements are a block of `one` for each rank.
    fn blocks(&self, op: &'static str, (from, to): (usize, usize), one: usize, all: usize) -> Result<()> {
        if one.checked_mul(self.size()) == Some(all) {
            return Ok(());
        }
        Err(Error::Length { op, from, to, expected: "a block of equal length for each rank on the longer side" })
    }

    /// The place of this rank's block.
    fn block(&self, bytes: usize) -> Range<usize> {
        self.rank() * bytes..(self.rank() + 1) * bytes
    }
}

pub(crate) fn call<T: CollectiveElement>(code: Code, root: Option<usize>, count: usize) -> Call {
    Call { code, kind: <T as HasKind>::KIND, op: None, root, count }
}

impl<'b, S: LiveBrand> MessageGroup<'b, S> {
    /// Lists a message to another rank.
    ///
    /// # Errors
    /// `to` is no other rank.
    pub fn send<T: CollectiveElement>(&mut self, to: usize, x: &'b DeviceSlice<S, T>) -> Result<()> {
        self.peer(to, "sent to")?;
        self.sends.push((to, call::<T>(Code::Message, None, x.len()), x.cast()));
        Ok(())
    }

    /// Lists a message from another rank, of as many elements as `x` has.
    ///
    /// # Errors
    /// `from` is no other rank.
    pub fn recv<T: CollectiveElement>(&mut self, from: usize, x: &'b mut DeviceSlice<S, T>) -> Result<()> {
        self.peer(from, "received from")?;
        self.receives.push((from, call::<T>(Code::Message, None, x.len()), x.cast_mut()));
        Ok(())
    }

    fn peer(&self, rank: usize, role: &'static str) -> Result<()> {
        if rank < self.size && rank != self.rank {
            return Ok(());
        }
        Err(Error::Rank { rank, role, this: self.rank, size: self.size })
    }
}

impl<S: LiveBrand> fmt::Debug for Comm<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comm")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("operations", &self.seq)
            .field("failure", &self.failure())
            .finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for MessageGroup<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({} messages to send, {} to receive)", self.sends.len(), self.receives.len())
    }
}
