//! A rank among the others: what its world, its communicator and its operations share.

use std::fmt;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use log::debug;
use thalweg::beside_captures;

use crate::call_log::CallLog;
use crate::engine::Engine;
use crate::error::{Failure, Result, StoreError};
use crate::exchange::PeerSlot;
use crate::failure_state::FailureState;
use crate::options::WorldOptions;
use crate::store::{Store, StoreServer};

/// A rank, as long as its world or its communicator lives.
#[derive(Debug)]
pub(crate) struct RankHandle(pub(crate) Arc<RankShared>);

/// The state that the operations of a rank need. Those under way hold it too, so the end of a rank
/// comes after its last operation. The fields are dropped in this order.
pub(crate) struct RankShared {
    /// `None` for a single rank.
    pub(crate) engine: Option<Engine>,
    pub(crate) failure_state: Arc<FailureState>,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The rank and the number of ranks on this machine.
    pub(crate) local: (usize, usize),
    pub(crate) options: WorldOptions,
    pub(crate) store: Store,
    /// The log of the calls of the ranks of one process; `None` in ranks of several.
    pub(crate) call_log: Option<Arc<CallLog>>,
    /// The slot in which a rank of one process posts peer copies; `None` in ranks of several.
    pub(crate) slot: Option<PeerSlot>,
    /// Tells these ranks from others that meet in the same store.
    pub(crate) tag: String,
    /// The process of the rank. A forked child has its memory, but is no rank.
    pub(crate) home: u32,
    #[expect(dead_code, reason = "it ends with the rank")]
    pub(crate) watcher: Option<FailureWatcher>,
    #[expect(dead_code, reason = "it ends with the rank")]
    pub(crate) server: Option<StoreServer>,
}

impl fmt::Debug for RankShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

impl RankShared {
    /// The other ranks, in their order.
    pub(crate) fn others(&self) -> Vec<usize> {
        (0..self.size).filter(|&rank| rank != self.rank).collect()
    }

    /// Whether this process is a child that `fork` made of the rank's process. It has none of the
    /// threads, and what it does to a socket happens to the parent.
    pub(crate) fn forked(&self) -> bool {
        self.home != std::process::id()
    }
}

impl Drop for RankHandle {
    fn drop(&mut self) {
        if self.0.forked() {
            // The count of the clone keeps all of it as it is.
            std::mem::forget(self.0.clone());
        } else if thread::panicking() {
            self.0.failure_state.fail(Failure::Panicked { rank: self.0.rank });
        }
    }
}

/// A thread that waits for the failure of a rank of another process.
pub(crate) struct FailureWatcher {
    socket: Option<TcpStream>,
    thread: Option<JoinHandle<()>>,
}

impl FailureWatcher {
    /// A request waits for `each` at most; then there is another.
    pub(crate) fn new(store: &Store, failure_state: Arc<FailureState>, each: Duration) -> Result<Self> {
        let store = store.reconnect()?;
        let socket = store.shutter();
        let wait = move || {
            let told = loop {
                match store.wait(&failure_state.key(), each) {
                    Err(StoreError::Late { .. }) => {}
                    told => break told,
                }
            };
            match told {
                Ok(bytes) => {
                    if let Some(failure) = Failure::decode(&bytes) {
                        failure_state.learn(failure);
                    }
                }
                // The connections between the ranks still tell of ranks that are gone.
                Err(why) => debug!(target: "thalweg_collective::store", "failures are not shared any more: {why}"),
            }
        };
        let thread = thread::Builder::new().name("thalweg watch".to_owned()).spawn(|| beside_captures(wait));
        let thread = thread.map_err(|why| thalweg::Error::Thread { reason: why.to_string() })?;
        Ok(Self { socket, thread: Some(thread) })
    }
}

impl Drop for FailureWatcher {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            _ = socket.shutdown(Shutdown::Both);
        }
        // The thread itself drops the last handle if the program drops its own while the thread
        // reports.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::FailureWatcher;
    use crate::error::Failure;
    use crate::failure_state::FailureState;
    use crate::store::Store;

    /// A run may take longer than the longest wait of one request.
    #[test]
    fn a_watch_outlives_the_longest_wait() {
        let (store, failure_state) = (Store::local(), Arc::new(FailureState::new(None, "tag/")));
        let _watch = FailureWatcher::new(&store, failure_state.clone(), Duration::from_millis(5)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        store.set("thalweg/other/failure", &Failure::Panicked { rank: 1 }.encode()).unwrap();
        store.set("thalweg/tag/failure", &Failure::Panicked { rank: 3 }.encode()).unwrap();
        let started = Instant::now();
        while failure_state.failure().is_none() {
            assert!(started.elapsed() < Duration::from_secs(20), "nobody watches any more");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(failure_state.failure(), Some(&Failure::Panicked { rank: 3 }));
    }
}
