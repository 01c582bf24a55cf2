//! The vocabulary of kernels: what the body of a [`kernel!`](crate::kernel) may use.
//!
//! It is that of the crate [`thalweg_simt`], whose first page describes it. A crate that has
//! kernels and no streams uses that crate alone.
//!
//! [`f16`](struct@f16) and [`bf16`] are the pair of 16-bit floats of all interfaces of thalweg, for
//! buffers as for kernels. They are not the crate `half`'s, because kernels need operations without
//! `std` that are one instruction of PTX and have the same bits on each device. The bits are the
//! same: `bf16::from_bits(v.to_bits())` takes a number of that crate.

pub use thalweg_simt::{
    Atomic, AtomicElement, Bits, Cooperative, Dim3, Element, Exchange, In, InOut, Index, Math, Out, SharedMemory, Simt,
    TensorCore, Word, atomics, bf16, bf16x2, f16, f16x2, hint, memory, order, safe, scope, warp,
};
