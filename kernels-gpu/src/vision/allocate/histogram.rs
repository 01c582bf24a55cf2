//! Histograms in shared memory: of the patches by the high byte of q, and of the steps by ranges of
//! their keys.

use thalweg_simt::{Cooperative, SharedMemory};

use crate::parts::block::through;

/// Bins of a histogram.
pub(super) const BINS: u32 = 256;

/// For each bin a cost and a count.
#[derive(Clone, Copy)]
pub(super) struct Histogram {
    pub(super) costs: SharedMemory<u32>,
    /// The counts; they follow the costs without a gap.
    pub(super) counts: SharedMemory<u32>,
}

impl Histogram {
    /// Clears both. All threads of the block call it.
    ///
    /// # Safety
    /// `costs` and `counts` are 2 x [`BINS`] consecutive words of shared memory, which the block
    /// accesses only here until the next barrier.
    #[inline(always)]
    pub(super) unsafe fn clear_by_block(self, cx: impl Cooperative) {
        let mut i = cx.thread_idx().x;
        while i < 2 * BINS {
            // SAFETY: `i` is below 2 x BINS, the number of words that the caller promises.
            unsafe { cx.shared_set(self.costs, i, 0) };
            i += cx.block_dim().x;
        }
    }

    /// Clears both. The first warp calls it.
    ///
    /// # Safety
    /// As for [`clear_by_block`](Self::clear_by_block), of the warps other than the first.
    #[inline(always)]
    pub(super) unsafe fn clear_by_warp(self, cx: impl Cooperative) {
        for k in 0..2 * BINS / 128 {
            // SAFETY: the 32 lanes together write 128 words at a time, of the 2 x BINS that the
            // caller promises.
            unsafe { cx.shared_set4(self.costs, k * 128 + cx.lane() * 4, [0; 4]) };
        }
    }

    /// Adds a cost and a count to a bin. If `large`, the costs of a bin may pass 2^31. An addition
    /// to a bin that has passed 2^31 before is undone.
    ///
    /// # Safety
    /// Both have [`BINS`] words, `bin` is one of them, and the block accesses them only by this
    /// function until the next barrier.
    #[inline(always)]
    pub(super) unsafe fn add(self, cx: impl Cooperative, bin: u32, cost: u32, count: u32, large: bool) {
        // SAFETY: the caller promises that `bin` is below BINS; the additions are atomic.
        unsafe {
            let before = cx.shared_add(self.costs, bin, cost);
            if large && before >= 1 << 31 {
                cx.shared_add(self.costs, bin, cost.wrapping_neg());
            }
            cx.shared_add(self.counts, bin, count);
        }
    }
}

/// The first bin, from the highest down, at which the sum of the bins exceeds a limit.
pub(super) struct Highest {
    /// The bin, if there is one.
    pub(super) bin: u32,
    /// The sum of the bins above it, or of all bins if there is none.
    pub(super) above: u32,
    /// Whether there is one: whether the limit is exceeded at all.
    pub(super) exceeds: bool,
}

/// Finds the highest bin that, added to `spent` and all bins above it, exceeds `limit`. The first
/// warp calls it.
///
/// # Safety
/// `bins` has [`BINS`] words, from a multiple of 16 bytes on, which no thread writes meanwhile.
#[inline(always)]
pub(super) unsafe fn highest(cx: impl Cooperative, bins: SharedMemory<u32>, spent: u32, limit: u32) -> Highest {
    // Each lane has eight bins, the first lane the highest ones. It adds them up in a tree, so that
    // few additions wait for one another.
    let lowest = (31 - cx.lane()) * 8;
    // SAFETY: `lowest` is at most BINS - 8, and the caller promises BINS words.
    let (low, high) = unsafe { (cx.shared_get4(bins, lowest), cx.shared_get4(bins, lowest + 4)) };
    let pairs = |[a, b, c, d]: [u32; 4]| [a.saturating_add(b), c.saturating_add(d)];
    let (low_pairs, high_pairs) = (pairs(low), pairs(high));
    let fours = [low_pairs[0].saturating_add(low_pairs[1]), high_pairs[0].saturating_add(high_pairs[1])];
    let before = cx.shuffle_up(through(cx, fours[0].saturating_add(fours[1])), 1);
    let mut above = spent.saturating_add(if cx.lane() == 0 { 0 } else { before });
    let all = above.saturating_add(fours[0]).saturating_add(fours[1]);
    let over = cx.ballot(all > limit);

    // Down the tree: into the higher half if it exceeds the limit, else into the lower one.
    let mut bin = lowest;
    let mut descend = |half: u32, width: u32| {
        let within = above.saturating_add(half);
        let higher = within > limit;
        if higher {
            bin += width;
        } else {
            above = within;
        }
        higher
    };
    let (pairs, four) = if descend(fours[1], 4) { (high_pairs, high) } else { (low_pairs, low) };
    let two = if descend(pairs[1], 2) { [four[2], four[3]] } else { [four[0], four[1]] };
    descend(two[1], 1);
    let above = if over == 0 { all } else { above };
    let lane = over.trailing_zeros().min(31);
    Highest { bin: cx.shuffle(bin, lane), above: cx.shuffle(above, lane), exceeds: over != 0 }
}
