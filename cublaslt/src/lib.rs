//! Products of cuBLASLt on typed streams.
//!
//! The crate links nothing: it loads `libcublasLt.so.13` or `.12` when the first [`CublasLt`] is
//! made, from where the loader of the system looks or from the file that `THALWEG_CUBLASLT` names.
//! It takes the matrices and the epilogue of [`linear::matmul`](fn@thalweg_kernels::linear::matmul)
//! and checks them in the same way. What the library has no kernel for, `matmul` computes.
//!
//! ```
//! use thalweg::{Device, stream_tags};
//! use thalweg_cublaslt::CublasLt;
//! use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut, matmul};
//!
//! stream_tags!(Work);
//! let gpu = Device::best()?;
//! let work = gpu.stream::<Work>()?;
//! let (a, b) = (work.upload_blocking(&[1f32; 6])?, work.upload_blocking(&[2f32; 12])?);
//! let mut c = work.alloc::<f32>(8)?;
//! let (x, y) = (Matrix::new(&a, 2, 3), Matrix::new(&b, 3, 4));
//! match CublasLt::new(gpu) {
//!     Ok(library) => {
//!         let mut workspace = library.workspace(&work)?; // once, and then for all products of the stream
//!         library.matmul(&work, &mut workspace, 1, x, y, &Epilogue::default(), MatrixMut::new(&mut c, 2, 4))?;
//!     }
//!     Err(why) => {
//!         println!("{why}"); // no GPU, or no library
//!         matmul(&work, 1, x, y, &Epilogue::default(), MatrixMut::new(&mut c, 2, 4))?;
//!     }
//! }
//! assert_eq!(work.read_blocking(&c)?, [6.0; 8]);
//! # Ok::<(), thalweg::Error>(())
//! ```

mod error;
mod library;
mod plan;

use std::collections::HashMap;
use std::fmt;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use thalweg::{Brand, Device, DeviceBuffer, DeviceKind, DeviceSlice, LiveBrand, On, Stream};
use thalweg_kernels::linear::{self, CheckedMatmul, Epilogue, Matrix, MatrixMut, Operand, Product};

pub use error::{Error, Result};
use library::{Library, Raw};
use plan::{Key, Plan};

/// The bytes of a [workspace](CublasLt::workspace): what NVIDIA recommends for Hopper.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// The most products whose algorithm is remembered.
const MOST_PLANS: usize = 4096;

/// The state that a call to the library needs on one device.
struct Inner {
    device: Device,
    library: &'static Library,
    /// It lasts as long as the process.
    handle: Raw,
    /// `None` where the library has no kernel. One thread at a time uses them.
    plans: Mutex<HashMap<Key, Option<Plan>>>,
}

// SAFETY: The library allows calls with one handle from several threads. What belongs to one thread
// at a time is behind the lock.
unsafe impl Send for Inner {}
// SAFETY: As above.
unsafe impl Sync for Inner {}

/// cuBLASLt on one device. This is a handle that costs nothing to copy.
#[derive(Clone, Copy)]
pub struct CublasLt {
    inner: &'static Inner,
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CublasLt").field("device", &self.inner.device).field("version", &self.version()).finish()
    }
}

impl PartialEq for CublasLt {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.inner, other.inner)
    }
}
impl Eq for CublasLt {}

/// The backend that computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBackend {
    /// The library.
    ByLibrary,
    /// [`linear::matmul`](fn@thalweg_kernels::linear::matmul), because the library has no kernel
    /// for this product.
    ByThalweg,
}

/// An address and bytes.
type Span = (u64, usize);

/// The memory that a product reads, and that of its result, whose elements have these sizes.
fn spans(product: &CheckedMatmul, operand: usize, result: usize) -> ([Span; 5], Span) {
    let &CheckedMatmul { extents: [m, n, k], batch, transposed, strides, batch_strides, addresses, added, .. } =
        product;
    let span = |i: usize, addr: Option<u64>, [rows, columns]: [u32; 2], size: usize| {
        let last = u64::from(batch.saturating_sub(1)) * batch_strides[i]
            + u64::from(rows.saturating_sub(1)) * u64::from(strides[i]);
        addr.map_or((0, 0), |addr| (addr, (last + u64::from(columns)) as usize * size))
    };
    let stored =
        |transposed: bool, [rows, columns]: [u32; 2]| if transposed { [columns, rows] } else { [rows, columns] };
    let c = span(2, Some(addresses[2]), [m, n], result);
    let reads = [
        span(0, Some(addresses[0]), stored(transposed[0], [m, k]), operand),
        span(1, Some(addresses[1]), stored(transposed[1], [k, n]), operand),
        added[0].map_or((0, 0), |bias| (bias, n as usize * result)),
        span(3, added[1], [m, n], result),
        if product.accumulate { c } else { (0, 0) },
    ];
    (reads, c)
}

