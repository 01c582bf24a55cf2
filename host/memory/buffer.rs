//! Device memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use log::debug;
use thalweg_simt::host::DeviceSlice;

use super::{DeviceCopy, byte_len, element, split};
use crate::brand::{Brand, LiveBrand};
use crate::error::{Error, Result, Returned};
use crate::resource::{Leaf, LeafInfo, LeafKind, LeafResource, On, Producer, Resource, Token};
use crate::runtime::device::Device;
use crate::runtime::memory::{DeviceBlock, Memory, Owned, When, give_back};
use crate::runtime::memory_log::Allocator;
use crate::runtime::sync_stats::HostWait;
use crate::stream::Stream;
use crate::trace;

/// Memory that no stream of ours allocated.
const ADOPTED: Allocator = Allocator { stream: None, tag: "adopted" };

/// `len` elements of `T` in device memory. The buffer is idle: no work on it is pending.
///
/// [`Stream::alloc`] makes one as [`On<S, DeviceBuffer<T>>`](On), and every operation takes that
/// form. The idle form is what an [`Event`](crate::Event) gives back to the host. It can be bound
/// to any stream of its device.
///
/// Dropping it frees the memory without waiting.
pub struct DeviceBuffer<T: DeviceCopy> {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) device: Device,
    pub(crate) memory: Owned<DeviceBlock>,
    pub(crate) element: PhantomData<T>,
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    #[track_caller]
    fn new(addr: u64, len: usize, device: Device, by: Allocator) -> Self {
        let bytes = len * size_of::<T>();
        let memory = if len == 0 { Owned::Empty } else { Owned::Whole(DeviceBlock::new(device, addr, bytes, by)) };
        Self { addr, len, device, memory, element: PhantomData }
    }

    /// Makes a buffer without elements, which takes no memory.
    pub fn empty(device: Device) -> Self {
        Self::new(super::EMPTY.addr().get() as u64, 0, device, ADOPTED)
    }

    /// Adopts memory that other code allocated with `cuMemAllocAsync` or from a memory pool.
    ///
    /// Dropping the buffer frees the memory with `cuMemFreeAsync`. If `len` is 0, the buffer does
    /// not own the memory and frees nothing.
    ///
    /// # Safety
    /// `addr` is such an allocation of at least `len` elements on `device`. It is aligned to 256
    /// bytes, as CUDA aligns every allocation. No work on it is pending, and nobody else uses or
    /// frees it.
    ///
    /// # Errors
    /// The elements need more bytes than an allocation can hold.
    #[track_caller]
    pub unsafe fn from_raw(device: Device, addr: u64, len: usize) -> Result<Self> {
        const { element::<T>() }
        trace::adopted(addr, byte_len::<T>(len)?);
        Ok(Self::new(addr, len, device, ADOPTED))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The address in device memory, for interoperation.
    pub fn device_ptr(&self) -> u64 {
        self.addr
    }

    /// Splits into `n` pieces of lengths that are as equal as possible. They own disjoint parts of
    /// the memory and travel separately. Dropping the last piece frees the whole memory. Pieces
    /// beyond the elements are empty.
    ///
    /// # Errors
    /// `n` is more than the number of elements and 65536 together, or there is no memory for a list
    /// of so many pieces. The buffer comes back.
    pub fn split_even(mut self, n: usize) -> Result<Vec<Self>, Returned<Self>> {
        self.cut_even(n, |piece| piece).map_err(|error| Returned::new(error, self))
    }

    /// Splits into pieces of these lengths, one after another. They own disjoint parts of the
    /// memory and travel separately; [`join`](Self::join) makes one buffer of them again.
    ///
    /// # Errors
    /// The lengths are not those of the whole buffer together. The buffer comes back.
    pub fn split_at_lengths(mut self, lens: &[usize]) -> Result<Vec<Self>, Returned<Self>> {
        self.cut_at_lengths(lens, |piece| piece).map_err(|error| Returned::new(error, self))
    }

    /// Takes the memory as `n` pieces. `wrap` puts each one in its state.
    fn cut_even<P>(&mut self, n: usize, wrap: impl Fn(Self) -> P) -> Result<Vec<P>> {
        split::admits(self.len, n)?;
        let list = split::list(n)?;
        Ok(self.pieces(split::pieces(self.len, n), list, wrap))
    }

    /// Takes the memory as pieces of these lengths.
    fn cut_at_lengths<P>(&mut self, lens: &[usize], wrap: impl Fn(Self) -> P) -> Result<Vec<P>> {
        let (ranges, list) = split::lengths(lens, self.len)?;
        Ok(self.pieces(ranges, list, wrap))
    }

    fn pieces<P>(
        &mut self,
        ranges: impl ExactSizeIterator<Item = Range<usize>>,
        list: Vec<P>,
        wrap: impl Fn(Self) -> P,
    ) -> Vec<P> {
        if ranges.len() == 0 {
            return list; // the buffer keeps its memory, and gives it back in its own state
        }
        let memory = self.memory.take();
        split::share(memory, ranges, list, |range, owner| wrap(self.part(range, owner)))
    }

    fn part(&self, range: Range<usize>, memory: Owned<DeviceBlock>) -> Self {
        Self {
            addr: self.addr + (range.start * size_of::<T>()) as u64,
            len: range.len(),
            device: self.device,
            memory,
            element: PhantomData,
        }
    }

    /// The length of the buffer that adjacent pieces make.
    fn whole<'p>(pieces: impl Iterator<Item = &'p Self> + Clone) -> Result<usize> {
        split::adjacent(pieces.clone().map(|p| (p.addr, p.len * size_of::<T>(), &p.memory)))?;
        Ok(pieces.map(|p| p.len).sum())
    }

    /// Joins pieces that a split of one buffer made, in their order, into one buffer.
    ///
    /// # Errors
    /// There are none, they are not pieces of one buffer, or they are not adjacent
    /// ([`Error::NotAdjacent`](crate::Error::NotAdjacent)). The pieces come back.
    pub fn join(pieces: Vec<Self>) -> Result<Self, Returned<Vec<Self>>> {
        split::join(pieces, |pieces| Self::whole(pieces.iter()), |first, len| first.len = len, drop)
    }
}

