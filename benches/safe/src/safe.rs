//! The kernels without `unsafe`.
#![forbid(unsafe_code)]

use thalweg_simt::kernel;

use crate::patch::{Patch, Sum};

kernel! {
    /// Computes `y = a x + y`.
    pub fn saxpy(t: impl Simt, n: u32, a: f32, x: In<f32>[n], y: InOut<f32>[n] by [x])
    grid(n.div_ceil(256)) block(256)
    {
        if let Some(y) = y.cell(t) {
            y.set(t.fma(a, x.get(t, y.at()), y.get()));
        }
    }
}

kernel! {
    /// Computes the mean of the 3 x 3 neighbours of each element, with the border replicated.
    pub fn blur(t: impl Simt, h: u32, w: u32, x: In<f32>[h, w], y: Out<f32>[h, w] by [y, x])
    grid(w.div_ceil(32), h.div_ceil(8)) block(32, 8)
    {
        if let Some(y) = y.cell(t) {
            let mut sum = 0.0;
            for i in 0..9 {
                sum += x.clamped(t, y.at(), [i / 3 - 1, i % 3 - 1]);
            }
            y.set(sum * (1.0 / 9.0));
        }
    }
}

kernel! {
    /// Doubles each element, by a fixed number of threads.
    pub fn double(t: impl Simt, n: u32, blocks: u32, y: InOut<f32>[n] by [stride])
    require { (1..=65535).contains(&blocks) }
    grid(blocks) block(256)
    {
        for y in y.mine(t) {
            y.set(2.0 * y.get());
        }
    }
}

kernel! {
    /// Computes `y[i] = x[index[i]]`. An index that is not below `m` is reported.
    pub fn gather(t: impl Simt, n: u32, m: u32, index: In<u32>[n], x: In<f32>[m], y: Out<f32>[n] by [x])
    grid(n.div_ceil(256)) block(256)
    {
        if let Some(y) = y.cell(t) {
            y.set(x.get(t, [index.get(t, y.at())]));
        }
    }
}

kernel! {
    /// Computes the sum of the part of `x` that each block takes.
    pub fn reduce(b: impl Cooperative, n: u32, blocks: u32, x: In<f32>[n], sums: Out<f32>[blocks] by [block])
    require { (1..=65535).contains(&blocks) }
    grid(blocks) block(256) shared(8 * 4)
    {
        let part = b.each((), move |t, ()| {
            let (mut sum, mut i) = (0.0, Some(t.global_x()));
            while let Some(at) = i.filter(|&i| i < n) {
                sum += x.get(t, [at]);
                i = at.checked_add(blocks * 256);
            }
            sum
        });
        let part = b.warp_sum(&part);
        let warps = b.shared::<f32>(8);
        let filled = b.publish_warps(warps, &part);
        let warps = b.sync(filled.read());
        b.each(&warps, move |t, warps| {
            if let Some(sum) = sums.cell(t) {
                sum.set((0..8).fold(0.0, |sum, i| sum + warps.get(t, i)));
            }
        });
    }
}

kernel! {
    /// Computes, for each part of 256 elements, the sums of the elements up to and including each.
    pub fn scan(b: impl Cooperative, n: u32, x: In<u32>[n], y: Out<u32>[n] by [x])
    grid(n.div_ceil(256)) block(256) shared(2 * 256 * 4)
    {
        let (first, mut next) = (b.shared::<u32>(256), b.shared::<u32>(256));
        let filled = b.fill(first, (), move |t, (), _| x.try_get(t, [t.global_x()]).unwrap_or(0));
        let mut sums = b.sync(filled.read());
        let mut delta = 1;
        while delta < 256 {
            let filled = b.fill(next, &sums, move |t, sums, i| {
                sums.get(t, i).wrapping_add(if i >= delta { sums.get(t, i - delta) } else { 0 })
            });
            // One barrier turns both windows.
            (sums, next) = b.sync((filled.read(), sums.renew()));
            delta *= 2;
        }
        b.each(&sums, move |t, sums| {
            if let Some(y) = y.cell(t) {
                y.set(sums.get(t, t.rank()));
            }
        });
    }
}

