//! The launch of a kernel on a stream.

use std::panic::Location;

use thalweg_simt::host::{Kernel, Launch, LaunchError, LaunchShape, MatrixView, TensorMap};

use crate::brand::Brand;
use crate::driver::StreamHandle;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// Waits for a kernel that was just launched, and names it if it has failed.
#[cold]
fn finished<S: Brand>(stream: Stream<S>, kernel: &Kernel, launched: &'static Location<'static>) -> Result<()> {
    stream.call(StreamHandle::synchronize).map_err(|cause| Error::KernelFailed {
        kernel: kernel.name(),
        launched,
        cause: Box::new(cause),
    })
}

// SAFETY: [kernel] The driver makes a map of the tiles that it gets, and `tensor_map` keeps none.
unsafe impl<S: Brand> Launch<S> for Stream<S> {
    type Error = Error;

    #[inline]
    #[track_caller]
    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<()> {
        let device = self.device();
        device.ensure_usable()?;
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let granted = device.shared_memory_per_block();
        if shape.shared > granted {
            return Err(LaunchError::SharedMemory { kernel: kernel.name(), shared: shape.shared, granted }.into());
        }
        let function = device.function(kernel)?;
        // SAFETY: [kernel] The caller of `launch` promises that the slots are the kernel's, that
        // this stream orders the buffers among them, and that the kernel is sound for these
        // arguments and this shape. `device.function` found `function`, the kernel's entry on the
        // stream's device.
        device.seen(unsafe { self.handle().launch(kernel, function, shape, slots) })?;
        if device.blocks_launches() && !self.inner().captures() {
            return finished(*self, kernel, Location::caller());
        }
        Ok(())
    }

    fn multiprocessors(&self) -> u32 {
        self.device().multiprocessors()
    }

    fn tensor_map(&self, tiles: &MatrixView) -> Result<Option<TensorMap>> {
        self.device().seen(self.handle().tensor_map(tiles))
    }
}
