//! The declarations of the kernels.
//!
//! All of them have the parameters of a product: the extents `m`, `n`, `k` and `batch`; the
//! distances of two rows of A, B, C and the residual, as they are stored; what the
//! [epilogue](super::epilogue) does, `flags`; and the distances of two matrices of a batch. Buffers
//! of C, the bias and the residual have elements of the operands' type, or pairs of them that are
//! `f32` if `flags` say so.

#[cfg(not(target_arch = "nvptx64"))]
use thalweg_simt::host::Extent;
use thalweg_simt::kernel;
#[cfg(feature = "linear")]
use thalweg_simt::{bf16, f16};

#[cfg(not(target_arch = "nvptx64"))]
use super::async_copies::TILE;
#[cfg(not(target_arch = "nvptx64"))]
use super::cpu_gemm;
#[cfg(feature = "linear")]
use super::epilogue::{A_ALONG_K, B_ALONG_K};
#[cfg(not(target_arch = "nvptx64"))]
use super::epilogue::{ALIGNED, BIAS, RESIDUAL, WIDE};
use super::output::Output;
use super::sgemm;
#[cfg(feature = "linear")]
use super::strided_gemm::Operand;
#[cfg(feature = "linear")]
use super::{gemv, mma, strided_gemm, thin};

/// The largest extent of a matrix.
#[cfg(not(target_arch = "nvptx64"))]
const MOST: u32 = i32::MAX as u32;

/// Returns whether a buffer of `len` elements holds `batch` matrices.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) fn holds(len: u128, rows: u128, columns: u128, ld: u128, batch: u128, distance: u128) -> bool {
    rows == 0 || columns == 0 || batch == 0 || (batch - 1) * distance + (rows - 1) * ld + columns <= len
}

/// Returns whether no two elements of a batch of matrices are at the same place.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) fn distinct(rows: u128, columns: u128, ld: u128, batch: u128, distance: u128) -> bool {
    let matrix = |count: u128, distance: u128, size: u128| if count == 0 { 0 } else { (count - 1) * distance + size };
    ld >= columns
        && (batch <= 1
            // The matrices follow one another, or each row of all matrices does.
            || distance >= matrix(rows, ld, columns)
            || distance >= columns && ld >= matrix(batch, distance, columns))
}

/// Returns the number of elements of an operand's type, which has `size` bytes, in an element of C.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) fn width(flags: u128, size: usize) -> u128 {
    if flags & u128::from(WIDE) == 0 { 1 } else { 4 / size as u128 }
}

/// Returns whether each row of C starts at a multiple of 16 bytes.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) fn aligned(c: Extent, width: u128, size: usize, ld: u128, distance: u128) -> bool {
    let unit = 16 / (width * size as u128);
    c.is_aligned(16) && ld.is_multiple_of(unit) && distance.is_multiple_of(unit)
}

/// Returns whether an operand consists of aligned pieces of `unit` elements.
#[cfg(not(target_arch = "nvptx64"))]
fn pieces(operand: Extent, unit: u128, inner: u128, ld: u128, distance: u128) -> bool {
    operand.is_aligned(16) && [inner, ld, distance].iter().all(|extent| extent.is_multiple_of(unit))
}

