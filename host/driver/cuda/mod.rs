//! A CUDA device, through the driver API.
//!
//! A call that needs the device's context makes it current first. Other calls take their context
//! from the stream or the event they are given (see `call_anywhere`).
//!
//! Work goes to non-blocking streams and does not wait for the device. These calls may wait: those
//! that open a device or load a module, [`Cuda::synchronize`], [`Cuda::event_synchronize`], those
//! that allocate or free page-locked memory, and [`Cuda::trim`]. None waits for the whole context:
//! that would invalidate every capture in it, and nobody knows whether other code captures.

#[cfg(target_os = "linux")]
use std::ffi::CStr;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use cudarc::driver::sys;

pub(crate) use super::ffi::Failure;
use super::{Adopted, ffi, guard};
use crate::error::{Error, Result, Version};

/// The oldest CUDA version whose driver has every function called here.
const NEEDED: Version = Version { major: 12, minor: 0 };

/// Makes a call that takes its context from its stream or event, whichever context is current (CUDA
/// C++ Programming Guide, "Stream and Event Behavior"). So the usual case does not query the
/// current context. Some drivers refuse such a call if no context is current. A refused call has no
/// effect, so this makes the device's context current and calls again.
macro_rules! call_anywhere {
    ($cuda:ident, $f:ident($($arg:expr),* $(,)?)) => {{
        match ffi::$f($($arg),*) {
            Err(f) if f.blames_context() => {
                let _current = $cuda.enter()?;
                ffi::$f($($arg),*)
            }
            result => result,
        }
    }};
}

/// Makes a call on a stream, like `call_anywhere`. A default stream is that of the context that is
/// current, so the call gets the device's context first.
macro_rules! call_on {
    ($cuda:ident, $stream:expr, $f:ident($($arg:expr),* $(,)?)) => {{
        if $stream.is_default() {
            let _current = $cuda.enter()?;
            ffi::$f($($arg),*)
        } else {
            call_anywhere!($cuda, $f($($arg),*))
        }
    }};
}

mod kernels;
mod memory;
mod tiles;

pub(crate) use kernels::{Module, PanicRecord, cached, remembered};

/// Loads and starts the driver, once.
///
/// # Errors
/// The reason why the driver cannot be used. It is kept, except for a call that is not permitted
/// here.
fn initialize() -> Result<()> {
    static DRIVER: OnceLock<Result<()>> = OnceLock::new();
    guard::permitted()?; // outside `get_or_init`, so that a refusal is not kept
    DRIVER
        .get_or_init(|| {
            // SAFETY: [symbol] This loads the driver's library and runs its initializers. NVIDIA's
            // library allows that at any time, on any thread.
            if !unsafe { sys::is_culib_present() } {
                return Err(match unloadable() {
                    Some(reason) => Error::DriverFailed { reason },
                    None => Error::NoDriver {
                        reason: "the NVIDIA driver's library (libcuda) is not on this machine".into(),
                    },
                });
            }
            // SAFETY: [symbol] The library is loaded (checked above), and every driver has these
            // two functions. `cuInit` may be called at any time. `cuDriverGetVersion` stores one
            // integer in `version`.
            let (started, version) = unsafe {
                let mut version: c_int = 0;
                let started = ffi::cuInit(0);
                let _ = ffi::cuDriverGetVersion(&mut version);
                (started, version as u32)
            };
            started.map_err(|failure| match hidden().filter(|_| failure.is_no_device()) {
                Some(value) => Error::HiddenDevices { value },
                None => Error::DriverFailed { reason: Error::from(failure).to_string() },
            })?;
            let found = Version { major: version / 1000, minor: version % 1000 / 10 };
            if found < NEEDED {
                return Err(Error::DriverTooOld { found, needed: NEEDED });
            }
            Ok(())
        })
        .clone()
}

/// Says why the driver's library, which is there, cannot be loaded. `None` if it is not there, or
/// if this system does not tell.
fn unloadable() -> Option<String> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: [symbol] The text ends in NUL. Loading is allowed as `initialize` says.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: [call] The call may be made at any time.
            let text = unsafe { libc::dlerror() };
            if !text.is_null() {
                // SAFETY: [call] `text` is not null, so it points to a NUL-terminated string, which
                // lasts until the next call of this thread to the loader.
                let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
                // A library that the driver's library needs and that is not there has its own name
                // in front.
                return (!(text.contains("libcuda.so.1:") && text.contains("No such file"))).then_some(text);
            }
        }
    }
    None
}

