//! Loaded PTX, the functions in it, and their launches.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::sys;
use thalweg_simt::host::{Kernel, LaunchShape, MAX_PARAMETERS};

use super::{Cuda, Failure, Stream};
use crate::driver::ffi;
use crate::error::{Error, Result};

/// A loaded module. It is never unloaded once a function of it is known, because a pending launch
/// may use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module(sys::CUmodule);
// SAFETY: [thread] A module is a handle of the CUDA driver, which may be used from every thread.
unsafe impl Send for Module {}
// SAFETY: [thread] CUDA allows several threads to use one module at once.
unsafe impl Sync for Module {}

/// The memory in which the kernels of a module report the first panic: page-locked host memory,
/// which outlives a failed context. thalweg-ptx-builder says what a kernel writes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanicRecord(NonNull<u32>);
// SAFETY: [thread] The memory is never freed, and every access is a volatile load of one word.
unsafe impl Send for PanicRecord {}
// SAFETY: [thread] See above.
unsafe impl Sync for PanicRecord {}

impl PanicRecord {
    const WORDS: usize = 7;

    /// The number of the entry in the text of the module, from 0 on, and the positions of the block
    /// and of the thread; `None` if no kernel has panicked.
    pub(crate) fn read(self) -> Option<(usize, [u32; 3], [u32; 3])> {
        // SAFETY: [alive] The record has `WORDS` words and is never freed. A GPU may write it at
        // any time, so the loads are volatile. It writes the first word last, and each word once.
        let word = |i: usize| unsafe { self.0.add(i).read_volatile() };
        let entry = word(0).checked_sub(1)?;
        Some((entry as usize, [1, 2, 3].map(word), [4, 5, 6].map(word)))
    }

    /// Makes a record of memory of the test.
    #[cfg(test)]
    pub(crate) fn of(words: &'static mut [u32; Self::WORDS]) -> Self {
        Self(NonNull::from(words).cast())
    }
}

impl Cuda {
    /// Compiles PTX for the device. The call waits for the compiler: tens of milliseconds, unless
    /// the driver's cache has the result.
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
        // SAFETY: [call] `text` is NUL-terminated. `options` and `values` both have `options.len()`
        // elements, and the length passed for the log is that of the vector. The call stores one
        // handle in `module`.
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

    /// Unloads a module that could not be used. If the call fails, the module leaks.
    ///
    /// # Safety
    /// Nobody has a function of the module, and nobody uses it after this.
    pub(crate) unsafe fn unload(&self, module: Module) {
        if let Ok(_current) = self.enter() {
            // SAFETY: [free] `load` made the module, and the caller promises that nothing of it is
            // in use.
            _ = unsafe { ffi::cuModuleUnload(module.0) };
        }
    }

    /// Gives a module, loaded from `text`, a record of panics if its kernels report them, and
    /// `None` otherwise. The record is never freed, as the module is never unloaded then.
    pub(crate) fn panic_record(&self, module: Module, text: &str) -> Result<Option<PanicRecord>, Failure> {
        // The driver is asked only if the name is there: compute-sanitizer reports every call that
        // fails.
        if !text.contains("thalweg_panic") {
            return Ok(None);
        }
        let _current = self.enter()?;
        let (mut variable, mut bytes) = (0, 0);
        // SAFETY: [call] `load` made the module, and the name is NUL-terminated. The call stores an
        // address and a size.
        match unsafe { ffi::cuModuleGetGlobal_v2(&mut variable, &mut bytes, module.0, c"thalweg_panic".as_ptr()) } {
            Err(e) if e.is_not_found() => return Ok(None), // the name stands elsewhere, such as in a comment
            found => found?,
        }
        let record = self.host_alloc(PanicRecord::WORDS * size_of::<u32>(), false)?;
        // SAFETY: [owner] `host_alloc` returned as many bytes, and nobody else has them yet.
        unsafe { record.as_ptr().write_bytes(0, PanicRecord::WORDS * size_of::<u32>()) };
        let address = self.host_on_device(record.as_ptr().expose_provenance() as u64);
        let written = address.and_then(|address| {
            // A copy that waits by itself uses the legacy default stream, which would invalidate a
            // capture of other code in a stream that waits for it. The stream is never used again.
            let stream = self.new_stream(0)?;
            let [low, high] = [address as u32, (address >> 32) as u32];
            // SAFETY: [owner] thalweg-ptx-builder makes the variable with two words of 64 bits. No
            // kernel of the module has been launched yet, so none reads it meanwhile. The stream
            // was just made.
            unsafe {
                ffi::cuMemsetD32Async(variable, low, 1, stream.0)?;
                ffi::cuMemsetD32Async(variable + 4, high, 1, stream.0)?;
            }
            self.synchronize(stream)
        });
        if let Err(failure) = written {
            // SAFETY: [free] The memory is of `host_alloc`, and no kernel of the module has been
            // launched. If this fails too, the memory leaks.
            _ = unsafe { self.host_free(record) };
            return Err(failure);
        }
        Ok(Some(PanicRecord(record.cast())))
    }

