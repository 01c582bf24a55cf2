//! Streams: FIFO queues of a device, whose identity is a type.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU32;

use thalweg_simt::host::{DeviceSlice, HostSlice};

use crate::device::{Device, DeviceKind};
use crate::driver::{Fault, Pattern, StreamHandle, guard};
use crate::error::{Error, Result, Returned};
use crate::event::{Event, EventCell, Lease, TimedEvent};
use crate::memory::{DeviceBuffer, LeafKind, PeerSlice, Plain, byte_len, element};
use crate::resource::{Bundle, On, Resource, Token};
use crate::shared::{Reading, Shared};
use crate::tally::Stall;

/// The type that names a stream: what [`stream_tags!`](crate::stream_tags) declares.
///
/// Every `'static` type can be one. A tag is bound once, for the life of the process, to one stream of one
/// device, and equal types mean the same stream; so no operation checks anything, tags fit in
/// structs, statics and threads, and the compiler's message names both streams.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream tag",
    note = "declare one with `stream_tags!({Self})`; streams known only at run time are lanes: `pool.lane(|s| ...)`"
)]
pub trait Tag: 'static {}

/// What stands for a stream in types: a [`StreamTag`], or the brand of a stream under [`capture`](Stream::capture).
///
/// What is generic over it can run and be captured: copies, fills, kernel launches, and functions of those.
///
/// ```
/// use thalweg::{Brand, DeviceBuffer, On, Result, Stream};
///
/// fn clear<S: Brand>(s: &Stream<S>, images: &mut [On<S, DeviceBuffer<u8>>]) -> Result<()> {
///     images.iter_mut().try_for_each(|image| s.zero(image))
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not stand for a stream",
    note = "stream tags do, which `stream_tags!` declares, and the brands of lanes and captures"
)]
pub trait Brand: sealed::Sealed {}

/// A [`Tag`], or the brand of a [`Lane`](crate::Lane) or of a [`PerThread`](crate::PerThread) stream: a stream that runs
/// what it is given, so that memory can be allocated on it and events be recorded.
#[diagnostic::on_unimplemented(
    message = "stream `{Self}` cannot do this",
    note = "a stream under capture takes copies, fills and kernel launches only, of the buffers that the capture was given: allocate, bind, record, wait and synchronize before it or after it",
    note = "other streams are named by tags, which `stream_tags!` declares"
)]
pub trait StreamTag: Brand {}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl<S: super::Tag> Sealed for S {}
}

impl<S: Tag> Brand for S {}
impl<S: Tag> StreamTag for S {}

/// The tag of a stream inside an object of which there are several: `In<I, Upload>` is another stream for each
/// instance tag `I`.
///
/// ```
/// use thalweg::{Device, In, Stream, Tag, stream_tags};
///
/// stream_tags!(Upload, Compute);
///
/// struct Pipeline<I: Tag> {
///     up: Stream<In<I, Upload>>,
///     compute: Stream<In<I, Compute>>,
/// }
///
/// impl<I: Tag> Pipeline<I> {
///     fn new(gpu: Device) -> thalweg::Result<Self> {
///         Ok(Self { up: gpu.stream()?, compute: gpu.stream()? })
///     }
/// }
///
/// stream_tags!(Left, Right);
/// let gpu = Device::best()?;
/// let (left, right) = (Pipeline::<Left>::new(gpu)?, Pipeline::<Right>::new(gpu)?);
/// assert_ne!(left.up.serial(), right.up.serial());
/// assert_ne!(left.up.serial(), left.compute.serial());
/// # Ok::<(), thalweg::Error>(())
/// ```
pub struct In<I, S>(PhantomData<(I, S)>);

impl<I: Tag, S: Tag> Tag for In<I, S> {}

impl<I, S> fmt::Debug for In<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<Self>())
    }
}

