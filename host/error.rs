//! One error type; each variant carries what its reader needs.

use std::fmt;

use thalweg_simt::host::counted;
pub use thalweg_simt::host::{LaunchError, RangeError};

/// What can go wrong.
///
/// "Not ready yet" is never an error: it is data in the result of the call that asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A CUDA driver call failed.
    #[error("{call} failed: {name} ({code}): {meaning}")]
    Cuda {
        /// The driver function.
        call: &'static str,
        /// The `CUresult`.
        code: u32,
        /// Its name, such as `CUDA_ERROR_INVALID_VALUE`.
        name: String,
        /// What the driver says of it.
        meaning: String,
    },
    /// The machine has no usable NVIDIA driver.
    #[error("no CUDA device can be used: {reason}")]
    NoDriver {
        /// What was looked for and not found.
        reason: String,
    },
    /// The NVIDIA driver is older than this crate needs.
    #[error("the NVIDIA driver supports CUDA {}.{}, but {}.{} or newer is needed: update the driver", found.0, found.1, needed.0, needed.1)]
    DriverTooOld {
        /// CUDA version of the driver: major, minor.
        found: (u32, u32),
        /// The oldest that has every function used.
        needed: (u32, u32),
    },
    /// A device number past the last one.
    #[error("there is no cuda:{ordinal}: this machine has {}", counted(*count, "CUDA device"))]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A device name that is none of `auto`, `cpu`, `cuda:N`.
    #[error("`{given}` is no device{}: expected auto, cpu or cuda:N", source_note(from_environment))]
    DeviceSpec {
        /// What was given.
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
    /// A pool of pinned memory would pass its budget.
    #[error("the pinned budget of {} is spent: {} wanted, {in_use} in use", counted(*budget, "byte"), counted(*wanted, "more byte"))]
    PinnedBudget {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes lent out.
        in_use: usize,
        /// The pool's limit.
        budget: usize,
    },
    /// A buffer of more bytes than an address can span.
    #[error("an allocation cannot hold {} of {}", counted(*elements, "element"), counted(*size, "byte"))]
    TooLarge {
        /// Elements asked for.
        elements: usize,
        /// Bytes of one.
        size: usize,
    },
    /// An earlier failure has left the device unusable; every later call says so.
    #[error("{device} cannot be used any more since an earlier failure: {cause}")]
    Poisoned {
        /// The device.
        device: String,
        /// The first failure.
        cause: String,
    },
    /// A resource of one device on a stream of another.
    #[error("a resource of {resource} cannot be used on a stream of {stream}")]
    DeviceMismatch {
        /// Where the resource lives.
        resource: String,
        /// The stream's device.
        stream: String,
    },
    /// A tag that is bound to another stream.
    #[error(
        "tag `{tag}` is bound to a stream of {bound} with priority {priority} for the life of the process; use another tag"
    )]
    TagBound {
        /// The tag type.
        tag: &'static str,
        /// The device of its stream.
        bound: String,
        /// The priority of its stream.
        priority: i32,
    },
    /// Two slices of a copy differ in length.
    #[error("a copy of {} into {destination_len}: the lengths must be equal", counted(*source_len, "element"))]
    LengthMismatch {
        /// Elements in the source.
        source_len: usize,
        /// Elements in the destination.
        destination_len: usize,
    },
    /// A range outside its slice.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A launch that the kernel's declaration rules out.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The PTX of the kernel's crate cannot run the kernel.
    #[error("{device} cannot run the kernel `{entry}` of `{origin}`: {found}")]
    NoEntry {
        /// The entry's name, which spells the signature.
        entry: &'static str,
        /// Where the kernel is declared: package, version and module path.
        origin: &'static str,
        /// What is wrong with the PTX.
        found: NotFound,
        /// The device.
        device: String,
    },
    /// A kernel that exists as PTX only, launched on the CPU device.
    #[error("kernel `{kernel}` has no body in Rust, so the CPU device cannot run it")]
    NoCpuBody {
        /// The kernel.
        kernel: &'static str,
    },
    /// PTX that the driver rejects.
    #[error("the driver rejects the PTX: {log}")]
    Ptx {
        /// The driver's log.
        log: String,
    },
    /// A kernel failed on the CPU device, or the device itself did.
    #[error("{0}")]
    Kernel(String),
    /// A host function given to a stream panicked.
    #[error("a host function on a stream panicked: {message}")]
    HostFunctionPanicked {
        /// The panic's message.
        message: String,
    },
    /// A call into a device from a host function on a stream.
    #[error("a host function on a stream called into a device, which CUDA forbids: hand the work to another thread")]
    InHostFunction,
    /// A call in a child process made by `fork`.
    #[error("CUDA does not survive fork: start the process anew instead")]
    Forked,
    /// Pieces that do not make one range of one allocation.
    #[error("these pieces cannot be joined: {reason}")]
    NotAdjacent {
        /// What does not fit.
        reason: &'static str,
    },
    /// `unshare` while others still hold the resource.
    #[error("the resource is still shared: other handles or readings alive: {holders}")]
    StillShared {
        /// Other clones and readings.
        holders: usize,
    },
    /// A reading was dropped where its end could not be recorded (in a host function), so nobody can know when it is done.
    #[error(
        "the resource cannot be taken back: a reading of it was dropped inside a host function, or on a failed device"
    )]
    ReaderLost,
    /// A replay with other memory than the graph was captured with.
    #[error("the graph was captured with another bundle: buffer {index} was {captured}, and now is {given}")]
    GraphMismatch {
        /// The first buffer that differs, counted from 0 through the whole bundle.
        index: usize,
        /// What it was at the capture.
        captured: String,
        /// What it is now.
        given: String,
    },
    /// A thread could not be started, or cannot go on.
    #[error("a thread failed: {reason}")]
    Thread {
        /// What the system said, or the panic that ended it.
        reason: String,
    },
    /// Weights or a query that are missing, of another shape, or no numbers.
    #[error("tensor `{name}` is {given}, expected {expected}")]
    Tensor {
        /// The tensor, by its name in a file of weights.
        name: &'static str,
        /// What was given.
        given: String,
        /// What would be accepted.
        expected: String,
    },
    /// A file that cannot be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said, or what was expected.
        reason: String,
    },
    /// A sample that a loader could not load.
    #[error("sample {index} ({name}): {cause}")]
    Sample {
        /// Its index in the source.
        index: u64,
        /// Its name.
        name: String,
        /// What its decoder returned, or an [`Error`] of this crate, such as [`Error::PinnedBudget`]; `downcast_ref` tells.
        cause: std::sync::Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A parameter outside its range.
    #[error("{name} is {given}, expected {expected}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// What was given.
        given: String,
        /// What would be accepted.
        expected: String,
    },
}

