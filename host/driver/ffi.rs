//! The functions of the CUDA driver, and what their results mean.
//!
//! `cudarc` finds the library and declares its types. Its functions are not used, because they
//! return a Rust enum: a newer driver may return a code that is none of the variants, which is
//! undefined behavior. The functions here return the code as a number.

#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUgraphNode, CUhostFn, CUjit_option, CUmemAccessDesc,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUmodule, CUpointer_attribute, CUstream, CUstreamCaptureMode,
    CUtensorMap, culib,
};

use super::guard::{self, Forbidden};
use crate::error::{Error, Result};

pub(super) mod captures;

/// The reason why a call of the driver failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// The driver returned this code.
    Driver { call: &'static str, code: u32 },
    /// The call is not allowed here, so it was not made.
    Forbidden(Forbidden),
}

pub(super) const SUCCESS: u32 = 0;
pub(super) const OUT_OF_MEMORY: u32 = 2;
const NO_DEVICE: u32 = 100;
const INVALID_CONTEXT: u32 = 201;
const SYMBOL_NOT_FOUND: u32 = 302;
const INVALID_HANDLE: u32 = 400;
const NOT_FOUND: u32 = 500;
const NOT_READY: u32 = 600;
const CONTEXT_IS_DESTROYED: u32 = 709;

impl Failure {
    fn code(self) -> Option<u32> {
        match self {
            Self::Driver { code, .. } => Some(code),
            Self::Forbidden(_) => None,
        }
    }

    /// Whether the device cannot be used any more. Then it is poisoned, and memory that work may
    /// still access leaks.
    ///
    /// The function lists the codes that are harmless by what CUDA documents for `CUresult`: the
    /// call was refused, and earlier work continues. Every other code is fatal, also one that no
    /// driver has today.
    pub(crate) fn is_fatal(self) -> bool {
        let Some(code) = self.code() else { return false };
        !matches!(
            code,
            // The call does not accept a parameter or a device.
            1 | 101
            // There is no memory for what the call makes.
            | OUT_OF_MEMORY
            // A kernel image cannot be loaded or compiled. Nothing was loaded.
            | 200 | 209 | 218 | 221..=223 | 225 | 300..=303
            // A name does not exist, or work is not done yet, which is no error.
            | NOT_FOUND | NOT_READY
            // A launch asks for more than the device has. CUDA says that it "did not occur".
            | 701 | 720
            // Two devices cannot access each other's memory, or already can.
            | 217 | 704 | 705 | 711
            // Host memory is registered already, or is not registered.
            | 712 | 713
            // The call is not permitted, or the device does not support it.
            | 800 | 801
            // The call cannot be captured. At worst this invalidates the capture, and a capture
            // runs nothing.
            | 900..=908
        )
    }

    /// Whether CUDA documents that nothing more runs in the context or in the process after this
    /// failure. Fewer codes than those of [`is_fatal`](Self::is_fatal), which includes all
    /// undocumented codes.
    pub(crate) fn ends_all_work(self) -> bool {
        matches!(self.code(), Some(226 | 700 | 702 | CONTEXT_IS_DESTROYED | 710 | 714..=719 | 721 | 911))
    }

    /// Whether the call may have failed because of the context that is current.
    pub(super) fn blames_context(self) -> bool {
        matches!(self.code(), Some(INVALID_CONTEXT | INVALID_HANDLE | CONTEXT_IS_DESTROYED))
    }

    pub(super) fn is_out_of_memory(self) -> bool {
        self.code() == Some(OUT_OF_MEMORY)
    }

    pub(super) fn is_no_device(self) -> bool {
        self.code() == Some(NO_DEVICE)
    }

    pub(super) fn is_not_ready(self) -> bool {
        self.code() == Some(NOT_READY)
    }

    pub(super) fn is_not_found(self) -> bool {
        self.code() == Some(NOT_FOUND)
    }
}

impl From<Forbidden> for Failure {
    fn from(why: Forbidden) -> Self {
        Self::Forbidden(why)
    }
}

impl From<Failure> for Error {
    #[cold]
    fn from(failure: Failure) -> Self {
        let (call, code) = match failure {
            Failure::Driver { call, code } => (call, code),
            Failure::Forbidden(why) => return why.into(),
        };
        let text = |get: unsafe fn(u32, *mut *const c_char) -> Result<(), Failure>| {
            let mut p = std::ptr::null();
            // SAFETY: [call] `get` is a function of the driver that stores a pointer to a static
            // string in `p`, or null.
            let _ = unsafe { get(code, &mut p) };
            if p.is_null() {
                return "unknown".to_owned();
            }
            // SAFETY: [call] `p` is not null, so it points to a static, NUL-terminated string of
            // the driver.
            unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
        };
        Error::Cuda { call, code, name: text(cuGetErrorName), meaning: text(cuGetErrorString) }
    }
}

