//! The operations of streams of either machine.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use thalweg_simt::host::{Kernel, LaunchShape, MatrixView, TensorMap};

use super::cpu::Work;
use super::trace::{self, Access, Kind, Row};
use super::traced::{self, done, note};
use super::{Driver, EventHandle, Fault, GraphHandle, Pattern, Rows, StreamHandle};
use crate::error::Version;
use crate::lock;

impl StreamHandle {
    /// The driver's own handle; `None` on the CPU device.
    pub(crate) fn raw(self) -> Option<*mut c_void> {
        match self {
            Self::Cuda(_, s) => Some(s.0.cast()),
            Self::Cpu(_) => None,
        }
    }

    /// The number of a queue of the CPU device in the work log.
    pub(crate) fn queue_in_log(self) -> Option<u64> {
        match self {
            Self::Cuda(..) => None,
            Self::Cpu(q) => Some(q.facts().number_in_log()),
        }
    }

    /// The priority that the stream has.
    pub(crate) fn priority(self) -> Result<i32, Fault> {
        Ok(match self {
            Self::Cuda(c, s) => c.priority(s)?,
            Self::Cpu(q) => q.facts().priority(),
        })
    }

    #[inline]
    #[track_caller]
    pub(crate) fn record(self, event: &EventHandle) -> Result<(), Fault> {
        let calling = self.calling(|stream| Row::new(Kind::Record { stream, event: event.id() }, ""));
        match (self, event) {
            (Self::Cuda(c, s), EventHandle::Cuda(_, e)) => c.record(e, s)?,
            (Self::Cpu(q), EventHandle::Cpu(e)) => q.enter()?.record(e.facts()),
            _ => return Err(Fault::Unrelated),
        }
        done(calling);
        Ok(())
    }

    #[inline]
    #[track_caller]
    pub(crate) fn wait(self, event: &EventHandle) -> Result<(), Fault> {
        let calling = self.calling(|stream| Row::new(Kind::Wait { stream, event: event.id() }, ""));
        match (self, event) {
            (Self::Cuda(c, s), EventHandle::Cuda(_, e)) => c.wait(s, e)?,
            (Self::Cpu(q), EventHandle::Cpu(e)) if q.facts().can_wait(e.facts()) => q.enter()?.wait(e.facts())?,
            _ => return Err(Fault::Unrelated),
        }
        done(calling);
        Ok(())
    }

    /// Records `event` here and makes `to` wait for it.
    #[inline]
    #[track_caller]
    pub(crate) fn hand_off(self, event: &EventHandle, to: Self) -> Result<(), Fault> {
        if let (Self::Cuda(c, from), EventHandle::Cuda(_, e), Self::Cuda(d, to)) = (self, event, to)
            && std::ptr::eq(c, d)
            && !trace::on()
        {
            return Ok(c.hand_off(e, from, to)?);
        }
        self.record(event)?;
        to.wait(event)
    }

    /// Starts a capture on a [capture stream](Driver::new_capture_stream).
    pub(crate) fn begin_capture(self) -> Result<(), Fault> {
        match self {
            Self::Cuda(c, s) => c.begin_capture(s)?,
            Self::Cpu(q) => _ = q.enter()?,
        }
        note(|| Kind::Capture { stream: self.number() });
        Ok(())
    }

    /// Starts a branch of a capture on `branch`, another [capture
    /// stream](Driver::new_capture_stream), with what was captured so far before it. Returns the
    /// number that [`join`](Self::join) takes.
    pub(crate) fn fork(self, event: &EventHandle, branch: Self) -> Result<usize, Fault> {
        let forked = match (self, branch) {
            (Self::Cpu(q), Self::Cpu(_)) => q.enter()?.recorded(),
            _ => self.hand_off(event, branch).map(|()| 0)?,
        };
        note(|| Kind::Fork { stream: self.number(), branch: branch.number() });
        Ok(forked)
    }

    /// Ends a branch of a capture. What is captured later comes after it. `event` is that of the
    /// branch, and `forked` the number that [`fork`](Self::fork) returned.
    pub(crate) fn join(self, forked: usize, branch: Self, event: &EventHandle) -> Result<(), Fault> {
        match (self, branch) {
            (Self::Cpu(q), Self::Cpu(branch)) => q.enter()?.join(forked, branch.enter()?),
            _ => branch.hand_off(event, self)?,
        }
        note(|| Kind::Join { stream: self.number(), branch: branch.number() });
        Ok(())
    }

    /// The number of the stream, which no other stream of the process ever has; of a stream of the
    /// CPU device there is none.
    pub(crate) fn id(self) -> Result<Option<u64>, Fault> {
        match self {
            Self::Cuda(c, s) => Ok(Some(c.stream_id(s)?)),
            Self::Cpu(_) => Ok(None),
        }
    }

