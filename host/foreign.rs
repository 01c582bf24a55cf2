//! Streams that other code made.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use crate::any_stream::AnyStream;
use crate::brand::{Brand, LiveBrand, sealed};
use crate::driver::Adopted;
use crate::error::{Error, Result};
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
/// A value of this type keeps about 200 bytes and one event until the process ends, so make one for
/// each stream and keep it.
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
        inner.inspect(|inner| inner.log_made("a foreign stream")).map(Self::of).ok_or_else(|| Error::Parameter {
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

    fn of(inner: &'static StreamInner) -> Self {
        Self { inner, _stand_in: None, here: PhantomData }
    }

    /// The adopted stream; without one, on the CPU device, a stream of ours in its place.
    fn or_stand_in(device: Device, adopted: Option<&'static StreamInner>) -> Result<Self> {
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
