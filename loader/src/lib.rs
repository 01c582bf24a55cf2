//! A loader that keeps a device fed: disk, decoders, page-locked memory, device.
//!
//! ```text
//! source --> decode threads --> pinned memory --> upload stream --> Event<Batch> --> the consumer's streams
//!            (as many as cores)  (a pool)         (prefetch ahead)
//! ```
//!
//! A [`Loader`] is an iterator of [`Event<Batch>`](Event). Threads decode images, of any sizes, straight into page-locked memory; a
//! thread with a stream of its own uploads them, [`prefetch`](Options::prefetch) batches ahead of the consumer, and in the order of
//! the [`Source`] whatever the threads do. A batch's transfers are complete before its consumer can touch it, because the
//! event says so, on the device, without the host waiting.
//!
//! ```
//! use thalweg_loader::{Loader, Options, Sample, Source};
//! use thalweg::{Device, stream_tags};
//!
//! // Ten gray images of growing width, with their number as metadata.
//! let source = Source::indexed(10, |index| {
//!     Sample::new(format!("gray {index}"), index, move |canvas| {
//!         canvas.rgb(4, 5 + index as u32)?.fill(index as u8); // height, width; page-locked memory
//!         Ok(())
//!     })
//! });
//! let gpu = Device::best()?;
//! let mut loader = Loader::new(gpu, source, Options { batch: 4, ..Options::default() })?;
//!
//! stream_tags!(Compute);
//! let compute = gpu.stream::<Compute>()?;
//! let mut seen = Vec::new();
//! while let Some(batch) = loader.next() {
//!     let batch = compute.wait(batch?)?; // `compute` waits for the upload; the host does not
//!     // ... kernels on `batch.rgb` ...
//!     seen.extend(batch.meta.clone()); // plain, so readable in every state
//!     loader.recycle(compute.record(batch)?); // its memory serves a later batch
//! }
//! assert_eq!(seen, (0..10).collect::<Vec<_>>());
//! # Ok::<(), thalweg::Error>(())
//! ```
//!
//! **Back-pressure.** No more than `prefetch` batches, and those that the decode threads are at
//! work on, exist at a time besides what the consumer holds. **Errors.** A sample that cannot be
//! decoded is an `Err` that names it, just before its batch, which is one image smaller; the rest
//! continues. **Ranks** that take a step together for each batch set
//! [`drop_last`](Options::drop_last): then all of them get the same number of batches, whatever
//! fails. **Raw frames** need not pass through host memory of their own: [`upload_ppm`], and
//! [`Canvas::rgb_in_file`] for other formats. **Streams** are used where they pay ([`Decision`]),
//! else `next` uploads and waits, with the same result. What is decided, falls back or is skipped
//! is told through the [`log`] crate.
//!
//! | variable | overrides |
//! |---|---|
//! | `THALWEG_LOADER_THREADS` | [`Options::threads`] |
//! | `THALWEG_LOADER_STREAM_BYTES` | [`Options::stream_bytes`] |

mod formats;
#[cfg(feature = "image")]
mod photo;
mod queue;
mod source;
mod staging;
#[cfg(test)]
mod tests;
mod upload;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::iter::FusedIterator;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use log::warn;

pub use formats::{read_ppm, upload_ppm};
#[cfg(feature = "image")]
pub use photo::{decode_photo, read_photo};
use queue::{Pin, Queue};
pub use source::{Sample, Source};
use staging::InFile;
pub use upload::Decision;
use upload::{Monitor, Outcome};

use thalweg::{AnyStream, Device, DeviceBuffer, Error, Event, PinnedBuffer, PinnedPool, Resource, Result, Timeline};

/// What a decoder returns where it fails: an error of any kind, or a text (`Err("no image".into())`).
pub type DecodeError = Box<dyn std::error::Error + Send + Sync>;

/// How batches come to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upload {
    /// On a stream of the loader's own where that pays: on a CUDA device, for batches of at least
    /// [`stream_bytes`](Options::stream_bytes), where there is more than one image to move. Else as `Sequential`.
    #[default]
    Auto,
    /// On a stream of the loader's own, ahead of the consumer.
    Streams,
    /// In `next`, on the calling thread's own stream, which waits for it.
    Sequential,
    /// Not at all: the images stay in page-locked memory, for a consumer that uploads them itself.
    Off,
}

