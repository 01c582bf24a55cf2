//! The library's plan for a product: descriptions of it, and the algorithm that the library chose.
//!
//! cuBLASLt stores matrices by columns. A matrix by rows is its transpose by columns, so the
//! library computes `C^T = B^T A^T`: what it calls A is our B, its rows are our columns, and its
//! bias, one number for each of its rows, is ours for each column.

use std::any::TypeId;
use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};

use thalweg::simt::{Element, bf16, f16};
use thalweg_kernels::linear::{Activation, CheckedMatmul};

use crate::library::{Found, Library, Raw, SUCCESS};

/// `CUBLAS_COMPUTE_32F`: sums in `f32`, and `f32` operands as they are, without TF32.
const COMPUTE_F32: c_int = 68;

/// `CUBLASLT_MATMUL_DESC_...`, of which the last one is `_SM_COUNT_TARGET`.
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;

/// `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT` and `_STRIDED_BATCH_OFFSET`.
const BATCH_COUNT: c_int = 5;
const BATCH_DISTANCE: c_int = 6;

/// `CUBLASLT_MATMUL_PREF_...`.
const MOST_WORKSPACE: c_int = 1;
const REDUCTIONS: c_int = 3;
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
/// Parts of a sum are added in `f32` in the workspace, in a fixed order, or there are no parts.
const REDUCE_IN_F32: u32 = 2;

/// `CUBLASLT_EPILOGUE_...`.
const PLAIN: c_int = 1;
const WITH_BIAS: c_int = 4;
const WITH_GELU: c_int = 32;

/// The number of a type in `cudaDataType`, if products have it.
fn kind<T: Element>() -> Option<c_int> {
    let kinds = [(TypeId::of::<f32>(), 0), (TypeId::of::<f16>(), 2), (TypeId::of::<bf16>(), 14)];
    kinds.into_iter().find_map(|(id, kind)| (id == TypeId::of::<T>()).then_some(kind))
}

/// All numbers that the choice of an algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The types of operands and of C.
    kinds: [c_int; 2],
    extents: [u32; 3],
    batch: u32,
    transposed: [bool; 2],
    strides: [u32; 4],
    batch_strides: [u64; 4],
    epilogue: c_int,
    /// Whether something of C's shape is added.
    added: bool,
    /// The bytes of which the addresses of B, A, the residual and C are multiples: 256 at most.
    /// That of C is the one of its rows, if they are aligned worse than 16 bytes: the library reads
    /// the stride of the residual and not the one of C, and then writes several elements at once
    /// where it cannot.
    alignments: [u32; 4],
    /// The same of the bias. With an algorithm for a bias that is better aligned, kernels fail.
    bias_alignment: u32,
    workspace: usize,
}

impl Key {
    /// Describes a product, or gives `None` if the library cannot compute it in one call. It
    /// applies the activation behind all additions, has GELU by the hyperbolic tangent only, and
    /// adds one matrix.
    pub(crate) fn of<T: Element, C: Element>(product: &CheckedMatmul, workspace: usize) -> Option<Self> {
        let &CheckedMatmul {
            extents, batch, transposed, mut strides, mut batch_strides, activation, accumulate, ..
        } = product;
        let [bias, residual] = product.added;
        let added = residual.is_some() || accumulate;
        let gelu = match activation {
            Activation::None => 0,
            Activation::GeluTanh if !added => WITH_GELU,
            _ => return None,
        };
        if residual.is_some() && accumulate || extents.contains(&0) || batch == 0 {
            return None;
        }
        if residual.is_none() {
            (strides[3], batch_strides[3]) = (strides[2], batch_strides[2]);
        }
        let [a, b, c] = product.addresses;
        let alignment = |address: u64| 1 << address.trailing_zeros().min(8);
        let between = u64::from(strides[2]) | if batch > 1 { batch_strides[2] } else { 0 };
        let rows = alignment(between.wrapping_mul(size_of::<C>() as u64));
        let of_c = if rows < 16 { rows.min(alignment(c)) } else { alignment(c) };
        Some(Self {
            kinds: [kind::<T>()?, kind::<C>()?],
            extents,
            batch,
            transposed,
            strides,
            batch_strides,
            epilogue: match gelu + if bias.is_some() { WITH_BIAS } else { 0 } {
                0 => PLAIN,
                both => both,
            },
            added,
            alignments: [alignment(b), alignment(a), alignment(residual.unwrap_or(c)), of_c],
            bias_alignment: bias.map_or(256, alignment),
            workspace,
        })
    }
}

