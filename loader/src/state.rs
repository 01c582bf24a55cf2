//! The state that the threads of a loader share under its lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use thalweg::{DeviceBuffer, Event};

use crate::assembly::Assembly;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::in_flight::{Holder, InFlight, Outcome};
use crate::source::{Decode, Order, Samples};
use crate::stats::Stats;

pub(crate) struct State<M: Clone + Send + 'static> {
    /// The number of times that the loader has started. What belongs to an earlier round is
    /// dropped.
    pub(crate) round: u64,
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
    /// The batches that are out of `batches` and not yet `ready`, in order.
    pub(crate) flights: VecDeque<InFlight<M>>,
    pub(crate) ready: VecDeque<Ready<M>>,
    /// The number of `ready` that are batches.
    pub(crate) ready_batches: usize,
    /// The number of samples of this epoch that the consumer has got.
    pub(crate) delivered: u64,
    /// The number of upload streams.
    pub(crate) streams: usize,
    /// The upload stream whose turn it is.
    pub(crate) next_stream: usize,
    /// The consumer is in `next`.
    pub(crate) waiting: bool,
    /// Device buffers that consumers gave back.
    pub(crate) spare: VecDeque<Event<DeviceBuffer<u8>>>,
    /// The position of the sample whose turn it is to take memory.
    pub(crate) turn: u64,
    /// Later positions that need no turn any more.
    pub(crate) passed: BTreeSet<u64>,
    pub(crate) stats: Stats,
    /// The reasons why JPEG files that the device was to decode left it for the host, with their
    /// counts.
    pub(crate) left_device: BTreeMap<String, u64>,
    /// The error of a thread or of the device. Nothing more is uploaded then, in any epoch.
    pub(crate) failure: Option<Error>,
    pub(crate) stop: bool,
}

/// Something for the consumer.
pub(crate) struct Ready<M: Clone + Send + 'static> {
    pub(crate) item: Result<Event<Batch<M>>>,
    /// The bytes of its images.
    bytes: usize,
    /// Once the consumer has this, it has everything of the epoch up to this position. 0 for what
    /// comes before its batch.
    after: u64,
    since: Instant,
}

impl<M: Clone + Send + 'static> Ready<M> {
    fn batch(event: Event<Batch<M>>, after: u64, bytes: usize) -> Self {
        Self { item: Ok(event), bytes, after, since: Instant::now() }
    }

    fn error(error: Error) -> Self {
        Self { item: Err(error), bytes: 0, after: 0, since: Instant::now() }
    }
}

