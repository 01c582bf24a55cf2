//! A loader that keeps a device fed: disk, decoders, page-locked memory, device.
//!
//! ```text
//! source --> decode threads --> pinned memory --> upload streams --> Event<Batch> --> the consumer's streams
//!            (as many as cores)  (a pool)         (one or several, prefetch ahead)
//! ```
//!
//! A [`Loader`] is an iterator of [`Event<Batch>`](thalweg::Event). Threads decode images of any
//! sizes straight into page-locked memory. More threads, each with a stream of its own, upload
//! them, [`prefetch`](LoaderOptions::prefetch) batches ahead of the consumer; mostly one is enough
//! ([`upload_streams`](LoaderOptions::upload_streams)). Batches come in the order of the
//! [`Source`], whatever the threads do. The transfers of a batch are complete before its consumer
//! can touch it: the event orders them on the device, and the host does not wait.
//!
//! ```
//! use thalweg_loader::{Loader, LoaderOptions, Sample, Source};
//! use thalweg::{Device, stream_tags};
//!
//! // Ten gray images of growing width, with their number as metadata.
//! let source = Source::indexed(10, |index| {
//!     Sample::new(format!("gray {index}"), index, move |sink| {
//!         sink.rgb(4, 5 + index as u32)?.fill(index as u8); // height, width; page-locked memory
//!         Ok(())
//!     })
//! });
//! let gpu = Device::best()?;
//! let mut loader = Loader::new(gpu, source, LoaderOptions::default().with_batch_size(4))?;
//!
//! stream_tags!(Compute);
//! let compute = gpu.stream::<Compute>()?;
//! let mut seen = Vec::new();
//! while let Some(batch) = loader.next() {
//!     let batch = compute.wait(batch?)?; // `compute` waits for the upload; the host does not
//!     // ... kernels on `batch.rgb` ...
//!     seen.extend(batch.meta.clone()); // plain, so readable in every state
//!     loader.recycle(compute.record(batch)?); // its memory serves a later batch
//! }
//! assert_eq!(seen, (0..10).collect::<Vec<_>>());
//! # Ok::<(), thalweg_loader::Error>(())
//! ```
//!
//! **Back-pressure.** Besides what the consumer holds, there are never more batches than `prefetch`
//! and those that the decode threads work on. **Errors.** A sample that cannot be decoded becomes
//! an [`Error::Sample`], just before its batch, which has one image less. The other samples are
//! not affected. **Ranks** that take a step together for each batch set
//! [`drop_last`](LoaderOptions::drop_last): then all of them get the same number of batches,
//! whatever fails. **Raw frames** need no host memory of their own: see [`upload_ppm`], and
//! [`ImageSink::rgb_in_file`] for other formats. **JPEG files** are decoded on a GPU with the
//! feature `jpeg-device` (`LoaderOptions::decode`). **Streams** are used where they pay
//! ([`UploadPlan`]). Otherwise `next` uploads and waits, with the same result. **Tasks** use the
//! loader as a [`Stream`](futures_core::Stream). **Checkpoints** keep its [`LoaderState`]. The
//! loader reports decisions, fallbacks and skipped samples through the [`log`] crate.
//!
//! [`LoaderOptions::from_env`] reads variables of the environment, and nothing else of this crate
//! does.

mod assembly;
mod batch;
mod error;
mod folders;
mod formats;
mod image_sink;
mod in_flight;
#[cfg(feature = "jpeg-device")]
mod jpeg;
mod listing;
mod loader;
mod loader_state;
#[cfg(feature = "image")]
mod metadata;
mod monitor;
mod options;
#[cfg(feature = "image")]
mod photo;
mod photo_options;
mod pieces;
mod poll;
mod pressure;
mod queue;
#[cfg_attr(not(feature = "image"), allow(dead_code, reason = "only photographs need it"))]
mod scratch;
mod source;
mod staging;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod upload;
mod upload_plan;

pub use batch::{Batch, BatchEvents, BatchOn, byte_ranges};
pub use error::{Error, Result, SampleError};
pub use folders::{ImageFolder, Labeled};
pub use formats::{read_ppm, upload_ppm};
pub use image_sink::ImageSink;
pub use listing::{FolderContents, UnreadableFolder, list_folder};
pub use loader::Loader;
pub use loader_state::LoaderState;
pub use options::{DecodeBackend, LoaderOptions, Shard, UploadMode};
#[cfg(feature = "image")]
pub use photo::{decode_photo, decode_photo_to_vec, read_photo};
pub use photo_options::{AlphaRule, DepthRule, OrientationRule, PhotoOptions};
pub use source::{Sample, Source};
pub use stats::{StageStats, Stats};
pub use upload_plan::UploadPlan;

/// The error of a decoder: an error of any kind, or a text (`Err("no image".into())`).
pub type DecodeError = Box<dyn std::error::Error + Send + Sync>;

/// Locks a mutex. The data of a mutex that a panic poisoned is still usable: the only code of a
/// user that runs under a lock of this crate is a logger, and if it panics, the loader ends.
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
