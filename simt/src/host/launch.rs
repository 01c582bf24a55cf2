//! The places where kernels are launched.

use super::error::LaunchError;
use super::kernel::Kernel;
use super::shape::LaunchShape;
use super::tiles::{MatrixView, TensorMap};

/// A place where a kernel can be launched: the host crate's `Stream<S>`.
///
/// # Safety
/// - A map that [`tensor_map`](Self::tensor_map) returns is one of exactly the tiles that it was
///   given, on the device of the launches: kernels copy what it says without a check.
/// - If [`runs`](Self::runs) returns true, a launch that returns without an error is enqueued.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot launch on buffers ordered by `{S}`",
    label = "this stream does not order the buffers",
    note = "hand the buffers over first: `stream.hand_off(buffers, &other)`, or `record` and `wait`"
)]
pub unsafe trait Launch<S> {
    /// The error of a launch.
    type Error: From<LaunchError>;

    /// Enqueues `kernel`.
    ///
    /// # Safety
    /// - `slots` holds a value for each parameter, in the order of the declaration: for a buffer
    ///   its address and its number of elements. Each value starts at an element of `slots`, and
    ///   [`Kernel::parameters`] says how many elements it takes.
    /// - The buffers are ordered by stream `S`.
    /// - The kernel is sound for these arguments and this shape.
    #[track_caller]
    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), Self::Error>;

    /// Returns whether launches run. They do on a stream, and not in a query about a launch, which
    /// has no results that another launch could rely on.
    fn runs(&self) -> bool {
        true
    }

    /// Returns the number of blocks that the device runs at the same time if each takes all shared
    /// memory of a multiprocessor: the number of multiprocessors of a GPU.
    fn multiprocessors(&self) -> u32 {
        1
    }

    /// Returns a map of matrices for the device's copy engine for tiles, in which a box has 64 x 64
    /// elements of one matrix, with the 128-byte swizzle. Returns `None` if the device has no such
    /// engine: only GPUs of compute capability 9.0 count, for which `sm_90a` code is built.
    ///
    /// # Errors
    /// The driver refuses to make the map.
    fn tensor_map(&self, _tiles: &MatrixView) -> Result<Option<TensorMap>, Self::Error> {
        Ok(None)
    }
}
