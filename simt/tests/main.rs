//! What kernels are written in: operations against plain Rust, on every device, kernels without
//! `unsafe`, and kernels with mistakes on the checked device.
#![allow(missing_docs)] // kernels are public functions

mod checked;
mod cpu;
mod kernel_vocabulary;
mod safe_kernels;

thalweg_simt::ptx! {}
