//! Devices: CUDA GPUs, and the CPU device that runs the same kernels.

use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use thalweg_simt::host::{Kernel, counted};

use crate::driver::cpu::{Cpu, CpuError, Schedule};
use crate::driver::guard::{self, Guarded};
use crate::driver::{Cuda, Driver, Fault, StreamHandle, cuda};
use crate::error::{Error, Result};
use crate::event::{EventCell, Lease};
use crate::kernel::Modules;
use crate::lock;
use crate::memory::{PinnedBuffer, PinnedPool, Plain, Pool, element};
use crate::stream::{Stream, StreamInner, StreamOptions, Tag};
use crate::tally::{Book, Stall};

/// What kind of machine a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// An NVIDIA GPU, through its driver.
    Cuda,
    /// The host's processor.
    Cpu,
}

/// A device: where streams run and memory lives. A handle, free to copy, on something that lasts as
/// long as the process.
///
/// ```
/// use thalweg::Device;
///
/// let gpu = Device::best()?; // THALWEG_DEVICE, or the first GPU, or the CPU
/// println!("{gpu}: {}, {} MiB", gpu.name(), gpu.total_memory() >> 20);
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Device(&'static DeviceInner);

pub(crate) struct DeviceInner {
    kind: DeviceKind,
    ordinal: usize,
    driver: Driver,
    /// Frees memory that no stream orders any more.
    housekeeping: StreamHandle,
    poisoned: AtomicBool,
    cause: OnceLock<String>,
    /// Panics of host functions, until somebody asks.
    deferred: Mutex<Vec<Error>>,
    any_deferred: AtomicBool,
    /// An event at rest (`Arc::into_raw`), where one fits: the usual `record` and `wait` need no lock.
    spare_event: AtomicPtr<EventCell>,
    events: Mutex<Vec<Arc<EventCell>>>,
    /// Streams of lanes and pools that nobody uses at the moment.
    idle: Mutex<Vec<&'static StreamInner>>,
    /// Streams for captures that nobody uses at the moment.
    capture: Mutex<Vec<&'static StreamInner>>,
    modules: Modules,
    pinned: OnceLock<Arc<Pool>>,
    book: Book,
}

impl Device {
    /// The device that `THALWEG_DEVICE` names (`auto`, `cpu` or `cuda:N`); where it is not set, the first CUDA
    /// device, or the CPU device where there is none.
    ///
    /// # Errors
    /// `THALWEG_DEVICE` is nonsense, or names a device that cannot be used.
    pub fn best() -> Result<Self> {
        Ok(Self::from_environment()?.0)
    }

    /// As [`best`](Device::best), with a line that says why it is the CPU where `auto` found no GPU.
    ///
    /// # Errors
    /// As [`best`](Device::best).
    pub fn from_environment() -> Result<(Self, Option<String>)> {
        match std::env::var("THALWEG_DEVICE") {
            Ok(spec) if !spec.is_empty() => Self::from_spec(&spec).map_err(|e| match e {
                Error::DeviceSpec { given, .. } => Error::DeviceSpec { given, from_environment: true },
                e => e,
            }),
            Ok(_) | Err(std::env::VarError::NotPresent) => Self::from_spec("auto"),
            Err(std::env::VarError::NotUnicode(given)) => {
                Err(Error::DeviceSpec { given: given.to_string_lossy().into_owned(), from_environment: true })
            }
        }
    }

    /// The device of a name: `auto`, `cpu` or `cuda:N`. For `auto` on a machine without a usable GPU, it is the CPU
    /// device and a line that says why.
    ///
    /// # Errors
    /// The name is none of these, or the device cannot be used.
    pub fn from_spec(spec: &str) -> Result<(Self, Option<String>)> {
        match spec {
            "auto" => match Self::cuda(0) {
                Ok(gpu) => Ok((gpu, None)),
                Err(why) => Ok((Self::cpu()?, Some(format!("running on the CPU device: {why}")))),
            },
            "cpu" => Ok((Self::cpu()?, None)),
            _ => {
                let ordinal = spec.strip_prefix("cuda:").and_then(|n| n.parse().ok());
                let ordinal =
                    ordinal.ok_or_else(|| Error::DeviceSpec { given: spec.to_owned(), from_environment: false })?;
                Ok((Self::cuda(ordinal)?, None))
            }
        }
    }

    /// CUDA device `ordinal`, opened at the first call.
    ///
    /// # Errors
    /// No driver, one that is too old, no such device, or the driver's own error (no permission, a device in use).
    pub fn cuda(ordinal: usize) -> Result<Self> {
        static OPEN: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());
        guard::permitted()?;
        let mut open = lock(&OPEN);
        if let Some((_, device)) = open.iter().find(|(o, _)| *o == ordinal) {
            return Ok(*device);
        }
        guard::watch_for_fork();
        let cuda: &'static Cuda = Box::leak(Box::new(Cuda::open(ordinal)?));
        for (_, other) in &*open {
            if let Driver::Cuda(other) = other.0.driver {
                cuda.reach(other).map_err(Error::from)?;
                other.reach(cuda).map_err(Error::from)?;
            }
        }
        let device = Self::new(DeviceKind::Cuda, ordinal, Driver::Cuda(cuda))?;
        open.push((ordinal, device));
        Ok(device)
    }

    /// The CPU device: it runs the same kernels with real queues, threads and asynchrony.
    ///
    /// # Errors
    /// Its threads cannot be started, or `THALWEG_CPU_THREADS` is nonsense.
    pub fn cpu() -> Result<Self> {
        static CPU: OnceLock<Result<Device>> = OnceLock::new();
        guard::permitted()?; // a refusal is not kept
        CPU.get_or_init(|| Self::open_cpu(Schedule::Threads, 0)).clone()
    }

    /// One more CPU device, for programs that test how they use several. It lasts as long as the process.
    ///
    /// # Errors
    /// As [`cpu`](Device::cpu).
    pub fn new_cpu() -> Result<Self> {
        Self::open_cpu(Schedule::Threads, Self::next_cpu())
    }

    /// A CPU device without threads, which runs what its streams hold in an order that the seed decides, late
    /// and out of order wherever no event forbids it: for finding a missing wait, repeatably. It lasts as long as the
    /// process; [`reseed`](Device::reseed) starts another order.
    ///
    /// # Errors
    /// As [`cpu`](Device::cpu).
    pub fn seeded_cpu(seed: u64) -> Result<Self> {
        Self::open_cpu(Schedule::Seeded(seed), Self::next_cpu())
    }

    /// Starts the order of another seed on a [`seeded_cpu`](Device::seeded_cpu) device; nothing on others.
    pub fn reseed(self, seed: u64) {
        if let Driver::Cpu(cpu) = self.0.driver
            && let Ok(cpu) = cpu.enter()
        {
            cpu.reseed(seed);
        }
    }

    /// Lets a CPU device hold at most so many bytes of device memory, for testing how a program copes without more; nothing on
    /// others.
    pub fn limit_memory(self, bytes: Option<u64>) {
        if let Driver::Cpu(cpu) = self.0.driver {
            cpu.facts().limit(bytes.map(|b| usize::try_from(b).unwrap_or(usize::MAX)));
        }
    }

    /// The number of one more CPU device; 0 is [`cpu`](Device::cpu)'s.
    fn next_cpu() -> usize {
        static COUNT: AtomicUsize = AtomicUsize::new(1);
        COUNT.fetch_add(1, Ordering::Relaxed)
    }

    fn open_cpu(schedule: Schedule, ordinal: usize) -> Result<Self> {
        guard::permitted()?;
        guard::watch_for_fork();
        let cpu: &'static Cpu = Box::leak(Box::new(Cpu::new(schedule).map_err(cpu_error)?));
        Self::new(DeviceKind::Cpu, ordinal, Driver::Cpu(Guarded::new(cpu)))
    }

    fn new(kind: DeviceKind, ordinal: usize, driver: Driver) -> Result<Self> {
        let housekeeping = driver.new_stream(0).map_err(plain_error)?;
        let device = Self(Box::leak(Box::new(DeviceInner {
            kind,
            ordinal,
            driver,
            housekeeping,
            poisoned: AtomicBool::new(false),
            cause: OnceLock::new(),
            deferred: Mutex::default(),
            any_deferred: AtomicBool::new(false),
            spare_event: AtomicPtr::new(null_mut()),
            events: Mutex::default(),
            idle: Mutex::default(),
            capture: Mutex::default(),
            modules: Modules::default(),
            pinned: OnceLock::new(),
            book: Book::default(),
        })));
        Ok(device)
    }

    /// Every device there is: CUDA devices that can be opened, then the CPU device. None in a host function of a stream and in
    /// a forked child, where no device can be called.
    pub fn all() -> Vec<Self> {
        let cuda = (0..cuda::count().unwrap_or(0)).filter_map(|ordinal| Self::cuda(ordinal).ok());
        cuda.chain(Self::cpu().ok()).collect()
    }

    /// Whether it is a GPU or the CPU device.
    pub fn kind(self) -> DeviceKind {
        self.0.kind
    }

    /// The device's number among those of its kind.
    pub fn ordinal(self) -> usize {
        self.0.ordinal
    }

    /// The product's name.
    pub fn name(self) -> String {
        match self.0.driver {
            Driver::Cuda(c) => c.info.name.clone(),
            Driver::Cpu(c) => format!("CPU device, {}", counted(c.facts().threads(), "thread")),
        }
    }

    /// Bytes of device memory.
    pub fn total_memory(self) -> u64 {
        match self.0.driver {
            Driver::Cuda(c) => c.info.memory as u64,
            Driver::Cpu(c) => c.facts().memory().total as u64,
        }
    }

    /// Bytes of device memory that can be allocated now.
    ///
    /// # Errors
    /// The device has failed.
    pub fn free_memory(self) -> Result<u64> {
        self.usable()?;
        Ok(self.seen(self.0.driver.memory())?.0 as u64)
    }

    /// Copies the device makes beside kernels: 2 and more means upload and download at the same time. The CPU
    /// device's streams all copy at once.
    pub fn copy_engines(self) -> u32 {
        match self.0.driver {
            Driver::Cuda(c) => c.info.copy_engines,
            Driver::Cpu(c) => c.facts().threads() as u32,
        }
    }

    /// Multiprocessors of a GPU, threads of the CPU device.
    pub fn multiprocessors(self) -> u32 {
        match self.0.driver {
            Driver::Cuda(c) => c.info.multiprocessors,
            Driver::Cpu(c) => c.facts().threads() as u32,
        }
    }

    /// Priorities a stream can have, from the most urgent (smallest) to 0. The CPU device has two, between which it makes no
    /// difference.
    pub fn priorities(self) -> RangeInclusive<i32> {
        match self.0.driver {
            Driver::Cuda(c) => c.info.priorities.1..=c.info.priorities.0,
            Driver::Cpu(_) => -1..=0,
        }
    }

    /// Compute capability of a GPU: major, minor.
    pub fn compute_capability(self) -> Option<(u32, u32)> {
        match self.0.driver {
            Driver::Cuda(c) => Some(c.info.capability),
            Driver::Cpu(_) => None,
        }
    }

    /// The newest CUDA version that a GPU's driver supports: major, minor.
    pub fn driver_version(self) -> Option<(u32, u32)> {
        match self.0.driver {
            Driver::Cuda(c) => Some(c.info.driver),
            Driver::Cpu(_) => None,
        }
    }

    /// The stream of tag `S`, made at the first call, with the default options.
    ///
    /// A tag is bound to one stream of one device for the life of the process; every call returns that stream.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Upload, Compute);
    /// let gpu = Device::best()?;
    /// let (up, compute) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The tag is bound to a stream of another device or priority ([`Error::TagBound`]), or the driver's own.
    pub fn stream<S: Tag>(self) -> Result<Stream<S>> {
        self.stream_with(StreamOptions::default())
    }

    /// As [`stream`](Device::stream), with options.
    ///
    /// # Errors
    /// As [`stream`](Device::stream).
    pub fn stream_with<S: Tag>(self, options: StreamOptions) -> Result<Stream<S>> {
        static TAGS: Mutex<Option<HashMap<TypeId, &'static StreamInner>>> = Mutex::new(None);
        self.usable()?;
        let mut tags = lock(&TAGS);
        let tags = tags.get_or_insert_default();
        // Identity is the type's: two tags are the same stream exactly if they are the same type.
        if let Some(&inner) = tags.get(&TypeId::of::<S>()) {
            if inner.device() != self || inner.priority() != options.priority {
                return Err(Error::TagBound {
                    tag: std::any::type_name::<S>(),
                    bound: inner.device().to_string(),
                    priority: inner.priority(),
                });
            }
            return Ok(Stream::of(inner));
        }
        let inner = self.new_stream(options)?;
        tags.insert(TypeId::of::<S>(), inner);
        Ok(Stream::of(inner))
    }

    /// A stream that nobody else has; it is parked for the life of the process.
    pub(crate) fn new_stream(self, options: StreamOptions) -> Result<&'static StreamInner> {
        if !self.priorities().contains(&options.priority) {
            return Err(Error::Parameter {
                name: "priority",
                given: options.priority.to_string(),
                expected: format!("{:?} on {self}", self.priorities()),
            });
        }
        let handle = self.seen(self.0.driver.new_stream(options.priority))?;
        self.leak_stream(handle)
    }

    fn leak_stream(self, handle: StreamHandle) -> Result<&'static StreamInner> {
        let priority = self.seen(handle.priority())?;
        let hand = EventCell::new(self, false)?;
        Ok(Box::leak(Box::new(StreamInner::new(self, handle, priority, hand))))
    }

    /// A parked stream of this priority, or a new one.
    pub(crate) fn take_stream(self, options: StreamOptions) -> Result<&'static StreamInner> {
        self.usable()?;
        let mut idle = lock(&self.0.idle);
        if let Some(i) = idle.iter().position(|s| s.priority() == options.priority) {
            return Ok(idle.swap_remove(i));
        }
        drop(idle);
        self.new_stream(options)
    }

    /// Parks a stream for [`take_stream`](Self::take_stream).
    pub(crate) fn park(self, stream: &'static StreamInner) {
        lock(&self.0.idle).push(stream);
    }

    /// A parked stream for a capture, or a new one. They are kept apart from the others: no work of theirs is ever
    /// pending, and on the CPU device they can do nothing but record.
    pub(crate) fn take_capture_stream(self) -> Result<&'static StreamInner> {
        self.usable()?;
        let parked = lock(&self.0.capture).pop();
        match parked {
            Some(stream) => Ok(stream),
            None => self.leak_stream(self.seen(self.0.driver.new_capture_stream())?),
        }
    }

    /// Parks a stream for [`take_capture_stream`](Self::take_capture_stream).
    pub(crate) fn park_capture_stream(self, stream: &'static StreamInner) {
        lock(&self.0.capture).push(stream);
    }

    /// A page-locked buffer of `len` elements from the device's [own pool](Device::pinned_pool): zeros, or whatever an earlier
    /// buffer left. The first of its size takes milliseconds.
    ///
    /// # Errors
    /// The system cannot lock as many pages, or the [limit](Device::limit_pinned) is reached ([`Error::PinnedBudget`]).
    #[track_caller]
    pub fn pinned<T: Plain>(self, len: usize) -> Result<PinnedBuffer<T>> {
        const { element::<T>() }
        self.home_pool().buffer(len)
    }

    /// As [`pinned`](Device::pinned), with the elements of `data`.
    ///
    /// # Errors
    /// As [`pinned`](Device::pinned).
    #[track_caller]
    pub fn pinned_from<T: Plain>(self, data: &[T]) -> Result<PinnedBuffer<T>> {
        const { element::<T>() }
        let mut buffer = self.pinned(data.len())?;
        buffer.copy_from_slice(data);
        Ok(buffer)
    }

    /// The device's own pool of page-locked memory, which [`pinned`](Device::pinned) uses.
    ///
    /// It keeps what buffers give back, for the next ones, up to a bound: lent and kept together, it never grows beyond twice the most bytes that
    /// were lent at once since the last [`trim`](Device::trim), or 64 MiB where that is more. (A buffer is lent a whole block, which is at most
    /// twice as large as asked for; and what a dropped [`PinnedPool`] kept comes on top until the next block is made.) Programs whose buffers come in the
    /// same sizes again and again find them all there. [`limit_pinned`](Device::limit_pinned) sets a limit on top.
    ///
    /// ```
    /// use thalweg::Device;
    ///
    /// let gpu = Device::new_cpu()?;
    /// for len in 1..300 {
    ///     drop(gpu.pinned::<u8>(len << 16)?); // ever larger, one at a time
    /// }
    /// let pool = gpu.pinned_pool();
    /// assert_eq!(pool.in_use(), 0);
    /// assert!(pool.cached() <= 64 << 20);
    /// gpu.trim()?;
    /// assert_eq!(pool.cached(), 0);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    pub fn pinned_pool(self) -> PinnedPool {
        PinnedPool::of(self.home_pool().clone())
    }

    /// Sets the most bytes of page-locked memory that [`pinned`](Device::pinned) holds, lent and kept together; `None`, as at first, for no limit
    /// but the system's. What is kept beyond it is given back; what is lent stays, and nothing more is lent before enough of it has come back.
    ///
    /// Where the limit is reached but buffers dropped on a stream are about to come back, `pinned` waits for them. Pools of your own are not
    /// counted.
    pub fn limit_pinned(self, bytes: Option<usize>) {
        self.home_pool().limit(bytes.unwrap_or(usize::MAX));
    }

    /// Gives memory that nobody uses back to the system: page-locked memory of the device's [own pool](Device::pinned_pool), and on a GPU the
    /// device memory that the driver keeps for the next allocation. May wait for the device.
    ///
    /// Memory that was dropped on a stream is in use until the stream has come to that point.
    ///
    /// # Errors
    /// The device has failed.
    #[track_caller]
    pub fn trim(self) -> Result<()> {
        self.usable()?;
        let _stall = self.stall(Stall::PinnedAllocation);
        self.home_pool().trim();
        self.seen(self.0.driver.trim())
    }

    pub(crate) fn home_pool(self) -> &'static Arc<Pool> {
        self.0.pinned.get_or_init(|| Arc::new(Pool::new(self, usize::MAX, true)))
    }

    pub(crate) fn new_pinned(self, bytes: usize) -> Result<NonNull<u8>> {
        self.usable()?;
        self.seen(self.0.driver.host_alloc(bytes)).map_err(|e| self.out_of_memory(e, bytes))
    }

    /// Gives page-locked memory back to the system; in doubt it leaks.
    pub(crate) fn free_pinned(self, ptr: NonNull<u8>, bytes: usize) {
        if self.usable().is_ok() {
            // SAFETY: a pool calls this once for a block at rest.
            let _ = unsafe { self.0.driver.host_free(ptr, bytes) };
        }
    }

    /// The function of a kernel on this device; `None` on the CPU device, which needs none. The first call for a kernel looks
    /// it up, and may load PTX.
    #[inline]
    #[track_caller]
    pub(crate) fn function(self, kernel: &'static Kernel) -> Result<Option<NonNull<()>>> {
        match self.0.driver {
            Driver::Cpu(_) => Ok(None),
            Driver::Cuda(cuda) => match cuda::remembered(kernel, cuda.ordinal) {
                found @ Some(_) => Ok(found),
                None => {
                    let _stall = self.stall(Stall::ModuleLoad);
                    self.0.modules.find(cuda, kernel, self).map(Some)
                }
            },
        }
    }

    /// Reports what went wrong on the device since it was last asked: a panic in a host function, once; a
    /// failure that leaves the device unusable, from then on. Does not wait.
    ///
    /// # Errors
    /// That failure.
    pub fn check(self) -> Result<()> {
        self.usable()?;
        if self.0.any_deferred.load(Ordering::Acquire) {
            let mut deferred = lock(&self.0.deferred);
            let error = deferred.pop();
            self.0.any_deferred.store(!deferred.is_empty(), Ordering::Release);
            if let Some(error) = error {
                return Err(error);
            }
        }
        match self.0.driver {
            Driver::Cpu(cpu) => self.seen(cpu.enter()?.check().map_err(Fault::Cpu)),
            // Whatever is pending, the driver reports a sticky error with it.
            Driver::Cuda(_) => self.seen(self.0.housekeeping.is_done()).map(drop),
        }
    }

    /// Keeps an error for [`check`](Device::check).
    pub(crate) fn defer(self, error: Error) {
        lock(&self.0.deferred).push(error);
        self.0.any_deferred.store(true, Ordering::Release);
    }

    pub(crate) fn book(self) -> &'static Book {
        &self.0.book
    }

    pub(crate) fn driver(self) -> Driver {
        self.0.driver
    }

    /// Whether the device can be called from here: it has not failed, and this is neither a host function of a stream nor a
    /// forked child. Asks nobody and does not wait; [`check`](Device::check) asks the device.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn usable(self) -> Result<()> {
        if guard::permitted().is_err() || self.0.poisoned.load(Ordering::Relaxed) {
            return Err(self.unusable());
        }
        Ok(())
    }

    #[cold]
    fn unusable(self) -> Error {
        match guard::permitted() {
            Err(why) => why.into(),
            Ok(()) => {
                let cause = self.0.cause.get().cloned().unwrap_or_default();
                Error::Poisoned { device: self.to_string(), cause }
            }
        }
    }

    /// Turns a fault into an error, and remembers one after which nothing works.
    #[inline]
    pub(crate) fn seen<T>(self, result: Result<T, Fault>) -> Result<T> {
        match result {
            Ok(v) => Ok(v),
            Err(fault) => Err(self.fault(fault)),
        }
    }

    #[cold]
    fn fault(self, fault: Fault) -> Error {
        let fatal = fault.is_fatal();
        let error = match plain_error(fault) {
            Error::OutOfMemory { wanted, .. } => Error::OutOfMemory { device: self.to_string(), wanted },
            error => error,
        };
        if fatal {
            self.0.cause.get_or_init(|| error.to_string());
            self.0.poisoned.store(true, Ordering::Release);
        }
        error
    }

    /// Says what did not fit, where the driver only says that something did not.
    pub(crate) fn out_of_memory(self, error: Error, wanted: usize) -> Error {
        match error {
            Error::Cuda { code: 2, .. } => Error::OutOfMemory { device: self.to_string(), wanted },
            error => error,
        }
    }

    /// An event that nobody else holds.
    #[inline]
    #[track_caller]
    pub(crate) fn take_event(self) -> Result<Arc<EventCell>> {
        let spare = self.0.spare_event.swap(null_mut(), Ordering::Acquire);
        if spare.is_null() {
            return self.take_event_locked();
        }
        // SAFETY: `recycle` put it there by `Arc::into_raw`, and the swap gave it to this call alone.
        Ok(unsafe { Arc::from_raw(spare) })
    }

    #[track_caller]
    fn take_event_locked(self) -> Result<Arc<EventCell>> {
        let pooled = lock(&self.0.events).pop();
        match pooled {
            Some(cell) => Ok(cell),
            None => {
                let _stall = self.stall(Stall::EventCreation);
                EventCell::new(self, false).map(Arc::new)
            }
        }
    }

    /// Takes back an event that nobody else holds.
    #[inline]
    pub(crate) fn recycle(self, cell: Arc<EventCell>) {
        let cell = Arc::into_raw(cell).cast_mut();
        let put = self.0.spare_event.compare_exchange(null_mut(), cell, Ordering::Release, Ordering::Relaxed);
        if put.is_err() {
            // SAFETY: made by `Arc::into_raw` above and not stored.
            self.recycle_locked(unsafe { Arc::from_raw(cell) });
        }
    }

    fn recycle_locked(self, cell: Arc<EventCell>) {
        let mut events = lock(&self.0.events);
        if events.len() < EVENTS_KEPT {
            events.push(cell);
        }
    }

    /// Frees device memory after the events, without waiting; in doubt it leaks.
    pub(crate) fn free(self, addr: u64, bytes: usize, after: &[Lease]) {
        let stream = self.0.housekeeping;
        if after.iter().all(|event| stream.wait(event.handle()).is_ok()) {
            // SAFETY: called once, by the last owner, and the stream now follows all uses.
            let _ = unsafe { stream.free(addr, bytes) };
        }
    }
}

/// Events a device keeps for the next record.
const EVENTS_KEPT: usize = 1024;

fn cpu_error(e: CpuError) -> Error {
    match e {
        CpuError::HostPanicked { message } => Error::HostFunctionPanicked { message },
        CpuError::NoBody { kernel } => Error::NoCpuBody { kernel },
        CpuError::OutOfMemory { bytes, .. } => Error::OutOfMemory { device: "cpu".into(), wanted: bytes },
        CpuError::Thread { reason } => Error::Thread { reason },
        e => Error::Kernel(e.to_string()),
    }
}

fn plain_error(fault: Fault) -> Error {
    match fault {
        Fault::Cuda(f) => f.into(),
        Fault::Cpu(e) => cpu_error(e),
        Fault::Error(e) => e,
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}
impl Eq for Device {}

impl std::hash::Hash for Device {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

/// `cuda:0`, or `cpu` (`cpu:1` for a second one).
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.kind, self.0.ordinal) {
            (DeviceKind::Cuda, n) => write!(f, "cuda:{n}"),
            (DeviceKind::Cpu, 0) => f.write_str("cpu"),
            (DeviceKind::Cpu, n) => write!(f, "cpu:{n}"),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}