    /// Whether a stream is in a capture, or that is not known. On the CPU device only capture
    /// streams can be, and those are ours.
    pub(crate) fn is_capturing(self) -> bool {
        match self {
            Self::Cuda(c, s) => c.is_capturing(s),
            Self::Cpu(_) => false,
        }
    }

    /// Ends the capture. Returns the graph with the number of its nodes, and whether the stream can
    /// be used again.
    pub(crate) fn end_capture(self) -> (Result<(GraphHandle, usize), Fault>, bool) {
        let (graph, usable) = match self {
            Self::Cuda(c, s) => {
                let (graph, usable) = c.end_capture(s);
                (graph.map(|(graph, nodes)| (GraphHandle::Cuda(c, graph), nodes)).map_err(Fault::Cuda), usable)
            }
            Self::Cpu(q) => match q.enter() {
                Ok(q) => {
                    let graph = q.take_recording().map(|recording| {
                        let nodes = recording.len();
                        (GraphHandle::Cpu(recording), nodes)
                    });
                    (graph.map_err(Fault::Cpu), true)
                }
                Err(why) => (Err(why.into()), false),
            },
        };
        note(|| Kind::Graph { stream: self.number(), graph: graph.as_ref().map_or(0, |(graph, _)| graph.id()) });
        (graph, usable)
    }

    /// Enqueues the whole graph.
    ///
    /// # Safety
    /// The graph was captured on this stream's device. What each captured call requires holds
    /// again, as if it were made on this stream now.
    #[inline]
    #[track_caller]
    pub(crate) unsafe fn replay(self, graph: &mut GraphHandle) -> Result<(), Fault> {
        let calling = self.calling(|stream| Row::new(Kind::Replay { stream, graph: graph.id() }, ""));
        // SAFETY: [graph] The caller guarantees that each captured call is sound on this stream
        // now, which is what both machines require.
        unsafe {
            match (self, graph) {
                (Self::Cuda(c, s), GraphHandle::Cuda(_, graph)) => c.launch_graph(s, graph)?,
                (Self::Cpu(q), GraphHandle::Cpu(recording)) => q.enter()?.replay(recording)?,
                _ => return Err(Fault::Unrelated),
            }
        }
        done(calling);
        Ok(())
    }

    pub(crate) fn synchronize(self) -> Result<(), Fault> {
        let wait = || match self {
            Self::Cuda(c, s) => Ok(c.synchronize(s)?),
            Self::Cpu(q) => Ok(q.enter()?.synchronize()?),
        };
        self.waiting(|| wait().map(|()| true)).map(drop)
    }

    pub(crate) fn is_complete(self) -> Result<bool, Fault> {
        self.waiting(|| match self {
            Self::Cuda(c, s) => Ok(c.query(s)?),
            Self::Cpu(q) => Ok(q.enter()?.query()?),
        })
    }

    /// Allocates device memory in stream order. Its content is arbitrary.
    #[inline]
    #[track_caller]
    pub(crate) fn alloc(self, bytes: usize) -> Result<u64, Fault> {
        let addr = match self {
            Self::Cuda(c, s) => c.alloc(s, bytes).map_err(|failure| Fault::of_allocation(failure, bytes))?,
            Self::Cpu(q) => q.enter()?.cpu().alloc(bytes)?.as_ptr().expose_provenance() as u64,
        };
        note(|| Kind::Alloc { stream: self.number(), addr, bytes: bytes as u64 });
        Ok(addr)
    }

