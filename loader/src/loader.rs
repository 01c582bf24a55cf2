//! The loader itself: an iterator of batches, and the threads behind it.

use std::fmt;
use std::iter::FusedIterator;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use log::warn;
use thalweg::{AnyStream, Device, Error, Event, PinnedPool, Result};

use crate::assembly::Assembly;
use crate::batch::{Batch, BatchEvents};
use crate::decision::Decision;
use crate::lock;
use crate::monitor::Monitor;
use crate::options::{Options, Upload};
use crate::queue::{Pin, Queue};
use crate::source::Source;
use crate::stats::Stats;
use crate::upload::Refused;

/// An iterator of batches, which are decoded and uploaded ahead. The [crate](crate) shows how to
/// use it.
///
/// Dropping it stops its threads, once each has finished its current sample, and gives all memory
/// back. So a decoder that never returns blocks the drop.
///
/// A forked child has none of the threads. There, `next` gives [`Error::Forked`] once, and a drop
/// leaks what the loader holds. Call nothing else of it.
pub struct Loader<M: Clone + Send + 'static> {
    pub(crate) queue: Arc<Queue<M>>,
    pub(crate) device: Device,
    len: Option<u64>,
    threads: Vec<JoinHandle<()>>,
    decision: Option<Decision>,
    new_stream: NewStream,
    monitor: Arc<Mutex<Monitor>>,
    /// `next` has told that this process is a forked child.
    told_fork: bool,
}

/// How a loader makes its stream. Tests pass a function that fails.
pub(crate) type NewStream = fn(Device) -> Result<AnyStream>;

impl<M: Clone + Send + 'static> Loader<M> {
    /// Loads the samples of `source` to `device`. The threads start to decode at once.
    ///
    /// # Errors
    /// An option or an environment variable is out of its range, the source cannot be shuffled, or
    /// no thread can be started.
    pub fn new(device: Device, source: Source<M>, options: Options) -> Result<Self> {
        let options = options.settle(|name| std::env::var_os(name))?;
        Self::with(device, source, options, |pool, bytes| pool.take(bytes), AnyStream::new)
    }

    pub(crate) fn with(
        device: Device,
        source: Source<M>,
        mut options: Options,
        pin: Pin,
        new_stream: NewStream,
    ) -> Result<Self> {
        if options.shuffle.is_some() && source.len.is_none() {
            return Err(Error::Parameter {
                name: "shuffle",
                given: "a seed for a source without a length".into(),
                expected: "a source of known length (`Source::indexed`, `files` or `folder`)".into(),
            });
        }
        let Source { len, sample } = source;
        let useful = usize::try_from(len.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        options.threads = options.threads.min(useful).max(1);
        let pool = PinnedPool::new(device, options.pinned_budget);
        let monitor = Monitor::new(options.device_warning, options.pinned_warning);
        let queue = Arc::new(Queue::new(options, pool, pin, len, sample));
        let mut loader = Self {
            queue,
            device,
            len,
            threads: Vec::new(),
            decision: None,
            new_stream,
            monitor: Arc::new(Mutex::new(monitor)),
            told_fork: false,
        };
        for number in 0..loader.queue.options.threads {
            match loader.spawn(format!("decode-{number}"), Queue::decode_all) {
                Ok(()) => {}
                Err(error) if number == 0 => return Err(error),
                Err(error) => {
                    warn!("decoding on {number} threads: {error}");
                    break;
                }
            }
        }
        Ok(loader)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce(&Queue<M>) + Send + 'static) -> Result<()> {
        let queue = self.queue.clone();
        let spawned = thread::Builder::new().name(name).spawn(move || queue.guarded(run));
        self.threads.push(spawned.map_err(|e| Error::Thread { reason: e.to_string() })?);
        Ok(())
    }

    /// Whether this process is a child that `fork` made of the loader's process.
    fn forked(&self) -> bool {
        matches!(self.device.usable(), Err(Error::Forked))
    }

    /// The number of the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        lock(&self.queue.state).epoch
    }

    /// The number of samples of this rank in an epoch, or `None` if the source has no length.
    pub fn samples(&self) -> Option<u64> {
        lock(&self.queue.state).samples()
    }

    /// Starts the next epoch, with the same threads, stream and buffers. A loader that shuffles
    /// uses a new order. What is left of the current epoch is dropped.
    pub fn restart(&mut self) {
        self.queue.restart(self.len);
    }

    /// How the loader uploads, and why. `None` before the first batch with images, with which it
    /// decides.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// What the loader has done so far.
    pub fn stats(&self) -> Stats {
        lock(&self.queue.state).stats
    }

    /// The number of decode threads that the loader aims for. It has fewer if some could not be
    /// started.
    pub fn threads(&self) -> usize {
        self.queue.options.threads
    }

    /// The pool that images are decoded into. It tells how much memory it lends and keeps, also
    /// after the loader is gone.
    pub fn pinned_pool(&self) -> PinnedPool {
        self.queue.pool.clone()
    }

    /// Takes a batch back. Once the event is complete, a later batch of as many bytes can use its
    /// device memory.
    ///
    /// The memory of a batch that is dropped instead goes back to the device's own pool, and so
    /// does that of a batch on another device than the loader's.
    pub fn recycle(&self, batch: Event<Batch<M>>) {
        let BatchEvents { rgb, .. } = batch.unzip();
        if rgb.device() != self.device || rgb.is_empty() {
            return;
        }
        let mut state = lock(&self.queue.state);
        state.spare.push_back(rgb);
        // No more buffers can be in use: `prefetch` are ready, one is in the making, and one is in
        // the hands of the consumer.
        let surplus =
            (state.spare.len() > self.queue.options.prefetch.saturating_add(2)).then(|| state.spare.pop_front());
        drop(state);
        drop(surplus);
    }
}

