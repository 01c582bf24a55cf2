//! Kernels whose threads are independent of each other.

use thalweg_simt::atomics::{order, scope};
use thalweg_simt::kernel;

/// Threads of a block.
pub const BLOCK: u32 = 64;

kernel! {
    /// Stores the weighted sum of pixels and their left and upper neighbors, clamped at the border,
    /// as `textures` does.
    pub unsafe fn stencil(cx: impl Simt, m: u32, width: u32, height: u32, x: In<f32>, y: Out<f32>)
    require { width > 0, height > 0, x.len() == width * height, y.len() == width * height }
    grid(width.div_ceil(8), height.div_ceil(8)) block(8, 8)
    {
        let (column, row) = (cx.global_x(), cx.global_y());
        let inside = match m {
            // The check of one dimension is off by one or dropped.
            1 => column < width && row <= height,
            2 => column <= width && row < height,
            3 => column < width,
            _ => column < width && row < height,
        };
        if !inside {
            return;
        }
        // The clamp at the upper or the left border is dropped.
        let above = if m == 4 { row.wrapping_sub(1) } else { row.max(1) - 1 };
        let left = if m == 5 && row == 0 { column.wrapping_sub(1) } else { column.max(1) - 1 };
        // The pitch is that of another buffer.
        let pitch = if m == 6 { width + 1 } else { width };
        let (mine, up, back) = (row * pitch + column, above.wrapping_mul(width).wrapping_add(column), row * width + left);
        let v = x.get(cx, mine) + 0.5 * x.get(cx, up) + 0.25 * x.get(cx, back);
        match m {
            // A thread stores to its neighbor's pixel too, in its block or in the next one.
            7 => {
                y.set(cx, mine, v);
                y.set(cx, (mine + 1).min(width * height - 1), v);
            }
            // All threads store to one pixel.
            8 => y.set(cx, 0, v),
            // Blocks of one row store to the same pixels.
            9 => y.set(cx, row * width + column % 8, v),
            // The index is one too large.
            10 => y.set(cx, mine + 1, v),
            // Rows and columns are swapped, which leaves the buffer if it is not a square.
            11 => y.set(cx, column * (height + 1) + row, v),
            _ => y.set(cx, mine, v),
        }
    }
}

kernel! {
    /// Gathers means of cells by a table of offsets, as `compress` does. The table's values are
    /// checked before use.
    pub unsafe fn gather(cx: impl Simt, m: u32, n: u32, offsets: In<u32>, x: In<f32>, y: Out<f32>)
    require { y.len() == n, offsets.len() == n + 1 }
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        let t = cx.global_x();
        // The last block is not full.
        if (m == 1 && t > n) || (m != 1 && t >= n) {
            return;
        }
        // The table has `n + 1` entries.
        let start = offsets.get(cx, if m == 2 { t + 2 } else { t });
        let end = offsets.get(cx, if m == 3 { t + 2 } else { t + 1 });
        // The clamp of the table's values is dropped or too large. The last value is too large.
        let bound = match m {
            4 => u32::MAX,
            5 => 1001,
            _ => 1000,
        };
        let (mut i, end) = (start, end.min(bound));
        let mut sum = 0.0;
        while i < end {
            sum += x.get(cx, i);
            i += 1;
        }
        y.set(cx, t, sum);
    }
}

kernel! {
    /// Scales in place by vector accesses of four words, as the kernels for aligned images do.
    pub unsafe fn quads(cx: impl Simt, m: u32, n: u32, x: In<f32>, y: Out<f32>)
    require { n.is_multiple_of(4), x.len() == n + 4, y.len() == n, x.is_aligned(16), y.is_aligned(16) }
    grid(n.div_ceil(4 * BLOCK)) block(BLOCK)
    {
        let i = 4 * cx.global_x();
        if i >= n {
            return;
        }
        // The start is not a multiple of four elements, for the load or for the store.
        let from = x.as_ptr().add(if m == 1 { i as usize + 1 } else { i as usize });
        let to = y.as_ptr().add(match m {
            2 => i as usize + 2,
            // The store is a vector too far.
            3 => i as usize + 4,
            _ => i as usize,
        });
        let v = cx.load4(from).map(|v| 2.0 * v);
        match m {
            // Two vectors overlap.
            4 => {
                cx.store2_streaming(to, [v[0], v[1]]);
                cx.store2_streaming(y.as_ptr().add((i as usize + 4).min(n as usize - 2)), [v[2], v[3]]);
            }
            // The store of two words is on an odd word.
            5 => cx.store2_streaming(to.add(1), [v[0], v[1]]),
            _ => cx.store4(to, v),
        }
    }
}

