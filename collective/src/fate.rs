//! The fate of the ranks: the first failure, and who learns of it.
//!
//! The order is what keeps partial sums from the program. First the failure is kept and the device
//! of the rank is marked as failed; only then are the operations under way aborted. An operation
//! that ends because of the abort is followed on its stream by work on partial sums, and whoever
//! waits for that work asks the device after the wait.

use std::sync::{Mutex, OnceLock, Weak};

use log::debug;
use thalweg::Device;

use crate::error::Failure;
use crate::link::Link;
use crate::lock;
use crate::store::Store;

/// The key of the first failure in the store.
pub(crate) const FAILURE: &str = "thalweg/failure";

#[derive(Debug)]
pub(crate) struct Fate {
    first: OnceLock<Failure>,
    held: Mutex<Held>,
    /// Where ranks of other processes learn of a failure.
    store: Option<Store>,
}

#[derive(Debug, Default)]
struct Held {
    devices: Vec<Device>,
    links: Vec<Weak<dyn Link>>,
}

impl Fate {
    pub(crate) fn new(store: Option<Store>) -> Self {
        Self { first: OnceLock::new(), held: Mutex::default(), store }
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.first.get()
    }

    /// Keeps a failure, unless there is an earlier one of any rank. Returns the first one.
    pub(crate) fn fail(&self, failure: Failure) -> &Failure {
        if self.first.get().is_none() {
            let told = self.store.as_ref().and_then(|store| store.set_first(FAILURE, &failure.encode()).ok());
            self.learn(told.and_then(|told| Failure::decode(&told)).unwrap_or(failure))
        } else {
            self.learn(failure)
        }
    }

    /// Keeps the failure that all ranks have been told, and aborts what is under way.
    pub(crate) fn learn(&self, failure: Failure) -> &Failure {
        let mut new = false;
        let first = self.first.get_or_init(|| {
            new = true;
            failure
        });
        if new {
            debug!(target: "thalweg_collective::fate", "the ranks have failed: {first}");
            let held = std::mem::take(&mut *lock(&self.held));
            held.devices.iter().for_each(|device| device.fail(first.to_string()));
            held.links.iter().filter_map(Weak::upgrade).for_each(|link| link.abort());
        }
        first
    }

    /// A device whose streams carry operations: it fails with the ranks.
    pub(crate) fn bind(&self, device: Device) {
        lock(&self.held).devices.push(device);
        self.late();
    }

    /// A link to abort.
    pub(crate) fn watch(&self, link: Weak<dyn Link>) {
        lock(&self.held).links.push(link);
        self.late();
    }

    /// Fails what came after the failure.
    fn late(&self) {
        if let Some(first) = self.first.get() {
            let held = std::mem::take(&mut *lock(&self.held));
            held.devices.iter().for_each(|device| device.fail(first.to_string()));
            held.links.iter().filter_map(Weak::upgrade).for_each(|link| link.abort());
        }
    }
}
