//! Reductions of what several ranks bring, for ranks without a library that does it.

#[cfg(not(target_arch = "nvptx64"))]
mod launch;
mod reduce;

#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{ReduceElement, ReduceOp, reduce, reduce_in_place};
