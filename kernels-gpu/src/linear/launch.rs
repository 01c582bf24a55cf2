//! The launcher of the product: which kernel computes it, with which arguments.

use std::fmt;

use thalweg_simt::host::{DeviceSlice, Launch, LaunchError};
use thalweg_simt::{Element, bf16, f16};

use super::arguments::{Arguments, Form};
use super::epilogue::{A_ALONG_K, ACCUMULATE, ALIGNED, B_ALONG_K, BIAS, GELU_ERF, GELU_TANH, RESIDUAL, WIDE};
use super::hopper::Hopper;
use super::{gemv, kernels, thin};

/// A matrix in device memory that a product reads: rows of neighboring elements, which begin at
/// regular distances.
pub struct Matrix<'a, S, T> {
    data: &'a DeviceSlice<S, T>,
    rows: usize,
    columns: usize,
    stride: usize,
    batch_stride: usize,
    transposed: bool,
}

impl<S, T> Clone for Matrix<'_, S, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S, T> Copy for Matrix<'_, S, T> {}

impl<S, T> fmt::Debug for Matrix<'_, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, columns, stride, batch_stride, transposed, .. } = self;
        write!(f, "Matrix {{ rows: {rows}, columns: {columns}, stride: {stride}, batch_stride: {batch_stride}, ")?;
        write!(f, "transposed: {transposed}, data: {:?} }}", self.data)
    }
}

impl<'a, S, T> Matrix<'a, S, T> {
    /// Makes a matrix of `rows` rows of `columns` elements, one after another from the start of
    /// `data`. The product checks that they lie inside it.
    #[must_use]
    pub fn new(data: &'a DeviceSlice<S, T>, rows: usize, columns: usize) -> Self {
        Self { data, rows, columns, stride: columns, batch_stride: rows.saturating_mul(columns), transposed: false }
    }

    /// Sets the distance from the start of one row to that of the next, in elements.
    #[must_use]
    pub fn with_stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Sets the distance from one matrix of a batch to the next, in elements. With 0, all products
    /// of the batch use the same matrix.
    #[must_use]
    pub fn with_batch_stride(self, batch_stride: usize) -> Self {
        Self { batch_stride, ..self }
    }

    /// Returns the transposed matrix: column `i` is what row `i` was. Nothing is copied.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, transposed: !self.transposed, ..self }
    }
}

/// The matrix in device memory that a product writes.
pub struct MatrixMut<'a, S, T> {
    data: &'a mut DeviceSlice<S, T>,
    rows: usize,
    columns: usize,
    stride: usize,
    batch_stride: usize,
}

impl<S, T> fmt::Debug for MatrixMut<'_, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, columns, stride, batch_stride, .. } = self;
        write!(f, "MatrixMut {{ rows: {rows}, columns: {columns}, stride: {stride}, batch_stride: {batch_stride}, ")?;
        write!(f, "data: {:?} }}", self.data)
    }
}

impl<'a, S, T> MatrixMut<'a, S, T> {
    /// Makes a matrix of `rows` rows of `columns` elements, one after another from the start of
    /// `data`. The product checks that they lie inside it.
    #[must_use]
    pub fn new(data: &'a mut DeviceSlice<S, T>, rows: usize, columns: usize) -> Self {
        Self { data, rows, columns, stride: columns, batch_stride: rows.saturating_mul(columns) }
    }

    /// Sets the distance from the start of one row to that of the next, in elements. What is
    /// between the rows is left alone.
    #[must_use]
    pub fn with_stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Sets the distance from one matrix of a batch to the next, in elements.
    #[must_use]
    pub fn with_batch_stride(self, batch_stride: usize) -> Self {
        Self { batch_stride, ..self }
    }
}

/// A function that is applied to each element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// The element stays as it is.
    #[default]
    None,
    /// GELU by the hyperbolic tangent: `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// GELU by the error function: `x / 2 (1 + erf(x / sqrt(2)))`. The error function is off by at
    /// most 1.5e-7.
    GeluErf,
}

/// The changes to the sums of a product before they are rounded and stored, in the order of the
/// fields.
pub struct Epilogue<'a, S, C> {
    /// Numbers to add, one for each column.
    pub bias: Option<&'a DeviceSlice<S, C>>,
    /// The function that is applied then.
    pub activation: Activation,
    /// A matrix of the shape of C to add after that.
    pub residual: Option<Matrix<'a, S, C>>,
    /// Whether the old elements of C are added too.
    pub accumulate: bool,
}

