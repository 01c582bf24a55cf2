//! The lanes of a warp, and the operations that a whole warp carries out.

use std::cell::Cell;
use std::panic::Location;

use crate::Word;

/// The number of threads in a warp.
pub(super) const WARP: usize = 32;

/// Where a thread of a cooperative block is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum At {
    /// The thread has not started, or may run on.
    #[default]
    Running,
    Returned,
    Barrier,
    ShuffleXor,
    ShuffleUp,
    ShuffleDown,
    Shuffle,
    Ballot,
    WarpBarrier,
    WarpSum,
    WarpMax,
    WarpMin,
    WarpSumU32,
}

impl At {
    pub(super) fn is_warp_operation(self) -> bool {
        !matches!(self, Self::Running | Self::Returned | Self::Barrier)
    }

    /// Whether the memory accesses before it are ordered before those after it, for the block.
    #[allow(dead_code, reason = "the checked device asks it")]
    pub(super) fn orders_block(self) -> bool {
        matches!(self, Self::Barrier)
    }

    /// Whether the memory accesses before it are ordered before those after it, for the warp.
    #[allow(dead_code, reason = "the checked device asks it")]
    pub(super) fn orders_warp(self) -> bool {
        matches!(self, Self::WarpBarrier)
    }

    /// Says where the thread is. The text follows words such as "thread 7".
    fn describe(self) -> &'static str {
        match self {
            Self::Running => "not arrived",
            Self::Returned => "returned",
            Self::Barrier => "at `barrier`",
            Self::ShuffleXor => "in `shuffle_xor`",
            Self::ShuffleUp => "in `shuffle_up`",
            Self::ShuffleDown => "in `shuffle_down`",
            Self::Shuffle => "in `shuffle`",
            Self::Ballot => "in `ballot`",
            Self::WarpBarrier => "at `warp_barrier`",
            Self::WarpSum => "in `warp_sum`",
            Self::WarpMax => "in `warp_max`",
            Self::WarpMin => "in `warp_min`",
            Self::WarpSumU32 => "in `warp_sum_u32`",
        }
    }
}

/// What a thread and the scheduler tell each other.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) at: Cell<At>,
    /// The line of the kernel where the thread waits.
    pub(super) location: Cell<&'static Location<'static>>,
    /// The operand of a warp operation, and later its result.
    pub(super) value: Cell<u32>,
    /// The mask, delta or source of a shuffle.
    pub(super) argument: Cell<u32>,
}

impl Default for Lane {
    fn default() -> Self {
        let location = Cell::new(Location::caller());
        Self { at: Cell::default(), location, value: Cell::default(), argument: Cell::default() }
    }
}

/// Carries out a warp operation that all 32 lanes have reached, and lets them run on.
pub(super) fn complete(at: At, warp: &[Lane]) {
    let mut values = [0; WARP];
    for (value, lane) in values.iter_mut().zip(warp) {
        *value = lane.value.get();
    }
    match at {
        At::ShuffleXor => shuffle(&mut values, warp, |lane, mask| lane ^ mask),
        At::ShuffleUp => shuffle(&mut values, warp, |lane, delta| lane.wrapping_sub(delta)),
        At::ShuffleDown => shuffle(&mut values, warp, |lane, delta| lane + delta),
        At::Shuffle => shuffle(&mut values, warp, |_, source| source),
        At::Ballot => {
            let ballot = (0..WARP).fold(0, |bits, lane| bits | values[lane] << lane);
            values = [ballot; WARP];
        }
        At::WarpBarrier => {}
        At::WarpSum => butterfly(&mut values, |a: f32, b| a + b),
        At::WarpMax => butterfly(&mut values, f32::max),
        At::WarpMin => butterfly(&mut values, f32::min),
        At::WarpSumU32 => butterfly(&mut values, u32::wrapping_add),
        At::Running | At::Returned | At::Barrier => unreachable!("not a warp operation"),
    }
    for (lane, value) in warp.iter().zip(values) {
        lane.value.set(value);
        lane.at.set(At::Running);
    }
}

/// Gives each lane the value of the lane that `source` names. `source` takes the lane's number and
/// its argument, of which only the low 5 bits count, as on a GPU. A lane keeps its own value if
/// `source` names no lane.
fn shuffle(values: &mut [u32; WARP], warp: &[Lane], source: impl Fn(usize, usize) -> usize) {
    let before = *values;
    for (lane, value) in values.iter_mut().enumerate() {
        if let Some(&v) = before.get(source(lane, warp[lane].argument.get() as usize % WARP)) {
            *value = v;
        }
    }
}

/// Reduces by `shuffle_xor` with 16, 8, 4, 2 and 1. Each lane's own value is the left operand.
fn butterfly<T: Word>(values: &mut [u32; WARP], op: impl Fn(T, T) -> T) {
    for mask in [16, 8, 4, 2, 1] {
        let before = values.map(T::from_word);
        for (lane, value) in values.iter_mut().enumerate() {
            *value = op(before[lane], before[lane ^ mask]).to_word();
        }
    }
}

/// Says which threads are where, as in "threads 0 to 31 at `barrier`, thread 32 returned". `first`
/// is the rank of the first lane.
#[cold]
pub(super) fn describe(lanes: &[Lane], first: usize) -> String {
    let mut start = first;
    let runs = lanes.chunk_by(|a, b| a.at == b.at).map(|run| {
        let from = start;
        start += run.len();
        let place = run[0].at.get().describe();
        if run.len() == 1 {
            format!("thread {from} {place}")
        } else {
            format!("threads {from} to {} {place}", start - 1)
        }
    });
    runs.collect::<Vec<_>>().join(", ")
}