kernel! {
    /// Counts elements by value, over all blocks, and keeps the largest, as the counts of a batch.
    pub unsafe fn tally(cx: impl Simt, m: u32, n: u32, x: In<u32>, counts: InOut<u32>, most: InOut<u32>)
    require { x.len() == n, counts.len() == 16, most.len() == 1 }
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        let i = cx.global_x();
        if i >= n {
            return;
        }
        let v = x.get(cx, i);
        // The bins are one too many.
        let bin = if m == 1 { v % 17 } else { v % 16 };
        if m == 2 {
            // The atomic addition is made plain.
            let old = counts.get(cx, bin);
            counts.set(cx, bin, old + 1);
        } else {
            counts.atomic(bin).add(cx, 1);
        }
        if m == 3 {
            // A plain load decides whether the atomic update is needed.
            if most.get(cx, 0) < v {
                most.atomic(0).max(cx, v);
            }
        } else if m == 4 {
            // The atomic maximum is made plain.
            let old = most.get(cx, 0);
            most.set(cx, 0, old.max(v));
        } else {
            most.atomic(0).max(cx, v);
        }
        // The last thread resets the count that others still update.
        if m == 5 && i == n - 1 {
            counts.set(cx, 0, 0);
        }
        // The result of all blocks is read in the same launch.
        if m == 6 && i == 0 {
            let all = counts.get(cx, 3);
            most.set(cx, 0, all);
        }
    }
}

kernel! {
    /// Writes the first `n` elements, for a kernel that reads them.
    pub unsafe fn prepare(cx: impl Simt, n: u32, y: Out<f32>)
    require { y.len() >= n }
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        let i = cx.global_x();
        if i < n {
            y.set(cx, i, i as f32);
        }
    }
}

kernel! {
    /// Adds to what `prepare` wrote.
    pub unsafe fn add(cx: impl Simt, m: u32, n: u32, a: f32, x: In<f32>, y: InOut<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        let i = cx.global_x();
        let last = if m == 1 { n + 1 } else { n };
        if i < last {
            // The sum of a neighbor is read while its thread writes it.
            let from = if m == 2 { (i + 1) % n } else { i };
            let v = cx.fma(a, x.get(cx, i), y.get(cx, from));
            y.set(cx, i, v);
        }
    }
}

kernel! {
    /// Each thread stores a part, and the last one to finish adds up all parts. With 0 the counter
    /// releases and acquires, and with 1 fences do.
    pub unsafe fn total(cx: impl Simt, m: u32, n: u32, parts: InOut<f32>, done: InOut<u32>, y: Out<f32>)
    require { parts.len() == n, done.len() == 1, y.len() == 1 }
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        let i = cx.global_x();
        if i >= n {
            return;
        }
        parts.set(cx, i, i as f32);
        let counter = done.atomic(0);
        let before = match m {
            1 | 4 => {
                cx.fence(order::AcqRel, scope::Device);
                counter.add(cx, 1)
            }
            // The order is too weak, or the fence before or after the counter is dropped.
            2 | 5 => counter.add(cx, 1),
            3 => counter.release().add(cx, 1),
            // The order is for the block only.
            6 => counter.acq_rel().block().add(cx, 1),
            _ => counter.acq_rel().add(cx, 1),
        };
        if m == 1 || m == 5 {
            cx.fence(order::AcqRel, scope::Device);
        }
        // The thread before the last one adds up.
        if before == if m == 7 { n - 2 } else { n - 1 } {
            let mut sum = 0.0;
            for part in 0..n {
                sum += parts.get(cx, part);
            }
            y.set(cx, 0, sum);
        }
    }
}
