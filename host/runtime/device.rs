//! Devices: CUDA GPUs, and the CPU device that runs the same kernels.

use std::any::Any;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use log::{debug, warn};

use super::memory_book::MemoryBook;
use super::panics::{Panicked, Panics};
use super::sync_stats::{HostWait, SyncLog, SyncStats, Waiting};
use crate::driver::cpu::{CpuError, Schedule};
use crate::driver::{Driver, Fault, StreamHandle, guard, trace};
use crate::error::{Error, Result, Version};
use crate::lock;

/// The environment variable that makes every CPU device a checked one.
const CHECK: &str = "THALWEG_CHECK";

/// Whether every CPU device is a checked one.
fn check_all() -> bool {
    std::env::var_os(CHECK).is_some_and(|value| value == "1")
}

/// The environment variable that makes each launch wait for its kernel.
const LAUNCH_BLOCKING: &str = "THALWEG_LAUNCH_BLOCKING";

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// An NVIDIA GPU, used through its driver.
    Cuda,
    /// The host's processor.
    Cpu,
}

/// A device, which runs streams and has memory. It is a handle, which is free to copy; the device
/// itself lasts as long as the process.
///
/// ```
/// use thalweg::Device;
///
/// let gpu = Device::best()?; // THALWEG_DEVICE, or the first GPU, or the CPU
/// println!("{gpu}: {}, {} MiB", gpu.name(), gpu.total_memory() >> 20);
/// # Ok::<(), thalweg::Error>(())
/// ```
///
/// # Environment
/// The functions that open a device read these variables. The only other function of this crate
/// that reads the environment is `Timeline::new`.
///
/// | variable | read by | meaning |
/// |---|---|---|
/// | `THALWEG_DEVICE` | [`best`](Device::best), [`from_env`](Device::from_env) | the device: `auto`, `cpu` or `cuda:N` |
/// | `THALWEG_CPU_THREADS` | all that open a CPU device | the number of its threads |
/// | `THALWEG_CHECK` | the same | `1`: it is a [checked](Device::checked_cpu) one |
/// | `THALWEG_CHECK_SEED` | all that open a checked device | the seed of its order |
/// | `THALWEG_LAUNCH_BLOCKING` | all that open a device | `1`: a launch [waits for its kernel](Device::set_launch_blocking) |
/// | `THALWEG_TRACE` | the first that opens a device | a file, or `check`: see [`trace`](crate::trace) |
#[derive(Clone, Copy)]
pub struct Device(&'static DeviceInner);

/// The kind and the number of a device. Prints as its name: `cuda:0`, `cpu`, or `cpu:1` for a
/// second one.
#[derive(Clone, Copy)]
struct Id {
    kind: DeviceKind,
    ordinal: usize,
}

pub(crate) struct DeviceInner {
    id: Id,
    driver: Driver,
    /// The stream that frees memory which no other stream orders any more.
    housekeeping: StreamHandle,
    poisoned: AtomicBool,
    /// Whether each launch waits for its kernel.
    blocks_launches: AtomicBool,
    cause: OnceLock<String>,
    /// Panics of host functions that no call has reported yet.
    deferred: Mutex<Vec<Error>>,
    any_deferred: AtomicBool,
    book: SyncLog,
    panics: Panics,
    memory: MemoryBook,
    /// Values of the layers above, one of each type: see [`Device::keep`].
    kept: Mutex<Vec<&'static (dyn Any + Send + Sync)>>,
}

/// A device that was opened by its name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenedDevice {
    /// The device.
    pub device: Device,
    /// A line that says why it is the CPU device, if the name is `auto` and no GPU can be used.
    pub fallback: Option<String>,
}

impl From<(Device, Option<Error>)> for OpenedDevice {
    fn from((device, why): (Device, Option<Error>)) -> Self {
        Self { device, fallback: why.map(on_cpu) }
    }
}

/// Says why the CPU device runs what a GPU could run.
fn on_cpu(why: Error) -> String {
    format!("running on the CPU device: {why}")
}

