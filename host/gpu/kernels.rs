//! The kernels of thalweg, which `build.rs` and `cargo xtask ptx update` compile to
//! `host/thalweg.ptx`.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

thalweg_simt::ptx! {}

#[path = "../probe.rs"]
pub mod probe;
