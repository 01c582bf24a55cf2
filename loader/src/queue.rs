//! What the threads share: samples to decode, batches in the making, and what is ready for the consumer.
//!
//! ```text
//! source --pull--> tasks --decode threads--> batches --upload--> ready --next--> consumer
//! ```
//!
//! A batch is in one place at a time, and `window` bounds how many there are, which is the back-pressure: a thread pulls the next
//! batch's samples only while there is room. No code of the user (a source, a decoder, a destructor of metadata) runs under the
//! lock.
//!
//! **A finite pinned budget** makes samples take their memory in order (`turn`). So what holds memory is always a run of samples from
//! the first that the consumer has not got, and a sample that finds the budget spent waits for the consumer to drop batches. Only
//! where the consumer itself waits for that very batch, nothing can come back, and it is an error.

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use log::warn;

use thalweg::{DeviceBuffer, Error, Event, PinnedBuffer, PinnedPool, Result};

use super::source::{Decode, Order, Samples};
use super::staging::Staging;
use super::{Batch, Canvas, DecodeError, Options, Pixels, Sample, Stats, Upload};
use crate::lock;

/// How a loader takes page-locked memory; tests give one that fails.
pub(super) type Pin = fn(&PinnedPool, usize) -> Result<PinnedBuffer<u8>>;

pub(super) struct Queue<M: Clone + Send + 'static> {
    pub(super) options: Options,
    pub(super) pool: PinnedPool,
    pub(super) pin: Pin,
    pub(super) staging: Staging,
    /// Batches under way, at most.
    window: usize,
    pub(super) state: Mutex<State<M>>,
    /// Something to do for decode threads.
    pub(super) work: Condvar,
    /// A batch is complete, or ready; or the consumer waits for one.
    pub(super) done: Condvar,
    /// A sample has taken its memory.
    turns: Condvar,
}

pub(super) struct State<M: Clone + Send + 'static> {
    pub(super) epoch: u64,
    order: Order,
    /// Of the next sample to pull.
    position: u64,
    /// Away while a thread calls it.
    source: Option<Samples<M>>,
    /// The source has no more in this epoch.
    pub(super) ended: bool,
    tasks: VecDeque<Task<M>>,
    pub(super) batches: VecDeque<Assembly<M>>,
    /// The number of the first of `batches` in its epoch.
    first: u64,
    /// A batch is out of `batches` and not yet `ready`.
    pub(super) uploading: bool,
    pub(super) ready: VecDeque<Result<Event<Batch<M>>>>,
    /// How many of `ready` are batches.
    pub(super) ready_batches: usize,
    /// The consumer is in `next`.
    pub(super) waiting: bool,
    /// Device buffers that consumers gave back.
    pub(super) spare: VecDeque<Event<DeviceBuffer<u8>>>,
    /// The sample whose turn it is to take memory, and those after it that need none any more.
    turn: u64,
    passed: BTreeSet<u64>,
    pub(super) stats: Stats,
    /// Nothing more will come.
    pub(super) failed: bool,
    pub(super) stop: bool,
}

/// A sample's place.
#[derive(Clone, Copy)]
struct Place {
    epoch: u64,
    batch: u64,
    slot: usize,
    /// Position in the epoch.
    position: u64,
}

struct Task<M> {
    place: Place,
    index: u64,
    name: String,
    meta: M,
    decode: Decode,
}

pub(super) struct Decoded<M> {
    pub(super) index: u64,
    pub(super) name: String,
    pub(super) size: [u32; 2],
    pub(super) pixels: Pixels,
    pub(super) meta: M,
}

/// A batch in the making.
pub(super) struct Assembly<M> {
    slots: Vec<Option<Result<Decoded<M>>>>,
    missing: usize,
    /// It has as many samples as a batch has, whatever becomes of them.
    pub(super) whole: bool,
    /// The samples that failed, once `errors` has taken the errors out.
    pub(super) failed: Vec<u64>,
    /// How often there was no device memory for it.
    pub(super) refused: u32,
    /// It waits until the consumer has taken all that is ready.
    pub(super) last_resort: bool,
}

impl<M> Assembly<M> {
    fn new(samples: usize, whole: bool) -> Self {
        let slots = (0..samples).map(|_| None).collect();
        Self { slots, missing: samples, whole, failed: Vec::new(), refused: 0, last_resort: false }
    }

