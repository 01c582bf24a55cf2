//! The log of a rank's calls, as it tells the others.
//!
//! NCCL does not compare what ranks call: a difference hangs, or gives wrong numbers. So the ranks
//! tell one another many times a second how far they are, with a hash of all their calls and the
//! last few of them.

use std::collections::VecDeque;

use crate::codec::{Fields, Parse};
use crate::header::{Call, HEADER_BYTES, Header};

/// The calls whose hashes a rank remembers. A rank that is further behind is compared by its last
/// calls.
const KEPT: usize = 4096;
/// The calls that a rank tells.
const TOLD: usize = 16;
const START: u64 = 0xcbf2_9ce4_8422_2325;

/// The calls of this rank.
#[derive(Debug, Default)]
pub(super) struct Log {
    count: u64,
    /// The last calls, each with the hash of all up to it.
    recent: VecDeque<(Call, u64)>,
}

/// A log that another rank told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Said {
    pub(super) count: u64,
    hash: u64,
    recent: Vec<Call>,
}

/// Extends a hash by a call (FNV-1a).
fn extend(hash: u64, call: &Call) -> u64 {
    let bytes = Header { call: *call, seq: 0, step: 0, len: 0 }.encode();
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Log {
    pub(super) fn push(&mut self, call: Call) {
        let hash = self.recent.back().map_or(START, |(_, hash)| *hash);
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back((call, extend(hash, &call)));
        self.count += 1;
    }

    /// The number of calls.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Call number `seq`, counted from 1, with the hash of all up to it, if it is remembered.
    fn at(&self, seq: u64) -> Option<(Call, u64)> {
        let back = usize::try_from(self.count.checked_sub(seq)?).ok()?;
        self.recent.len().checked_sub(1 + back).map(|at| self.recent[at])
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let hash = self.recent.back().map_or(START, |(_, hash)| *hash);
        let last = self.recent.iter().skip(self.recent.len().saturating_sub(TOLD));
        let fields = Fields::default().number(self.count).number(hash);
        last.fold(fields, |all, (call, _)| all.bytes(&Header { call: *call, seq: 0, step: 0, len: 0 }.encode())).0
    }

    /// The first call that is known to differ from what another rank told, if there is one: its
    /// number, the own call, and the other's if it is known.
    pub(super) fn difference(&self, said: &Said) -> Option<(u64, Call, Option<Call>)> {
        let first = said.count.saturating_sub(said.recent.len() as u64).saturating_add(1);
        let both = (first..).zip(&said.recent).filter_map(|(seq, theirs)| Some((seq, self.at(seq)?.0, *theirs)));
        let found = both.filter(|(_, own, theirs)| own != theirs).map(|(seq, own, theirs)| (seq, own, Some(theirs)));
        let earlier = || {
            let (call, hash) = self.at(said.count)?;
            (hash != said.hash).then_some((said.count, call, None))
        };
        found.min_by_key(|(seq, ..)| *seq).or_else(earlier)
    }
}

impl Said {
    /// Reads the bytes that [`Log::encode`] wrote.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut p = Parse(bytes);
        let (count, hash) = (p.number()?, p.number()?);
        let mut recent = Vec::new();
        while !p.0.is_empty() {
            let bytes: &[u8; HEADER_BYTES] = p.bytes()?.try_into().ok()?;
            recent.push(Header::decode(bytes)?.call);
        }
        (recent.len() as u64 <= count).then_some(Self { count, hash, recent })
    }

    /// The call of this number, if it was told.
    pub(super) fn at(&self, seq: u64) -> Option<Call> {
        let back = usize::try_from(self.count.checked_sub(seq)?).ok()?;
        self.recent.len().checked_sub(1 + back).map(|at| self.recent[at])
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Log, Said, TOLD};
    use crate::element::{Kind, Op};
    use crate::header::{Call, Code};

    fn sum(count: usize) -> Call {
        Call { code: Code::AllReduce, kind: Kind::F32, op: Some(Op::Sum), root: None, count }
    }

    fn log(counts: impl IntoIterator<Item = usize>) -> Log {
        let mut log = Log::default();
        counts.into_iter().for_each(|n| log.push(sum(n)));
        log
    }

    fn said(log: &Log) -> Said {
        Said::decode(&log.encode()).unwrap()
    }

    #[test]
    fn equal_calls_do_not_differ_however_far_apart_the_ranks_are() {
        let long = log(0..10_000);
        for n in [0, 1, 15, 16, 17, 5000, 5905, 9000, 9990, 10_000] {
            let other = log(0..n);
            assert_eq!(long.difference(&said(&other)), None, "{n}");
            assert_eq!(other.difference(&said(&long)), None, "{n}");
        }
    }

    #[test]
    fn the_first_call_that_differs_is_found() {
        let (a, b) = (log([1, 2, 3, 4, 5]), log([1, 2, 7, 4]));
        assert_eq!(a.difference(&said(&b)), Some((3, sum(3), Some(sum(7)))));
        assert_eq!(b.difference(&said(&a)), Some((3, sum(7), Some(sum(3)))));
        // Longer ago than what is told: the hash still differs.
        let other = |at: usize| log((0..1000).map(move |k| if k == at { 9999 } else { k }));
        let long = log(0..1000);
        assert_eq!(long.difference(&said(&other(3))), Some((1000, sum(999), None)));
        assert_eq!(long.difference(&said(&other(999 - TOLD))), Some((1000, sum(999), None)));
        assert_eq!(
            long.difference(&said(&other(1000 - TOLD))),
            Some((1001 - TOLD as u64, sum(1000 - TOLD), Some(sum(9999))))
        );
        // The same calls in another order.
        assert_eq!(log([1, 2]).difference(&said(&log([2, 1]))), Some((1, sum(1), Some(sum(2)))));
    }

    #[test]
    fn what_was_told_is_read_or_refused() {
        let log = log(0..KEPT + 50);
        let bytes = log.encode();
        let told = Said::decode(&bytes).unwrap();
        assert_eq!(
            (told.count, told.at(told.count), told.at(1), told.at(told.count + 1)),
            ((KEPT + 50) as u64, Some(sum(KEPT + 49)), None, None)
        );
        assert_eq!(Said::decode(&Log::default().encode()).unwrap().count, 0);
        for n in (0..bytes.len()).filter(|n| n % 48 != 16) {
            assert_eq!(Said::decode(&bytes[..n]), None, "cut to {n} bytes");
        }
        // More calls than their number.
        let mut few = bytes;
        few[..8].copy_from_slice(&3u64.to_le_bytes());
        assert_eq!(Said::decode(&few), None);
    }
}
