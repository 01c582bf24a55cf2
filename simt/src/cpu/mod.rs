//! The context on the host. [`run_block`] runs the threads of one block on the OS thread that calls
//! it.
//!
//! Independent threads (a body over [`Simt`](crate::Simt)) run one after another: the block is a
//! loop around the inlined body.
//!
//! Cooperative threads (a body over [`Cooperative`](crate::Cooperative)) are coroutines. Each runs
//! until it reaches a barrier or a warp operation, leaves its operand in its lane and yields. One
//! round of the scheduler resumes the 32 threads of a warp. If all of them then wait in the same
//! warp operation, the scheduler computes the 32 results and starts another round, so a warp
//! operation costs one yield per thread. If none waits in a warp operation, the scheduler goes on
//! to the next warp. When it has visited all warps, either every thread waits at the barrier and
//! may run on, or every thread has returned and the block is done. In all other cases some thread
//! waits for ever: the threads have diverged, which is reported as [`Fault::Diverged`].
//!
//! The threads run in ascending order up to the first barrier, then in descending order up to the
//! next one, and so on by turns. If a body lacks a barrier, some threads then read values that
//! others have not written yet, so a wrong result is likely. With one fixed order it could be right
//! each time.

mod access;
mod atomics;
mod block;
pub mod checker;
mod copies;
mod error;
mod fibers;
mod math;
mod matrices;
mod memory;
mod monitor;
mod place;
mod run;
mod team;
mod tensor;
mod thread;
mod tile;
mod warp;
mod workspace;

pub use block::CpuBlock;
pub use checker::Finding;
pub use error::{BlockError, Fault, SEED};
#[doc(hidden)]
pub use monitor::Checked;
pub use monitor::{Monitor, Unchecked};
pub use run::{CheckedLaunch, run_block};
pub use thread::CpuThread;
pub use workspace::BlockWorkspace;