    fn fill(&mut self, slot: usize, outcome: Result<Decoded<M>>) {
        self.slots[slot] = Some(outcome);
        self.missing -= 1;
    }

    pub(super) fn images(&self) -> impl Iterator<Item = &Decoded<M>> {
        self.slots.iter().flatten().flatten()
    }

    /// How many images there are, and their bytes.
    pub(super) fn amount(&self) -> (usize, usize) {
        self.images().fold((0, 0), |(n, bytes), image| (n + 1, bytes + image.pixels.len()))
    }

    /// Takes the errors out.
    pub(super) fn errors(&mut self) -> Vec<Error> {
        let errors: Vec<_> =
            self.slots.extract_if(.., |slot| matches!(slot, Some(Err(_)))).filter_map(|slot| slot?.err()).collect();
        let index = |error: &Error| if let Error::Sample { index, .. } = error { Some(*index) } else { None };
        self.failed.extend(errors.iter().filter_map(index));
        errors
    }

    /// Makes an image an error; returns both.
    pub(super) fn lose(&mut self, image: usize, cause: String) -> Option<(Decoded<M>, Error)> {
        let slot = self.slots.iter_mut().filter(|slot| matches!(slot, Some(Ok(_)))).nth(image)?;
        let lost = slot.take()?.ok()?;
        let cause = Arc::from(DecodeError::from(cause));
        let error = Error::Sample { index: lost.index, name: lost.name.clone(), cause };
        *slot = Some(Err(error.clone()));
        Some((lost, error))
    }

    /// Takes the images out; their samples count as failed.
    pub(super) fn give_up(&mut self) -> Vec<Decoded<M>> {
        let images: Vec<_> = std::mem::take(&mut self.slots).into_iter().flatten().flatten().collect();
        self.failed.extend(images.iter().map(|image| image.index));
        images
    }

    pub(super) fn into_images(self) -> impl Iterator<Item = Decoded<M>> {
        self.slots.into_iter().flatten().flatten()
    }
}

impl<M: Clone + Send + 'static> State<M> {
    /// Whether the first batch is complete, and need not wait for memory that the consumer has yet to give back.
    pub(super) fn can_upload(&self) -> bool {
        let nothing_ahead = self.waiting && self.ready.is_empty();
        self.batches.front().is_some_and(|front| front.missing == 0 && (!front.last_resort || nothing_ahead))
    }

    /// Takes the first batch, which is complete.
    pub(super) fn pop(&mut self) -> Option<Assembly<M>> {
        let front = self.batches.pop_front()?;
        self.first += 1;
        self.uploading = true;
        Some(front)
    }

    /// Puts back what `pop` took.
    pub(super) fn put_back(&mut self, front: Assembly<M>) {
        self.uploading = false;
        self.first -= 1;
        self.batches.push_front(front);
    }

    pub(super) fn push(&mut self, item: Result<Event<Batch<M>>>) {
        self.ready_batches += usize::from(item.is_ok());
        self.ready.push_back(item);
    }

    /// Whether the consumer has got everything of this epoch.
    pub(super) fn exhausted(&self) -> bool {
        let idle = self.ended && self.batches.is_empty() && !self.uploading;
        self.ready.is_empty() && (idle || self.failed)
    }

    /// Samples in this epoch, where known.
    pub(super) fn samples(&self) -> Option<u64> {
        self.order.len
    }

    fn under_way(&self) -> usize {
        self.batches.len() + self.ready_batches + usize::from(self.uploading)
    }

    fn pass(&mut self, place: Place) {
        if place.epoch != self.epoch || place.position < self.turn {
            return;
        }
        self.passed.insert(place.position);
        while self.passed.remove(&self.turn) {
            self.turn += 1;
        }
    }
}

