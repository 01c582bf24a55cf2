//! Kernels whose threads work together.

use thalweg_simt::kernel;

/// Threads of a block.
pub const BLOCK: u32 = 128;
/// Warps of a block.
const WARPS: u32 = BLOCK / 32;
/// Bins of a histogram.
pub const BINS: u32 = 64;

kernel! {
    /// Sums each row by one block, as `features` does.
    pub unsafe fn sum(cx: impl Cooperative, m: u32, rows: u32, n: u32, x: In<f32>, y: Out<f32>)
    require { x.len() == rows * n, y.len() == rows }
    grid(rows) block(BLOCK) shared(WARPS * 4)
    {
        let (row, rank) = (cx.block_idx().x, cx.rank());
        let parts = cx.shared::<f32>(0);
        let mut sum = 0.0;
        let mut i = rank;
        // The loop goes one element or one row too far.
        let end = match m {
            1 if row == rows - 1 => n + 1,
            2 => 2 * n,
            _ => n,
        };
        while i < end {
            sum += x.get(cx, row * n + i);
            i += BLOCK;
        }
        if m == 3 {
            // Half a warp sums.
            if cx.lane() < 16 {
                sum = cx.warp_sum(sum);
            }
        } else {
            sum = cx.warp_sum(sum);
        }
        if cx.lane() == 0 {
            match m {
                // The index is one too large, or that of the lane.
                4 => cx.shared_set(parts, cx.warp() + 1, sum),
                5 => cx.shared_set(parts, cx.lane(), sum),
                // The last warp's part is not stored.
                6 => {
                    if cx.warp() < WARPS - 1 {
                        cx.shared_set(parts, cx.warp(), sum);
                    }
                }
                _ => cx.shared_set(parts, cx.warp(), sum),
            }
        }
        match m {
            // The barrier is removed, or made one of the warp, or only some threads reach it.
            7 => {}
            8 => cx.warp_barrier(),
            9 => {
                if cx.lane() == 0 {
                    cx.barrier();
                }
            }
            10 => {
                if cx.warp() == 0 {
                    cx.barrier();
                }
            }
            // The threads wait at two barriers.
            14 => {
                if cx.warp() == 0 {
                    cx.barrier();
                    _ = cx.lane();
                } else {
                    cx.barrier();
                }
            }
            _ => cx.barrier(),
        }
        // Every thread stores the result, or the blocks store it to one element.
        if cx.rank() == 0 || m == 11 {
            let warps = if m == 12 { WARPS + 1 } else { WARPS };
            let mut total = 0.0;
            for warp in 0..warps {
                total += cx.shared_get(parts, warp);
            }
            y.set(cx, if m == 13 { 0 } else { row }, total);
        }
    }
}

kernel! {
    /// Counts the values of each row in shared memory, as `entropy` does.
    pub unsafe fn histogram(cx: impl Cooperative, m: u32, rows: u32, n: u32, x: In<u32>, y: Out<u32>)
    require { x.len() == rows * n, y.len() == rows * BINS }
    grid(rows) block(BLOCK) shared(BINS * 4)
    {
        let (row, rank) = (cx.block_idx().x, cx.rank());
        let bins = cx.shared::<u32>(0);
        // The initialization is dropped, or leaves out a bin, or goes past the end.
        let zeroed = match m {
            1 => 0,
            2 => BINS - 1,
            3 => BINS + 1,
            // One block relies on what another one left.
            13 if row == 1 => 0,
            _ => BINS,
        };
        if rank < zeroed {
            cx.shared_set(bins, rank, 0);
        }
        // Threads without an element return before the barrier.
        if m == 4 && rank >= n % BLOCK {
            return;
        }
        if m != 5 {
            cx.barrier();
        }
        let mut i = rank;
        while i < n {
            let v = x.get(cx, row * n + i);
            let bin = if m == 6 { v % BINS + 1 } else { v % BINS };
            if m == 7 {
                // The atomic addition is made plain.
                let old = cx.shared_get(bins, bin);
                cx.shared_set(bins, bin, old + 1);
            } else {
                cx.shared_add(bins, bin, 1);
            }
            // A barrier in a loop that not all threads leave at once.
            if m == 8 {
                cx.barrier();
            }
            i += BLOCK;
        }
        if m != 9 {
            cx.barrier();
        }
        if cx.rank() < BINS {
            let count = cx.shared_get(bins, cx.rank());
            let at = match m {
                // The row's offset is dropped, or too large by one element.
                10 => cx.rank(),
                11 => row * BINS + cx.rank() + 1,
                _ => row * BINS + cx.rank(),
            };
            y.set(cx, at, count);
        }
        // The bins are cleared for the next row while other warps still read them.
        if m == 12 {
            cx.shared_set(bins, (cx.rank() + 32) % BINS, 0);
        }
    }
}

