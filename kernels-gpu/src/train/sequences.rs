//! Finds the rows that belong to a sequence.

/// Returns the sequence of a row: the last one that begins at or before it. `begins` gives where a
/// sequence begins; there is at least one sequence. Whatever `begins` gives, the result is below
/// `sequences`.
#[inline(always)]
pub(super) fn sequence_of(row: u32, sequences: u32, begins: impl Fn(u32) -> u32) -> u32 {
    let (mut low, mut high) = (0, sequences);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if begins(middle) <= row {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
