//! The shape of a launch.

use super::error::{LaunchError, MAX_SHARED};
use super::kernel::Kernel;

/// The grid, the block and the dynamic shared memory of a launch. A launcher makes only shapes that
/// are within the limits of every supported GPU, except that each GPU has its own limit of shared
/// memory: all grant 48 KiB, and one of them 227 KiB. The stream checks that limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// The number of blocks in `x`, `y` and `z`. If one is 0, the launch does nothing.
    pub grid: [u32; 3],
    /// The number of threads of a block in `x`, `y` and `z`. Their product is at most 1024.
    pub block: [u32; 3],
    /// The dynamic shared memory of a block in bytes.
    pub shared: u32,
}

impl LaunchShape {
    /// Checks the extents that a declaration computed.
    #[doc(hidden)]
    pub fn new<const G: usize, const B: usize>(
        kernel: &Kernel,
        grid: &[u128; G],
        block: &[u128; B],
        shared: u128,
    ) -> Result<Self, LaunchError> {
        const { assert!(G <= 3 && B <= 3, "a grid and a block have at most three extents") };
        let at = |v: &[u128], i: usize| v.get(i).copied().unwrap_or(1);
        let threads = block.iter().try_fold(1u128, |n, extent| n.checked_mul(*extent)).unwrap_or(u128::MAX);
        let fits = at(grid, 0) <= i32::MAX as u128
            && at(grid, 1) <= 65535
            && at(grid, 2) <= 65535
            && (1..=1024).contains(&threads)
            && at(block, 2) <= 64
            && shared <= u128::from(MAX_SHARED)
            && (!kernel.cooperative() || threads % 32 == 0);
        if !fits {
            return Err(LaunchError::Shape {
                kernel: kernel.name(),
                grid: grid.to_vec(),
                block: block.to_vec(),
                shared,
            });
        }
        if let Some(most) = kernel.most_threads().filter(|most| threads > u128::from(*most)) {
            return Err(LaunchError::Bounds { kernel: kernel.name(), block: block.to_vec(), most });
        }
        let dims = |v: &[u128]| [at(v, 0) as u32, at(v, 1) as u32, at(v, 2) as u32];
        Ok(Self { grid: dims(grid), block: dims(block), shared: shared as u32 })
    }
}

/// Returns `v`. It gives the extents of a declaration, which are literals or computed from widened
/// arguments, the type `u128`.
#[doc(hidden)]
#[must_use]
pub fn extent(v: u128) -> u128 {
    v
}
