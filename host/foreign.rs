//! Streams that other code made.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use thalweg_simt::host::DeviceSlice;

use crate::any_stream::AnyStream;
use crate::brand::{Brand, LiveBrand, sealed};
use crate::driver::Adopted;
use crate::error::{Error, Result};
use crate::memory::{DeviceCopy, EMPTY, byte_len, element};
use crate::runtime::device::{Device, DeviceKind};
use crate::runtime::stream::StreamInner;
use crate::stream::Stream;

/// The brand of a stream inside [`ForeignStream::enter`].
///
/// Its lifetime is new at each call and belongs to the closure. So what this stream orders can
/// leave the closure only as an [`Event`](crate::Event), or by [`hand_off`](Stream::hand_off) to
/// another stream. It stays on its thread, because the default stream of a thread is another stream
/// on another thread.
pub struct Foreign<'f>(PhantomData<fn(&'f ()) -> &'f ()>, PhantomData<*const ()>);

impl sealed::Sealed for Foreign<'_> {}
impl Brand for Foreign<'_> {}
impl LiveBrand for Foreign<'_> {}

impl fmt::Debug for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Foreign")
    }
}

/// A stream that other code made: a library's own stream, or one of CUDA's default streams. Hand
/// buffers to it, let the other code work on them there, and hand them back. Both hand-overs are
/// waits on the device; the host waits for nothing.
///
/// The streams of this crate are non-blocking: they do not wait for the legacy default stream, and
/// it does not wait for them. Streams of other code usually do both. `docs/default-streams.md` says
/// what orders what, with a measured example.
///
/// ```
/// use thalweg::{Device, ForeignStream, stream_tags};
///
/// stream_tags!(Compute);
/// let gpu = Device::best()?;
/// let compute = gpu.stream::<Compute>()?;
/// let mut x = compute.alloc::<u32>(100)?;
/// compute.fill(&mut x, 1)?;
/// let theirs = ForeignStream::legacy(gpu)?; // for a library that uses the default stream
/// let x = theirs.enter(|s| {
///     let mut x = compute.hand_off(x, s)?; // their stream waits for ours
///     s.fill(&mut x, 2)?; // or a call of the library, with `s.raw()` and `x.device_ptr()`
///     Ok::<_, thalweg::Error>(s.hand_off(x, &compute)?) // ours waits for theirs
/// })?;
/// assert_eq!(compute.read_blocking(&x)?, [2; 100]);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// Values of one stream share about 200 bytes and an event, which stay until the process ends. So
/// one may make a value for each call.
#[derive(Debug)]
pub struct ForeignStream {
    inner: &'static StreamInner,
    /// The stream of ours that takes its place on a CPU device.
    _stand_in: Option<AnyStream>,
    /// Stays on its thread.
    here: PhantomData<*const ()>,
}

impl ForeignStream {
    /// Takes a stream that other code made, by the driver's handle of it (`CUstream`,
    /// `cudaStream_t`).
    ///
    /// # Safety
    /// The stream exists while this value does, and no code captures it into a graph meanwhile.
    ///
    /// # Errors
    /// The stream is not of the primary context of `device`, which the CUDA runtime and most
    /// libraries use, or `device` is a CPU device, or it has failed.
    pub unsafe fn from_raw(device: Device, stream: *mut c_void) -> Result<Self> {
        // SAFETY: [alive] The caller promises that the stream exists.
        let inner = unsafe { device.adopt_stream(Adopted::Raw(stream)) }?;
        inner.map(Self::of).ok_or_else(|| Error::Parameter {
            name: "stream",
            given: match device.kind() {
                DeviceKind::Cuda => "a stream of another context".into(),
                DeviceKind::Cpu => "a stream of the CUDA driver".into(),
            },
            expected: format!("a stream of the primary context of {device}"),
        })
    }

    /// The legacy default stream of a device: the stream 0 of CUDA programs that were not compiled
    /// for a default stream per thread.
    ///
    /// On the CPU device, which has no such stream, a stream like any other takes its place.
    ///
    /// # Errors
    /// The device has failed.
    pub fn legacy(device: Device) -> Result<Self> {
        // SAFETY: [alive] The legacy default stream always exists.
        Self::or_stand_in(device, unsafe { device.adopt_stream(Adopted::Legacy) }?)
    }

    /// The default stream of the calling thread, for libraries that were compiled with
    /// `--default-stream per-thread`.
    ///
    /// On the CPU device, which has no such stream, a stream like any other takes its place.
    ///
    /// # Safety
    /// No code captures the thread's default stream into a graph while this value exists. (The
    /// legacy default stream cannot be captured, so [`legacy`](Self::legacy) is safe.)
    ///
    /// # Errors
    /// The device has failed.
    pub unsafe fn per_thread(device: Device) -> Result<Self> {
        // SAFETY: [alive] The default stream of a thread exists while the thread does, and neither
        // this value nor its brand leaves the thread. The caller promises that nothing captures it.
        Self::or_stand_in(device, unsafe { device.adopt_stream(Adopted::PerThread) }?)
    }