impl<S, C> Default for Epilogue<'_, S, C> {
    fn default() -> Self {
        Self { bias: None, activation: Activation::None, residual: None, accumulate: false }
    }
}

impl<S, C> fmt::Debug for Epilogue<'_, S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bias, activation, residual, accumulate } = self;
        let mut f = f.debug_struct("Epilogue");
        f.field("bias", bias).field("activation", activation).field("residual", residual);
        f.field("accumulate", accumulate).finish()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::f16 {}
    impl Sealed for super::bf16 {}
}

/// The type of the elements of a product's operands: `f32`, [`f16`](struct@f16) or [`bf16`].
pub trait Operand: Element + sealed::Sealed {
    #[doc(hidden)]
    fn launch<S, L: Launch<S> + ?Sized>(on: &L, arguments: Arguments<'_, S, Self>) -> Result<(), L::Error>;
}

/// The type of the elements of C for operands of `T`: `f32`, or `T` itself. No other crate can
/// implement it, because the kernels store to C by this type:
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy)]
/// #[repr(transparent)]
/// struct Mine(u8);
/// // SAFETY: It is transparent over a number.
/// unsafe impl thalweg_simt::Element for Mine {}
///
/// impl thalweg_kernels::linear::Product<f32> for Mine {}
/// ```
pub trait Product<T: Operand>: Element + sealed::Sealed {}
impl<T: Operand> Product<T> for T {}
impl Product<f16> for f32 {}
impl Product<bf16> for f32 {}

macro_rules! operands {
    ($($t:ident $nt:ident $nn:ident $tn:ident $few:ident $general:ident $($hopper:ident $thin:ident)?;)*) => {$(
        impl Operand for $t {
            #[track_caller]
            fn launch<S, L: Launch<S> + ?Sized>(on: &L, arguments: Arguments<'_, S, Self>) -> Result<(), L::Error> {
                let fast = arguments.in_pieces();
                let few = fast && arguments.form == Form::Nt && arguments.m <= gemv::TILE;
                $(
                    let mut arguments = arguments;
                    let thin = fast && arguments.form == Form::Nt && !few && arguments.m <= thin::MOST;
                    if !few && !thin && <$hopper as Hopper>::launch(on, &mut arguments)? {
                        return Ok(());
                    }
                )?
                let Arguments {
                    form, m, n, k, batch, lda, ldb, ldc, ldr, flags, sa, sb, sc, sr, a, b, bias, residual, c, ..
                } = arguments;
                let launch = match form {
                    Form::Nt if few => kernels::$few,
                    $(Form::Nt if thin => kernels::$thin,)?
                    Form::Nt if fast => kernels::$nt,
                    Form::Nn if fast => kernels::$nn,
                    Form::Tn if fast => kernels::$tn,
                    _ => kernels::$general,
                };
                launch(on, m, n, k, batch, lda, ldb, ldc, ldr, flags, sa, sb, sc, sr, a, b, bias, residual, c)
            }
        }
    )*};
}
operands! {
    f32 nt_f32 nn_f32 tn_f32 few_f32 general_f32;
    f16 nt_f16 nn_f16 tn_f16 few_f16 general_f16 f16 thin_f16;
    bf16 nt_bf16 nn_bf16 tn_bf16 few_bf16 general_bf16 bf16 thin_bf16;
}

/// Returns a buffer for a parameter that the kernel does not use.
fn none<'a, S, T: Element>() -> &'a DeviceSlice<S, T> {
    // SAFETY: The slice has no elements, so nobody reads there. The address is aligned for every
    // element.
    unsafe { DeviceSlice::from_raw(64, 0) }
}

/// Returns a buffer that is written for a parameter that the kernel does not use.
fn none_mut<'a, S, T: Element>() -> &'a mut DeviceSlice<S, T> {
    // SAFETY: The slice has no elements, so nobody accesses them. The address is aligned for every
    // element.
    unsafe { DeviceSlice::from_raw_mut(64, 0) }
}

