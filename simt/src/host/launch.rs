//! Where kernels are launched.

use super::error::LaunchError;
use super::kernel::Kernel;
use super::shape::LaunchShape;

/// A place where a kernel can be launched: the host crate's `Stream<S>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot launch on buffers ordered by `{S}`",
    label = "this stream does not order the buffers",
    note = "hand the buffers over first: `stream.hand(buffers, &other)`, or `record` and `wait`"
)]
pub trait Launch<S> {
    /// The error of a launch.
    type Error: From<LaunchError>;

    /// Enqueues `kernel`.
    ///
    /// # Safety
    /// - `slots` holds one word for each parameter, in the order of the declaration: the bits of a
    ///   number or the address of a buffer. As many words follow: the numbers of elements of the
    ///   buffers, and 0 for numbers.
    /// - The buffers are ordered by stream `S`.
    /// - The kernel is sound for these arguments and this shape.
    #[track_caller]
    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), Self::Error>;
}