/// Returns `CUDA_VISIBLE_DEVICES` if it hides every GPU. Then somebody wants no GPU, and the driver
/// finds none.
fn hidden() -> Option<String> {
    let value = std::env::var("CUDA_VISIBLE_DEVICES").ok()?;
    let first = value.split(',').next().unwrap_or_default().trim();
    (first.is_empty() || first.starts_with('-') || first == "NoDevFiles").then_some(value)
}

/// Returns the number of CUDA devices that the driver shows.
pub(crate) fn count() -> Result<usize> {
    initialize()?;
    let mut n: c_int = 0;
    // SAFETY: [call] `initialize` has started the driver. The call stores one integer in `n`.
    unsafe { ffi::cuDeviceGetCount(&mut n) }?;
    match hidden().filter(|_| n <= 0) {
        Some(value) => Err(Error::HiddenDevices { value }),
        None => Ok(n.max(0) as usize),
    }
}

/// The properties of a device.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) memory: usize,
    pub(crate) copy_engines: u32,
    pub(crate) multiprocessors: u32,
    /// The most shared memory that a block can have, in bytes.
    pub(crate) shared: u32,
    pub(crate) capability: Version,
    pub(crate) driver: Version,
    /// Least and greatest priority, as CUDA orders them: smaller is more urgent.
    pub(crate) priorities: (i32, i32),
}

/// A CUDA device: its primary context, retained for the life of the process, and a memory pool.
#[derive(Debug)]
pub(crate) struct Cuda {
    pub(crate) ordinal: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    pool: sys::CUmemoryPool,
    /// The devices whose memory this one accesses, as bits. A device with a number above 63 has
    /// none.
    reached: AtomicU64,
    pub(crate) info: Info,
}

// SAFETY: [thread] The raw pointers are handles of the CUDA driver, which may be used from every
// thread.
unsafe impl Send for Cuda {}
// SAFETY: [thread] The handles may be used from several threads at once (CUDA driver API, thread
// safety). The other fields are `Sync`.
unsafe impl Sync for Cuda {}

/// A stream of the driver. One that `new_stream` made is never destroyed, and one that `adopt` took
/// exists while it is used. The SAFETY comments below call both a stream of `new_stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(pub(crate) sys::CUstream);

impl Stream {
    /// Whether it is a default stream, which belongs to the context that is current at a call: the
    /// handles 0, 1 and 2.
    #[inline]
    fn is_default(self) -> bool {
        self.0.addr() <= 2
    }

    /// Returns true if it is the per-thread default stream: each calling thread has its own.
    pub(crate) fn is_per_thread(self) -> bool {
        self.0.addr() == 2
    }
}

// SAFETY: [thread] A stream is a handle of the CUDA driver, which may be used from every thread.
unsafe impl Send for Stream {}
// SAFETY: [thread] CUDA allows several threads to use one stream at once.
unsafe impl Sync for Stream {}

/// An event of the driver, which this value owns. [`Cuda::destroy_event`] destroys it.
#[derive(Debug)]
pub(crate) struct Event(sys::CUevent);

impl Event {
    /// A number that no other event has while this one exists.
    pub(crate) fn address(&self) -> u64 {
        self.0.addr() as u64
    }
}

// SAFETY: [thread] An event is a handle of the CUDA driver, which may be used from every thread.
unsafe impl Send for Event {}
// SAFETY: [thread] CUDA allows several threads to use one event at once.
unsafe impl Sync for Event {}

/// An executable graph, which this value owns. [`Cuda::destroy_graph`] destroys it.
#[derive(Debug)]
pub(crate) struct Graph(sys::CUgraphExec);

impl Graph {
    /// A number that no other graph has while this one exists.
    pub(crate) fn address(&self) -> u64 {
        self.0.addr() as u64
    }
}

// SAFETY: [thread] A graph is a handle of the CUDA driver, which may be used from every thread.
unsafe impl Send for Graph {}
// SAFETY: [thread] CUDA forbids two launches of one graph at the same time. `launch_graph` takes
// `&mut Graph`, so shared references do not launch.
unsafe impl Sync for Graph {}

