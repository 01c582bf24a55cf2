//! CUDA through the driver API: raw calls, each made with the device's context current.
//!
//! Only asynchronous calls on non-blocking streams, apart from set-up and the calls whose name says
//! that they wait. Nothing here knows types, states or tags.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys;

pub(crate) use super::ffi::Failure;
use super::{ffi, guard};
use crate::error::{Error, Result};

/// The CUDA version whose driver has every function called here.
const NEEDED: (u32, u32) = (12, 0);

/// The result of one of the calls that take their context from a stream or an event whatever context is current (CUDA C++
/// Programming Guide, "Stream and Event Behavior"), so that the usual case needs no look at the current one. Where no
/// context at all is current and the driver minds, the device's is made current and the call, which had no effect, made again.
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

mod kernels;
mod memory;

pub(crate) use kernels::{Module, cached, remembered};

/// Loads and starts the driver, once; says why where it cannot be used.
fn initialise() -> Result<()> {
    static DRIVER: OnceLock<Result<()>> = OnceLock::new();
    guard::permitted()?; // a refusal is not kept
    DRIVER
        .get_or_init(|| {
            // SAFETY: loads the driver's library and runs its initialisers, as every CUDA program does.
            if !unsafe { sys::is_culib_present() } {
                return Err(Error::NoDriver {
                    reason: "the NVIDIA driver's library (libcuda) is not on this machine".into(),
                });
            }
            // SAFETY: `cuInit` and `cuDriverGetVersion` have been in every driver; the first may be called at
            // any time and the second stores one integer.
            let (started, version) = unsafe {
                let mut version: c_int = 0;
                let started = ffi::cuInit(0);
                let _ = ffi::cuDriverGetVersion(&mut version);
                (started, version as u32)
            };
            started.map_err(|f| Error::NoDriver { reason: Error::from(f).to_string() })?;
            let found = (version / 1000, version % 1000 / 10);
            if found < NEEDED {
                return Err(Error::DriverTooOld { found, needed: NEEDED });
            }
            Ok(())
        })
        .clone()
}

/// How many CUDA devices the driver shows.
pub(crate) fn count() -> Result<usize> {
    initialise()?;
    let mut n: c_int = 0;
    // SAFETY: the driver is started; the call stores one integer.
    unsafe { ffi::cuDeviceGetCount(&mut n) }?;
    Ok(n.max(0) as usize)
}

/// What a device says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) memory: usize,
    pub(crate) copy_engines: u32,
    pub(crate) multiprocessors: u32,
    pub(crate) capability: (u32, u32),
    pub(crate) driver: (u32, u32),
    /// Least and greatest priority, as CUDA orders them: smaller is more urgent.
    pub(crate) priorities: (i32, i32),
}

/// A CUDA device: its primary context, held for the life of the process, and a memory pool.
#[derive(Debug)]
pub(crate) struct Cuda {
    pub(crate) ordinal: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    pool: sys::CUmemoryPool,
    /// Captures under way: each would be broken by a wait for the whole context.
    capturing: AtomicUsize,
    pub(crate) info: Info,
}

// SAFETY: the handles are the driver's, which may be used from every thread.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

/// A stream of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(pub(crate) sys::CUstream);
// SAFETY: a driver handle, usable from every thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// An event of the driver; owned, destroyed by [`Cuda::destroy_event`].
#[derive(Debug)]
pub(crate) struct Event(sys::CUevent);
// SAFETY: a driver handle, usable from every thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// An executable graph; owned, destroyed by [`Cuda::destroy_graph`].
#[derive(Debug)]
pub(crate) struct Graph(sys::CUgraphExec);
// SAFETY: a driver handle, usable from every thread.
unsafe impl Send for Graph {}
// SAFETY: as above; launches, which must not meet, take it exclusively.
unsafe impl Sync for Graph {}

/// Keeps the device's context current until dropped.
struct Current {
    pushed: bool,
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut old = null_mut();
            // SAFETY: pops what `enter` pushed on this thread.
            let _ = unsafe { ffi::cuCtxPopCurrent_v2(&mut old) };
        }
    }
}