/// Computes `C = A B` for a batch of matrices, with sums in `f32`, and changes the sums as
/// `epilogue` says.
///
/// A is [M, K], B is [K, N] and C is [M, N]. Of a weight that is stored as [N, K], pass the
/// [`transposed`](Matrix::transposed) matrix. The kernels are fastest if A and B start at multiples
/// of 16 bytes, and their strides and the lengths of their rows are multiples of 16 bytes too, and
/// not both are transposed. For other operands a slower kernel is launched. Operands of 16 bits
/// need compute capability 8.0 for the fast kernels. On 9.0 there are faster ones, if the rows of
/// C, of the residual and the bias also start at multiples of 16 bytes, N is a multiple of 8, and
/// not both a residual and the old C are added. At most 128 rows of operands of 16 bits have
/// kernels of their own if B is transposed and both operands are in aligned pieces of 16 bytes.
/// From 9 rows on, the bits of a row do not depend on how many there are.
///
/// The order of the additions depends only on the shapes, strides and alignments, so the same
/// product has the same bits each time on the same device.
///
/// # Errors
/// The shapes do not fit together or are above 2^31 - 1, a matrix is not inside its buffer,
/// elements of C are at the same place, the bias does not have N elements, or what the launch fails
/// with.
#[track_caller]
pub fn matmul<S, L: Launch<S> + ?Sized, T: Operand, C: Product<T>>(
    on: &L,
    batch: usize,
    a: Matrix<'_, S, T>,
    b: Matrix<'_, S, T>,
    epilogue: &Epilogue<'_, S, C>,
    c: MatrixMut<'_, S, C>,
) -> Result<(), L::Error> {
    let arguments = arguments(batch, a, b, epilogue, c)?;
    T::launch(on, arguments)
}

/// Does the same as [`matmul`], with scratch memory of [`scratch_len`](super::scratch_len)
/// elements. The values in it do not matter, before and after. With fewer elements it is not used.
///
/// With scratch memory, GPUs of compute capability 9.0 split a long sum over K between
/// multiprocessors that would be idle (split-k). They do if C is small and K is large, as for
/// gradients of weights. The order of the additions then depends on the number of multiprocessors
/// too, and not on which of them finishes first: the same product with scratch has the same bits
/// each time on the same device.
///
/// # Errors
/// As for [`matmul`].
#[track_caller]
pub fn matmul_with_scratch<S, L: Launch<S> + ?Sized, T: Operand, C: Product<T>>(
    on: &L,
    scratch: &mut DeviceSlice<S, u32>,
    batch: usize,
    a: Matrix<'_, S, T>,
    b: Matrix<'_, S, T>,
    epilogue: &Epilogue<'_, S, C>,
    c: MatrixMut<'_, S, C>,
) -> Result<(), L::Error> {
    let arguments = arguments(batch, a, b, epilogue, c)?;
    T::launch(on, Arguments { scratch, ..arguments })
}

/// A product that was checked as [`matmul`] checks it, in the numbers that a library for products
/// takes. Matrices are stored by rows, and distances count elements.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckedMatmul {
    /// M, N and K.
    pub extents: [u32; 3],
    /// The number of matrices.
    pub batch: u32,
    /// Whether A and B are stored transposed: A as [K, M], B as [N, K].
    pub transposed: [bool; 2],
    /// The distances of two rows of A, B, C and the residual, as they are stored.
    pub strides: [u32; 4],
    /// The distances of two matrices of a batch of A, B, C and residuals.
    pub batch_strides: [u64; 4],
    /// The addresses of A, B and C.
    pub addresses: [u64; 3],
    /// The addresses of the bias and of the residual.
    pub added: [Option<u64>; 2],
    /// The function that is applied behind the bias.
    pub activation: Activation,
    /// Whether the old elements of C are added.
    pub accumulate: bool,
}

/// Checks a product as [`matmul`] does, and launches nothing. So another library can compute it:
/// each matrix is inside its buffer, no two elements of C are at the same place, and C overlaps
/// nothing that is read.
///
/// # Errors
/// What is wrong with the arguments, as for [`matmul`].
pub fn check<S, T: Operand, C: Product<T>>(
    batch: usize,
    a: Matrix<'_, S, T>,
    b: Matrix<'_, S, T>,
    epilogue: &Epilogue<'_, S, C>,
    c: &mut MatrixMut<'_, S, C>,
) -> Result<CheckedMatmul, LaunchError> {
    let &mut MatrixMut { ref mut data, rows, columns, stride, batch_stride } = c;
    let c = MatrixMut { data: &mut **data, rows, columns, stride, batch_stride };
    let bias = epilogue.bias.map(DeviceSlice::device_ptr);
    let residual = epilogue.residual.map(|r| r.data.device_ptr());
    let transposed = [a.transposed, b.transposed];
    let arguments = arguments(batch, a, b, epilogue, c)?;
    if let Some(requirement) = arguments.violated() {
        let c = format!("[{rows}, {columns}] with stride {stride} and batch_stride {batch_stride}");
        let arguments = format!("batch = {batch}, a = {a:?}, b = {b:?}, epilogue = {epilogue:?}, c = {c}");
        return Err(LaunchError::Requirement { kernel: "matmul", requirement, arguments });
    }
    let Arguments { m, n, k, batch, lda, ldb, ldc, ldr, sa, sb, sc, sr, a, b, c, .. } = arguments;
    Ok(CheckedMatmul {
        extents: [m, n, k],
        batch,
        transposed,
        strides: [lda, ldb, ldc, ldr],
        batch_strides: [sa, sb, sc, sr],
        addresses: [a.device_ptr(), b.device_ptr(), c.device_ptr()],
        added: [bias, residual],
        activation: epilogue.activation,
        accumulate: epilogue.accumulate,
    })
}