impl<S: LiveBrand, T: DeviceCopy> On<S, DeviceBuffer<T>> {
    /// Splits into `n` pieces of lengths that are as equal as possible. They own disjoint parts of
    /// the memory and travel separately. Dropping the last piece frees the whole memory, after the
    /// work of the other pieces. Pieces beyond the elements are empty.
    ///
    /// # Errors
    /// `n` is more than the number of elements and 65536 together, or there is no memory for a list
    /// of so many pieces. The buffer comes back.
    pub fn split_even(self, n: usize) -> Result<Vec<Self>, Returned<Self>> {
        split::cut_on(self, |buffer, on| buffer.cut_even(n, on))
    }

    /// Splits into pieces of these lengths, one after another. They own disjoint parts of the
    /// memory and travel separately.
    ///
    /// ```
    /// use thalweg::{Device, DeviceBuffer, On, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let work = Device::best()?.stream::<Work>()?;
    /// let mut pieces = work.upload_blocking(&[1u32, 2, 3, 4, 5])?.split_at_lengths(&[1, 4])?;
    /// work.fill(&mut pieces[0], 9)?;
    /// let whole = On::<Work, DeviceBuffer<u32>>::join(pieces)?;
    /// assert_eq!(work.read_blocking(&whole)?, [9, 2, 3, 4, 5]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The lengths are not those of the whole buffer together. The buffer comes back.
    pub fn split_at_lengths(self, lens: &[usize]) -> Result<Vec<Self>, Returned<Self>> {
        split::cut_on(self, |buffer, on| buffer.cut_at_lengths(lens, on))
    }

    /// Joins pieces that a split of one buffer made, in their order, into one buffer.
    ///
    /// # Errors
    /// There are none, they are not pieces of one buffer, or they are not adjacent
    /// ([`Error::NotAdjacent`](crate::Error::NotAdjacent)). The pieces come back.
    pub fn join(pieces: Vec<Self>) -> Result<Self, Returned<Vec<Self>>> {
        split::join_on(pieces, |pieces| DeviceBuffer::whole(pieces.iter().map(On::leaf)), |first, len| first.len = len)
    }
}

