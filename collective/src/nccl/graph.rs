//! Operations under capture, and replays of what was captured.
//!
//! NCCL keeps what a graph needs until the graph is destroyed, and an abort waits for that. So a
//! communicator that ends or is aborted while a graph of this process is alive does it on a thread
//! of its own.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg::Returned;

use super::{Entry, Nccl, Raw, issue};
use crate::error::{Error, Failure, Result, on_device};
use crate::header::Call;
use crate::lock;

/// Graphs of this process that hold operations of NCCL.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// Counts a graph as long as it is alive.
#[derive(Debug)]
pub(crate) struct Alive(());

impl Alive {
    pub(crate) fn new() -> Self {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn any_alive() -> bool {
    ALIVE.load(Ordering::Relaxed) > 0
}

impl Nccl {
    /// Adds an operation to a capture.
    ///
    /// # Safety
    /// As for [`collective`](Self::collective), at each replay. The stream is under capture.
    pub(crate) unsafe fn record(&self, call: Call, from: u64, to: u64, stream: *mut c_void) -> Result<()> {
        let shared = &self.shared;
        let code = match *lock(&shared.comm) {
            // SAFETY: The communicator is not destroyed, because its lock is held. The caller
            // promises the rest.
            Some(Raw(comm)) => unsafe { issue(shared.library, call, from, to, comm, stream) },
            None => super::IN_PROGRESS, // `settle` finds it aborted
        };
        shared.settle(code, None).map_err(|reason| {
            let (rank, op) = (shared.rank_shared.rank, format!("capture of {}", call.text()));
            shared.fail(Failure::Library { rank, seq: 0, op, reason })
        })
    }

    /// Counts a replay as an operation, and enqueues it by `launch`. If that is refused, the ranks
    /// fail.
    pub(crate) fn replay<T>(
        &self,
        seq: u64,
        call: Call,
        launch: impl FnOnce() -> Result<T, Returned<T>>,
    ) -> Result<T, Returned<T, Error>> {
        let shared = &self.shared;
        {
            let mut state = lock(&shared.state);
            state.entered += 1;
            state.pending.push_back(Entry { seq, call, peers: None });
            state.log.push(call);
        }
        let launched = launch();
        if launched.is_err() {
            shared.fail(Failure::Abandoned { rank: shared.rank_shared.rank, seq, op: call.text() });
        }
        lock(&shared.state).enqueued += 1;
        launched.map_err(on_device)
    }
}
