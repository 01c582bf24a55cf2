//! Collective operations in graphs.

use std::fmt;

use thalweg::{Bundle, Capture, DeviceSlice, Graph, LiveBrand, Resource, Returned, Stream};

use crate::comm::{Comm, call};
use crate::element::{CollectiveElement, HasOp, Reduction};
use crate::error::{Error, Result, on_device};
use crate::header::{Call, Code, Header};
use crate::nccl::{Alive, Nccl};

/// Work on a bundle with operations of all ranks in it, captured once: see [`Comm::capture`].
#[must_use = "a graph runs only where it is replayed"]
pub struct CommGraph<R: Resource> {
    graph: Graph<R>,
    /// The number of the communicator's capture that made it.
    number: u64,
    /// The communicator that made it.
    comm: u64,
    /// It ends after the graph.
    #[expect(dead_code, reason = "it counts the graph")]
    alive: Option<Alive>,
}

impl<R: Resource> CommGraph<R> {
    /// The number of nodes, as [`Graph::len`] counts them. An operation of NCCL has one or more.
    #[must_use]
    pub fn len(&self) -> usize {
        self.graph.len()
    }

    /// Whether a replay does nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.graph.is_empty()
    }
}

impl<R: Resource> fmt::Debug for CommGraph<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommGraph(number {}, {:?})", self.number, self.graph)
    }
}

/// The stream and the communicator on which [`Comm::capture`] records: a stream for copies and
/// launches, and the operations of the ranks.
pub struct Recorder<'c, 'g> {
    nccl: Option<&'c Nccl>,
    rank: usize,
    size: usize,
    stream: Stream<Capture<'g>>,
    /// A hash of the operations so far (FNV-1a).
    hash: u64,
}

impl<'g> Recorder<'_, 'g> {
    /// The stream under capture.
    #[must_use]
    pub fn stream(&self) -> Stream<Capture<'g>> {
        self.stream
    }

    /// As [`Comm::all_reduce`].
    ///
    /// # Errors
    /// The lengths differ, or NCCL cannot capture it.
    pub fn all_reduce<T: CollectiveElement, R: Reduction<T>>(
        &mut self,
        _: R,
        from: &DeviceSlice<Capture<'g>, T>,
        to: &mut DeviceSlice<Capture<'g>, T>,
    ) -> Result<()> {
        if from.len() != to.len() {
            let (op, from, to) = ("all-reduce", from.len(), to.len());
            return Err(Error::Length { op, from, to, expected: "equal lengths" });
        }
        let call = Call { op: Some(<R as HasOp>::OP), ..call::<T>(Code::AllReduce, None, from.len()) };
        match self.nccl {
            None => Ok(self.stream.copy(from, to)?),
            Some(_) => self.record(call, from.device_ptr(), to.device_ptr()),
        }
    }

    /// As [`Comm::all_reduce_in_place`].
    ///
    /// # Errors
    /// NCCL cannot capture it.
    pub fn all_reduce_in_place<T: CollectiveElement, R: Reduction<T>>(
        &mut self,
        _: R,
        x: &mut DeviceSlice<Capture<'g>, T>,
    ) -> Result<()> {
        let call = Call { op: Some(<R as HasOp>::OP), ..call::<T>(Code::AllReduce, None, x.len()) };
        self.record(call, x.device_ptr(), x.device_ptr())
    }

    /// As [`Comm::broadcast`].
    ///
    /// # Errors
    /// `root` is no rank, or NCCL cannot capture it.
    pub fn broadcast<T: CollectiveElement>(&mut self, root: usize, x: &mut DeviceSlice<Capture<'g>, T>) -> Result<()> {
        if root >= self.size {
            return Err(Error::Rank { rank: root, role: "the root", this: self.rank, size: self.size });
        }
        self.record(call::<T>(Code::Broadcast, Some(root), x.len()), x.device_ptr(), x.device_ptr())
    }

    /// As [`Comm::all_gather_in_place`].
    ///
    /// # Errors
    /// The length of `x` is not a multiple of the number of ranks, or NCCL cannot capture it.
    pub fn all_gather_in_place<T: CollectiveElement>(&mut self, x: &mut DeviceSlice<Capture<'g>, T>) -> Result<()> {
        if !x.len().is_multiple_of(self.size) {
            let (op, from, to) = ("all-gather", x.len() / self.size, x.len());
            return Err(Error::Length { op, from, to, expected: "a block of equal length for each rank" });
        }
        let count = x.len() / self.size;
        let own = x.device_ptr() + (self.rank * count * size_of::<T>()) as u64;
        self.record(call::<T>(Code::AllGather, None, count), own, x.device_ptr())
    }

    /// Adds an operation. A single rank needs none.
    fn record(&mut self, call: Call, from: u64, to: u64) -> Result<()> {
        let bytes = Header { call, seq: 0, step: 0, len: 0 }.encode();
        self.hash = bytes.iter().fold(self.hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let (Some(nccl), Some(stream)) = (self.nccl, self.stream.raw()) else { return Ok(()) };
        // SAFETY: The callers pass slices of the bundle under capture with the elements that the
        // call says, exclusive ones where it writes. A replay takes the same bundle, and its stream
        // orders all uses of the memory.
        unsafe { nccl.record(call, from, to, stream) }?;
        let (reads, writes) = call.spans(from, to, self.size);
        self.stream.trace_work("NCCL collective", &[reads], &[writes]);
        Ok(())
    }
}

