//! Runs the blocks of a declared kernel.

use std::panic::{self, AssertUnwindSafe};

use super::block::CpuBlock;
use super::checker::Checker;
use super::error::BlockError;
use super::monitor::{Checked, Monitor};
use super::place::{Place, Turns};
use super::workspace::BlockWorkspace;
use crate::host::{BlockFn, CpuEntry, Kernel, LaunchShape};

/// The byte that fills shared memory before a block starts. Shared memory of a GPU holds any value
/// at that time, so a body must not rely on it.
const POISON: u8 = 0xA5;

fn entry_of(kernel: &Kernel) -> CpuEntry {
    let Some(entry) = kernel.cpu() else {
        panic!("kernel `{}` was declared without a body and cannot run on the CPU", kernel.name());
    };
    entry
}

/// Runs one block of `kernel` on the calling thread.
///
/// # Errors
/// A thread of the block panicked or used memory that is not there, its threads diverged, or there
/// was no memory for the stacks. Part of the block may have run.
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
    workspace: &mut BlockWorkspace,
) -> Result<(), BlockError> {
    let entry = entry_of(kernel);
    let block = Block { kernel, shape, idx: block_idx, slots, checker: None, turns: Turns::Ascending };
    // SAFETY: The caller promises what `Block::run` requires. The entry is that of the kernel.
    unsafe { block.run(entry.block, workspace) }.map_err(|error| *error)
}

/// A launch on the checked device. Its blocks run one after another, in an order that the seed
/// draws, and each access to memory is checked.
#[derive(Debug)]
pub struct CheckedLaunch<'a> {
    kernel: &'a Kernel,
    run: BlockFn<Checked>,
    shape: LaunchShape,
    seed: u64,
    slots: Vec<u64>,
    checker: Checker,
}

impl<'a> CheckedLaunch<'a> {
    /// Makes a launch with the slots that [`Launch::launch`](crate::host::Launch::launch) gets.
    ///
    /// # Panics
    /// The kernel has no entry for the checked device.
    #[must_use]
    pub fn new(kernel: &'a Kernel, shape: LaunchShape, slots: &[u64], seed: u64) -> Self {
        let Some(run) = entry_of(kernel).checked else {
            panic!("kernel `{}` was built without debug assertions and cannot run checked", kernel.name());
        };
        let mut slots = slots.to_vec();
        let checker = Checker::new(kernel.parameters(), &mut slots, shape.grid, shape.block);
        Self { kernel, run, shape, seed, slots, checker }
    }

    /// Runs all blocks on the calling thread.
    ///
    /// # Errors
    /// What [`run_block`] reports, and each access that the checker does not allow. The first error
    /// ends the launch.
    ///
    /// # Safety
    /// What [`run_block`] requires holds for each block of the grid, except that accesses may be
    /// wrong in the ways that the checked device reports.
    pub unsafe fn run(&self, workspace: &mut BlockWorkspace) -> Result<(), BlockError> {
        let Self { kernel, run, shape, seed, slots, checker } = self;
        let [gx, gy, gz] = shape.grid.map(|n| n as usize);
        let (blocks, threads) = (gx * gy * gz, shape.block.iter().product::<u32>() as usize);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let order = Turns::draw(blocks, &mut random);
        for turn in 0..blocks {
            let i = order.at(turn, blocks);
            let idx = [(i % gx) as u32, (i / gx % gy) as u32, (i / (gx * gy)) as u32];
            checker.start(i as u32);
            let turns = Turns::draw(threads, &mut random);
            let block = Block { kernel, shape: *shape, idx, slots, checker: Some(checker), turns };
            // SAFETY: The caller promises what `Block::run` requires. The entry is that of the
            // kernel. The addresses in `slots` have tags, which the checker takes away before each
            // access.
            unsafe { block.run(*run, workspace) }.map_err(|error| BlockError { seed: Some(*seed), ..*error })?;
        }
        Ok(())
    }
}

/// A block to run.
struct Block<'a> {
    kernel: &'a Kernel,
    shape: LaunchShape,
    idx: [u32; 3],
    slots: &'a [u64],
    checker: Option<&'a Checker>,
    turns: Turns,
}

impl Block<'_> {
    /// Runs the block with a function of the kernel's entry.
    ///
    /// # Safety
    /// `run` is of the kernel's entry. The rest is what [`run_block`] requires.
    unsafe fn run<M: Monitor>(&self, run: BlockFn<M>, workspace: &mut BlockWorkspace) -> Result<(), Box<BlockError>> {
        let Self { kernel, shape, idx, slots, checker, turns } = *self;
        let BlockWorkspace { fibers, shared } = workspace;
        let words = (shape.shared as usize).div_ceil(size_of::<u128>());
        shared.clear();
        shared.resize(words, u128::from_ne_bytes([POISON; 16]));

        let place = Place {
            parameters: kernel.parameters(),
            slots,
            idx: idx.into(),
            grid: shape.grid.into(),
            dim: shape.block.into(),
            shared: shared.as_mut_ptr().cast(),
            shared_len: shape.shared,
            checker,
            turns,
        };
        let block = CpuBlock::new(place, fibers);
        // A panic of the body can leave nothing but buffers in a broken state, and a failed launch
        // leaves the contents of buffers unspecified anyway. So the unwind is safe to catch.
        // SAFETY: `run` belongs to `kernel`. The caller promises one slot for each parameter, that
        // the kernel is sound for them and for the shape, and that nothing conflicts with its
        // accesses.
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| unsafe { run(&block, slots) }));
        match block.fault(outcome) {
            None => Ok(()),
            Some(fault) => Err(Box::new(BlockError { kernel: kernel.name(), block: idx, fault, seed: None })),
        }
    }
}