    /// The module's function of this name; `None` if the module has none.
    pub(crate) fn function(&self, module: Module, entry: &str) -> Result<Option<NonNull<()>>> {
        let _current = self.enter()?;
        let Ok(name) = CString::new(entry) else { return Ok(None) };
        let mut f = null_mut();
        // SAFETY: [call] `load` made the module, which is never unloaded, and `name` is
        // NUL-terminated. The call stores one handle in `f`.
        match unsafe { ffi::cuModuleGetFunction(&mut f, module.0, name.as_ptr()) } {
            Ok(()) => {
                self.grant_shared(f)?;
                Ok(NonNull::new(f.cast()))
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Lets launches of a function ask for as much dynamic shared memory as the device has. Without
    /// this, a GPU refuses more than 48 KiB.
    fn grant_shared(&self, f: sys::CUfunction) -> Result<(), Failure> {
        use sys::CUfunction_attribute_enum as a;
        let mut fixed = 0;
        // SAFETY: [call] The caller got the function from a module of this device, whose context is
        // current. The first call stores one integer in `fixed`. The second one changes no launch
        // that runs.
        unsafe {
            ffi::cuFuncGetAttribute(&mut fixed, a::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f)?;
            let dynamic = self.info.shared as c_int - fixed;
            ffi::cuFuncSetAttribute(f, a::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic)
        }
    }

    /// Returns the number of blocks of this shape that run at once on a multiprocessor. The driver
    /// refuses the question without a function.
    pub(crate) fn occupancy(&self, function: Option<NonNull<()>>, shape: LaunchShape) -> Result<u32, Failure> {
        let _current = self.enter()?;
        let function = function.map_or(null_mut(), |f| f.as_ptr().cast());
        let threads: u32 = shape.block.iter().product(); // at most 1024, as every `LaunchShape`
        let mut blocks: c_int = 0;
        // SAFETY: [call] `enter` made the context current, and `function` is a function of this
        // device or null, which the driver refuses. The call stores one integer in `blocks`.
        unsafe {
            ffi::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                function,
                threads as c_int,
                shape.shared as usize,
            )?;
        }
        Ok(blocks.max(0) as u32)
    }

    /// Launches a kernel. The driver refuses a launch without a function.
    ///
    /// # Safety
    /// `function` is that of `kernel` on this device, and `slots` holds its parameters. It is sound
    /// for these arguments and this shape. `s` orders every other access that conflicts with the
    /// kernel's accesses to its buffers before or after the launch.
    #[inline]
    pub(crate) unsafe fn launch(
        &self,
        s: Stream,
        kernel: &Kernel,
        function: Option<NonNull<()>>,
        shape: LaunchShape,
        slots: &[u64],
    ) -> Result<(), Failure> {
        let _current = self.enter()?;
        let mut parameters = [null_mut::<c_void>(); MAX_PARAMETERS];
        let mut rest = slots;
        for (p, parameter) in parameters.iter_mut().zip(kernel.parameters()) {
            // The driver knows each parameter's size and reads so many bytes from the start of its
            // slots, where a little-endian machine has the low bytes. After the address of a buffer
            // comes its length, which only the CPU device needs.
            *p = rest.as_ptr().cast_mut().cast();
            rest = rest.get(parameter.slots()..).unwrap_or_default();
        }
        let [gx, gy, gz] = shape.grid;
        let [bx, by, bz] = shape.block;
        // SAFETY: [kernel] The caller guarantees that the function is sound for these slots, this
        // shape and this stream. `parameters` points to the slots of each parameter, and the driver
        // copies them before it returns.
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

/// The slot in which a kernel stores its function on device `ordinal`; `None` if it has no such
/// slot.
pub(crate) fn cached(kernel: &Kernel, ordinal: usize) -> Option<&AtomicPtr<()>> {
    // SAFETY: [kernel] Only `Modules::find` stores to a slot, and it stores the kernel's function
    // on the device of that ordinal.
    unsafe { kernel.functions() }.get(ordinal)
}

/// The function that a kernel has stored for device `ordinal`, if any.
#[inline]
pub(crate) fn remembered(kernel: &Kernel, ordinal: usize) -> Option<NonNull<()>> {
    NonNull::new(cached(kernel, ordinal)?.load(Ordering::Acquire))
}
