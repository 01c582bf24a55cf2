//! The layer between `runtime` and the machines. Each handle here is an enum with a variant for a
//! CUDA GPU and one for the CPU device; its methods call the one or the other.
//!
//! The layer works with addresses and raw handles. It does not know element types, stream tags or the
//! states of buffers. A failed call gives facts ([`Fault`]), which `runtime` makes an error of.

use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_simt::host::{Kernel, LaunchShape, counted};

pub(crate) mod cpu;
pub(crate) mod cuda;
mod ffi;
pub(crate) mod guard;
pub(crate) mod nvtx;

use cpu::CpuError;
pub(crate) use cpu::Pattern;
pub(crate) use cuda::{Cuda, Failure};

use crate::error::Result;
use crate::lock;
use guard::{Forbidden, Guarded};

/// Why a call failed, as facts. `runtime::device` makes the [`Error`](crate::error::Error) and puts
/// the device's name in it.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A function of the CUDA driver failed.
    Cuda(Failure),
    /// The CPU device failed, or refused the call.
    Cpu(CpuError),
    /// A device may not be called from here, so the call was not made.
    Forbidden(Forbidden),
    /// The device has no room for an allocation.
    OutOfMemory {
        /// Bytes asked for.
        wanted: usize,
    },
    /// The call joins handles of two devices that cannot wait for each other: one is a GPU and one is
    /// a CPU device, or one of two CPU devices has a seeded schedule.
    Unrelated,
}

impl Fault {
    /// Whether the device cannot be used any more.
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            Self::Cuda(failure) => failure.is_fatal(),
            Self::Cpu(error) => error.is_sticky(),
            Self::Forbidden(_) | Self::OutOfMemory { .. } | Self::Unrelated => false,
        }
    }

    /// Whether it is certain that nothing more runs on the device.
    pub(crate) fn ends_all_work(&self) -> bool {
        match self {
            Self::Cuda(failure) => failure.ends_all_work(),
            Self::Cpu(error) => error.is_sticky(),
            Self::Forbidden(_) | Self::OutOfMemory { .. } | Self::Unrelated => false,
        }
    }

    /// The fault of a failed CUDA allocation. The driver does not report how much was wanted.
    #[cold]
    fn of_allocation(failure: Failure, wanted: usize) -> Self {
        if failure.is_out_of_memory() { Self::OutOfMemory { wanted } } else { Self::Cuda(failure) }
    }
}

impl From<Failure> for Fault {
    fn from(f: Failure) -> Self {
        Self::Cuda(f)
    }
}
impl From<CpuError> for Fault {
    fn from(e: CpuError) -> Self {
        Self::Cpu(e)
    }
}
impl From<Forbidden> for Fault {
    fn from(why: Forbidden) -> Self {
        Self::Forbidden(why)
    }
}

