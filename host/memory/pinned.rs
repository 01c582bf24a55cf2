//! Page-locked host memory.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use thalweg_simt::host::{DeviceSlice, HostSlice};

use super::{ALIGNMENT, DeviceCopy, EMPTY, byte_len, split};
use crate::brand::{Brand, LiveBrand};
use crate::error::{Error, Result, Returned};
use crate::resource::{Leaf, LeafInfo, LeafKind, LeafResource, On, Producer, Resource, Token};
use crate::runtime::device::Device;
use crate::runtime::memory::{Memory, Owned, PinnedBlock, Pool, When, give_back};
use crate::stream::Stream;
use crate::trace;

/// `len` elements of `T` in page-locked host memory. The buffer is idle: it is an ordinary slice.
///
/// [`Device::pinned`], [`Device::pinned_from`] and a [`PinnedPool`](crate::PinnedPool) make one.
/// [`Stream::bind`] hands it to a stream. Then the host cannot read or write it until an
/// [`Event`](crate::Event) says that the stream has passed all work on it.
///
/// ```
/// use thalweg::{Device, stream_tags};
///
/// stream_tags!(Upload);
/// let gpu = Device::best()?;
/// let up = gpu.stream::<Upload>()?;
/// let mut host = gpu.pinned::<f32>(3)?;
/// host.copy_from_slice(&[1.0, 2.0, 3.0]); // idle: a slice
/// let host = up.bind(host)?; // on a stream: no slice
/// let mut image = up.alloc::<f32>(3)?;
/// up.copy_to_device(&host, &mut image)?;
/// let host = up.record(host)?.synchronize()?; // idle again
/// assert_eq!(*host, [1.0, 2.0, 3.0]);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// Dropping it gives the memory back to its pool. The pool keeps it, because page-locking costs
/// milliseconds.
pub struct PinnedBuffer<T: DeviceCopy> {
    ptr: NonNull<T>,
    len: usize,
    device: Device,
    memory: Owned<PinnedBlock>,
}

// SAFETY: [thread] The buffer owns its elements as a `Vec` does: a pool lends a block once, and
// pieces are disjoint. `T` is `Send`.
unsafe impl<T: DeviceCopy> Send for PinnedBuffer<T> {}
// SAFETY: [thread] `&self` gives only `&[T]`, and `T` is `Sync`.
unsafe impl<T: DeviceCopy> Sync for PinnedBuffer<T> {}

impl<T: DeviceCopy> PinnedBuffer<T> {
    /// Takes a block of the pool for `len` elements.
    #[track_caller]
    pub(crate) fn lent(pool: &Arc<Pool>, len: usize) -> Result<Self> {
        let bytes = byte_len::<T>(len)?;
        if bytes == 0 {
            return Ok(Self::empty(pool.device()));
        }
        let block = pool.lend(bytes)?;
        // SAFETY: [owner] The pool lends the block to nobody else, and its memory was zeroed when
        // it was made.
        let buffer = unsafe { Self::from_block(block, len, pool.device()) };
        trace::idle("page-locked allocation", &buffer);
        Ok(buffer)
    }

    /// Number of elements. Unlike `len`, it makes no slice, because a host function may have one.
    pub(crate) fn count(&self) -> usize {
        self.len
    }

    pub(crate) fn registered(device: Device, elements: Vec<T>) -> Result<Self, Returned<Vec<T>>> {
        let len = elements.len();
        Ok(match device.page_lock(elements)? {
            // SAFETY: [owner] The block is the vector's memory, which holds `len` elements, and
            // nobody else has the vector any more.
            Some(block) => unsafe { Self::from_block(block, len, device) },
            None => Self::empty(device),
        })
    }

    /// Makes a buffer of the block's first `len` elements.
    ///
    /// # Safety
    /// The caller owns the block exclusively. The block is initialized and holds `len` elements.
    unsafe fn from_block(block: PinnedBlock, len: usize, device: Device) -> Self {
        Self { ptr: block.ptr.cast(), len, device, memory: Owned::Whole(block) }
    }

    /// Makes a buffer without elements, which takes no memory.
    pub fn empty(device: Device) -> Self {
        Self { ptr: EMPTY.cast(), len: 0, device, memory: Owned::Empty }
    }

    /// The device that the memory was page-locked for. Every device of the same kind can use it.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Splits into `n` pieces of lengths that are as equal as possible. They own disjoint parts of
    /// the memory and travel separately. Dropping the last piece gives the whole memory back.
    /// Pieces beyond the elements are empty.
    ///
    /// # Errors
    /// `n` is more than the number of elements and 65536 together, or there is no memory for a list
    /// of so many pieces. The buffer comes back.
    pub fn split_even(mut self, n: usize) -> Result<Vec<Self>, Returned<Self>> {
        self.cut_even(n, |piece| piece).map_err(|error| Returned::new(error, self))
    }

