//! A warp's patches, and the list of those that can still get tokens.

use thalweg_simt::{Cooperative, In, InOut, SharedMemory, Simt};

use crate::parts::number::nearest;
use crate::vision::layout::Span;

/// Patches that a warp reads at once, and the most that its list can hold.
pub(super) const TILE: u32 = 256;

/// Bytes of a warp's list.
pub(super) const LIST: u32 = TILE * 4;

/// A warp's patches, which are neighbors, as items: those on its list, or all of them if the list
/// is too short.
#[derive(Clone, Copy)]
pub(super) struct Items {
    relevance: In<f32>,
    sides: InOut<i32>,
    /// The first patch of the warp.
    pub(super) start: u32,
    /// One past the last.
    pub(super) end: u32,
    /// The list. A word has q, later a side, in its high half, and the distance from `start` in its
    /// low half.
    list: SharedMemory<u32>,
    listed: bool,
    /// Number of items.
    pub(super) count: u32,
}

impl Items {
    /// Divides the patches of an image among the warps of the block. There are no items before
    /// [`keep`](Self::keep).
    ///
    /// # Safety
    /// `relevance` and `sides` have the patches of `span`. `lists` has [`TILE`] words of shared
    /// memory for each warp, which are accessed by these items only. All threads of the block call
    /// it, and no other thread of the grid accesses the `sides` of `span`. These are facts for the
    /// methods below, too.
    #[inline(always)]
    pub(super) unsafe fn new<C: Cooperative>(
        cx: C,
        span: Span,
        relevance: In<f32>,
        sides: InOut<i32>,
        lists: u32,
    ) -> Self {
        let tiles = cx.block_dim().x / 32;
        // In the common case nothing is divided before the first load.
        let run = if span.len() <= tiles * TILE { TILE } else { span.len().div_ceil(tiles * TILE) * TILE };
        let start = (span.start + cx.warp() * run).min(span.end);
        // SAFETY: the caller promises a list for each warp.
        let list = unsafe { cx.shared::<u32>(lists + cx.warp() * LIST) };
        Self { relevance, sides, start, end: (start + run).min(span.end), list, listed: false, count: 0 }
    }

    /// Loads the relevance of 8 patches for each lane, from patch `at` on. Past the last patch, it
    /// loads the last one again.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline(always)]
    pub(super) unsafe fn load(self, cx: impl Cooperative, at: u32) -> [f32; 8] {
        if self.start == self.end {
            return [0.0; 8];
        }
        // SAFETY: the index is at most `end - 1`, a patch of the span, which `relevance` has by the
        // contract of `new`.
        core::array::from_fn(|k| unsafe {
            self.relevance.get(cx, (at + cx.lane() + k as u32 * 32).min(self.end - 1) as usize)
        })
    }

    /// Makes q of what [`load`](Self::load) loaded; 0 past the last patch.
    #[inline(always)]
    fn quantized(self, cx: impl Cooperative, at: u32, r: [f32; 8]) -> [u32; 8] {
        let at = at + cx.lane();
        core::array::from_fn(|k| {
            let q = quantize(cx, r[k]);
            if at + k as u32 * 32 < self.end { q } else { 0 }
        })
    }

    /// Makes q of what [`load`](Self::load) loaded, and sets the sides of these patches to 0.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline(always)]
    pub(super) unsafe fn begin(self, cx: impl Cooperative, at: u32, r: [f32; 8]) -> [u32; 8] {
        for k in 0..8 {
            let i = at + cx.lane() + k * 32;
            if i < self.end {
                // SAFETY: `i` is a patch of the span, which `sides` has by the contract of `new`,
                // and of this lane alone.
                unsafe { self.sides.set(cx, i as usize, 0) };
            }
        }
        self.quantized(cx, at, r)
    }