impl Device {
    /// Opens the device that the variable `THALWEG_DEVICE` names: `auto`, `cpu` or `cuda:N`. If it
    /// is not set, opens the first CUDA device, or the CPU device if that cannot be used.
    ///
    /// On a machine [without a GPU](Error::means_no_gpu) this is silent. If there is a driver and
    /// it or its GPU fails, the reason is logged as a warning (crate `log`, target
    /// `thalweg::device`), once for the same reason.
    ///
    /// # Errors
    /// `THALWEG_DEVICE` is not such a name, or names a device that cannot be used.
    pub fn best() -> Result<Self> {
        static SAID: Mutex<String> = Mutex::new(String::new());
        let (device, why) = Self::chosen()?;
        if let Some(why) = why.filter(|why| !why.means_no_gpu()) {
            let line = on_cpu(why);
            let before = std::mem::replace(&mut *lock(&SAID), line.clone());
            if before != line {
                warn!(target: "thalweg::device", "{line}");
            }
        }
        Ok(device)
    }

    /// Opens the device that the environment names, as [`best`](Device::best) does, and logs no
    /// warning.
    ///
    /// # Errors
    /// The same as for [`best`](Device::best).
    pub fn from_env() -> Result<OpenedDevice> {
        Self::chosen().map(OpenedDevice::from)
    }

    /// Opens the device that the environment names. Also returns why `auto` is the CPU device.
    fn chosen() -> Result<(Self, Option<Error>)> {
        match std::env::var("THALWEG_DEVICE") {
            Ok(spec) if !spec.is_empty() => Self::named(&spec, true),
            Ok(_) | Err(std::env::VarError::NotPresent) => Self::named("auto", false),
            Err(std::env::VarError::NotUnicode(given)) => {
                Err(Error::DeviceSpec { given: given.to_string_lossy().into_owned(), from_environment: true })
            }
        }
    }

    /// Opens the device of a name: `auto`, `cpu` or `cuda:N`. `auto` is the first GPU, or the CPU
    /// device on a machine without a usable GPU.
    ///
    /// # Errors
    /// The name is none of these, or the device cannot be used.
    pub fn open(spec: &str) -> Result<OpenedDevice> {
        Self::named(spec, false).map(OpenedDevice::from)
    }

    fn named(spec: &str, from_environment: bool) -> Result<(Self, Option<Error>)> {
        match spec {
            "auto" => match Self::cuda(0) {
                Ok(gpu) => Ok((gpu, None)),
                Err(why) => Ok((Self::cpu()?, Some(why))),
            },
            "cpu" => Ok((Self::cpu()?, None)),
            _ => {
                let ordinal = spec.strip_prefix("cuda:").and_then(|n| n.parse().ok());
                let ordinal = ordinal.ok_or_else(|| Error::DeviceSpec { given: spec.to_owned(), from_environment })?;
                Ok((Self::cuda(ordinal)?, None))
            }
        }
    }