/// A sample's place.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) round: u64,
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
            round: 0,
            epoch: 0,
            order: Arc::new(order),
            position: 0,
            source: Some(source),
            ended: false,
            tasks: VecDeque::new(),
            batches: VecDeque::new(),
            first: 0,
            flights: VecDeque::new(),
            ready: VecDeque::new(),
            ready_batches: 0,
            delivered: 0,
            streams: 1,
            next_stream: 0,
            waiting: false,
            spare: VecDeque::new(),
            turn: 0,
            passed: BTreeSet::new(),
            stats: Stats::default(),
            left_device: BTreeMap::new(),
            failure: None,
            stop: false,
        }
    }

    /// Notes an image, which may be a JPEG file that the host has decoded, and why the device did
    /// not.
    pub(crate) fn note_jpeg(&mut self, on_host: bool, left_device: Option<String>) {
        self.stats.jpeg_on_host += u64::from(on_host);
        if let Some(why) = left_device {
            *self.left_device.entry(why).or_default() += 1;
        }
    }

    /// Whether a batch can be uploaded now.
    pub(crate) fn can_upload(&self) -> bool {
        self.can_retry() || self.can_begin()
    }

    /// Whether the batch for which there was no memory can be tried again: the consumer waits and
    /// has taken all that is ready, so it will give no more memory back.
    pub(crate) fn can_retry(&self) -> bool {
        let first = self.flights.front().map(|flight| &flight.holder);
        self.failure.is_none() && self.waits() && matches!(first, Some(Holder::Refused(_)))
    }

    /// Whether the first batch is complete and can have memory. Batches get their device memory in
    /// order: otherwise a later one could take the memory that the consumer's next batch needs.
    pub(crate) fn can_begin(&self) -> bool {
        let complete = self.batches.front().is_some_and(|front| front.missing == 0);
        self.failure.is_none() && complete && !self.flights.iter().any(InFlight::wants_memory)
    }

    /// Whether the consumer waits and has taken all that is ready.
    fn waits(&self) -> bool {
        self.waiting && self.ready.is_empty()
    }

    /// Whether the consumer waits for this very batch.
    pub(crate) fn waits_for(&self, number: u64) -> bool {
        self.waits() && self.flights.front().is_some_and(|flight| flight.number == number)
    }

    /// Takes the batch to upload, if there is one.
    pub(crate) fn take(&mut self) -> Option<Assembly<M>> {
        if self.can_retry() {
            let held = self.flights.front_mut().map(|flight| std::mem::replace(&mut flight.holder, Holder::Thread));
            return if let Some(Holder::Refused(front)) = held { Some(front) } else { None };
        }
        if !self.can_begin() {
            return None;
        }
        let front = self.batches.pop_front()?;
        self.first += 1;
        self.next_stream = (self.next_stream + 1) % self.streams;
        self.flights.push_back(InFlight::new(&front));
        Some(front)
    }

    /// Whether another batch may be on its way while `prefetch` of them are wanted.
    pub(crate) fn has_room(&self, prefetch: usize) -> bool {
        self.ready_batches + self.flights.len() < prefetch
    }

    pub(crate) fn flight(&mut self, number: u64) -> Option<&mut InFlight<M>> {
        self.flights.iter_mut().find(|flight| flight.number == number)
    }

    /// Moves what is done to where the consumer finds it, up to the first that is not.
    pub(crate) fn land(&mut self) {
        while let Some(flight) = self.flights.front_mut() {
            for error in std::mem::take(&mut flight.errors) {
                self.ready.push_back(Ready::error(error));
            }
            if !matches!(flight.holder, Holder::Done(_)) {
                return;
            }
            let Some(InFlight { through, bytes, holder: Holder::Done(outcome), .. }) = self.flights.pop_front() else {
                return;
            };
            match outcome {
                Outcome::Batch(event) => {
                    self.ready_batches += 1;
                    self.ready.push_back(Ready::batch(event, through, bytes));
                }
                Outcome::Failed(error) => self.fail(error),
                Outcome::NoMemory(error, _) => self.fail(error.into()),
                // Nothing of it comes, so it counts with what came before.
                Outcome::Nothing => match self.ready.back_mut() {
                    Some(last) => last.after = through,
                    None => self.delivered = through,
                },
            }
        }
    }

    /// Takes what is next for the consumer.
    pub(crate) fn deliver(&mut self) -> Option<Result<Event<Batch<M>>>> {
        if self.exhausted() && self.failure.is_none() {
            self.delivered = self.position; // the last batches may have lost all their samples
        }
        let Ready { item, bytes, after, since } = self.ready.pop_front()?;
        self.delivered = self.delivered.max(after);
        if item.is_ok() {
            self.ready_batches -= 1;
            self.stats.ready.add(bytes, since.elapsed());
        }
        Some(item)
    }

    /// Ends the loader with an error.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error.clone());
        self.ready.push_back(Ready::error(error));
    }

    /// Whether the consumer has got everything of this epoch.
    pub(crate) fn exhausted(&self) -> bool {
        let idle = self.ended && self.batches.is_empty() && self.flights.is_empty();
        self.ready.is_empty() && (idle || self.failure.is_some())
    }

    /// The number of samples in this epoch, if it is known.
    pub(crate) fn samples(&self) -> Option<u64> {
        self.order.len
    }

    pub(crate) fn under_way(&self) -> usize {
        self.batches.len() + self.ready_batches + self.flights.len()
    }

    /// Notes that a sample needs no turn any more, and moves the turn on.
    pub(crate) fn pass(&mut self, place: Place) {
        if place.round != self.round || place.position < self.turn {
            return;
        }
        self.passed.insert(place.position);
        while self.passed.remove(&self.turn) {
            self.turn += 1;
        }
    }
}