/// Declares kernels. The names of parameters are given once, because the expressions of each kernel
/// use them.
macro_rules! products {
    (
        ($cx:ident, $m:ident, $n:ident, $k:ident, $lda:ident, $ldb:ident, $flags:ident, $sa:ident, $sb:ident, $a:ident,
         $b:ident, $out:ident)
        $(
            $(#[$doc:meta])*
            $name:ident <$e:ident> ([$down:expr, $across:expr], $threads:path, $shared:path) $(bounds($($bound:path),*))?
            a [$ar:expr, $ac:expr] b [$br:expr, $bc:expr] along k [$aa:expr, $ba:expr] require [$($require:expr),*]
            $product:block
        )*
    ) => {$(
        kernel! {
            $(#[$doc])*
            pub(super) unsafe fn $name(
                $cx: impl Cooperative, $m: u32, $n: u32, $k: u32, batch: u32, $lda: u32, $ldb: u32, ldc: u32, ldr: u32,
                $flags: u32, $sa: u64, $sb: u64, sc: u64, sr: u64,
                $a: In<$e>, $b: In<$e>, bias: In<$e>, residual: In<$e>, c: InOut<$e>
            )
            require {
                $m <= MOST, $n <= MOST, $k <= MOST,
                holds($a.len(), $ar, $ac, $lda, batch, $sa),
                holds($b.len(), $br, $bc, $ldb, batch, $sb),
                holds(c.len() / width($flags, size_of::<$e>()), $m, $n, ldc, batch, sc),
                distinct($m, $n, ldc, batch, sc),
                $flags & BIAS == 0 || bias.len() / width($flags, size_of::<$e>()) >= $n,
                $flags & RESIDUAL == 0
                    || holds(residual.len() / width($flags, size_of::<$e>()), $m, $n, ldr, batch, sr),
                $flags & ALIGNED == 0 || aligned(c, width($flags, size_of::<$e>()), size_of::<$e>(), ldc, sc)
                $(, $require)*
            }
            grid($m.div_ceil($down) * $n.div_ceil($across), 1, batch)
            block($threads) $(bounds($($bound),*))? shared($shared)
            cpu {
                let z = $cx.block_idx().z as usize;
                let out = Output::new(z, [$m, $n], $flags, (c, ldc, sc), (residual, ldr, sr), bias);
                let a = Operand::new($a.as_ptr().wrapping_add(z * $sa as usize), $lda, $aa, $m);
                let b = Operand::new($b.as_ptr().wrapping_add(z * $sb as usize), $ldb, $ba, $n);
                cpu_gemm::product($cx, [$down, $across], $k, a, b, out);
            }
            {
                let z = $cx.block_idx().z as usize;
                let $out = Output::new(z, [$m, $n], $flags, (c, ldc, sc), (residual, ldr, sr), bias);
                let ($a, $b) = ($a.as_ptr().wrapping_add(z * $sa as usize), $b.as_ptr().wrapping_add(z * $sb as usize));
                $product
            }
        }
    )*};
}

/// The way of the f32 kernels through k: `STEP`, `AHEAD`, `SPREAD` and `TURN` of
/// [`sgemm::product`]. Those of the PTX file `linear_f32_sm_90a` were measured on an H200. On sm_80
/// that of NT spills.
const HOPPER: bool = cfg!(feature = "linear_f32_sm_90a");
const NT: (u32, u32, bool, bool) = if HOPPER { (16, 2, true, false) } else { (16, 0, false, false) };
const NN: (u32, u32, bool, bool) = if HOPPER { (16, 0, true, true) } else { (16, 4, false, false) };
const TN: (u32, u32, bool, bool) = if HOPPER { (16, 0, true, true) } else { (8, 2, false, false) };

products! {
    (cx, m, n, k, lda, ldb, flags, sa, sb, a, b, out)

    /// Computes `C = A B` with A [M, K] and B stored as [N, K].
    nt_f32 <f32> ([TILE, TILE], sgemm::THREADS, sgemm::SHARED) bounds(sgemm::THREADS, sgemm::BLOCKS)
    a [m, k] b [n, k] along k [true, true]
    require [pieces(a, 4, k, lda, sa), pieces(b, 4, k, ldb, sb)]
    { sgemm::product::<true, true, { NT.0 }, { NT.1 }, { NT.2 }, { NT.3 }>(cx, k, (a, lda), (b, ldb), out) }

    /// Computes `C = A B` with A [M, K] and B [K, N].
    nn_f32 <f32> ([TILE, TILE], sgemm::THREADS, sgemm::SHARED) bounds(sgemm::THREADS, sgemm::BLOCKS)
    a [m, k] b [k, n] along k [true, false]
    require [pieces(a, 4, k, lda, sa), pieces(b, 4, n, ldb, sb)]
    { sgemm::product::<true, false, { NN.0 }, { NN.1 }, { NN.2 }, { NN.3 }>(cx, k, (a, lda), (b, ldb), out) }

    /// Computes `C = A B` with A stored as [K, M] and B [K, N].
    tn_f32 <f32> ([TILE, TILE], sgemm::THREADS, sgemm::SHARED) bounds(sgemm::THREADS, sgemm::BLOCKS)
    a [k, m] b [k, n] along k [false, false]
    require [pieces(a, 4, m, lda, sa), pieces(b, 4, n, ldb, sb)]
    { sgemm::product::<false, false, { TN.0 }, { TN.1 }, { TN.2 }, { TN.3 }>(cx, k, (a, lda), (b, ldb), out) }
}

#[cfg(feature = "linear")]
products! {
    (cx, m, n, k, lda, ldb, flags, sa, sb, a, b, out)

    /// Computes `C = A B` with A [M, K] and B stored as [N, K].
    nt_f16 <f16> ([TILE, TILE], mma::THREADS, mma::SHARED)
    a [m, k] b [n, k] along k [true, true]
    require [pieces(a, 8, k, lda, sa), pieces(b, 8, k, ldb, sb)]
    { mma::product::<f16, true, true>(cx, k, (a, lda), (b, ldb), out) }

    /// Computes `C = A B` with A [M, K] and B [K, N].
    nn_f16 <f16> ([TILE, TILE], mma::THREADS, mma::SHARED)
    a [m, k] b [k, n] along k [true, false]
    require [pieces(a, 8, k, lda, sa), pieces(b, 8, n, ldb, sb)]
    { mma::product::<f16, true, false>(cx, k, (a, lda), (b, ldb), out) }

    /// Computes `C = A B` with A stored as [K, M] and B [K, N].
    tn_f16 <f16> ([TILE, TILE], mma::THREADS, mma::SHARED)
    a [k, m] b [k, n] along k [false, false]
    require [pieces(a, 8, m, lda, sa), pieces(b, 8, n, ldb, sb)]
    { mma::product::<f16, false, false>(cx, k, (a, lda), (b, ldb), out) }

    /// Computes `C = A B` with A [M, K] and B stored as [N, K].
    nt_bf16 <bf16> ([TILE, TILE], mma::THREADS, mma::SHARED)
    a [m, k] b [n, k] along k [true, true]
    require [pieces(a, 8, k, lda, sa), pieces(b, 8, k, ldb, sb)]
    { mma::product::<bf16, true, true>(cx, k, (a, lda), (b, ldb), out) }

    /// Computes `C = A B` with A [M, K] and B [K, N].
    nn_bf16 <bf16> ([TILE, TILE], mma::THREADS, mma::SHARED)
    a [m, k] b [k, n] along k [true, false]
    require [pieces(a, 8, k, lda, sa), pieces(b, 8, n, ldb, sb)]
    { mma::product::<bf16, true, false>(cx, k, (a, lda), (b, ldb), out) }

    /// Computes `C = A B` with A stored as [K, M] and B [K, N].
    tn_bf16 <bf16> ([TILE, TILE], mma::THREADS, mma::SHARED)
    a [k, m] b [k, n] along k [false, false]
    require [pieces(a, 8, m, lda, sa), pieces(b, 8, n, ldb, sb)]
    { mma::product::<bf16, false, false>(cx, k, (a, lda), (b, ldb), out) }

    /// Computes a few rows of `C = A B` with A [M, K] and B stored as [N, K].
    few_f32 <f32> ([gemv::TILE, gemv::TILE], gemv::THREADS, gemv::SHARED)
    a [m, k] b [n, k] along k [true, true]
    require [pieces(a, 4, k, lda, sa), pieces(b, 4, k, ldb, sb)]
    { gemv::product(cx, k, (a, lda), (b, ldb), out) }

    /// Computes a few rows of `C = A B` with A [M, K] and B stored as [N, K].
    few_f16 <f16> ([gemv::TILE, gemv::TILE], gemv::THREADS, gemv::SHARED)
    a [m, k] b [n, k] along k [true, true]
    require [pieces(a, 8, k, lda, sa), pieces(b, 8, k, ldb, sb)]
    { gemv::product(cx, k, (a, lda), (b, ldb), out) }

    /// Computes a few rows of `C = A B` with A [M, K] and B stored as [N, K].
    few_bf16 <bf16> ([gemv::TILE, gemv::TILE], gemv::THREADS, gemv::SHARED)
    a [m, k] b [n, k] along k [true, true]
    require [pieces(a, 8, k, lda, sa), pieces(b, 8, k, ldb, sb)]
    { gemv::product(cx, k, (a, lda), (b, ldb), out) }

    /// Computes at most 128 rows of `C = A B` with A [M, K] and B stored as [N, K].
    thin_f16 <f16> ([thin::rows(n), thin::columns(n)], thin::THREADS, thin::SHARED) bounds(thin::THREADS, thin::BLOCKS)
    a [m, k] b [n, k] along k [true, true]
    require [pieces(a, 8, k, lda, sa), pieces(b, 8, k, ldb, sb)]
    { thin::product(cx, k, (a, lda), (b, ldb), out) }

    /// Computes at most 128 rows of `C = A B` with A [M, K] and B stored as [N, K].
    thin_bf16 <bf16> ([thin::rows(n), thin::columns(n)], thin::THREADS, thin::SHARED) bounds(thin::THREADS, thin::BLOCKS)
    a [m, k] b [n, k] along k [true, true]
    require [pieces(a, 8, k, lda, sa), pieces(b, 8, k, ldb, sb)]
    { thin::product(cx, k, (a, lda), (b, ldb), out) }

    /// Computes `C = A B` with operands of any order, stride and alignment. The flags `A_ALONG_K`
    /// and `B_ALONG_K` say how they are stored.
    general_f32 <f32> ([strided_gemm::TILE, strided_gemm::TILE], strided_gemm::THREADS, strided_gemm::SHARED)
    a [if flags & A_ALONG_K != 0 { m } else { k }, if flags & A_ALONG_K != 0 { k } else { m }]
    b [if flags & B_ALONG_K != 0 { n } else { k }, if flags & B_ALONG_K != 0 { k } else { n }]
    along k [flags & A_ALONG_K != 0, flags & B_ALONG_K != 0]
    require []
    {
        let a = Operand::new(a, lda, flags & A_ALONG_K != 0, m);
        let b = Operand::new(b, ldb, flags & B_ALONG_K != 0, n);
        strided_gemm::product(cx, k, a, b, out);
    }

    /// Computes `C = A B` with operands of any order, stride and alignment. The flags `A_ALONG_K`
    /// and `B_ALONG_K` say how they are stored.
    general_f16 <f16> ([strided_gemm::TILE, strided_gemm::TILE], strided_gemm::THREADS, strided_gemm::SHARED)
    a [if flags & A_ALONG_K != 0 { m } else { k }, if flags & A_ALONG_K != 0 { k } else { m }]
    b [if flags & B_ALONG_K != 0 { n } else { k }, if flags & B_ALONG_K != 0 { k } else { n }]
    along k [flags & A_ALONG_K != 0, flags & B_ALONG_K != 0]
    require []
    {
        let a = Operand::new(a, lda, flags & A_ALONG_K != 0, m);
        let b = Operand::new(b, ldb, flags & B_ALONG_K != 0, n);
        strided_gemm::product(cx, k, a, b, out);
    }

    /// Computes `C = A B` with operands of any order, stride and alignment. The flags `A_ALONG_K`
    /// and `B_ALONG_K` say how they are stored.
    general_bf16 <bf16> ([strided_gemm::TILE, strided_gemm::TILE], strided_gemm::THREADS, strided_gemm::SHARED)
    a [if flags & A_ALONG_K != 0 { m } else { k }, if flags & A_ALONG_K != 0 { k } else { m }]
    b [if flags & B_ALONG_K != 0 { n } else { k }, if flags & B_ALONG_K != 0 { k } else { n }]
    along k [flags & A_ALONG_K != 0, flags & B_ALONG_K != 0]
    require []
    {
        let a = Operand::new(a, lda, flags & A_ALONG_K != 0, m);
        let b = Operand::new(b, ldb, flags & B_ALONG_K != 0, n);
        strided_gemm::product(cx, k, a, b, out);
    }
}
