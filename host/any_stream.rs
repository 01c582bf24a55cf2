//! Streams known only at run time: pools, single handles, and one for each thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::brand::{Brand, LiveBrand, sealed};
use crate::driver::guard;
use crate::error::{Error, Result};
use crate::lock;
use crate::runtime::device::Device;
use crate::runtime::stream::{StreamInner, StreamOptions};
use crate::stream::Stream;

/// The brand of a stream inside [`StreamPool::with_stream`] or [`AnyStream::enter`].
///
/// Its lifetime is new at each call and belongs to the closure. So what this stream orders can
/// leave the closure only as an [`Event`](crate::Event), and cannot be used on another stream.
pub struct Scoped<'l>(PhantomData<fn(&'l ()) -> &'l ()>);

impl sealed::Sealed for Scoped<'_> {}
impl Brand for Scoped<'_> {}
impl LiveBrand for Scoped<'_> {}

/// The brand of a stream inside [`Device::per_thread`], which stays on its thread.
pub struct PerThread<'l>(PhantomData<Scoped<'l>>, PhantomData<*const ()>);

impl sealed::Sealed for PerThread<'_> {}
impl Brand for PerThread<'_> {}
impl LiveBrand for PerThread<'_> {}

impl fmt::Debug for Scoped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scoped")
    }
}

impl fmt::Debug for PerThread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerThread")
    }
}

/// A stream without a type of its own, for programs that learn the number of streams at run time.
///
/// ```
/// use thalweg::{AnyStream, Device, DeviceBuffer, Event};
///
/// let gpu = Device::best()?;
/// let streams: Vec<AnyStream> = (0..3).map(|_| AnyStream::new(gpu)).collect::<Result<_, _>>()?;
/// // Values leave a stream as events.
/// let filled: Vec<Event<DeviceBuffer<u32>>> = streams
///     .iter()
///     .zip(0..)
///     .map(|(stream, i)| stream.enter(|s| {
///         let mut x = s.alloc(100)?;
///         s.fill(&mut x, i)?;
///         Ok(s.record(x)?)
///     }))
///     .collect::<Result<_, thalweg::Error>>()?;
/// for (event, i) in filled.into_iter().zip(0..) {
///     streams[0].enter(|s| {
///         let x = s.wait(event)?;
///         assert_eq!(s.read_blocking(&x)?, [i; 100]);
///         Ok::<_, thalweg::Error>(())
///     })?;
/// }
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// Dropping it parks the stream for a later user. The stream's work continues.
#[derive(Debug)]
pub struct AnyStream(&'static StreamInner);

impl AnyStream {
    /// Makes a stream of `device` with the default options.
    ///
    /// # Errors
    /// The device has failed.
    pub fn new(device: Device) -> Result<Self> {
        Self::with(device, StreamOptions::default())
    }

    /// Makes a stream of `device`.
    ///
    /// # Errors
    /// The device has no such priority, or has failed.
    pub fn with(device: Device, options: StreamOptions) -> Result<Self> {
        let (inner, new) = device.take_scoped_stream(options)?;
        let stream = Self(inner);
        if new {
            inner.log_made("a scoped stream");
        }
        Ok(stream)
    }

    /// The stream's device.
    pub fn device(&self) -> Device {
        self.0.device()
    }

    pub(crate) fn inner(&self) -> &'static StreamInner {
        self.0
    }

    /// Uses the stream. What `f` returns cannot hold anything that the stream orders.
    pub fn enter<T>(&self, f: impl for<'l> FnOnce(&Stream<Scoped<'l>>) -> T) -> T {
        f(&Stream::of(self.0))
    }
}

impl Drop for AnyStream {
    fn drop(&mut self) {
        if !guard::forked() {
            self.0.device().recycle_stream(self.0);
        }
    }
}