/// Makes the arguments of the kernels. They check by themselves that the matrices are inside their
/// buffers.
fn arguments<'a, S, T: Operand, C: Product<T>>(
    batch: usize,
    a: Matrix<'a, S, T>,
    b: Matrix<'a, S, T>,
    epilogue: &Epilogue<'a, S, C>,
    c: MatrixMut<'a, S, C>,
) -> Result<Arguments<'a, S, T>, LaunchError> {
    let refuse = |requirement| {
        let arguments = format!("batch = {batch}, a = {a:?}, b = {b:?}, epilogue = {epilogue:?}, c = {c:?}");
        Err(LaunchError::Requirement { kernel: "matmul", requirement, arguments })
    };
    if a.columns != b.rows {
        return refuse("a.columns == b.rows");
    }
    if [a.rows, b.columns] != [c.rows, c.columns] {
        return refuse("[a.rows, b.columns] == [c.rows, c.columns]");
    }
    if epilogue.residual.is_some_and(|r| r.transposed || [r.rows, r.columns] != [c.rows, c.columns]) {
        return refuse("residual has the shape of c and is not transposed");
    }
    if epilogue.bias.is_some_and(|bias| bias.len() != c.columns) {
        return refuse("bias.len() == c.columns");
    }
    let ldr = epilogue.residual.map_or(0, |r| r.stride);
    let numbers = [c.rows, c.columns, a.columns, batch, a.stride, b.stride, c.stride, ldr];
    if numbers.iter().any(|&number| i32::try_from(number).is_err()) {
        return refuse("extents, strides and the batch are at most 2^31 - 1");
    }
    let [m, n, k, batch, lda, ldb, ldc, ldr] = numbers.map(|number| number as u32);
    // Matrices without elements may be any distance apart, which the kernels multiply.
    let [sa, sb] = [a, b].map(|x| if k == 0 { 0 } else { x.batch_stride as u64 });

    // In elements, because the bytes of a distance may be more than a number can hold.
    let piece = 16 / size_of::<C>() as u64;
    let sc = c.batch_stride as u64;
    let aligned =
        c.data.device_ptr().is_multiple_of(16) && [u64::from(ldc), sc].iter().all(|d| d.is_multiple_of(piece));
    let mut flags = match epilogue.activation {
        Activation::None => 0,
        Activation::GeluTanh => GELU_TANH,
        Activation::GeluErf => GELU_ERF,
    };
    for (set, flag) in [
        (epilogue.bias.is_some(), BIAS),
        (epilogue.residual.is_some(), RESIDUAL),
        (epilogue.accumulate, ACCUMULATE),
        (size_of::<C>() == 4, WIDE),
        (aligned, ALIGNED),
        (!a.transposed, A_ALONG_K),
        (b.transposed, B_ALONG_K),
    ] {
        flags |= if set { flag } else { 0 };
    }
    Ok(Arguments {
        form: match (a.transposed, b.transposed) {
            (false, true) => Form::Nt,
            (false, false) => Form::Nn,
            (true, false) => Form::Tn,
            (true, true) => Form::Tt,
        },
        m,
        n,
        k,
        batch,
        lda,
        ldb,
        ldc,
        ldr,
        flags,
        sa,
        sb,
        sc,
        sr: epilogue.residual.map_or(0, |r| r.batch_stride as u64),
        a: a.data,
        b: b.data,
        bias: epilogue.bias.map_or_else(none, DeviceSlice::cast),
        residual: epilogue.residual.map_or_else(none, |r| r.data.cast()),
        c: c.data.cast_mut(),
        scratch: none_mut(),
    })
}
