//! The order of the tiles of C that blocks compute.

/// Tiles of a group, downwards.
const GROUP: u32 = 8;

/// Returns row and column of the tile of block `id`. Blocks that run at the same time compute the
/// tiles of a group of eight rows, column after column, so they share operands in the L2 cache.
#[inline(always)]
pub(super) fn tile(id: u32, down: u32, across: u32) -> (u32, u32) {
    let (group, within) = (id / (GROUP * across), id % (GROUP * across));
    let first = group * GROUP;
    let rows = (down - first).min(GROUP);
    (first + within % rows, within / rows)
}
