//! The error of loading the library.

/// The error of [`CublasLt::new`](crate::CublasLt::new).
///
/// Products fail only as `thalweg` does, and return [`thalweg::Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or is no GPU.
    #[error(transparent)]
    Device(#[from] thalweg::Error),
    /// The library cannot be used on this machine.
    #[error("cuBLASLt: {reason}")]
    Library {
        /// The files that were tried, and why each failed.
        reason: String,
    },
}

/// The result of loading the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;
