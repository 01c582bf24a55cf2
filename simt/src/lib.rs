//! The SIMT context of thalweg: what a kernel body may ask of the machine it runs on.
//!
//! You write a kernel once, with [`kernel!`]. Its body is generic over [`Simt`], or over
//! [`Cooperative`] if the threads of a block work together.
//!
//! - Compiled for `nvptx64`, the context is `Gpu`, a zero-sized type. Its methods are inlined, and
//!   most of them are one or two instructions.
//! - Compiled for the host, the context is [`cpu::CpuThread`]. A block runs as a loop over its
//!   threads. If the threads meet at barriers, each thread is a coroutine.
//!
//! A body needs no `cfg` for the two machines.
//!
//! ```
//! use thalweg_simt::{kernel, ptx};
//!
//! # fn main() {}
//! ptx! {} // or `ptx! { unsafe "kernels" }`: the file that the build script made
//!
//! const BLOCK: u32 = 256;
//!
//! kernel! {
//!     /// `y = a x + y`, element by element.
//!     pub unsafe fn saxpy(cx: impl Simt, n: u32, a: f32, x: In<f32>, y: InOut<f32>)
//!     require { x.len() == n, y.len() == n }
//!     grid(n.div_ceil(BLOCK)) block(BLOCK)
//!     {
//!         let i = cx.global_x();
//!         if i < n {
//!             y.set(cx, i, cx.fma(a, x.get(cx, i), y.get(cx, i)));
//!         }
//!     }
//! }
//! ```
//!
//! On `nvptx64` the declaration becomes the entry `saxpy__u32_f32_rf32_xf32`. The name contains the
//! signature, so a launcher never finds an entry with another signature. On the host the
//! declaration becomes the launcher `saxpy(&stream, n, a, &x, &mut y)`, which checks the `require`
//! clause. The launcher also carries the body for the CPU device.
//!
//! A crate of kernels starts with
//! `#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]`. Its build script compiles the
//! crate to PTX with `thalweg-ptx-builder`, and [`ptx!`] embeds the file.
//!
//! # Modules
//!
//! Each file uses only files above it in this list.
//!
//! | file | what is in it |
//! |---|---|
//! | `half` | the numbers of 16 bits [`f16`](struct@f16) and [`bf16`], and pairs of them |
//! | `element` | the types that kernels load and store |
//! | `functions` | logarithms, powers, trigonometric functions and others, for both devices |
//! | `by_value` | what kernels take by value, and the macro [`by_value!`] |
//! | `math`, `bits` | the arithmetic of floating-point numbers and of integers: [`Math`] and [`Bits`] |
//! | `shared` | windows of shared memory |
//! | [`atomics`] | atomic operations on both memories, and fences |
//! | [`memory`] | vector accesses, cache hints, prefetches and clocks |
//! | [`warp`] | the operations of warps, of tiles and of any lanes |
//! | `tensor` | the trait [`TensorCore`]: asynchronous copies and matrix operations |
//! | `context` | the traits [`Simt`] and [`Cooperative`] |
//! | `independent` | the compiler's message if a body over [`Simt`] uses an operation of [`Cooperative`] |
//! | `index` | the types by which bodies index buffers |
//! | `violation` | how the CPU device ends a thread that makes an access which it must not make |
//! | `buffer` | the buffer parameters [`In`], [`Out`] and [`InOut`] |
//! | `gpu` | the context on `nvptx64` |
//! | `hopper` | what only `sm_90a` has: copies of tiles and products of a warpgroup; `nvptx64` only |
//! | [`host::counted`] | numbers with their nouns |
//! | [`cpu`], without `run` | the context on the host |
//! | the rest of [`host`] | what a launcher takes and what it gives to a stream |
//! | [`safe`] | what kernels without `unsafe` are given: [`safe::Thread`], [`safe::Block`] and their memory |
//! | `cpu::run` | [`cpu::run_block`], which runs a block of a declared kernel |
//! | `kernel`, `ptx` | the macros |
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(stdarch_nvptx, link_llvm_intrinsics, asm_experimental_arch, core_float_math, abi_unadjusted),
    allow(internal_features) // `link_llvm_intrinsics`: the warp and approximation instructions
)]

#[doc(hidden)]
pub use core as __core;

pub mod atomics;
mod bits;
mod bounds;
mod buffer;
mod by_value;
mod context;
mod element;
mod functions;
mod half;
mod independent;
mod index;
mod kernel;
mod math;
pub mod memory;
mod ptx;
pub mod safe;
mod shared;
mod tensor;
pub mod warp;

#[cfg(not(target_arch = "nvptx64"))]
pub mod cpu;
#[cfg(target_arch = "nvptx64")]
mod gpu;
#[cfg(target_arch = "nvptx64")]
pub mod hopper;
#[cfg(not(target_arch = "nvptx64"))]
pub mod host;
#[cfg(not(target_arch = "nvptx64"))]
mod violation;

pub use atomics::{Atomic, AtomicElement, order, scope};
pub use bits::Bits;
#[doc(hidden)]
pub use bounds::Bounds as __Bounds;
pub use buffer::{In, InOut, Out};
pub use by_value::ByValue;
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub use by_value::debug as __debug;
#[doc(hidden)]
pub use by_value::{Layout as __Layout, origin as __origin_bytes, origin_len as __origin_len};
pub use context::{Cooperative, Dim3, Simt};
pub use element::{Element, Word};
#[cfg(target_arch = "nvptx64")]
pub use gpu::Gpu;
pub use half::{bf16, bf16x2, f16, f16x2};
#[doc(hidden)]
pub use independent::Independent as __Independent;
pub use index::Index;
pub use math::Math;
pub use memory::hint;
pub use shared::SharedMemory;
pub use tensor::TensorCore;
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub use thalweg_derive::__clause;
#[doc(hidden)]
pub use thalweg_derive::__instances;
pub use warp::Exchange;
