//! The blocks of a launch.

use std::ops::Range;
use std::sync::Mutex;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use thalweg_simt::cpu::{BlockError, Workspace, run_block};
use thalweg_simt::host::{Kernel, LaunchShape};

use super::Cpu;
use crate::lock;

/// Work below which waking the pool costs more than it gains, in threads of a kernel.
const INLINE: usize = 8192;

/// How much longer a thread is that meets others, roughly.
const COOPERATIVE: usize = 16;

/// Workspaces that nobody uses. Not one for each OS thread: a stream has a thread, streams are never destroyed, and a
/// workspace can hold a thousand stacks, of two mappings each.
static IDLE: Mutex<Vec<Workspace>> = Mutex::new(Vec::new());

/// Workspaces that are kept; what more threads use at once is given back to the system.
const KEPT: usize = 16;

/// The stacks and the shared memory of the blocks that an OS thread runs, from and back to the idle ones.
struct Lent(Workspace);

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
            drop(idle); // unmapping takes a while
        }
    }
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
    let run = |lent: &mut Lent, i: usize| {
        let idx = [(i % gx) as u32, (i / gx % gy) as u32, (i / (gx * gy)) as u32];
        // SAFETY: the caller's promise.
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