    /// Lists the patches whose q is `least` or more. `q` is that of the first tile, which is used
    /// if there is no other.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline(always)]
    pub(super) unsafe fn keep(&mut self, cx: impl Cooperative, least: u32, mut q: [u32; 8]) {
        let (lane, several) = (cx.lane(), self.end - self.start > TILE);
        let mut kept = 0;
        let mut at = self.start;
        while at < self.end {
            if several {
                // SAFETY: the contract of `load` is that of this function.
                q = self.quantized(cx, at, unsafe { self.load(cx, at) });
            }
            for (k, q) in q.into_iter().enumerate() {
                let keep = q >= least.max(1);
                let those = cx.ballot(keep);
                if those != 0 {
                    let slot = kept + (those & ((1 << lane) - 1)).count_ones();
                    if keep && slot < TILE {
                        let word = q << 16 | (at - self.start + k as u32 * 32 + lane) & 0xffff;
                        // SAFETY: `slot` is below TILE, the length of the list, and no other lane
                        // has it.
                        unsafe { cx.shared_set(self.list, slot, word) };
                    }
                    kept += those.count_ones();
                }
            }
            at += TILE;
        }
        cx.warp_barrier();
        self.listed = kept <= TILE && self.end - self.start <= 1 << 16;
        self.count = if self.listed { kept } else { self.end - self.start };
    }

    /// The q of an item.
    ///
    /// # Safety
    /// As for [`new`](Self::new); [`keep`](Self::keep) was called, `slot` is below `count`, and
    /// nothing was [`put`](Self::put) yet.
    #[inline(always)]
    pub(super) unsafe fn q(self, cx: impl Cooperative, slot: u32) -> u32 {
        // SAFETY: `slot` is below `count`, as the caller promises: the length of the list, or the
        // number of the warp's patches, which `relevance` has by the contract of `new`.
        unsafe {
            if self.listed {
                cx.shared_get(self.list, slot) >> 16
            } else {
                quantize(cx, self.relevance.get(cx, (self.start + slot) as usize))
            }
        }
    }

    /// Leaves a number below 2^16 with an item, in place of its q.
    ///
    /// # Safety
    /// As for [`new`](Self::new); [`keep`](Self::keep) was called, `slot` is below `count`, and
    /// only this lane accesses the item.
    #[inline(always)]
    pub(super) unsafe fn put(self, cx: impl Cooperative, slot: u32, v: u32) {
        // SAFETY: `slot` is below `count`, as the caller promises: the length of the list, or the
        // number of the warp's patches, which `sides` has by the contract of `new`. The caller also
        // promises that no other lane accesses the item.
        unsafe {
            if self.listed {
                let word = cx.shared_get(self.list, slot);
                cx.shared_set(self.list, slot, v << 16 | word & 0xffff);
            } else {
                self.sides.set(cx, (self.start + slot) as usize, v as i32);
            }
        }
    }

    /// The number that was [`put`](Self::put), and the index of the patch.
    ///
    /// # Safety
    /// As for [`put`](Self::put).
    #[inline(always)]
    pub(super) unsafe fn got(self, cx: impl Cooperative, slot: u32) -> (u32, u32) {
        // SAFETY: as in `put`.
        unsafe {
            if self.listed {
                let word = cx.shared_get(self.list, slot);
                (word >> 16, self.start + (word & 0xffff))
            } else {
                let i = self.start + slot;
                (self.sides.get(cx, i as usize) as u32, i)
            }
        }
    }
}

/// Computes floor(65535 r + 1/2) of exactly the value of `r`, clamped to 1..=65535.
#[inline(always)]
fn quantize(cx: impl Simt, r: f32) -> u32 {
    // The product is halfway between two integers only for r = 1/2. `nearest` rounds it to the even
    // one, 32768, which is the upper one.
    #[expect(clippy::manual_clamp, reason = "NaN becomes 0")]
    let r = r.max(0.0).min(1.0);
    nearest(cx, r, 65535.0).max(1)
}
