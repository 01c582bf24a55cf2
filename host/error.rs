//! The error type of the crates. Each variant carries the facts of the failure.

use std::fmt;

use thalweg_simt::host::counted;
pub use thalweg_simt::host::{LaunchError, RangeError};

/// A version of CUDA or of a GPU's compute capability. It prints as `12.4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The number before the point.
    pub major: u32,
    /// The number after the point.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// An error of this crate.
///
/// "Not ready yet" is never an error. A call that asks for it returns it as a value.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kernel failed, or work before it on its stream. Only a device that [waits for each
    /// launch](crate::Device::set_launch_blocking) reports this.
    #[error("kernel `{kernel}`, launched at {launched}, failed: {cause}")]
    KernelFailed {
        /// The kernel's name.
        kernel: &'static str,
        /// The line that launched it.
        launched: &'static std::panic::Location<'static>,
        /// The error that the device reported.
        cause: Box<Error>,
    },
    /// A thread of a kernel panicked on a GPU. Only kernels whose PTX was built with reports of
    /// panics say so (`THALWEG_PTX_PANICS=1` in a build with
    /// `thalweg_ptx_builder::build_to_out_dir`).
    #[error(
        "kernel `{kernel}`, block {block:?}: thread {thread:?} panicked (the CPU device tells the line and the \
         message): {cause}"
    )]
    KernelPanicked {
        /// The kernel's name.
        kernel: String,
        /// The block's position in the grid.
        block: [u32; 3],
        /// The thread's position in the block.
        thread: [u32; 3],
        /// The error that the driver reported.
        cause: Box<Error>,
    },
    /// A CUDA driver call failed.
    #[error("{call} failed: {name} ({code}): {meaning}")]
    Cuda {
        /// The driver function.
        call: &'static str,
        /// The `CUresult`.
        code: u32,
        /// Its name, such as `CUDA_ERROR_INVALID_VALUE`.
        name: String,
        /// The driver's description of it.
        meaning: String,
    },
    /// The machine has no NVIDIA driver.
    #[error("no CUDA device can be used: {reason}")]
    NoDriver {
        /// The missing thing.
        reason: String,
    },
    /// `CUDA_VISIBLE_DEVICES` hides every GPU.
    #[error("no CUDA device can be used: CUDA_VISIBLE_DEVICES is `{value}`, which hides them all")]
    HiddenDevices {
        /// The variable.
        value: String,
    },
    /// The machine has an NVIDIA driver that does not start, or a GPU that lacks what this crate
    /// needs.
    #[error("the NVIDIA driver cannot be used: {reason}")]
    DriverFailed {
        /// The operation that failed.
        reason: String,
    },
    /// The NVIDIA driver is older than this crate needs.
    #[error("the NVIDIA driver supports CUDA {found}, but {needed} or newer is needed: update the driver")]
    DriverTooOld {
        /// The newest CUDA version that the driver supports.
        found: Version,
        /// The oldest CUDA version that has every function used.
        needed: Version,
    },
    /// The device number is past the last one.
    #[error("there is no cuda:{ordinal}: this machine has {}", counted(*count, "CUDA device"))]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// The number of CUDA devices.
        count: usize,
    },
    /// A device name is none of `auto`, `cpu`, `cuda:N`.
    #[error("`{given}` is not the name of a device{}: expected auto, cpu or cuda:N", source_note(from_environment))]
    DeviceSpec {
        /// The name that was given.
        given: String,
        /// Whether it came from the variable `THALWEG_DEVICE`.
        from_environment: bool,
    },
    /// The device has no room for an allocation.
    #[error("{device} is out of memory: {} wanted", counted(*wanted, "byte"))]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        wanted: usize,
    },
    /// An allocation would exceed the budget of a pool of pinned memory.
    #[error("the pinned budget of {} is spent: {} wanted, {in_use} in use", counted(*budget, "byte"), counted(*wanted, "more byte"))]
    PinnedBudget {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes in use.
        in_use: usize,
        /// The pool's budget, in bytes.
        budget: usize,
    },
    /// A buffer would have more bytes than an allocation can have.
    #[error("an allocation cannot hold {} of {}", counted(*elements, "element"), counted(*size, "byte"))]
    TooLarge {
        /// Elements asked for.
        elements: usize,
        /// Bytes of one element.
        size: usize,
    },
    /// An earlier failure has made the device unusable. Every later call reports this.
    #[error("{device} cannot be used any more after an earlier failure: {cause}")]
    Poisoned {
        /// The device.
        device: String,
        /// The message of the first failure.
        cause: String,
    },
    /// A resource of one device was used on a stream of another.
    #[error("a resource of {resource} cannot be used on a stream of {stream}")]
    DeviceMismatch {
        /// The resource's device, or a description of it.
        resource: String,
        /// The stream's device.
        stream: String,
    },
    /// The tag is bound to another stream.
    #[error(
        "tag `{tag}` is bound to a stream of {bound} with priority {priority} until the process ends: use another tag"
    )]
    TagBound {
        /// The tag type.
        tag: &'static str,
        /// The device of its stream.
        bound: String,
        /// The priority of its stream.
        priority: i32,
    },
    /// The two slices of a copy differ in length.
    #[error("a copy of {} into {destination_len}: the lengths must be equal", counted(*source_len, "element"))]
    LengthMismatch {
        /// Elements in the source.
        source_len: usize,
        /// Elements in the destination.
        destination_len: usize,
    },
    /// A range is not inside its slice.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The kernel's declaration does not allow a launch.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The PTX of the kernel's crate cannot run the kernel.
    #[error("{device} cannot run the kernel `{entry}` of `{origin}`: {found}")]
    NoEntry {
        /// The entry's name, which contains the signature.
        entry: &'static str,
        /// The kernel's declaration: package, version and module path.
        origin: &'static str,
        /// The defect of the PTX.
        found: NotFound,
        /// The device.
        device: String,
    },
    /// A kernel that exists as PTX only was launched on the CPU device.
    #[error("kernel `{kernel}` has no body in Rust, so the CPU device cannot run it")]
    NoCpuBody {
        /// The kernel's name.
        kernel: &'static str,
    },
    /// A kernel was launched on a [checked device](crate::Device::checked_cpu), and its crate was
    /// built without debug assertions, as release builds are.
    #[error(
        "kernel `{kernel}` was built without debug assertions, so a checked device cannot run it. Use a debug build, \
         or set `debug-assertions = true` in the profile"
    )]
    NoCheckedBody {
        /// The kernel's name.
        kernel: &'static str,
    },
    /// The driver rejects the PTX.
    #[error("the driver rejects the PTX: {log}")]
    Ptx {
        /// The driver's log.
        log: String,
    },
    /// A kernel failed on the CPU device. The fault says how: it panicked, its threads diverged, it
    /// accessed memory out of bounds, or, on a [checked device](crate::Device::checked_cpu), did
    /// anything else that is wrong.
    #[error("{0}")]
    Kernel(Box<thalweg_simt::cpu::BlockError>),
    /// A stream was to wait for work of another CPU device, which has failed. The device of the
    /// stream has not.
    #[error("the work to wait for is on a device that has failed: {reason}")]
    ProducerFailed {
        /// The error of the other device.
        reason: String,
    },
    /// The host waits on a seeded schedule, and no command can run.
    #[error("no stream of the CPU device can go on: {blocked}")]
    Deadlock {
        /// A description of the streams and what each waits for.
        blocked: String,
    },
    /// A host function on a stream panicked.
    #[error("a host function on a stream panicked: {message}")]
    HostFunctionPanicked {
        /// The panic's message.
        message: String,
    },
    /// A host function on a stream called into a device.
    #[error("a host function on a stream called into a device, which CUDA forbids: give the work to another thread")]
    InHostFunction,
    /// The body of a kernel on the CPU device called into a device.
    #[error("the body of a kernel called into a device, which would wait for itself: make the call outside the kernel")]
    InKernel,
    /// A child process made by `fork` called into a device.
    #[error("a device cannot be used in a child process made by fork: start a new process instead")]
    Forked,
    /// The pieces do not make one range of one allocation.
    #[error("these pieces cannot be joined: {reason}")]
    NotAdjacent {
        /// The reason.
        reason: &'static str,
    },
    /// `unshare` was called while others still hold the resource.
    #[error("the resource is still shared: other handles or readings alive: {ref_count}")]
    StillShared {
        /// The number of other clones and readings.
        ref_count: usize,
    },
    /// A reading was dropped where its end could not be recorded: in a host function, in a kernel,
    /// or on a failed device. So it is not known when it ends.
    #[error(
        "the resource cannot be taken back: a reading of it was dropped inside a host function or a kernel, or on a failed device"
    )]
    ReaderLost,
    /// A replay was given other memory than the graph was captured with.
    #[error("the graph was captured with another bundle: buffer {index} was {captured} and is now {given}")]
    GraphMismatch {
        /// The index of the first buffer that differs, counted from 0 through the whole bundle.
        index: usize,
        /// The description at the capture.
        captured: String,
        /// The description now.
        given: String,
    },
    /// A thread could not be started, or it ends and may not call a device any more.
    #[error("a thread failed: {reason}")]
    Thread {
        /// The system's message, or the reason.
        reason: String,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::sync::Arc<std::io::Error>,
    },
    /// A library that is loaded at run time cannot be used. The text says which, and why.
    #[error("{0}")]
    Library(String),
    /// A parameter is outside its range.
    #[error("{name} is {given}, expected {expected}")]
    Parameter {
        /// The parameter's name.
        name: &'static str,
        /// The given value.
        given: String,
        /// A description of accepted values.
        expected: String,
    },
}

