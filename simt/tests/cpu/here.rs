//! A place that runs blocks, and buffers for it.

use std::cell::RefCell;

use thalweg_simt::cpu::{BlockError, BlockWorkspace, run_block};
use thalweg_simt::host::{DeviceSlice, Kernel, Launch, LaunchError, LaunchShape};

/// Runs the blocks of a launch at once, in order, on the calling thread.
#[derive(Default)]
pub(crate) struct Here(RefCell<BlockWorkspace>);

#[derive(Debug)]
pub(crate) enum Failed {
    Launch(LaunchError),
    Block(BlockError),
}

impl From<LaunchError> for Failed {
    fn from(e: LaunchError) -> Self {
        Self::Launch(e)
    }
}

impl Failed {
    pub(crate) fn block(self) -> BlockError {
        match self {
            Self::Block(e) => e,
            Self::Launch(e) => panic!("{e}"),
        }
    }
}

// SAFETY: It has no maps.
unsafe impl Launch<()> for Here {
    type Error = Failed;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), Failed> {
        let [gx, gy, gz] = shape.grid;
        for i in 0..gx * gy * gz {
            let idx = [i % gx, i / gx % gy, i / (gx * gy)];
            // SAFETY: The caller of `launch` promises that `slots` and `shape` are the kernel's.
            // The helpers below expose the provenance of the vectors, and nothing else runs that
            // could access them.
            unsafe { run_block(kernel, shape, idx, slots, &mut self.0.borrow_mut()) }.map_err(Failed::Block)?;
        }
        Ok(())
    }
}

pub(crate) fn slice<T>(v: &mut [T]) -> &DeviceSlice<(), T> {
    let addr = v.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: The result borrows the vector. Only `Here` uses the memory, and its launches are done
    // when they return.
    unsafe { DeviceSlice::from_raw(addr, v.len()) }
}

pub(crate) fn slice_mut<T>(v: &mut [T]) -> &mut DeviceSlice<(), T> {
    let addr = v.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: The result borrows the vector exclusively. Only `Here` uses the memory, and its
    // launches are done when they return.
    unsafe { DeviceSlice::from_raw_mut(addr, v.len()) }
}

/// Returns a small generator of numbers that are the same on every machine.
pub(crate) fn noise(seed: u32) -> impl FnMut() -> u32 {
    let mut state = u64::from(seed) + 1;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    }
}