impl CublasLt {
    /// Loads the library, and prepares it for a device. Later calls for the same device return the
    /// same. The first call of a process reads `THALWEG_CUBLASLT`, the file of the library.
    ///
    /// # Errors
    /// The device is no GPU ([`thalweg::Error::Parameter`]), the library cannot be loaded
    /// ([`Error::Library`]), or it fails.
    pub fn new(device: Device) -> Result<Self> {
        static MADE: Mutex<Vec<CublasLt>> = Mutex::new(Vec::new());
        if device.kind() != DeviceKind::Cuda {
            let (given, expected) = (device.to_string(), "a GPU, because cuBLASLt has no other kernels".to_owned());
            return Err(thalweg::Error::Parameter { name: "device", given, expected }.into());
        }
        let library = Library::get().map_err(|why| Error::Library { reason: why.to_owned() })?;
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = made.iter().find(|lt| lt.inner.device == device) {
            return Ok(*found);
        }
        let mut handle = null_mut();
        // SAFETY: The call stores a handle for the device whose context is current.
        let status = device.with_context(|| unsafe { (library.create)(&mut handle) })?;
        library.check("cublasLtCreate", status)?;
        let inner = Box::leak(Box::new(Inner { device, library, handle, plans: Mutex::default() }));
        let lt = Self { inner };
        made.push(lt);
        Ok(lt)
    }

    /// Returns the version of the library: 130002 is 13.0.2.
    #[must_use]
    pub fn version(self) -> usize {
        let Inner { library, .. } = self.inner;
        library.version()
    }

    /// Returns the device.
    #[must_use]
    pub fn device(self) -> Device {
        self.inner.device
    }

    /// Makes a workspace for [`matmul`](Self::matmul), of [`WORKSPACE_BYTES`]. Products on one
    /// stream take turns with it. Products that run at the same time need one each.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn workspace<S: LiveBrand>(self, s: &Stream<S>) -> thalweg::Result<On<S, DeviceBuffer<u8>>> {
        s.alloc(WORKSPACE_BYTES)
    }

    /// Enqueues `C = A B` with an epilogue, as
    /// [`linear::matmul`](fn@thalweg_kernels::linear::matmul) does, and says who computes it. It
    /// returns at once, and can be captured.
    ///
    /// The library computes bias, GELU by the hyperbolic tangent, and the sum with a residual or
    /// with the old C. An activation together with one of these sums, both of them, and GELU by the
    /// error function are computed by `linear::matmul`, and so is what the library refuses. Of
    /// operands of 16 bits the sums are `f32`, and operands in `f32` are not rounded to TF32. Where
    /// C has 16 bits, the library may round the product to them before it adds bias, residual or
    /// the old C.
    ///
    /// The workspace may have any length, also none: then the library takes kernels that need none.
    /// The algorithm of a product is chosen once, by its shape, the alignments of its buffers and
    /// the length of the workspace. So the same product has the same bits each time on the same
    /// device with the same library.
    ///
    /// # Errors
    /// The arguments are none of a product (see `linear::matmul`), the stream is of another device,
    /// or the library fails.
    #[expect(clippy::too_many_arguments, reason = "those of `linear::matmul`, and the workspace")]
    #[track_caller]
    pub fn matmul<S: Brand, T: Operand, C: Product<T>>(
        self,
        s: &Stream<S>,
        workspace: &mut DeviceSlice<S, u8>,
        batch: usize,
        a: Matrix<'_, S, T>,
        b: Matrix<'_, S, T>,
        epilogue: &Epilogue<'_, S, C>,
        mut c: MatrixMut<'_, S, C>,
    ) -> thalweg::Result<UsedBackend> {
        let device = s.device();
        if device != self.inner.device {
            let resource = self.inner.device.to_string();
            return Err(thalweg::Error::DeviceMismatch { resource, stream: device.to_string() });
        }
        let product = linear::check(batch, a, b, epilogue, &mut c)?;
        let start = workspace.device_ptr().next_multiple_of(256);
        let bytes = workspace.len().saturating_sub((start - workspace.device_ptr()) as usize);
        if let Some(key) = Key::of::<T, C>(&product, bytes)
            && let Some(stream) = s.raw()
            // SAFETY: The stream is of this device. Its type says that it orders the buffers of the
            // product, which `check` has seen to be inside, and the workspace, of which `bytes`
            // follow `start`.
            && device.with_context(|| unsafe { self.enqueue(key, &product, start, stream) })??
        {
            let (reads, result) = spans(&product, size_of::<T>(), size_of::<C>());
            s.trace_work("cublasLtMatmul", &reads, &[result, (start, bytes)]);
            return Ok(UsedBackend::ByLibrary);
        }
        linear::matmul(s, batch, a, b, epilogue, c)?;
        Ok(UsedBackend::ByThalweg)
    }

    /// Enqueues a product, or returns false if the library has no kernel for it.
    ///
    /// # Safety
    /// The device's context is current, and the rest as for [`Plan::enqueue`]; the key is that of
    /// the product.
    unsafe fn enqueue(self, key: Key, product: &CheckedMatmul, workspace: u64, stream: Raw) -> thalweg::Result<bool> {
        let &Inner { library, handle, ref plans, .. } = self.inner;
        let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
        if !plans.contains_key(&key) {
            if plans.len() == MOST_PLANS {
                plans.clear();
            }
            let plan = Plan::new(library, handle, &key)?;
            plans.insert(key, plan);
        }
        let Some(Some(plan)) = plans.get_mut(&key) else { return Ok(false) };
        // SAFETY: The caller promises the same, and the plan was made for this key.
        unsafe { plan.enqueue(handle, product, workspace, stream) }?;
        Ok(true)
    }
}
