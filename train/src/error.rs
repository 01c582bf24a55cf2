//! The errors of this crate.

use std::path::PathBuf;

/// The error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or there is no memory.
    #[error(transparent)]
    Device(#[from] thalweg::Error),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file is no safetensors file, or its tensors are not those of the model.
    #[error("{}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// A description of the defect.
        what: String,
    },
    /// A batch does not fit the model, or its parts do not fit together.
    #[error("the batch: {0}")]
    Batch(String),
    /// The ranks have failed, or differ.
    #[cfg(feature = "collective")]
    #[error(transparent)]
    Ranks(#[from] thalweg_collective::Error),
    /// cuBLASLt cannot be used.
    #[cfg(feature = "cublaslt")]
    #[error(transparent)]
    CublasLt(#[from] thalweg_cublaslt::Error),
    /// A head or a query does not fit.
    #[cfg(feature = "vision")]
    #[error(transparent)]
    Vision(#[from] thalweg_vision::Error),
    /// The caller's source of batches failed.
    #[error("the source of batches: {0}")]
    Source(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A configuration is none that a model can have.
    #[error("the configuration: {0}")]
    Config(String),
    /// An earlier step failed and lost the memory of the model.
    #[error("an earlier failure lost the memory of the model: make the model again, for example from a checkpoint")]
    Lost,
}

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes an empty list with room for `len` elements. Sizes come from files, and the memory of the
/// host may not suffice.
pub(crate) fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| thalweg::Error::OutOfMemory {
        device: "the host".into(),
        wanted: len.saturating_mul(size_of::<T>()),
    })?;
    Ok(room)
}

thalweg::__errors_of_device!(Error);
