//! The blocks of a launch.

use std::ops::Range;
use std::sync::Mutex;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use thalweg_simt::cpu::{BlockError, BlockWorkspace, CheckedLaunch, run_block};
use thalweg_simt::host::{Kernel, LaunchShape};

use super::Cpu;
use crate::driver::guard;
use crate::lock;

/// The work, in threads of a kernel, up to which waking the pool costs more than it gains.
const INLINE: usize = 8192;

/// The rough factor by which a thread of a cooperative kernel takes longer than another.
const COOPERATIVE: usize = 16;

/// Workspaces that nobody uses. They are not kept for each OS thread: each stream has a thread,
/// streams are never destroyed, and a workspace can hold a thousand stacks of two memory mappings
/// each.
static IDLE: Mutex<Vec<BlockWorkspace>> = Mutex::new(Vec::new());

/// The number of idle workspaces that are kept. Others are given back to the system.
const KEPT: usize = 16;

/// A workspace for the blocks that an OS thread runs: their stacks and shared memory. It comes from
/// the idle ones and goes back to them when dropped.
struct Lent(BlockWorkspace);

impl Lent {
    fn take() -> Self {
        Self(lock(&IDLE).pop().unwrap_or_default())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let workspace = std::mem::take(&mut self.0);
        let mut idle = lock(&IDLE);
        if idle.len() < KEPT {
            idle.push(workspace);
        } else {
            // Release the lock first: dropping the workspace unmaps memory, which takes a while.
            drop(idle);
        }
    }
}

/// The number of blocks of a grid. A shape with a zero extent has none.
pub(super) fn blocks(shape: LaunchShape) -> usize {
    shape.grid.iter().map(|&n| n as usize).product()
}

/// Runs the blocks of `range`: on the device's pool, or, if the work is small or there is no pool,
/// on this thread. On a checked device the range has all blocks. On a seeded schedule they run on
/// this thread, in scattered order.
///
/// The bodies may not call a device. This thread is the only one that runs the work of the stream,
/// or it holds the lock of a seeded schedule, so a call that waits would wait for itself.
///
/// # Safety
/// What [`run_block`] requires holds for each block of the range.
pub(super) unsafe fn run(
    cpu: &Cpu,
    kernel: &Kernel,
    shape: LaunchShape,
    slots: &[u64],
    range: Range<usize>,
) -> Result<(), BlockError> {
    // SAFETY: [kernel] The caller guarantees what `run_block` requires for every block of the
    // range.
    guard::as_kernel(|| unsafe { run_guarded(cpu, kernel, shape, slots, range) })
}

/// # Safety
/// The same as for [`run`].
unsafe fn run_guarded(
    cpu: &Cpu,
    kernel: &Kernel,
    shape: LaunchShape,
    slots: &[u64],
    range: Range<usize>,
) -> Result<(), BlockError> {
    if let Some(seed) = cpu.checked() {
        let mut lent = Lent::take();
        // SAFETY: [kernel] The caller guarantees what `run_block` requires for every block of the
        // range, which has all blocks of the grid.
        return unsafe { CheckedLaunch::new(kernel, shape, slots, seed).run(&mut lent.0) };
    }
    let [gx, gy, _] = shape.grid.map(|n| n as usize);
    let run = |lent: &mut Lent, i: usize| {
        let idx = [(i % gx) as u32, (i / gx % gy) as u32, (i / (gx * gy)) as u32];
        // SAFETY: [kernel] The caller guarantees what `run_block` requires for every block of the
        // range. On a seeded schedule the range counts blocks in scattered order.
        unsafe { run_block(kernel, shape, idx, slots, &mut lent.0) }
    };

    if cpu.scheduler().is_some() {
        let (n, stride) = (blocks(shape), scatter(blocks(shape)));
        let mut lent = Lent::take();
        return range.into_iter().try_for_each(|i| run(&mut lent, (i as u128 * stride as u128 % n as u128) as usize));
    }
    let threads = shape.block.iter().product::<u32>() as usize;
    let work = (range.len()).saturating_mul(threads * if kernel.cooperative() { COOPERATIVE } else { 1 });
    match cpu.pool().filter(|_| range.len() > 1 && work > INLINE) {
        Some(pool) => pool.install(|| range.into_par_iter().try_for_each_init(Lent::take, run)),
        None => {
            let mut lent = Lent::take();
            range.into_iter().try_for_each(|i| run(&mut lent, i))
        }
    }
}

/// A number without a common divisor with `n`. Its multiples modulo `n` are a permutation of 0 to
/// `n - 1`.
pub(super) fn scatter(n: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    ((n as u128 * 5 / 8) as usize + 1..).find(|s| gcd(*s, n) == 1).unwrap_or(1)
}
