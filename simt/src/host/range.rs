//! Ranges of slices.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use super::counted::counted;

/// A range that is not inside the slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeError {
    /// The first element of the range.
    pub start: usize,
    /// One past the last element of the range.
    pub end: usize,
    /// The number of elements in the slice.
    pub len: usize,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "range {}..{} is not inside the {}", self.start, self.end, counted(self.len, "element"))
    }
}
impl std::error::Error for RangeError {}

/// Returns the start and the end of `range` after checking it against `len`.
///
/// # Errors
/// The range is not inside `0..len`.
#[doc(hidden)]
pub fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), RangeError> {
    let start = match range.start_bound() {
        Bound::Included(&s) => s,
        Bound::Excluded(&s) => s.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&e) => e.saturating_add(1),
        Bound::Excluded(&e) => e,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len { Ok((start, end)) } else { Err(RangeError { start, end, len }) }
}
