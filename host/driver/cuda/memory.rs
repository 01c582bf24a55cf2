//! The memory of a CUDA device: its pool, page-locked memory, copies and fills.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering;

use cudarc::driver::sys;

use super::{Cuda, Failure, Stream};
use crate::driver::{Pattern, Rows, ffi};

impl Cuda {
    /// The free and the total bytes of the device. Spare memory of the pool counts as free.
    pub(crate) fn memory(&self) -> Result<(usize, usize), Failure> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        let (mut reserved, mut used) = (0u64, 0u64);
        use sys::CUmemPool_attribute_enum as a;
        // SAFETY: [call] `enter` made the context current, and `open` made the pool. Each call
        // stores into its own variable, and both attributes are 64-bit integers.
        unsafe {
            ffi::cuMemGetInfo_v2(&mut free, &mut total)?;
            ffi::cuMemPoolGetAttribute(self.pool, a::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, (&raw mut reserved).cast())?;
            ffi::cuMemPoolGetAttribute(self.pool, a::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, (&raw mut used).cast())?;
        }
        Ok((free + reserved.saturating_sub(used) as usize, total))
    }

    /// Lets kernels and copies of this device access the memory of `other`'s pool, if the hardware
    /// can.
    pub(crate) fn reach(&self, other: &Cuda) -> Result<(), Failure> {
        let mut possible: c_int = 0;
        // SAFETY: [call] `open` got both devices from the driver and made the pool. `access` is
        // plain data that the driver reads during the call, and `possible` takes one integer.
        unsafe {
            ffi::cuDeviceCanAccessPeer(&mut possible, self.device, other.device)?;
            if possible != 0 {
                let mut access: sys::CUmemAccessDesc = std::mem::zeroed();
                access.location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
                access.location.id = self.device;
                access.flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                ffi::cuMemPoolSetAccess(other.pool, &access, 1)?;
                self.reached.fetch_or(other.bit(), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// The bit of this device in `reached`.
    fn bit(&self) -> u64 {
        1u64.checked_shl(self.ordinal as u32).unwrap_or(0)
    }

    /// Returns whether kernels and copies of this device access the memory of `other`'s pool.
    fn reaches(&self, other: &Cuda) -> bool {
        std::ptr::eq(self, other) || self.reached.load(Ordering::Relaxed) & other.bit() != 0
    }

    /// Allocates in stream order. It does not wait: memory whose free has not run yet counts as
    /// used.
    #[inline]
    pub(crate) fn alloc(&self, s: Stream, bytes: usize) -> Result<u64, Failure> {
        let _current = self.enter()?;
        // Asked for more than the GPU has, the driver takes all there is, piece by piece, before it
        // refuses. On an H200 that took 13 seconds, in which other programs got no memory.
        if bytes > self.info.memory {
            return Err(Failure::Driver { call: "cuMemAllocFromPoolAsync", code: ffi::OUT_OF_MEMORY });
        }
        let mut p = 0;
        // SAFETY: [alive] `enter` made the context current. `open` made the pool and `new_stream`
        // the stream, and nothing destroys them. The call stores one address in `p`.
        unsafe { ffi::cuMemAllocFromPoolAsync(&mut p, bytes, self.pool, s.0) }?;
        Ok(p)
    }

    /// Gives the pool's spare memory back to the system.
    pub(crate) fn trim(&self) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [alive] `enter` made the context current, and `open` made the pool, which is
        // never destroyed.
        unsafe { ffi::cuMemPoolTrimTo(self.pool, 0) }
    }

    /// Frees in stream order.
    ///
    /// # Safety
    /// [`alloc`](Self::alloc) returned `addr`, it is freed once, and `s` orders all uses of the
    /// memory before this call.
    #[inline]
    pub(crate) unsafe fn free(&self, s: Stream, addr: u64) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [free] The caller frees an allocation of the pool once, after all its uses in
        // stream order.
        unsafe { ffi::cuMemFreeAsync(addr, s.0) }
    }

    /// Allocates page-locked memory that every CUDA device can access. This is slow and may wait
    /// for the device.
    pub(crate) fn host_alloc(&self, bytes: usize, combined: bool) -> Result<NonNull<u8>, Failure> {
        let _current = self.enter()?;
        let mut p = null_mut();
        let mut flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        if combined {
            flags |= sys::CU_MEMHOSTALLOC_WRITECOMBINED;
        }
        // SAFETY: [call] `enter` made the context current. The call stores one address in `p`.
        unsafe { ffi::cuMemHostAlloc(&mut p, bytes, flags) }?;
        NonNull::new(p.cast()).ok_or(Failure::Driver { call: "cuMemHostAlloc", code: ffi::OUT_OF_MEMORY })
    }

    /// Frees page-locked memory. This may wait for the device.
    ///
    /// # Safety
    /// [`host_alloc`](Self::host_alloc) returned `p`, it is freed once, and nothing uses the memory
    /// any more.
    pub(crate) unsafe fn host_free(&self, p: NonNull<u8>) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [free] The caller frees memory of `host_alloc` once, and nothing uses it any
        // more.
        unsafe { ffi::cuMemFreeHost(p.as_ptr().cast()) }
    }

    /// Page-locks pageable memory. This is slow and may wait for the device.
    ///
    /// # Safety
    /// The range is allocated until [`host_unregister`](Self::host_unregister).
    pub(crate) unsafe fn host_register(&self, p: NonNull<u8>, bytes: usize) -> Result<(), Failure> {
        let _current = self.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: [owner] The caller passes an allocated range.
        unsafe { ffi::cuMemHostRegister_v2(p.as_ptr().cast(), bytes, flags) }
    }

    /// Makes registered memory ordinary again. This may wait for the device.
    ///
    /// # Safety
    /// [`host_register`](Self::host_register) took `p`, and no device uses the memory any more.
    pub(crate) unsafe fn host_unregister(&self, p: NonNull<u8>) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [free] The caller passes registered memory that no device uses any more.
        unsafe { ffi::cuMemHostUnregister(p.as_ptr().cast()) }
    }

    /// The address by which kernels access page-locked memory.
    pub(crate) fn host_on_device(&self, p: u64) -> Result<u64, Failure> {
        let _current = self.enter()?;
        let mut on_device = 0;
        // SAFETY: [call] `enter` made the context current. The call stores one address, and returns
        // an error if `p` is not in page-locked memory.
        unsafe { ffi::cuMemHostGetDevicePointer_v2(&mut on_device, p as usize as *mut _, 0) }?;
        Ok(on_device)
    }

    /// Copies from host memory to device memory.
    ///
    /// # Safety
    /// Both ranges are valid for `bytes` until the copy is done and do not overlap. `s` orders
    /// every other access that conflicts with the copy before or after it.
    #[inline]
    pub(crate) unsafe fn copy_to_device(
        &self,
        s: Stream,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Failure> {
        // SAFETY: [order] The caller passes two valid ranges whose other uses `s` orders with the
        // copy.
        unsafe { call_on!(self, s, cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, s.0)) }
    }

    /// Copies from device memory to host memory.
    ///
    /// # Safety
    /// The same as for [`copy_to_device`](Self::copy_to_device).
    #[inline]
    pub(crate) unsafe fn copy_to_host(&self, s: Stream, to: *mut u8, from: u64, bytes: usize) -> Result<(), Failure> {
        // SAFETY: [order] The caller passes two valid ranges whose other uses `s` orders with the
        // copy.
        unsafe { call_on!(self, s, cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, s.0)) }
    }

    /// Copies within device memory.
    ///
    /// # Safety
    /// The same as for [`copy_to_device`](Self::copy_to_device).
    #[inline]
    pub(crate) unsafe fn copy(&self, s: Stream, to: u64, from: u64, bytes: usize) -> Result<(), Failure> {
        // SAFETY: [order] The caller passes two valid ranges whose other uses `s` orders with the
        // copy.
        unsafe { call_on!(self, s, cuMemcpyDtoDAsync_v2(to, from, bytes, s.0)) }
    }

    /// Copies from the memory of one device to that of another.
    ///
    /// CUDA refuses `cuMemcpyPeerAsync` in a capture (error 900), and captures an ordinary copy
    /// between two addresses. That copy needs access to the memory of the other device, which
    /// `reach` gives, and it is not slower (`benches/record/2026-11-23-h200-peer-graphs.txt`).
    ///
    /// # Safety
    /// The same as for [`copy_to_device`](Self::copy_to_device). `to` is on `to_device` and `from`
    /// on `from_device`.
    pub(crate) unsafe fn copy_peer(
        &self,
        s: Stream,
        (to_device, to): (&Cuda, u64),
        (from_device, from): (&Cuda, u64),
        bytes: usize,
    ) -> Result<(), Failure> {
        if self.reaches(to_device) && self.reaches(from_device) {
            // SAFETY: [order] The caller passes two valid ranges whose other uses `s` orders with
            // the copy. This device accesses the pools of both.
            return unsafe { self.copy(s, to, from, bytes) };
        }
        let _current = self.enter()?;
        // SAFETY: [order] The caller passes two valid ranges with their devices, whose other uses
        // `s` orders with the copy. Both contexts are retained for the life of the process.
        unsafe { ffi::cuMemcpyPeerAsync(to, to_device.context, from, from_device.context, bytes, s.0) }
    }

    /// Copies planes of rows. `host` says which side is host memory: the source and the target.
    ///
    /// # Safety
    /// Both sides have all rows, valid until the copy is done. The rows of the target do not
    /// overlap, neither one another nor the source. `s` orders every other access that conflicts
    /// with the copy before or after it.
    pub(crate) unsafe fn copy_rows(&self, s: Stream, copy: Rows, host: [bool; 2]) -> Result<(), Failure> {
        use sys::CUmemorytype_enum::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
        let Rows { from, to, bytes, rows, planes } = copy;
        let [from_type, to_type] = host.map(|host| if host { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE });
        if planes == 1 {
            let copy = sys::CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: from_type,
                srcHost: from.addr as usize as *const _,
                srcDevice: from.addr,
                srcArray: null_mut(),
                srcPitch: from.row,
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: to_type,
                dstHost: to.addr as usize as *mut _,
                dstDevice: to.addr,
                dstArray: null_mut(),
                dstPitch: to.row,
                WidthInBytes: bytes,
                Height: rows,
            };
            // SAFETY: [order] The caller passes valid rows whose other uses `s` orders with the
            // copy. The driver reads `copy` during the call.
            return unsafe { call_on!(self, s, cuMemcpy2DAsync_v2(&copy, s.0)) };
        }
        let copy = sys::CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: from_type,
            srcHost: from.addr as usize as *const _,
            srcDevice: from.addr,
            srcArray: null_mut(),
            reserved0: null_mut(),
            srcPitch: from.row,
            srcHeight: from.plane,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: to_type,
            dstHost: to.addr as usize as *mut _,
            dstDevice: to.addr,
            dstArray: null_mut(),
            reserved1: null_mut(),
            dstPitch: to.row,
            dstHeight: to.plane,
            WidthInBytes: bytes,
            Height: rows,
            Depth: planes,
        };
        // SAFETY: [order] The caller passes valid rows whose other uses `s` orders with the copy.
        // The driver reads `copy` during the call.
        unsafe { call_on!(self, s, cuMemcpy3DAsync_v2(&copy, s.0)) }
    }

    /// Writes the pattern `count` times, every `stride` bytes.
    ///
    /// # Safety
    /// `to` and `stride` are aligned for the pattern, which is not larger than `stride`. The memory
    /// is valid for `count` strides until the fill is done. `s` orders every other access of this
    /// memory before or after the fill.
    #[inline]
    pub(crate) unsafe fn fill(
        &self,
        s: Stream,
        to: u64,
        stride: usize,
        pattern: Pattern,
        count: usize,
    ) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [order] The caller passes aligned memory for `count` strides whose other uses `s`
        // orders with the fill. The strided functions write rows of one pattern, `stride` bytes
        // apart.
        unsafe {
            if stride != pattern.size() {
                return match pattern {
                    Pattern::U8(v) => ffi::cuMemsetD2D8Async(to, stride, v, 1, count, s.0),
                    Pattern::U16(v) => ffi::cuMemsetD2D16Async(to, stride, v, 1, count, s.0),
                    Pattern::U32(v) => ffi::cuMemsetD2D32Async(to, stride, v, 1, count, s.0),
                };
            }
            match pattern {
                Pattern::U8(v) => ffi::cuMemsetD8Async(to, v, count, s.0),
                Pattern::U16(v) => ffi::cuMemsetD16Async(to, v, count, s.0),
                Pattern::U32(v) => ffi::cuMemsetD32Async(to, v, count, s.0),
            }
        }
    }
}