    /// A stream of ours that takes the place of another library's on the CPU device, which has no
    /// other streams. Equal numbers are one stream, for as long as the process lives.
    ///
    /// This is for tests of code that takes foreign streams, and for programs that run it without a
    /// GPU.
    ///
    /// ```
    /// use thalweg::{Device, ForeignStream};
    ///
    /// let cpu = Device::cpu()?;
    /// let number = |n| ForeignStream::stand_in(cpu, n).map(|theirs| theirs.enter(|s| s.unique_id()));
    /// assert_eq!(number(7)?, number(7)?);
    /// assert_ne!(number(7)?, number(8)?);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// `device` is a GPU, or has failed.
    pub fn stand_in(device: Device, number: usize) -> Result<Self> {
        match device.kind() {
            DeviceKind::Cpu => device.stand_in_stream(number).map(Self::of),
            DeviceKind::Cuda => Err(Error::Parameter {
                name: "device",
                given: device.to_string(),
                expected: "a CPU device, since a GPU has the streams of other code".into(),
            }),
        }
    }

    /// Whether other code captures the stream into a graph now, or the driver does not say. Then no
    /// work may be enqueued for anything else.
    ///
    /// # Errors
    /// The device has failed.
    pub fn is_capturing(&self) -> Result<bool> {
        self.inner.device().ensure_usable()?;
        Ok(self.inner.handle().is_capturing())
    }

    fn of((inner, new): (&'static StreamInner, bool)) -> Self {
        if new {
            inner.log_made("a foreign stream");
        }
        Self { inner, _stand_in: None, here: PhantomData }
    }

    /// The adopted stream; without one, on the CPU device, a stream of ours in its place.
    fn or_stand_in(device: Device, adopted: Option<(&'static StreamInner, bool)>) -> Result<Self> {
        if let Some(inner) = adopted {
            return Ok(Self::of(inner));
        }
        let stream = AnyStream::new(device)?;
        Ok(Self { inner: stream.inner(), _stand_in: Some(stream), here: PhantomData })
    }

    /// The stream's device.
    pub fn device(&self) -> Device {
        self.inner.device()
    }

    /// Uses the stream. What `f` returns cannot hold anything that the stream orders.
    pub fn enter<T>(&self, f: impl for<'f> FnOnce(&Stream<Foreign<'f>>) -> T) -> T {
        f(&Stream::of(self.inner))
    }
}

impl<'f> Stream<Foreign<'f>> {
    /// Lends memory of other code to this stream, until [`enter`](ForeignStream::enter) returns:
    /// memory that a framework allocated for its own stream, and that kernels fill there.
    ///
    /// ```
    /// use thalweg::{Device, ForeignStream};
    ///
    /// let mut theirs = vec![0u32; 100]; // on a GPU: the memory of a tensor, and its stream
    /// let stream = ForeignStream::stand_in(Device::cpu()?, 0)?;
    /// stream.enter(|s| {
    ///     // SAFETY: Nobody else uses the vector until `synchronize` returns.
    ///     let x = unsafe { s.borrow::<u32>(theirs.as_mut_ptr().expose_provenance() as u64, 100) }?;
    ///     s.fill(x, 7)?;
    ///     s.synchronize()
    /// })?;
    /// assert_eq!(theirs, [7; 100]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Safety
    /// - `addr` is `len` elements of memory that this stream's device can use, and nobody has
    ///   another slice of them before `enter` returns.
    /// - The memory stays allocated until the work is done that is enqueued here, and whoever uses
    ///   it until then does so in the order of this stream. A framework that frees it in stream
    ///   order, as PyTorch does with what it allocated for this stream, may do that at any time.
    ///
    /// # Errors
    /// The address is not aligned for the elements or is not memory of this device, the elements
    /// are more than memory can hold, or the device has failed.
    #[track_caller]
    pub unsafe fn borrow<T: DeviceCopy>(self, addr: u64, len: usize) -> Result<&'f mut DeviceSlice<Foreign<'f>, T>> {
        const { element::<T>() }
        let bytes = byte_len::<T>(len)?;
        let device = self.device();
        device.ensure_usable()?;
        let refused = |expected: String| Err(Error::Parameter { name: "addr", given: format!("{addr:#x}"), expected });
        if len == 0 {
            // SAFETY: [order] A slice without elements is no memory.
            return Ok(unsafe { DeviceSlice::from_raw_mut(EMPTY.addr().get() as u64, 0) });
        }
        let aligned = if matches!(size_of::<T>(), 2 | 4) { size_of::<T>() } else { align_of::<T>() };
        if addr == 0 || !addr.is_multiple_of(aligned as u64) {
            return refused(format!("a multiple of {aligned}, for elements of {} bytes", size_of::<T>()));
        }
        if !device.seen(device.driver().owns(addr))? {
            return refused(format!("memory of {device}"));
        }
        self.trace_work("borrow", &[], &[(addr, bytes)]);
        // SAFETY: [order] The address is aligned. The caller promises that the memory holds `len`
        // elements, that no other slice of it exists during `'f`, and that this stream orders all
        // uses until the work is done.
        Ok(unsafe { DeviceSlice::from_raw_mut(addr, len) })
    }
}
