//! Parts that kernels share, whatever family they are of.

pub(crate) mod block;
pub(crate) mod number;