kernel! {
    /// Inclusive prefix sums of each row, in log2 steps with two barriers each, as `allocate` does.
    pub unsafe fn scan(cx: impl Cooperative, m: u32, x: In<u32>, y: Out<u32>)
    require { x.len() == 2 * BLOCK, y.len() == 2 * BLOCK }
    grid(2) block(BLOCK) shared(BLOCK * 4)
    {
        let i = cx.global_x();
        let sums = cx.shared::<u32>(0);
        cx.shared_set(sums, cx.rank(), x.get(cx, i));
        if m != 1 {
            cx.barrier();
        }
        let mut step = 1;
        while step < BLOCK {
            // The check is off by one, so that the index is below 0.
            let adds = if m == 2 { cx.rank() + 1 >= step } else { cx.rank() >= step };
            let before = if adds { cx.shared_get(sums, cx.rank().wrapping_sub(step)) } else { 0 };
            match m {
                3 => {}
                4 => cx.warp_barrier(),
                _ => cx.barrier(),
            }
            let own = cx.shared_get(sums, cx.rank());
            cx.shared_set(sums, cx.rank(), own + before);
            match m {
                5 => {}
                // Only the threads that added wait.
                6 => {
                    if cx.rank() >= step {
                        cx.barrier();
                    }
                }
                _ => cx.barrier(),
            }
            step *= 2;
        }
        // The last thread's sum is read from the place behind it.
        let from = if m == 7 { cx.rank() + 1 } else { cx.rank() };
        y.set(cx, i, cx.shared_get(sums, from));
    }
}

kernel! {
    /// Packs the elements that are not 0, in order, as the packing of selected patches does. One
    /// block. The rest of `y` becomes 0.
    pub unsafe fn pack(cx: impl Cooperative, m: u32, capacity: u32, x: In<u32>, y: Out<u32>)
    require { x.len() == BLOCK, y.len() == capacity }
    grid(1) block(BLOCK) shared((WARPS + 1) * 4)
    {
        let totals = cx.shared::<u32>(0);
        let v = x.get(cx, cx.rank());
        let keep = v != 0;
        let mut votes = 0;
        if m == 1 {
            // Only the threads with an element vote.
            if keep {
                votes = cx.ballot(true);
            }
        } else {
            votes = cx.ballot(keep);
        }
        if cx.lane() == 0 {
            let count = votes.count_ones();
            cx.shared_set(totals, if m == 2 { cx.warp() + 2 } else { cx.warp() }, count);
        }
        if m != 3 {
            cx.barrier();
        }
        let mut before = 0;
        for warp in 0..cx.warp() {
            before += cx.shared_get(totals, warp);
        }
        // Lane 0 is not counted, so the element of another lane goes to the same place.
        let lower = if m == 4 { ((1 << cx.lane()) - 1) & !1 } else { (1 << cx.lane()) - 1 };
        let at = match m {
            // The other warps' counts are dropped.
            5 => (votes & lower).count_ones(),
            _ => before + (votes & lower).count_ones(),
        };
        // The capacity is not checked, or off by one.
        let fits = match m {
            6 => true,
            7 => at <= capacity,
            _ => at < capacity,
        };
        if keep && fits {
            y.set(cx, at, v);
        }
        cx.barrier();
        if cx.rank() == 0 {
            let mut all = 0;
            for warp in 0..WARPS {
                all += cx.shared_get(totals, warp);
            }
            cx.shared_set(totals, WARPS, all);
        }
        if m != 8 {
            cx.barrier();
        }
        let all = cx.shared_get(totals, WARPS);
        let mut i = all + cx.rank();
        while i < capacity {
            y.set(cx, i, 0);
            // The step is half of what it should be, so two threads store to one element.
            i += if m == 9 { BLOCK / 2 } else { BLOCK };
        }
    }
}

