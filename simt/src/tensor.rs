//! Copies to shared memory that run beside the kernel, and the matrix operations of a warp.

use crate::{Element, SharedMemory};

/// Asynchronous copies, loads of matrices and products of small matrices, for kernels in which the
/// threads of a block work together. On a GPU they need compute capability 8.0, so a kernel that
/// uses them is built for `sm_80` or newer.
///
/// # Asynchronous copies
///
/// [`copy_async`](TensorCore::copy_async) starts a copy from device memory to shared memory and
/// does not wait for it. [`copy_async_commit`](TensorCore::copy_async_commit) makes a group of the
/// copies that the thread has started since its last commit.
/// [`copy_async_wait`](TensorCore::copy_async_wait) waits for groups of this thread, oldest first.
/// Other threads see what was copied after a [`barrier`](crate::Cooperative::barrier) that follows
/// the wait. The CPU device copies during the wait, so a kernel that waits for too few groups reads
/// old values there.
///
/// # Fragments
///
/// A warp holds a matrix in parts: each lane has a *fragment*, a few elements in fixed places. With
/// `g = lane / 4` and `t = lane % 4`, element `e` of the fragments of `mma.m16n8k16` (16-bit
/// elements, two in a word, the one with the lower index in the low half) and of `mma.m16n8k8`
/// (32-bit elements) is in this row and column:
///
/// | matrix | element | row | column |
/// |---|---|---|---|
/// | A 16 x 16, 16 bits, 8 elements in 4 words | `e` | `g + 8 * (e / 2 % 2)` | `2 * t + e % 2 + 8 * (e / 4)` |
/// | B 16 x 8, 16 bits, 4 elements in 2 words | `e` | `2 * t + e % 2 + 8 * (e / 2)` | `g` |
/// | A 16 x 8, 32 bits, 4 words | `e` | `g + 8 * (e % 2)` | `t + 4 * (e / 2)` |
/// | B 8 x 8, 32 bits, 2 words | `e` | `t + 4 * e` | `g` |
/// | C and D 16 x 8, 4 sums in `f32` | `e` | `g + 8 * (e / 2)` | `2 * t + e % 2` |
///
/// These layouts are those of the PTX ISA, section "Matrix fragments for mma".
pub trait TensorCore: Copy {
    /// Starts a copy of `BYTES` bytes (4, 8 or 16) from `from` to the place of element `i` of a
    /// window of shared memory.
    ///
    /// # Safety
    /// - The bytes at `from` are in an allocation of device memory, and until this thread has
    ///   waited for the copy, nobody writes them.
    /// - The bytes from element `i` on are inside the window. Until this thread has waited for the
    ///   copy, and others have passed a barrier after that, nobody accesses them.
    /// - Both places are aligned to `BYTES`. (The CPU device checks this and the window, and
    ///   reports a violation.)
    unsafe fn copy_async<T: Element, const BYTES: usize>(self, to: SharedMemory<T>, i: u32, from: *const T);
    /// Starts a copy as [`copy_async`](TensorCore::copy_async) does if `copy` is true. Otherwise it
    /// starts to fill the same bytes of shared memory with zeros, and does not read `from`.
    ///
    /// # Safety
    /// What `copy_async` requires, but the bytes at `from` need to be in device memory only if
    /// `copy` is true.
    unsafe fn copy_async_or_zero<T: Element, const BYTES: usize>(
        self,
        to: SharedMemory<T>,
        i: u32,
        from: *const T,
        copy: bool,
    );
    /// Makes a group of the copies that this thread started since its last commit. The group may be
    /// empty.
    fn copy_async_commit(self);
    /// Waits until at most the `PENDING` newest groups of this thread are under way.
    fn copy_async_wait<const PENDING: u32>(self);

    /// Loads `N` matrices (1, 2 or 4) of 8 x 8 16-bit elements from shared memory (`ldmatrix`).
    /// Lane `8 * j + r` names row `r` of matrix `j` by its first element, element `i` of the
    /// window. Word `j` of the result has the elements of row `lane / 4` and columns
    /// `2 * (lane % 4)` and the next one of matrix `j`, the first one in the low half.
    ///
    /// # Safety
    /// Each row that lanes below `8 * N` name is inside the window, and its first byte is 16-byte
    /// aligned in the block's shared memory. The other lanes may pass any index. (The CPU device
    /// checks both and reports a violation.)
    #[must_use]
    unsafe fn load_matrices<T: Element, const N: usize>(self, s: SharedMemory<T>, i: u32) -> [u32; N];
    /// Loads matrices as [`load_matrices`](TensorCore::load_matrices) does, and transposes each
    /// (`ldmatrix.trans`). Word `j` of the result has the elements of column `lane / 4` and rows
    /// `2 * (lane % 4)` and the next one of matrix `j`.
    ///
    /// # Safety
    /// What `load_matrices` requires.
    #[must_use]
    unsafe fn load_matrices_transposed<T: Element, const N: usize>(self, s: SharedMemory<T>, i: u32) -> [u32; N];

    /// Computes `A * B + C` for a 16 x 16 matrix A and a 16 x 8 matrix B of IEEE halves, with sums
    /// in `f32`. The fragments are [above](TensorCore#fragments). The order in which a GPU adds the
    /// products, and its rounding of the sums, are not specified.
    #[must_use]
    fn mma_f16(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
    /// Does the same as [`mma_f16`](TensorCore::mma_f16) for elements in bfloat16.
    #[must_use]
    fn mma_bf16(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
    /// Computes `A * B + C` for a 16 x 8 matrix A and an 8 x 8 matrix B, with sums in `f32`. The
    /// elements are the bits of `f32` numbers, of which the operation uses the sign, the exponent
    /// and the upper 10 bits of the fraction (tf32).
    #[must_use]
    fn mma_tf32(self, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
}
