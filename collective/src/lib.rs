//! Collective operations: several ranks, each with a device, compute together.
//!
//! A [`World`] is this rank among the others. [`World::comm`] binds a communicator ([`Comm`]) to a
//! stream; its operations are enqueued there, and take the buffers of that stream. So the types of
//! thalweg order them: no other stream and no host can touch a buffer while it is reduced.
//!
//! ```
//! use thalweg::stream_tags;
//! use thalweg_collective::{Mean, World};
//!
//! stream_tags!(Compute, Reduce);
//!
//! // One of the processes that `thalweg launch`, `torchrun`, Slurm or Open MPI started; alone without them.
//! let world = World::from_env()?;
//! let (rank, device) = (world.rank(), world.device()?); // a GPU for each, or the CPU device
//! let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
//! let mut comm = world.comm(reduce)?;
//!
//! let mut gradient = compute.upload_blocking(&[1.0f32, 2.0, 3.0])?; // what a backward pass made
//! let mut gradient = compute.hand_off(gradient, &reduce)?;
//! comm.all_reduce_in_place(Mean, &mut gradient)?; // enqueued; the host goes on
//! let gradient = reduce.hand_off(gradient, &compute)?; // `compute` waits for the sum
//! assert_eq!(compute.read_blocking(&gradient)?, [1.0, 2.0, 3.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How ranks are connected
//!
//! | ranks | made by | bytes go |
//! |---|---|---|
//! | one | [`World::single`] | nowhere: the operations are copies on the device, or nothing |
//! | threads of a process | [`ranks`], [`World::local`] | through memory, or from device to device by copies ([`Backend::Peer`]) |
//! | processes | [`World::connect`], [`World::from_env`] | over TCP, a connection between each two ranks |
//! | either, with a GPU each | the same | from GPU to GPU, by NCCL |
//!
//! The operations are the same text over all of them. Where the host carries them out, they give
//! the same bits everywhere: a reduction is always in the order of the ranks ([`Reduction`]). It
//! works on every device; the bytes of a GPU go through page-locked memory. On a GPU, the driver
//! runs the host functions of one device on one thread. An operation that waits for its peers there
//! holds up the other host functions of the device.
//!
//! # NCCL
//!
//! If every rank has a GPU and can load NCCL, NCCL carries out the operations ([`Backend`]). The
//! library is not linked. `THALWEG_NCCL` names its file; without it, the loader of the system looks
//! for `libnccl.so.2` and `libnccl.so`. Version 2.18 is needed, the same on all ranks.
//!
//! - A sum is in an order that NCCL chooses. Every rank gets the same bits, but other numbers of
//!   ranks, other machines and other versions give others. The mean of `f16` and `bf16` is not made
//!   in `f32`, and what is not a number may get lost in [`Min`] and [`Max`].
//! - NCCL does not compare what ranks call. Ranks of one process compare each call before it is
//!   enqueued. Ranks of several processes compare their calls many times a second, so a wrong call
//!   becomes a failure soon, but may give wrong numbers until then.
//!   [`WorldOptions::check_consistency`] compares first.
//! - Messages between two processes ([`Comm::send`], [`Comm::recv`], [`Comm::group`]) are not
//!   compared at all: the two ranks must agree on type and length. If they do not, the numbers are
//!   wrong, or the ranks wait until the timeout.
//! - A rank that ends waits ten seconds for ranks that are late. A program whose ranks end at very
//!   different times calls [`Comm::barrier`] last.
//! - The timeout is that of up to eight operations in a row, because the stream says only behind
//!   every eighth how far it has come. Work of other kinds in between counts as well.
//! - Ranks with a GPU each are better processes than threads. What a rank asks CUDA for on the
//!   host, such as page-locked memory, may wait for the work of all GPUs of its process, and so for
//!   an operation that waits for this very rank. The watchdogs then wait for the driver too, and no
//!   timeout ends it. It is safe if the ranks allocate only where no operation is under way.
//! - Ranks that share a GPU get [`Error::SharedDevice`]. Processes may share one from NCCL 2.30 on,
//!   to try a program, if each has `NCCL_MULTI_RANK_GPU_ENABLE=1` in its environment
//!   ([`World::comm`]).
//! - A call starts a thread inside NCCL, because only communicators that do so can be aborted
//!   safely. It costs the host some 60 us. [`Comm::capture`] puts operations into a graph, whose
//!   replay is one launch, and [`WorldOptions::graphs`] does so with buckets of gradients.
//! - A thread that does not come back from NCCL within ten seconds of a failure ends the process.
//!
//! # Training on several ranks
//!
//! [`overlap::data_parallel`] reduces gradients in buckets while the backward pass goes on. The
//! types keep a gradient from being used until its sum is there.
//!
//! # When something goes wrong
//!
//! A rank that is a straggler, stopped, killed or wrong makes all ranks fail, with one [`Failure`]
//! that names rank and operation. The failure is kept before anything is aborted, and the device of
//! each rank fails with it ([`thalweg::Device::poison`]): work that was enqueued behind the
//! operation runs on partial sums, and no read, no event and no stream of that device gives its
//! result to the host. A device that belongs to no rank does not fail with them: if it already
//! waits to copy from one that does, it copies a partial sum. The processes end, and new ones go on
//! from the last checkpoint.
//!
//! # The store
//!
//! Ranks of several processes find one another through a [`Store`], which rank 0 starts, or
//! `thalweg launch`. [`RankEnv`] says where it is and what launchers set.
//!
//! Both sides of every connection prove that they know the secret of the ranks. Nothing is
//! encrypted or signed after that, so the network must be one that only the ranks can reach.
//! `docs/distributed.md` has the protocol, and what it protects against.
//!
//! # Messages
//!
//! Through the crate [`log`], at the level `debug`: `thalweg_collective::store` (a store listens;
//! connections that end in an error), `thalweg_collective::tcp` (ranks are connected;
//! unauthenticated peers that are refused), `thalweg_collective::nccl` (NCCL was loaded or why not;
//! ranks are connected) and `thalweg_collective::failure_state` (the first failure).

mod backend;
mod call_log;
mod codec;
mod comm;
mod element;
mod engine;
mod error;
mod exchange;
mod failure_state;
mod gradients;
mod graph;
mod greeting;
mod header;
mod link;
mod nccl;
mod options;
pub mod overlap;
mod peer;
mod rank_env;
mod rank_handle;
mod store;
mod transport;
mod world;

pub use backend::Backend;
pub use comm::{Comm, MessageGroup};
pub use element::{CollectiveElement, Max, Mean, Min, Reduction, Sum};
pub use error::{Error, Failure, Result, StoreError};
pub use gradients::{Backward, BucketGradient, BucketSizes, Gradients};
pub use graph::{CommGraph, Recorder};
pub use options::{CtaRange, WorldOptions};
pub use rank_env::{MasterAddress, RankEnv};
pub use store::{Store, StoreLimits, StoreServer};
pub use world::{World, ranks};

/// Locks a mutex, also after a panic poisoned it. The only code of the user that runs under a lock
/// of this crate is the program's logger.
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
