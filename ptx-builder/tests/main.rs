//! Builds crates to PTX, with a compiler for kernels and without one.

mod build;
mod without_ptx;