    /// Returns CUDA device `ordinal`, which the first call opens.
    ///
    /// # Errors
    /// There is no driver, it is too old, there is no such device, or the driver reports an error,
    /// for example because the program has no permission or the device is in use. If no device is
    /// left, the error says whether `CUDA_VISIBLE_DEVICES` hides them.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        static OPEN: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());
        guard::permitted()?;
        let mut open = lock(&OPEN);
        if let Some((_, device)) = open.iter().find(|(o, _)| *o == ordinal) {
            return Ok(*device);
        }
        guard::watch_for_fork();
        trace::start()?;
        let driver = Driver::open_cuda(ordinal)?;
        let id = Id { kind: DeviceKind::Cuda, ordinal };
        open.iter().try_for_each(|(_, other)| driver.reach(other.0.driver)).map_err(|fault| id.error(fault))?;
        let device = Self::new(id, driver)?;
        open.push((ordinal, device));
        drop(open);
        device.log_opened();
        Ok(device)
    }

    /// Returns the CPU device. It runs the same kernels, with queues that run asynchronously on
    /// threads.
    ///
    /// # Errors
    /// Its threads cannot be started, or `THALWEG_CPU_THREADS` is not a positive number.
    pub fn cpu() -> Result<Self> {
        static CPU: OnceLock<Result<Device>> = OnceLock::new();
        guard::permitted()?; // outside `get_or_init`, so that a refusal is not kept
        let mut opened = false;
        let cpu = CPU.get_or_init(|| {
            opened = true;
            Self::open_cpu(Schedule::Threads, 0, check_all())
        });
        // Outside `get_or_init`, because a logger may ask for the device.
        if let (true, Ok(cpu)) = (opened, cpu) {
            cpu.log_opened();
        }
        cpu.clone()
    }

    /// Makes another CPU device, for programs that test how they use several. It lasts as long as
    /// the process.
    ///
    /// # Errors
    /// The same as for [`cpu`](Device::cpu).
    pub fn new_cpu() -> Result<Self> {
        let cpu = Self::open_cpu(Schedule::Threads, Self::next_cpu(), check_all())?;
        cpu.log_opened();
        Ok(cpu)
    }

    /// Makes a CPU device that checks each access of a kernel to memory: bounds, alignment, reads
    /// of memory that nobody has written, races, and threads that diverge. What it finds is the
    /// error of the launch. It lasts as long as the process.
    ///
    /// The blocks and threads of a launch run one after another, in an order that
    /// `THALWEG_CHECK_SEED` decides. With `THALWEG_CHECK=1`, every CPU device is checked.
    ///
    /// # Errors
    /// The same as for [`cpu`](Device::cpu), or `THALWEG_CHECK_SEED` is not a number.
    pub fn checked_cpu() -> Result<Self> {
        let cpu = Self::open_cpu(Schedule::Threads, Self::next_cpu(), true)?;
        cpu.log_opened();
        Ok(cpu)
    }

    /// Makes a CPU device whose streams have no threads. Calls run the work of its streams in an
    /// order that the seed decides: late, and out of order wherever no event forbids it. So it
    /// finds a missing wait, and the same seed finds it again. It lasts as long as the process.
    /// [`reseed`](Device::reseed) starts another order.
    ///
    /// Every call, and every drop of device memory, may run host functions and kernels of any
    /// stream of the device, on the thread that calls, one at a time. So it cannot run a host
    /// function that waits for another thread, unless that thread calls no device meanwhile, and
    /// none that takes a lock which its caller holds. `docs/streams.md` says more.
    ///
    /// # Errors
    /// The same as for [`cpu`](Device::cpu).
    pub fn seeded_cpu(seed: u64) -> Result<Self> {
        let cpu = Self::open_cpu(Schedule::Seeded(seed), Self::next_cpu(), check_all())?;
        cpu.log_opened();
        Ok(cpu)
    }

    /// Starts the order of another seed on a [`seeded_cpu`](Device::seeded_cpu) device or a
    /// [`checked_cpu`](Device::checked_cpu) device. Does nothing on other devices.
    pub fn reseed(self, seed: u64) {
        self.0.driver.reseed(seed);
    }

    /// Limits the device memory of a CPU device, to test how a program behaves when memory is
    /// short. `None` removes the limit. Does nothing on a GPU.
    pub fn limit_memory(self, bytes: Option<u64>) {
        self.0.driver.limit_memory(bytes.map(|b| usize::try_from(b).unwrap_or(usize::MAX)));
    }

    /// The number of the next CPU device. [`cpu`](Device::cpu) has 0.
    fn next_cpu() -> usize {
        static COUNT: AtomicUsize = AtomicUsize::new(1);
        COUNT.fetch_add(1, Ordering::Relaxed)
    }

    fn open_cpu(schedule: Schedule, ordinal: usize, checked: bool) -> Result<Self> {
        guard::permitted()?;
        guard::watch_for_fork();
        trace::start()?;
        let id = Id { kind: DeviceKind::Cpu, ordinal };
        Self::new(id, Driver::open_cpu(schedule, checked).map_err(|fault| id.error(fault))?)
    }

    fn new(id: Id, driver: Driver) -> Result<Self> {
        driver.opened(&id.to_string());
        let housekeeping = driver.new_stream(0).map_err(|fault| id.error(fault))?;
        let device = Self(Box::leak(Box::new(DeviceInner {
            id,
            driver,
            housekeeping,
            poisoned: AtomicBool::new(false),
            blocks_launches: AtomicBool::new(std::env::var_os(LAUNCH_BLOCKING).is_some_and(|set| set == "1")),
            cause: OnceLock::new(),
            deferred: Mutex::default(),
            any_deferred: AtomicBool::new(false),
            book: SyncLog::default(),
            panics: Panics::default(),
            memory: MemoryBook::default(),
            kept: Mutex::default(),
        })));
        Ok(device)
    }

    /// Logs that the device was opened. The caller holds no lock, because a logger is code of the
    /// user.
    fn log_opened(self) {
        let mib = self.total_memory() >> 20;
        match (self.compute_capability(), self.driver_version()) {
            (Some(capability), Some(cuda)) => debug!(
                target: "thalweg::device",
                "opened {self}: {}, {mib} MiB, compute capability {capability}, driver for CUDA {cuda}",
                self.name()
            ),
            _ => debug!(target: "thalweg::device", "opened {self}: {}, {mib} MiB", self.name()),
        }
    }

    /// Returns every CUDA device that can be opened, then the CPU device. The list is empty in a
    /// host function of a stream, in the body of a kernel and in a forked child, where no device
    /// can be called.
    pub fn all() -> Vec<Self> {
        let cuda = (0..Driver::cuda_devices()).filter_map(|ordinal| Self::cuda(ordinal).ok());
        cuda.chain(Self::cpu().ok()).collect()
    }

    /// Returns whether it is a GPU or a CPU device.
    pub fn kind(self) -> DeviceKind {
        self.0.id.kind
    }

    /// Returns the device's number among those of its kind.
    pub fn ordinal(self) -> usize {
        self.0.id.ordinal
    }

    /// Returns the product name of a GPU, or a description of the CPU device.
    pub fn name(self) -> String {
        self.0.driver.name()
    }

    /// Returns the number that CUDA gives a GPU, or a part of one, for all processes and machines.
    /// The [`ordinal`](Device::ordinal) may differ from process to process. A CPU device has none.
    pub fn uuid(self) -> Option<[u8; 16]> {
        self.0.driver.uuid()
    }

    /// The device's number in the work log.
    pub(crate) fn number_in_log(self) -> usize {
        self.0.driver.number_in_log(self.ordinal())
    }

    pub(crate) fn memory_book(self) -> &'static MemoryBook {
        &self.0.memory
    }

    /// Returns the bytes of device memory.
    pub fn total_memory(self) -> u64 {
        self.0.driver.total_memory() as u64
    }

    /// Returns the bytes of device memory that can be allocated now.
    ///
    /// # Errors
    /// The device has failed.
    pub fn free_memory(self) -> Result<u64> {
        self.ensure_usable()?;
        Ok(self.seen(self.0.driver.memory())?.0 as u64)
    }

    /// Returns how many copies the device can run at once beside kernels. With 2 or more it can
    /// upload and download at the same time. The CPU device returns the number of threads that run
    /// its kernels.
    pub fn copy_engines(self) -> u32 {
        self.0.driver.copy_engines()
    }

    /// Returns the most shared memory that a block of a kernel can have, in bytes. Every GPU grants
    /// at least 48 KiB; more is granted without asking, up to this number: 227 KiB on an H200. The
    /// CPU device grants 227 KiB.
    pub fn shared_memory_per_block(self) -> u32 {
        self.0.driver.shared()
    }

    /// Returns the number of multiprocessors of a GPU, or of threads that run kernels on the CPU
    /// device.
    pub fn multiprocessors(self) -> u32 {
        self.0.driver.multiprocessors()
    }

    /// Returns the priorities that a stream can have, from the most urgent (smallest) to 0. The CPU
    /// device has two, which have no effect.
    pub fn priorities(self) -> RangeInclusive<i32> {
        self.0.driver.priorities()
    }

    /// Returns the compute capability of a GPU.
    pub fn compute_capability(self) -> Option<Version> {
        self.0.driver.compute_capability()
    }

    /// Returns whether host functions of two streams of the device can run at the same time. A
    /// GPU's driver runs all of them on one thread, and a [`seeded_cpu`](Device::seeded_cpu) device
    /// one after another. There, a host function that waits for another one may wait forever.
    pub fn overlaps_host_functions(self) -> bool {
        self.0.driver.overlaps_host_functions()
    }

    /// Runs `f` while the context of the device is current on this thread, for a library that takes
    /// its device from there when it makes a handle, such as NCCL or cuBLAS. On a CPU device it
    /// only runs `f`.
    ///
    /// ```
    /// let gpu = thalweg::Device::best()?;
    /// let handle = gpu.with_context(|| 42)?; // for example `cublasCreate_v2`
    /// # assert_eq!(handle, 42);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device cannot be called from here, or has failed.
    pub fn with_context<T>(self, f: impl FnOnce() -> T) -> Result<T> {
        self.ensure_usable()?;
        self.seen(self.0.driver.with_context(f))
    }

    /// Returns the newest CUDA version that a GPU's driver supports.
    pub fn driver_version(self) -> Option<Version> {
        self.0.driver.version()
    }

    /// Reports a failure of the device. It reports each panic in a host function once, and a
    /// failure that makes the device unusable at every call from then on. It does not wait.
    ///
    /// # Errors
    /// There is such a failure.
    pub fn check(self) -> Result<()> {
        self.ensure_usable()?;
        if self.0.any_deferred.load(Ordering::Acquire) {
            let mut deferred = lock(&self.0.deferred);
            let error = deferred.pop();
            self.0.any_deferred.store(!deferred.is_empty(), Ordering::Release);
            if let Some(error) = error {
                return Err(error);
            }
        }
        self.seen(self.0.driver.check(self.0.housekeeping))
    }

    /// Makes every launch wait for its kernel, to find the one that fails. A kernel's failure is
    /// otherwise reported by a later call. With this, the launch itself returns
    /// [`Error::KernelFailed`], which names the kernel and the line of the launch.
    ///
    /// The variable `THALWEG_LAUNCH_BLOCKING=1` turns it on for all devices of a process. Launches
    /// that a graph captures do not wait. This is for debugging: nothing overlaps, and a program
    /// whose host must act before a kernel can end stops there.
    pub fn set_launch_blocking(self, on: bool) {
        self.0.blocks_launches.store(on, Ordering::Relaxed);
    }

    /// Whether a launch waits for its kernel.
    #[inline]
    pub(crate) fn blocks_launches(self) -> bool {
        self.0.blocks_launches.load(Ordering::Relaxed)
    }

    /// Marks the device as failed. From now on its calls return [`Error::Poisoned`] with this
    /// cause, no event of it gives its resource to the host or to a stream, also one that is
    /// recorded already, and host functions that have not begun are dropped. Other work that was
    /// enqueued before goes on, also that of other devices whose streams already wait for events of
    /// this one. The first cause stays.
    ///
    /// This is for code that takes part in the work of streams and learns that results are wrong: a
    /// collective operation whose peer is gone leaves a partial sum, and nobody may read it. It may
    /// be called from every thread, and in a host function of a stream. Memory that an event of the
    /// device guards leaks.
    ///
    /// ```
    /// use thalweg::{Device, Error, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let device = Device::new_cpu()?;
    /// let work = device.stream::<Work>()?;
    /// let x = work.record(work.alloc_zeroed::<f32>(10)?)?;
    /// device.poison("the peer is gone");
    /// assert!(matches!(x.synchronize().unwrap_err().error, Error::Poisoned { .. }));
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    pub fn poison(self, cause: impl Into<String>) {
        // The conversion may be a user's code, so it does not run while the cell is initialized.
        let cause = cause.into();
        self.0.cause.get_or_init(|| cause);
        self.0.poisoned.store(true, Ordering::Release);
    }

    /// Whether the device is known to have failed. Unlike [`ensure_usable`](Device::ensure_usable),
    /// it answers in a host function, too.
    pub(crate) fn is_failed(self) -> bool {
        self.0.poisoned.load(Ordering::Acquire)
    }

    /// Keeps an error, which [`check`](Device::check) reports.
    pub(crate) fn defer(self, error: Error) {
        lock(&self.0.deferred).push(error);
        self.0.any_deferred.store(true, Ordering::Release);
    }

    /// Returns `SyncStats` of hidden synchronization.
    pub fn sync_stats(self) -> SyncStats {
        SyncStats::of(&self.0.book)
    }

    /// Counts a call from here until the value is dropped, if the statistics of waits are on.
    #[inline]
    #[track_caller]
    pub(crate) fn host_wait(self, kind: HostWait) -> Option<Waiting> {
        self.0.book.wait(kind)
    }

    /// Keeps a value of a layer above for this device, as long as the process lives. There is one
    /// value of each type, which the first call makes. This file does not name the types, so it
    /// stays below the files that use it.
    pub(crate) fn keep<T: Any + Send + Sync>(self, make: impl FnOnce() -> T) -> &'static T {
        let mut kept = lock(&self.0.kept);
        if let Some(found) = kept.iter().find_map(|value| value.downcast_ref()) {
            return found;
        }
        let made: &'static T = Box::leak(Box::new(make()));
        kept.push(made);
        made
    }

    /// The modules whose kernels report panics.
    pub(crate) fn panics(self) -> &'static Panics {
        &self.0.panics
    }

    /// The stream that frees memory which no other stream orders any more.
    pub(crate) fn housekeeping(self) -> StreamHandle {
        self.0.housekeeping
    }

    pub(crate) fn driver(self) -> Driver {
        self.0.driver
    }

    /// Checks that the device can be called from here: no failure has been seen, and this is
    /// neither a host function of a stream nor the body of a kernel nor a forked child. It makes no
    /// call of the device; [`check`](Device::check) does.
    ///
    /// # Errors
    /// The device cannot be called from here, and why.
    #[inline]
    pub fn ensure_usable(self) -> Result<()> {
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

    /// Turns a fault into an error. A fatal fault marks the device as failed.
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
        let mut error = self.0.id.error(fault);
        if fatal {
            if let Some(Panicked { kernel, block, thread }) = self.0.panics.first() {
                error = Error::KernelPanicked { kernel, block, thread, cause: Box::new(error) };
            }
            self.poison(error.to_string());
        }
        error
    }
}

