//! The error of queries and heads.

/// The error of a head, of a query, and of what takes them.
///
/// Everything else in this crate fails only as `thalweg` does, and returns [`thalweg::Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, there is no memory, or a parameter is out of its range.
    #[error(transparent)]
    Device(#[from] thalweg::Error),
    /// A tensor of weights or a query is missing, has another shape, or has values that are no
    /// numbers.
    #[error("tensor `{name}` is {given}, expected {expected}")]
    Tensor {
        /// The tensor's name in a file of weights.
        name: &'static str,
        /// The given value.
        given: String,
        /// A description of accepted values.
        expected: String,
    },
}

/// The result of what takes a head or a query.
pub type Result<T, E = Error> = std::result::Result<T, E>;

thalweg::__errors_of_device!(Error);
