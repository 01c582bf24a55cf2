//! Runs one block of a declared kernel.

use std::panic::{self, AssertUnwindSafe};

use super::block::CpuBlock;
use super::error::BlockError;
use super::place::Place;
use super::workspace::Workspace;
use crate::host::{Kernel, LaunchShape};

/// The byte that fills shared memory before a block starts. Shared memory of a GPU holds any value
/// at that time, so a body must not rely on it.
const POISON: u8 = 0xA5;

/// Runs one block of `kernel` on the calling thread.
///
/// # Errors
/// A thread of the block panicked or used shared memory outside the declared bytes, its threads
/// diverged, or there was no memory for the stacks. Part of the block may have run.
///
/// # Panics
/// The kernel has no CPU entry.
///
/// # Safety
/// - `slots` holds what [`Launch::launch`](crate::host::Launch::launch) requires.
/// - The kernel is sound for these arguments and this shape, as its declaration promises for every
///   launch that passes its `require` clause.
/// - The addresses in `slots` point into memory that was allocated with its provenance exposed.
///   While the block runs, nothing outside the launch writes the memory that the kernel reads, and
///   nothing outside the launch accesses the memory that it writes.
pub unsafe fn run_block(
    kernel: &Kernel,
    shape: LaunchShape,
    block_idx: [u32; 3],
    slots: &[u64],
    workspace: &mut Workspace,
) -> Result<(), BlockError> {
    let Some(entry) = kernel.cpu() else {
        panic!("kernel `{}` was declared without a body and cannot run on the CPU", kernel.name());
    };
    let Workspace { fibers, shared } = workspace;
    let words = (shape.shared as usize).div_ceil(size_of::<u128>());
    shared.clear();
    shared.resize(words, u128::from_ne_bytes([POISON; 16]));

    let place = Place {
        parameters: kernel.parameters(),
        slots,
        idx: block_idx.into(),
        grid: shape.grid.into(),
        dim: shape.block.into(),
        shared: shared.as_mut_ptr().cast(),
        shared_len: shape.shared,
    };
    let block = CpuBlock::new(place, fibers);
    // A panic of the body can leave nothing but buffers in a broken state, and a failed launch
    // leaves the contents of buffers unspecified anyway. So the unwind is safe to catch.
    // SAFETY: `entry` belongs to `kernel`. The caller promises a value for each parameter, that
    // the kernel is sound for them and for the shape, and that nothing conflicts with its accesses.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| unsafe { (entry.block)(&block, slots) }));
    match block.fault(outcome) {
        None => Ok(()),
        Some(fault) => Err(BlockError { kernel: kernel.name(), block: block_idx, fault }),
    }
}