/// A machine that runs streams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Driver {
    Cuda(&'static Cuda),
    Cpu(Guarded<&'static cpu::Cpu>),
}

/// A stream of a machine; never destroyed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamHandle {
    Cuda(&'static Cuda, cuda::Stream),
    Cpu(Guarded<&'static cpu::Queue>),
}

/// What a stream of a machine was given, to be run any number of times.
#[derive(Debug)]
pub(crate) enum GraphHandle {
    Cuda(&'static Cuda, cuda::Graph),
    Cpu(cpu::Recording),
}

/// An event of a machine.
#[derive(Debug)]
pub(crate) enum EventHandle {
    Cuda(&'static Cuda, cuda::Event),
    Cpu(Guarded<cpu::Event>),
}

impl Driver {
    /// CUDA device `ordinal`, for the life of the process.
    pub(crate) fn open_cuda(ordinal: usize) -> Result<Self> {
        Ok(Self::Cuda(Box::leak(Box::new(Cuda::open(ordinal)?))))
    }

    /// A CPU device, for the life of the process.
    pub(crate) fn open_cpu(schedule: cpu::Schedule) -> Result<Self, Fault> {
        Ok(Self::Cpu(Guarded::new(Box::leak(Box::new(cpu::Cpu::new(schedule)?)))))
    }

    /// How many CUDA devices there are; 0 where that cannot be known.
    pub(crate) fn cuda_devices() -> usize {
        cuda::count().unwrap_or(0)
    }

    /// Lets each of two devices copy from and to the other's memory, where both are CUDA devices.
    pub(crate) fn reach(self, other: Self) -> Result<(), Fault> {
        if let (Self::Cuda(a), Self::Cuda(b)) = (self, other) {
            a.reach(b)?;
            b.reach(a)?;
        }
        Ok(())
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Cuda(c) => c.info.name.clone(),
            Self::Cpu(c) => format!("CPU device, {}", counted(c.facts().threads(), "thread")),
        }
    }

    /// Bytes of device memory.
    pub(crate) fn total_memory(self) -> usize {
        match self {
            Self::Cuda(c) => c.info.memory,
            Self::Cpu(c) => c.facts().memory().total,
        }
    }

    pub(crate) fn copy_engines(self) -> u32 {
        match self {
            Self::Cuda(c) => c.info.copy_engines,
            Self::Cpu(c) => c.facts().threads() as u32,
        }
    }

    pub(crate) fn multiprocessors(self) -> u32 {
        match self {
            Self::Cuda(c) => c.info.multiprocessors,
            Self::Cpu(c) => c.facts().threads() as u32,
        }
    }

    pub(crate) fn priorities(self) -> RangeInclusive<i32> {
        match self {
            Self::Cuda(c) => c.info.priorities.1..=c.info.priorities.0,
            Self::Cpu(_) => -1..=0,
        }
    }

    pub(crate) fn compute_capability(self) -> Option<(u32, u32)> {
        match self {
            Self::Cuda(c) => Some(c.info.capability),
            Self::Cpu(_) => None,
        }
    }

    /// The newest CUDA version that the driver supports.
    pub(crate) fn version(self) -> Option<(u32, u32)> {
        match self {
            Self::Cuda(c) => Some(c.info.driver),
            Self::Cpu(_) => None,
        }
    }

    /// Starts the order of another seed, on a CPU device that has one.
    pub(crate) fn reseed(self, seed: u64) {
        if let Self::Cpu(cpu) = self
            && let Ok(cpu) = cpu.enter()
        {
            cpu.reseed(seed);
        }
    }

    /// Lets a CPU device hold at most so many bytes.
    pub(crate) fn limit_memory(self, bytes: Option<usize>) {
        if let Self::Cpu(cpu) = self {
            cpu.facts().limit(bytes);
        }
    }

    /// Reports a failure after which nothing works. On a GPU every call reports it, such as a question about `any` stream.
    pub(crate) fn check(self, any: StreamHandle) -> Result<(), Fault> {
        match self {
            Self::Cpu(cpu) => Ok(cpu.enter()?.check()?),
            Self::Cuda(_) => any.is_done().map(drop),
        }
    }

    /// Whether streams copy from and to ordinary memory, and not only page-locked memory.
    pub(crate) fn copies_pageable(self) -> bool {
        matches!(self, Self::Cuda(_))
    }

    pub(crate) fn new_stream(self, priority: i32) -> Result<StreamHandle, Fault> {
        Ok(match self {
            Self::Cuda(c) => StreamHandle::Cuda(c, c.new_stream(priority)?),
            Self::Cpu(c) => StreamHandle::Cpu(Guarded::new(c.enter()?.queue(priority)?)),
        })
    }

    /// A stream for captures and nothing else.
    pub(crate) fn new_capture_stream(self) -> Result<StreamHandle, Fault> {
        Ok(match self {
            Self::Cuda(c) => StreamHandle::Cuda(c, c.new_stream(0)?),
            Self::Cpu(c) => StreamHandle::Cpu(Guarded::new(c.enter()?.recorder())),
        })
    }

    pub(crate) fn new_event(self, timed: bool) -> Result<EventHandle, Fault> {
        Ok(match self {
            Self::Cuda(c) => EventHandle::Cuda(c, c.new_event(timed)?),
            Self::Cpu(c) => EventHandle::Cpu(Guarded::new(c.enter()?.event())),
        })
    }

    pub(crate) fn host_alloc(self, bytes: usize) -> Result<NonNull<u8>, Fault> {
        Ok(match self {
            Self::Cuda(c) => {
                let p = c.host_alloc(bytes).map_err(|failure| Fault::of_allocation(failure, bytes))?;
                // SAFETY: fresh memory of this size. Zeroed, so that a slice of it shows nobody's old data.
                unsafe { p.as_ptr().write_bytes(0, bytes) };
                p
            }
            Self::Cpu(c) => c.enter()?.host_alloc(bytes)?,
        })
    }

    /// # Safety
    /// `p` came from [`host_alloc`](Self::host_alloc) with these bytes, and nothing uses it any more.
    pub(crate) unsafe fn host_free(self, p: NonNull<u8>, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Cuda(c) => c.host_free(p)?,
                Self::Cpu(c) => c.enter()?.host_free(p, bytes),
            }
        }
        Ok(())
    }

    /// Gives spare device memory back to the system. The CPU device keeps none.
    pub(crate) fn trim(self) -> Result<(), Fault> {
        match self {
            Self::Cuda(c) => c.trim()?,
            Self::Cpu(c) => _ = c.enter()?,
        }
        Ok(())
    }

    /// Free and total bytes of device memory.
    pub(crate) fn memory(self) -> Result<(usize, usize), Fault> {
        Ok(match self {
            Self::Cuda(c) => c.memory()?,
            Self::Cpu(c) => {
                let m = c.enter()?.memory();
                (m.free, m.total)
            }
        })
    }
}

impl GraphHandle {
    /// Gives the graph back; pending launches go on.
    pub(crate) fn destroy(self) {
        if let Self::Cuda(c, graph) = self {
            c.destroy_graph(graph);
        }
    }
}

impl EventHandle {
    pub(crate) fn is_done(&self) -> Result<bool, Fault> {
        Ok(match self {
            Self::Cuda(c, e) => c.event_done(e)?,
            Self::Cpu(e) => e.enter()?.query()?,
        })
    }

    /// As [`is_done`](Self::is_done), for destructors and under locks: runs nothing; "no" where that cannot be known.
    pub(crate) fn passed(&self) -> bool {
        match self {
            Self::Cuda(c, e) => c.event_done(e).unwrap_or(false),
            Self::Cpu(e) => e.enter().is_ok_and(cpu::Event::passed),
        }
    }

    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        match self {
            Self::Cuda(c, e) => c.event_synchronize(e)?,
            Self::Cpu(e) => e.enter()?.synchronize()?,
        }
        Ok(())
    }

    /// Time from `start` to this event; `None` while one is not complete.
    pub(crate) fn since(&self, start: &Self) -> Result<Option<Duration>, Fault> {
        Ok(match (self, start) {
            (Self::Cuda(c, end), Self::Cuda(_, start)) => {
                c.elapsed(start, end)?.map(|ms| Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
            }
            (Self::Cpu(end), Self::Cpu(start)) => {
                let times = end.enter()?.completed_at().zip(start.enter()?.completed_at());
                times.map(|(end, start)| end.saturating_duration_since(start))
            }
            _ => return Err(Fault::Unrelated),
        })
    }

    /// When it was reached, by the host's clock; `None` before that, and always on a GPU, which has a clock of its own.
    pub(crate) fn reached(&self) -> Option<std::time::Instant> {
        match self {
            Self::Cuda(..) => None,
            Self::Cpu(e) => e.facts().completed_at(),
        }
    }

    /// Gives the event back.
    pub(crate) fn destroy(self) {
        if let Self::Cuda(c, e) = self {
            c.destroy_event(e);
        }
    }
}

impl StreamHandle {
    /// The driver's own handle; `None` on the CPU device.
    pub(crate) fn raw(self) -> Option<*mut c_void> {
        match self {
            Self::Cuda(_, s) => Some(s.0.cast()),
            Self::Cpu(_) => None,
        }
    }

    /// The priority that the machine gave the stream.
    pub(crate) fn priority(self) -> Result<i32, Fault> {
        Ok(match self {
            Self::Cuda(c, s) => c.priority(s)?,
            Self::Cpu(q) => q.facts().priority(),
        })
    }

    #[inline]
    pub(crate) fn record(self, event: &EventHandle) -> Result<(), Fault> {
        match (self, event) {
            (Self::Cuda(c, s), EventHandle::Cuda(_, e)) => c.record(e, s)?,
            (Self::Cpu(q), EventHandle::Cpu(e)) => q.enter()?.record(e.facts()),
            _ => return Err(Fault::Unrelated),
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn wait(self, event: &EventHandle) -> Result<(), Fault> {
        match (self, event) {
            (Self::Cuda(c, s), EventHandle::Cuda(_, e)) => c.wait(s, e)?,
            (Self::Cpu(q), EventHandle::Cpu(e)) if q.facts().can_wait(e.facts()) => q.enter()?.wait(e.facts())?,
            _ => return Err(Fault::Unrelated),
        }
        Ok(())
    }

    /// Records `event` here and makes `to` wait for it.
    #[inline]
    pub(crate) fn hand(self, event: &EventHandle, to: Self) -> Result<(), Fault> {
        if let (Self::Cuda(c, from), EventHandle::Cuda(_, e), Self::Cuda(d, to)) = (self, event, to)
            && std::ptr::eq(c, d)
        {
            return Ok(c.hand(e, from, to)?);
        }
        self.record(event)?;
        to.wait(event)
    }

    /// Has a [capture stream](Driver::new_capture_stream) keep what it is given.
    pub(crate) fn begin_capture(self) -> Result<(), Fault> {
        match self {
            Self::Cuda(c, s) => c.begin_capture(s)?,
            Self::Cpu(q) => _ = q.enter()?,
        }
        Ok(())
    }

    /// What the capture stream was given, and how many nodes that is; and whether the stream can be used again.
    pub(crate) fn end_capture(self) -> (Result<(GraphHandle, usize), Fault>, bool) {
        match self {
            Self::Cuda(c, s) => {
                let (graph, usable) = c.end_capture(s);
                (graph.map(|(graph, nodes)| (GraphHandle::Cuda(c, graph), nodes)).map_err(Fault::Cuda), usable)
            }
            Self::Cpu(q) => match q.enter() {
                Ok(q) => {
                    let recording = q.take_recording();
                    let nodes = recording.len();
                    (Ok((GraphHandle::Cpu(recording), nodes)), true)
                }
                Err(why) => (Err(why.into()), false),
            },
        }
    }

    /// Enqueues all of a graph of this stream's device.
    ///
    /// # Safety
    /// As of every call that was captured, from now on and on this stream.
    #[inline]
    pub(crate) unsafe fn replay(self, graph: &mut GraphHandle) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match (self, graph) {
                (Self::Cuda(c, s), GraphHandle::Cuda(_, graph)) => c.launch_graph(s, graph)?,
                (Self::Cpu(q), GraphHandle::Cpu(recording)) => q.enter()?.replay(recording),
                _ => return Err(Fault::Unrelated),
            }
        }
        Ok(())
    }

    pub(crate) fn synchronize(self) -> Result<(), Fault> {
        match self {
            Self::Cuda(c, s) => c.synchronize(s)?,
            Self::Cpu(q) => q.enter()?.synchronize()?,
        }
        Ok(())
    }

    pub(crate) fn is_done(self) -> Result<bool, Fault> {
        Ok(match self {
            Self::Cuda(c, s) => c.query(s)?,
            Self::Cpu(q) => q.enter()?.query()?,
        })
    }

    /// Allocates device memory in stream order. What it holds is arbitrary.
    #[inline]
    pub(crate) fn alloc(self, bytes: usize) -> Result<u64, Fault> {
        Ok(match self {
            Self::Cuda(c, s) => c.alloc(s, bytes).map_err(|failure| Fault::of_allocation(failure, bytes))?,
            Self::Cpu(q) => q.enter()?.cpu().alloc(bytes)?.as_ptr().expose_provenance() as u64,
        })
    }

    /// # Safety
    /// `addr` came from an allocation on the stream's device, is freed once, and its uses are ordered before
    /// this call by the stream.
    #[inline]
    pub(crate) unsafe fn free(self, addr: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.free(s, addr)?,
                Self::Cpu(q) => q.enter()?.free(addr, bytes),
            }
        }
        Ok(())
    }

    /// # Safety
    /// Both ranges are valid until the copy is done, and their uses are ordered with it by the stream.
    #[inline]
    pub(crate) unsafe fn copy_to_device(self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.copy_to_device(s, to, from as usize as *const u8, bytes)?,
                Self::Cpu(q) => q.enter()?.copy(to, from, bytes),
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`copy_to_device`](Self::copy_to_device).
    #[inline]
    pub(crate) unsafe fn copy_to_host(self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.copy_to_host(s, to as usize as *mut u8, from, bytes)?,
                Self::Cpu(q) => q.enter()?.copy(to, from, bytes),
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`copy_to_device`](Self::copy_to_device).
    #[inline]
    pub(crate) unsafe fn copy(self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.copy(s, to, from, bytes)?,
                Self::Cpu(q) => q.enter()?.copy(to, from, bytes),
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`copy_to_device`](Self::copy_to_device); each address is of the device beside it.
    pub(crate) unsafe fn copy_peer(self, to: (Driver, u64), from: (Driver, u64), bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match (self, to, from) {
                (Self::Cuda(c, s), (Driver::Cuda(a), to), (Driver::Cuda(b), from)) => {
                    c.copy_peer(s, (a, to), (b, from), bytes)?;
                }
                (Self::Cpu(q), (Driver::Cpu(_), to), (Driver::Cpu(_), from)) => q.enter()?.copy(to, from, bytes),
                _ => return Err(Fault::Unrelated),
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`copy_to_device`](Self::copy_to_device); `to` holds `count` elements of the pattern's size.
    pub(crate) unsafe fn fill(self, to: u64, pattern: Pattern, count: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.fill(s, to, pattern, count)?,
                Self::Cpu(q) => q.enter()?.fill(to, pattern, count),
            }
        }
        Ok(())
    }

    /// Blocks the stream until the word at `flag` is at least `value`.
    ///
    /// # Safety
    /// `flag` is in page-locked memory and stays valid until the stream is past this point.
    pub(crate) unsafe fn wait_value(self, flag: *const AtomicU32, value: u32) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.wait_value(s, flag.cast(), value)?,
                Self::Cpu(q) => q.enter()?.wait_value(flag, value),
            }
        }
        Ok(())
    }

    /// Enqueues a host function. Where the stream cannot take it, it is dropped.
    pub(crate) fn launch_host(self, f: Box<dyn FnOnce() + Send>) -> Result<(), Fault> {
        type Slot = Mutex<Option<Box<dyn FnOnce() + Send>>>;
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: a reference of its own, which `launch_host` made by `Arc::into_raw` and the driver passes on once.
            let slot = unsafe { Arc::from_raw(data.cast::<Slot>().cast_const()) };
            let f = lock(&slot).take();
            if let Some(f) = f {
                f();
            }
        }
        match self {
            Self::Cuda(c, s) => {
                let slot: Arc<Slot> = Arc::new(Mutex::new(Some(f)));
                let data = Arc::into_raw(slot.clone()).cast_mut().cast();
                // SAFETY: `run` takes the reference back once; the closure never unwinds (the typed layer wraps it).
                if let Err(failure) = unsafe { c.launch_host(s, run, data) } {
                    // The failure may be an earlier call's, so that the driver may still call `run`. It finds nothing then, and
                    // whether it is called or not, its reference does no harm.
                    let f = lock(&slot).take();
                    drop(f);
                    return Err(failure.into());
                }
            }
            Self::Cpu(q) => q.enter()?.host(f),
        }
        Ok(())
    }

    /// # Safety
    /// The kernel is sound for these arguments and this shape; buffers among them are ordered by the
    /// stream; `function` is the kernel's on this device, given where the device is CUDA.
    #[inline]
    pub(crate) unsafe fn launch(
        self,
        kernel: &'static Kernel,
        function: Option<NonNull<()>>,
        shape: LaunchShape,
        slots: &[u64],
    ) -> Result<(), Fault> {
        // SAFETY: The caller promises all of it.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.launch(s, function, shape, slots)?,
                Self::Cpu(q) => q.enter()?.launch(kernel, shape, slots)?,
            }
        }
        Ok(())
    }
}
