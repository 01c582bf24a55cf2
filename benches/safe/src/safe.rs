//! The kernels without `unsafe`.
#![forbid(unsafe_code)]

use thalweg_simt::{hint, kernel};

use crate::vision::patch::{Patch, Sum};
use crate::vision::texel::{Place, Walk, texels};

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
    /// Computes the mean of the 3 x 3 neighbors of each element, with the border replicated.
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
            let (row, column) = (t.thread_idx().x, 4 * t.thread_idx().y);
            let values = [0, 1, 2, 3].map(|i| tile.get(t, row * 32 + ((column + i) ^ row)));
            y.for_each(t, |y| y.set(values[y.at()[0] as usize % 4]));
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
            // Neighboring threads load neighboring elements of a row of `x` and `y`.
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
            let sums = sums.get(t);
            z.for_each(t, |z| {
                let [i, j] = z.at().map(|i| i as usize % 4);
                z.set(sums[i][j]);
            });
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
        b: impl Cooperative, height: u32, width: u32, patch: u32, rgb: In<[u8; 3]>[height, width],
        entropy: Out<f32>[patches = height.div_ceil(patch) * width.div_ceil(patch)] by [block],
    )
    require { (1..=16384).contains(&height), (1..=16384).contains(&width), (1..=16384).contains(&patch) }
    grid(patches) block(((patch * patch).div_ceil(1024) * 32).min(256)) shared(512 * 4)
    {
        let area = Patch::new(b.idx().x, height, width, patch);
        let pixels = rgb.area([area.y, area.x], [area.height, area.width]);
        let counts = b.shared::<u32>(256);
        let zeroed = b.fill(counts, (), |_, (), _| 0);
        let counts = b.sync(zeroed.add());
        b.each(&counts, move |t, counts| {
            for pixel in pixels.every(t, t.rank(), t.threads()) {
                let [r, g, b] = pixel.get([]).map(u32::from);
                counts.add(t, (77 * r + 150 * g + 29 * b + 128) >> 8, 1);
            }
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
    /// The texture array of an image, as `thalweg_kernels::vision::textures` computes it, if rows
    /// have a multiple of four pixels.
    pub fn textures(
        t: impl Simt, height: u32, width: u32, fixation_y: f32, fixation_x: f32,
        rgb: In<[[u8; 4]; 3]>[height, quads = width / 4], planes: Out<[f32; 4]>[13, height, quads] by [all, y(2), x],
    )
    require { (1..=16384).contains(&height), (1..=16384).contains(&width), width.is_multiple_of(4) }
    grid(quads.div_ceil(256), height.div_ceil(2)) block(256) bounds(256, 3)
    {
        let Some(first) = planes.column(t) else { return };
        let [_, top, quad] = first.at();
        // Pixels 4 * quad - 1 to 4 * quad + 4 of a row. The border is replicated.
        let load = |y: u32| {
            let [a, b, c] = rgb.get(t, [y, quad]).map(u32::from_le_bytes);
            let left = if quad > 0 { u32::from_le_bytes(rgb.get(t, [y, quad - 1])[2]) } else { a << 8 };
            let right = if quad + 1 < quads { u32::from_le_bytes(rgb.get(t, [y, quad + 1])[0]) } else { c >> 8 };
            [left >> 8, a, a >> 24 | b << 8, b >> 16 | c << 16, c >> 8, right]
        };
        let place = Place::new(**t, height, width, fixation_y, fixation_x);
        let x = [0, 1, 2, 3].map(|i| place.column(**t, 4 * quad + i));
        let mut row = load(top);
        let mut walk = Walk::new(**t, load(top.saturating_sub(1)), row);
        planes.for_each_column(t, |column| {
            let [_, y, _] = column.at();
            let below = load((y + 1).min(height - 1));
            let put = |plane, v| column.cell::<0>(plane).store(v, hint::Streaming);
            texels(**t, place.row(**t, y), x, row, walk.down(**t, below), put);
            row = below;
        });
    }
}