/// Declares stream tags: types without values, each of which names one stream. Works inside functions too.
///
/// ```
/// thalweg::stream_tags! {
///     /// Host to device.
///     pub Upload,
///     pub(crate) Compute,
///     Download,
/// }
/// ```
#[macro_export]
macro_rules! stream_tags {
    ($($(#[$meta:meta])* $vis:vis $name:ident),+ $(,)?) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        #[allow(dead_code)]
        $vis enum $name {}
        impl $crate::Tag for $name {}
    )+};
}

/// How a stream is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Smaller is more urgent; within [`Device::priorities`]. A scheduling hint: blocks of an urgent stream start first, running
    /// ones are not interrupted, and copies are not affected. The CPU device keeps it and makes no use of it.
    pub priority: i32,
}

impl StreamOptions {
    /// These options with another priority.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

/// A stream of a device; parked, never destroyed, so that handles are free to copy.
pub(crate) struct StreamInner {
    device: Device,
    handle: StreamHandle,
    serial: u64,
    /// As the driver reports it.
    priority: i32,
    /// Recorded by `hand`. Only ever on this stream, so that whoever waits for the newest record waits
    /// for every older one too, and two threads may use it at once.
    hand: EventCell,
}

impl StreamInner {
    pub(crate) fn new(device: Device, handle: StreamHandle, priority: i32, hand: EventCell) -> Self {
        static SERIAL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self { device, handle, serial, priority, hand }
    }

    #[inline]
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// An event recorded now.
    #[inline]
    #[track_caller]
    pub(crate) fn lease(&self) -> Result<Lease> {
        self.device.usable()?;
        let cell = self.device.take_event()?;
        match self.handle.record(cell.handle()) {
            Ok(()) => Ok(Lease::new(cell)),
            Err(fault) => {
                self.device.recycle(cell);
                self.device.seen(Err(fault))
            }
        }
    }

    /// Makes the stream wait for an event of any device of its kind.
    #[inline]
    pub(crate) fn wait(&self, event: &Lease) -> Result<()> {
        self.device.usable()?;
        self.device.seen(self.handle.wait(event.handle()))
    }

    /// Frees in stream order; in doubt it leaks.
    #[inline]
    pub(crate) fn free(&self, addr: u64, bytes: usize) {
        // SAFETY: called once, by the buffer's owner, which the stream orders.
        let _ = unsafe { self.handle.free(addr, bytes) };
    }
}

impl fmt::Debug for StreamInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {}", self.serial, self.device)
    }
}

/// A stream: operations enqueued on it run in order, on the device, after the call has returned.
///
/// A handle, free to copy. `S` is its identity: an operation takes only buffers that the same stream orders
/// ([`On<S, _>`](On)), so work cannot meet a buffer that another stream may be using.
///
/// Every operation returns at once, unless its name says `blocking` or `synchronize`. An error of an earlier
/// operation may surface in a later call.
pub struct Stream<S> {
    inner: &'static StreamInner,
    /// Invariant in the tag.
    brand: PhantomData<fn(S) -> S>,
    /// Bound to a thread where the tag is.
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
    /// A handle on the stream of tag `S`.
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
        self.inner.handle
    }

    /// The stream's device.
    pub fn device(self) -> Device {
        self.inner.device
    }

    /// A number that no other stream of the process has or will have.
    pub fn serial(self) -> u64 {
        self.inner.serial
    }

    /// The stream's priority, as the driver reports it.
    pub fn priority(self) -> i32 {
        self.inner.priority
    }

    /// The driver's `CUstream`, for interoperation; `None` on the CPU device. It is never destroyed.
    pub fn raw(self) -> Option<*mut std::ffi::c_void> {
        match self.inner.handle {
            StreamHandle::Cuda(_, s) => Some(s.0.cast()),
            StreamHandle::Cpu(_) => None,
        }
    }
}

