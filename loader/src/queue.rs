//! The state that the threads share: samples to decode, batches in the making, and what is ready
//! for the consumer.
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
//! for that very batch, the wait might never end, so the sample fails, even if another thread still
//! holds earlier batches, or works on the epoch before a restart.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use log::warn;

use thalweg::{Error, PinnedBuffer, PinnedPool, Result};

use crate::assembly::Decoded;
use crate::error::SampleError;
use crate::image_sink::{self, ImageSink, Pixels};
use crate::loader_state::LoaderState;
use crate::options::{LoaderOptions, UploadMode};
use crate::pressure::Pressure;
use crate::scratch::Scratch;
use crate::source::{Order, Samples};
use crate::staging::Staging;
use crate::state::{Place, State, Task};
use crate::stats::StageStats;
use crate::{DecodeError, lock};

/// A function that takes page-locked memory for a loader. Tests pass a function that fails.
pub(crate) type Pin = fn(&PinnedPool, usize) -> Result<PinnedBuffer<u8>>;

pub(crate) struct Queue<M: Clone + Send + 'static> {
    pub(crate) options: LoaderOptions,
    pub(crate) pool: PinnedPool,
    pub(crate) pin: Pin,
    pub(crate) staging: Staging,
    pub(crate) scratch: Scratch,
    /// The device decodes JPEG files.
    #[cfg(feature = "jpeg-device")]
    pub(crate) takes_jpeg: bool,
    /// Decoders that no upload uses, with their device memory.
    #[cfg(feature = "jpeg-device")]
    pub(crate) decoders: Mutex<Vec<thalweg_jpeg::Decoder>>,
    /// The most batches under way.
    window: usize,
    pub(crate) state: Mutex<State<M>>,
    /// There is something to do for the decode threads.
    pub(crate) work: Condvar,
    /// A batch is complete or ready, or the consumer waits for one.
    pub(crate) done: Condvar,
    /// Of the task that waits for a batch.
    pub(crate) waker: Mutex<Option<Waker>>,
    /// A sample has taken its memory, or needs none any more.
    turns: Condvar,
}

