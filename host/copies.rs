//! Copies and fills.

use std::mem::ManuallyDrop;

use thalweg_simt::host::{DeviceSlice, HostSlice, resolve};

use crate::brand::{Brand, LiveBrand};
use crate::driver::{Pattern, StreamHandle};
use crate::error::{Error, Result};
use crate::memory::{DeviceBuffer, DeviceCopy, PeerBuffer, PeerSlice, element};
use crate::resource::On;
use crate::runtime::sync_stats::HostWait;
use crate::stream::Stream;

impl<S> Stream<S> {
    /// Sets all bits to zero.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn zero<T: DeviceCopy>(self, slice: &mut DeviceSlice<S, T>) -> Result<()> {
        if slice.is_empty() {
            return Ok(());
        }
        // SAFETY: [order] By the contract of `DeviceSlice::from_raw`, which the maker of the slice
        // kept, the slice has `byte_len` bytes and this stream orders all uses of them. Buffers are
        // freed after the stream's work.
        self.call(|s| unsafe { s.fill(slice.device_ptr(), 1, Pattern::U8(0), slice.byte_len()) })
    }

    /// Sets every element to `value`.
    ///
    /// An element of 1, 2 or 4 bytes takes one operation, and so does one whose bytes repeat after
    /// 1, 2 or 4 bytes, such as 0. Any other takes one for each of its words of 4 bytes, 2 or 1,
    /// the largest that divides its size and its address: two for a `f64`, three for a struct of
    /// three `f32`. In a [capture](Stream::capture) these are as many nodes. For large elements,
    /// copy from a buffer that holds the value.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let work = Device::best()?.stream::<Work>()?;
    /// let mut x = work.alloc::<f64>(100)?;
    /// work.fill(&mut x, 0.1)?;
    /// assert_eq!(work.read_blocking(&x)?, [0.1; 100]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn fill<T: DeviceCopy>(self, slice: &mut DeviceSlice<S, T>, value: T) -> Result<()> {
        const { element::<T>() }
        if slice.is_empty() {
            return Ok(());
        }
        let (bytes, addr) = (bytemuck::bytes_of(&value), slice.device_ptr());
        let mut words = [4, 2, 1].into_iter().filter(|&n| bytes.len() % n == 0 && addr % n as u64 == 0);
        if let Some(n) = words.clone().find(|&n| bytes.chunks(n).all(|word| *word == bytes[..n])) {
            // SAFETY: [order] By the contract of `DeviceSlice::from_raw`, which the maker of the
            // slice kept, the slice has `byte_len` bytes and this stream orders all uses of them.
            // `filter` chose a word that divides the address and the size of an element.
            return self.call(|s| unsafe { s.fill(addr, n, pattern(&bytes[..n]), slice.byte_len() / n) });
        }
        let n = words.next().unwrap_or(1);
        for (k, word) in bytes.chunks(n).enumerate() {
            let first = addr + (k * n) as u64;
            // SAFETY: [order] By the contract of `DeviceSlice::from_raw`, which the maker of the
            // slice kept, the slice has `len` elements and this stream orders all uses of them.
            // `word` is at byte `k * n` of each element, and divides the address and the size of an
            // element.
            self.call(|s| unsafe { s.fill(first, bytes.len(), pattern(word), slice.len()) })?;
        }
        Ok(())
    }

    /// Copies page-locked memory to the device.
    ///
    /// # Errors
    /// The lengths differ, or the device has failed.
    #[track_caller]
    pub fn copy_to_device<T: DeviceCopy>(self, from: &HostSlice<S, T>, to: &mut DeviceSlice<S, T>) -> Result<()> {
        equal_lengths(from.len(), to.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: [order] By the contract of `from_raw`, which the makers of both slices kept, this
        // stream orders all uses of their memory. `equal_lengths` checked that both have `byte_len`
        // bytes.
        self.call(|s| unsafe { s.copy_to_device(to.device_ptr(), from.host_ptr(), from.byte_len()) })
    }

    /// Copies device memory to page-locked memory.
    ///
    /// # Errors
    /// The lengths differ, or the device has failed.
    #[track_caller]
    pub fn copy_to_host<T: DeviceCopy>(self, from: &DeviceSlice<S, T>, to: &mut HostSlice<S, T>) -> Result<()> {
        equal_lengths(from.len(), to.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: [order] By the contract of `from_raw`, which the makers of both slices kept, this
        // stream orders all uses of their memory. `equal_lengths` checked that both have `byte_len`
        // bytes.
        self.call(|s| unsafe { s.copy_to_host(to.host_ptr(), from.device_ptr(), from.byte_len()) })
    }

    /// Copies within the device.
    ///
    /// # Errors
    /// The lengths differ, or the device has failed.
    #[track_caller]
    pub fn copy<T: DeviceCopy>(self, from: &DeviceSlice<S, T>, to: &mut DeviceSlice<S, T>) -> Result<()> {
        equal_lengths(from.len(), to.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: [order] By the contract of `from_raw`, which the makers of both slices kept, this
        // stream orders all uses of their memory. `equal_lengths` checked that both have `byte_len`
        // bytes.
        self.call(|s| unsafe { s.copy(to.device_ptr(), from.device_ptr(), from.byte_len()) })
    }

    /// Copies from a buffer that may belong to another device. A graph holds such a copy if the
    /// GPUs can access each other's memory.
    ///
    /// # Errors
    /// The lengths differ, a device has failed, or this is a capture of a copy between two GPUs
    /// that cannot access each other's memory.
    #[track_caller]
    pub fn copy_from_peer<T: DeviceCopy>(self, from: &On<S, PeerBuffer<T>>, to: &mut DeviceSlice<S, T>) -> Result<()>
    where
        S: Brand,
    {
        let source: &PeerSlice<S, T> = from;
        equal_lengths(source.len(), to.len())?;
        self.pull_start(from, to)
    }

    /// Copies the first bytes of a buffer that may belong to another device, as many as `to` has.
    /// Otherwise it is [`copy_from_peer`](Self::copy_from_peer).
    ///
    /// # Errors
    /// The buffer has fewer bytes, or those of `copy_from_peer`.
    #[track_caller]
    pub fn copy_start_from_peer<T: DeviceCopy>(
        self,
        from: &On<S, PeerBuffer<T>>,
        to: &mut DeviceSlice<S, u8>,
    ) -> Result<()>
    where
        S: Brand,
    {
        let source: &PeerSlice<S, T> = from;
        resolve(..to.len(), source.raw().byte_len())?;
        self.pull_start(from, to)
    }

    /// Copies to a buffer that may belong to another device. A graph holds such a copy if the GPUs
    /// can access each other's memory.
    ///
    /// # Errors
    /// The lengths differ, a device has failed, or this is a capture of a copy between two GPUs
    /// that cannot access each other's memory.
    #[track_caller]
    pub fn copy_to_peer<T: DeviceCopy>(self, from: &DeviceSlice<S, T>, to: &mut On<S, PeerBuffer<T>>) -> Result<()>
    where
        S: Brand,
    {
        let target: &PeerSlice<S, T> = to;
        equal_lengths(from.len(), target.len())?;
        self.push_start(from, to)
    }

    /// Copies to the first bytes of a buffer that may belong to another device, as many as `from`
    /// has. The others stay as they are. Otherwise it is [`copy_to_peer`](Self::copy_to_peer).
    ///
    /// ```
    /// use thalweg::{Device, PeerBuffer, stream_tags};
    ///
    /// stream_tags!(Here, There);
    /// let (a, b) = (Device::cpu()?, Device::new_cpu()?);
    /// let (here, there) = (a.stream::<Here>()?, b.stream::<There>()?);
    /// let room = here.record(here.alloc_zeroed::<u32>(3)?)?.map_peer();
    /// let mut room = there.wait(room)?;
    /// let part = there.upload_blocking(&[7u8; 4])?;
    /// there.copy_start_to_peer(&part, &mut room)?;
    /// let room = here.wait(there.record(room)?.map_local())?;
    /// assert_eq!(here.read_blocking(&room)?, [0x0707_0707, 0, 0]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The buffer has fewer bytes, or those of `copy_to_peer`.
    #[track_caller]
    pub fn copy_start_to_peer<T: DeviceCopy>(
        self,
        from: &DeviceSlice<S, u8>,
        to: &mut On<S, PeerBuffer<T>>,
    ) -> Result<()>
    where
        S: Brand,
    {
        let target: &PeerSlice<S, T> = to;
        resolve(..from.len(), target.raw().byte_len())?;
        self.push_start(from, to)
    }

    /// Copies from the start of a buffer, which has the bytes of `to`: the caller has checked that.
    #[track_caller]
    fn pull_start<T: DeviceCopy, U>(self, from: &On<S, PeerBuffer<T>>, to: &mut DeviceSlice<S, U>) -> Result<()>
    where
        S: Brand,
    {
        if to.is_empty() {
            return Ok(());
        }
        let source: &PeerSlice<S, T> = from;
        let (there, here) = (from.device().driver(), self.device().driver());
        let (from, to, bytes) = (source.raw().device_ptr(), to.device_ptr(), to.byte_len());
        // SAFETY: [order] By the contract of `from_raw`, which the makers of both slices kept, this
        // stream orders all uses of their memory. The callers checked that the source has as many
        // bytes. Each address goes with the device of its own buffer.
        self.call(|s| unsafe { s.copy_peer((here, to), (there, from), bytes) })
    }

    /// Copies to the start of a buffer, which has the bytes of `from`: the caller has checked that.
    #[track_caller]
    fn push_start<T: DeviceCopy, U>(self, from: &DeviceSlice<S, U>, to: &mut On<S, PeerBuffer<T>>) -> Result<()>
    where
        S: Brand,
    {
        if from.is_empty() {
            return Ok(());
        }
        let target: &PeerSlice<S, T> = to;
        let (there, here) = (to.device().driver(), self.device().driver());
        let (to, from, bytes) = (target.raw().device_ptr(), from.device_ptr(), from.byte_len());
        // SAFETY: [order] By the contract of `from_raw`, which the makers of both slices kept, this
        // stream orders all uses of their memory. The callers checked that the target has as many
        // bytes. Each address goes with the device of its own buffer.
        self.call(|s| unsafe { s.copy_peer((there, to), (here, from), bytes) })
    }

    /// Copies pageable memory to the device and waits until the copy is done. It is convenient and
    /// slow, and serves as the serial baseline.
    ///
    /// # Errors
    /// The lengths differ, or the device has failed.
    #[track_caller]
    pub fn write_blocking<T: DeviceCopy>(self, from: &[T], to: &mut DeviceSlice<S, T>) -> Result<()>
    where
        S: LiveBrand,
    {
        equal_lengths(from.len(), to.len())?;
        let _wait = self.device().host_wait(HostWait::BlockingCopy);
        if from.is_empty() {
            return Ok(());
        }
        if !self.device().driver().copies_pageable() {
            // This device's streams copy later and only from page-locked memory, so stage the
            // elements.
            let staged = self.bind(self.device().pinned_from(from)?)?;
            self.copy_to_device(&staged, to)?;
            return self.synchronize();
        }
        let addr = from.as_ptr().expose_provenance() as u64;
        // SAFETY: [order] `from` is borrowed until `outlast` returns. By then the stream has passed
        // the copy, or the device can no longer run it. `equal_lengths` checked that `from` has
        // `byte_len` bytes, and `to` is ordered by this stream.
        let copy = |s: StreamHandle| unsafe { s.copy_to_device(to.device_ptr(), addr, to.byte_len()) };
        let (copied, waited) = self.call(|s| Ok((copy(s), self.outlast())))?;
        self.device().seen(copied).and(waited).and_then(|()| self.device().check())
    }

    /// Waits until no work enqueued so far can touch memory that goes back to the caller.
    ///
    /// A failed wait does not prove that the work has ended, unless CUDA documents that nothing
    /// runs after such a failure. The caller's memory cannot be leaked, so this function aborts the
    /// process when the driver gives no proof.
    fn outlast(self) -> Result<()> {
        let mut first = Ok(());
        // The driver reports a failure of an earlier call once. The next wait then really waits.
        for _ in 0..3 {
            match self.handle().synchronize() {
                Ok(()) => return first,
                Err(fault) => {
                    let over = fault.ends_all_work();
                    let error = self.device().seen::<()>(Err(fault));
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

    /// Waits for all work enqueued so far and returns the elements. It is convenient and slow, and
    /// serves as the serial baseline.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn read_blocking<T: DeviceCopy>(self, from: &DeviceSlice<S, T>) -> Result<Vec<T>>
    where
        S: LiveBrand,
    {
        let _wait = self.device().host_wait(HostWait::BlockingCopy);
        if from.is_empty() {
            self.synchronize()?;
            return Ok(Vec::new());
        }
        if !self.device().driver().copies_pageable() {
            let mut staged = self.bind(self.device().pinned(from.len())?)?;
            self.copy_to_host(from, &mut staged)?;
            return Ok(self.record(staged)?.synchronize()?.to_vec());
        }
        let (to, copied, waited) = self.call(|s| {
            // The vector leaks if the wait fails, because the copy may still write to it.
            let mut to = ManuallyDrop::new(vec![T::zeroed(); from.len()]);
            let addr = to.as_mut_ptr().expose_provenance() as u64;
            // SAFETY: [order] `to` has `from.len()` elements. It is neither touched nor freed
            // before `synchronize` has succeeded, and by then the stream has passed the copy.
            // `from` is ordered by this stream.
            let copied = unsafe { s.copy_to_host(addr, from.device_ptr(), from.byte_len()) };
            Ok((to, copied, s.synchronize()))
        })?;
        self.device().seen(copied).and(self.device().seen(waited))?;
        let to = ManuallyDrop::into_inner(to);
        self.device().check()?;
        Ok(to)
    }

    /// Allocates a device buffer, copies the elements of `data` to it, and waits until they are
    /// there.
    ///
    /// # Errors
    /// The errors of [`alloc`](Stream::alloc) and [`write_blocking`](Stream::write_blocking).
    #[track_caller]
    pub fn upload_blocking<T: DeviceCopy>(self, data: &[T]) -> Result<On<S, DeviceBuffer<T>>>
    where
        S: LiveBrand,
    {
        const { element::<T>() }
        let _wait = self.device().host_wait(HostWait::BlockingCopy);
        let mut buffer = self.alloc(data.len())?;
        self.write_blocking(data, &mut buffer)?;
        Ok(buffer)
    }
}

/// A word of 1, 2 or 4 bytes.
fn pattern(word: &[u8]) -> Pattern {
    match *word {
        [a, b, c, d] => Pattern::U32(u32::from_ne_bytes([a, b, c, d])),
        [a, b] => Pattern::U16(u16::from_ne_bytes([a, b])),
        _ => Pattern::U8(word[0]),
    }
}

fn equal_lengths(source_len: usize, destination_len: usize) -> Result<()> {
    if source_len == destination_len { Ok(()) } else { Err(Error::LengthMismatch { source_len, destination_len }) }
}