kernel! {
    /// Counts the low bytes of `x`: those of the part of each block, and all of them.
    pub fn histogram(
        b: impl Cooperative, n: u32, blocks: u32, x: In<u32>[n],
        part: Out<u32>[blocks, 256] by [block, rank], total: Atomic<u32>[256],
    )
    require { (1..=65535).contains(&blocks) }
    grid(blocks) block(256) shared(256 * 4)
    {
        let counts = b.shared::<u32>(256);
        let zeroed = b.fill(counts, (), |_, (), _| 0);
        let counts = b.sync(zeroed.add());
        b.each(&counts, move |t, counts| {
            let mut i = Some(t.global_x());
            while let Some(at) = i.filter(|&i| i < n) {
                counts.add(t, x.get(t, [at]) & 255, 1);
                i = at.checked_add(blocks * 256);
            }
        });
        let counts = b.sync(counts.read());
        b.each(&counts, move |t, counts| {
            for mine in part.mine(t) {
                let [_, bin] = mine.at();
                mine.set(counts.get(t, bin));
                total.add(t, [bin], counts.get(t, bin));
            }
        });
    }
}

kernel! {
    /// Transposes a matrix, by tiles of 32 x 32.
    pub fn transpose(b: impl Cooperative, h: u32, w: u32, x: In<f32>[h, w], y: Out<f32>[w, h] by [y(4), x])
    grid(h.div_ceil(32), w.div_ceil(32)) block(32, 8) shared(32 * 32 * 4)
    {
        let (top, left) = (b.idx().x * 32, b.idx().y * 32);
        let tile = b.shared::<f32>(32 * 32);
        // Element (row, column) of the tile is at `column ^ row` of its row, so that a warp reads a
        // column without bank conflicts, too.
        let filled = b.fill(tile, (), move |t, (), i| {
            let (row, column) = (i / 32, (i % 32) ^ (i / 32));
            x.try_get(t, [top + row, left + column]).unwrap_or(0.0)
        });
        let tile = b.sync(filled.read());
        b.each(&tile, move |t, tile| {
            for y in y.mine(t) {
                let [column, row] = y.at();
                let (row, column) = (row - top, column - left);
                y.set(tile.get(t, row * 32 + (column ^ row)));
            }
        });
    }
}

kernel! {
    /// Computes the product of two matrices: a block computes 64 x 64 elements, a thread 4 x 4.
    pub fn product(
        b: impl Cooperative, m: u32, n: u32, k: u32,
        x: In<f32>[m, k], y: In<f32>[k, n], z: Out<f32>[m, n] by [y(4), x(4)],
    )
    grid(n.div_ceil(64), m.div_ceil(64)) block(16, 16) shared(2 * 16 * 64 * 4)
    {
        let (top, left) = (b.idx().y * 64, b.idx().x * 64);
        let sums = b.each((), |_, ()| [[0f32; 4]; 4]);
        let (mut a, mut c) = (b.shared::<f32>(16 * 64), b.shared::<f32>(16 * 64));
        let mut at = 0;
        while at < k {
            // Neighbouring threads load neighbouring elements of a row of `x` and `y`.
            let fa = b.fill(a, (), move |t, (), i| x.try_get(t, [top + i / 16, at + i % 16]).unwrap_or(0.0));
            let fc = b.fill(c, (), move |t, (), i| y.try_get(t, [at + i / 64, left + i % 64]).unwrap_or(0.0));
            let (ra, rc) = b.sync((fa.read(), fc.read()));
            b.each((&ra, &rc, &sums), |t, (a, c, sums)| {
                let (row, column) = (t.thread_idx().y % 16 * 4, t.thread_idx().x % 16 * 4);
                let mut sum = sums.get(t);
                for k in 0..16 {
                    let right: [f32; 4] = core::array::from_fn(|j| c.get(t, k * 64 + column + j as u32));
                    let left: [f32; 4] = core::array::from_fn(|i| a.get(t, (row + i as u32) * 16 + k));
                    sum = core::array::from_fn(|i| core::array::from_fn(|j| t.fma(left[i], right[j], sum[i][j])));
                }
                sums.set(t, sum);
            });
            (a, c) = b.sync((ra.renew(), rc.renew()));
            at += 16;
        }
        b.each(&sums, move |t, sums| {
            // An index that is not a constant would put the sums into local memory, so this is no
            // loop over `mine`.
            let put = |i: u32, row: [f32; 4]| {
                let (i, j) = (t.global_y() * 4 + i, t.global_x() * 4);
                let put = |j, v| {
                    if i < m && j < n {
                        z.set(t, [i, j], v);
                    }
                };
                let [v0, v1, v2, v3] = row;
                put(j, v0);
                put(j + 1, v1);
                put(j + 2, v2);
                put(j + 3, v3);
            };
            let [r0, r1, r2, r3] = sums.get(t);
            put(0, r0);
            put(1, r1);
            put(2, r2);
            put(3, r3);
        });
    }
}