/// A fixed number of streams that threads use in turn.
///
/// Each use gets the stream that came back the longest ago, so even a single thread goes through
/// all of them. If all are in use, the thread waits for one.
///
/// ```
/// use thalweg::{Device, StreamPool};
///
/// let pool = StreamPool::new(Device::best()?, 2)?;
/// std::thread::scope(|threads| {
///     for i in 0..8u32 {
///         let pool = &pool;
///         threads.spawn(move || {
///             let seen = pool.with_stream(|s| {
///                 let mut x = s.alloc::<u32>(10)?;
///                 s.fill(&mut x, i)?;
///                 s.read_blocking(&x)
///             });
///             assert_eq!(seen.unwrap(), [i; 10]);
///         });
///     }
/// });
/// # Ok::<(), thalweg::Error>(())
/// ```
pub struct StreamPool {
    device: Device,
    streams: usize,
    free: Mutex<VecDeque<AnyStream>>,
    returned: Condvar,
}

/// The most streams of a pool. A GPU runs at most 128 at a time.
const MOST_STREAMS: usize = 4096;

impl StreamPool {
    /// Makes a pool of `streams` streams.
    ///
    /// # Errors
    /// `streams` is 0 or more than 4096, a stream cannot be made, or the device has failed.
    pub fn new(device: Device, streams: usize) -> Result<Self> {
        // Streams are never destroyed, so a wrong number would cost the process its threads, and a
        // GPU its memory, for good.
        if !(1..=MOST_STREAMS).contains(&streams) {
            let expected = format!("1 to {MOST_STREAMS}");
            return Err(Error::Parameter { name: "streams", given: streams.to_string(), expected });
        }
        let free = (0..streams).map(|_| AnyStream::new(device)).collect::<Result<_>>()?;
        Ok(Self { device, streams, free: Mutex::new(free), returned: Condvar::new() })
    }

    /// The streams' device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the number of streams.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Uses a stream that nobody else is using. If all are in use, the call waits for one. A
    /// closure that takes a second stream of the same pool may wait for itself.
    pub fn with_stream<T>(&self, f: impl for<'l> FnOnce(&Stream<Scoped<'l>>) -> T) -> T {
        let mut free = lock(&self.free);
        let stream = loop {
            match free.pop_front() {
                Some(stream) => break stream,
                None => free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(free);
        let lent = Lent { pool: self, stream: Some(stream) };
        match &lent.stream {
            Some(stream) => stream.enter(f),
            None => unreachable!("only `drop` takes it"),
        }
    }
}

/// A stream on loan. It goes back to the pool when the closure returns or panics.
struct Lent<'p> {
    pool: &'p StreamPool,
    stream: Option<AnyStream>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        lock(&self.pool.free).extend(self.stream.take());
        self.pool.returned.notify_one();
    }
}

impl fmt::Debug for StreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamPool")
            .field("device", &self.device)
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// The streams of this thread. They are recycled when the thread ends.
    static PER_THREAD: RefCell<Vec<AnyStream>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    /// Uses the calling thread's own stream of this device. The first use makes it.
    ///
    /// ```
    /// use thalweg::Device;
    ///
    /// let gpu = Device::best()?;
    /// let sum = gpu.per_thread(|s| {
    ///     let mut x = s.alloc::<u32>(10)?;
    ///     s.fill(&mut x, 5)?;
    ///     Ok::<u32, thalweg::Error>(s.read_blocking(&x)?.iter().sum())
    /// })?;
    /// assert_eq!(sum?, 50);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The stream cannot be made, or the thread is ending.
    pub fn per_thread<T>(self, f: impl for<'l> FnOnce(&Stream<PerThread<'l>>) -> T) -> Result<T> {
        let stream = PER_THREAD.try_with(|streams| {
            let mut streams = streams.borrow_mut();
            if let Some(stream) = streams.iter().find(|s| s.device() == self) {
                return Ok((stream.0, false));
            }
            let (inner, new) = self.take_scoped_stream(StreamOptions::default())?;
            streams.push(AnyStream(inner));
            Ok::<_, Error>((inner, new))
        });
        let ended = |_| Error::Thread { reason: "this thread is ending and has given its streams back".into() };
        let (stream, new) = stream.map_err(ended)??;
        if new {
            // Without the borrow, because the logger is code of the user, which may come here too.
            stream.log_made("a scoped stream");
        }
        Ok(f(&Stream::of(stream)))
    }
}