/// Keeps the device's context current on this thread until dropped.
struct Current {
    pushed: bool,
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut old = null_mut();
            // SAFETY: [call] `enter` pushed the context (`pushed` is set). Each `Current` is a
            // local variable of one call of this module, so it is dropped on the same thread. The
            // call stores one handle in `old`.
            let _ = unsafe { ffi::cuCtxPopCurrent_v2(&mut old) };
        }
    }
}

fn attribute(device: sys::CUdevice, a: sys::CUdevice_attribute) -> Result<u32, Failure> {
    let mut v: c_int = 0;
    // SAFETY: [call] `cuDeviceGet` returned the device. The call stores one integer in `v`.
    unsafe { ffi::cuDeviceGetAttribute(&mut v, a, device) }?;
    Ok(v.max(0) as u32)
}

impl Cuda {
    /// Opens device `ordinal`.
    pub(crate) fn open(ordinal: usize) -> Result<Self> {
        use sys::CUdevice_attribute_enum as a;
        let count = count()?;
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let mut device = 0;
        let mut context = null_mut();
        let mut name = [0u8; 256];
        let mut uuid = [0u8; 16];
        let mut memory = 0usize;
        let mut version: c_int = 0;
        // SAFETY: [call] `count` has started the driver, and the ordinal is below the count
        // (checked above). Each call stores into its own variable, and the length passed for the
        // name is that of the array.
        unsafe {
            ffi::cuDeviceGet(&mut device, ordinal as c_int)?;
            ffi::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device)?;
            ffi::cuDeviceGetUuid_v2(&mut uuid, device)?;
            ffi::cuDeviceTotalMem_v2(&mut memory, device)?;
            ffi::cuDriverGetVersion(&mut version)?;
            ffi::cuDevicePrimaryCtxRetain(&mut context, device)?;
        }
        ffi::captures::opened(context);
        if attribute(device, a::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
            return Err(Error::DriverFailed { reason: format!("cuda:{ordinal} has no stream-ordered memory pools") });
        }
        // If this thread has no context, make this one current and leave it, as the CUDA runtime
        // does. Then calls on this thread need not push it.
        let mut current = null_mut();
        // SAFETY: [alive] The first call stores this thread's context in `current`. The second
        // makes a context current that `cuDevicePrimaryCtxRetain` returned and that is never
        // released.
        unsafe {
            ffi::cuCtxGetCurrent(&mut current)?;
            if current.is_null() {
                ffi::cuCtxSetCurrent(context)?;
            }
        }
        let mut cuda = Self {
            ordinal,
            device,
            context,
            pool: null_mut(),
            reached: AtomicU64::new(0),
            info: Info {
                name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
                uuid,
                memory,
                copy_engines: attribute(device, a::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
                multiprocessors: attribute(device, a::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                shared: attribute(device, a::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
                capability: Version {
                    major: attribute(device, a::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                    minor: attribute(device, a::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                },
                driver: Version { major: version as u32 / 1000, minor: version as u32 % 1000 / 10 },
                priorities: (0, 0),
            },
        };
        let _current = cuda.enter()?;
        let mut keep = u64::MAX;
        // SAFETY: [call] `enter` made the context current. Each call stores into its own variable.
        // `props` is plain data, for which zero means "default", and `keep` is the 64-bit integer
        // that this attribute takes.
        unsafe {
            ffi::cuCtxGetStreamPriorityRange(&mut cuda.info.priorities.0, &mut cuda.info.priorities.1)?;
            let mut props: sys::CUmemPoolProps = std::mem::zeroed();
            props.allocType = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
            props.location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
            props.location.id = device;
            ffi::cuMemPoolCreate(&mut cuda.pool, &props)?;
            // The pool keeps freed memory for the next allocation. `trim` gives it back.
            ffi::cuMemPoolSetAttribute(
                cuda.pool,
                sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut keep).cast(),
            )?;
        }
        drop(_current);
        Ok(cuda)
    }

    /// Makes the device's context current on this thread until the result is dropped.
    #[inline]
    fn enter(&self) -> Result<Current, Failure> {
        let mut current = null_mut();
        // SAFETY: [call] `open` has started the driver. The call stores one handle in `current`.
        unsafe { ffi::cuCtxGetCurrent(&mut current) }?;
        if current == self.context {
            return Ok(Current { pushed: false });
        }
        // SAFETY: [alive] `open` retained the primary context, and nothing releases it.
        unsafe { ffi::cuCtxPushCurrent_v2(self.context) }?;
        Ok(Current { pushed: true })
    }

    /// Runs `f` with the device's context current on this thread.
    pub(crate) fn with_context<T>(&self, f: impl FnOnce() -> T) -> Result<T, Failure> {
        let _current = self.enter()?;
        Ok(f())
    }

    pub(crate) fn new_stream(&self, priority: i32) -> Result<Stream, Failure> {
        let _current = self.enter()?;
        let mut s = null_mut();
        // SAFETY: [call] `enter` made the context current. The call stores one handle in `s`.
        unsafe {
            ffi::cuStreamCreateWithPriority(
                &mut s,
                sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint,
                priority,
            )?;
        }
        Ok(Stream(s))
    }

    /// A stream that other code made. `None` if it is not of this device's primary context.
    ///
    /// # Safety
    /// The stream exists.
    pub(crate) unsafe fn adopt(&self, stream: Adopted) -> Result<Option<Stream>, Failure> {
        let raw: sys::CUstream = match stream {
            Adopted::Raw(raw) => raw.cast(),
            // The values of CU_STREAM_LEGACY and CU_STREAM_PER_THREAD in `cuda.h`. Both mean the
            // default streams of the context that is current.
            Adopted::Legacy => return Ok(Some(Stream(std::ptr::without_provenance_mut(1)))),
            Adopted::PerThread => return Ok(Some(Stream(std::ptr::without_provenance_mut(2)))),
        };
        let _current = self.enter()?;
        let mut context = null_mut();
        // SAFETY: [alive] The caller promises that the stream exists. The call stores one handle in
        // `context`.
        unsafe { ffi::cuStreamGetCtx(raw, &mut context) }?;
        Ok((context == self.context).then_some(Stream(raw)))
    }

    /// The number that the driver gave the stream. No other stream of the process ever has it, also
    /// not one that gets the handle of a stream that was destroyed.
    pub(crate) fn stream_id(&self, s: Stream) -> Result<u64, Failure> {
        let mut id = 0;
        // SAFETY: [alive] `new_stream` made the stream, or the caller of `adopt` promises that it
        // exists. The call stores one number in `id`.
        unsafe { call_on!(self, s, cuStreamGetId(s.0, &mut id)) }?;
        Ok(id)
    }

    /// Whether `addr` is memory of this device.
    pub(crate) fn owns(&self, addr: u64) -> Result<bool, Failure> {
        let _current = self.enter()?;
        let mut ordinal: c_int = -1;
        let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: [call] The attribute is one integer, which the call stores in `ordinal`.
        match unsafe { ffi::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, addr) } {
            Ok(()) => Ok(ordinal == self.device),
            // The driver does not know the address.
            Err(Failure::Driver { code, .. }) if code == sys::cudaError_enum::CUDA_ERROR_INVALID_VALUE as u32 => {
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The priority that the driver gave the stream.
    pub(crate) fn priority(&self, s: Stream) -> Result<i32, Failure> {
        let mut priority: c_int = 0;
        // SAFETY: [alive] `new_stream` made the stream, and nothing destroys it. The call stores
        // one integer in `priority`.
        unsafe { call_on!(self, s, cuStreamGetPriority(s.0, &mut priority)) }?;
        Ok(priority)
    }

    pub(crate) fn synchronize(&self, s: Stream) -> Result<(), Failure> {
        // SAFETY: [alive] `new_stream` made the stream, and nothing destroys it.
        unsafe { call_on!(self, s, cuStreamSynchronize(s.0)) }
    }

    /// Whether all work of the stream is done.
    pub(crate) fn query(&self, s: Stream) -> Result<bool, Failure> {
        // SAFETY: [alive] `new_stream` made the stream, and nothing destroys it.
        ready(unsafe { call_on!(self, s, cuStreamQuery(s.0)) })
    }

    pub(crate) fn new_event(&self, timed: bool) -> Result<Event, Failure> {
        let _current = self.enter()?;
        let mut e = null_mut();
        let flags = if timed { 0 } else { sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as c_uint };
        // SAFETY: [call] `enter` made the context current. The call stores one handle in `e`.
        unsafe { ffi::cuEventCreate(&mut e, flags) }?;
        Ok(Event(e))
    }

    /// Destroys an event. The driver keeps it until pending work has passed it.
    pub(crate) fn destroy_event(&self, e: Event) {
        if let Ok(_current) = self.enter() {
            // SAFETY: [once] `new_event` made the event, and this call owns it, so nobody uses it
            // afterwards. If the call fails, the event leaks.
            let _ = unsafe { ffi::cuEventDestroy_v2(e.0) };
        }
    }

    #[inline]
    pub(crate) fn record(&self, e: &Event, s: Stream) -> Result<(), Failure> {
        // SAFETY: [alive] Both handles are valid: `new_event` made the event, which `e` borrows,
        // and streams are never destroyed.
        unsafe { call_on!(self, s, cuEventRecord(e.0, s.0)) }
    }

    /// Makes the stream wait for the event, which may be another device's.
    #[inline]
    pub(crate) fn wait(&self, s: Stream, e: &Event) -> Result<(), Failure> {
        // SAFETY: [alive] Both handles are valid: `new_event` made the event, which `e` borrows,
        // and streams are never destroyed.
        unsafe { call_on!(self, s, cuStreamWaitEvent(s.0, e.0, 0)) }
    }

    /// Records the event on `from` and makes `to` wait for it. Both are streams of this device.
    #[inline]
    pub(crate) fn hand_off(&self, e: &Event, from: Stream, to: Stream) -> Result<(), Failure> {
        // SAFETY: [alive] All handles are valid: `new_event` made the event, which `e` borrows, and
        // streams are never destroyed.
        unsafe {
            call_on!(self, from, cuEventRecord(e.0, from.0))?;
            call_on!(self, to, cuStreamWaitEvent(to.0, e.0, 0))
        }
    }

    pub(crate) fn event_done(&self, e: &Event) -> Result<bool, Failure> {
        // SAFETY: [alive] `new_event` made the event, which `e` borrows, so it is not destroyed
        // meanwhile.
        ready(unsafe { call_anywhere!(self, cuEventQuery(e.0)) })
    }

    pub(crate) fn event_synchronize(&self, e: &Event) -> Result<(), Failure> {
        // SAFETY: [alive] `new_event` made the event, which `e` borrows, so it is not destroyed
        // meanwhile.
        unsafe { call_anywhere!(self, cuEventSynchronize(e.0)) }
    }

    /// Milliseconds between two complete timed events; `None` while one is not.
    pub(crate) fn elapsed(&self, start: &Event, end: &Event) -> Result<Option<f32>, Failure> {
        let _current = self.enter()?;
        let mut ms = 0.0;
        // SAFETY: [alive] `new_event` made both events, which are borrowed. The call stores one
        // number in `ms`, and the driver returns an error if one of them has no time.
        Ok(ready(unsafe { ffi::cuEventElapsedTime(&mut ms, start.0, end.0) })?.then_some(ms))
    }

    /// Starts a capture: the stream keeps its commands instead of running them, until
    /// [`end_capture`](Self::end_capture).
    ///
    /// The capture is relaxed: other calls of any thread stay allowed and are not delayed. A wait
    /// for the whole context would invalidate it, and is never made here.
    pub(crate) fn begin_capture(&self, s: Stream) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [alive] `enter` made the context current. `new_stream` made the stream, and
        // nothing destroys it.
        unsafe { ffi::cuStreamBeginCapture_v2(s.0, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }
    }

    /// Ends a capture. Returns the graph of what the stream was given since
    /// [`begin_capture`](Self::begin_capture), with the number of its nodes, and whether the stream
    /// has left the capture. If it has not, it can never be used again.
    pub(crate) fn end_capture(&self, s: Stream) -> (Result<(Graph, usize), Failure>, bool) {
        let _current = match self.enter() {
            Ok(current) => current,
            Err(failure) => return (Err(failure), false),
        };
        let mut graph = null_mut();
        // SAFETY: [alive] `enter` made the context current, and `new_stream` made the stream. The
        // call stores one handle in `graph`, which is null if the capture is not valid.
        let ended = unsafe { ffi::cuStreamEndCapture(s.0, &mut graph) };
        let usable = !self.is_capturing(s);
        let (mut executable, mut nodes) = (null_mut(), 0);
        let made = ended.and_then(|()| {
            // SAFETY: [call] `cuStreamEndCapture` succeeded, so `graph` is valid. Each call stores
            // into its own variable, and a null list asks for the number of nodes only.
            unsafe {
                ffi::cuGraphGetNodes(graph, null_mut(), &mut nodes)?;
                ffi::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
            }
        });
        if !graph.is_null() {
            // SAFETY: [once] `cuStreamEndCapture` gave the graph to this function alone, which does
            // not use it again. The executable graph is a copy.
            let _ = unsafe { ffi::cuGraphDestroy(graph) };
        }
        (made.map(|()| (Graph(executable), nodes)), usable)
    }

    /// Whether the stream is in a capture, or that is not known.
    pub(crate) fn is_capturing(&self, s: Stream) -> bool {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED as c_uint;
        // SAFETY: [alive] `new_stream` made the stream. The call stores one number in `status`.
        let asked = self.enter().and_then(|_current| unsafe { ffi::cuStreamIsCapturing(s.0, &mut status) });
        asked.is_err() || status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint
    }

    /// Enqueues a whole graph. It runs after its own earlier launches, whichever stream they are
    /// on.
    ///
    /// # Safety
    /// What each captured call requires holds again, as if it were made on this stream now.
    #[inline]
    pub(crate) unsafe fn launch_graph(&self, s: Stream, graph: &mut Graph) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [graph] The caller guarantees that each captured call is sound on this stream
        // now. `&mut` excludes a second launch of the graph at the same time, which CUDA forbids.
        unsafe { ffi::cuGraphLaunch(graph.0, s.0) }
    }

    /// Destroys a graph. The driver keeps it until its pending launches are done.
    pub(crate) fn destroy_graph(&self, graph: Graph) {
        if let Ok(_current) = self.enter() {
            // SAFETY: [once] `end_capture` made the graph, and this call owns it, so nobody uses it
            // afterwards. If the call fails, the graph leaks.
            let _ = unsafe { ffi::cuGraphExecDestroy(graph.0) };
        }
    }

    /// Blocks the stream until the word at `flag` is `value` or up to 2^31 - 1 more, with
    /// wrap-around.
    ///
    /// # Safety
    /// `flag` points into page-locked memory that stays allocated until the stream has passed this
    /// wait.
    pub(crate) unsafe fn wait_value(&self, s: Stream, flag: *const u32, value: u32) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [alive] The caller keeps the page-locked word allocated until the stream has
        // passed the wait, and page-locked memory has the same address on the device.
        unsafe {
            ffi::cuStreamWaitValue32_v2(
                s.0,
                flag as u64,
                value,
                sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as c_uint,
            )
        }
    }

    /// Enqueues a host function.
    ///
    /// # Safety
    /// `f(data)` may be called once from a thread of the driver. It does not unwind and makes no
    /// CUDA call.
    pub(crate) unsafe fn launch_host(
        &self,
        s: Stream,
        f: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: [alive] `new_stream` made the stream. The caller guarantees that the driver may
        // call `f(data)` once from a thread of its own.
        unsafe { ffi::cuLaunchHostFunc(s.0, Some(f), data) }
    }
}

/// Turns "not ready", which is no failure, into false.
fn ready(r: Result<(), Failure>) -> Result<bool, Failure> {
    match r {
        Ok(()) => Ok(true),
        Err(f) if f.is_not_ready() => Ok(false),
        Err(f) => Err(f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::guard::{Forbidden, as_host_function};

    /// This holds on machines without a driver too, because the guard is asked first.
    #[test]
    fn no_function_of_the_driver_is_called_in_a_host_function() {
        as_host_function(|| {
            assert!(matches!(count(), Err(Error::InHostFunction)));
            let mut n = 0;
            // SAFETY: [call] The guard refuses the call before it looks for the driver.
            let refused = unsafe { ffi::cuDeviceGetCount(&mut n) };
            assert!(matches!(refused, Err(Failure::Forbidden(Forbidden::HostFunction))), "{refused:?}");
        });
    }
}
