//! The state that the threads of a loader share under its lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg::{DeviceBuffer, Event};

use crate::assembly::{Amount, Assembly, Decoded};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::in_flight::{Holder, InFlight, Outcome};
use crate::loader_state::LoaderState;
use crate::pressure::Pressure;
use crate::source::{Decode, Order, Sample, Samples};
use crate::stats::Stats;

/// The number of times that a batch without device memory is tried again after the consumer was
/// told.
const RETRIES: u32 = 1;

/// The state of a loader. A sample goes from the source to a task, into the batch at its number in
/// `batches`, in flight to the device, and to `ready`, from where the consumer gets it. Each method
/// that changes the state says in one sentence what holds after it.
pub(crate) struct State<M: Clone + Send + 'static> {
    /// The number of times that the loader has started. What belongs to an earlier round is
    /// dropped.
    round: u64,
    epoch: u64,
    order: Arc<Order>,
    /// The position of the next sample to pull.
    position: u64,
    /// `None` while a thread calls it.
    source: Option<Samples<M>>,
    /// The source has no more samples in this epoch.
    ended: bool,
    tasks: VecDeque<Task<M>>,
    batches: VecDeque<Assembly<M>>,
    /// The number of the first of `batches` in its epoch.
    first: u64,
    /// The batches that are out of `batches` and not yet `ready`, in order.
    flights: VecDeque<InFlight<M>>,
    ready: VecDeque<Ready<M>>,
    /// The number of `ready` that are batches.
    ready_batches: usize,
    /// The number of samples of this epoch that the consumer has got.
    delivered: u64,
    /// The number of upload streams.
    streams: usize,
    /// The upload stream whose turn it is.
    next_stream: usize,
    /// The consumer is in `next`.
    waiting: bool,
    /// Device buffers that consumers gave back.
    spare: VecDeque<Event<DeviceBuffer<u8>>>,
    /// The amounts that are smaller while the device has little memory.
    pub(crate) pressure: Pressure,
    /// The position of the sample whose turn it is to take memory.
    turn: u64,
    /// Later positions that need no turn any more.
    passed: BTreeSet<u64>,
    stats: Stats,
    /// The reasons why JPEG files that the device was to decode left it for the host, with their
    /// counts.
    left_device: BTreeMap<String, u64>,
    /// The error of a thread or of the device. Nothing more is uploaded then, in any epoch.
    failure: Option<Error>,
    stop: bool,
}

