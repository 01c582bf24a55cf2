//! The product of two matrices, `C = A B`, with an epilogue.
//!
//! [`matmul`] launches it. It takes operands in `f32`, `f16` or `bf16`, adds in `f32`, and stores
//! `f32` or the operands' type. It takes transposed operands, any strides and batches.
//! [`matmul_with_scratch`] also takes memory for partial sums.
//!
//! | kernel | operands | computes with |
//! |---|---|---|
//! | `nt_f32`, `nn_f32`, `tn_f32` | `f32` in aligned pieces of 16 bytes; compute capability 9.0 has forms of its own | fused multiply-adds |
//! | `nt_f16`, ..., `tn_bf16` | 16 bits in aligned pieces of 16 bytes | tensor cores |
//! | `nt_f16_wgmma`, ..., `tn_bf16_wgmma` | the same, with C in aligned pieces, on compute capability 9.0 | tensor cores, by warpgroups |
//! | `nt_f16_wgmma_adding`, ..., `tn_bf16_wgmma_adding` | the same, if a residual or the old C is added | likewise |
//! | `few_f32`, `few_f16`, `few_bf16` | at most 8 rows of A in aligned pieces of 16 bytes, B transposed | fused multiply-adds |
//! | `thin_f16`, `thin_bf16` | 16 bits, 9 to 128 rows of A in aligned pieces of 16 bytes, B transposed | tensor cores |
//! | `general_f32`, `general_f16`, `general_bf16` | any order, stride and alignment | fused multiply-adds |
//!
//! On the ordinary CPU device, the crate `matrixmultiply` computes the tile of a block, with the
//! vector instructions that the CPU has. It runs in place of each kernel, with the same grid and
//! epilogue. So the sums have the same bits each time on the same CPU, for any number of threads.
//! The checked device runs the kernels themselves.
//!
//! In the names, `n` and `t` say whether A and B are transposed. The launchers check that all
//! matrices are inside their buffers, and that no element of C has two places in the product. No
//! kernel reads or writes anything between the rows of a matrix.

#[cfg(not(target_arch = "nvptx64"))]
mod arguments;
#[cfg(any(feature = "linear", feature = "linear_f32_sm_90a"))]
mod async_copies;
#[cfg_attr(target_arch = "nvptx64", allow(dead_code))] // a PTX file uses a part of it
mod epilogue;
#[cfg(feature = "linear")]
mod gemv;
#[cfg(any(feature = "linear", feature = "linear_f32_sm_90a"))]
mod sgemm;
#[cfg(feature = "linear")]
mod strided_gemm;
// Its kernels are in a PTX file of their own, `linear_sm_90a`.
#[cfg(not(target_arch = "nvptx64"))]
mod cpu_gemm;
#[cfg(any(not(target_arch = "nvptx64"), feature = "linear_sm_90a"))]
mod hopper;
#[cfg(any(feature = "linear", feature = "linear_f32_sm_90a"))]
mod kernels;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
#[cfg(feature = "linear")]
mod mma;
#[cfg(any(feature = "linear", feature = "linear_f32_sm_90a"))]
mod number;
#[cfg(any(feature = "linear", feature = "linear_f32_sm_90a"))]
mod output;
#[cfg(feature = "linear")]
mod thin;
#[cfg(any(feature = "linear", feature = "linear_f32_sm_90a"))]
mod tile_order;

#[cfg(not(target_arch = "nvptx64"))]
pub use arguments::Arguments;
#[cfg(not(target_arch = "nvptx64"))]
pub use hopper::scratch_len;
#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{
    Activation, CheckedMatmul, Epilogue, Matrix, MatrixMut, Operand, Product, check, matmul, matmul_with_scratch,
};
