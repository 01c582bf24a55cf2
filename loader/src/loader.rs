//! The loader itself: an iterator of batches, and the threads behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use log::warn;
use thalweg::{AnyStream, Device, Error, Event, PinnedPool, Result, beside_captures};

use crate::assembly::Amount;
use crate::batch::{Batch, BatchEvents};
use crate::loader_state::LoaderState;
use crate::lock;
use crate::monitor::MemoryMonitor;
use crate::options::LoaderOptions;
use crate::queue::{Pin, Queue};
use crate::source::Source;
use crate::state::State;
use crate::stats::Stats;
use crate::upload_plan::UploadPlan;

/// An iterator of batches, which are decoded and uploaded ahead. The [crate](crate) shows how to
/// use it.
///
/// Dropping it stops its threads, once each has finished its current sample, and gives all memory
/// back. So a decoder that never returns blocks the drop.
///
/// A forked child has none of the threads. There, `next` gives [`thalweg::Error::Forked`] once, and
/// a drop leaks what the loader holds. Call no other method there.
pub struct Loader<M: Clone + Send + 'static> {
    pub(crate) queue: Arc<Queue<M>>,
    pub(crate) device: Device,
    len: Option<u64>,
    threads: Vec<JoinHandle<()>>,
    pub(crate) plan: Option<UploadPlan>,
    new_stream: NewStream,
    pub(crate) monitor: Arc<Mutex<MemoryMonitor>>,
    /// Threads upload, so `next` need not.
    ahead: bool,
    /// The time at which a task began to wait for a batch.
    pub(crate) pending: Option<Instant>,
    /// `next` has told that this process is a forked child.
    pub(crate) told_fork: bool,
}

/// A function that makes the stream of a loader. Tests pass a function that fails.
pub(crate) type NewStream = fn(Device) -> Result<AnyStream>;

