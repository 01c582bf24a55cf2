//! The operations of a warp on `nvptx64`.
//!
//! They are intrinsics, because rustc has no means to say that inline assembly is convergent. LLVM
//! may move or duplicate assembly across branches, which would separate the lanes.

use super::{Gpu, shfl_bfly, shfl_down, shfl_idx, shfl_up, vote_ballot};
use crate::Cooperative;
use crate::warp::{Exchange, Shuffle, Warp};

unsafe extern "C" {
    #[link_name = "llvm.nvvm.vote.all.sync"]
    fn vote_all(mask: u32, p: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: u32, p: bool) -> bool;
    #[link_name = "llvm.nvvm.match.any.sync.i32"]
    fn match_any_32(mask: u32, v: u32) -> u32;
    #[link_name = "llvm.nvvm.match.any.sync.i64"]
    fn match_any_64(mask: u32, v: u64) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    pub(super) fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.activemask"]
    fn activemask() -> u32;
}

impl Warp for Gpu {
    #[inline(always)]
    fn lane_index(self) -> u32 {
        self.lane()
    }

    #[inline(always)]
    fn shuffle_among<T: Exchange>(self, mask: u32, width: u32, how: Shuffle, v: T, argument: u32) -> T {
        // The high byte of the clamp says which bits of the lane name the segment.
        let segment = (32 - width) << 8;
        let shuffle = |v: u32| {
            // SAFETY: All lanes of `mask` execute this: the author of a cooperative kernel promises
            // it (see `kernel!`).
            unsafe {
                match how {
                    Shuffle::Xor => shfl_bfly(mask, v, argument, segment | 31),
                    Shuffle::Up => shfl_up(mask, v, argument, segment),
                    Shuffle::Down => shfl_down(mask, v, argument, segment | 31),
                    Shuffle::Index => shfl_idx(mask, v, argument, segment | 31),
                }
            }
        };
        let wide = v.to_wide();
        let low = u64::from(shuffle(wide as u32));
        T::from_wide(if size_of::<T>() == 8 { low | u64::from(shuffle((wide >> 32) as u32)) << 32 } else { low })
    }
    #[inline(always)]
    fn ballot_among(self, mask: u32, p: bool) -> u32 {
        // SAFETY: All lanes of `mask` execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        unsafe { vote_ballot(mask, p) }
    }
    #[inline(always)]
    fn all_among(self, mask: u32, p: bool) -> bool {
        // SAFETY: All lanes of `mask` execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        unsafe { vote_all(mask, p) }
    }
    #[inline(always)]
    fn any_among(self, mask: u32, p: bool) -> bool {
        // SAFETY: All lanes of `mask` execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        unsafe { vote_any(mask, p) }
    }
    #[inline(always)]
    fn match_among<T: Exchange>(self, mask: u32, v: T) -> u32 {
        // SAFETY: All lanes of `mask` execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        unsafe {
            if size_of::<T>() == 8 { match_any_64(mask, v.to_wide()) } else { match_any_32(mask, v.to_wide() as u32) }
        }
    }
    #[inline(always)]
    fn sync_among(self, mask: u32) {
        // SAFETY: All lanes of `mask` execute this: the author of a cooperative kernel promises it
        // (see `kernel!`).
        unsafe { bar_warp_sync(mask) };
    }
    #[inline(always)]
    fn active_mask(self) -> u32 {
        // SAFETY: The instruction only says which lanes execute it.
        unsafe { activemask() }
    }
}
