//! CUDA streams whose races do not compile.
//!
//! The type of a buffer says which stream orders it. To use the buffer on another stream, or on the
//! host, you need an [`Event`], and the event carries the buffer. So you cannot forget the wait,
//! you cannot touch a pinned buffer during a copy, and nothing can free memory while a stream reads
//! it. The compiler makes these checks: at run time an operation is the driver call and little
//! else.
//!
//! ```
//! use thalweg::{Device, kernel, ptx, stream_tags};
//!
//! ptx! {} // this crate has no PTX, so its kernels run on the CPU device only
//!
//! kernel! {
//!     /// `y = a x + y`, for the CPU device from this text; for a GPU it is compiled to PTX.
//!     unsafe fn saxpy(cx: impl Simt, n: u32, a: f32, x: In<f32>, y: InOut<f32>)
//!     require { x.len() == n, y.len() == n }
//!     grid(n.div_ceil(256)) block(256)
//!     {
//!         let i = cx.global_x();
//!         if i < n {
//!             let i = i as usize;
//!             y.set(cx, i, cx.fma(a, x.get(cx, i), y.get(cx, i)));
//!         }
//!     }
//! }
//!
//! stream_tags!(Upload, Compute, Download);
//! # fn main() -> Result<(), thalweg::Error> {
//! let gpu = Device::cpu()?;
//! let (up, compute, down) = (gpu.stream::<Upload>()?, gpu.stream::<Compute>()?, gpu.stream::<Download>()?);
//!
//! let host = up.bind(gpu.pinned_from(&[1.0f32; 1000])?)?; // page-locked, now `On<Upload, _>`
//! let mut x = up.alloc::<f32>(1000)?;
//! up.copy_to_device(&host, &mut x)?;
//! let x = up.hand_off(x, &compute)?; // `compute` waits for the copy; with `&up` below, the program would not compile
//!
//! let mut y = compute.alloc_zeroed::<f32>(1000)?;
//! saxpy(&compute, 1000, 2.0, &x, &mut y)?;
//! let y = compute.hand_off(y, &down)?;
//!
//! let mut result = down.bind(gpu.pinned::<f32>(1000)?)?;
//! down.copy_to_host(&y, &mut result)?;
//! let result = down.record(result)?.synchronize()?; // the host waits, and only now `result` is a slice
//! assert_eq!(*result, [2.0; 1000]);
//! # Ok(()) }
//! ```
//!
//! # The three states
//!
//! ```text
//! idle R --s.bind--> R::On<S> --s.record--> Event<R> --t.wait--> R::On<T>
//!                                               \\--synchronize--> idle R
//! ```
//!
//! | type | state | what you can do |
//! |---|---|---|
//! | [`PinnedBuffer<T>`](PinnedBuffer), [`DeviceBuffer<T>`](DeviceBuffer), and [composites](Resource) | idle: no GPU work can touch it | read and write a pinned buffer as a slice; [`bind`](Stream::bind) it to a stream |
//! | [`On<S, DeviceBuffer<T>>`](On), and composites of those | ordered by stream `S` | use it in operations of `S`, and of no other stream |
//! | [`Event<R>`](Event) | in transit, guarded by a recorded event | [`wait`](Stream::wait) on another stream, [`synchronize`](Event::synchronize), [`query`](Event::query), `.await` |
//!
//! [`Stream::hand_off`] is `record` and `wait` in one call. Several streams can read one resource
//! through [`Shared`]. [`DeviceBuffer::split_even`] makes pieces that travel separately. [`Ring`]
//! keeps slots in circulation. [`StreamPool`] and [`AnyStream`] are for programs that learn the
//! number of streams at run time. A [`Graph`] is work that is captured once and enqueued by one
//! call; its branches run side by side ([`Stream::fork`]). Forgetting a value of any of these types
//! leaks it, and can never cause a race or a dangling pointer.
//!
//! # Overlap, and seeing it
//!
//! [`overlap`] has the patterns: copies beside kernels, and stages beside stages. [`Timeline`]
//! draws what ran when and says which step limits the speed. [`Device::sync_stats`] lists the calls
//! that made the host wait. [`concurrency_check`] measures whether two streams run at the same
//! time.
//!
//! The crate `thalweg-loader` reads images from disk, decodes them and uploads them ahead of their
//! consumer. `thalweg-vision` turns photographs into adaptive visual tokens.
//!
//! # Devices
//!
//! [`Device::best`] is the first GPU. It needs only the NVIDIA driver, and no CUDA toolkit. Without
//! a GPU it is the CPU device, which runs the same kernels with real queues and threads.
//! `THALWEG_DEVICE=cpu` or `cuda:1` chooses a device.
//!
//! # Kernels
//!
//! [`kernel!`] declares a kernel once, in Rust. The declaration gives the PTX entry, the CPU body
//! and the typed launcher, which checks the `require` clause at each launch. `thalweg-ptx-builder`
//! compiles a crate of kernels to PTX in its build script, and [`ptx!`] embeds the file.
//!
//! # Messages
//!
//! The crate logs the events of the life of a program through the crate [`log`], at the level
//! `debug`: it has no levels above, because what goes wrong is an error of the call.
//!
//! | target | what it says |
//! |---|---|
//! | `thalweg::device` | a device was opened |
//! | `thalweg::stream` | a stream was made: for a tag, a scoped stream, or as a foreign one |
//! | `thalweg::module` | a GPU loaded the PTX of a crate |
//! | `thalweg::memory` | memory was page-locked, a pool was trimmed, a limit was reached |
//! | `thalweg::graph` | a graph was captured and made ready to run |
//! | `thalweg_vision::pipeline` | a pipeline was made; a slot got its memory |
//!
//! Launches, copies, `hand_off`, `record`, `wait` and `replay` log nothing. These calls return
//! before their work begins, so a message or a span around one would say when the host called, and
//! not when the work ran. A [`Timeline`] records spans on the device's own clock, and in Nsight
//! Systems they are NVTX ranges.
//!
//! # Interoperation
//!
//! [`Stream::raw`], [`DeviceSlice::device_ptr`] and [`DeviceBuffer::from_raw`] let code of cudarc,
//! cust, cuBLAS or NCCL work on streams of this crate. If a thread has no CUDA context, opening a
//! device leaves the device's primary context current, as the CUDA runtime does. A context that is
//! already current is restored after every call. If other code captures graphs, such as PyTorch's
//! `torch.cuda.graph`, a thread of yours that works beside it does so in [`beside_captures`].