impl<M: Clone + Send + 'static> Loader<M> {
    /// Loads the samples of `source` to `device`. The threads start to decode at once.
    ///
    /// # Errors
    /// An option is out of its range, the source cannot be shuffled, or no thread can be started.
    pub fn new(device: Device, source: Source<M>, options: LoaderOptions) -> Result<Self> {
        let options = options.settle()?;
        Self::with(device, source, options, |pool, bytes| pool.take(bytes), AnyStream::new)
    }

    pub(crate) fn with(
        device: Device,
        source: Source<M>,
        mut options: LoaderOptions,
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
        options.decode_threads = options.decode_threads.min(useful).max(1);
        let pool = PinnedPool::new(device, options.pinned_budget);
        let monitor = MemoryMonitor::new(&options);
        #[cfg(feature = "jpeg-device")]
        let takes_jpeg = options.upload != crate::UploadMode::Off && options.decode.on(device.kind());
        let queue = Queue::new(options, pool, pin, len, sample);
        #[cfg(feature = "jpeg-device")]
        let queue = queue.taking_jpeg(takes_jpeg);
        let queue = Arc::new(queue);
        let mut loader = Self {
            queue,
            device,
            len,
            threads: Vec::new(),
            plan: None,
            new_stream,
            monitor: Arc::new(Mutex::new(monitor)),
            ahead: false,
            pending: None,
            told_fork: false,
        };
        for number in 0..loader.queue.options.decode_threads {
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
        let spawned = thread::Builder::new().name(name).spawn(move || beside_captures(move || queue.guarded(run)));
        self.threads.push(spawned.map_err(|e| Error::Thread { reason: e.to_string() })?);
        Ok(())
    }

    /// Whether this process is a child that `fork` made of the loader's process.
    pub(crate) fn forked(&self) -> bool {
        matches!(self.device.ensure_usable(), Err(Error::Forked))
    }

    /// The number of the epoch that `next` reads, from 0.
    pub fn epoch(&self) -> u64 {
        lock(&self.queue.state).epoch()
    }

    /// The number of samples of this rank in an epoch, or `None` if the source has no length.
    pub fn samples(&self) -> Option<u64> {
        lock(&self.queue.state).samples()
    }

    /// Starts the next epoch, with the same threads, streams and buffers. A loader that shuffles
    /// uses a new order. What is left of the current epoch is dropped.
    pub fn restart(&mut self) {
        self.set_epoch(self.epoch().saturating_add(1)); // a checkpoint may name any epoch
    }

    /// Starts an epoch from its beginning, as [`restart`](Self::restart) does, but with this
    /// number. The number alone decides the order: ranks and runs that set the same one agree.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.queue.restart(self.len, LoaderState { epoch, samples: 0 });
    }

    /// Returns the consumer's position. A loader with the same source and options that
    /// [`resume`](Self::resume)s there yields exactly the batches that this one has not yet
    /// returned.
    pub fn state(&self) -> LoaderState {
        lock(&self.queue.state).consumer()
    }

    /// Goes on where another loader was, or this one. What is under way is dropped.
    ///
    /// The source, the batch size, the shuffle and the shard must be those of the other loader:
    /// nothing in a position says what they were.
    ///
    /// It asks a source without a length for the samples from there on only. Errors of samples
    /// come again if their batch was not yet returned.
    ///
    /// ```
    /// use thalweg_loader::{Loader, LoaderOptions, Sample, Source};
    /// use thalweg::Device;
    ///
    /// let source = || Source::indexed(10, |index| {
    ///     Sample::new("", index, |sink| Ok(sink.rgb(1, 1)?.fill(0)))
    /// });
    /// let options = LoaderOptions::default().with_batch_size(3).with_shuffle(Some(1));
    /// let cpu = Device::cpu()?;
    /// let mut loader = Loader::new(cpu, source(), options.clone())?;
    /// loader.next().unwrap()?;
    /// let checkpoint = loader.state();
    /// assert_eq!((checkpoint.epoch, checkpoint.samples), (0, 3));
    ///
    /// let mut resumed = Loader::new(cpu, source(), options)?;
    /// resumed.resume(checkpoint)?;
    /// let labels = |batch: Option<thalweg_loader::Result<thalweg::Event<thalweg_loader::Batch<u64>>>>| {
    ///     Ok::<_, thalweg_loader::Error>(batch.unwrap()?.synchronize()?.meta)
    /// };
    /// assert_eq!(labels(resumed.next())?, labels(loader.next())?);
    /// # Ok::<(), thalweg_loader::Error>(())
    /// ```
    ///
    /// # Errors
    /// This rank has fewer samples in an epoch, or it is not known how many and there are more than
    /// 2^53. The loader goes on as before.
    pub fn resume(&mut self, position: LoaderState) -> Result<()> {
        // Positions are added to, so a checkpoint cannot name the last number there is.
        let most = self.samples().unwrap_or(1 << 53);
        if position.samples > most {
            return Err(Error::Parameter {
                name: "position",
                given: format!("{} samples", position.samples),
                expected: format!("at most the {most} samples of this rank"),
            });
        }
        self.queue.restart(self.len, position);
        Ok(())
    }

    /// Returns the plan of the loader's uploads, with the reason. The loader makes it when it has
    /// the first batch with images; before, there is `None`.
    pub fn upload_plan(&self) -> Option<&UploadPlan> {
        self.plan.as_ref()
    }

    /// Returns the statistics of the loader so far.
    pub fn stats(&self) -> Stats {
        let mut state = lock(&self.queue.state);
        Stats { prefetch: state.pressure.prefetch(), ..*state.stats() }
    }

    /// Returns the reasons why JPEG files that the device was to decode were decoded by the host,
    /// with the number of files for each, over all epochs.
    pub fn left_device(&self) -> BTreeMap<String, u64> {
        lock(&self.queue.state).left_device().clone()
    }

    /// Whether the device decodes JPEG files, as [`LoaderOptions::decode`] says.
    #[cfg(feature = "jpeg-device")]
    pub fn decodes_on_device(&self) -> bool {
        self.queue.takes_jpeg
    }

    /// The number of decode threads that the loader aims for. It has fewer if some could not be
    /// started.
    pub fn decode_threads(&self) -> usize {
        self.queue.options.decode_threads
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
        // No more buffers can be in use: `prefetch` are ready, one is in the making, and one is in
        // the hands of the consumer.
        let mut state = lock(&self.queue.state);
        let most = state.pressure.prefetch().saturating_add(2);
        let surplus = state.keep_spare(rgb, most);
        drop(state);
        drop(surplus); // without the lock
    }
}

