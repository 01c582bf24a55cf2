//! Kernels without `unsafe`. Most mistakes of the other kernels do not compile here
//! (`tests/ui/safe_*`), so these have what is left: coordinates and extents that are wrong, clauses
//! that do not fit one another, and memory that nobody wrote.

use thalweg_simt::{hint, kernel};

/// Bins of a histogram.
pub const BINS: u32 = 64;

kernel! {
    /// Gathers sums of cells by a table of offsets, as `compress` does.
    pub fn pick(
        t: impl Simt, m: u32, n: u32, len: u32,
        // The table has an entry more than the launch gives.
        offsets: In<u32>[entries = n + 1 + u128::from(m == 6)], x: In<f32>[len], y: Out<f32>[n] by [x],
    )
    // The grid is a block too small.
    grid((n - 64 * u128::from(m == 7)).div_ceil(64)) block(64)
    {
        let i = t.global_x();
        if i >= n {
            return;
        }
        // The start or the end of a cell is that of the next one.
        let start = offsets.get(t, [if m == 1 { i + 2 } else { i }]);
        let end = offsets.get(t, [if m == 2 { i + 2 } else { i + 1 }]);
        // The clamp of the table's values is dropped.
        let end = if m == 3 { end } else { end.min(len) };
        let mut sum = 0.0;
        for at in start..end {
            sum += x.get(t, [at]);
        }
        match m {
            // The element of the next thread, or of the first one.
            4 => y.set(t, [i + 1], sum),
            5 => y.set(t, [0], sum),
            _ => {
                if let Some(y) = y.cell(t) {
                    y.set(sum);
                }
            }
        }
    }
}

kernel! {
    /// Sums each patch of 8 x 8 of three planes, as `features` does.
    pub fn patches(
        b: impl Cooperative, m: u32, height: u32, width: u32, planes: In<f32>[3, height, width],
        sums: Out<f32>[across = width.div_ceil(8), down = height.div_ceil(8), 3] by [block(x), block(y), all],
    )
    // The requirement is dropped.
    require { m == 6 || (height.is_multiple_of(8) && width.is_multiple_of(8)) }
    // The block is half a warp too small, or has more threads than its bounds.
    grid(across, down) block(64 - 16 * u128::from(m == 8) + 32 * u128::from(m == 9)) bounds(64)
    // The shared memory is a word too small.
    shared(2 * 4 - 4 * u128::from(m == 4))
    {
        let (x, y) = (b.idx().x, b.idx().y);
        // The area starts a row too low.
        let area = planes.area([8 * y + u32::from(m == 1), 8 * x], [8, 8]);
        let warps = b.shared::<f32>(2);
        let values = b.each((), move |t, ()| {
            let mut values = [0.0; 3];
            for spot in area.every(t, t.rank(), t.threads()) {
                for plane in 0..3 {
                    // The plane is that after the next one's.
                    values[plane] += spot.get([plane as u32 + u32::from(m == 2)]);
                }
            }
            values
        });
        let mut warps = warps;
        for plane in 0..3 {
            let value = b.each(&values, move |t, values| values.get(t)[plane as usize]);
            let sum = b.warp_sum(&value);
            let filled = b.publish_warps(warps, &sum);
            let read = b.sync(filled.read());
            b.each(&read, move |t, read| {
                if let Some(column) = sums.column(t) {
                    // The second warp's sum is read from the place behind it, or the plane is one
                    // too far.
                    let sum = read.get(t, 0) + read.get(t, if m == 3 { 2 } else { 1 });
                    column.cell::<2>(if m == 5 { plane + 1 } else { plane }).set(sum);
                }
            });
            warps = b.sync(read.renew());
        }
    }
}

