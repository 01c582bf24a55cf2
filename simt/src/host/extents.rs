//! The checks of a launcher of a kernel without `unsafe` besides the clauses of its declaration.

use super::argument::Extent;
use super::error::LaunchError;
use super::kernel::Kernel;
use super::shape::LaunchShape;
use crate::safe::Item;

/// Checks that a buffer has as many elements `T` as the product of the extents says, and starts
/// where each access to them is aligned. The number of its own elements is below 2^32, so that an
/// offset that a body computes with 32 bits does not wrap.
#[doc(hidden)]
pub fn extents<T: Item>(
    kernel: &Kernel,
    buffer: &'static str,
    of: Extent,
    extents: &[u128],
) -> Result<(), LaunchError> {
    let product = extents.iter().try_fold(T::COUNT as u128, |product, extent| product.checked_mul(*extent));
    // An extent of 0 makes the product 0, but another one could still be too large for 32 bits.
    let fits = extents.iter().all(|extent| *extent <= u128::from(u32::MAX));
    if !fits || product != Some(of.len()) || of.len() > u128::from(u32::MAX) {
        let (kernel, count, extents) = (kernel.name(), T::COUNT, extents.to_vec());
        return Err(LaunchError::Extents { kernel, buffer, count, extents, len: of.len() });
    }
    if !of.is_aligned(T::ALIGN as u64) {
        return Err(LaunchError::Alignment { kernel: kernel.name(), buffer, bytes: T::ALIGN });
    }
    Ok(())
}

/// Checks that the position of a thread in the grid fits into 32 bits along each axis, and that the
/// number of threads along the axis does too.
#[doc(hidden)]
pub fn countable(kernel: &Kernel, shape: LaunchShape) -> Result<LaunchShape, LaunchError> {
    for (blocks, threads) in shape.grid.into_iter().zip(shape.block) {
        if blocks.checked_mul(threads).is_none() {
            return Err(LaunchError::Positions { kernel: kernel.name(), blocks, threads });
        }
    }
    Ok(shape)
}

/// Returns an extent that the declaration names, as the kernel gets it.
#[doc(hidden)]
#[must_use]
pub fn hidden(extent: u128) -> u32 {
    // `extents` refuses one that is larger.
    u32::try_from(extent).unwrap_or(u32::MAX)
}
