//! What a step of a program is, and the lengths, limits and ranges that steps choose from.

use std::ops::Range;

/// Lengths of buffers: none, one, few, and enough for a schedule to stop half way. All but the last
/// fit one block of page-locked memory, so buffers reuse each other's blocks.
pub(crate) const LENGTHS: [usize; 6] = [257, 64, 5, 1, 0, 1500];

/// One step: the operation, and numbers that choose its buffers and details.
pub(crate) type Op = (u8, u8, u8, u8);

/// The approximate limit of buffers of a kind. With few buffers, steps often use the same one.
pub(crate) const MOST: usize = 7;

/// The number of elements of the ring's buffers.
pub(crate) const FRAME: usize = 100;

/// Chooses ranges of equal length in two buffers of these lengths.
pub(crate) fn spans(from: usize, to: usize, how: u8) -> (Range<usize>, Range<usize>) {
    let n = from.min(to);
    match how % 4 {
        0 | 1 => (0..n, 0..n),
        2 => (from - n..from, to - n..to),
        _ => (n / 2..n, 0..n - n / 2),
    }
}
