//! Streams: FIFO queues of a device, each identified by a type.
//!
//! The operations on resources are in `transitions`, `copies`, `shared`, `graph`, `kernel` and
//! `host_function`.

use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Mutex;

use crate::brand::{LiveBrand, Tag};
use crate::driver::{Fault, StreamHandle, trace};
use crate::error::{Error, Result};
use crate::lock;
use crate::runtime::device::Device;
use crate::runtime::stream::{StreamInner, StreamOptions};
use crate::runtime::sync_stats::HostWait;

/// A stream. The device runs its operations in order while the host continues.
///
/// This is a handle that costs nothing to copy. `S` is the identity of the stream: an operation
/// takes only buffers that the same stream orders ([`On<S, _>`](crate::On)), so its work cannot
/// meet a buffer that another stream may be using.
///
/// Operations enqueue work and do not wait for it, unless their name says `blocking` or
/// `synchronize`. An error of an earlier operation may surface in a later call.
pub struct Stream<S> {
    inner: &'static StreamInner,
    /// Invariant in the tag.
    brand: PhantomData<fn(S) -> S>,
    /// Makes the stream `Send` and `Sync` only if the tag is.
    tag: PhantomData<S>,
}

impl<S> Clone for Stream<S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Stream<S> {}

impl<S> fmt::Debug for Stream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream<{}>({:?})", std::any::type_name::<S>(), self.inner)
    }
}

impl<S> Stream<S> {
    /// A handle on this stream under brand `S`.
    #[inline]
    pub(crate) fn of(inner: &'static StreamInner) -> Self {
        Self { inner, brand: PhantomData, tag: PhantomData }
    }

    #[inline]
    pub(crate) fn inner(self) -> &'static StreamInner {
        self.inner
    }

    #[inline]
    pub(crate) fn handle(self) -> StreamHandle {
        self.inner.handle()
    }

    /// The stream's device.
    pub fn device(self) -> Device {
        self.inner.device()
    }

    /// A number that no other stream of the process has or will have. It is not the number of
    /// `cuStreamGetId`.
    pub fn unique_id(self) -> u64 {
        self.inner.unique_id()
    }

    /// The stream's priority, as the driver reports it: one of [`Device::priorities`], where
    /// smaller is more urgent.
    pub fn priority(self) -> i32 {
        self.inner.priority()
    }

    /// Whether other code made the stream ([`ForeignStream`](crate::ForeignStream)), so that it
    /// exists only as long as that code says. The stream that takes its place on a CPU device is
    /// not foreign.
    pub fn is_foreign(self) -> bool {
        self.inner.is_foreign()
    }

    /// The driver's `CUstream`, for interoperation, or `None` on the CPU device. It is never
    /// destroyed.
    pub fn raw(self) -> Option<*mut std::ffi::c_void> {
        self.handle().raw()
    }
}

// Methods that a stream under capture cannot do have the bound `LiveBrand` at the method, because
// the compiler shows the trait's notes there.
impl<S> Stream<S> {
    /// Calls the driver, if the device is usable, and turns its fault into an error.
    #[inline]
    #[track_caller]
    pub(crate) fn call<T>(self, f: impl FnOnce(StreamHandle) -> Result<T, Fault>) -> Result<T> {
        let device = self.device();
        device.ensure_usable()?;
        let _here = trace::here();
        device.seen(f(self.handle()))
    }

    /// Waits on the host until all work enqueued so far is done.
    ///
    /// # Errors
    /// The device has failed, or a host function has panicked.
    #[track_caller]
    pub fn synchronize(self) -> Result<()>
    where
        S: LiveBrand,
    {
        let _wait = self.device().host_wait(HostWait::Synchronize);
        self.call(StreamHandle::synchronize)?;
        self.device().check()
    }

    /// Whether all work enqueued so far is done. Does not wait.
    ///
    /// # Errors
    /// The device has failed.
    pub fn is_complete(self) -> Result<bool>
    where
        S: LiveBrand,
    {
        self.call(StreamHandle::is_complete)
    }
}

/// The streams of tags: those of the process, or those of a [scope](Device::scope). Two tags are
/// the same stream of a table exactly if they are the same type.
#[derive(Debug, Default)]
pub(crate) struct Tags(Mutex<Option<HashMap<TypeId, &'static StreamInner>>>);

impl Tags {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The stream of tag `S`. If the table has none, `make` makes it.
    ///
    /// # Errors
    /// The table has one of another device or priority, the device has failed, or `make` failed.
    pub(crate) fn stream<S: Tag>(
        &self,
        device: Device,
        options: StreamOptions,
        make: impl FnOnce() -> Result<&'static StreamInner>,
    ) -> Result<&'static StreamInner> {
        device.ensure_usable()?;
        let mut table = lock(&self.0);
        let tags = table.get_or_insert_default();
        if let Some(&inner) = tags.get(&TypeId::of::<S>()) {
            if inner.device() != device || inner.priority() != options.priority {
                return Err(Error::TagBound {
                    tag: std::any::type_name::<S>(),
                    bound: inner.device().to_string(),
                    priority: inner.priority(),
                });
            }
            return Ok(inner);
        }
        let inner = make()?;
        tags.insert(TypeId::of::<S>(), inner);
        drop(table);
        inner.log_made(std::any::type_name::<S>());
        Ok(inner)
    }

    /// Takes all streams.
    pub(crate) fn take(&self) -> impl Iterator<Item = &'static StreamInner> {
        lock(&self.0).take().into_iter().flat_map(HashMap::into_values)
    }
}

impl Device {
    /// The stream of tag `S`, with the default options. The first call makes it.
    ///
    /// A tag is bound to one stream of one device for the life of the process, and every call
    /// returns that stream.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Upload, Compute);
    /// let gpu = Device::best()?;
    /// let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The tag is bound to a stream of another device or priority ([`Error::TagBound`]), or the
    /// driver cannot make a stream.
    pub fn stream<S: Tag>(self) -> Result<Stream<S>> {
        self.stream_with(StreamOptions::default())
    }

    /// Like [`stream`](Device::stream), with options.
    ///
    /// # Errors
    /// The errors of [`stream`](Device::stream), and a priority that the device does not have.
    pub fn stream_with<S: Tag>(self, options: StreamOptions) -> Result<Stream<S>> {
        static TAGS: Tags = Tags::new();
        TAGS.stream::<S>(self, options, || self.new_stream(options)).map(Stream::of)
    }
}
