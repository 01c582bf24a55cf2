//! Kernels without `unsafe`, and their twins with it.
//!
//! The tests compare both with a plain reference, and `src/main.rs` times both on a GPU. The module
//! [`safe`] forbids `unsafe`.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

/// The parts of the kernels of `thalweg_kernels`.
#[allow(dead_code)]
#[path = "../../../kernels-gpu/src/parts"]
mod parts {
    pub(crate) mod number;
}
#[allow(dead_code)]
#[path = "../../../kernels-gpu/src/vision"]
mod vision {
    pub(crate) mod patch;
    pub(crate) mod texel;
}
pub mod safe;
pub mod twin;

thalweg_simt::ptx! { unsafe "kernels" }
