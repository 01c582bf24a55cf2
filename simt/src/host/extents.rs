//! What a launcher of a kernel without `unsafe` checks besides the clauses of its declaration.

use super::argument::Extent;
use super::error::LaunchError;
use super::kernel::Kernel;
use super::shape::LaunchShape;

/// Checks that the product of the extents of a buffer is its length and below 2^32, so that an
/// offset that a body computes with 32 bits does not wrap.
#[doc(hidden)]
pub fn extents(kernel: &Kernel, buffer: &'static str, of: Extent, extents: &[u128]) -> Result<(), LaunchError> {
    let product = extents.iter().try_fold(1u128, |product, extent| product.checked_mul(*extent));
    // An extent of 0 makes the product 0, but another one could still be too large for 32 bits.
    let fits = extents.iter().all(|extent| *extent <= u128::from(u32::MAX));
    if fits && product == Some(of.len()) && of.len() <= u128::from(u32::MAX) {
        return Ok(());
    }
    Err(LaunchError::Extents { kernel: kernel.name(), buffer, extents: extents.to_vec(), len: of.len() })
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
