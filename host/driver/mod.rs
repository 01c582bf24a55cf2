//! The layer between `runtime` and the machines. Each handle here is an enum with a variant for a
//! CUDA GPU and one for the CPU device; its methods call the one or the other.
//!
//! The layer works with addresses and raw handles. It does not know element types, stream tags or
//! the states of buffers. A failed call gives facts ([`Fault`]), which `runtime` makes an error of.

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::time::Duration;

use thalweg_simt::host::{LaunchShape, counted};

pub(crate) mod cpu;
pub(crate) mod cuda;
mod ffi;
pub(crate) mod guard;
pub(crate) mod nvtx;
mod stream;
pub(crate) mod sync;
pub(crate) mod trace;
mod traced;
pub(crate) mod work_log;

use cpu::CpuError;
pub(crate) use cpu::{Pattern, Pitch, Rows};
pub(crate) use cuda::{Cuda, Failure};
pub use ffi::captures::beside_captures;

use crate::error::{Result, Version};
use guard::{Forbidden, Guarded};
use trace::Kind;
use traced::note;

/// The reason why a call failed, as facts. `runtime::device` makes the
/// [`Error`](crate::error::Error) and puts the device's name in it.
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
    /// The call joins handles of two devices that cannot wait for each other: one is a GPU and one
    /// is a CPU device, or one of two CPU devices has a seeded schedule.
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

/// An opened device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Driver {
    Cuda(&'static Cuda),
    Cpu(Guarded<&'static cpu::Cpu>),
}

/// A stream that other code made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Adopted {
    /// The driver's handle of the stream.
    Raw(*mut std::ffi::c_void),
    /// The legacy default stream.
    Legacy,
    /// The default stream of the calling thread.
    PerThread,
}

