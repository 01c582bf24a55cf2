//! The lanes of a warp, and the operations that a whole warp carries out.

use std::cell::{Cell, RefCell};
use std::panic::Location;

use super::copies::Copies;
use super::matrices::{self, WIDE};
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
    LoadMatrices,
    LoadMatricesTransposed,
    MmaF16,
    MmaBf16,
    MmaTf32,
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

    fn is_matrix_operation(self) -> bool {
        matches!(self, Self::LoadMatrices | Self::LoadMatricesTransposed | Self::MmaF16 | Self::MmaBf16 | Self::MmaTf32)
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
            Self::LoadMatrices => "in `load_matrices`",
            Self::LoadMatricesTransposed => "in `load_matrices_transposed`",
            Self::MmaF16 => "in `mma_f16`",
            Self::MmaBf16 => "in `mma_bf16`",
            Self::MmaTf32 => "in `mma_tf32`",
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
    /// The operands of a matrix operation, and later its results.
    pub(super) wide: Cell<[u32; WIDE]>,
    /// The asynchronous copies of the thread.
    pub(super) copies: RefCell<Copies>,
}

impl Default for Lane {
    fn default() -> Self {
        let location = Cell::new(Location::caller());
        Self {
            at: Cell::default(),
            location,
            value: Cell::default(),
            argument: Cell::default(),
            wide: Cell::default(),
            copies: RefCell::default(),
        }
    }
}

/// Carries out a warp operation that all 32 lanes have reached, and lets them run on.
pub(super) fn complete(at: At, warp: &[Lane]) {
    if at.is_matrix_operation() {
        return complete_wide(at, warp);
    }
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
        _ => unreachable!("not an operation on one word of each lane"),
    }
    for (lane, value) in warp.iter().zip(values) {
        lane.value.set(value);
        lane.at.set(At::Running);
    }
}

/// Carries out a matrix operation.
fn complete_wide(at: At, warp: &[Lane]) {
    let mut words = [[0; WIDE]; WARP];
    for (words, lane) in words.iter_mut().zip(warp) {
        *words = lane.wide.get();
    }
    match at {
        At::LoadMatrices => matrices::distribute(&mut words, false),
        At::LoadMatricesTransposed => matrices::distribute(&mut words, true),
        At::MmaF16 => matrices::multiply_16(&mut words, matrices::f16),
        At::MmaBf16 => matrices::multiply_16(&mut words, matrices::bf16),
        At::MmaTf32 => matrices::multiply_tf32(&mut words),
        _ => unreachable!("not a matrix operation"),
    }
    for (lane, words) in warp.iter().zip(words) {
        lane.wide.set(words);
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
