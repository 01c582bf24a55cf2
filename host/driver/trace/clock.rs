//! Vector clocks: how far one line knows all lines. A line does one thing after another: a stream,
//! or the host.

/// The number of a line.
pub(super) type Line = usize;

/// The last access of each line that comes before what the owner of the clock does next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    /// The number of accesses of the line that it knows.
    pub(super) fn of(&self, line: Line) -> u32 {
        self.0.get(line).copied().unwrap_or(0)
    }

    /// Adds what the other clock knows.
    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(own, &other)| *own = (*own).max(other));
    }

    /// Counts one more access of the line, and returns its number.
    pub(super) fn tick(&mut self, line: Line) -> u32 {
        if self.0.len() <= line {
            self.0.resize(line + 1, 0);
        }
        self.0[line] += 1;
        self.0[line]
    }
}