kernel! {
    /// Halves the elements until all are below 1, and counts how often. The number of barriers
    /// depends on the data, and `any` makes it the block's.
    pub fn until(b: impl Cooperative, n: u32, y: InOut<f32>[n] by [x], turns: Out<u32>[blocks = n.div_ceil(64)] by [block])
    grid(blocks) block(64)
    {
        let mut count = 0;
        loop {
            let over = b.each((), move |t, ()| {
                y.cell(t).is_some_and(|y| {
                    let over = y.get() >= 1.0;
                    if over {
                        y.set(y.get() / 2.0);
                    }
                    over
                })
            });
            if !b.any(&over) || count == 64 {
                break;
            }
            count += 1;
        }
        b.each((), move |t, ()| {
            if let Some(turns) = turns.cell(t) {
                turns.set(count);
            }
        });
    }
}

kernel! {
    /// The entropy of the luma of each patch, as `thalweg_kernels::vision::entropy` computes it.
    pub fn entropy(
        b: impl Cooperative, height: u32, width: u32, patch: u32, rgb: In<u8>[height, width, 3],
        entropy: Out<f32>[patches = height.div_ceil(patch) * width.div_ceil(patch)] by [block],
    )
    require { (1..=16384).contains(&height), (1..=16384).contains(&width), (1..=16384).contains(&patch) }
    grid(patches) block(((patch * patch).div_ceil(1024) * 32).min(256)) shared(512 * 4)
    {
        let area = Patch::new(b.idx().x, height, width, patch);
        let counts = b.shared::<u32>(256);
        let zeroed = b.fill(counts, (), |_, (), _| 0);
        let counts = b.sync(zeroed.add());
        b.each(&counts, move |t, counts| {
            area.every(t.rank(), t.threads(), |y, x| {
                let [r, g, b] = [0, 1, 2].map(|c| u32::from(rgb.get(t, [y, x, c])));
                counts.add(t, (77 * r + 150 * g + 29 * b + 128) >> 8, 1);
            });
        });
        let counts = b.sync(counts.read());
        let bits = b.each(&counts, move |t, counts| {
            let per_pixel = t.recip_approx(area.area() as f32);
            let mut bits = Sum::default();
            let mut bin = t.rank();
            while bin < 256 {
                let count = counts.get(t, bin);
                if count > 0 && count < area.area() {
                    let p = count as f32 * per_pixel;
                    bits.add(-p * t.log2_approx(p));
                }
                bin += t.threads();
            }
            bits.total()
        });
        let (threads, partial) = (b.threads(), b.shared::<f32>(b.threads()));
        let filled = b.publish(partial, &bits);
        let partial = b.sync(filled.read());
        b.each(&partial, move |t, partial| {
            if let Some(entropy) = entropy.cell(t) {
                let mut bits = Sum::default();
                for thread in 0..threads {
                    bits.add(partial.get(t, thread));
                }
                entropy.set((bits.total() * 0.125).min(1.0));
            }
        });
    }
}