/// A stream of a device. This crate never destroys one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamHandle {
    Cuda(&'static Cuda, cuda::Stream),
    Cpu(Guarded<&'static cpu::Queue>),
}

/// A captured graph, which a stream can run any number of times.
#[derive(Debug)]
pub(crate) enum GraphHandle {
    Cuda(&'static Cuda, cuda::Graph),
    Cpu(cpu::Recording),
}

/// An event of a device.
#[derive(Debug)]
pub(crate) enum EventHandle {
    Cuda(&'static Cuda, cuda::Event),
    Cpu(Guarded<cpu::Event>),
}

impl Driver {
    /// Opens CUDA device `ordinal` for the life of the process.
    pub(crate) fn open_cuda(ordinal: usize) -> Result<Self> {
        Ok(Self::Cuda(Box::leak(Box::new(Cuda::open(ordinal)?))))
    }

    /// Makes a CPU device that lasts as long as the process.
    pub(crate) fn open_cpu(schedule: cpu::Schedule, checked: bool) -> Result<Self, Fault> {
        Ok(Self::Cpu(Guarded::new(Box::leak(Box::new(cpu::Cpu::new(schedule, checked)?)))))
    }

    /// Counts the CUDA devices. The count is 0 if the driver cannot be asked.
    pub(crate) fn cuda_devices() -> usize {
        cuda::count().unwrap_or(0)
    }

    /// Lets each of two CUDA devices copy from and to the other's memory. Does nothing for other
    /// pairs.
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
            Self::Cpu(c) => match c.facts().checked() {
                Some(seed) => format!("checked CPU device, seed {seed}"),
                None => format!("CPU device, {}", counted(c.facts().threads(), "thread")),
            },
        }
    }

    /// The device's number in the work log.
    pub(crate) fn number_in_log(self, ordinal: usize) -> usize {
        match self {
            Self::Cuda(_) => ordinal,
            Self::Cpu(c) => c.facts().number_in_log(),
        }
    }

    pub(crate) fn uuid(self) -> Option<[u8; 16]> {
        match self {
            Self::Cuda(c) => Some(c.info.uuid),
            Self::Cpu(_) => None,
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

    pub(crate) fn shared(self) -> u32 {
        match self {
            Self::Cuda(c) => c.info.shared,
            Self::Cpu(_) => thalweg_simt::host::MAX_SHARED,
        }
    }

    pub(crate) fn multiprocessors(self) -> u32 {
        match self {
            Self::Cuda(c) => c.info.multiprocessors,
            Self::Cpu(c) => c.facts().threads() as u32,
        }
    }

    /// Whether host functions of two streams can run at the same time.
    pub(crate) fn overlaps_host_functions(self) -> bool {
        match self {
            Self::Cuda(_) => false,
            Self::Cpu(c) => !c.facts().is_seeded(),
        }
    }

    /// Runs `f` with the context of a GPU current on this thread.
    pub(crate) fn with_context<T>(self, f: impl FnOnce() -> T) -> Result<T, Fault> {
        match self {
            Self::Cuda(c) => Ok(c.with_context(f)?),
            Self::Cpu(_) => Ok(f()),
        }
    }

    pub(crate) fn priorities(self) -> RangeInclusive<i32> {
        match self {
            Self::Cuda(c) => c.info.priorities.1..=c.info.priorities.0,
            Self::Cpu(_) => -1..=0,
        }
    }

    pub(crate) fn compute_capability(self) -> Option<Version> {
        match self {
            Self::Cuda(c) => Some(c.info.capability),
            Self::Cpu(_) => None,
        }
    }

    /// The newest CUDA version that the driver supports; `None` on the CPU device.
    pub(crate) fn version(self) -> Option<Version> {
        match self {
            Self::Cuda(c) => Some(c.info.driver),
            Self::Cpu(_) => None,
        }
    }

    /// Starts the schedule of another seed. Does nothing on a device without a seeded schedule.
    pub(crate) fn reseed(self, seed: u64) {
        if let Self::Cpu(cpu) = self
            && let Ok(cpu) = cpu.enter()
        {
            cpu.reseed(seed);
        }
    }

    /// Limits the device memory that may be in use at once. Does nothing on a GPU.
    pub(crate) fn limit_memory(self, bytes: Option<usize>) {
        if let Self::Cpu(cpu) = self {
            cpu.facts().limit(bytes);
        }
    }

    /// Reports a failure that makes the device unusable; on the CPU device, also a panic of a host
    /// callback, once. On a GPU, every driver call reports such a failure, so this queries `any`
    /// stream.
    pub(crate) fn check(self, any: StreamHandle) -> Result<(), Fault> {
        match self {
            Self::Cpu(cpu) => Ok(cpu.enter()?.check()?),
            Self::Cuda(_) => any.is_complete().map(drop),
        }
    }

    /// Whether streams can copy from and to pageable memory too, not only page-locked memory.
    pub(crate) fn copies_pageable(self) -> bool {
        matches!(self, Self::Cuda(_))
    }

    pub(crate) fn new_stream(self, priority: i32) -> Result<StreamHandle, Fault> {
        Ok(match self {
            Self::Cuda(c) => StreamHandle::Cuda(c, c.new_stream(priority)?),
            Self::Cpu(c) => StreamHandle::Cpu(Guarded::new(c.enter()?.queue(priority)?)),
        })
    }

    /// A handle on a stream that other code made. `None` on the CPU device, and for a stream of
    /// another context.
    ///
    /// # Safety
    /// The stream exists.
    pub(crate) unsafe fn adopt_stream(self, stream: Adopted) -> Result<Option<StreamHandle>, Fault> {
        Ok(match self {
            // SAFETY: [alive] The caller promises that the stream exists.
            Self::Cuda(c) => unsafe { c.adopt(stream) }?.map(|s| StreamHandle::Cuda(c, s)),
            Self::Cpu(_) => None,
        })
    }

    /// Whether `addr` is memory of this device, as far as the device knows. The CPU device takes
    /// every address of the process.
    pub(crate) fn owns(self, addr: u64) -> Result<bool, Fault> {
        match self {
            Self::Cuda(c) => Ok(c.owns(addr)?),
            Self::Cpu(_) => Ok(true),
        }
    }

    /// Makes a stream that is used for captures only.
    pub(crate) fn new_capture_stream(self) -> Result<StreamHandle, Fault> {
        Ok(match self {
            Self::Cuda(c) => StreamHandle::Cuda(c, c.new_stream(0)?),
            Self::Cpu(c) => StreamHandle::Cpu(Guarded::new(c.enter()?.recorder())),
        })
    }

    pub(crate) fn new_event(self, timed: bool) -> Result<EventHandle, Fault> {
        let event = match self {
            Self::Cuda(c) => EventHandle::Cuda(c, c.new_event(timed)?),
            Self::Cpu(c) => EventHandle::Cpu(Guarded::new(c.enter()?.event())),
        };
        note(|| Kind::Event { event: event.id() });
        Ok(event)
    }

    /// Allocates page-locked memory, zeroed. `combined` memory is write-combined on a GPU.
    pub(crate) fn host_alloc(self, bytes: usize, combined: bool) -> Result<NonNull<u8>, Fault> {
        let p = match self {
            Self::Cuda(c) => {
                let p = c.host_alloc(bytes, combined).map_err(|failure| Fault::of_allocation(failure, bytes))?;
                // The memory is zeroed so that a slice of it never shows old data.
                // SAFETY: [owner] `c.host_alloc` has just allocated `bytes` bytes at `p`, and
                // nobody else has `p`.
                unsafe { p.as_ptr().write_bytes(0, bytes) };
                p
            }
            Self::Cpu(c) => c.enter()?.host_alloc(bytes)?,
        };
        note(|| Kind::Pin { addr: p.addr().get() as u64, bytes: bytes as u64 });
        Ok(p)
    }

    /// Frees page-locked memory.
    ///
    /// # Safety
    /// [`host_alloc`](Self::host_alloc) of this device returned `p` for the same `bytes`, `p` is
    /// freed once, and nothing uses the memory any more.
    pub(crate) unsafe fn host_free(self, p: NonNull<u8>, bytes: usize) -> Result<(), Fault> {
        note(|| Kind::Unpin { addr: p.addr().get() as u64 });
        // SAFETY: [free] The caller passes memory of this device's `host_alloc` that is unused from
        // now on. Both machines require exactly that.
        unsafe {
            match self {
                Self::Cuda(c) => c.host_free(p)?,
                Self::Cpu(c) => c.enter()?.host_free(p, bytes),
            }
        }
        Ok(())
    }

    /// Page-locks pageable memory.
    ///
    /// # Safety
    /// The range is allocated and initialized until [`host_unregister`](Self::host_unregister).
    pub(crate) unsafe fn host_register(self, p: NonNull<u8>, bytes: usize) -> Result<(), Fault> {
        match self {
            // SAFETY: [owner] The caller passes an allocated range.
            Self::Cuda(c) => unsafe { c.host_register(p, bytes)? },
            Self::Cpu(c) => {
                c.enter()?;
                // Addresses travel through the queues as numbers.
                p.as_ptr().expose_provenance();
            }
        }
        note(|| Kind::Pin { addr: p.addr().get() as u64, bytes: bytes as u64 });
        Ok(())
    }

    /// Makes registered memory ordinary again.
    ///
    /// # Safety
    /// [`host_register`](Self::host_register) of this device took `p`, and no device uses the
    /// memory any more.
    pub(crate) unsafe fn host_unregister(self, p: NonNull<u8>) -> Result<(), Fault> {
        note(|| Kind::Unpin { addr: p.addr().get() as u64 });
        match self {
            // SAFETY: [free] The caller passes registered memory that no device uses any more.
            Self::Cuda(c) => unsafe { c.host_unregister(p)? },
            Self::Cpu(c) => _ = c.enter()?,
        }
        Ok(())
    }

    /// The address by which kernels of this device access page-locked memory.
    pub(crate) fn host_on_device(self, p: u64) -> Result<u64, Fault> {
        let at = match self {
            Self::Cuda(c) => c.host_on_device(p)?,
            Self::Cpu(c) => c.enter().map(|_| p)?,
        };
        if at != p {
            note(|| Kind::Map { addr: p, at });
        }
        Ok(at)
    }

    /// Returns the number of blocks of this shape that run at once on a multiprocessor. On a GPU it
    /// needs the kernel's `function`. A multiprocessor of the CPU device is a thread, which runs
    /// one block at a time.
    pub(crate) fn occupancy(self, function: Option<NonNull<()>>, shape: LaunchShape) -> Result<u32, Fault> {
        Ok(match self {
            Self::Cuda(c) => c.occupancy(function, shape)?,
            Self::Cpu(c) => c.enter().map(|_| 1)?,
        })
    }

    /// Gives spare device memory back to the system. On the CPU device this does nothing.
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
    /// Destroys the graph. Pending launches of it still complete.
    pub(crate) fn destroy(self) {
        if let Self::Cuda(c, graph) = self {
            c.destroy_graph(graph);
        }
    }
}

impl EventHandle {
    pub(crate) fn is_complete(&self) -> Result<bool, Fault> {
        let complete = match self {
            Self::Cuda(c, e) => c.event_done(e)?,
            Self::Cpu(e) => e.enter()?.query()?,
        };
        self.seen(complete);
        Ok(complete)
    }

    /// Whether the event is complete; false if that cannot be known. Unlike
    /// [`is_complete`](Self::is_complete), it never runs commands of a seeded schedule, so
    /// destructors and code under locks may call it.
    pub(crate) fn is_known_complete(&self) -> bool {
        let complete = match self {
            Self::Cuda(c, e) => c.event_done(e).unwrap_or(false),
            Self::Cpu(e) => e.enter().is_ok_and(cpu::Event::is_known_complete),
        };
        self.seen(complete);
        complete
    }

    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        match self {
            Self::Cuda(c, e) => c.event_synchronize(e)?,
            Self::Cpu(e) => e.enter()?.synchronize()?,
        }
        self.seen(true);
        Ok(())
    }

    /// The time from `start` to this event; `None` while one of them is not complete.
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

    /// Returns the time at which the event completed, by the host's clock; `None` before that.
    /// Always `None` on a GPU, which has its own clock.
    pub(crate) fn reached(&self) -> Option<std::time::Instant> {
        match self {
            Self::Cuda(..) => None,
            Self::Cpu(e) => e.facts().completed_at(),
        }
    }

    /// Destroys the event.
    pub(crate) fn destroy(self) {
        if let Self::Cuda(c, e) = self {
            c.destroy_event(e);
        }
    }
}
