//! Devices: CUDA GPUs, and the CPU device that runs the same kernels.

use std::any::Any;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::tally::{Book, Stall, Stalled, Tally};
use crate::driver::cpu::{CpuError, Schedule};
use crate::driver::{Driver, Fault, StreamHandle, guard};
use crate::error::{Error, Result};
use crate::lock;

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

/// What a device is called. Prints as `cuda:0`, or `cpu` (`cpu:1` for a second one).
#[derive(Clone, Copy)]
struct Id {
    kind: DeviceKind,
    ordinal: usize,
}

pub(crate) struct DeviceInner {
    id: Id,
    driver: Driver,
    /// Frees memory that no stream orders any more.
    housekeeping: StreamHandle,
    poisoned: AtomicBool,
    cause: OnceLock<String>,
    /// Panics of host functions, until somebody asks.
    deferred: Mutex<Vec<Error>>,
    any_deferred: AtomicBool,
    book: Book,
    /// What the layers above keep for the device, a value of each type: see [`Device::keep`].
    kept: Mutex<Vec<&'static (dyn Any + Send + Sync)>>,
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
            Ok(spec) if !spec.is_empty() => Self::named(&spec, true),
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
        Self::named(spec, false)
    }

    fn named(spec: &str, from_environment: bool) -> Result<(Self, Option<String>)> {
        match spec {
            "auto" => match Self::cuda(0) {
                Ok(gpu) => Ok((gpu, None)),
                Err(why) => Ok((Self::cpu()?, Some(format!("running on the CPU device: {why}")))),
            },
            "cpu" => Ok((Self::cpu()?, None)),
            _ => {
                let ordinal = spec.strip_prefix("cuda:").and_then(|n| n.parse().ok());
                let ordinal = ordinal.ok_or_else(|| Error::DeviceSpec { given: spec.to_owned(), from_environment })?;
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
        let driver = Driver::open_cuda(ordinal)?;
        let id = Id { kind: DeviceKind::Cuda, ordinal };
        open.iter().try_for_each(|(_, other)| driver.reach(other.0.driver)).map_err(|fault| id.error(fault))?;
        let device = Self::new(id, driver)?;
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
        self.0.driver.reseed(seed);
    }

    /// Lets a CPU device hold at most so many bytes of device memory, for testing how a program copes without more; nothing on
    /// others.
    pub fn limit_memory(self, bytes: Option<u64>) {
        self.0.driver.limit_memory(bytes.map(|b| usize::try_from(b).unwrap_or(usize::MAX)));
    }

    /// The number of one more CPU device; 0 is [`cpu`](Device::cpu)'s.
    fn next_cpu() -> usize {
        static COUNT: AtomicUsize = AtomicUsize::new(1);
        COUNT.fetch_add(1, Ordering::Relaxed)
    }

    fn open_cpu(schedule: Schedule, ordinal: usize) -> Result<Self> {
        guard::permitted()?;
        guard::watch_for_fork();
        let id = Id { kind: DeviceKind::Cpu, ordinal };
        Self::new(id, Driver::open_cpu(schedule).map_err(|fault| id.error(fault))?)
    }

    fn new(id: Id, driver: Driver) -> Result<Self> {
        let housekeeping = driver.new_stream(0).map_err(|fault| id.error(fault))?;
        let device = Self(Box::leak(Box::new(DeviceInner {
            id,
            driver,
            housekeeping,
            poisoned: AtomicBool::new(false),
            cause: OnceLock::new(),
            deferred: Mutex::default(),
            any_deferred: AtomicBool::new(false),
            book: Book::default(),
            kept: Mutex::default(),
        })));
        Ok(device)
    }

    /// Every device there is: CUDA devices that can be opened, then the CPU device. None in a host function of a stream and in
    /// a forked child, where no device can be called.
    pub fn all() -> Vec<Self> {
        let cuda = (0..Driver::cuda_devices()).filter_map(|ordinal| Self::cuda(ordinal).ok());
        cuda.chain(Self::cpu().ok()).collect()
    }

    /// Whether it is a GPU or the CPU device.
    pub fn kind(self) -> DeviceKind {
        self.0.id.kind
    }

    /// The device's number among those of its kind.
    pub fn ordinal(self) -> usize {
        self.0.id.ordinal
    }

    /// The product's name.
    pub fn name(self) -> String {
        self.0.driver.name()
    }

    /// Bytes of device memory.
    pub fn total_memory(self) -> u64 {
        self.0.driver.total_memory() as u64
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
        self.0.driver.copy_engines()
    }

    /// Multiprocessors of a GPU, threads of the CPU device.
    pub fn multiprocessors(self) -> u32 {
        self.0.driver.multiprocessors()
    }

    /// Priorities a stream can have, from the most urgent (smallest) to 0. The CPU device has two, between which it makes no
    /// difference.
    pub fn priorities(self) -> RangeInclusive<i32> {
        self.0.driver.priorities()
    }

    /// Compute capability of a GPU: major, minor.
    pub fn compute_capability(self) -> Option<(u32, u32)> {
        self.0.driver.compute_capability()
    }

    /// The newest CUDA version that a GPU's driver supports: major, minor.
    pub fn driver_version(self) -> Option<(u32, u32)> {
        self.0.driver.version()
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
        self.seen(self.0.driver.check(self.0.housekeeping))
    }

    /// Keeps an error for [`check`](Device::check).
    pub(crate) fn defer(self, error: Error) {
        lock(&self.0.deferred).push(error);
        self.0.any_deferred.store(true, Ordering::Release);
    }

    /// The device's tally of hidden synchronisation.
    pub fn tally(self) -> Tally {
        Tally::of(&self.0.book)
    }

    /// Counts what follows, until the value is dropped, if the tally is on.
    #[inline]
    #[track_caller]
    pub(crate) fn stall(self, kind: Stall) -> Option<Stalled> {
        self.0.book.stall(kind)
    }

    /// What a layer above keeps for this device as long as the process lives: one value of each type, which the first call
    /// makes. The device does not know the type, so that its file is below those that use it.
    pub(crate) fn keep<T: Any + Send + Sync>(self, make: impl FnOnce() -> T) -> &'static T {
        let mut kept = lock(&self.0.kept);
        if let Some(found) = kept.iter().find_map(|value| value.downcast_ref()) {
            return found;
        }
        let made: &'static T = Box::leak(Box::new(make()));
        kept.push(made);
        made
    }

    /// The stream that frees memory that no stream orders any more.
    pub(crate) fn housekeeping(self) -> StreamHandle {
        self.0.housekeeping
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
        let error = self.0.id.error(fault);
        if fatal {
            self.0.cause.get_or_init(|| error.to_string());
            self.0.poisoned.store(true, Ordering::Release);
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
            Fault::Cpu(CpuError::HostPanicked { message }) => Error::HostFunctionPanicked { message },
            Fault::Cpu(CpuError::NoBody { kernel }) => Error::NoCpuBody { kernel },
            Fault::Cpu(CpuError::Thread { reason }) => Error::Thread { reason },
            Fault::Cpu(error) => Error::Kernel(error.to_string()),
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

/// `cuda:0`, or `cpu` (`cpu:1` for a second one).
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