/// Declares functions of the driver. Each asks the guard first whether a device may be called here,
/// and changes the thread's mode if that is due. The library is searched for the function at its
/// first call.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        /// The driver's function of this name.
        ///
        /// # Safety
        /// What CUDA documents for this function holds, and `cuda::initialize` has found the
        /// library.
        #[inline]
        #[allow(clippy::too_many_arguments, reason = "the driver's parameters")]
        pub(super) unsafe fn $name($($arg: $ty),*) -> Result<(), Failure> {
            type Function = unsafe extern "C" fn($($ty),*) -> c_uint;
            static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
            guard::permitted()?;
            captures::apply();
            // SAFETY: [symbol] The function has this type in `cuda.h` of every CUDA version from
            // `cuda::NEEDED` on.
            let found = FUNCTION.get_or_init(|| unsafe { culib().get::<Function>(stringify!($name).as_bytes()) }.ok().map(|f| *f));
            let code = match found {
                // SAFETY: [call] The caller meets what CUDA documents for this function.
                Some(function) => unsafe { function($($arg),*) },
                None => SYMBOL_NOT_FOUND,
            };
            if code == SUCCESS { Ok(()) } else { Err(Failure::Driver { call: stringify!($name), code }) }
        }
    )*};
}

functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetErrorName(code: u32, name: *mut *const c_char);
    fn cuGetErrorString(code: u32, text: *mut *const c_char);

    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDeviceCanAccessPeer(possible: *mut c_int, device: CUdevice, peer: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);

    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    fn cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    fn cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemHostUnregister(address: *mut c_void);
    fn cuMemHostGetDevicePointer_v2(on_device: *mut CUdeviceptr, address: *mut c_void, flags: c_uint);

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyPeerAsync(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    );
    fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    fn cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream);
    fn cuMemsetD2D8Async(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
    fn cuMemsetD2D16Async(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream);
    fn cuMemsetD2D32Async(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream);
    fn cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, stream: CUstream);
    fn cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream);
    fn cuMemsetD32Async(to: CUdeviceptr, value: u32, count: usize, stream: CUstream);

    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);

    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);

    fn cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuStreamGetId(stream: CUstream, id: *mut u64);
    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    // The status and the mode are numbers for the same reason as the results: a newer driver may
    // have other values.
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(executable: CUgraphExec);

    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetGlobal_v2(address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: CUfunction,
        threads: c_int,
        shared: usize,
    );
    // The kinds are numbers, which the caller takes from the driver's enums.
    fn cuTensorMapEncodeTiled(
        map: *mut CUtensorMap,
        element: c_uint,
        rank: c_uint,
        address: *mut c_void,
        extents: *const u64,
        strides: *const u64,
        box_extents: *const u32,
        element_strides: *const u32,
        interleave: c_uint,
        swizzle: c_uint,
        l2_promotion: c_uint,
        fill: c_uint,
    );
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys::CUresult;

    use super::*;

    /// Puts the codes in groups. A `match` over all codes that `cudarc` knows proves that none is
    /// missing.
    macro_rules! groups {
        ($($group:ident: [$($name:ident)+])+) => {
            $(const $group: &[CUresult] = &[$(CUresult::$name),+];)+
            #[allow(dead_code, reason = "that it compiles is the check")]
            fn every_code_is_in_one_group(code: CUresult) {
                match code { $($(CUresult::$name => {})+)+ }
            }
        };
    }

    groups! {
        NO_FAILURE: [CUDA_SUCCESS]
        HARMLESS: [
            CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_INVALID_DEVICE
            CUDA_ERROR_INVALID_IMAGE CUDA_ERROR_NO_BINARY_FOR_GPU CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
            CUDA_ERROR_INVALID_PTX CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION CUDA_ERROR_JIT_COMPILATION_DISABLED
            CUDA_ERROR_INVALID_SOURCE CUDA_ERROR_FILE_NOT_FOUND
            CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
            CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_READY CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
            CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
            CUDA_ERROR_TOO_MANY_PEERS CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
            CUDA_ERROR_NOT_PERMITTED CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED CUDA_ERROR_STREAM_CAPTURE_MERGE
            CUDA_ERROR_STREAM_CAPTURE_UNMATCHED CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            CUDA_ERROR_CAPTURED_EVENT CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        ]
        FATAL: [
            CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_DEINITIALIZED CUDA_ERROR_PROFILER_DISABLED
            CUDA_ERROR_PROFILER_NOT_INITIALIZED CUDA_ERROR_PROFILER_ALREADY_STARTED
            CUDA_ERROR_PROFILER_ALREADY_STOPPED CUDA_ERROR_STUB_LIBRARY
            CUDA_ERROR_DEVICE_UNAVAILABLE CUDA_ERROR_NO_DEVICE CUDA_ERROR_DEVICE_NOT_LICENSED
            CUDA_ERROR_INVALID_CONTEXT CUDA_ERROR_CONTEXT_ALREADY_CURRENT CUDA_ERROR_MAP_FAILED
            CUDA_ERROR_UNMAP_FAILED CUDA_ERROR_ARRAY_IS_MAPPED CUDA_ERROR_ALREADY_MAPPED
            CUDA_ERROR_ALREADY_ACQUIRED CUDA_ERROR_NOT_MAPPED CUDA_ERROR_NOT_MAPPED_AS_ARRAY
            CUDA_ERROR_NOT_MAPPED_AS_POINTER CUDA_ERROR_ECC_UNCORRECTABLE
            CUDA_ERROR_UNSUPPORTED_LIMIT CUDA_ERROR_CONTEXT_ALREADY_IN_USE
            CUDA_ERROR_INVALID_GRAPHICS_CONTEXT CUDA_ERROR_NVLINK_UNCORRECTABLE
            CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY CUDA_ERROR_OPERATING_SYSTEM
            CUDA_ERROR_INVALID_HANDLE CUDA_ERROR_ILLEGAL_STATE CUDA_ERROR_ILLEGAL_ADDRESS
            CUDA_ERROR_LAUNCH_TIMEOUT CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING
            CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE CUDA_ERROR_CONTEXT_IS_DESTROYED CUDA_ERROR_ASSERT
            CUDA_ERROR_HARDWARE_STACK_ERROR CUDA_ERROR_ILLEGAL_INSTRUCTION
            CUDA_ERROR_MISALIGNED_ADDRESS CUDA_ERROR_INVALID_ADDRESS_SPACE CUDA_ERROR_INVALID_PC
            CUDA_ERROR_LAUNCH_FAILED CUDA_ERROR_SYSTEM_NOT_READY CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE CUDA_ERROR_MPS_CONNECTION_FAILED
            CUDA_ERROR_MPS_RPC_FAILURE CUDA_ERROR_MPS_SERVER_NOT_READY
            CUDA_ERROR_MPS_MAX_CLIENTS_REACHED CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED
            CUDA_ERROR_MPS_CLIENT_TERMINATED CUDA_ERROR_CDP_NOT_SUPPORTED
            CUDA_ERROR_CDP_VERSION_MISMATCH CUDA_ERROR_TIMEOUT CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
            CUDA_ERROR_EXTERNAL_DEVICE CUDA_ERROR_INVALID_CLUSTER_SIZE CUDA_ERROR_UNKNOWN
        ]
    }

    fn failure(code: u32) -> Failure {
        Failure::Driver { call: "cuStreamSynchronize", code }
    }

    /// Every code that is not known to be harmless is fatal, also codes of future drivers.
    #[test]
    fn what_is_not_known_to_be_harmless_is_fatal() {
        let harmless: Vec<u32> = HARMLESS.iter().map(|&code| code as u32).collect();
        // CUDA documents this code since a later version than the one that `cudarc` is set to: PTX
        // makes a call that it may not make.
        let newer = [225];
        for code in (1..5000).chain([u32::MAX - 1, u32::MAX]) {
            let expected = !harmless.contains(&code) && !newer.contains(&code);
            assert_eq!(failure(code).is_fatal(), expected, "code {code}");
        }
        for &code in FATAL {
            assert!(failure(code as u32).is_fatal(), "{code:?}");
        }
        // Contained errors, leaked tensor memory, and a code that no driver has.
        for code in [226, 721, 4242] {
            assert!(failure(code).is_fatal(), "{code}");
        }
        assert_eq!(NO_FAILURE, [CUresult::CUDA_SUCCESS]);
        assert!(!Failure::Forbidden(Forbidden::HostFunction).is_fatal());
    }

    /// A code that ends all work is fatal, and CUDA documents that it ends all work.
    #[test]
    fn what_ends_all_work_is_fatal() {
        for code in 0..5000 {
            assert!(!failure(code).ends_all_work() || failure(code).is_fatal(), "code {code}");
        }
        for code in [CUresult::CUDA_ERROR_UNKNOWN as u32, CUresult::CUDA_ERROR_OPERATING_SYSTEM as u32, 4242] {
            assert!(!failure(code).ends_all_work(), "code {code}");
        }
    }
}