/// The descriptions of a product and its algorithm.
pub(crate) struct Plan {
    library: &'static Library,
    description: Raw,
    /// Of the library's A, B, C and D: our B, A, what is added, and C.
    layouts: [Raw; 4],
    algorithm: [u64; 8],
    /// The bytes that the algorithm needs.
    workspace: usize,
    beta: f32,
}

// SAFETY: Descriptions belong to no thread, and a plan is used by one thread at a time, behind the
// lock of its table.
unsafe impl Send for Plan {}

impl Plan {
    /// Asks the library for its algorithm. Gives `None` if it has none.
    ///
    /// `handle` is a handle of the library, and the device's context is current.
    pub(crate) fn new(library: &'static Library, handle: Raw, key: &Key) -> thalweg::Result<Option<Self>> {
        let mut plan = Self {
            library,
            description: null_mut(),
            layouts: [null_mut(); 4],
            algorithm: [0; 8],
            workspace: 0,
            beta: if key.added { 1.0 } else { 0.0 },
        };
        // SAFETY: The call stores a handle.
        let status = unsafe { (library.description_create)(&mut plan.description, COMPUTE_F32, 0) };
        library.check("cublasLtMatmulDescCreate", status)?;
        let [ta, tb] = key.transposed.map(c_int::from);
        for (attribute, value) in [(TRANSPOSE_A, tb), (TRANSPOSE_B, ta), (EPILOGUE, key.epilogue)] {
            plan.describe(attribute, &value)?;
        }
        if key.epilogue & WITH_BIAS != 0 {
            // The search reads how the address of the bias is aligned, and no preference says so.
            // Each product sets its own address.
            plan.describe(BIAS_POINTER, &(256 + u64::from(key.bias_alignment)))?;
        }
        let [m, n, k] = key.extents.map(u64::from);
        let ([lda, ldb, ldc, ldr], [sa, sb, sc, sr]) = (key.strides, key.batch_strides);
        let operand = |transposed: bool, outer, inner| if transposed { [inner, outer] } else { [outer, inner] };
        let shapes = [
            (key.kinds[0], operand(key.transposed[1], n, k), ldb, sb),
            (key.kinds[0], operand(key.transposed[0], k, m), lda, sa),
            (key.kinds[1], [n, m], ldr, sr),
            (key.kinds[1], [n, m], ldc, sc),
        ];
        for (layout, (kind, [rows, columns], stride, distance)) in plan.layouts.iter_mut().zip(shapes) {
            // SAFETY: The call stores a handle.
            let status = unsafe { (library.layout_create)(layout, kind, rows, columns, stride.into()) };
            if !library.supports("cublasLtMatrixLayoutCreate", status)? {
                return Ok(None);
            }
            if key.batch > 1 {
                let (count, distance) = (key.batch.cast_signed(), distance.cast_signed());
                // SAFETY: The layout exists, and the attributes are an `int32_t` and an `int64_t`.
                let statuses = unsafe {
                    [
                        (library.layout_set)(*layout, BATCH_COUNT, from_ref(&count).cast(), 4),
                        (library.layout_set)(*layout, BATCH_DISTANCE, from_ref(&distance).cast(), 8),
                    ]
                };
                for status in statuses {
                    library.check("cublasLtMatrixLayoutSetAttribute", status)?;
                }
            }
        }
        plan.search(handle, key)
    }