/// How a loader works.
///
/// ```
/// use thalweg_loader::Options;
///
/// let options = Options { batch: 32, shuffle: Some(42), shard: (0, 8), ..Options::default() };
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Images in a batch; at least 1. Default 16.
    pub batch: usize,
    /// Batches ready ahead of the consumer; at least 1. Default 2.
    pub prefetch: usize,
    /// Decode threads; 0, the default, is one a core. Never more than there are samples.
    pub threads: usize,
    /// The seed of a new order in each epoch, the same on every machine. Default: the source's order.
    pub shuffle: Option<u64>,
    /// Whether a last batch that is not full is left out.
    ///
    /// All ranks of a [`shard`](Options::shard) then get the same number of batches, because that
    /// number depends on the number of samples, the ranks and the size of a batch alone, and not on
    /// what fails: a batch of which no image is left is yielded with none ([`Batch::is_empty`]),
    /// and [`Batch::failed`] lists what is missing. So ranks that exchange gradients after each
    /// batch do not wait for one another for ever. Without `drop_last`, a batch of which no image
    /// is left is left out.
    ///
    /// A device or a thread that fails ends a loader early, by an error; so does a panic in a
    /// source without a length.
    pub drop_last: bool,
    /// This process's rank and how many there are: each sample is one rank's. Default (0, 1).
    pub shard: (u64, u64),
    /// Whether samples that fail are logged and left out, instead of yielded as errors.
    /// [`Batch::failed`] and [`Stats::failed`] count them in both cases.
    pub skip_errors: bool,
    /// How batches come to the device.
    pub upload: Upload,
    /// Bytes of a batch from which [`Upload::Auto`] uses a stream. Default 1 MiB, which takes 20 to 40 us to copy.
    pub stream_bytes: usize,
    /// The most page-locked memory to hold, in bytes. Decoders wait where it is spent; where waiting cannot help, because the
    /// consumer waits for the batch in question, the sample fails with [`Error::PinnedBudget`]. Default: no limit.
    pub pinned_budget: usize,
    /// Fraction of device memory in use (by anybody) above which the loader logs a warning. Default 0.9.
    pub device_warning: f64,
    /// Bytes of page-locked memory above which the loader logs a warning. Default 4 GiB.
    pub pinned_warning: usize,
    /// Gets a span for each image on the lane of its decode thread, and for each upload. Default: off.
    pub timeline: Timeline,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            batch: 16,
            prefetch: 2,
            threads: 0,
            shuffle: None,
            drop_last: false,
            shard: (0, 1),
            skip_errors: false,
            upload: Upload::Auto,
            stream_bytes: 1 << 20,
            pinned_budget: usize::MAX,
            device_warning: 0.9,
            pinned_warning: 4 << 30,
            timeline: Timeline::off(),
        }
    }
}

impl Options {
    /// These options as the environment overrides them, checked, with the number of threads filled in.
    fn settle(mut self, environment: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let number = |name: &'static str, what: &str, least: usize| match environment(name) {
            None => Ok(None),
            Some(text) => match text.to_str().and_then(|text| text.trim().parse().ok()).filter(|n| *n >= least) {
                Some(n) => Ok(Some(n)),
                None => Err(Error::Parameter {
                    name,
                    given: format!("`{}` in the environment", text.to_string_lossy()),
                    expected: format!("{what}, at least {least}"),
                }),
            },
        };
        self.threads = number("THALWEG_LOADER_THREADS", "a number of threads", 1)?.unwrap_or(self.threads);
        self.stream_bytes = number("THALWEG_LOADER_STREAM_BYTES", "a number of bytes", 0)?.unwrap_or(self.stream_bytes);
        if self.threads == 0 {
            self.threads = thread::available_parallelism().map_or(1, usize::from);
        }
        let refuse =
            |name, given: String, expected: &str| Err(Error::Parameter { name, given, expected: expected.into() });
        let (rank, world) = self.shard;
        match () {
            () if self.batch == 0 => refuse("batch", "0".into(), "at least 1"),
            () if self.prefetch == 0 => refuse("prefetch", "0".into(), "at least 1"),
            () if rank >= world => refuse("shard", format!("{:?}", self.shard), "(rank, world) with rank below world"),
            () if !(0.0..=1.0).contains(&self.device_warning) => {
                refuse("device_warning", self.device_warning.to_string(), "a fraction from 0 to 1")
            }
            () => Ok(self),
        }
    }
}

