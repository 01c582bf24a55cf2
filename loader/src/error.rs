//! The errors of a loader's batches and of its readers.

use std::io;
use std::sync::Arc;

use crate::DecodeError;

/// An error in place of a batch.
///
/// Everything else in this crate fails only as `thalweg` does, and returns [`thalweg::Error`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or there is no memory.
    #[error(transparent)]
    Device(#[from] thalweg::Error),
    /// A thread of the loader panicked, so the loader ends.
    #[error("{thread} panicked: {message}")]
    Panicked {
        /// The thread's name, or `an upload`.
        thread: String,
        /// The panic's message.
        message: String,
    },
    /// A sample could not be loaded. Its batch has one image less.
    #[error("sample {index} ({name}): {cause}")]
    Sample {
        /// Its index in the source.
        index: u64,
        /// Its name.
        name: String,
        /// The error of the decoder, a [`SampleError`], or a [`thalweg::Error`], such as
        /// [`PinnedBudget`](thalweg::Error::PinnedBudget). `downcast_ref` tells them apart.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },
}

/// The reason why the loader, or a reader of this crate, has no image for a sample.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A file cannot be read. If it ends before the image does, the kind of `source` is
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    #[error("cannot {step}: {source}")]
    File {
        /// The step that failed, such as `open it`.
        step: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The bytes are of another format than the reader's. The text says what was found and what was
    /// expected.
    #[error("{0}")]
    Format(String),
    /// The bytes end before the image does.
    #[error("truncated: the file ends before the {format} image does")]
    Truncated {
        /// The image's format.
        format: &'static str,
    },
    /// The image is broken. The text is that of the decoder.
    #[error("broken image: {0}")]
    Broken(String),
    /// A JPEG file is broken or of a kind that is not decoded.
    #[cfg(feature = "image")]
    #[error(transparent)]
    Jpeg(#[from] thalweg_jpeg::JpegError),
    /// A side of the image is 0 or too long.
    #[error("{width} x {height} pixels; expected 1 to {most} a side")]
    Side {
        /// The image's height, in pixels.
        height: u32,
        /// The image's width, in pixels.
        width: u32,
        /// The longest side, in pixels.
        most: u32,
    },
    /// The image has more pixels than [`pixel_limit`](crate::LoaderOptions::pixel_limit).
    #[error(
        "{width} x {height} pixels are {:.1} megapixels; the limit (`pixel_limit`) is {:.1}",
        millions(u64::from(*height) * u64::from(*width)),
        millions(*limit)
    )]
    PixelLimit {
        /// The image's height, in pixels.
        height: u32,
        /// The image's width, in pixels.
        width: u32,
        /// The limit, in pixels.
        limit: u64,
    },
    /// The decoder needs more than [`scratch_budget`](crate::LoaderOptions::scratch_budget).
    #[error(
        "decoding it takes {:.1} MB of memory beside its pixels; `scratch_budget` is {:.1} MB",
        millions(*needed as u64),
        millions(*budget as u64)
    )]
    ScratchBudget {
        /// The bytes that it needs beside its pixels.
        needed: usize,
        /// The budget, in bytes.
        budget: usize,
    },
    /// The decoder returned without an image.
    #[error("the decoder returned without an image")]
    NoImage,
    /// The decoder or the source panicked.
    #[error("the {what} panicked: {message}")]
    Panicked {
        /// The one that panicked: `decoder` or `source`.
        what: &'static str,
        /// The panic's message.
        message: String,
    },
}

impl SampleError {
    /// Makes the error of a step with a file.
    pub(crate) fn file(step: &'static str) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::File { step, source }
    }
}

fn millions(number: u64) -> f64 {
    number as f64 / 1e6
}

/// The result of a loader's batches.
pub type Result<T, E = Error> = std::result::Result<T, E>;

thalweg::__errors_of_device!(Error);

impl Error {
    pub(crate) fn of_sample(index: u64, name: String, cause: impl Into<DecodeError>) -> Self {
        Self::Sample { index, name, cause: Arc::from(cause.into()) }
    }

    /// The index of the sample that the error is about.
    pub(crate) fn sample(&self) -> Option<u64> {
        if let Self::Sample { index, .. } = self { Some(*index) } else { None }
    }
}