kernel! {
    /// Transposes tiles of 16 x 16 through shared memory, two tiles a block.
    pub unsafe fn transpose(cx: impl Cooperative, m: u32, x: In<f32>, y: Out<f32>)
    require { x.len() == 1024, y.len() == 1024 }
    grid(2) block(16, 16) shared(16 * 17 * 4)
    {
        let (column, row) = (cx.thread_idx().x, cx.thread_idx().y);
        // The pitch of the stores is too large, and the last row leaves the tile.
        let pitch = if m == 1 { 18 } else { 17 };
        let tile = cx.shared::<f32>(0);
        for half in 0..2 {
            let top = 512 * cx.block_idx().x + 256 * half;
            cx.shared_set(tile, row * pitch + column, x.get(cx, top + row * 16 + column));
            match m {
                2 => {}
                3 => cx.warp_barrier(),
                // Only the first rows wait.
                4 => {
                    if row < 8 {
                        cx.barrier();
                    }
                }
                _ => cx.barrier(),
            }
            // The transposed read takes an element of the pad, which nobody wrote.
            let (r, c) = if m == 5 { (column, row + 1) } else { (column, row) };
            let v = cx.shared_get(tile, r * 17 + c);
            let to = match m {
                // The second block writes where the first one does, or the second half does.
                6 => half * 256 + row * 16 + column,
                7 => top + row * 16 + column + 16 * half,
                _ => top + row * 16 + column,
            };
            y.set(cx, to, v);
            // The barrier before the tile's next use is dropped.
            if m != 8 {
                cx.barrier();
            }
        }
    }
}

kernel! {
    /// Each warp passes values through shared memory to its other lanes, as the search of
    /// `allocate` does in its first warp.
    pub unsafe fn pass(cx: impl Cooperative, m: u32, x: In<u32>, y: Out<u32>)
    require { x.len() == BLOCK, y.len() == BLOCK }
    grid(1) block(BLOCK) shared(BLOCK * 4)
    {
        let words = cx.shared::<u32>(0);
        cx.shared_set(words, cx.rank(), x.get(cx, cx.rank()));
        match m {
            // The barrier of the warp is removed, or a shuffle stands for it, or half the lanes
            // wait.
            1 => {}
            2 => _ = cx.shuffle_xor(0_u32, 1),
            3 => {
                if cx.lane() < 16 {
                    cx.warp_barrier();
                }
            }
            _ => cx.warp_barrier(),
        }
        let other = match m {
            // The partner is in another warp.
            4 => (cx.rank() + 32) % BLOCK,
            // The last thread's partner is past the end.
            5 if cx.rank() == BLOCK - 1 => BLOCK,
            _ => cx.rank() ^ 5,
        };
        let v = cx.shared_get(words, other);
        match m {
            // The bins are cleared after a shuffle only, or at once.
            6 => _ = cx.warp_sum_u32(v),
            7 => {}
            _ => cx.warp_barrier(),
        }
        cx.shared_set(words, cx.rank(), 0);
        let up = if m == 8 {
            // Lane 0 leaves before the shuffle.
            if cx.lane() == 0 {
                return;
            }
            cx.shuffle_up(v, 1)
        } else {
            cx.shuffle_up(v, 1)
        };
        y.set(cx, cx.rank(), v + up);
    }
}

kernel! {
    /// Two windows of shared memory: words, and pairs of four words behind them.
    pub unsafe fn windows(cx: impl Cooperative, m: u32, x: In<u32>, y: Out<u32>)
    require { x.len() == BLOCK, y.len() == BLOCK }
    // The shared memory is too small for the second window.
    grid(1) block(BLOCK) shared(BLOCK * 8 - 4 * u128::from(m == 1))
    {
        let words = cx.shared::<u32>(0);
        // The second window starts inside the first one.
        let behind = cx.shared::<u32>(if m == 2 { BLOCK * 4 - 64 } else { BLOCK * 4 });
        cx.shared_set(words, cx.rank(), x.get(cx, cx.rank()));
        if cx.rank() < BLOCK / 4 {
            // The vector is not aligned, or one too far.
            let at = match m {
                3 => 4 * cx.rank() + 1,
                4 => 4 * cx.rank() + 4,
                _ => 4 * cx.rank(),
            };
            cx.shared_set4(behind, at, [cx.rank(); 4]);
        }
        cx.barrier();
        let mut v = cx.shared_get(words, (cx.rank() + 1) % BLOCK) + cx.shared_get(behind, cx.rank());
        if m == 7 {
            cx.barrier();
            if cx.warp() == 1 {
                cx.shared_set(words, cx.rank(), 1);
            }
            // Each warp waits for itself only.
            cx.warp_barrier();
            if cx.warp() == 0 {
                v += cx.shared_get(words, cx.rank() + 32);
            }
        }
        let bytes = cx.shared::<u8>(0);
        // A byte of a word, or a vector, is stored while other threads still read there.
        if m == 5 {
            cx.shared_set(bytes, 4 * cx.rank() + 1, 7);
        }
        if m == 6 {
            cx.shared_set4(behind, 4 * (cx.rank() / 4), [v; 4]);
        }
        y.set(cx, cx.rank(), v);
    }
}