impl<T: DeviceCopy> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        give_back(Memory::Device(self.memory.take()), When::After(Vec::new()));
    }
}

impl<T: DeviceCopy> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("addr", &format_args!("{:#x}", self.addr))
            .field("len", &self.len)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

// SAFETY: [parts] The buffer is one leaf. Each method visits it or moves it once, without touching
// the memory, and runs no other code.
unsafe impl<T: DeviceCopy> Resource for DeviceBuffer<T> {
    type On<S: Brand> = On<S, Self>;
    fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit) {
        let (bytes, allocation) = (self.len * size_of::<T>(), self.memory.allocation());
        visit(LeafInfo {
            device: self.device,
            kind: LeafKind::Device,
            addr: self.addr,
            bytes,
            allocation,
            shared: false,
        });
    }
    fn __drain<Sink: FnMut(Leaf)>(&mut self, sink: &mut Sink, _: Token) {
        self.len = 0;
        sink(Leaf(Memory::Device(self.memory.take())));
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
unsafe impl<T: DeviceCopy> LeafResource for DeviceBuffer<T> {
    type Slice<S: Brand> = DeviceSlice<S, T>;
    fn __slice<S: Brand>(&self, _: Token) -> &DeviceSlice<S, T> {
        // SAFETY: [order] The buffer's memory holds `len` aligned elements: `alloc` or the caller
        // of `from_raw` established that. This crate makes the token only for an `On<S, _>`, and
        // the stream of that `On` orders all uses.
        unsafe { DeviceSlice::from_raw(self.addr, self.len) }
    }
    fn __slice_mut<S: Brand>(&mut self, _: Token) -> &mut DeviceSlice<S, T> {
        // SAFETY: [order] The memory holds `len` aligned elements, and stream `S` orders all uses,
        // as in `__slice`. `&mut self` borrows the `On` exclusively, and second handles are lent by
        // shared reference, or while a capture holds the bundle, so no other slice overlaps this
        // one.
        unsafe { DeviceSlice::from_raw_mut(self.addr, self.len) }
    }
    fn __copy(&self, _: Token) -> Self {
        Self { addr: self.addr, len: self.len, device: self.device, memory: Owned::Empty, element: PhantomData }
    }
}

impl<S> Stream<S> {
    /// Allocates `len` elements of device memory, in stream order. Their contents are arbitrary.
    ///
    /// # Errors
    /// The device is out of memory or has failed, or the elements need more bytes than an
    /// allocation can hold.
    #[track_caller]
    pub fn alloc<T: DeviceCopy>(self, len: usize) -> Result<On<S, DeviceBuffer<T>>>
    where
        S: LiveBrand,
    {
        const { element::<T>() }
        let bytes = byte_len::<T>(len)?;
        let device = self.device();
        if bytes == 0 {
            return Ok(On::new(DeviceBuffer::empty(device), self));
        }
        device.ensure_usable()?;
        let _wait = device.host_wait(HostWait::DeviceAllocation);
        let addr = self.inner().alloc(bytes).inspect_err(|error| {
            if let Error::OutOfMemory { .. } = error {
                debug!(target: "thalweg::memory", "{device} has no room for {bytes} bytes");
            }
        })?;
        let by = Allocator { stream: Some(self.unique_id()), tag: std::any::type_name::<S>() };
        Ok(On::new(DeviceBuffer::new(addr, len, device, by), self))
    }

    /// Allocates `len` elements of device memory, all bits zero.
    ///
    /// # Errors
    /// The errors of [`alloc`](Stream::alloc).
    #[track_caller]
    pub fn alloc_zeroed<T: DeviceCopy>(self, len: usize) -> Result<On<S, DeviceBuffer<T>>>
    where
        S: LiveBrand,
    {
        const { element::<T>() }
        let mut buffer = self.alloc(len)?;
        self.zero(&mut buffer)?;
        Ok(buffer)
    }
}