fn attribute(device: sys::CUdevice, a: sys::CUdevice_attribute) -> Result<u32, Failure> {
    let mut v: c_int = 0;
    // SAFETY: a valid device; stores one integer.
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
        let mut memory = 0usize;
        let mut version: c_int = 0;
        // SAFETY: the driver is started and the ordinal exists; each call stores into its own variable,
        // and the name's length is the array's.
        unsafe {
            ffi::cuDeviceGet(&mut device, ordinal as c_int)?;
            ffi::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device)?;
            ffi::cuDeviceTotalMem_v2(&mut memory, device)?;
            ffi::cuDriverGetVersion(&mut version)?;
            ffi::cuDevicePrimaryCtxRetain(&mut context, device)?;
        }
        if attribute(device, a::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
            return Err(Error::NoDriver { reason: format!("cuda:{ordinal} has no stream-ordered memory pools") });
        }
        // A thread without a context keeps this one, as the CUDA runtime does; then no call needs to push.
        let mut current = null_mut();
        // SAFETY: reads, and sets where nothing was set, this thread's context.
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
            capturing: AtomicUsize::new(0),
            info: Info {
                name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
                memory,
                copy_engines: attribute(device, a::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
                multiprocessors: attribute(device, a::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                capability: (
                    attribute(device, a::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                    attribute(device, a::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                ),
                driver: (version as u32 / 1000, version as u32 % 1000 / 10),
                priorities: (0, 0),
            },
        };
        let _current = cuda.enter()?;
        let mut keep = u64::MAX;
        // SAFETY: the context is current; the properties are plain data for which zero means "default".
        unsafe {
            ffi::cuCtxGetStreamPriorityRange(&mut cuda.info.priorities.0, &mut cuda.info.priorities.1)?;
            let mut props: sys::CUmemPoolProps = std::mem::zeroed();
            props.allocType = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
            props.location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
            props.location.id = device;
            ffi::cuMemPoolCreate(&mut cuda.pool, &props)?;
            // Keep freed memory for the next allocation; given back when an allocation fails.
            ffi::cuMemPoolSetAttribute(
                cuda.pool,
                sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut keep).cast(),
            )?;
        }
        drop(_current);
        Ok(cuda)
    }

    /// Makes the context current on this thread.
    #[inline]
    fn enter(&self) -> Result<Current, Failure> {
        let mut current = null_mut();
        // SAFETY: reads this thread's context.
        unsafe { ffi::cuCtxGetCurrent(&mut current) }?;
        if current == self.context {
            return Ok(Current { pushed: false });
        }
        // SAFETY: the primary context is retained for the life of the process.
        unsafe { ffi::cuCtxPushCurrent_v2(self.context) }?;
        Ok(Current { pushed: true })
    }

    pub(crate) fn new_stream(&self, priority: i32) -> Result<Stream, Failure> {
        let _current = self.enter()?;
        let mut s = null_mut();
        // SAFETY: the context is current; stores one handle.
        unsafe {
            ffi::cuStreamCreateWithPriority(
                &mut s,
                sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint,
                priority,
            )?;
        }
        Ok(Stream(s))
    }

    /// The priority that the driver gave the stream.
    pub(crate) fn priority(&self, s: Stream) -> Result<i32, Failure> {
        let mut priority: c_int = 0;
        // SAFETY: `new_stream` made the stream in this context, and streams are never destroyed; the call stores one integer.
        unsafe { call_anywhere!(self, cuStreamGetPriority(s.0, &mut priority)) }?;
        Ok(priority)
    }

    pub(crate) fn synchronize(&self, s: Stream) -> Result<(), Failure> {
        // SAFETY: a stream of this context; streams are never destroyed.
        unsafe { call_anywhere!(self, cuStreamSynchronize(s.0)) }
    }

    /// Whether all work of the stream is done.
    pub(crate) fn query(&self, s: Stream) -> Result<bool, Failure> {
        // SAFETY: as in `synchronize`.
        ready(unsafe { call_anywhere!(self, cuStreamQuery(s.0)) })
    }

    pub(crate) fn new_event(&self, timed: bool) -> Result<Event, Failure> {
        let _current = self.enter()?;
        let mut e = null_mut();
        let flags = if timed { 0 } else { sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as c_uint };
        // SAFETY: the context is current; stores one handle.
        unsafe { ffi::cuEventCreate(&mut e, flags) }?;
        Ok(Event(e))
    }

    /// Gives an event back to the driver, which keeps it until pending work is past it.
    pub(crate) fn destroy_event(&self, e: Event) {
        if let Ok(_current) = self.enter() {
            // SAFETY: owned, so nobody uses it after; a failure only leaks it.
            let _ = unsafe { ffi::cuEventDestroy_v2(e.0) };
        }
    }

    #[inline]
    pub(crate) fn record(&self, e: &Event, s: Stream) -> Result<(), Failure> {
        // SAFETY: event and stream of this context.
        unsafe { call_anywhere!(self, cuEventRecord(e.0, s.0)) }
    }

    /// Makes the stream wait; the event may be another device's.
    #[inline]
    pub(crate) fn wait(&self, s: Stream, e: &Event) -> Result<(), Failure> {
        // SAFETY: a stream of this context, a recorded event.
        unsafe { call_anywhere!(self, cuStreamWaitEvent(s.0, e.0, 0)) }
    }

    /// `record` on `from`, then `wait` on `to`, both streams of this device.
    #[inline]
    pub(crate) fn hand(&self, e: &Event, from: Stream, to: Stream) -> Result<(), Failure> {
        // SAFETY: event and streams of this context.
        unsafe {
            call_anywhere!(self, cuEventRecord(e.0, from.0))?;
            call_anywhere!(self, cuStreamWaitEvent(to.0, e.0, 0))
        }
    }

    pub(crate) fn event_done(&self, e: &Event) -> Result<bool, Failure> {
        // SAFETY: an event of this context.
        ready(unsafe { call_anywhere!(self, cuEventQuery(e.0)) })
    }

    pub(crate) fn event_synchronize(&self, e: &Event) -> Result<(), Failure> {
        // SAFETY: an event of this context.
        unsafe { call_anywhere!(self, cuEventSynchronize(e.0)) }
    }

    /// Milliseconds between two complete timed events; `None` while one is not.
    pub(crate) fn elapsed(&self, start: &Event, end: &Event) -> Result<Option<f32>, Failure> {
        let _current = self.enter()?;
        let mut ms = 0.0;
        // SAFETY: two timed events; stores one number.
        Ok(ready(unsafe { ffi::cuEventElapsedTime(&mut ms, start.0, end.0) })?.then_some(ms))
    }

    /// Has the stream keep what it is given instead of running it, until [`end_capture`](Self::end_capture).
    ///
    /// Relaxed: other calls, of this thread and of others, are not held up or forbidden meanwhile, apart from waiting
    /// for the whole context.
    pub(crate) fn begin_capture(&self, s: Stream) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: a stream of this context.
        unsafe { ffi::cuStreamBeginCapture_v2(s.0, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }?;
        self.capturing.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a graph of what the stream was given since [`begin_capture`](Self::begin_capture), and says how many nodes it has.
    /// Also says whether the stream runs again what it is given: if not, it can never be used again.
    pub(crate) fn end_capture(&self, s: Stream) -> (Result<(Graph, usize), Failure>, bool) {
        let _current = match self.enter() {
            Ok(current) => current,
            Err(failure) => return (Err(failure), false),
        };
        let mut graph = null_mut();
        // SAFETY: a stream of this context; stores one handle, null where the capture is not valid.
        let ended = unsafe { ffi::cuStreamEndCapture(s.0, &mut graph) };
        self.capturing.fetch_sub(1, Ordering::Relaxed);
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED as c_uint;
        // SAFETY: as above; stores one number.
        let asked = unsafe { ffi::cuStreamIsCapturing(s.0, &mut status) };
        let usable = asked.is_ok() && status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint;
        let (mut executable, mut nodes) = (null_mut(), 0);
        let made = ended.and_then(|()| {
            // SAFETY: a valid graph; each call stores into its own variable, and a null list asks for the number alone.
            unsafe {
                ffi::cuGraphGetNodes(graph, null_mut(), &mut nodes)?;
                ffi::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
            }
        });
        if !graph.is_null() {
            // SAFETY: owned, and not used after; the executable graph is a copy.
            let _ = unsafe { ffi::cuGraphDestroy(graph) };
        }
        (made.map(|()| (Graph(executable), nodes)), usable)
    }

    /// Enqueues a whole graph. It runs after its own earlier launches, on whichever stream they are.
    ///
    /// # Safety
    /// As of every call that was captured, from now on and on this stream.
    #[inline]
    pub(crate) unsafe fn launch_graph(&self, s: Stream, graph: &mut Graph) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise; exclusive, since the driver wants no two launches of one graph at a time.
        unsafe { ffi::cuGraphLaunch(graph.0, s.0) }
    }

    /// Gives a graph back to the driver, which keeps it until its pending launches are done.
    pub(crate) fn destroy_graph(&self, graph: Graph) {
        if let Ok(_current) = self.enter() {
            // SAFETY: owned, so nobody uses it after; a failure only leaks it.
            let _ = unsafe { ffi::cuGraphExecDestroy(graph.0) };
        }
    }

    /// Blocks the stream until the word at `flag` in page-locked memory is at least `value`.
    ///
    /// # Safety
    /// `flag` stays valid until the stream is past this point.
    pub(crate) unsafe fn wait_value(&self, s: Stream, flag: *const u32, value: u32) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise; page-locked memory has the same address on the device.
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
    /// `f(data)` may be called once from a thread of the driver, and makes no CUDA call.
    pub(crate) unsafe fn launch_host(
        &self,
        s: Stream,
        f: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { ffi::cuLaunchHostFunc(s.0, Some(f), data) }
    }
}

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

    /// Also where there is no driver: the question comes first.
    #[test]
    fn no_function_of_the_driver_is_called_in_a_host_function() {
        as_host_function(|| {
            assert!(matches!(count(), Err(Error::InHostFunction)));
            let mut n = 0;
            // SAFETY: refused; else it stores one integer.
            let refused = unsafe { ffi::cuDeviceGetCount(&mut n) };
            assert!(matches!(refused, Err(Failure::Forbidden(Forbidden::HostFunction))), "{refused:?}");
        });
    }
}