    /// Like [`split_even`](Self::split_even), but only between items of `item` elements. The buffer
    /// holds a whole number of items.
    pub(crate) fn split_items(mut self, n: usize, item: usize) -> Result<Vec<Self>, Returned<Self>> {
        match split::list(n) {
            Ok(list) => Ok(self.pieces(n, item, list, |piece| piece)),
            Err(error) => Err(Returned::new(error, self)),
        }
    }

    /// Takes the memory as `n` pieces. `wrap` puts each one in its state.
    fn cut_even<P>(&mut self, n: usize, wrap: impl Fn(Self) -> P) -> Result<Vec<P>> {
        split::admits(self.len, n)?;
        let list = split::list(n)?;
        Ok(self.pieces(n, 1, list, wrap))
    }

    fn pieces<P>(&mut self, n: usize, item: usize, list: Vec<P>, wrap: impl Fn(Self) -> P) -> Vec<P> {
        if n == 0 {
            return list; // the buffer keeps its memory, and gives it back in its own state
        }
        let items = self.len.checked_div(item).unwrap_or(0);
        let (memory, whole, device) = (self.memory.take(), self.ptr, self.device);
        split::share(memory, split::pieces(items, n), list, |range, memory| {
            // SAFETY: [owner] The offset is inside the buffer: `items * item` is at most its
            // length.
            let ptr = unsafe { whole.add(range.start * item) };
            wrap(Self { ptr, len: range.len() * item, device, memory })
        })
    }

    /// The length of the buffer that adjacent pieces make.
    fn whole<'p>(pieces: impl Iterator<Item = &'p Self> + Clone) -> Result<usize> {
        let place = |p: &'p Self| (p.ptr.as_ptr().expose_provenance() as u64, p.len * size_of::<T>(), &p.memory);
        split::adjacent(pieces.clone().map(place))?;
        Ok(pieces.map(|p| p.len).sum())
    }

    /// Joins pieces that a split of one buffer made, in their order, into one buffer.
    ///
    /// # Errors
    /// There are none, they are not pieces of one buffer, or they are not adjacent
    /// ([`Error::NotAdjacent`](crate::Error::NotAdjacent)). The pieces come back.
    pub fn join(pieces: Vec<Self>) -> Result<Self, Returned<Vec<Self>>> {
        // The provenance of the first pointer covers the whole block, because `split_even` only
        // moved the pointer.
        split::join(pieces, |pieces| Self::whole(pieces.iter()), |first, len| first.len = len, drop)
    }

    /// The elements, while only readers can be at work. For [`Shared::host`](crate::Shared::host).
    ///
    /// # Safety
    /// Nothing writes the memory while the slice lives.
    pub(crate) unsafe fn slice_while_shared(&self) -> &[T] {
        // SAFETY: [idle] The pool initialized the memory, which holds `len` elements, and the
        // caller promises that nothing writes it while the slice lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<S: LiveBrand, T: DeviceCopy> On<S, PinnedBuffer<T>> {
    /// Splits into `n` pieces of lengths that are as equal as possible. They own disjoint parts of
    /// the memory and travel separately. Dropping the last piece gives the whole memory back, after
    /// the work of the other pieces. Pieces beyond the elements are empty.
    ///
    /// # Errors
    /// `n` is more than the number of elements and 65536 together, or there is no memory for a list
    /// of so many pieces. The buffer comes back.
    pub fn split_even(self, n: usize) -> Result<Vec<Self>, Returned<Self>> {
        split::cut_on(self, |buffer, on| buffer.cut_even(n, on))
    }

    /// Joins pieces that a split of one buffer made, in their order, into one buffer.
    ///
    /// # Errors
    /// There are none, they are not pieces of one buffer, or they are not adjacent
    /// ([`Error::NotAdjacent`](crate::Error::NotAdjacent)). The pieces come back.
    pub fn join(pieces: Vec<Self>) -> Result<Self, Returned<Vec<Self>>> {
        split::join_on(pieces, |pieces| PinnedBuffer::whole(pieces.iter().map(On::leaf)), |first, len| first.len = len)
    }
}

impl<T: DeviceCopy> Deref for PinnedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: [idle] The memory holds `len` initialized elements of plain data. Only an idle
        // buffer can be borrowed, and a buffer becomes idle only after the stream's work on it, so
        // nothing else touches the memory.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: DeviceCopy> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: [idle] The memory holds `len` initialized elements of plain data. The buffer is
        // idle, so no stream uses it, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: DeviceCopy> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        give_back(Memory::Pinned(self.memory.take()), When::After(Vec::new()));
    }
}

impl<T: DeviceCopy> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer").field("len", &self.len).field("device", &self.device).finish_non_exhaustive()
    }
}