extern crate self as thalweg; // for the paths that the derive writes

mod any_stream;
mod brand;
mod copies;
mod cupti;
mod driver;
mod error;
mod event;
mod foreign;
mod fork;
mod graph;
mod graph_cache;
mod host_function;
mod kernel;
#[doc(hidden)]
pub mod library;
mod memory;
mod occupancy;
pub mod overlap;
mod probe;
mod readers;
mod region;
mod resource;
mod ring;
mod runtime;
mod scope;
mod shared;
pub mod simt;
mod size;
mod stream;
mod timeline;
pub mod trace;
mod transitions;
mod utilization;

pub use any_stream::{AnyStream, PerThread, Scoped, StreamPool};
pub use brand::{Brand, LiveBrand, Tag, Within};
pub use driver::beside_captures;
pub use error::{Error, LaunchError, NotFound, RangeError, Result, Returned, Version};
#[doc(hidden)]
pub use event::Splitter;
pub use event::{Event, EventFuture, QueryResult, TimedEvent, Unzip};
pub use foreign::{Foreign, ForeignStream};
pub use fork::{BranchArgs, BranchRef};
pub use graph::{Capture, Graph};
pub use graph_cache::{GraphCache, GraphStep, GraphWork};
pub use memory::{DeviceBuffer, DeviceCopy, PeerBuffer, PeerSlice, PinnedBuffer, PinnedPool};
pub use occupancy::{Occupancy, OccupancyQuery};
pub use region::Region;
pub use resource::{Bundle, LeafResource, On, Resource};
#[doc(hidden)]
pub use resource::{Leaf, LeafInfo, Producer, Token};
pub use ring::Ring;
pub use runtime::device::{Device, DeviceKind, OpenedDevice};
pub use runtime::memory::MemoryStats;
pub use runtime::memory_log::{MemoryLine, MemoryLog, MemoryReport};
pub use runtime::stream::StreamOptions;
pub use runtime::sync_stats::{HostWait, HostWaits, SyncReport, SyncStats};
pub use scope::{At, DeviceRank, for_each_device};
pub use shared::{Shared, SharedRead};
pub use size::Size;
pub use stream::Stream;
pub use thalweg_simt::cpu::{BlockError, Fault, Finding};
#[doc(hidden)]
pub use thalweg_simt::host::counted as __counted;
pub use thalweg_simt::host::{DeviceSlice, HostSlice};
pub use thalweg_simt::{ByValue, by_value, kernel, ptx};
pub use timeline::{
    Activity, ByLabel, Concurrency, LabelMetrics, Metrics, Span, Timeline, Trace, TrackMetrics, concurrency_check,
};
pub use utilization::Utilization;

#[doc(hidden)]
pub use thalweg_derive::__Setters;
pub use thalweg_derive::Resource;

/// The blocks of these pages are tested with the documentation; `.ci/pages.py` compares the list.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/coming-from.md")]
    mod coming_from {}
    #[doc = include_str!("../docs/command.md")]
    mod command {}
    #[doc = include_str!("../docs/debugging.md")]
    mod debugging {}
    #[doc = include_str!("../docs/default-streams.md")]
    mod default_streams {}
    #[doc = include_str!("../docs/safe-kernels.md")]
    mod safe_kernels {}
    #[doc = include_str!("../docs/serving.md")]
    mod serving {}
    #[doc = include_str!("../docs/streams.md")]
    mod streams {}
    #[doc = include_str!("../docs/trace.md")]
    mod trace {}
}

ptx! { unsafe "thalweg" } // `build.rs` puts the file there

/// Locks a mutex, also after a panic poisoned it. No user code runs under a lock that guards data
/// and is taken here, so a user's panic cannot leave that data half changed. Two locks have user
/// code under them, on a seeded CPU device only: that of its scheduler, and `resolving` of the
/// timeline, which guards no data.
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs code of a user in a place that its panic must not leave, such as a destructor or a thread
/// of this crate. The panic stops here. Its payload leaks, because dropping it may panic again.
pub(crate) fn contain(f: impl FnOnce()) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    std::mem::forget(outcome.err());
}