/// Something for the consumer.
pub(crate) struct Ready<M: Clone + Send + 'static> {
    item: Result<Event<Batch<M>>>,
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
    pub(crate) fn new(order: Order, source: Samples<M>, pressure: Pressure) -> Self {
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
            pressure,
            turn: 0,
            passed: BTreeSet::new(),
            stats: Stats::default(),
            left_device: BTreeMap::new(),
            failure: None,
            stop: false,
        }
    }

    /// Starts an epoch at a position. Nothing of an earlier round is left in the state: it is in
    /// the returned value, which the caller drops without the lock, because metadata is the user's.
    #[must_use]
    pub(crate) fn restart(&mut self, at: LoaderState, order: Order, batch_size: usize) -> impl Sized + use<M> {
        self.round += 1;
        self.epoch = at.epoch;
        self.order = Arc::new(order);
        (self.position, self.delivered, self.turn) = (at.samples, at.samples, at.samples);
        self.ended = false;
        self.first = at.samples / batch_size as u64;
        self.ready_batches = 0;
        self.passed.clear();
        let making = (std::mem::take(&mut self.tasks), std::mem::take(&mut self.batches));
        let left = (making, std::mem::take(&mut self.flights), std::mem::take(&mut self.ready));
        // The consumer may have left the epoch before it got to the error.
        if let Some(error) = self.failure.clone() {
            self.fail(error);
        }
        left
    }

    /// Tells the threads to end. A loader that was stopped stays so.
    pub(crate) fn stop(&mut self) {
        self.stop = true;
    }

    /// Whether the threads are to end.
    pub(crate) fn stopped(&self) -> bool {
        self.stop
    }

    /// Whether anybody wants what belongs to this round.
    pub(crate) fn wants(&self, round: u64) -> bool {
        !self.stop && self.round == round
    }

    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn order(&self) -> Arc<Order> {
        self.order.clone()
    }

    /// The number of samples in this epoch, if it is known.
    pub(crate) fn samples(&self) -> Option<u64> {
        self.order.len
    }

    /// The position of the next sample to pull.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The position of the consumer.
    pub(crate) fn consumer(&self) -> LoaderState {
        LoaderState { epoch: self.epoch, samples: self.delivered }
    }

    /// The statistics, on which no transition depends.
    pub(crate) fn stats(&mut self) -> &mut Stats {
        &mut self.stats
    }

    pub(crate) fn left_device(&self) -> &BTreeMap<String, u64> {
        &self.left_device
    }

    #[cfg(test)]
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Takes a sample to decode. Each task is taken once, and in the order of the source.
    pub(crate) fn next_task(&mut self) -> Option<Task<M>> {
        self.tasks.pop_front()
    }

    /// Takes the source, if fewer than `window` batches are under way. Until it is
    /// [put back](Self::put_source), nobody else pulls samples, so they keep their order.
    pub(crate) fn take_source(&mut self, window: usize) -> Option<Samples<M>> {
        let under_way = self.batches.len() + self.ready_batches + self.flights.len();
        if self.ended || under_way >= window { None } else { self.source.take() }
    }

    /// Puts back the source, also that of an earlier round: there is one for all rounds.
    pub(crate) fn put_source(&mut self, source: Samples<M>) {
        self.source = Some(source);
    }

    /// Begins a batch of what the source gave, a sample with its index or an error. Its positions
    /// follow those of the batch before, and each sample without an error has a task.
    pub(crate) fn append(&mut self, samples: Vec<Result<(u64, Sample<M>)>>, ended: bool, whole: bool) {
        let (round, from, batch) = (self.round, self.position, self.first + self.batches.len() as u64);
        self.ended = ended;
        self.position += samples.len() as u64;
        let mut assembly = Assembly::new(round, batch, self.position, samples.len(), whole);
        for (slot, sample) in samples.into_iter().enumerate() {
            let place = Place { round, batch, slot, position: from + slot as u64 };
            match sample {
                Ok((index, Sample { name, meta, decode })) => {
                    self.tasks.push_back(Task { place, index, name, meta, decode });
                }
                Err(error) => {
                    self.pass(place);
                    assembly.fill(slot, Err(error));
                }
            }
        }
        if !assembly.slots.is_empty() {
            self.batches.push_back(assembly);
        }
    }

    /// Puts a sample of this round into its batch, whose upload may begin once no slot is empty.
    /// Returns whether that is so.
    pub(crate) fn fill(&mut self, place: Place, outcome: Result<Decoded<M>>) -> bool {
        let batch = self.batches.get_mut((place.batch - self.first) as usize);
        batch.is_some_and(|batch| {
            batch.fill(place.slot, outcome);
            batch.missing == 0
        })
    }

    /// The amount of the first batch that is not yet in flight, and whether others may come after
    /// it.
    pub(crate) fn front(&self) -> (Amount, bool) {
        let amount = self.batches.front().map_or_else(Amount::default, Assembly::amount);
        (amount, !self.ended || self.batches.len() > 1)
    }

    /// Sets the number of upload streams, at least 1. The turn is that of one of them.
    pub(crate) fn set_streams(&mut self, streams: usize) {
        (self.streams, self.next_stream) = (streams, self.next_stream % streams);
    }

    /// Whether an upload stream may take a batch: it is its turn, and fewer batches are on their
    /// way or ready than are made ahead.
    pub(crate) fn may_begin(&self, stream: usize) -> bool {
        let ahead = self.ready_batches + self.flights.len();
        self.next_stream == stream && ahead < self.pressure.prefetch() && self.can_begin()
    }

    /// Notes that the consumer waits. Until [`end_wait`](Self::end_wait) it gives no memory back.
    pub(crate) fn begin_wait(&mut self) {
        self.waiting = true;
    }

    /// Notes that the consumer has got something, for which it waited this long.
    pub(crate) fn end_wait(&mut self, waited: Duration) {
        self.waiting = false;
        self.stats.wait += waited;
    }

    /// Keeps a device buffer for a later batch. At most `most` are kept; the caller drops the
    /// returned one without the lock.
    #[must_use]
    pub(crate) fn keep_spare(
        &mut self,
        spare: Event<DeviceBuffer<u8>>,
        most: usize,
    ) -> Option<Event<DeviceBuffer<u8>>> {
        self.spare.push_back(spare);
        if self.spare.len() > most { self.spare.pop_front() } else { None }
    }

    /// Takes a kept device buffer of this length.
    pub(crate) fn take_spare(&mut self, bytes: usize) -> Option<Event<DeviceBuffer<u8>>> {
        self.spare.iter().position(|event| event.len() == bytes).and_then(|i| self.spare.remove(i))
    }

    /// Takes all kept device buffers, which the caller drops without the lock.
    #[must_use]
    pub(crate) fn take_spares(&mut self) -> VecDeque<Event<DeviceBuffer<u8>>> {
        std::mem::take(&mut self.spare)
    }

    /// Counts a JPEG file that the host has decoded, and why the device did not.
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
    fn can_begin(&self) -> bool {
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

    /// Takes the batch to upload, if there is one. It is in flight until [`refuse`](Self::refuse) or
    /// [`settle`](Self::settle).
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

    fn flight(&mut self, number: u64) -> Option<&mut InFlight<M>> {
        self.flights.iter_mut().find(|flight| flight.number == number)
    }

    /// Notes that a batch in flight has its device memory: so the next one may ask for some.
    /// Returns whether another stream may take that one.
    pub(crate) fn has_memory(&mut self, round: u64, number: u64) -> bool {
        if self.round == round
            && let Some(flight) = self.flight(number)
        {
            flight.has_memory = true;
        }
        self.streams > 1
    }

    /// Adds errors of samples to a batch in flight. The consumer gets them before the batch.
    pub(crate) fn add_errors(&mut self, number: u64, errors: Vec<Error>) {
        if let Some(flight) = self.flight(number) {
            flight.errors.extend(errors);
        }
        self.land();
    }

    /// Puts a batch that got no device memory back: it keeps its place, and no batch behind it asks
    /// for memory before it. The consumer hears of it if it is `told`. Returns a batch that was
    /// told too often, to be given up.
    pub(crate) fn refuse(
        &mut self,
        number: u64,
        error: thalweg::Error,
        mut front: Assembly<M>,
        told: bool,
    ) -> Option<Assembly<M>> {
        let flight = self.flight(number)?;
        flight.has_memory = false;
        if told {
            front.refused += 1;
            flight.errors.push(error.into());
        }
        if front.refused > RETRIES {
            return Some(front);
        }
        flight.holder = Holder::Refused(front);
        self.land();
        None
    }

    /// Ends the flight of a batch. The consumer gets it when all before it have landed.
    pub(crate) fn settle(&mut self, number: u64, outcome: Outcome<M>) {
        if let Some(flight) = self.flight(number) {
            flight.holder = Holder::Done(outcome);
        }
        self.land();
    }

    /// Moves what is done to where the consumer finds it, up to the first that is not, so in the
    /// order of the source.
    fn land(&mut self) {
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

    /// Takes what is next for the consumer, whose position is after it.
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

    /// Ends the loader with an error, in every epoch. The first one stays its failure.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error.clone());
        self.ready.push_back(Ready::error(error));
    }

    /// Whether the consumer has got everything of this epoch.
    pub(crate) fn exhausted(&self) -> bool {
        let idle = self.ended && self.batches.is_empty() && self.flights.is_empty();
        self.ready.is_empty() && (idle || self.failure.is_some())
    }

    /// Whether it is the turn of a sample to take memory, or it was before.
    pub(crate) fn has_turn(&self, place: Place) -> bool {
        self.turn >= place.position
    }

    /// Whether no memory can come back while a sample waits for some: the consumer waits for its
    /// very batch, and nothing else is under way.
    pub(crate) fn blocks(&self, place: Place) -> bool {
        self.waits() && self.flights.is_empty() && place.batch == self.first
    }

    /// Notes that a sample needs no turn any more. The turn goes to the first position that still
    /// needs one.
    pub(crate) fn pass(&mut self, place: Place) {
        if place.round != self.round || place.position < self.turn {
            return;
        }
        self.passed.insert(place.position);
        while self.passed.remove(&self.turn) {
            self.turn += 1;
        }
    }

    #[cfg(test)]
    pub(crate) fn batches(&self) -> &VecDeque<Assembly<M>> {
        &self.batches
    }

    /// The number of batches that are ready, if nothing else is, and none is in flight.
    #[cfg(test)]
    pub(crate) fn only_ready(&self) -> Option<usize> {
        (self.flights.is_empty() && self.ready.len() == self.ready_batches).then_some(self.ready_batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shard;

    /// With several upload streams, a complete batch waits until the one before it has its device
    /// memory, also while that one is refused and until it is tried again.
    #[test]
    fn batches_ask_for_device_memory_in_their_order() {
        let order = Order::new(None, None, 0, Shard::new(0, 1), false);
        let mut state = State::<u64>::new(order, Box::new(|_| None), Pressure::new(3));
        state.streams = 3;
        // Batches of no samples, which are complete.
        state.batches.extend((0..3).map(|number| Assembly::new(0, number, number, 0, true)));
        let number = |batch: Option<Assembly<u64>>| batch.map(|batch| batch.number);

        assert_eq!(number(state.take()), Some(0));
        assert!(!state.can_upload() && state.take().is_none());
        assert!(state.has_memory(0, 0));
        let second = state.take().unwrap();
        assert_eq!(second.number, 1);
        assert!(!state.can_upload() && state.take().is_none());

        let error = thalweg::Error::PinnedBudget { wanted: 1, in_use: 0, budget: 0 };
        assert!(state.refuse(1, error, second, false).is_none());
        assert!(!state.can_upload() && state.take().is_none(), "the third does not pass the second");
        state.flights.pop_front(); // the first has landed
        state.waiting = true;
        assert_eq!(number(state.take()), Some(1));
        assert!(state.take().is_none());
        state.has_memory(0, 1);
        assert_eq!(number(state.take()), Some(2));
    }
}