impl<M: Clone + Send + 'static> Queue<M> {
    pub(super) fn new(options: Options, pool: PinnedPool, pin: Pin, len: Option<u64>, source: Samples<M>) -> Self {
        // `prefetch` for the consumer, and what the threads are at work on.
        let window = options.prefetch.saturating_add(options.threads.div_ceil(options.batch));
        let state = State {
            epoch: 0,
            order: Self::order(&options, len, 0),
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
            failed: false,
            stop: false,
        };
        let staging = Staging::new(&options);
        let (work, done, turns) = <(Condvar, Condvar, Condvar)>::default();
        Self { options, pool, pin, staging, window, state: Mutex::new(state), work, done, turns }
    }

    fn order(options: &Options, len: Option<u64>, epoch: u64) -> Order {
        Order::new(len, options.shuffle, epoch, options.shard, options.drop_last)
    }

    pub(super) fn wait<'g>(&self, condition: &Condvar, state: MutexGuard<'g, State<M>>) -> MutexGuard<'g, State<M>> {
        condition.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an epoch; what is left of the one before is dropped, also where a thread still works on it.
    pub(super) fn restart(&self, len: Option<u64>) {
        let epoch = lock(&self.state).epoch + 1;
        let order = Self::order(&self.options, len, epoch);
        let mut state = lock(&self.state);
        state.epoch = epoch;
        state.order = order;
        state.position = 0;
        state.ended = false;
        state.first = 0;
        state.ready_batches = 0;
        state.uploading = false;
        state.turn = 0;
        state.passed.clear();
        let left =
            (std::mem::take(&mut state.tasks), std::mem::take(&mut state.batches), std::mem::take(&mut state.ready));
        drop(state);
        drop(left);
        self.wake();
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stop = true;
        self.wake();
    }

    fn wake(&self) {
        self.work.notify_all();
        self.done.notify_all();
        self.turns.notify_all();
    }

    /// Runs a thread, and tells the consumer should it end by a panic.
    pub(super) fn guarded(self: Arc<Self>, run: impl FnOnce(&Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&self))) {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            let reason = format!("{name} panicked: {}", message(panic));
            let mut state = lock(&self.state);
            state.push(Err(Error::Thread { reason }));
            state.failed = true;
            drop(state);
            self.wake();
        }
    }

    /// A decode thread.
    pub(super) fn decode_all(&self) {
        let mut state = lock(&self.state);
        while !state.stop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                self.run(task);
                state = lock(&self.state);
            } else if !state.ended
                && state.under_way() < self.window
                && let Some(source) = state.source.take()
            {
                state = self.pull(state, source);
            } else {
                state = self.wait(&self.work, state);
            }
        }
    }

    /// Asks the source for the samples of one more batch.
    fn pull<'g>(&'g self, state: MutexGuard<'g, State<M>>, mut source: Samples<M>) -> MutexGuard<'g, State<M>> {
        let (epoch, position, size) = (state.epoch, state.position, self.options.batch);
        let indices: Vec<u64> = (position..).map_while(|p| state.order.index(p)).take(size).collect();
        let bounded = state.order.len.is_some();
        let last = state.order.of_last_rank(position.saturating_add(size as u64 - 1));
        drop(state);
        let mut ask = |index| {
            catch_unwind(AssertUnwindSafe(|| source(index))).map_err(|panic| {
                let cause = format!("the source panicked: {}", message(panic));
                Error::Sample { index, name: "source".into(), cause: Arc::from(DecodeError::from(cause)) }
            })
        };
        let mut samples = Vec::with_capacity(indices.len());
        let mut ended = indices.len() < size;
        for &index in &indices {
            match ask(index) {
                Ok(Some(sample)) => samples.push(Ok((index, sample))),
                Ok(None) => {
                    ended = true;
                    break;
                }
                Err(error) => {
                    samples.push(Err(error));
                    if !bounded {
                        ended = true; // it might panic for ever and never say that there is no more
                        break;
                    }
                }
            }
        }
        let mut whole = samples.len() == size;
        // Without a length, only the source knows whether the other ranks have as many samples for
        // this batch.
        if whole
            && self.options.drop_last
            && let Some(last) = last
        {
            match ask(last) {
                Ok(Some(sample)) => drop(sample),
                Ok(None) => whole = false,
                Err(error) => {
                    samples.push(Err(error));
                    whole = false;
                }
            }
        }
        ended |= !whole;
        if !whole && self.options.drop_last {
            samples.retain(Result::is_err);
        }

        let mut state = lock(&self.state);
        state.source = Some(source);
        if state.epoch != epoch {
            drop(state);
            drop(samples);
            state = lock(&self.state);
        } else {
            state.ended = ended;
            state.position += samples.len() as u64;
            let batch = state.first + state.batches.len() as u64;
            let mut assembly = Assembly::new(samples.len(), whole);
            for (slot, sample) in samples.into_iter().enumerate() {
                let place = Place { epoch, batch, slot, position: position + slot as u64 };
                match sample {
                    Ok((index, Sample { name, meta, decode })) => {
                        state.tasks.push_back(Task { place, index, name, meta, decode });
                    }
                    Err(error) => {
                        state.pass(place);
                        self.count_failure(&mut state, &error);
                        assembly.fill(slot, Err(error));
                    }
                }
            }
            if !assembly.slots.is_empty() {
                state.batches.push_back(assembly);
            }
        }
        self.wake();
        state
    }

    fn run(&self, task: Task<M>) {
        let Task { place, index, name, meta, decode } = task;
        let begin = Instant::now();
        let mut canvas = Canvas::new(self.options.upload == Upload::Off, |bytes| self.grant(place, bytes));
        let thread = std::thread::current();
        let decode = || self.options.timeline.host(thread.name().unwrap_or("decode"), &name, || decode(&mut canvas));
        let run = catch_unwind(AssertUnwindSafe(decode));
        let image = canvas.into_image();
        let outcome: Result<_, DecodeError> = match (run, image) {
            (Ok(Ok(())), Some(image)) => Ok(image),
            (Ok(Ok(())), None) => Err("the decoder returned without an image".into()),
            (Ok(Err(error)), _) => Err(error),
            (Err(panic), _) => Err(format!("the decoder panicked: {}", message(panic)).into()),
        };
        let spent = begin.elapsed();
        let outcome = match outcome {
            Ok((size, pixels)) => Ok(Decoded { index, name, size, pixels, meta }),
            Err(cause) => Err(Error::Sample { index, name, cause: Arc::from(cause) }),
        };

        let mut state = lock(&self.state);
        state.pass(place);
        state.stats.decode += spent;
        if state.stop || state.epoch != place.epoch {
            drop(state); // nobody waits for it, and its metadata is the user's
            return;
        }
        match &outcome {
            Ok(image) => {
                state.stats.images += 1;
                state.stats.bytes += image.pixels.len() as u64;
            }
            Err(error) => self.count_failure(&mut state, error),
        }
        let first = state.first;
        if let Some(batch) = state.batches.get_mut((place.batch - first) as usize) {
            batch.fill(place.slot, outcome);
        }
        drop(state);
        self.turns.notify_all();
        self.done.notify_all();
    }

    pub(super) fn count_failure(&self, state: &mut State<M>, error: &Error) {
        state.stats.failed += 1;
        if self.options.skip_errors {
            warn!("skipped: {error}");
        }
    }

    /// Memory for a sample's pixels; page-locked, or where that fails, not.
    fn grant(&self, place: Place, bytes: usize) -> Result<Pixels> {
        let pin = || match (self.pin)(&self.pool, bytes) {
            Ok(buffer) => Ok(Pixels::Pinned(buffer)),
            Err(error @ (Error::Cuda { .. } | Error::OutOfMemory { .. })) => {
                let mut state = lock(&self.state);
                state.stats.pageable += 1;
                if state.stats.pageable == 1 {
                    warn!("{bytes} bytes cannot be page-locked, so uploads of such images are slower: {error}");
                }
                drop(state);
                // Asked first, because `vec!` ends the process where there is no memory.
                match Vec::<u8>::new().try_reserve_exact(bytes) {
                    Ok(()) => Ok(Pixels::Pageable(vec![0; bytes])),
                    Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        if self.options.pinned_budget == usize::MAX {
            return pin();
        }
        let mut state = lock(&self.state);
        loop {
            if state.stop || state.epoch != place.epoch {
                return Err(Error::Thread { reason: "the loader has been stopped".into() });
            }
            if state.turn < place.position {
                state = self.wait(&self.turns, state);
                continue;
            }
            // Asked before the attempt, so that what the consumer has dropped by then is counted.
            let hopeless = state.waiting && state.ready.is_empty() && !state.uploading && place.batch == state.first;
            drop(state);
            let pinned = pin();
            state = lock(&self.state);
            match pinned {
                Err(Error::PinnedBudget { .. }) if !hopeless => {
                    // Buffers come back without telling; this is the rare case.
                    let waited = self.turns.wait_timeout(state, Duration::from_millis(1));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                pinned => {
                    state.pass(place);
                    drop(state);
                    self.turns.notify_all();
                    return pinned;
                }
            }
        }
    }
}

/// What a panic said. The payload is the user's, and dropping it may panic again; it leaks.
pub(super) fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(s), _) => (*s).to_owned(),
        (_, Some(s)) => s.clone(),
        _ => "a value that is no text".to_owned(),
    };
    std::mem::forget(panic);
    message
}
