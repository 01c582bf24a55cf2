//! The memory of a CUDA device: its pool, page-locked memory, copies and fills.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering;

use cudarc::driver::sys;

use super::{Cuda, Failure, Stream};
use crate::driver::{Pattern, ffi};

impl Cuda {
    /// Free and total bytes of the device; what the pool keeps counts as free.
    pub(crate) fn memory(&self) -> Result<(usize, usize), Failure> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        let (mut reserved, mut used) = (0u64, 0u64);
        use sys::CUmemPool_attribute_enum as a;
        // SAFETY: the context is current; each call stores into its own variable.
        unsafe {
            ffi::cuMemGetInfo_v2(&mut free, &mut total)?;
            ffi::cuMemPoolGetAttribute(self.pool, a::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, (&raw mut reserved).cast())?;
            ffi::cuMemPoolGetAttribute(self.pool, a::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, (&raw mut used).cast())?;
        }
        Ok((free + reserved.saturating_sub(used) as usize, total))
    }

    /// Lets kernels and copies of this device reach the memory of `other`'s pool.
    pub(crate) fn reach(&self, other: &Cuda) -> Result<(), Failure> {
        let mut possible: c_int = 0;
        // SAFETY: valid devices and a valid pool; the description is read during the call.
        unsafe {
            ffi::cuDeviceCanAccessPeer(&mut possible, self.device, other.device)?;
            if possible != 0 {
                let mut access: sys::CUmemAccessDesc = std::mem::zeroed();
                access.location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
                access.location.id = self.device;
                access.flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                ffi::cuMemPoolSetAccess(other.pool, &access, 1)?;
            }
        }
        Ok(())
    }

    /// Allocates in stream order; when the device is full, gives the pool's spare memory back and tries again.
    #[inline]
    pub(crate) fn alloc(&self, s: Stream, bytes: usize) -> Result<u64, Failure> {
        let _current = self.enter()?;
        let mut p = 0;
        // SAFETY: a pool and a stream of this context; stores one address.
        let first = unsafe { ffi::cuMemAllocFromPoolAsync(&mut p, bytes, self.pool, s.0) };
        match first {
            Err(f) if f.is_out_of_memory() => {
                // Memory whose free is still in flight counts as used: let it land before trimming, unless that
                // breaks a capture.
                // SAFETY: the context is current and the pool is its own.
                unsafe {
                    if self.capturing.load(Ordering::Relaxed) == 0 {
                        ffi::cuCtxSynchronize()?;
                    }
                    ffi::cuMemPoolTrimTo(self.pool, 0)?;
                    ffi::cuMemAllocFromPoolAsync(&mut p, bytes, self.pool, s.0)?;
                }
            }
            other => other?,
        }
        Ok(p)
    }

    /// Gives memory of the pool that nobody uses back to the system.
    pub(crate) fn trim(&self) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the context is current and the pool is its own.
        unsafe { ffi::cuMemPoolTrimTo(self.pool, 0) }
    }

    /// Frees in stream order.
    ///
    /// # Safety
    /// `addr` came from [`alloc`](Self::alloc), is freed once, and its uses are ordered before this call by `s`.
    #[inline]
    pub(crate) unsafe fn free(&self, s: Stream, addr: u64) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { ffi::cuMemFreeAsync(addr, s.0) }
    }

    /// Allocates page-locked memory that every CUDA device can reach. Slow, and waits for the device.
    pub(crate) fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, Failure> {
        let _current = self.enter()?;
        let mut p = null_mut();
        // SAFETY: the context is current; stores one address.
        unsafe { ffi::cuMemHostAlloc(&mut p, bytes, sys::CU_MEMHOSTALLOC_PORTABLE) }?;
        NonNull::new(p.cast()).ok_or(Failure::Driver { call: "cuMemHostAlloc", code: ffi::OUT_OF_MEMORY })
    }

    /// Frees page-locked memory; may wait for the device.
    ///
    /// # Safety
    /// `p` came from [`host_alloc`](Self::host_alloc), is freed once, and nothing uses it any more.
    pub(crate) unsafe fn host_free(&self, p: NonNull<u8>) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { ffi::cuMemFreeHost(p.as_ptr().cast()) }
    }

    /// # Safety
    /// Both ranges are valid until the copy is done, and their uses are ordered with it by `s`.
    #[inline]
    pub(crate) unsafe fn copy_to_device(
        &self,
        s: Stream,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { call_anywhere!(self, cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, s.0)) }
    }

    /// # Safety
    /// As [`copy_to_device`](Self::copy_to_device).
    #[inline]
    pub(crate) unsafe fn copy_to_host(&self, s: Stream, to: *mut u8, from: u64, bytes: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { call_anywhere!(self, cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, s.0)) }
    }

    /// # Safety
    /// As [`copy_to_device`](Self::copy_to_device).
    #[inline]
    pub(crate) unsafe fn copy(&self, s: Stream, to: u64, from: u64, bytes: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { call_anywhere!(self, cuMemcpyDtoDAsync_v2(to, from, bytes, s.0)) }
    }

    /// # Safety
    /// As [`copy_to_device`](Self::copy_to_device); `to` is on device `to_device`, `from` on `from_device`.
    pub(crate) unsafe fn copy_peer(
        &self,
        s: Stream,
        (to_device, to): (&Cuda, u64),
        (from_device, from): (&Cuda, u64),
        bytes: usize,
    ) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { ffi::cuMemcpyPeerAsync(to, to_device.context, from, from_device.context, bytes, s.0) }
    }

    /// # Safety
    /// As [`copy_to_device`](Self::copy_to_device); `to` holds `count` elements of the pattern's size.
    #[inline]
    pub(crate) unsafe fn fill(&self, s: Stream, to: u64, pattern: Pattern, count: usize) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe {
            match pattern {
                Pattern::U8(v) => ffi::cuMemsetD8Async(to, v, count, s.0),
                Pattern::U16(v) => ffi::cuMemsetD16Async(to, v, count, s.0),
                Pattern::U32(v) => ffi::cuMemsetD32Async(to, v, count, s.0),
            }
        }
    }
}
