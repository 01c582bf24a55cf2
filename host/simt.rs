//! The vocabulary of kernels: what the body of a [`kernel!`](crate::kernel) may use.
//!
//! It is that of the crate [`thalweg_simt`], whose first page describes it. A crate that has
//! kernels and no streams uses that crate alone.

pub use thalweg_simt::{
    Atomic, AtomicElement, Bits, Cooperative, Dim3, Element, Exchange, In, InOut, Index, Math, Out, SharedMemory, Simt,
    TensorCore, Word, atomics, bf16, bf16x2, f16, f16x2, hint, memory, order, safe, scope, warp,
};