/// Why the PTX of a kernel's crate cannot run the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotFound {
    /// The crate says by `ptx! {}` that it has no PTX.
    NoPtx,
    /// No file has an entry of this name.
    Absent,
    /// More than one file has an entry of this name.
    Twice,
    /// The entry was built from another declaration: its package, version and module path.
    Other(String),
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPtx => f.write_str("its crate declares `ptx! {}`, so its kernels run on the CPU device only"),
            Self::Absent => f.write_str("the PTX of its crate has no such entry: build the PTX again from this source"),
            Self::Twice => f.write_str("two PTX files of its crate have such an entry"),
            Self::Other(origin) => write!(f, "the PTX of its crate has this entry from `{origin}`"),
        }
    }
}

fn source_note(from_environment: &bool) -> &'static str {
    if *from_environment { " (in THALWEG_DEVICE)" } else { "" }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A transition that failed: why, and the value it was given, in the state it was in.
///
/// `?` turns it into [`Error`] and drops the value; to go on with the value, take it.
#[must_use = "it holds the resource that could not be moved on"]
pub struct Returned<T> {
    /// Why the transition failed.
    pub error: Error,
    /// What was given.
    pub value: T,
}

impl<T> Returned<T> {
    pub(crate) fn new(error: Error, value: T) -> Self {
        Self { error, value }
    }
}

impl<T> From<Returned<T>> for Error {
    fn from(returned: Returned<T>) -> Self {
        returned.error
    }
}

impl<T> fmt::Debug for Returned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returned").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Returned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Returned<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, RangeError};

    /// A count of one is singular.
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
        let shared = Error::StillShared { holders: 1 };
        assert_eq!(shared.to_string(), "the resource is still shared: other handles or readings alive: 1");
    }
}