/// Images of any sizes on the device, and what travels with them.
///
/// Its ordered form, [`BatchOn<S>`](BatchOn), is what a consumer's stream gets; the fields that are no buffers are readable in every state.
#[derive(Debug, Resource)]
#[resource(unzip)]
pub struct Batch<M: Clone + Send + 'static> {
    /// The images' pixels, interleaved RGB, one image after another, each from a multiple of 16 bytes on (where, says
    /// [`byte_ranges`]); what lies between is arbitrary. Empty with [`Upload::Off`].
    pub rgb: DeviceBuffer<u8>,
    /// The same on the host, as decoded. One is empty where page-locked memory was not to be had,
    /// for which see [`Batch::pixels`], and where the pixels went from a file to the device
    /// ([`Canvas::rgb_in_file`]).
    pub images: Vec<PinnedBuffer<u8>>,
    #[resource(plain)]
    pageable: Vec<Vec<u8>>,
    /// Height and width of each image.
    #[resource(plain)]
    pub sizes: Vec<[u32; 2]>,
    /// The index of each image in its source.
    #[resource(plain)]
    pub indices: Vec<u64>,
    /// The samples' names.
    #[resource(plain)]
    pub names: Vec<String>,
    /// The samples' metadata.
    #[resource(plain)]
    pub meta: Vec<M>,
    /// The indices of the batch's samples that failed, in no particular order, and so are not among
    /// its images.
    #[resource(plain)]
    pub failed: Vec<u64>,
}

impl<M: Clone + Send + 'static> Batch<M> {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there are no images, because all samples failed; only with
    /// [`drop_last`](Options::drop_last). There is nothing to launch for such a batch, and no
    /// [`Layout`](crate::vision::Layout) of it; it is waited for, recorded and recycled as any
    /// other. On a stream, `sizes.is_empty()` says the same.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// The pixels of an image on the host, interleaved RGB; none where they went from a file to the
    /// device.
    pub fn pixels(&self, image: usize) -> &[u8] {
        if self.pageable[image].is_empty() { &self.images[image] } else { &self.pageable[image] }
    }
}

/// Where images of these sizes (height, width) lie in [`Batch::rgb`]: one after another, each from a multiple of 16 bytes on.
pub fn byte_ranges(sizes: &[[u32; 2]]) -> Vec<Range<usize>> {
    let mut start = 0;
    let range = |&[height, width]: &[u32; 2]| {
        let range = start..start + 3 * height as usize * width as usize;
        start += padded(range.len());
        range
    };
    sizes.iter().map(range).collect()
}

/// Bytes of an image with those up to the next one.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// Where a decoder puts its image.
pub struct Canvas<'c> {
    memory: Box<dyn FnMut(usize) -> Result<Pixels> + 'c>,
    image: Option<([u32; 2], Pixels)>,
    /// Images are for the host, which has to have their pixels.
    on_host: bool,
}

/// Memory for an image on the host.
enum Pixels {
    Pinned(PinnedBuffer<u8>),
    Pageable(Vec<u8>),
    /// Not yet in memory.
    File(InFile),
}

impl Pixels {
    fn len(&self) -> usize {
        match self {
            Self::Pinned(buffer) => buffer.len(),
            Self::Pageable(vec) => vec.len(),
            Self::File(file) => file.bytes,
        }
    }
}

impl<'c> Canvas<'c> {
    fn new(on_host: bool, memory: impl FnMut(usize) -> Result<Pixels> + 'c) -> Self {
        Self { memory: Box::new(memory), image: None, on_host }
    }

