//! The failure state of the ranks: the first failure, and who learns of it.
//!
//! The order is what keeps partial sums from the program. First the failure is kept and the device
//! of the rank is marked as failed; only then are the operations under way aborted. An operation
//! that ends because of the abort is followed on its stream by work on partial sums, and whoever
//! waits for that work asks the device after the wait.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use log::debug;
use thalweg::Device;

use crate::codec::{Fields, Parse};
use crate::error::Failure;
use crate::link::Abort;
use crate::lock;
use crate::store::Store;

#[derive(Debug)]
pub(crate) struct FailureState {
    first: OnceLock<Failure>,
    held: Mutex<Held>,
    /// The store through which other ranks learn of a failure. The connection is its own: nobody
    /// else waits on it.
    store: Option<Store>,
    /// Tells these ranks from others that meet in the same store.
    tag: String,
}

#[derive(Debug, Default)]
struct Held {
    devices: Vec<Device>,
    links: Vec<Weak<dyn Abort>>,
}

impl FailureState {
    pub(crate) fn new(store: Option<Store>, tag: &str) -> Self {
        Self { first: OnceLock::new(), held: Mutex::default(), store, tag: tag.to_owned() }
    }

    /// The key of the first failure in the store.
    pub(crate) fn key(&self) -> String {
        format!("thalweg/{}failure", self.tag)
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.first.get()
    }

    /// Keeps a failure, unless there is an earlier one of any rank. Returns the first one.
    pub(crate) fn fail(&self, failure: Failure) -> &Failure {
        if self.first.get().is_none() {
            let told = self.store.as_ref().and_then(|store| store.set_if_absent(&self.key(), &failure.encode()).ok());
            self.learn(told.and_then(|told| Failure::decode(&told)).unwrap_or(failure))
        } else {
            self.learn(failure)
        }
    }

    /// Keeps the failure that all ranks have been told, and aborts what is under way. Whoever comes
    /// second waits for the first: an operation that ends after this call ends on a failed device.
    pub(crate) fn learn(&self, failure: Failure) -> &Failure {
        let mut held = lock(&self.held);
        if self.first.get().is_none() {
            debug!(target: "thalweg_collective::failure_state", "the ranks have failed: {failure}");
            let cause = failure.to_string();
            held.devices.drain(..).for_each(|device| device.poison(&*cause));
        }
        let first = self.first.get_or_init(|| failure);
        held.links.drain(..).filter_map(|link| link.upgrade()).for_each(|link| link.abort());
        first
    }

    /// Of the ranks for which this one waits in vain, finds those that wait for nobody themselves.
    /// A rank in the second step of an operation may be held up by one that a third rank waits for
    /// in the first. So each rank whose time is over says for whom it waited, and looks what those
    /// say.
    pub(crate) fn culprits(&self, rank: usize, lagging: Vec<usize>, grace: Duration) -> Vec<usize> {
        let key = |rank: usize| format!("thalweg/{}waits/{rank}", self.tag);
        let (Some(store), None) = (&self.store, self.first.get()) else { return lagging };
        let list = lagging.iter().fold(Fields::default(), |all, &rank| all.number(rank as u64));
        if store.set(&key(rank), &list.0).is_err() {
            return lagging;
        }
        let deadline = Instant::now() + grace;
        let (mut seen, mut open, mut culprits) = (vec![rank], lagging.clone(), Vec::new());
        while let Some(next) = open.pop() {
            if seen.contains(&next) {
                continue;
            }
            seen.push(next);
            match store.wait(&key(next), deadline.saturating_duration_since(Instant::now())) {
                Ok(list) => {
                    let mut list = Parse(&list);
                    open.extend(std::iter::from_fn(|| list.size()));
                }
                Err(_) => culprits.push(next),
            }
        }
        culprits.sort_unstable();
        if culprits.is_empty() { lagging } else { culprits }
    }

    /// A device whose streams carry operations: it fails with the ranks. Returns whether a rank of
    /// this process has it already.
    pub(crate) fn bind(&self, device: Device) -> bool {
        let mut held = lock(&self.held);
        let shared = held.devices.contains(&device);
        match self.first.get() {
            None => held.devices.push(device),
            Some(first) => device.poison(first.to_string()),
        }
        shared
    }

    /// Registers a link that is aborted when the ranks fail: a link, or a communicator.
    pub(crate) fn watch(&self, link: &Arc<dyn Abort>) {
        let mut held = lock(&self.held);
        match self.first.get() {
            None => held.links.push(Arc::downgrade(link)),
            Some(_) => link.abort(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use std::time::Duration;

    use thalweg::Device;

    use super::FailureState;
    use crate::Store;
    use crate::error::Failure;
    use crate::link::Abort;

    #[derive(Debug, Default)]
    struct Link(AtomicUsize);

    impl Abort for Link {
        fn abort(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A link that is there when the ranks fail is aborted once, and a later one at once.
    #[test]
    fn links_are_aborted_whenever_they_come() {
        let state = FailureState::new(None, "");
        let links = [(); 2].map(|()| Arc::new(Link::default()));
        let aborted = || links.each_ref().map(|link| link.0.load(Ordering::Relaxed));
        state.watch(&(links[0].clone() as Arc<dyn Abort>));
        assert_eq!(aborted(), [0, 0]);
        let gone = |rank| Failure::Gone { rank, seq: 1, op: String::new() };
        assert_eq!((state.fail(gone(1)), aborted()), (&gone(1), [1, 0]));
        state.watch(&(links[1].clone() as Arc<dyn Abort>));
        assert_eq!((state.fail(gone(2)), aborted()), (&gone(1), [1, 1]));
    }

    /// A device that is there when the ranks fail fails with them, and a later one at once.
    #[test]
    fn devices_fail_whenever_they_come() {
        let (state, devices) = (FailureState::new(None, ""), [(); 2].map(|()| Device::new_cpu().unwrap()));
        let usable = || devices.map(|device| device.ensure_usable().is_ok());
        state.bind(devices[0]);
        assert_eq!(usable(), [true, true]);
        state.fail(Failure::Gone { rank: 1, seq: 1, op: String::new() });
        assert_eq!(usable(), [false, true]);
        state.bind(devices[1]);
        assert_eq!(usable(), [false, false]);
    }

    /// The store has one failure for all ranks, and whoever fails later gets that one.
    #[test]
    fn the_first_failure_is_that_of_all_ranks() {
        let store = Store::local();
        let [first, second, other] = ["a", "a", "b"].map(|tag| FailureState::new(Some(store.clone()), tag));
        let gone = |rank| Failure::Gone { rank, seq: 1, op: String::new() };
        assert_eq!(first.fail(gone(1)), &gone(1));
        assert_eq!(second.fail(gone(2)), &gone(1));
        assert_eq!(other.fail(gone(2)), &gone(2), "its ranks are others");
    }

    /// Of those for whom a rank waits, those are late that wait for nobody.
    #[test]
    fn who_waits_for_a_late_rank_is_not_late() {
        let state = FailureState::new(Some(Store::local()), "");
        let culprits = |rank, lagging: &[usize]| state.culprits(rank, lagging.to_vec(), Duration::ZERO);
        assert_eq!(culprits(1, &[2, 3]), [2, 3]);
        assert_eq!(culprits(0, &[1]), [2, 3]);
        assert_eq!(culprits(3, &[0]), [2], "3 waits for 0, 0 for 1, and 1 for 2 and 3");
        assert_eq!(culprits(2, &[1]), [1], "each waits for another one");
    }
}
