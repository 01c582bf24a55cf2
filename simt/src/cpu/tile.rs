//! The operations of tiles and of any lanes of a warp on the CPU device.

use super::monitor::Monitor;
use super::thread::CpuThread;
use super::warp::{Among, At};
use crate::Cooperative;
use crate::warp::{Exchange, Shuffle, Warp};

impl<M: Monitor> Warp for CpuThread<'_, M> {
    #[inline(always)]
    fn lane_index(self) -> u32 {
        self.lane()
    }

    #[inline]
    #[track_caller]
    fn shuffle_among<T: Exchange>(self, mask: u32, width: u32, how: Shuffle, v: T, argument: u32) -> T {
        let first = self.lane() & !(width - 1);
        if how == Shuffle::Index {
            let source = first + argument % width;
            assert!(mask >> source & 1 == 1, "a shuffle asks lane {source}, which is not among the lanes {mask:#010x}");
        }
        let among = Among::Shuffle { how, first, width };
        T::from_wide(self.meet_among(among, mask, v.to_wide(), argument))
    }
    #[inline]
    #[track_caller]
    fn ballot_among(self, mask: u32, p: bool) -> u32 {
        self.meet_among(Among::Ballot, mask, p.into(), 0) as u32
    }
    #[inline]
    #[track_caller]
    fn all_among(self, mask: u32, p: bool) -> bool {
        self.ballot_among(mask, p) == mask
    }
    #[inline]
    #[track_caller]
    fn any_among(self, mask: u32, p: bool) -> bool {
        self.ballot_among(mask, p) != 0
    }
    #[inline]
    #[track_caller]
    fn match_among<T: Exchange>(self, mask: u32, v: T) -> u32 {
        self.meet_among(Among::Match, mask, v.to_wide(), 0) as u32
    }
    #[inline]
    #[track_caller]
    fn sync_among(self, mask: u32) {
        self.meet_among(Among::Barrier, mask, 0, 0);
    }
    #[inline]
    fn active_mask(self) -> u32 {
        1 << self.lane()
    }
}

impl<M: Monitor> CpuThread<'_, M> {
    /// Waits for the other lanes of `mask` and returns this lane's result.
    #[inline]
    #[track_caller]
    fn meet_among(self, among: Among, mask: u32, value: u64, argument: u32) -> u64 {
        assert!(mask >> self.lane() & 1 == 1, "lane {} is not among the lanes {mask:#010x}", self.lane());
        self.meet_64(At::Among { among, mask }, value, argument)
    }
}
