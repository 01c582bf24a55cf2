//! Kernels that use the vocabulary of `thalweg-simt`, a module for each family of operations. The
//! tests in `simt/tests/kernel_vocabulary` compare what they compute with plain Rust, on every
//! device.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

thalweg_simt::ptx! { unsafe "sm_75", "sm_80" }

#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod atomics;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod elements;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod half;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod instances;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod integers;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod math;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod memory;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod names;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod panics;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_80"))]
pub mod tensor;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod values;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod warp;

/// Returns whether the kernels were built to PTX. They are not on a machine without a compiler for
/// kernels, and then only the CPU device runs them.
#[cfg(not(target_arch = "nvptx64"))]
#[must_use]
pub fn has_ptx() -> bool {
    PTX.texts().iter().all(|text| text.contains(".visible .entry"))
}

/// Returns the names of the entries in the PTX.
#[cfg(not(target_arch = "nvptx64"))]
pub fn entries() -> impl Iterator<Item = &'static str> {
    let lines = PTX.texts().iter().flat_map(|text| text.lines());
    lines.filter_map(|line| line.strip_prefix(".visible .entry ")?.split('(').next())
}
