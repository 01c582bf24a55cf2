//! Races, as a person reads them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::row::At;

/// A call that accessed memory.
#[derive(Debug)]
pub(super) struct Call {
    /// The line of its row in a file.
    pub(super) row: u64,
    pub(super) what: Cow<'static, str>,
    pub(super) at: Option<At>,
    /// The line that made it, as text.
    pub(super) by: Arc<str>,
    /// The call that was captured, if this one is a replay.
    pub(super) captured: Option<Arc<Call>>,
}

impl Call {
    /// The same call of a replay, which runs this one of its graph.
    pub(super) fn running(self: &Arc<Self>, captured: &Arc<Self>) -> Arc<Self> {
        let Self { row, what, at, by, .. } = &**self;
        let (what, at, by) = (what.clone(), at.clone(), by.clone());
        Arc::new(Self { row: *row, what, at, by, captured: Some(captured.clone()) })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, what, at, by, captured } = self;
        write!(f, "`{what}` on {by}")?;
        if let Some(at) = at {
            write!(f, ", at {at}")?;
        }
        write!(f, " (row {row})")?;
        match captured {
            Some(call) => write!(f, ", which runs {call}"),
            None => Ok(()),
        }
    }
}

/// Why a log is rejected.
#[derive(Debug)]
pub(super) enum Wrong {
    /// Nothing orders two accesses, of which one is a write.
    Unordered { earlier: Arc<Call>, writes: [bool; 2] },
    /// The memory was freed before.
    Freed { free: Arc<Call> },
    /// The log has no such allocation.
    NotAllocated,
}

/// Two accesses that nothing orders, or one to memory that is not there.
#[derive(Debug)]
pub(crate) struct Race {
    pub(super) wrong: Wrong,
    pub(super) bytes: Range<u64>,
    pub(super) later: Arc<Call>,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wrong, bytes: Range { start, end }, later } = self;
        let bytes = format_args!(
            "bytes {start:#x} to {end:#x}, {} in all",
            thalweg_simt::host::counted((end - start) as usize, "byte")
        );
        let verb = |writes| if writes { "write" } else { "read " };
        match wrong {
            Wrong::Unordered { earlier, writes } => {
                writeln!(f, "nothing orders two accesses to {bytes}")?;
                writeln!(f, "  first  {} by {earlier}", verb(writes[0]))?;
                write!(f, "  second {} by {later}", verb(writes[1]))
            }
            Wrong::Freed { free } => {
                writeln!(f, "memory is used after it was freed: {bytes}")?;
                writeln!(f, "  freed  by {free}")?;
                write!(f, "  used   by {later}")
            }
            Wrong::NotAllocated => {
                writeln!(f, "memory is freed that was not allocated: {bytes}")?;
                write!(f, "  freed  by {later}")
            }
        }
    }
}