/// The reason why the PTX of a kernel's crate cannot run the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotFound {
    /// The crate declares `ptx! {}`, so it has no PTX.
    NoPtx,
    /// The crate was built without PTX. The text says why.
    BuiltWithout(String),
    /// No PTX file has an entry of this name, or the header of a built file does not list it.
    Absent,
    /// No PTX file with an entry of this name is for the architecture of the device.
    Architecture {
        /// The architectures that the files are for.
        targets: String,
        /// The compute capability of the device.
        capability: Version,
    },
    /// More than one PTX file for the same architecture has an entry of this name.
    Twice,
    /// The entry was built from another declaration, of this package, version and module path.
    Other(String),
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPtx => f.write_str("its crate declares `ptx! {}`, so its kernels run on the CPU device only"),
            Self::BuiltWithout(why) => write!(
                f,
                "its crate was built without PTX: {why}. Without that setting, the build script makes the PTX or says \
                 which compiler it lacks; until then the kernels of this crate run on the CPU device only"
            ),
            Self::Absent => f.write_str("the PTX of its crate has no such entry: build the PTX again from this source"),
            Self::Architecture { targets, capability } => write!(
                f,
                "the PTX of its crate has this entry for {targets} only, and the device has compute capability \
                 {capability}"
            ),
            Self::Twice => f.write_str("two PTX files of its crate have such an entry"),
            Self::Other(origin) => write!(f, "the PTX of its crate has this entry from `{origin}`"),
        }
    }
}