kernel! {
    /// Counts the values of each row in shared memory, and those of all rows, as `entropy` does.
    pub fn counts(
        b: impl Cooperative, m: u32, rows: u32, n: u32, x: In<u32>[rows, n],
        part: Out<u32>[rows, 64] by [block, rank], total: Atomic<u32>[64],
    )
    grid(rows) block(128) shared(BINS * 4)
    {
        let row = b.idx().x;
        // A window of more bins than there is shared memory.
        let zeroed = b.shared::<u32>(if m == 7 { BINS + 1 } else { BINS });
        let zeroed = b.fill(zeroed, (), |_, (), _| 0);
        let counting = b.sync(zeroed.add());
        b.each(&counting, move |t, counting| {
            let mut i = t.rank();
            // The loop goes one element too far.
            while i < if m == 1 { n + 1 } else { n } {
                let v = x.get(t, [row, i]);
                // The value is taken for the bin.
                counting.add(t, if m == 2 { v } else { v % BINS }, 1);
                i += t.threads();
            }
        });
        let counted = b.sync(counting.read());
        b.each(&counted, move |t, counted| {
            for mine in part.mine(t) {
                let [_, bin] = mine.at();
                // The bin is that of the last thread of the block, or one too far.
                let count = counted.get(t, if m == 3 { 127 - bin } else { bin });
                total.add(t, [if m == 4 { bin + 1 } else { bin }], count);
                // The row is that of the first block.
                if m == 5 {
                    part.set(t, [0, bin], count);
                } else {
                    mine.set(count);
                }
            }
        });
    }
}

kernel! {
    /// Takes an image apart, four pixels at a time, as `textures` does.
    pub fn apart(
        t: impl Simt, m: u32, height: u32, width: u32, rgb: In<[[u8; 4]; 3]>[height, quads = width / 4],
        planes: Out<[f32; 4]>[3, height, quads] by [all, y, x],
    )
    grid(quads.div_ceil(8), height.div_ceil(8)) block(8, 8)
    {
        planes.for_each_column(t, |column| {
            let [_, y, x] = column.at();
            // The row below, or the pixels to the right, without a clamp.
            let [a, b, c] = rgb.get(t, [y + u32::from(m == 1), x + u32::from(m == 2)]);
            let pixels = [[a[0], a[1], a[2]], [a[3], b[0], b[1]], [b[2], b[3], c[0]], [c[1], c[2], c[3]]];
            for channel in 0..3 {
                let values = pixels.map(|pixel| f32::from(pixel[channel as usize]));
                match m {
                    // A plane too far, the row of another thread, or that of the next block.
                    3 => column.cell::<0>(channel + 1).store(values, hint::Streaming),
                    4 => planes.set(t, [channel, y ^ 1, x], values),
                    5 => planes.set(t, [channel, y + 8, x], values),
                    _ => column.cell::<0>(channel).store(values, hint::Streaming),
                }
            }
        });
    }
}

kernel! {
    /// Transposes a matrix, by tiles of 16 x 16.
    pub fn turn(b: impl Cooperative, m: u32, h: u32, w: u32, x: In<f32>[h, w], y: Out<f32>[w, h] by [y, x])
    // The grid is that of the matrix and not that of its transpose.
    grid((if m == 5 { w } else { h }).div_ceil(16), (if m == 5 { h } else { w }).div_ceil(16)) block(16, 16)
    // The tile is a row short.
    shared(16 * 16 * 4 - 64 * u128::from(m == 4))
    {
        let (top, left) = (b.idx().x * 16, b.idx().y * 16);
        let tile = b.shared::<f32>(16 * 16);
        let filled = b.fill(tile, (), move |t, (), i| {
            let at = [top + i / 16, left + i % 16];
            // The check of the border is dropped.
            if m == 1 { x.get(t, at) } else { x.try_get(t, at).unwrap_or(0.0) }
        });
        let tile = b.sync(filled.read());
        b.each(&tile, move |t, tile| {
            let (row, column) = (t.thread_idx().x, t.thread_idx().y);
            // The pitch of the load is too large.
            let v = tile.get(t, row * if m == 2 { 17 } else { 16 } + column);
            let at = [left + column, top + row];
            if at[0] < w && at[1] < h {
                // The coordinates are those of the matrix and not of its transpose.
                y.set(t, if m == 3 { [at[1], at[0]] } else { at }, v);
            }
        });
    }
}

