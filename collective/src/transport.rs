//! The transports: what carries the operations of a communicator out.

use std::ops::Range;
use std::sync::Arc;

use thalweg::{DeviceBuffer, DeviceSlice, LiveBrand, On, PinnedBuffer, Stream};

use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::{Failure, Result};
use crate::header::Call;
use crate::nccl::{self, Nccl};
use crate::peer::{self, Peer};
use crate::rank_handle::RankShared;

/// The transport of a communicator.
pub(crate) enum Transport<S: LiveBrand> {
    /// A single rank has nobody to exchange anything with.
    Alone,
    /// NCCL, and the byte that its barrier sums. NCCL ends before the byte is freed: fields are
    /// dropped in their order.
    Nccl { nccl: Nccl, barrier: On<S, DeviceBuffer<u8>> },
    /// The copies between the devices of this process.
    Peer(Peer),
    /// The host, with memory of its own.
    Host(Staging<S>),
}

impl<S: LiveBrand> Transport<S> {
    /// Chooses the transport together with the other ranks.
    pub(crate) fn connect(rank_shared: &Arc<RankShared>, stream: Stream<S>) -> Result<Self> {
        if rank_shared.engine.is_none() {
            return Ok(Self::Alone);
        }
        if let Some(nccl) = nccl::connect(rank_shared, stream.device(), stream.raw())? {
            return Ok(Self::Nccl { nccl, barrier: stream.alloc_zeroed(1)? });
        }
        if let Some(peer) = peer::connect(rank_shared, stream.device())? {
            return Ok(Self::Peer(peer));
        }
        let memory = stream.bind(PinnedBuffer::empty(stream.device())).map_err(thalweg::Error::from)?;
        Ok(Self::Host(Staging { rank_shared: rank_shared.clone(), stream, memory }))
    }

    pub(crate) fn backend(&self) -> Backend {
        match self {
            Self::Nccl { .. } => Backend::Nccl,
            Self::Peer(_) => Backend::Peer,
            Self::Alone | Self::Host(_) => Backend::Host,
        }
    }

    pub(crate) fn nccl(&self) -> Option<&Nccl> {
        if let Self::Nccl { nccl, .. } = self { Some(nccl) } else { None }
    }

    pub(crate) fn peer(&self) -> Option<&Peer> {
        if let Self::Peer(peer) = self { Some(peer) } else { None }
    }
}

/// The page-locked memory through which the host moves the bytes of an operation.
pub(crate) struct Staging<S: LiveBrand> {
    rank_shared: Arc<RankShared>,
    stream: Stream<S>,
    memory: On<S, PinnedBuffer<u8>>,
}

/// An operation on its way to its turn. If it never has one, because its stream has failed, or if
/// it panics, the ranks fail.
struct PendingOp {
    rank_shared: Arc<RankShared>,
    seq: u64,
    call: Call,
    over: bool,
}

impl Drop for PendingOp {
    fn drop(&mut self) {
        if !self.over {
            let (rank, seq) = (self.rank_shared.rank, self.seq);
            self.rank_shared.failure_state.fail(Failure::Abandoned { rank, seq, op: self.call.text() });
        }
    }
}

impl<S: LiveBrand> Staging<S> {
    /// Makes the memory at least this large.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<()> {
        if self.memory.len() < bytes {
            let larger = self.stream.device().pinned::<u8>(bytes)?;
            self.memory = self.stream.bind(larger).map_err(thalweg::Error::from)?;
        }
        Ok(())
    }

    pub(crate) fn copy_in(&mut self, from: &DeviceSlice<S, u8>, place: Range<usize>) -> Result<()> {
        let to = self.memory.slice_mut(place).map_err(thalweg::Error::from)?;
        Ok(self.stream.copy_to_host(from, to)?)
    }

    pub(crate) fn copy_out(&mut self, place: Range<usize>, to: &mut DeviceSlice<S, u8>) -> Result<()> {
        let from = self.memory.slice(place).map_err(thalweg::Error::from)?;
        Ok(self.stream.copy_to_device(from, to)?)
    }

    /// Enqueues what ranks do with one another, on the first `bytes` of the memory.
    pub(crate) fn launch(
        &mut self,
        call: Call,
        seq: u64,
        bytes: usize,
        work: impl FnOnce(&Engine, &mut [u8]) + Send + 'static,
    ) -> Result<()> {
        let turn = PendingOp { rank_shared: self.rank_shared.clone(), seq, call, over: false };
        let memory = self.memory.slice_mut(..bytes).map_err(thalweg::Error::from)?;
        self.stream.launch_host_on(memory, move |bytes| {
            let mut turn = turn; // all of it, and not its fields one by one
            if let Some(engine) = &turn.rank_shared.engine {
                work(engine, bytes);
            }
            turn.over = true;
        })?;
        Ok(())
    }
}