impl fmt::Debug for Recorder<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder(rank {} of {})", self.rank, self.size)
    }
}

impl<S: LiveBrand> Comm<S> {
    /// Whether buckets are reduced by graphs: the options say so, NCCL reduces, and all ranks are
    /// on one machine. Between machines NCCL puts calls of the host into a graph, which nobody here
    /// has measured.
    pub(crate) fn captures(&self) -> bool {
        self.transport.nccl().is_some() && self.replays()
    }

    /// Makes a graph of what `f` enqueues: copies and launches on [`Recorder::stream`], and
    /// operations of all ranks. None of it runs. A replay costs the host one launch of a graph,
    /// where each operation called by itself costs it the thread that NCCL starts for it.
    ///
    /// All ranks capture the same operations in the same order, and the end of a capture compares
    /// them and waits for that. Only NCCL can capture; a single rank captures without it.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    /// use thalweg_collective::{Error, Mean, World};
    ///
    /// stream_tags!(Reduce);
    /// let reduce = Device::cpu()?.stream::<Reduce>()?;
    /// let mut comm = World::single().comm(reduce)?;
    /// let x = reduce.upload_blocking(&[1.0f32, 2.0])?;
    /// let (mut graph, mut x) = comm.capture(x, |r, x| r.all_reduce_in_place(Mean, x))?;
    /// for _ in 0..3 {
    ///     x = comm.replay(&mut graph, x)?;
    /// }
    /// assert_eq!(reduce.read_blocking(&x)?, [1.0, 2.0]); // the mean of one rank
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `f`; [`Error::NoCapture`] if the host or peer copies carry out the operations;
    /// [`Error::RanksDiffer`] on every rank if the captures differ; or the ranks or the device have
    /// failed. The bundle comes back.
    #[expect(clippy::type_complexity, reason = "a pair, as `Stream::capture` returns, or what was given")]
    pub fn capture<B: Bundle<S>>(
        &mut self,
        bundle: B,
        f: impl for<'g> FnOnce(&mut Recorder<'_, 'g>, &mut <B::Idle as Resource>::On<Capture<'g>>) -> Result<()>,
    ) -> Result<(CommGraph<B::Idle>, B), Returned<B, Error>> {
        if let Err(error) = self.healthy() {
            return Err(Returned { error, value: bundle });
        }
        let (rank, size, backend) = (self.rank(), self.size(), self.backend());
        if size > 1 && self.transport.nccl().is_none() {
            return Err(Returned { error: Error::NoCapture { backend }, value: bundle });
        }
        let nccl = self.transport.nccl();
        let alive = nccl.map(|_| Alive::new());
        let (mut hash, mut refused) = (0xcbf2_9ce4_8422_2325, None);
        let captured = self.stream.capture(bundle, |stream, buffers| {
            let mut recorder = Recorder { nccl, rank, size, stream: *stream, hash };
            let done = f(&mut recorder, buffers);
            hash = recorder.hash;
            done.map_err(|error| match error {
                Error::Device(error) => error,
                error => {
                    let text = error.to_string();
                    refused = Some(error);
                    thalweg::Error::Thread { reason: text }
                }
            })
        });
        let failed = captured.is_err();
        // The other ranks wait for the comparison, also if this one has no graph.
        let same =
            if size > 1 { self.verify_equal("the captured operations", if failed { 0 } else { hash }) } else { Ok(()) };
        match captured {
            Err(Returned { error, value }) => Err(Returned { error: refused.unwrap_or(Error::Device(error)), value }),
            Ok((graph, bundle)) => match same {
                Ok(()) => {
                    self.graphs += 1;
                    Ok((CommGraph { graph, number: self.graphs, comm: self.number, alive }, bundle))
                }
                Err(error) => Err(Returned { error, value: bundle }),
            },
        }
    }

    /// Enqueues a captured graph, and gives the bundle back. It is one operation, which all ranks
    /// call with the graph of the same capture.
    ///
    /// # Errors
    /// The graph is of another communicator; or the ranks or the device have failed. If the bundle
    /// is not the captured one, the ranks fail, because the others wait for this one. The bundle
    /// comes back.
    pub fn replay<R: Resource>(
        &mut self,
        graph: &mut CommGraph<R>,
        bundle: R::On<S>,
    ) -> Result<R::On<S>, Returned<R::On<S>, Error>> {
        if graph.comm != self.number {
            return Err(Returned { error: Error::OtherGraph, value: bundle });
        }
        let stream = self.stream;
        let call = Call { code: Code::Replay, count: graph.number as usize, ..call::<u8>(Code::Replay, None, 0) };
        let seq = match self.begin(call, 0) {
            Ok(seq) => seq,
            Err(error) => return Err(Returned { error, value: bundle }),
        };
        let nccl = match (self.transport.nccl(), seq) {
            (Some(nccl), Some(seq)) => match nccl.announce(seq, call) {
                Ok(()) => Some((nccl, seq)),
                Err(error) => return Err(Returned { error, value: bundle }),
            },
            _ => None,
        };
        let launch = || stream.replay(&mut graph.graph, bundle);
        match nccl {
            Some((nccl, seq)) => {
                let replayed = nccl.replay(seq, call, launch);
                nccl.mark(&stream);
                replayed
            }
            None => launch().map_err(on_device),
        }
    }
}
