//! Kernels with mistakes. Each kernel follows one of ours in what it does with memory and barriers,
//! and takes the number `m` of a mistake. With 0 it is sound. `simt/tests/checked` has the list.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

thalweg_simt::ptx! { unsafe "sm_75" }

#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod blocks;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod safe;
#[cfg(any(not(target_arch = "nvptx64"), feature = "sm_75"))]
pub mod threads;

/// Returns whether the kernels were built to PTX. They are not on a machine without a compiler for
/// kernels, and then only the CPU device runs them.
#[cfg(not(target_arch = "nvptx64"))]
#[must_use]
pub fn has_ptx() -> bool {
    PTX.texts().iter().all(|text| text.contains(".visible .entry"))
}
