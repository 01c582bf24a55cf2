//! What the threads of a loader share under its lock.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use thalweg::{DeviceBuffer, Error, Event, Result};

use crate::assembly::Assembly;
use crate::batch::Batch;
use crate::source::{Decode, Order, Samples};
use crate::stats::Stats;

pub(crate) struct State<M: Clone + Send + 'static> {
    pub(crate) epoch: u64,
    pub(crate) order: Arc<Order>,
    /// The position of the next sample to pull.
    pub(crate) position: u64,
    /// `None` while a thread calls it.
    pub(crate) source: Option<Samples<M>>,
    /// The source has no more samples in this epoch.
    pub(crate) ended: bool,
    pub(crate) tasks: VecDeque<Task<M>>,
    pub(crate) batches: VecDeque<Assembly<M>>,
    /// The number of the first of `batches` in its epoch.
    pub(crate) first: u64,
    /// A batch is out of `batches` and not yet `ready`.
    pub(crate) uploading: bool,
    pub(crate) ready: VecDeque<Result<Event<Batch<M>>>>,
    /// How many of `ready` are batches.
    pub(crate) ready_batches: usize,
    /// The consumer is in `next`.
    pub(crate) waiting: bool,
    /// Device buffers that consumers gave back.
    pub(crate) spare: VecDeque<Event<DeviceBuffer<u8>>>,
    /// The position of the sample whose turn it is to take memory.
    pub(crate) turn: u64,
    /// Later positions that need no turn any more.
    pub(crate) passed: BTreeSet<u64>,
    pub(crate) stats: Stats,
    /// Why a thread or the device has failed. Nothing more is uploaded then, in any epoch.
    pub(crate) failure: Option<Error>,
    pub(crate) stop: bool,
}

/// A sample's place.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    pub(crate) slot: usize,
    /// The position in the epoch.
    pub(crate) position: u64,
}

pub(crate) struct Task<M> {
    pub(crate) place: Place,
    pub(crate) index: u64,
    pub(crate) name: String,
    pub(crate) meta: M,
    pub(crate) decode: Decode,
}

impl<M: Clone + Send + 'static> State<M> {
    pub(crate) fn new(order: Order, source: Samples<M>) -> Self {
        Self {
            epoch: 0,
            order: Arc::new(order),
            position: 0,
            source: Some(source),
            ended: false,
            tasks: VecDeque::new(),
            batches: VecDeque::new(),
            first: 0,
            uploading: false,
            ready: VecDeque::new(),
            ready_batches: 0,
            waiting: false,
            spare: VecDeque::new(),
            turn: 0,
            passed: BTreeSet::new(),
            stats: Stats::default(),
            failure: None,
            stop: false,
        }
    }

    /// Whether the first batch is complete, and need not wait until the consumer gives memory back.
    pub(crate) fn can_upload(&self) -> bool {
        let nothing_ahead = self.waiting && self.ready.is_empty();
        let ready = |front: &Assembly<M>| front.missing == 0 && (!front.last_resort || nothing_ahead);
        self.failure.is_none() && self.batches.front().is_some_and(ready)
    }

    /// Takes the first batch, which is complete.
    pub(crate) fn pop(&mut self) -> Option<Assembly<M>> {
        let front = self.batches.pop_front()?;
        self.first += 1;
        self.uploading = true;
        Some(front)
    }

    /// Puts back what `pop` took.
    pub(crate) fn put_back(&mut self, front: Assembly<M>) {
        self.uploading = false;
        self.first -= 1;
        self.batches.push_front(front);
    }

    pub(crate) fn push(&mut self, item: Result<Event<Batch<M>>>) {
        self.ready_batches += usize::from(item.is_ok());
        self.ready.push_back(item);
    }

    /// Ends the loader with an error.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error.clone());
        self.push(Err(error));
    }

    /// Whether the consumer has got everything of this epoch.
    pub(crate) fn exhausted(&self) -> bool {
        let idle = self.ended && self.batches.is_empty() && !self.uploading;
        self.ready.is_empty() && (idle || self.failure.is_some())
    }

    /// The number of samples in this epoch, if it is known.
    pub(crate) fn samples(&self) -> Option<u64> {
        self.order.len
    }

    pub(crate) fn under_way(&self) -> usize {
        self.batches.len() + self.ready_batches + usize::from(self.uploading)
    }

    /// Notes that a sample needs no turn any more, and moves the turn on.
    pub(crate) fn pass(&mut self, place: Place) {
        if place.epoch != self.epoch || place.position < self.turn {
            return;
        }
        self.passed.insert(place.position);
        while self.passed.remove(&self.turn) {
            self.turn += 1;
        }
    }
}