    /// Says how large the image is, and returns the memory for its pixels: `[height, width, 3]`, with whatever an earlier image
    /// left there. Call it as soon as the size is known; asking again starts over.
    ///
    /// It waits where a [pinned budget](Options::pinned_budget) is spent.
    ///
    /// # Errors
    /// A side is 0, or there is no memory. Pass it on: the sample fails with it.
    pub fn rgb(&mut self, height: u32, width: u32) -> Result<&mut [u8]> {
        let bytes = Self::bytes(height, width)?;
        self.image = None; // gives its memory back first
        let (_, pixels) = self.image.insert(([height, width], (self.memory)(bytes)?));
        Ok(match pixels {
            Pixels::Pinned(buffer) => buffer,
            Pixels::Pageable(vec) => vec,
            Pixels::File(_) => unreachable!("`memory` returns memory"),
        })
    }

    /// Says how large the image is, and that its pixels lie in `file` from byte `at` on as
    /// [`rgb`](Self::rgb) would hold them.
    ///
    /// They are read when the batch is uploaded: threads read pieces of 1 MiB into a few
    /// page-locked slots, which stay in the processor's caches, and each piece goes to the device
    /// at once. A large frame so crosses host memory once, where one read into memory of its own
    /// crosses it four times. The batch has no copy on the host ([`Batch::pixels`] is empty),
    /// except with [`Upload::Off`], for which the pixels are read here. A file that ends too early
    /// fails the sample.
    ///
    /// The file stays open until then. One opened for direct I/O (`O_DIRECT`) is read in whole
    /// blocks, past the page cache, except with [`Upload::Off`].
    ///
    /// # Errors
    /// A side is 0; with [`Upload::Off`], the file cannot be read.
    pub fn rgb_in_file(&mut self, height: u32, width: u32, file: File, at: u64) -> Result<(), DecodeError> {
        let bytes = Self::bytes(height, width)?;
        if self.on_host {
            let failed = |e| format!("cannot read its pixels: {e}");
            return Ok(staging::fill(&file, at, bytes, bytes, self.rgb(height, width)?).map_err(failed)?);
        }
        self.image = Some(([height, width], Pixels::File(InFile { file, at, bytes })));
        Ok(())
    }

    fn bytes(height: u32, width: u32) -> Result<usize> {
        let bytes = (height as usize).checked_mul(width as usize).and_then(|pixels| pixels.checked_mul(3));
        bytes.filter(|&bytes| bytes > 0).ok_or_else(|| Error::Parameter {
            name: "the image's size",
            given: format!("{height} x {width}"),
            expected: "at least 1 x 1 pixels, in memory".into(),
        })
    }

    fn into_image(self) -> Option<([u32; 2], Pixels)> {
        self.image
    }
}

impl fmt::Debug for Canvas<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canvas").field("size", &self.image.as_ref().map(|(size, _)| size)).finish_non_exhaustive()
    }
}

/// What a loader has done so far, over all epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Images decoded.
    pub images: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Samples that failed, and those of batches for which there was no device memory.
    pub failed: u64,
    /// Images for which no memory could be page-locked.
    pub pageable: u64,
    /// Time in decoders and in reads of [`Canvas::rgb_in_file`], summed over threads.
    pub decode: Duration,
    /// Time that the consumer spent in `next`, waiting for a batch.
    pub wait: Duration,
}

/// An iterator of batches, decoded and uploaded ahead. See the [module](self) for how to use it.
///
/// Dropping it stops the threads, once each has finished the sample it is at, and gives all memory back; a decoder that never
/// returns would keep it from doing so.
pub struct Loader<M: Clone + Send + 'static> {
    queue: Arc<Queue<M>>,
    device: Device,
    len: Option<u64>,
    threads: Vec<JoinHandle<()>>,
    decision: Option<Decision>,
    new_stream: NewStream,
    monitor: Arc<Mutex<Monitor>>,
}

/// How a loader makes its stream; tests give one that fails.
type NewStream = fn(Device) -> Result<AnyStream>;