kernel! {
    /// Computes the product of two matrices, by tiles of 16 x 16.
    pub fn tiles(
        b: impl Cooperative, mistake: u32, m: u32, n: u32, k: u32, x: In<f32>[m, k],
        // The right matrix has as many rows as the left one.
        y: In<f32>[inner = if mistake == 5 { m } else { k }, n], z: InOut<f32>[m, n] by [y, x],
    )
    grid(n.div_ceil(16), m.div_ceil(16)) block(16, 16) shared(2 * 256 * 4)
    {
        let (top, left) = (b.idx().y * 16, b.idx().x * 16);
        let sums = b.each((), |_, ()| 0f32);
        let (mut a, mut c) = (b.shared::<f32>(256), b.shared::<f32>(256));
        let mut at = 0;
        while at < k {
            // The last tile of the left matrix is loaded without a check.
            let fa = b.fill(a, (), move |t, (), i| {
                let place = [top + i / 16, at + i % 16];
                if mistake == 1 { x.get(t, place) } else { x.try_get(t, place).unwrap_or(0.0) }
            });
            let fc = b.fill(c, (), move |t, (), i| y.try_get(t, [at + i / 16, left + i % 16]).unwrap_or(0.0));
            let (ra, rc) = b.sync((fa.read(), fc.read()));
            b.each((&ra, &rc, &sums), move |t, (a, c, sums)| {
                let (row, column) = (t.thread_idx().y, t.thread_idx().x);
                let mut sum = sums.get(t);
                // The loop goes one turn too far.
                for k in 0..if mistake == 2 { 17 } else { 16 } {
                    sum = t.fma(a.get(t, row * 16 + k), c.get(t, k * 16 + column), sum);
                }
                sums.set(t, sum);
            });
            (a, c) = b.sync((ra.renew(), rc.renew()));
            at += 16;
        }
        b.each(&sums, move |t, sums| {
            let Some(cell) = z.cell(t) else { return };
            let [row, column] = cell.at();
            match mistake {
                // The element below, or a sum that is added to what nobody wrote.
                3 => z.set(t, [row + 1, column], sums.get(t)),
                4 => cell.set(cell.get() + sums.get(t)),
                _ => cell.set(sums.get(t)),
            }
        });
    }
}

kernel! {
    /// Gives each warp's threads two values of each thread, through rows of shared memory.
    pub fn spread(b: impl Cooperative, m: u32, x: In<u32>[128], y: Out<u32>[2, 128] by [all, rank])
    grid(1) block(128) shared(2 * 132 * 4)
    {
        let pairs = b.each((), move |t, ()| {
            let v = x.get(t, [t.rank()]);
            [v, v + 1]
        });
        let rows = b.shared::<u32>(2 * 132);
        // The pitch is smaller than the block, or the rows do not fit.
        let pitch = match m {
            1 => 127,
            2 => 133,
            _ => 132,
        };
        let rows = b.publish_rows(rows, pitch, &pairs);
        let rows = b.sync(rows.read());
        b.each(&rows, move |t, rows| {
            for k in 0..2 {
                // The last thread's neighbor is behind the window.
                let neighbor = k * 132 + t.rank() + if m == 3 { 5 } else { 1 };
                y.set(t, [k, t.rank()], rows.get(t, neighbor));
            }
        });
    }
}

kernel! {
    /// Doubles. A thread has `K` neighboring elements.
    pub fn doubled<T, const K: u32>(t: impl Simt, m: u32, n: u32, x: In<T>[n], y: Out<T>[n] by [x(K)])
    instances { doubled_f32_1 = <f32, 1>, doubled_f32_4 = <f32, 4> }
    // The grid is that of the other instance.
    grid(n.div_ceil(32 * if m == 1 { 4 } else { K })) block(32)
    {
        for mine in y.mine(t) {
            let v = x.get(t, mine.at());
            // The element is that of the other instance.
            if m == 2 {
                y.set(t, [4 * t.global_x()], v + v);
            } else {
                mine.set(v + v);
            }
        }
    }
}

kernel! {
    /// Stores one element, by the first of many threads.
    pub fn many(t: impl Simt, blocks: u32, y: Out<f32>[1] by [x]) grid(blocks) block(1024)
    {
        if let Some(y) = y.cell(t) {
            y.set(1.0);
        }
    }
}
