//! The blocks of a launch.

use std::cell::RefCell;
use std::ops::Range;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use thalweg_simt::cpu::{BlockError, Workspace, run_block};
use thalweg_simt::host::{Kernel, LaunchShape};

use super::Cpu;

/// Work below which waking the pool costs more than it gains, in threads of a kernel.
const INLINE: usize = 8192;

/// How much longer a thread is that meets others, roughly.
const COOPERATIVE: usize = 16;

thread_local! {
    /// The stacks and the shared memory of the blocks that this OS thread runs.
    static WORKSPACE: RefCell<Workspace> = const { RefCell::new(Workspace::new()) };
}

/// Blocks of a grid. A shape with a zero extent has none.
pub(super) fn blocks(shape: LaunchShape) -> usize {
    shape.grid.iter().map(|&n| n as usize).product()
}

/// Runs the blocks of `range`: in parallel on the device's pool, or here, in scattered order, where the
/// device has none.
///
/// # Safety
/// As for [`run_block`].
pub(super) unsafe fn run(
    cpu: &Cpu,
    kernel: &Kernel,
    shape: LaunchShape,
    slots: &[u64],
    range: Range<usize>,
) -> Result<(), BlockError> {
    let [gx, gy, _] = shape.grid.map(|n| n as usize);
    let run = |i: usize| {
        let idx = [(i % gx) as u32, (i / gx % gy) as u32, (i / (gx * gy)) as u32];
        // A block runs on one OS thread from start to end and starts no other, so the borrow is never
        // nested.
        // SAFETY: the caller's promise.
        let run = |workspace: &mut Workspace| unsafe { run_block(kernel, shape, idx, slots, workspace) };
        // A destructor of another thread-local may get here after the workspace's own.
        WORKSPACE.try_with(|w| run(&mut w.borrow_mut())).unwrap_or_else(|_| run(&mut Workspace::new()))
    };

    if cpu.scheduler().is_some() {
        let (n, stride) = (blocks(shape), scatter(blocks(shape)));
        return range.into_iter().try_for_each(|i| run((i as u128 * stride as u128 % n as u128) as usize));
    }
    let threads = shape.block.iter().product::<u32>() as usize;
    let work = (range.len()).saturating_mul(threads * if kernel.cooperative() { COOPERATIVE } else { 1 });
    match cpu.pool().filter(|_| range.len() > 1 && work > INLINE) {
        Some(pool) => pool.install(|| range.into_par_iter().try_for_each(run)),
        None => range.into_iter().try_for_each(run),
    }
}

/// A number without a common divisor with `n`, so that its multiples modulo `n` are a permutation.
pub(super) fn scatter(n: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (n * 5 / 8 + 1..).find(|s| gcd(*s, n) == 1).unwrap_or(1)
}
