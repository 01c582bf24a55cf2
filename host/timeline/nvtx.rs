//! Ranges for Nsight Systems.

/// A range that is open on this thread until it is dropped.
pub(super) struct Range;

/// Opens a range of this name.
#[inline]
pub(super) fn range(_label: &str) -> Range {
    Range
}
