//! What the threads share: samples to decode, batches in the making, and what is ready for the
//! consumer.
//!
//! ```text
//! source --pull--> tasks --decode threads--> batches --upload--> ready --next--> consumer
//! ```
//!
//! A batch is in one place at a time, and `window` bounds how many there are. This is the
//! back-pressure: a thread pulls the samples of the next batch only while there is room. No code of
//! the user (a source, a decoder, a destructor of metadata) runs under the lock, except the logger,
//! which formats the error of a sample that is skipped.
//!
//! **With a finite pinned budget**, samples take their memory in order (`turn`). So what holds
//! memory is always a run of samples from the first that the consumer has not got, and a sample
//! that finds the budget spent waits until the consumer drops batches. If the consumer itself waits
//! for that very batch, nothing can come back, and the sample fails.

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use log::warn;

use thalweg::{DeviceBuffer, Error, Event, PinnedBuffer, PinnedPool, Result};

use crate::batch::Batch;
use crate::canvas::{Canvas, Pixels};
use crate::options::{Options, Upload};
use crate::source::{Decode, Order, Sample, Samples};
use crate::staging::Staging;
use crate::stats::Stats;
use crate::{DecodeError, lock};

/// How a loader takes page-locked memory. Tests pass a function that fails.
pub(crate) type Pin = fn(&PinnedPool, usize) -> Result<PinnedBuffer<u8>>;

pub(crate) struct Queue<M: Clone + Send + 'static> {
    pub(crate) options: Options,
    pub(crate) pool: PinnedPool,
    pub(crate) pin: Pin,
    pub(crate) staging: Staging,
    /// The most batches under way.
    window: usize,
    pub(crate) state: Mutex<State<M>>,
    /// There is something to do for the decode threads.
    pub(crate) work: Condvar,
    /// A batch is complete or ready, or the consumer waits for one.
    pub(crate) done: Condvar,
    /// A sample has taken its memory, or needs none any more.
    turns: Condvar,
}

pub(crate) struct State<M: Clone + Send + 'static> {
    pub(crate) epoch: u64,
    order: Order,
    /// The position of the next sample to pull.
    position: u64,
    /// `None` while a thread calls it.
    source: Option<Samples<M>>,
    /// The source has no more samples in this epoch.
    pub(crate) ended: bool,
    tasks: VecDeque<Task<M>>,
    pub(crate) batches: VecDeque<Assembly<M>>,
    /// The number of the first of `batches` in its epoch.
    first: u64,
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
    turn: u64,
    /// Later positions that need no turn any more.
    passed: BTreeSet<u64>,
    pub(crate) stats: Stats,
    /// A thread or the device has failed. Nothing more is uploaded.
    pub(crate) failed: bool,
    pub(crate) stop: bool,
}

/// A sample's place.
#[derive(Clone, Copy)]
struct Place {
    epoch: u64,
    batch: u64,
    slot: usize,
    /// The position in the epoch.
    position: u64,
}

struct Task<M> {
    place: Place,
    index: u64,
    name: String,
    meta: M,
    decode: Decode,
}

pub(crate) struct Decoded<M> {
    pub(crate) index: u64,
    pub(crate) name: String,
    pub(crate) size: [u32; 2],
    pub(crate) pixels: Pixels,
    pub(crate) meta: M,
}

/// A batch in the making.
pub(crate) struct Assembly<M> {
    slots: Vec<Option<Result<Decoded<M>>>>,
    /// How many slots are still empty.
    missing: usize,
    /// It has as many samples as a full batch, whatever becomes of them.
    pub(crate) whole: bool,
    /// The indices of the samples that failed: those whose errors were taken out, and those that
    /// were given up.
    pub(crate) failed: Vec<u64>,
    /// How often the consumer was told that there is no device memory for it.
    pub(crate) refused: u32,
    /// Its next attempt waits until the consumer has taken all that is ready.
    pub(crate) last_resort: bool,
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

    pub(crate) fn images(&self) -> impl Iterator<Item = &Decoded<M>> {
        self.slots.iter().flatten().flatten()
    }

    /// The number of images, and their bytes together.
    pub(crate) fn amount(&self) -> (usize, usize) {
        self.images().fold((0, 0), |(n, bytes), image| (n + 1, bytes + image.pixels.len()))
    }

    /// Takes the errors out.
    pub(crate) fn errors(&mut self) -> Vec<Error> {
        let errors: Vec<_> =
            self.slots.extract_if(.., |slot| matches!(slot, Some(Err(_)))).filter_map(|slot| slot?.err()).collect();
        let index = |error: &Error| if let Error::Sample { index, .. } = error { Some(*index) } else { None };
        self.failed.extend(errors.iter().filter_map(index));
        errors
    }

