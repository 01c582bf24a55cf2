//! The lanes of a warp, and the operations that a whole warp carries out.

use std::cell::{Cell, RefCell};
use std::panic::Location;

use super::copies::Copies;
use super::matrices::{self, WIDE};
use crate::Word;
use crate::warp::Shuffle;

/// The number of threads in a warp.
pub(super) const WARP: usize = 32;

/// The place of a thread of a cooperative block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum At {
    /// The thread has not started, or may run on.
    #[default]
    Running,
    Returned,
    Barrier,
    BarrierAnd,
    BarrierOr,
    BarrierCount,
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
    /// In an operation of the lanes of `mask`.
    Among {
        among: Among,
        mask: u32,
    },
}

/// An operation of some lanes of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// A shuffle in the segment of `width` lanes from `first` on.
    Shuffle {
        how: Shuffle,
        first: u32,
        width: u32,
    },
    Ballot,
    Match,
    Barrier,
}

impl At {
    /// Whether the thread waits for all threads of its block.
    pub(super) fn is_barrier(self) -> bool {
        matches!(self, Self::Barrier | Self::BarrierAnd | Self::BarrierOr | Self::BarrierCount)
    }

    pub(super) fn is_warp_operation(self) -> bool {
        !matches!(self, Self::Running | Self::Returned) && !self.is_barrier()
    }

    /// Whether a thread waits there.
    fn waits(self) -> bool {
        !matches!(self, Self::Running | Self::Returned)
    }

    /// Whether the memory accesses before it are ordered before those after it, for the warp.
    pub(super) fn orders_warp(self) -> bool {
        matches!(self, Self::WarpBarrier | Self::Among { among: Among::Barrier, .. })
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
            Self::BarrierAnd => "at `barrier_and`",
            Self::BarrierOr => "at `barrier_or`",
            Self::BarrierCount => "at `barrier_count`",
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
            Self::Among { among: Among::Shuffle { how, .. }, .. } => match how {
                Shuffle::Xor => "in a `shuffle_xor` of some lanes",
                Shuffle::Up => "in a `shuffle_up` of some lanes",
                Shuffle::Down => "in a `shuffle_down` of some lanes",
                Shuffle::Index => "in a `shuffle` of some lanes",
            },
            Self::Among { among: Among::Ballot, .. } => "in a vote of some lanes",
            Self::Among { among: Among::Match, .. } => "in a match of some lanes",
            Self::Among { among: Among::Barrier, .. } => "at a `sync` of some lanes",
        }
    }
}

/// The state that a thread and the scheduler exchange.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) at: Cell<At>,
    /// The line of the kernel where the thread waits.
    pub(super) location: Cell<&'static Location<'static>>,
    /// The operand of a warp operation, and later its result.
    pub(super) value: Cell<u64>,
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

impl Lane {
    /// Makes the lane ready for a thread of another block. Its operands and results stay, because a
    /// thread sets them before it uses them.
    pub(super) fn reset(&self) {
        self.at.set(At::Running);
        self.copies.borrow_mut().clear();
    }
}

/// Carries out a warp operation that all 32 lanes have reached, and lets them run on.
pub(super) fn complete(at: At, warp: &[Lane]) {
    if at.is_matrix_operation() {
        return complete_wide(at, warp);
    }
    let mut values = [0; WARP];
    for (value, lane) in values.iter_mut().zip(warp) {
        *value = lane.value.get() as u32;
    }
    combine(at, &mut values, |lane| warp[lane].argument.get());
    for (lane, value) in warp.iter().zip(values) {
        lane.value.set(value.into());
        lane.at.set(At::Running);
    }
}