impl<M: Clone + Send + 'static> Loader<M> {
    /// A loader of the samples of `source` to `device`. Its threads start to decode at once.
    ///
    /// # Errors
    /// An option or a variable of the environment is out of its range, the source cannot be shuffled, or no thread can be started.
    pub fn new(device: Device, source: Source<M>, options: Options) -> Result<Self> {
        let options = options.settle(|name| std::env::var_os(name))?;
        Self::with(device, source, options, |pool, bytes| pool.take(bytes), AnyStream::new)
    }

    fn with(device: Device, source: Source<M>, mut options: Options, pin: Pin, new_stream: NewStream) -> Result<Self> {
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

    /// The number of the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        lock(&self.queue.state).epoch
    }

    /// Samples of this rank in an epoch, where the source says how many there are.
    pub fn samples(&self) -> Option<u64> {
        lock(&self.queue.state).samples()
    }

    /// Starts the next epoch, with the same threads, stream and buffers, in a new order where it shuffles. What is left of the
    /// current one is dropped.
    pub fn restart(&mut self) {
        self.queue.restart(self.len);
    }

    /// How it uploads and why, once the first batch has been decided on.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        lock(&self.queue.state).stats
    }

    /// How many threads decode.
    pub fn threads(&self) -> usize {
        self.queue.options.threads
    }

    /// The pool that images are decoded into: what it lends and keeps can be read there, also when the loader is gone.
    pub fn pinned_pool(&self) -> PinnedPool {
        self.queue.pool.clone()
    }

    /// Takes a batch back, so that a later one of as many bytes can use its device memory, once the event is complete. A batch that
    /// is dropped instead frees it, for the device's own pool; and so does one on another device than the loader's.
    pub fn recycle(&self, batch: Event<Batch<M>>) {
        let BatchEvents { rgb, .. } = batch.unzip();
        if rgb.device() != self.device || rgb.is_empty() {
            return;
        }
        let mut state = lock(&self.queue.state);
        state.spare.push_back(rgb);
        // As many as there can be: ready, in the making, and in the consumer's hands.
        let surplus =
            (state.spare.len() > self.queue.options.prefetch.saturating_add(2)).then(|| state.spare.pop_front());
        drop(state);
        drop(surplus);
    }
}

impl<M: Clone + Send + 'static> Iterator for Loader<M> {
    type Item = Result<Event<Batch<M>>>;

    fn next(&mut self) -> Option<Self::Item> {
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
            let amount = state.batches.front().map_or((0, 0), queue::Assembly::amount);
            if streams.is_none() && amount.0 > 0 {
                // The batch stays where it is: the thread that this may start uploads it.
                let more = !state.ended || state.batches.len() > 1;
                drop(state);
                self.decide(amount, more);
                state = lock(&queue.state);
                continue;
            }
            let Some(front) = state.pop() else { continue };
            drop(state);
            // Metadata may panic where it is dropped. As in the thread that uploads, nothing more comes after that.
            let uploaded = catch_unwind(AssertUnwindSafe(|| self.upload(front)));
            let (errors, outcome) = uploaded.unwrap_or_else(|panic| {
                let reason = format!("an upload panicked: {}", queue::message(panic));
                (Vec::new(), Outcome::Failed(Error::Thread { reason }))
            });
            state = lock(&queue.state);
            let lost = queue.settled(&mut state, self.device, errors, outcome, true);
            queue.work.notify_all(); // there may be room, also where nothing is left of the batch
            if !lost.is_empty() {
                drop(state);
                drop(lost); // its metadata is the user's
                state = lock(&queue.state);
            }
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
    /// Decides how to upload, and where that is ahead, starts the thread that does.
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
    fn upload(&self, front: queue::Assembly<M>) -> (Vec<Error>, Outcome<M>) {
        let (queue, device) = (&self.queue, self.device);
        let uploaded = queue.settle(front, device, |front| {
            if queue.options.upload == Upload::Off {
                return Ok(Event::ready(Batch::on_host(front, device)));
            }
            device.per_thread(|stream| {
                let batch = queue.enqueue(stream, device, front, Queue::read_in_turn)?;
                let batch = stream.record(batch).map_err(|r| r.error)?.synchronize().map_err(|r| r.error)?;
                Ok(Event::ready(batch))
            })?
        });
        lock(&self.monitor).look(device, &queue.pool);
        uploaded
    }
}

impl<M: Clone + Send + 'static> Drop for Loader<M> {
    fn drop(&mut self) {
        self.queue.stop();
        let this = thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != this) {
            let _ = thread.join(); // `guarded` has seen to its panics
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

/// Locks a mutex. One that a panic poisoned still holds consistent data here, because no code of a user runs under a lock of this
/// crate.
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