// SAFETY: [parts] The buffer is one leaf. Each method visits it or moves it once, without touching
// the memory, and runs no other code.
unsafe impl<T: DeviceCopy> Resource for PinnedBuffer<T> {
    type On<S: Brand> = On<S, Self>;
    fn __leaves<Visit: FnMut(LeafInfo)>(&self, visit: &mut Visit) {
        let (addr, bytes) = (self.ptr.as_ptr().expose_provenance() as u64, self.len * size_of::<T>());
        let allocation = self.memory.allocation();
        visit(LeafInfo { device: self.device, kind: LeafKind::Pinned, addr, bytes, allocation, shared: false });
    }
    fn __drain<Sink: FnMut(Leaf)>(&mut self, sink: &mut Sink, _: Token) {
        self.len = 0;
        sink(Leaf(Memory::Pinned(self.memory.take())));
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
unsafe impl<T: DeviceCopy> LeafResource for PinnedBuffer<T> {
    type Slice<S: Brand> = HostSlice<S, T>;
    fn __slice<S: Brand>(&self, _: Token) -> &HostSlice<S, T> {
        // SAFETY: [order] The buffer's memory holds `len` aligned elements: its pool established
        // that. This crate makes the token only for an `On<S, _>`, and the stream of that `On`
        // orders all uses.
        unsafe { HostSlice::from_raw(self.ptr.as_ptr().expose_provenance() as u64, self.len) }
    }
    fn __slice_mut<S: Brand>(&mut self, _: Token) -> &mut HostSlice<S, T> {
        // SAFETY: [order] The memory holds `len` aligned elements, and stream `S` orders all uses,
        // as in `__slice`. `&mut self` borrows the `On` exclusively, and second handles are lent by
        // shared reference, or while a capture holds the bundle, so no other slice overlaps this
        // one.
        unsafe { HostSlice::from_raw_mut(self.ptr.as_ptr().expose_provenance() as u64, self.len) }
    }
    fn __copy(&self, _: Token) -> Self {
        Self { ptr: self.ptr, len: self.len, device: self.device, memory: Owned::Empty }
    }
}

impl<S: Brand, T: DeviceCopy> On<S, PinnedBuffer<T>> {
    /// The buffer as kernels see it: they read page-locked memory over the bus, without a copy.
    ///
    /// Each access takes the bus again, so it pays where a kernel reads a part of the buffer. For
    /// one that reads a whole image once, an H200 took 610 us in place and 486 us with a copy
    /// (`cargo bench --bench pinned`). On the CPU device it is the same memory.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let gpu = Device::best()?;
    /// let work = gpu.stream::<Work>()?;
    /// let host = work.bind(gpu.pinned_from(&[3u32; 100])?)?;
    /// let mut x = work.alloc::<u32>(100)?;
    /// work.copy(host.mapped()?, &mut x)?; // or a kernel that takes a `&DeviceSlice`
    /// assert_eq!(work.read_blocking(&x)?, [3; 100]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device cannot access page-locked memory, or has failed.
    pub fn mapped(&self) -> Result<&DeviceSlice<S, T>> {
        let addr = self.on_device()?;
        // SAFETY: [order] The driver says that kernels access the buffer's memory at `addr`, and
        // `on_device` has checked that it is aligned as the buffer is. It holds `len` elements, and
        // stream `S` orders all uses of it, because this is a view of the buffer's own slice.
        Ok(unsafe { DeviceSlice::from_raw(addr, self.leaf().count()) })
    }

    /// Like [`mapped`](Self::mapped), for kernels that write the buffer.
    ///
    /// # Errors
    /// The errors of [`mapped`](Self::mapped).
    pub fn mapped_mut(&mut self) -> Result<&mut DeviceSlice<S, T>> {
        let addr = self.on_device()?;
        // SAFETY: [order] As in `mapped`. `&mut self` borrows the `On` exclusively, so there is no
        // other slice of the memory.
        Ok(unsafe { DeviceSlice::from_raw_mut(addr, self.leaf().count()) })
    }

    fn on_device(&self) -> Result<u64> {
        let host = self.leaf().ptr.as_ptr().addr() as u64;
        if self.leaf().count() == 0 {
            return Ok(host);
        }
        let device = self.stream().device();
        device.ensure_usable()?;
        let addr = device.seen(device.driver().host_on_device(host))?;
        // CUDA maps whole pages, so the alignment is that of the host's address.
        if !(addr ^ host).is_multiple_of(ALIGNMENT as u64) {
            return Err(Error::Parameter {
                name: "buffer",
                given: format!("page-locked memory that {device} has at another place of a page"),
                expected: "memory that is mapped page by page".into(),
            });
        }
        Ok(addr)
    }
}