/// Carries out an operation on one word of each lane. `argument` is asked for that of a lane.
#[inline]
pub(super) fn combine(at: At, values: &mut [u32; WARP], argument: impl Fn(usize) -> u32) {
    match at {
        At::ShuffleXor => shuffle(values, argument, |lane, mask| lane ^ mask),
        At::ShuffleUp => shuffle(values, argument, |lane, delta| lane.wrapping_sub(delta)),
        At::ShuffleDown => shuffle(values, argument, |lane, delta| lane + delta),
        At::Shuffle => shuffle(values, argument, |_, source| source),
        At::Ballot => {
            let ballot = (0..WARP).fold(0, |bits, lane| bits | values[lane] << lane);
            *values = [ballot; WARP];
        }
        At::WarpBarrier => {}
        At::WarpSum => butterfly(values, |a: f32, b| a + b),
        At::WarpMax => butterfly(values, f32::max),
        At::WarpMin => butterfly(values, f32::min),
        At::WarpSumU32 => butterfly(values, u32::wrapping_add),
        _ => unreachable!("not an operation on one word of each lane"),
    }
}

/// Carries out the operations of tiles and of other sets of lanes that all their lanes have
/// reached, and lets these lanes run on. Calls `ordered` with the mask of the lanes whose memory
/// accesses an operation orders. Returns whether there was an operation.
pub(super) fn complete_among(warp: &[Lane], ordered: impl Fn(u32)) -> bool {
    let mut progress = false;
    for lane in warp {
        let at = lane.at.get();
        let At::Among { among, mask } = at else { continue };
        let arrived = |l: usize| warp.get(l).is_some_and(|other| other.at.get() == at);
        let lanes = || (0..WARP).filter(|l| mask >> l & 1 == 1);
        if !lanes().all(arrived) {
            continue;
        }
        if at.orders_warp() {
            ordered(mask);
        }
        let mut before = [0; WARP];
        lanes().for_each(|l| before[l] = warp[l].value.get());
        for l in lanes() {
            let result = match among {
                Among::Shuffle { how, first, width } => {
                    let (first, argument) = (first as usize, warp[l].argument.get() as usize % WARP);
                    let end = first + width as usize;
                    let source = match how {
                        Shuffle::Xor => l ^ argument,
                        Shuffle::Up => l.wrapping_sub(argument),
                        Shuffle::Down => l + argument,
                        Shuffle::Index => first + argument % width as usize,
                    };
                    before[if (first..end).contains(&source) { source } else { l }]
                }
                Among::Ballot => lanes().map(|other| before[other] << other).sum(),
                Among::Match => lanes().map(|other| u64::from(before[other] == before[l]) << other).sum(),
                Among::Barrier => 0,
            };
            warp[l].value.set(result);
            warp[l].at.set(At::Running);
        }
        progress = true;
    }
    progress
}

/// Carries out a barrier that all threads of the block have reached, and lets them run on.
pub(super) fn complete_barrier(lanes: &[Lane]) {
    let count = lanes.iter().map(|lane| lane.value.get()).sum::<u64>();
    let result = match lanes[0].at.get() {
        At::BarrierAnd => u64::from(count == lanes.len() as u64),
        At::BarrierOr => u64::from(count > 0),
        _ => count,
    };
    for lane in lanes {
        lane.value.set(result);
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
fn shuffle(values: &mut [u32; WARP], argument: impl Fn(usize) -> u32, source: impl Fn(usize, usize) -> usize) {
    let before = *values;
    for (lane, value) in values.iter_mut().enumerate() {
        if let Some(&v) = before.get(source(lane, argument(lane) as usize % WARP)) {
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
    let same = |a: &Lane, b: &Lane| a.at == b.at && (!a.at.get().waits() || a.location == b.location);
    let runs = lanes.chunk_by(same).map(|run| {
        let from = start;
        start += run.len();
        let (at, location) = (run[0].at.get(), run[0].location.get());
        let mut place = at.describe().to_owned();
        if let At::Among { mask, .. } = at {
            place += &format!(", {mask:#010x}");
        }
        if at.waits() {
            place += &format!(" ({location})");
        }
        if run.len() == 1 {
            format!("thread {from} {place}")
        } else {
            format!("threads {from} to {} {place}", start - 1)
        }
    });
    runs.collect::<Vec<_>>().join(", ")
}
