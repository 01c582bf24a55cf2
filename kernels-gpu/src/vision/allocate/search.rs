//! The search for t*, the least key that a step must have.

use thalweg_simt::{Cooperative, SharedMemory};

use super::histogram::{Histogram, highest};
use super::items::{Items, TILE};
use super::steps::Steps;

/// The state with which the threads of a block search.
#[derive(Clone, Copy)]
pub(super) struct Search {
    pub(super) steps: Steps,
    pub(super) histogram: Histogram,
    /// Four words, on 16 bytes, in which the first warp tells the others what it found.
    pub(super) told: SharedMemory<u32>,
    pub(super) budget: u32,
}

/// The result of the search.
#[derive(Clone, Copy)]
pub(super) struct Threshold {
    /// t* - 1, or less if `single`: the steps with keys above it cost more than the budget
    /// together, or it is 0.
    pub(super) bursts: u32,
    /// t*: the steps with this key and larger ones fit the budget.
    pub(super) fits: u32,
    /// The cost of the taken steps.
    pub(super) spent: u32,
    /// Whether only one step has a key between the two.
    pub(super) single: bool,
}

impl Search {
    /// Sets the sides of all patches to 0 and finds Q. `ahead` is the relevance of the warp's first
    /// patches, as [`Items::load`] loaded it; `most` is the number of patches that can be selected.
    /// Returns Q, and q of the last patches that it went through, which are the first ones if the
    /// warp has no others.
    ///
    /// # Safety
    /// All threads of the block call it, after the first warp stored the steps. The histogram is
    /// empty, and only used by this search. `items` is as [`Items::new`] says.
    #[inline(always)]
    pub(super) unsafe fn least(
        self,
        cx: impl Cooperative,
        items: Items,
        ahead: [f32; 8],
        most: u32,
    ) -> (u32, [u32; 8]) {
        let counts = self.histogram.counts;
        // It is enough to count fewer patches than there are: Q is only smaller then. Lanes past
        // the last patch have q = 0 and count in the lowest bin, at which Q is 0 anyway.
        let few = most < cx.block_dim().x / 2;
        // SAFETY: The caller promises what `Items` and the histogram need. A bin is the high byte
        // of a number below 2^16, so it is below 256.
        unsafe {
            let mut q = items.begin(cx, items.start, ahead);
            let mut largest = 0;
            let mut at = items.start;
            loop {
                for q in q {
                    largest = largest.max(q);
                }
                if !few {
                    for q in q {
                        cx.shared_add(counts, q >> 8, 1);
                    }
                }
                at += TILE;
                if at >= items.end {
                    break;
                }
                q = items.begin(cx, at, items.load(cx, at));
            }
            if few {
                cx.shared_add(counts, largest >> 8, 1);
            }
            cx.barrier();
            if cx.warp() == 0 {
                let found = highest(cx, counts, 0, most);
                // Other lanes may still load what this one clears.
                cx.warp_barrier();
                self.histogram.clear_by_warp(cx);
                if cx.lane() == 0 {
                    cx.shared_set(self.told, 0, if found.exceeds { found.bin << 8 } else { 0 });
                }
            }
            cx.barrier();
            (cx.shared_get(self.told, 0), q)
        }
    }

    /// Finds t*. `least` is Q and `first` the gain of the first step; `large` says whether the
    /// costs of a bin may pass 2^31.
    ///
    /// # Safety
    /// All threads of the block call it, after [`least`](Self::least) and [`Items::keep`].
    #[inline(always)]
    pub(super) unsafe fn threshold(
        self,
        cx: impl Cooperative,
        items: Items,
        least: u32,
        first: u32,
        large: bool,
    ) -> Threshold {
        let Self { histogram: Histogram { costs, counts }, told, budget, .. } = self;
        // SAFETY: The histogram and `told` are as the caller promised to `least`. The loop runs
        // while keys are left, and `shift` makes their number at most 256 when it divides them into
        // bins.
        unsafe {
            // No key is as large as the first `fits`.
            let (mut bursts, mut fits, mut spent, mut single) = (least * first, 65535 * first + 1, 0, 0);
            while fits - bursts > 1 && single == 0 {
                let shift = (32 - (fits - bursts - 2).leading_zeros()).saturating_sub(8);
                self.count(cx, items, first, [bursts, fits], shift, large);
                cx.barrier();
                if cx.warp() == 0 {
                    let found = highest(cx, costs, spent, budget);
                    // The count alone could be 2^32 + 1.
                    let one = found.exceeds
                        && cx.shared_get(counts, found.bin) == 1
                        && cx.shared_get(costs, found.bin) <= 255 * 255;
                    let from = bursts + 1 + (found.bin << shift);
                    let next = if found.exceeds {
                        [from, from + (fits - from).min(1 << shift), found.above, u32::from(one)]
                    } else {
                        [bursts, bursts + 1, found.above, 0]
                    };
                    cx.warp_barrier();
                    self.histogram.clear_by_warp(cx);
                    if cx.lane() == 0 {
                        cx.shared_set4(told, 0, next);
                    }
                }
                cx.barrier();
                [bursts, fits, spent, single] = cx.shared_get4(told, 0);
            }
            Threshold { bursts, fits, spent, single: single != 0 }
        }
    }

    /// Adds the steps with keys above `bursts` and below `fits` to the histogram; a bin is
    /// 2^`shift` keys.
    ///
    /// # Safety
    /// As for [`threshold`](Self::threshold); `(fits - bursts - 2) >> shift` is below 256.
    #[inline(always)]
    unsafe fn count(
        self,
        cx: impl Cooperative,
        items: Items,
        first: u32,
        [bursts, fits]: [u32; 2],
        shift: u32,
        large: bool,
    ) {
        let Self { steps, histogram, .. } = self;
        // SAFETY: `slot` is below the number of items and `k` below that of steps. A bin is at most
        // (fits - 1 - bursts - 1) >> shift, which the caller promises to be below 256.
        unsafe {
            // Steps of one bin are added together. A cost stays below 2^20 + 255^2, so what 1024
            // threads add to a bin at once is below 2^31, and a bin that has passed 2^31 never
            // wraps.
            let (mut bin, mut cost, mut count) = (0, 0, 0);
            let mut slot = cx.lane();
            while slot < items.count {
                let q = items.q(cx, slot);
                if q * first > bursts {
                    let mut k = if q * first < fits { 0 } else { steps.taken(cx, q, fits) };
                    while k < steps.count {
                        let key = q * steps.gain(cx, k);
                        if key <= bursts {
                            break;
                        }
                        let its = (key - bursts - 1) >> shift;
                        if its != bin || cost > 1 << 20 {
                            if count > 0 {
                                histogram.add(cx, bin, cost, count, large);
                            }
                            (bin, cost, count) = (its, 0, 0);
                        }
                        cost += steps.cost(k);
                        count += 1;
                        k += 1;
                    }
                }
                slot += 32;
            }
            if count > 0 {
                histogram.add(cx, bin, cost, count, large);
            }
        }
    }
}