impl<M: Clone + Send + 'static> Iterator for Loader<M> {
    type Item = Result<Event<Batch<M>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.forked() {
            // Once only, because the iterator must end.
            return (!std::mem::replace(&mut self.told_fork, true)).then_some(Err(Error::Forked));
        }
        let begin = Instant::now();
        let queue = self.queue.clone();
        let mut state = lock(&queue.state);
        state.waiting = true;
        queue.done.notify_all();
        let item = loop {
            if let Some(item) = state.ready.pop_front() {
                state.ready_batches -= usize::from(item.is_ok());
                break Some(item);
            }
            if state.exhausted() {
                break None;
            }
            let streams = self.decision.as_ref().map(|decision| decision.streams);
            if streams == Some(true) || !state.can_upload() {
                state = queue.wait(&queue.done, state);
                continue;
            }
            let amount = state.batches.front().map_or((0, 0), Assembly::amount);
            if streams.is_none() && amount.0 > 0 {
                // The batch stays where it is: the thread that this may start uploads it.
                let more = !state.ended || state.batches.len() > 1;
                drop(state);
                self.decide(amount, more);
                state = lock(&queue.state);
                continue;
            }
            state = queue.upload_next(state, self.device, &self.monitor, |front| self.upload(front));
        };
        state.waiting = false;
        state.stats.wait += begin.elapsed();
        drop(state);
        queue.work.notify_all();
        queue.done.notify_all();
        item
    }
}

impl<M: Clone + Send + 'static> FusedIterator for Loader<M> {}

impl<M: Clone + Send + 'static> Loader<M> {
    /// Decides how to upload. If that is ahead of the consumer, starts the thread that does it.
    fn decide(&mut self, (images, bytes): (usize, usize), more: bool) {
        let Options { upload, stream_bytes, .. } = self.queue.options;
        let mut decision = Decision::new(upload, self.device.kind(), images, bytes, stream_bytes, more);
        if decision.streams {
            let (device, monitor) = (self.device, self.monitor.clone());
            let started = (self.new_stream)(device).and_then(|stream| {
                stream.enter(|s| self.queue.options.timeline.name(s, "upload"));
                self.spawn("upload".into(), move |queue| queue.upload_all(device, &stream, &monitor))
            });
            if let Err(error) = started {
                decision = Decision::without_streams(&error);
            }
        }
        decision.log(self.device);
        self.decision = Some(decision);
    }

    /// The sequential path: uploads on this thread's own stream, and waits.
    fn upload(&self, front: Assembly<M>) -> Result<Event<Batch<M>>, Refused<M>> {
        let (queue, device) = (&self.queue, self.device);
        if queue.options.upload == Upload::Off {
            return Ok(Event::ready(Batch::on_host(front, device)));
        }
        device.per_thread(|stream| {
            let batch = queue.enqueue(stream, device, front, Queue::read_in_turn)?;
            let batch = stream.record(batch).map_err(|r| r.error)?.synchronize().map_err(|r| r.error)?;
            Ok(Event::ready(batch))
        })?
    }
}

impl<M: Clone + Send + 'static> Drop for Loader<M> {
    fn drop(&mut self) {
        if self.forked() {
            // The threads are not in this process, so one cannot join them, and locks that they
            // held stay locked. What the queue holds belongs to the parent.
            std::mem::forget((self.queue.clone(), std::mem::take(&mut self.threads)));
            return;
        }
        self.queue.stop();
        let this = thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != this) {
            let _ = thread.join(); // `guarded` has handled its panics
        }
    }
}

impl<M: Clone + Send + 'static> fmt::Debug for Loader<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("device", &self.device)
            .field("options", &self.queue.options)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}