impl Error {
    /// Returns whether this error of [`Device::cuda`](crate::Device::cuda) means that the machine
    /// has no GPU to use, which is nothing to repair: there is no NVIDIA driver, or
    /// `CUDA_VISIBLE_DEVICES` hides every GPU (it is empty, or begins with a negative number or
    /// with `NoDevFiles`, as Slurm writes it).
    ///
    /// Every other error means that a driver is there, and it or its GPU does not work.
    #[must_use]
    pub fn means_no_gpu(&self) -> bool {
        matches!(self, Self::NoDriver { .. } | Self::HiddenDevices { .. })
    }
}

fn source_note(from_environment: &bool) -> &'static str {
    if *from_environment { " (in THALWEG_DEVICE)" } else { "" }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed transition: the error, and the value that the transition was given, in its old state.
/// Every call of these crates that gives a value back with an error uses it. `E` is the error of
/// the crate that failed.
///
/// `?` turns it into the error and drops the value. Take the `value` out to go on with it.
#[must_use = "it holds the resource that could not be moved on"]
pub struct Returned<T, E = Error> {
    /// The error of the transition.
    pub error: E,
    /// The value that was given to the transition.
    pub value: T,
}

impl<T, E> Returned<T, E> {
    pub(crate) fn new(error: E, value: T) -> Self {
        Self { error, value }
    }
}