impl<M: Clone + Send + 'static> Iterator for Loader<M> {
    type Item = crate::Result<Event<Batch<M>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.forked() {
            // Once only, because the iterator must end.
            return (!std::mem::replace(&mut self.told_fork, true)).then_some(Err(Error::Forked.into()));
        }
        let begin = Instant::now();
        let queue = self.queue.clone();
        let mut state = lock(&queue.state);
        state.begin_wait();
        queue.done.notify_all();
        let item = loop {
            state = match self.step(&mut state) {
                Step::Done(item) => break item,
                Step::Wait => queue.wait(&queue.done, state),
                Step::Decide { amount, more } => {
                    drop(state);
                    self.decide(amount, more);
                    lock(&queue.state)
                }
                Step::Upload => {
                    let upload = |front| queue.upload_and_wait(self.device, front);
                    queue.upload_next(state, self.device, &self.monitor, None, upload)
                }
            };
        };
        self.finish(state, begin);
        item
    }
}

impl<M: Clone + Send + 'static> FusedIterator for Loader<M> {}

/// The next step of the consumer.
#[allow(clippy::large_enum_variant)] // it is taken apart at once, so a box would cost more
pub(crate) enum Step<M: Clone + Send + 'static> {
    /// Return this.
    Done(Option<crate::Result<Event<Batch<M>>>>),
    /// Wait until something changes.
    Wait,
    /// Decide how to upload: the images and bytes of the first batch, and whether more may come.
    /// The batch stays where it is, for the thread that the decision may start.
    Decide { amount: Amount, more: bool },
    /// Upload a batch.
    Upload,
}

impl<M: Clone + Send + 'static> Loader<M> {
    pub(crate) fn step(&self, state: &mut State<M>) -> Step<M> {
        if let Some(item) = state.deliver() {
            return Step::Done(Some(item));
        }
        if state.exhausted() {
            return Step::Done(None);
        }
        if self.ahead || !state.can_upload() {
            return Step::Wait;
        }
        let (amount, more) = state.front();
        if self.plan.is_none() && amount.images > 0 {
            return Step::Decide { amount, more };
        }
        Step::Upload
    }

    /// Notes that the consumer has got something, for which it had waited since `begin`.
    pub(crate) fn finish(&mut self, mut state: MutexGuard<'_, State<M>>, begin: Instant) {
        self.pending = None;
        state.end_wait(begin.elapsed());
        drop(state);
        self.queue.work.notify_all();
        self.queue.done.notify_all();
    }

    /// Decides how to upload. If that is ahead of the consumer, starts the threads that do it.
    pub(crate) fn decide(&mut self, Amount { images, bytes }: Amount, more: bool) {
        let LoaderOptions { upload, stream_bytes, upload_streams, prefetch, .. } = self.queue.options;
        let mut plan = UploadPlan::new(upload, self.device.kind(), images, bytes, stream_bytes, more);
        if plan.streams {
            let wanted = upload_streams.min(prefetch).max(1);
            // Before the first thread starts, so that the second batch is for the second stream.
            lock(&self.queue.state).set_streams(wanted);
            for number in 0..wanted {
                match self.add_stream(number) {
                    Ok(()) => plan.upload_streams = number + 1,
                    Err(error) => {
                        if number == 0 {
                            plan = UploadPlan::without_streams(&error);
                        } else {
                            warn!("uploading on {number} streams: {error}");
                        }
                        // Without a stream, one thread may still upload for a task.
                        lock(&self.queue.state).set_streams(number.max(1));
                        self.queue.tell();
                        break;
                    }
                }
            }
        }
        plan.log(self.device);
        self.plan = Some(plan);
    }

    /// Starts a thread that uploads ahead of the consumer, on a stream of its own.
    fn add_stream(&mut self, number: usize) -> Result<()> {
        let (device, monitor) = (self.device, self.monitor.clone());
        let name = if number == 0 { "upload".to_owned() } else { format!("upload {number}") };
        let stream = (self.new_stream)(device)?;
        stream.enter(|s| self.queue.options.timeline.name(s, &name));
        self.spawn(name, move |queue| {
            let upload = |front| queue.upload_ahead(device, &stream, front);
            queue.upload_all(device, &monitor, number, upload);
        })?;
        self.ahead = true;
        Ok(())
    }

    /// Starts a thread that uploads as `next` would, for a consumer that may not block.
    pub(crate) fn upload_elsewhere(&mut self) -> Result<()> {
        let (device, monitor) = (self.device, self.monitor.clone());
        self.spawn("upload".into(), move |queue| {
            queue.upload_all(device, &monitor, 0, |front| queue.upload_and_wait(device, front));
        })?;
        self.ahead = true;
        Ok(())
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
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}
