//! The kernels that `thalweg` itself launches.

mod probe;

pub use probe::probe;
