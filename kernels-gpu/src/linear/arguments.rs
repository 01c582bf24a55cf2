//! The arguments with which a product is launched.

use thalweg_simt::Element;
use thalweg_simt::host::DeviceSlice;

use super::epilogue::RESIDUAL;
use super::kernels::{distinct, holds, width};

/// The form of a product: which operands are transposed. The letters are those of BLAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Nt,
    Nn,
    Tn,
    Tt,
}

/// The arguments of a kernel. They are those of the declarations in the module `kernels`.
#[derive(Debug)]
pub struct Arguments<'a, S, T> {
    pub(super) form: Form,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) batch: u32,
    pub(super) lda: u32,
    pub(super) ldb: u32,
    pub(super) ldc: u32,
    pub(super) ldr: u32,
    pub(super) flags: u32,
    pub(super) sa: u64,
    pub(super) sb: u64,
    pub(super) sc: u64,
    pub(super) sr: u64,
    pub(super) a: &'a DeviceSlice<S, T>,
    pub(super) b: &'a DeviceSlice<S, T>,
    pub(super) bias: &'a DeviceSlice<S, T>,
    pub(super) residual: &'a DeviceSlice<S, T>,
    pub(super) c: &'a mut DeviceSlice<S, T>,
    /// Memory for partial sums, or an empty slice: see
    /// [`matmul_with_scratch`](super::matmul_with_scratch).
    pub(super) scratch: &'a mut DeviceSlice<S, u32>,
}

impl<S, T: Element> Arguments<'_, S, T> {
    /// Returns which requirement of the kernels is not met: that all matrices are inside their
    /// buffers, and that no two elements of C are at the same place.
    pub(super) fn violated(&self) -> Option<&'static str> {
        let [m, n, k, batch] = [self.m, self.n, self.k, self.batch].map(u128::from);
        let ([ar, ac], [br, bc]) = match self.form {
            Form::Nt => ([m, k], [n, k]),
            Form::Nn => ([m, k], [k, n]),
            Form::Tn => ([k, m], [k, n]),
            Form::Tt => ([k, m], [n, k]),
        };
        let width = width(self.flags.into(), size_of::<T>());
        let inside = |len: usize, rows, columns, ld: u32, distance: u64| {
            holds(len as u128, rows, columns, ld.into(), batch, distance.into())
        };
        let narrow = |len: usize| (len as u128 / width) as usize;
        [
            (inside(self.a.len(), ar, ac, self.lda, self.sa), "holds(a)"),
            (inside(self.b.len(), br, bc, self.ldb, self.sb), "holds(b)"),
            (inside(narrow(self.c.len()), m, n, self.ldc, self.sc), "holds(c)"),
            (
                self.flags & RESIDUAL == 0 || inside(narrow(self.residual.len()), m, n, self.ldr, self.sr),
                "holds(residual)",
            ),
            (distinct(m, n, self.ldc.into(), batch, self.sc.into()), "distinct(c)"),
        ]
        .into_iter()
        .find_map(|(met, requirement)| (!met).then_some(requirement))
    }

    /// Returns whether both operands consist of aligned pieces of 16 bytes, which the fast kernels
    /// copy.
    pub(super) fn in_pieces(&self) -> bool {
        let unit = 16 / size_of::<T>() as u64;
        let (inner_a, inner_b) = match self.form {
            Form::Nt => (self.k, self.k),
            Form::Nn => (self.k, self.n),
            Form::Tn => (self.m, self.n),
            Form::Tt => (self.m, self.k),
        };
        let extents = [inner_a, self.lda, inner_b, self.ldb].map(u64::from);
        self.a.device_ptr().is_multiple_of(16)
            && self.b.device_ptr().is_multiple_of(16)
            && extents.iter().chain(&[self.sa, self.sb]).all(|extent| extent.is_multiple_of(unit))
    }
}