impl Id {
    /// Makes the error that a fault of this device means. Every fault becomes an error here.
    #[cold]
    fn error(self, fault: Fault) -> Error {
        match fault {
            Fault::Cuda(failure) => failure.into(),
            Fault::Forbidden(why) => why.into(),
            Fault::OutOfMemory { wanted } | Fault::Cpu(CpuError::OutOfMemory { bytes: wanted, .. }) => {
                Error::OutOfMemory { device: self.to_string(), wanted }
            }
            Fault::Unrelated => Error::DeviceMismatch {
                resource: "a device that it cannot wait for (of another kind, or seeded)".to_owned(),
                stream: self.to_string(),
            },
            Fault::Cpu(CpuError::NoBody { kernel }) => Error::NoCpuBody { kernel },
            Fault::Cpu(CpuError::NoCheckedBody { kernel }) => Error::NoCheckedBody { kernel },
            Fault::Cpu(CpuError::Thread { reason }) => Error::Thread { reason },
            Fault::Cpu(CpuError::Block(error)) => Error::Kernel(Box::new(error)),
            Fault::Cpu(CpuError::Behind { reason }) => Error::ProducerFailed { reason },
            Fault::Cpu(CpuError::Deadlock { blocked }) => Error::Deadlock { blocked },
            Fault::Cpu(CpuError::Variable { name, given, expected }) => {
                Error::Parameter { name, given, expected: expected.to_owned() }
            }
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.ordinal) {
            (DeviceKind::Cuda, n) => write!(f, "cuda:{n}"),
            (DeviceKind::Cpu, 0) => f.write_str("cpu"),
            (DeviceKind::Cpu, n) => write!(f, "cpu:{n}"),
        }
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

/// Prints `cuda:0`, `cpu`, or `cpu:1` for a second CPU device.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.id.fmt(f)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}