impl<M: Clone + Send + 'static> Queue<M> {
    pub(crate) fn new(
        options: LoaderOptions,
        pool: PinnedPool,
        pin: Pin,
        len: Option<u64>,
        source: Samples<M>,
    ) -> Self {
        // `prefetch` batches are for the consumer, and the threads work on the others.
        let window = options.prefetch.saturating_add(options.decode_threads.div_ceil(options.batch_size));
        let state = State::new(Self::order(&options, len, 0), source, Pressure::new(options.prefetch));
        let staging = Staging::new(&options);
        let scratch = Scratch::new(&options);
        let (work, done, turns) = <(Condvar, Condvar, Condvar)>::default();
        Self {
            options,
            pool,
            pin,
            staging,
            scratch,
            #[cfg(feature = "jpeg-device")]
            takes_jpeg: false,
            #[cfg(feature = "jpeg-device")]
            decoders: Mutex::default(),
            window,
            state: Mutex::new(state),
            work,
            done,
            waker: Mutex::default(),
            turns,
        }
    }

    fn order(options: &LoaderOptions, len: Option<u64>, epoch: u64) -> Order {
        Order::new(len, options.shuffle, epoch, options.shard, options.drop_last)
    }

    pub(crate) fn wait<'g>(&self, condition: &Condvar, state: MutexGuard<'g, State<M>>) -> MutexGuard<'g, State<M>> {
        condition.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an epoch at a position. What is left of the one before is dropped; a thread that
    /// still works on a part of it drops that part when it is done.
    pub(crate) fn restart(&self, len: Option<u64>, at: LoaderState) {
        let order = Self::order(&self.options, len, at.epoch);
        let left = lock(&self.state).restart(at, order, self.options.batch_size);
        self.wake();
        drop(left); // after the wake, because a destructor of metadata may panic
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stop();
        self.wake();
    }

    fn wake(&self) {
        self.work.notify_all();
        self.turns.notify_all();
        self.tell();
    }

    /// Wakes whoever waits for a batch. Call it without the lock, because a waker is the user's.
    pub(crate) fn tell(&self) {
        self.done.notify_all();
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Runs the body of a thread. If it panics, the loader ends with an error.
    pub(crate) fn guarded(self: Arc<Self>, run: impl FnOnce(&Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&self))) {
            let thread = thread::current().name().unwrap_or_default().to_owned();
            lock(&self.state).fail(crate::Error::Panicked { thread, message: message(panic) });
            self.wake();
        }
    }

    /// Runs a decode thread.
    pub(crate) fn decode_all(&self) {
        let mut state = lock(&self.state);
        while !state.stopped() {
            if let Some(task) = state.next_task() {
                drop(state);
                self.run(task);
                state = lock(&self.state);
            } else if let Some(source) = state.take_source(self.window) {
                state = self.pull(state, source);
            } else {
                state = self.wait(&self.work, state);
            }
        }
    }

    /// Asks the source for the samples of one more batch.
    fn pull<'g>(&'g self, state: MutexGuard<'g, State<M>>, mut source: Samples<M>) -> MutexGuard<'g, State<M>> {
        let (round, position, size) = (state.round(), state.position(), self.options.batch_size);
        let order = state.order();
        drop(state);
        let bounded = order.len.is_some();
        let last = order.of_last_rank(position.saturating_add(size as u64 - 1));
        let mut ask = |index| {
            catch_unwind(AssertUnwindSafe(|| source(index))).map_err(|panic| {
                let cause = SampleError::Panicked { what: "source", message: message(panic) };
                crate::Error::of_sample(index, "source".into(), cause)
            })
        };
        let mut samples = Vec::new();
        let mut ended = false;
        // A batch may be as large as one likes, so nothing is reserved for it, and each sample asks
        // whether it is still wanted.
        while samples.len() < size && self.wants(round) {
            let Some(index) = order.index(position + samples.len() as u64) else {
                ended = true;
                break;
            };
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
        state.put_source(source);
        if state.round() == round {
            for error in samples.iter().filter_map(|sample| sample.as_ref().err()) {
                self.count_failure(&mut state, error);
            }
            state.append(samples, ended, whole);
            drop(state);
        } else {
            drop(state); // before the samples are dropped, because their metadata is the user's
            drop(samples);
        }
        self.wake();
        lock(&self.state)
    }

    /// Whether the round goes on.
    fn wants(&self, round: u64) -> bool {
        lock(&self.state).wants(round)
    }

    /// Decodes a sample.
    fn run(&self, task: Task<M>) {
        let Task { place, index, name, meta, decode } = task;
        let begin = Instant::now();
        // How often the decoder asked for memory, the bytes it asked for, and how long it waited.
        let memory = RefCell::new(StageStats::default());
        let mut sink = ImageSink::new(&self.scratch, self.options.upload == UploadMode::Off, |bytes| {
            let begin = Instant::now();
            let granted = self.grant(place, bytes);
            memory.borrow_mut().add(bytes, begin.elapsed());
            granted
        });
        #[cfg(feature = "jpeg-device")]
        {
            sink.takes_jpeg = self.takes_jpeg;
        }
        let thread = thread::current();
        let decode = || self.options.timeline.host(thread.name().unwrap_or("decode"), &name, || decode(&mut sink));
        let run = catch_unwind(AssertUnwindSafe(decode));
        let (host_jpeg, left_device) = (sink.host_jpeg, sink.left_device.take());
        let image = sink.into_image();
        let (spent, memory) = (begin.elapsed(), memory.into_inner());
        let outcome = match decoded(run, image) {
            Ok((size, pixels)) => Ok(Decoded { index, name, size, pixels, meta }),
            Err(cause) => Err(crate::Error::of_sample(index, name, cause)),
        };

        let mut state = lock(&self.state);
        state.pass(place);
        let bytes = outcome.as_ref().map_or(0, |image| image.pixels.len());
        let stats = state.stats();
        stats.decode += spent;
        stats.decoding.add(bytes, spent.saturating_sub(memory.total));
        stats.memory.merge(memory);
        if !state.wants(place.round) {
            drop(state); // before `outcome` is dropped, because its metadata is the user's
            return;
        }
        match &outcome {
            Ok(image) => {
                let stats = state.stats();
                stats.images += 1;
                stats.bytes = stats.bytes.saturating_add(image.pixels.len() as u64);
                state.note_jpeg(host_jpeg, left_device);
            }
            Err(error) => self.count_failure(&mut state, error),
        }
        let complete = state.fill(place, outcome);
        drop(state);
        self.turns.notify_all();
        if complete {
            self.tell();
        }
    }

    pub(crate) fn count_failure(&self, state: &mut State<M>, error: &crate::Error) {
        state.stats().failed += 1;
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
                state.stats().pageable += 1;
                if state.stats().pageable == 1 {
                    warn!("{bytes} bytes cannot be page-locked, so uploads of such images are slower: {error}");
                }
                drop(state);
                image_sink::zeros(bytes).map(Pixels::Pageable).map_err(|_| error)
            }
            Err(error) => Err(error),
        };
        if self.options.pinned_budget == usize::MAX {
            return pin();
        }
        let mut state = lock(&self.state);
        loop {
            if !state.wants(place.round) {
                return Err(Error::Thread { reason: "the loader has been stopped".into() });
            }
            if !state.has_turn(place) {
                state = self.wait(&self.turns, state);
                continue;
            }
            // This is read before the attempt, so that the attempt sees all memory that the
            // consumer gave back by then.
            let hopeless = state.blocks(place);
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

/// The image of a decoder, or the reason why there is none.
pub(crate) fn decoded<T>(run: thread::Result<Result<(), DecodeError>>, image: Option<T>) -> Result<T, DecodeError> {
    match (run, image) {
        (Ok(Ok(())), Some(image)) => Ok(image),
        (Ok(Ok(())), None) => Err(SampleError::NoImage.into()),
        (Ok(Err(error)), _) => Err(error),
        (Err(panic), _) => Err(SampleError::Panicked { what: "decoder", message: message(panic) }.into()),
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