kernel! {
    /// The mean of each plane over each patch, as `thalweg_kernels::vision::features` computes it.
    pub fn features(
        b: impl Cooperative, height: u32, width: u32, patch: u32, planes: In<f32>[13, height, width],
        features: Out<f32>[patches = height.div_ceil(patch) * width.div_ceil(patch), 13] by [block, rank],
    )
    require { (1..=16384).contains(&height), (1..=16384).contains(&width), (1..=16384).contains(&patch) }
    grid(patches) block((patch * patch).div_ceil(1024).min(8) * 32)
    shared(((patch * patch).div_ceil(1024).min(8) * 32 + 1) * 13 * 4)
    {
        let area = Patch::new(b.idx().x, height, width, patch);
        let sums = b.each((), move |t, ()| {
            let mut sums = [Sum::default(); 13];
            area.every(t.rank(), t.threads(), |y, x| {
                for (plane, sum) in sums.iter_mut().enumerate() {
                    sum.add(planes.get(t, [plane as u32, y, x]));
                }
            });
            sums.map(|sum| sum.total())
        });
        let threads = b.threads();
        // A row has one element more than there are threads, so that the 13 readers have no bank
        // conflicts.
        let partial = b.shared::<f32>((threads + 1) * 13);
        let filled = b.publish_rows(partial, threads + 1, &sums);
        let partial = b.sync(filled.read());
        b.each(&partial, move |t, partial| {
            for mean in features.mine(t) {
                let [_, plane] = mean.at();
                let mut sum = Sum::default();
                for thread in 0..threads {
                    sum.add(partial.get(t, plane * (threads + 1) + thread));
                }
                mean.set(sum.total() * t.recip_approx(area.area() as f32));
            }
        });
    }
}

kernel! {
    /// Tokens and positions of the selected patches, as `thalweg_kernels::vision::compress` computes
    /// them.
    pub fn compress(
        t: impl Simt, height: u32, width: u32, patch: u32, selected: u32, capacity: u32,
        planes: In<f32>[13, height, width],
        sides: In<i32>[patches = height.div_ceil(patch) * width.div_ceil(patch)],
        cu_seqlens: In<i32>[ends = selected + 1], patch_id: In<i32>[selected], counts: In<u32>[2],
        tokens: Out<f32>[capacity, 13] by [x, y], position: Out<f32>[capacity, 2] by [x, y],
    )
    require { (1..=16384).contains(&height), (1..=16384).contains(&width), (1..=16384).contains(&patch) }
    grid(capacity.div_ceil(32)) block(32, 13)
    {
        let Some(token) = tokens.cell(t) else { return };
        let [at, plane] = token.at();
        let count = counts.get(t, [1]).min(selected);
        if at >= counts.get(t, [0]) || count == 0 {
            return;
        }
        // The last patch that starts at the token or before it. Wrong offsets give wrong tokens, and
        // never a patch that is not there.
        let start = |k| cu_seqlens.get(t, [k]) as u32;
        let (mut k, mut end) = (0, count);
        while end - k > 1 {
            let middle = k + (end - k) / 2;
            if start(middle) <= at {
                k = middle;
            } else {
                end = middle;
            }
        }
        let index = (patch_id.get(t, [k]) as u32).min(patches - 1);
        let side = sides.get(t, [index]).clamp(1, 255) as u32;
        let cell = at.wrapping_sub(start(k)).min(side * side - 1);
        let cell = Patch::new(index, height, width, patch).cell(side, cell);
        let mut sum = Sum::default();
        for y in cell.y..cell.y_end {
            for x in cell.x..cell.x_end {
                sum.add(planes.get(t, [plane, y, x]));
            }
        }
        token.set(sum.total() * t.recip_approx(cell.area() as f32));
        if let Some(position) = position.cell(t) {
            position.set(match plane {
                0 => (cell.y + cell.y_end) as f32 * 0.5 * t.recip_approx(height as f32),
                _ => (cell.x + cell.x_end) as f32 * 0.5 * t.recip_approx(width as f32),
            });
        }
    }
}