    fn search(mut self, handle: Raw, key: &Key) -> thalweg::Result<Option<Self>> {
        let library = self.library;
        let mut preference = null_mut();
        // SAFETY: The call stores a handle.
        library.check("cublasLtMatmulPreferenceCreate", unsafe { (library.preference_create)(&mut preference) })?;
        let set = |attribute, value: *const c_void, size| {
            // SAFETY: The preference exists until the end of this function, and the callers pass
            // the address and the size of a number of the attribute's type.
            unsafe { (library.preference_set)(preference, attribute, value, size) }
        };
        let mut statuses = vec![
            set(MOST_WORKSPACE, from_ref(&key.workspace).cast(), size_of::<usize>()),
            set(REDUCTIONS, from_ref(&REDUCE_IN_F32).cast(), 4),
        ];
        statuses.extend(ALIGNMENTS.iter().zip(&key.alignments).map(|(&at, bytes)| set(at, from_ref(bytes).cast(), 4)));
        let [a, b, c, d] = self.layouts;
        let (mut found, mut count) = (Found::default(), 0);
        // SAFETY: All descriptions exist. The call stores at most one result, and their number.
        let asked =
            unsafe { (library.heuristic)(handle, self.description, a, b, c, d, preference, 1, &mut found, &mut count) };
        // SAFETY: It was made above and is not used any more.
        unsafe { (library.preference_destroy)(preference) };
        for status in statuses {
            library.check("cublasLtMatmulPreferenceSetAttribute", status)?;
        }
        let supported = library.supports("cublasLtMatmulAlgoGetHeuristic", asked)?;
        if !supported || count < 1 || found.state != SUCCESS || found.workspace > key.workspace {
            return Ok(None);
        }
        (self.algorithm, self.workspace) = (found.algorithm, found.workspace);
        Ok(Some(self))
    }

    /// Sets an attribute of the product that has the type `T`.
    fn describe<T>(&mut self, attribute: c_int, value: &T) -> thalweg::Result<()> {
        // SAFETY: The description exists while `self` does. The attributes that are set here are
        // `int32_t`, enumerations, or an address, as the callers pass them.
        let status = unsafe {
            (self.library.description_set)(self.description, attribute, from_ref(value).cast(), size_of::<T>())
        };
        self.library.check("cublasLtMatmulDescSetAttribute", status)
    }

    /// Enqueues the product on a stream.
    ///
    /// # Safety
    /// - `handle` is a handle of the library for the device whose context is current, and `stream`
    ///   is a stream of this device.
    /// - The plan was made for the key of `product`, whose buffers and workspace the stream orders:
    ///   the workspace starts at a multiple of 256 and has as many bytes as the key says.
    pub(crate) unsafe fn enqueue(
        &mut self,
        handle: Raw,
        product: &CheckedMatmul,
        workspace: u64,
        stream: Raw,
    ) -> thalweg::Result<()> {
        let [bias, residual] = product.added;
        if let Some(bias) = bias {
            self.describe(BIAS_POINTER, &bias)?;
        }
        let [a, b, c] = product.addresses.map(|at| at as usize as *mut c_void);
        let added = residual.map_or(c, |at| at as usize as *mut c_void);
        let [la, lb, lc, ld] = self.layouts;
        // SAFETY: The caller passes handle, stream and workspace as the library needs them. `check`
        // has seen that all matrices of the layouts, which the key describes, are inside their
        // buffers. The factors are read before the call returns, because the pointer mode is that
        // of the host.
        let status = unsafe {
            (self.library.matmul)(
                handle,
                self.description,
                &1.0,
                b,
                la,
                a,
                lb,
                &self.beta,
                added,
                lc,
                c,
                ld,
                &self.algorithm,
                if self.workspace == 0 { null_mut() } else { workspace as usize as *mut c_void },
                self.workspace,
                stream,
            )
        };
        self.library.check("cublasLtMatmul", status)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: This plan made it, and nothing uses it any more: calls have read it.
            unsafe { (self.library.layout_destroy)(layout) };
        }
        if !self.description.is_null() {
            // SAFETY: As for the layouts.
            unsafe { (self.library.description_destroy)(self.description) };
        }
    }
}
