//! Device memory for copies between devices.

use std::fmt;

use thalweg_simt::host::DeviceSlice;

use super::{DeviceBuffer, DeviceCopy};
use crate::brand::Brand;
use crate::resource::{Leaf, LeafInfo, LeafKind, LeafResource, On, Producer, Resource, Token};
use crate::runtime::device::Device;
use crate::stream::Stream;

/// A [`DeviceBuffer`] that streams of other devices may wait for and copy from and to, but not use
/// otherwise.
///
/// A kernel of another device must not get it. So it dereferences to [`PeerSlice`], which
/// [`Stream::copy_from_peer`] and [`Stream::copy_to_peer`] take and no launch takes.
///
/// ```
/// use thalweg::{Device, PeerBuffer, stream_tags};
///
/// stream_tags!(Here, There);
/// let (a, b) = (Device::cpu()?, Device::new_cpu()?);
/// let (here, there) = (a.stream::<Here>()?, b.stream::<There>()?);
/// let mut source = here.alloc::<u32>(4)?;
/// here.fill(&mut source, 7)?;
/// let source = here.record(source)?.map_peer();
/// let source = there.wait(source)?; // device-side: `there` waits for the fill on the other device
/// let mut copy = there.alloc::<u32>(4)?;
/// there.copy_from_peer(&source, &mut copy)?;
/// assert_eq!(there.read_blocking(&copy)?, [7; 4]);
/// # Ok::<(), thalweg::Error>(())
/// ```
pub struct PeerBuffer<T: DeviceCopy>(DeviceBuffer<T>);

impl<T: DeviceCopy> PeerBuffer<T> {
    /// Lets streams of other devices copy from and to the buffer.
    pub fn new(buffer: DeviceBuffer<T>) -> Self {
        Self(buffer)
    }

    /// The buffer, for its own device.
    pub fn into_inner(self) -> DeviceBuffer<T> {
        self.0
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.0.device
    }
}

impl<T: DeviceCopy> fmt::Debug for PeerBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerBuffer").field(&self.0).finish()
    }
}

/// Elements that stream `S` orders, in the memory of a device that may differ from the stream's
/// device.
#[repr(transparent)]
pub struct PeerSlice<S, T>(DeviceSlice<S, T>);

impl<S, T> PeerSlice<S, T> {
    pub(crate) fn raw(&self) -> &DeviceSlice<S, T> {
        &self.0
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<S, T> fmt::Debug for PeerSlice<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<S: Brand, T: DeviceCopy> On<S, PeerBuffer<T>> {
    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.leaf().device()
    }
}

// SAFETY: [parts] The buffer is one leaf. Each method visits it or moves it once, without touching
// the memory, and runs no other code.
unsafe impl<T: DeviceCopy> Resource for PeerBuffer<T> {
    type On<S: Brand> = On<S, Self>;
    fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit) {
        self.0.__leaves(&mut |leaf| visit(LeafInfo { kind: LeafKind::Peer, ..leaf }));
    }
    fn __drain<Sink: FnMut(Leaf)>(&mut self, sink: &mut Sink, token: Token) {
        self.0.__drain(sink, token);
    }
    fn __bind<S: Brand>(self, stream: Stream<S>, _: Token) -> On<S, Self> {
        On::new(self, stream)
    }
    fn __alias<S: Brand>(&self, stream: Stream<S>, token: Token) -> On<S, Self> {
        On::alias(self.__copy(token), stream)
    }
    fn __producers<Visit: FnMut(Producer<'_>)>(&self, _: &mut Visit) {}
}

// SAFETY: [parts] `LeafResource` is for buffers of this crate, and this is one.
unsafe impl<T: DeviceCopy> LeafResource for PeerBuffer<T> {
    type Slice<S: Brand> = PeerSlice<S, T>;
    fn __slice<S: Brand>(&self, token: Token) -> &PeerSlice<S, T> {
        let slice: *const DeviceSlice<S, T> = self.0.__slice(token);
        // SAFETY: [order] `PeerSlice` is a transparent wrapper of `DeviceSlice`, and the pointer
        // comes from a reference with the lifetime of the result.
        unsafe { &*(slice as *const PeerSlice<S, T>) }
    }
    fn __slice_mut<S: Brand>(&mut self, token: Token) -> &mut PeerSlice<S, T> {
        let slice: *mut DeviceSlice<S, T> = self.0.__slice_mut(token);
        // SAFETY: [order] `PeerSlice` is a transparent wrapper of `DeviceSlice`, and the pointer
        // comes from a reference with the lifetime of the result.
        unsafe { &mut *(slice as *mut PeerSlice<S, T>) }
    }
    fn __copy(&self, token: Token) -> Self {
        Self(self.0.__copy(token))
    }
}
