//! Loaded PTX, the functions in it, and their launches.

use std::ffi::{CString, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::sys;
use thalweg_simt::host::{Kernel, LaunchShape};

use super::{Cuda, Failure, Stream};
use crate::driver::ffi;
use crate::error::{Error, Result};

/// How many parameters a launch can carry.
const MAX_PARAMETERS: usize = 32;

/// A loaded module; never unloaded, because a pending launch may use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module(sys::CUmodule);
// SAFETY: a driver handle, usable from every thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Cuda {
    /// Compiles PTX for the device; waits for the compiler (tens of milliseconds, or its cache).
    pub(crate) fn load(&self, ptx: &str) -> Result<Module> {
        let _current = self.enter()?;
        let text = CString::new(ptx).map_err(|_| Error::Ptx { log: "it contains a NUL byte".into() })?;
        let mut log = vec![0u8; 16 << 10];
        let mut options = [
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
        let mut module = null_mut();
        // SAFETY: NUL-terminated text; two options and two values, the log as long as it says.
        let loaded = unsafe {
            ffi::cuModuleLoadDataEx(
                &mut module,
                text.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        loaded.map_err(|f| {
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
            if log.is_empty() { Error::from(f) } else { Error::Ptx { log } }
        })?;
        Ok(Module(module))
    }

    /// The entry of a module, where it has it.
    pub(crate) fn function(&self, module: Module, entry: &str) -> Result<Option<NonNull<()>>> {
        let _current = self.enter()?;
        let Ok(name) = CString::new(entry) else { return Ok(None) };
        let mut f = null_mut();
        // SAFETY: a loaded module and a NUL-terminated name; stores one handle.
        match unsafe { ffi::cuModuleGetFunction(&mut f, module.0, name.as_ptr()) } {
            Ok(()) => Ok(NonNull::new(f.cast())),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// # Safety
    /// `function` is of this device and takes the parameters whose bits `slots` holds; buffers among them are
    /// ordered by `s`. The driver refuses a launch without a function.
    #[inline]
    pub(crate) unsafe fn launch(
        &self,
        s: Stream,
        function: Option<NonNull<()>>,
        shape: LaunchShape,
        slots: &[u64],
    ) -> Result<(), Failure> {
        let _current = self.enter()?;
        let mut parameters = [null_mut::<c_void>(); MAX_PARAMETERS];
        for (p, slot) in parameters.iter_mut().zip(slots) {
            // The driver reads each parameter's own size from the start of its slot (little-endian).
            *p = (&raw const *slot).cast_mut().cast();
        }
        let [gx, gy, gz] = shape.grid;
        let [bx, by, bz] = shape.block;
        // SAFETY: the caller's promise; the driver copies the parameters before it returns.
        unsafe {
            ffi::cuLaunchKernel(
                function.map_or(null_mut(), |f| f.as_ptr().cast()),
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shape.shared,
                s.0,
                parameters.as_mut_ptr(),
                null_mut(),
            )
        }
    }
}

/// The slot in which a kernel remembers its function on device `ordinal`.
pub(crate) fn cached(kernel: &Kernel, ordinal: usize) -> Option<&AtomicPtr<()>> {
    // SAFETY: loaded from here, and stored to by `Modules::find` only, what it found.
    unsafe { kernel.functions() }.get(ordinal)
}

/// What a kernel remembers, if anything.
#[inline]
pub(crate) fn remembered(kernel: &Kernel, ordinal: usize) -> Option<NonNull<()>> {
    NonNull::new(cached(kernel, ordinal)?.load(Ordering::Acquire))
}
