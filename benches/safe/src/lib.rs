//! Kernels without `unsafe`, and their twins with it.
//!
//! The tests compare both with a plain reference, and `src/main.rs` times both on a GPU. The module
//! [`safe`] forbids `unsafe`.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

mod patch;
pub mod safe;
pub mod twin;

thalweg_simt::ptx! { unsafe "kernels" }