/// Gives the error of a crate on top, whose variant `Device` has this crate's, the conversions that
/// `?` needs of what converts into this crate's.
#[doc(hidden)]
#[macro_export]
macro_rules! __errors_of_device {
    ($error:ty) => {
        impl ::core::convert::From<$crate::RangeError> for $error {
            fn from(error: $crate::RangeError) -> Self {
                Self::Device(error.into())
            }
        }
        impl ::core::convert::From<$crate::LaunchError> for $error {
            fn from(error: $crate::LaunchError) -> Self {
                Self::Device(error.into())
            }
        }
        impl<T> ::core::convert::From<$crate::Returned<T>> for $error {
            fn from(returned: $crate::Returned<T>) -> Self {
                Self::Device(returned.into())
            }
        }
        impl<T> ::core::convert::From<$crate::Returned<T, $error>> for $error {
            fn from(returned: $crate::Returned<T, $error>) -> Self {
                returned.error
            }
        }
    };
}

impl<T> From<Returned<T>> for Error {
    fn from(returned: Returned<T>) -> Self {
        returned.error
    }
}

impl<T, E: fmt::Debug> fmt::Debug for Returned<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returned").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T, E: fmt::Display> fmt::Display for Returned<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, E: std::error::Error + 'static> std::error::Error for Returned<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, RangeError};

    /// A count of one takes the singular.
    #[test]
    fn messages_count() {
        let too_large = |elements, size| Error::TooLarge { elements, size }.to_string();
        assert_eq!(too_large(1, 1), "an allocation cannot hold 1 element of 1 byte");
        assert_eq!(too_large(usize::MAX, 2), format!("an allocation cannot hold {} elements of 2 bytes", usize::MAX));
        let budget = |wanted, budget| Error::PinnedBudget { wanted, in_use: 0, budget }.to_string();
        assert_eq!(budget(1, 1), "the pinned budget of 1 byte is spent: 1 more byte wanted, 0 in use");
        assert_eq!(budget(2, 0), "the pinned budget of 0 bytes is spent: 2 more bytes wanted, 0 in use");
        let none = |count| Error::NoSuchDevice { ordinal: 7, count }.to_string();
        assert_eq!(none(1), "there is no cuda:7: this machine has 1 CUDA device");
        assert_eq!(none(2), "there is no cuda:7: this machine has 2 CUDA devices");
        assert_eq!(
            Error::OutOfMemory { device: "cpu".into(), wanted: 1 }.to_string(),
            "cpu is out of memory: 1 byte wanted"
        );
        let copy = Error::LengthMismatch { source_len: 1, destination_len: 2 };
        assert_eq!(copy.to_string(), "a copy of 1 element into 2: the lengths must be equal");
        assert_eq!(RangeError { start: 0, end: 2, len: 1 }.to_string(), "range 0..2 is not inside the 1 element");
        let shared = Error::StillShared { ref_count: 1 };
        assert_eq!(shared.to_string(), "the resource is still shared: other handles or readings alive: 1");
    }
}
