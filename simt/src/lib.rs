//! The SIMT context of thalweg: what a kernel body may ask of the machine it runs on.
//!
//! A kernel is written once, as a function over [`Simt`] (or [`Cooperative`], when the threads of a
//! block work together), and declared once, with [`kernel!`]. Compiled for `nvptx64` the context is
//! `Gpu`, a zero-sized type whose methods are single instructions; compiled for the host it is
//! [`cpu::CpuThread`], and the block runs as a loop or, where its threads meet at barriers, as
//! coroutines. There is no `cfg` inside a body.
//!
//! ```
//! use thalweg_simt::{kernel, ptx};
//!
//! # fn main() {}
//! ptx! {} // or `ptx! { unsafe "kernels" }`: the file that the build script made
//!
//! kernel! {
//!     /// `y = a x + y`, element by element.
//!     pub unsafe fn saxpy(cx: impl Simt, n: u32, a: f32, x: In<f32>, y: InOut<f32>)
//!     require { x.len() == n, y.len() == n }
//!     grid(n.div_ceil(256)) block(256)
//!     {
//!         let i = cx.global_x();
//!         if i < n {
//!             let i = i as usize;
//!             y.set(cx, i, cx.fma(a, x.get(cx, i), y.get(cx, i)));
//!         }
//!     }
//! }
//! ```
//!
//! On `nvptx64` the declaration becomes the entry `saxpy__u32_f32_rf32_wf32`: the signature is spelled
//! in the name, so that a launcher and an entry that disagree cannot meet. On the host it becomes the
//! launcher `saxpy(&stream, n, a, &x, &mut y)`, which checks the `require` clause and carries the CPU
//! entry for devices without a GPU.
//!
//! A crate of kernels starts with
//! `#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]`. Its build script turns it into PTX with
//! `thalweg-ptx-builder`, and [`ptx!`] embeds the file.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(stdarch_nvptx, link_llvm_intrinsics, asm_experimental_arch, core_float_math),
    allow(internal_features) // `link_llvm_intrinsics`: the warp and approximation instructions
)]

#[doc(hidden)]
pub use core as __core;

mod context;
mod element;
mod kernel;

#[cfg(not(target_arch = "nvptx64"))]
pub mod cpu;
#[cfg(target_arch = "nvptx64")]
mod gpu;
#[cfg(not(target_arch = "nvptx64"))]
pub mod host;

pub use context::{Cooperative, Dim3, Shared, Simt};
pub use element::{Element, In, InOut, Out, Word};
#[cfg(target_arch = "nvptx64")]
pub use gpu::Gpu;
#[doc(hidden)]
pub use kernel::__bytes;