    /// Turns an image into an error. Returns both.
    pub(crate) fn lose(&mut self, image: usize, cause: String) -> Option<(Decoded<M>, Error)> {
        let slot = self.slots.iter_mut().filter(|slot| matches!(slot, Some(Ok(_)))).nth(image)?;
        let lost = slot.take()?.ok()?;
        let cause = Arc::from(DecodeError::from(cause));
        let error = Error::Sample { index: lost.index, name: lost.name.clone(), cause };
        *slot = Some(Err(error.clone()));
        Some((lost, error))
    }

    /// Takes the images out. Their samples count as failed.
    pub(crate) fn give_up(&mut self) -> Vec<Decoded<M>> {
        let images: Vec<_> = std::mem::take(&mut self.slots).into_iter().flatten().flatten().collect();
        self.failed.extend(images.iter().map(|image| image.index));
        images
    }

    pub(crate) fn into_images(self) -> impl Iterator<Item = Decoded<M>> {
        self.slots.into_iter().flatten().flatten()
    }
}

impl<M: Clone + Send + 'static> State<M> {
    /// Whether the first batch is complete, and need not wait until the consumer gives memory back.
    pub(crate) fn can_upload(&self) -> bool {
        let nothing_ahead = self.waiting && self.ready.is_empty();
        let ready = |front: &Assembly<M>| front.missing == 0 && (!front.last_resort || nothing_ahead);
        !self.failed && self.batches.front().is_some_and(ready)
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
        self.push(Err(error));
        self.failed = true;
    }

    /// Whether the consumer has got everything of this epoch.
    pub(crate) fn exhausted(&self) -> bool {
        let idle = self.ended && self.batches.is_empty() && !self.uploading;
        self.ready.is_empty() && (idle || self.failed)
    }

    /// The number of samples in this epoch, if it is known.
    pub(crate) fn samples(&self) -> Option<u64> {
        self.order.len
    }

    fn under_way(&self) -> usize {
        self.batches.len() + self.ready_batches + usize::from(self.uploading)
    }

    /// Notes that a sample needs no turn any more, and moves the turn on.
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
    pub(crate) fn new(options: Options, pool: PinnedPool, pin: Pin, len: Option<u64>, source: Samples<M>) -> Self {
        // `prefetch` batches are for the consumer, and the threads work on the others.
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

    pub(crate) fn wait<'g>(&self, condition: &Condvar, state: MutexGuard<'g, State<M>>) -> MutexGuard<'g, State<M>> {
        condition.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an epoch. What is left of the one before is dropped; a thread that still works on a
    /// part of it drops that part when it is done.
    pub(crate) fn restart(&self, len: Option<u64>) {
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

    pub(crate) fn stop(&self) {
        lock(&self.state).stop = true;
        self.wake();
    }

    fn wake(&self) {
        self.work.notify_all();
        self.done.notify_all();
        self.turns.notify_all();
    }

    /// Runs the body of a thread. If it panics, the loader ends with an error.
    pub(crate) fn guarded(self: Arc<Self>, run: impl FnOnce(&Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&self))) {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            let reason = format!("{name} panicked: {}", message(panic));
            let mut state = lock(&self.state);
            state.fail(Error::Thread { reason });
            drop(state);
            self.wake();
        }
    }

    /// Runs a decode thread.
    pub(crate) fn decode_all(&self) {
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
                        ended = true; // it might panic forever and never say that there are no more
                        break;
                    }
                }
            }
        }
        let mut whole = samples.len() == size;
        // If the source has no length, only a call of it tells whether the other ranks have as many
        // samples for this batch.
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

    /// Decodes a sample.
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
            drop(state); // before `outcome` is dropped, because its metadata is the user's
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

    pub(crate) fn count_failure(&self, state: &mut State<M>, error: &Error) {
        state.stats.failed += 1;
        if self.options.skip_errors {
            warn!("skipped: {error}");
        }
    }

    /// Memory for the pixels of a sample. It is page-locked, or ordinary if that fails.
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
                // This comes first, because `vec!` ends the process if there is no memory.
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
            // This is read before the attempt, so that the attempt sees all memory that the
            // consumer gave back by then.
            let hopeless = state.waiting && state.ready.is_empty() && !state.uploading && place.batch == state.first;
            drop(state);
            let pinned = pin();
            state = lock(&self.state);
            match pinned {
                Err(Error::PinnedBudget { .. }) if !hopeless => {
                    // Buffers come back without a signal, so this polls. It is rare.
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

/// The message of a panic. The payload leaks: it is the user's, and dropping it may panic again.
pub(crate) fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(s), _) => (*s).to_owned(),
        (_, Some(s)) => s.clone(),
        _ => "a value that is not text".to_owned(),
    };
    std::mem::forget(panic);
    message
}