// What a stream under capture cannot do has its bound at the method, because there the compiler shows the trait's notes.
impl<S: Brand> Stream<S> {
    /// Calls into the device.
    #[inline]
    pub(crate) fn call<T>(self, f: impl FnOnce(StreamHandle) -> Result<T, Fault>) -> Result<T> {
        self.inner.device.usable()?;
        self.inner.device.seen(f(self.inner.handle))
    }

    // --- the three states ---------------------------------------------------------------------------

    /// Hands an idle resource to this stream. Nothing is enqueued.
    ///
    /// # Errors
    /// A part of it lives on another device; it comes back.
    pub fn bind<R: Resource>(self, resource: R) -> Result<R::On<S>, Returned<R>>
    where
        S: StreamTag,
    {
        match self.admits(&resource) {
            Ok(()) => Ok(resource.__bind(self, Token::new())),
            Err(error) => Err(Returned::new(error, resource)),
        }
    }

    /// Records an event: the resource leaves the stream, guarded until all work enqueued so far is done.
    ///
    /// # Errors
    /// The device has failed; the resource comes back, still on the stream.
    #[inline]
    #[track_caller]
    pub fn record<B: Bundle<S>>(self, bundle: B) -> Result<Event<B::Idle>, Returned<B>>
    where
        S: StreamTag,
    {
        // An event exists only after its record succeeded: CUDA reports an unrecorded one as complete.
        match self.inner.lease() {
            Ok(event) => Ok(Event::new(bundle.__unbind(Token::new()), event)),
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    /// Makes this stream wait, on the device, for the event; the resource is ordered by this stream from then on. The
    /// host does not wait.
    ///
    /// # Errors
    /// A part of the resource lives on another device, or the device has failed; the event comes back.
    #[inline]
    pub fn wait<R: Resource>(self, event: Event<R>) -> Result<R::On<S>, Returned<Event<R>>>
    where
        S: StreamTag,
    {
        let waited = self.admits(event.value()).and_then(|()| match event.lease() {
            Some(lease) => self.inner.wait(lease),
            None => self.inner.device.usable(),
        });
        match waited {
            Ok(()) => Ok(event.into_parts().0.__bind(self, Token::new())),
            Err(error) => Err(Returned::new(error, event)),
        }
    }

    /// Hands a resource to another stream: [`record`](Stream::record) here and [`wait`](Stream::wait) there, in one call.
    ///
    /// # Errors
    /// As of the two; the resource comes back, still on this stream.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Upload, Compute);
    /// let gpu = Device::best()?;
    /// let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    /// let mut image = up.alloc::<u8>(16)?;
    /// up.fill(&mut image, 1)?;
    /// let mut image = up.hand(image, &compute)?; // now `On<Compute, _>`
    /// compute.fill(&mut image, 2)?;
    /// assert_eq!(compute.read_blocking(&image)?, [2; 16]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    #[inline]
    pub fn hand<B: Bundle<S>, T: StreamTag>(
        self,
        bundle: B,
        to: &Stream<T>,
    ) -> Result<<B::Idle as Resource>::On<T>, Returned<B>>
    where
        S: StreamTag,
    {
        // In flight under an idle type: should the driver panic, it leaks rather than passes for idle.
        let idle = ManuallyDrop::new(bundle.__unbind(Token::new()));
        let handed = to.admits(&*idle).and_then(|()| {
            to.inner.device.usable()?;
            self.call(|from| from.hand(self.inner.hand.handle(), to.handle()))
        });
        let idle = ManuallyDrop::into_inner(idle);
        match handed {
            Ok(()) => Ok(idle.__bind(*to, Token::new())),
            // No order was lost: the resource is still this stream's.
            Err(error) => Err(Returned::new(error, idle.__bind(self, Token::new()))),
        }
    }

    /// Shares a resource for reading by any number of streams.
    ///
    /// # Errors
    /// The device has failed; the resource comes back.
    #[track_caller]
    pub fn share<B: Bundle<S>>(self, bundle: B) -> Result<Shared<B::Idle>, Returned<B>>
    where
        S: StreamTag,
    {
        match self.inner.lease() {
            Ok(event) => Ok(Shared::new(bundle.__unbind(Token::new()), event)),
            Err(error) => Err(Returned::new(error, bundle)),
        }
    }

    /// Reads a shared resource on this stream, which waits, on the device, for its producer.
    ///
    /// # Errors
    /// A part of it lives on another device, or the device has failed.
    pub fn read<R: Resource>(self, shared: &Shared<R>) -> Result<Reading<S, R>>
    where
        S: StreamTag,
    {
        self.admits(shared.value())?;
        self.inner.wait(shared.producer())?;
        Ok(Reading::new(shared, self))
    }

    /// Takes a shared resource back for this stream alone, which waits, on the device, for every reader.
    ///
    /// # Errors
    /// Other handles or readings are alive ([`Error::StillShared`]), a part of it lives on another device, or the device has
    /// failed; it comes back.
    pub fn unshare<R: Resource>(self, shared: Shared<R>) -> Result<R::On<S>, Returned<Shared<R>>>
    where
        S: StreamTag,
    {
        let waited = self
            .admits(shared.value())
            .and_then(|()| shared.readers()?.iter().try_for_each(|event| self.inner.wait(event)));
        match waited {
            Ok(()) => shared.into_value().map(|value| value.__bind(self, Token::new())),
            Err(error) => Err(Returned::new(error, shared)),
        }
    }

    /// Whether every part of a resource can be used on this stream.
    #[inline]
    fn admits<R: Resource>(self, resource: &R) -> Result<()> {
        let device = self.inner.device;
        let mut refused = None;
        resource.__leaves(&mut |leaf| {
            let admitted = match leaf.kind {
                LeafKind::Device => leaf.device == device,
                LeafKind::Pinned | LeafKind::Peer => leaf.device.kind() == device.kind(),
            };
            if !admitted {
                refused = Some(leaf.device);
            }
        });
        match refused {
            None => Ok(()),
            Some(other) => Err(Error::DeviceMismatch { resource: other.to_string(), stream: device.to_string() }),
        }
    }

    // --- memory ---------------------------------------------------------------------------------------

    /// Allocates `len` elements of device memory, in stream order. What they hold is arbitrary.
    ///
    /// # Errors
    /// The device is out of memory, or the bytes are more than an allocation can hold.
    #[track_caller]
    pub fn alloc<T: Plain>(self, len: usize) -> Result<On<S, DeviceBuffer<T>>>
    where
        S: StreamTag,
    {
        const { element::<T>() }
        let bytes = byte_len::<T>(len)?;
        let device = self.inner.device;
        if bytes == 0 {
            let addr = crate::memory::EMPTY.addr().get() as u64;
            return Ok(On::new(DeviceBuffer::new(addr, 0, device), self));
        }
        device.usable()?;
        let _stall = device.stall(Stall::DeviceAllocation);
        let addr = self.inner.handle.alloc(bytes);
        let addr = device.seen(addr).map_err(|e| device.out_of_memory(e, bytes))?;
        Ok(On::new(DeviceBuffer::new(addr, len, device), self))
    }

    /// Allocates `len` elements of device memory, all bits zero.
    ///
    /// # Errors
    /// As [`alloc`](Stream::alloc).
    #[track_caller]
    pub fn alloc_zeroed<T: Plain>(self, len: usize) -> Result<On<S, DeviceBuffer<T>>>
    where
        S: StreamTag,
    {
        const { element::<T>() }
        let mut buffer = self.alloc(len)?;
        self.zero(&mut buffer)?;
        Ok(buffer)
    }

    /// Sets all bits to zero.
    ///
    /// # Errors
    /// The device has failed.
    pub fn zero<T: Plain>(self, slice: &mut DeviceSlice<S, T>) -> Result<()> {
        if slice.is_empty() {
            return Ok(());
        }
        // SAFETY: the slice is this stream's, as long as it says.
        self.call(|s| unsafe { s.fill(slice.device_ptr(), Pattern::U8(0), slice.byte_len()) })
    }

    /// Sets every element to `value`. `T` has 1, 2 or 4 bytes.
    ///
    /// # Errors
    /// The device has failed.
    pub fn fill<T: Plain>(self, slice: &mut DeviceSlice<S, T>, value: T) -> Result<()> {
        const {
            assert!(matches!(size_of::<T>(), 1 | 2 | 4), "fill takes elements of 1, 2 or 4 bytes");
        }
        if slice.is_empty() {
            return Ok(());
        }
        let bytes = bytemuck::bytes_of(&value);
        let pattern = match *bytes {
            [a] => Pattern::U8(a),
            [a, b] => Pattern::U16(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => Pattern::U32(u32::from_ne_bytes([a, b, c, d])),
            _ => unreachable!("asserted above"),
        };
        // SAFETY: the slice is this stream's, with `len` elements of the pattern's size.
        self.call(|s| unsafe { s.fill(slice.device_ptr(), pattern, slice.len()) })
    }

    /// Copies page-locked memory to the device.
    ///
    /// # Errors
    /// The lengths differ, or the device has failed.
    pub fn copy_to_device<T: Plain>(self, from: &HostSlice<S, T>, to: &mut DeviceSlice<S, T>) -> Result<()> {
        equal_lengths(from.len(), to.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: both slices are this stream's and equally long.
        self.call(|s| unsafe { s.copy_to_device(to.device_ptr(), from.host_ptr(), from.byte_len()) })
    }

    /// Copies device memory to page-locked memory.
    ///
    /// # Errors
    /// The lengths differ, or the device has failed.
    pub fn copy_to_host<T: Plain>(self, from: &DeviceSlice<S, T>, to: &mut HostSlice<S, T>) -> Result<()> {
        equal_lengths(from.len(), to.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: both slices are this stream's and equally long.
        self.call(|s| unsafe { s.copy_to_host(to.host_ptr(), from.device_ptr(), from.byte_len()) })
    }

    /// Copies within the device.
    ///
    /// # Errors
    /// The lengths differ, or the device has failed.
    pub fn copy<T: Plain>(self, from: &DeviceSlice<S, T>, to: &mut DeviceSlice<S, T>) -> Result<()> {
        equal_lengths(from.len(), to.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: both slices are this stream's and equally long.
        self.call(|s| unsafe { s.copy(to.device_ptr(), from.device_ptr(), from.byte_len()) })
    }

    /// Copies from a buffer that may be another device's. No graph can hold such a copy.
    ///
    /// # Errors
    /// The lengths differ, or a device has failed.
    pub fn copy_from_peer<T: Plain>(self, from: &On<S, crate::PeerBuffer<T>>, to: &mut DeviceSlice<S, T>) -> Result<()>
    where
        S: StreamTag,
    {
        let source: &PeerSlice<S, T> = from;
        equal_lengths(source.len(), to.len())?;
        if to.is_empty() {
            return Ok(());
        }
        let (there, here) = (from.device().driver(), self.inner.device.driver());
        let (from, to, bytes) = (source.raw().device_ptr(), to.device_ptr(), to.byte_len());
        // SAFETY: both are this stream's and equally long, each with its own device.
        self.call(|s| unsafe { s.copy_peer((here, to), (there, from), bytes) })
    }

    /// Copies to a buffer that may be another device's. No graph can hold such a copy.
    ///
    /// # Errors
    /// The lengths differ, or a device has failed.
    pub fn copy_to_peer<T: Plain>(self, from: &DeviceSlice<S, T>, to: &mut On<S, crate::PeerBuffer<T>>) -> Result<()>
    where
        S: StreamTag,
    {
        let target: &PeerSlice<S, T> = to;
        equal_lengths(from.len(), target.len())?;
        if from.is_empty() {
            return Ok(());
        }
        let (there, here) = (to.device().driver(), self.inner.device.driver());
        let (to, from, bytes) = (target.raw().device_ptr(), from.device_ptr(), from.byte_len());
        // SAFETY: both are this stream's and equally long, each with its own device.
        self.call(|s| unsafe { s.copy_peer((there, to), (here, from), bytes) })
    }

    /// Copies ordinary memory to the device and waits until it is there: convenient, slow, and the serial baseline.
    ///
    /// # Errors
    /// The lengths differ, or the device has failed.
    #[track_caller]
    pub fn write_blocking<T: Plain>(self, from: &[T], to: &mut DeviceSlice<S, T>) -> Result<()>
    where
        S: StreamTag,
    {
        equal_lengths(from.len(), to.len())?;
        let _stall = self.inner.device.stall(Stall::BlockingCopy);
        if from.is_empty() {
            return Ok(());
        }
        if self.inner.device.kind() == DeviceKind::Cpu {
            // Its streams copy later, from memory of ours.
            let staged = self.bind(self.inner.device.pinned_from(from)?)?;
            self.copy_to_device(&staged, to)?;
            return self.synchronize();
        }
        self.inner.device.usable()?;
        let addr = from.as_ptr().expose_provenance() as u64;
        // SAFETY: `from` is borrowed until `outlast` returns, which is after the stream has passed the copy or can run it no more.
        let copied = self.call(|s| unsafe { s.copy_to_device(to.device_ptr(), addr, to.byte_len()) });
        let waited = self.outlast();
        copied.and(waited).and_then(|()| self.inner.device.check())
    }

    /// Waits until no work enqueued so far can touch memory that the caller is about to have back.
    ///
    /// A wait that fails says nothing about that work, unless CUDA documents that nothing runs after such a failure. The caller's
    /// memory cannot be leaked, so the process ends where the driver cannot say.
    fn outlast(self) -> Result<()> {
        let mut first = Ok(());
        // An earlier call's failure is reported once, and the next wait waits.
        for _ in 0..3 {
            match self.inner.handle.synchronize() {
                Ok(()) => return first,
                Err(fault) => {
                    let over = fault.ends_all_work();
                    let error = self.inner.device.seen::<()>(Err(fault));
                    first = first.and(error);
                    if over {
                        return first;
                    }
                }
            }
        }
        eprintln!(
            "thalweg: a copy from memory of the caller may still be running, and the driver cannot wait for it: {first:?}"
        );
        std::process::abort()
    }

    /// The elements, once all work enqueued so far is done: convenient, slow, and the serial baseline.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn read_blocking<T: Plain>(self, from: &DeviceSlice<S, T>) -> Result<Vec<T>>
    where
        S: StreamTag,
    {
        let _stall = self.inner.device.stall(Stall::BlockingCopy);
        if from.is_empty() {
            self.synchronize()?;
            return Ok(Vec::new());
        }
        if self.inner.device.kind() == DeviceKind::Cpu {
            let mut staged = self.bind(self.inner.device.pinned(from.len())?)?;
            self.copy_to_host(from, &mut staged)?;
            return Ok(self.record(staged)?.synchronize()?.to_vec());
        }
        self.inner.device.usable()?;
        // Where the wait fails it leaks.
        let mut to = ManuallyDrop::new(vec![T::zeroed(); from.len()]);
        let addr = to.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: `to` is neither touched nor freed before a wait for the stream, which is past the copy then, has succeeded.
        let copied = self.call(|s| unsafe { s.copy_to_host(addr, from.device_ptr(), from.byte_len()) });
        let waited = self.call(StreamHandle::synchronize);
        copied.and(waited)?;
        let to = ManuallyDrop::into_inner(to);
        self.inner.device.check()?;
        Ok(to)
    }

    /// A new device buffer with the elements of `data`; waits until they are there.
    ///
    /// # Errors
    /// As [`alloc`](Stream::alloc) and [`write_blocking`](Stream::write_blocking).
    #[track_caller]
    pub fn upload_blocking<T: Plain>(self, data: &[T]) -> Result<On<S, DeviceBuffer<T>>>
    where
        S: StreamTag,
    {
        const { element::<T>() }
        let _stall = self.inner.device.stall(Stall::BlockingCopy);
        let mut buffer = self.alloc(data.len())?;
        self.write_blocking(data, &mut buffer)?;
        Ok(buffer)
    }

    // --- time and host ---------------------------------------------------------------------------------

    /// A point in the stream's time, for measuring.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn timestamp(self) -> Result<TimedEvent>
    where
        S: StreamTag,
    {
        self.inner.device.usable()?;
        let stall = self.inner.device.stall(Stall::EventCreation);
        let cell = EventCell::new(self.inner.device, true)?;
        drop(stall);
        self.call(|s| s.record(cell.handle()))?;
        Ok(TimedEvent::new(cell))
    }

    /// Runs `f` on a thread of the driver once the stream comes to it; what follows on the stream waits for it.
    ///
    /// `f` must not call into a device: that gives [`Error::InHostFunction`]. It may drop resources, whose memory is then given
    /// back by another thread; a [`Reading`] dropped in it leaks its resource, because it cannot be recorded. A panic is caught and reported by [`Device::check`] and [`synchronize`](Stream::synchronize).
    ///
    /// # Errors
    /// The device has failed; `f` is dropped.
    pub fn launch_host(self, f: impl FnOnce() + Send + 'static) -> Result<()>
    where
        S: StreamTag,
    {
        let device = self.inner.device;
        let mut f = HostFunction(Some(f));
        let guarded = move || {
            let run = std::panic::AssertUnwindSafe(|| f.run());
            if let Err(panic) = std::panic::catch_unwind(run) {
                let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                    (Some(s), _) => (*s).to_owned(),
                    (_, Some(s)) => s.clone(),
                    _ => "a value that is no text".to_owned(),
                };
                // The payload is the user's; dropping it may panic again, and there is nobody left to catch it.
                std::mem::forget(panic);
                device.defer(Error::HostFunctionPanicked { message });
            }
        };
        self.call(|s| s.launch_host(Box::new(guarded)))
    }

    /// Blocks the stream until the word in page-locked memory is at least `value`: a gate for tests.
    ///
    /// # Safety
    /// `flag` lies in page-locked memory, is aligned, and stays valid until the stream is past this point.
    ///
    /// # Errors
    /// The device has failed or does not support it.
    pub unsafe fn wait_value(self, flag: *const AtomicU32, value: u32) -> Result<()>
    where
        S: StreamTag,
    {
        // SAFETY: the caller's promise.
        self.call(|s| unsafe { s.wait_value(flag, value) })
    }

    /// Waits on the host until all work enqueued so far is done.
    ///
    /// # Errors
    /// The device has failed, or a host function has panicked.
    #[track_caller]
    pub fn synchronize(self) -> Result<()>
    where
        S: StreamTag,
    {
        let _stall = self.inner.device.stall(Stall::Synchronize);
        self.call(StreamHandle::synchronize)?;
        self.inner.device.check()
    }

    /// Whether all work enqueued so far is done. Does not wait.
    ///
    /// # Errors
    /// The device has failed.
    pub fn is_done(self) -> Result<bool>
    where
        S: StreamTag,
    {
        self.call(StreamHandle::is_done)
    }
}

/// A host function: called, or dropped by a queue that passes it over, as one.
struct HostFunction<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> HostFunction<F> {
    fn run(&mut self) {
        if let Some(f) = self.0.take() {
            guard::as_host_function(f);
        }
    }
}

impl<F: FnOnce()> Drop for HostFunction<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            guard::as_host_function(|| drop(f));
        }
    }
}

fn equal_lengths(source_len: usize, destination_len: usize) -> Result<()> {
    if source_len == destination_len { Ok(()) } else { Err(Error::LengthMismatch { source_len, destination_len }) }
}