    /// Frees device memory in stream order.
    ///
    /// # Safety
    /// [`alloc`](Self::alloc) on a stream of the same device returned `addr` for the same `bytes`,
    /// `addr` is freed once, and the stream orders all uses of the memory before this call.
    #[inline]
    pub(crate) unsafe fn free(self, addr: u64, bytes: usize) -> Result<(), Fault> {
        let calling = self.calling(|stream| Row::new(Kind::Free { stream, addr, bytes: bytes as u64 }, ""));
        if let (Self::Cuda(..), Some(calling)) = (self, &calling) {
            calling.now(); // the allocator may reuse the memory as soon as it is freed
        }
        // SAFETY: [free] The caller frees an allocation of this device once, after all its uses in
        // stream order. Both machines require exactly that.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.free(s, addr)?,
                Self::Cpu(q) => q.enter()?.free(addr, bytes),
            }
        }
        done(calling);
        Ok(())
    }

    /// Copies from host memory to device memory.
    ///
    /// # Safety
    /// Both ranges are valid for `bytes` until the copy is done and do not overlap. The stream
    /// orders every other access that conflicts with the copy before or after it.
    #[inline]
    #[track_caller]
    pub(crate) unsafe fn copy_to_device(self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        let calling = self.working("copy_to_device", || {
            [Access::read(from, bytes as u64).of_host(true), Access::write(to, bytes as u64)]
        });
        // SAFETY: [order] The caller passes two valid ranges whose other uses the stream orders
        // with the copy. The method of either machine requires the same.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.copy_to_device(s, to, from as usize as *const u8, bytes)?,
                Self::Cpu(q) => q.enter()?.submit(Work::Copy { dst: to, src: from, bytes }),
            }
        }
        done(calling);
        Ok(())
    }

    /// Copies from device memory to host memory.
    ///
    /// # Safety
    /// The same as for [`copy_to_device`](Self::copy_to_device).
    #[inline]
    #[track_caller]
    pub(crate) unsafe fn copy_to_host(self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        let calling = self.working("copy_to_host", || {
            [Access::read(from, bytes as u64), Access::write(to, bytes as u64).of_host(true)]
        });
        // SAFETY: [order] The caller passes two valid ranges whose other uses the stream orders
        // with the copy. The method of either machine requires the same.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.copy_to_host(s, to as usize as *mut u8, from, bytes)?,
                Self::Cpu(q) => q.enter()?.submit(Work::Copy { dst: to, src: from, bytes }),
            }
        }
        done(calling);
        Ok(())
    }

    /// Copies within the memory of the stream's device.
    ///
    /// # Safety
    /// The same as for [`copy_to_device`](Self::copy_to_device).
    #[inline]
    #[track_caller]
    pub(crate) unsafe fn copy(self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        let calling = self.working("copy", || [Access::read(from, bytes as u64), Access::write(to, bytes as u64)]);
        // SAFETY: [order] The caller passes two valid ranges whose other uses the stream orders
        // with the copy. The method of either machine requires the same.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.copy(s, to, from, bytes)?,
                Self::Cpu(q) => q.enter()?.submit(Work::Copy { dst: to, src: from, bytes }),
            }
        }
        done(calling);
        Ok(())
    }

    /// Copies from the memory of one device to that of another.
    ///
    /// # Safety
    /// The same as for [`copy_to_device`](Self::copy_to_device), and each address belongs to the
    /// device beside it.
    #[track_caller]
    pub(crate) unsafe fn copy_peer(self, to: (Driver, u64), from: (Driver, u64), bytes: usize) -> Result<(), Fault> {
        let calling =
            self.working("copy_peer", || [Access::read(from.1, bytes as u64), Access::write(to.1, bytes as u64)]);
        // SAFETY: [order] The caller passes two valid ranges, each with its device, whose other
        // uses the stream orders with the copy. The method of either machine requires the same.
        unsafe {
            match (self, to, from) {
                (Self::Cuda(c, s), (Driver::Cuda(a), to), (Driver::Cuda(b), from)) => {
                    c.copy_peer(s, (a, to), (b, from), bytes)?;
                }
                (Self::Cpu(q), (Driver::Cpu(_), to), (Driver::Cpu(_), from)) => {
                    q.enter()?.submit(Work::Copy { dst: to, src: from, bytes })
                }
                _ => return Err(Fault::Unrelated),
            }
        }
        done(calling);
        Ok(())
    }

    /// Copies planes of rows. `host` says which side is host memory: the source and the target.
    ///
    /// # Safety
    /// Both sides have all rows, valid until the copy is done. The rows of the target do not
    /// overlap, neither one another nor the source. The stream orders every other access that
    /// conflicts with the copy before or after it.
    #[track_caller]
    pub(crate) unsafe fn copy_rows(self, copy: Rows, host: [bool; 2]) -> Result<(), Fault> {
        let calling = self.working("copy_rows", || traced::rows(&copy, host));
        // SAFETY: [order] The caller passes valid rows whose other uses the stream orders with the
        // copy. The method of either machine requires the same.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.copy_rows(s, copy, host)?,
                Self::Cpu(q) => q.enter()?.submit(Work::CopyRows { copy, start: 0 }),
            }
        }
        done(calling);
        Ok(())
    }

    /// Writes the pattern `count` times, every `stride` bytes.
    ///
    /// # Safety
    /// `to` and `stride` are aligned for the pattern, which is not larger than `stride`. The memory
    /// is valid for `count` strides until the fill is done. The stream orders every other access of
    /// this memory before or after the fill.
    #[track_caller]
    pub(crate) unsafe fn fill(self, to: u64, stride: usize, pattern: Pattern, count: usize) -> Result<(), Fault> {
        let calling =
            self.working("fill", || [Access::write(to, (count.saturating_sub(1) * stride + pattern.size()) as u64)]);
        // SAFETY: [order] The caller passes aligned memory for `count` strides whose other uses the
        // stream orders with the fill. The method of either machine requires the same.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.fill(s, to, stride, pattern, count)?,
                Self::Cpu(q) => q.enter()?.submit(Work::Fill { dst: to, stride, pattern, count }),
            }
        }
        done(calling);
        Ok(())
    }

    /// Blocks the stream until the word at `flag` is `value` or up to 2^31 - 1 more, with
    /// wrap-around.
    ///
    /// # Safety
    /// `flag` points into page-locked memory that stays allocated until the stream has passed this
    /// wait.
    pub(crate) unsafe fn wait_value(self, flag: *const AtomicU32, value: u32) -> Result<(), Fault> {
        // SAFETY: [alive] The caller keeps the page-locked word allocated until the stream has
        // passed the wait. The method of either machine requires the same.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.wait_value(s, flag.cast(), value)?,
                Self::Cpu(q) => q.enter()?.wait_value(flag, value),
            }
        }
        Ok(())
    }

    /// Enqueues a host function, which may access the memory at this address, with so many bytes.
    /// If the stream cannot take it, `f` is dropped.
    #[track_caller]
    pub(crate) fn launch_host(self, memory: Option<(u64, usize)>, f: Box<dyn FnOnce() + Send>) -> Result<(), Fault> {
        type Slot = Mutex<Option<Box<dyn FnOnce() + Send>>>;
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: [once] `launch_host` made `data` with `Arc::into_raw` for this call alone,
            // and the driver calls `run` at most once with it.
            let slot = unsafe { Arc::from_raw(data.cast::<Slot>().cast_const()) };
            let f = lock(&slot).take();
            if let Some(f) = f {
                f();
            }
        }
        let calling = self.calling(|stream| {
            let accesses = memory.iter().map(|&(addr, bytes)| Access::write(addr, bytes as u64)).collect();
            Row::new(Kind::Work { stream, accesses }, "host function")
        });
        match self {
            Self::Cuda(c, s) => {
                let slot: Arc<Slot> = Arc::new(Mutex::new(Some(f)));
                let data = Arc::into_raw(slot.clone()).cast_mut().cast();
                // SAFETY: [once] `data` is a reference that only `run` takes back, so `run(data)`
                // may be called once. `f` never unwinds and makes no CUDA call: the typed layer
                // wraps it so that it catches panics and so that the guard refuses calls.
                if let Err(failure) = unsafe { c.launch_host(s, run, data) } {
                    // The driver may report an earlier call's failure here and still call `run`
                    // later. So the closure is taken out of the slot: `run` then finds nothing. The
                    // reference in `data` is never taken back here, and leaks if `run` is not
                    // called.
                    let f = lock(&slot).take();
                    drop(f);
                    return Err(failure.into());
                }
            }
            Self::Cpu(q) => q.enter()?.host(f),
        }
        done(calling);
        Ok(())
    }

    /// Launches a kernel. On a GPU it needs the kernel's `function`.
    ///
    /// # Safety
    /// The kernel is sound for these arguments and this shape. The stream orders every other access
    /// that conflicts with the kernel's accesses to its buffers before or after the launch.
    /// `function`, if given, is the kernel's function on this device.
    #[inline]
    #[track_caller]
    pub(crate) unsafe fn launch(
        self,
        kernel: &'static Kernel,
        function: Option<NonNull<()>>,
        shape: LaunchShape,
        slots: &[u64],
    ) -> Result<(), Fault> {
        let calling = self.launching(kernel, slots);
        // SAFETY: [kernel] The caller guarantees sound arguments, ordered buffers and the right
        // function. The method of either machine requires the same.
        unsafe {
            match self {
                Self::Cuda(c, s) => c.launch(s, kernel, function, shape, slots)?,
                Self::Cpu(q) => {
                    let q = q.enter()?;
                    q.submit(Work::launch(q.cpu().checked().is_some(), kernel, shape, slots)?);
                }
            }
        }
        done(calling);
        Ok(())
    }

    /// Makes a map for the copy engine for tiles; `None` if the device has no such engine.
    pub(crate) fn tensor_map(self, tiles: &MatrixView) -> Result<Option<TensorMap>, Fault> {
        match self {
            Self::Cuda(c, _) if c.info.capability == Version { major: 9, minor: 0 } => {
                let map = c.tensor_map(tiles)?;
                traced::mapped(&map, tiles);
                Ok(Some(map))
            }
            _ => Ok(None),
        }
    }
}
