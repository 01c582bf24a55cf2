//! The backends that multiply matrices.

use thalweg::{Brand, Device, DeviceBuffer, LiveBrand, Resource, Stream};
use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut, Operand, Product, matmul_with_scratch, scratch_len};

use crate::error::Result;

/// The backend that multiplies the matrices of a model: thalweg's kernels, which is the default, or
/// cuBLASLt.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::{MatmulBackend, TokenTransformer, TokenTransformerConfig};
///
/// stream_tags!(Train);
/// let gpu = Device::best()?;
/// let mut model = TokenTransformer::<_, f32>::new(&gpu.stream::<Train>()?, TokenTransformerConfig::default(), 7)?;
/// match MatmulBackend::cublaslt(gpu) {
///     Ok(products) => model.set_matmul_backend(products),
///     Err(why) => println!("{why}"), // no GPU, no library, or thalweg-train without the feature
/// }
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatmulBackend {
    #[cfg(feature = "cublaslt")]
    library: Option<thalweg_cublaslt::CublasLt>,
}

impl MatmulBackend {
    /// Loads cuBLASLt for the products of models on this device (see `thalweg_cublaslt`). What it
    /// has no kernel for, thalweg's kernels compute. The results are within the bounds that hold
    /// for both, and they have other bits.
    ///
    /// Each pass in flight has a workspace of 32 MiB then, and so have the gradients.
    ///
    /// # Errors
    /// `thalweg-train` was built without the feature `cublaslt`, the device is no GPU, or the
    /// library cannot be loaded.
    pub fn cublaslt(device: Device) -> Result<Self> {
        #[cfg(feature = "cublaslt")]
        return Ok(Self { library: Some(thalweg_cublaslt::CublasLt::new(device)?) });
        #[cfg(not(feature = "cublaslt"))]
        Err(crate::error::Error::Config(format!("cuBLASLt on {device} needs the feature `cublaslt` of thalweg-train")))
    }

    fn workspace(self) -> usize {
        #[cfg(feature = "cublaslt")]
        if self.library.is_some() {
            return thalweg_cublaslt::WORKSPACE_BYTES;
        }
        0
    }
}

/// Multiplies matrices one after another on a stream, with the workspace that it needs. On a stream
/// it has the form [`MatmulOn<S>`](MatmulOn).
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut};
/// use thalweg_train::{MatmulBackend, MatmulOn};
///
/// stream_tags!(Work);
/// let s = Device::best()?.stream::<Work>()?;
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
/// let (a, b, mut c) = (s.upload_blocking(&[1.0f32, 2.0])?, s.upload_blocking(&[3.0, 4.0])?, s.alloc::<f32>(1)?);
/// let (a, b) = (Matrix::new(&a, 1, 2), Matrix::new(&b, 2, 1));
/// matmul.matmul(&s, a, b, &Epilogue::default(), MatrixMut::new(&mut c, 1, 1))?;
/// assert_eq!(s.read_blocking(&c)?, [11.0]);
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Debug, Resource)]
pub struct Matmul {
    #[resource(plain)]
    backend: MatmulBackend,
    workspace: DeviceBuffer<u8>,
    /// Memory for partial sums of thalweg's kernels.
    scratch: DeviceBuffer<u32>,
}

impl<S: LiveBrand> MatmulOn<S> {
    /// Makes the workspace.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new(s: &Stream<S>, backend: MatmulBackend) -> thalweg::Result<Self> {
        let scratch = if backend.workspace() == 0 { scratch_len(s)? } else { 0 };
        Ok(Self { backend, workspace: s.alloc(backend.workspace())?, scratch: s.alloc(scratch)? })
    }
}

impl<S: Brand> MatmulOn<S> {
    /// Enqueues `C = A B` with an epilogue.
    ///
    /// # Errors
    /// The shapes or lengths do not fit, or the device failed.
    pub fn matmul<T: Operand, C: Product<T>>(
        &mut self,
        s: &Stream<S>,
        a: Matrix<'_, S, T>,
        b: Matrix<'_, S, T>,
        epilogue: &Epilogue<'_, S, C>,
        c: MatrixMut<'_, S, C>,
    ) -> thalweg::Result<()> {
        #[cfg(feature = "cublaslt")]
        if let Some(library) = self.backend.library {
            return library.matmul(s, &mut self.workspace, 1, a, b, epilogue, c).map(drop);
        }
        matmul_with_scratch(s, &mut self.scratch, 1, a, b, epilogue, c)
    }
}
