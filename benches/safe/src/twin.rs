//! The same kernels as `unsafe fn`, as one writes them by hand. The twins of `entropy` and
//! `textures` are those of `thalweg_kernels::vision`, which has `features` and `compress` without
//! `unsafe`.

use thalweg_simt::{Cooperative, In, Out, kernel};

use crate::vision::patch::{Patch, Sum, Token};

kernel! {
    /// Computes `y = a x + y`.
    pub unsafe fn raw_saxpy(cx: impl Simt, n: u32, a: f32, x: In<f32>, y: InOut<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            y.set(cx, i, cx.fma(a, x.get(cx, i), y.get(cx, i)));
        }
    }
}

kernel! {
    /// Computes the mean of the 3 x 3 neighbors of each element, with the border replicated.
    pub unsafe fn raw_blur(cx: impl Simt, h: u32, w: u32, x: In<f32>, y: Out<f32>)
    require { (1..65536).contains(&h), (1..65536).contains(&w), x.len() == h * w, y.len() == h * w }
    grid(w.div_ceil(32), h.div_ceil(8)) block(32, 8)
    {
        let (row, column) = (cx.global_y(), cx.global_x());
        if row < h && column < w {
            let mut sum = 0.0;
            for i in 0..9 {
                let row = row.saturating_add_signed(i / 3 - 1).min(h - 1);
                let column = column.saturating_add_signed(i % 3 - 1).min(w - 1);
                sum += x.get(cx, row * w + column);
            }
            y.set(cx, row * w + column, sum * (1.0 / 9.0));
        }
    }
}

kernel! {
    /// Doubles each element, by a fixed number of threads.
    pub unsafe fn raw_double(cx: impl Simt, n: u32, blocks: u32, y: InOut<f32>)
    require { (1..=65535).contains(&blocks), n <= 1 << 31, y.len() == n }
    grid(blocks) block(256)
    {
        let mut i = cx.global_x();
        while i < n {
            y.set(cx, i, 2.0 * y.get(cx, i));
            i += blocks * 256;
        }
    }
}

kernel! {
    /// Computes `y[i] = x[index[i]]`, where an index that is not below `m` is the last one.
    pub unsafe fn raw_gather(cx: impl Simt, n: u32, m: u32, index: In<u32>, x: In<f32>, y: Out<f32>)
    require { m > 0, index.len() == n, x.len() == m, y.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            y.set(cx, i, x.get(cx, index.get(cx, i).min(m - 1)));
        }
    }
}

kernel! {
    /// Computes the sum of the part of `x` that each block takes.
    pub unsafe fn raw_reduce(cx: impl Cooperative, n: u32, blocks: u32, x: In<f32>, sums: Out<f32>)
    require { (1..=65535).contains(&blocks), n <= 1 << 31, x.len() == n, sums.len() == blocks }
    grid(blocks) block(256) shared(8 * 4)
    {
        let (mut sum, mut i) = (0.0, cx.global_x());
        while i < n {
            sum += x.get(cx, i);
            i += blocks * 256;
        }
        let sum = cx.warp_sum(sum);
        let warps = cx.shared::<f32>(0);
        if cx.thread_idx().x.is_multiple_of(32) {
            cx.shared_set(warps, cx.thread_idx().x / 32, sum);
        }
        cx.barrier();
        if cx.thread_idx().x == 0 {
            sums.set(cx, cx.block_idx().x, (0..8).fold(0.0, |sum, i| sum + cx.shared_get(warps, i)));
        }
    }
}

kernel! {
    /// Counts the low bytes of `x`: those of the part of each block, and all of them.
    pub unsafe fn raw_histogram(
        cx: impl Cooperative, n: u32, blocks: u32, x: In<u32>, part: Out<u32>, total: InOut<u32>,
    )
    require {
        (1..=65535).contains(&blocks), n <= 1 << 31, x.len() == n, part.len() == 256 * blocks, total.len() == 256,
    }
    grid(blocks) block(256) shared(256 * 4)
    {
        let (rank, counts) = (cx.thread_idx().x, cx.shared::<u32>(0));
        cx.shared_set(counts, rank, 0);
        cx.barrier();
        let mut i = cx.global_x();
        while i < n {
            cx.shared_add(counts, x.get(cx, i) & 255, 1);
            i += blocks * 256;
        }
        cx.barrier();
        let count = cx.shared_get(counts, rank);
        part.set(cx, cx.block_idx().x * 256 + rank, count);
        total.atomic(rank).add(cx, count);
    }
}

kernel! {
    /// Transposes a matrix, by tiles of 32 x 32.
    pub unsafe fn raw_transpose(cx: impl Cooperative, h: u32, w: u32, x: In<f32>, y: Out<f32>)
    require { (1..65536).contains(&h), (1..65536).contains(&w), x.len() == h * w, y.len() == h * w }
    grid(h.div_ceil(32), w.div_ceil(32)) block(32, 8) shared(32 * 33 * 4)
    {
        let (top, left) = (cx.block_idx().x * 32, cx.block_idx().y * 32);
        let (tx, ty) = (cx.thread_idx().x, cx.thread_idx().y);
        let tile = cx.shared::<f32>(0);
        for i in 0..4 {
            let (row, column) = (top + ty + 8 * i, left + tx);
            if row < h && column < w {
                cx.shared_set(tile, (ty + 8 * i) * 33 + tx, x.get(cx, row * w + column));
            }
        }
        cx.barrier();
        for i in 0..4 {
            let (row, column) = (left + ty + 8 * i, top + tx);
            if row < w && column < h {
                y.set(cx, row * h + column, cx.shared_get(tile, tx * 33 + ty + 8 * i));
            }
        }
    }
}

kernel! {
    /// Computes the product of two matrices: a block computes 64 x 64 elements, a thread 4 x 4.
    pub unsafe fn raw_product(cx: impl Cooperative, m: u32, n: u32, k: u32, x: In<f32>, y: In<f32>, z: Out<f32>)
    require {
        (1..65536).contains(&m), (1..65536).contains(&n), (1..65536).contains(&k),
        x.len() == m * k, y.len() == k * n, z.len() == m * n,
    }
    grid(n.div_ceil(64), m.div_ceil(64)) block(16, 16) shared(2 * 16 * 64 * 4)
    {
        let (top, left) = (cx.block_idx().y * 64, cx.block_idx().x * 64);
        let (tx, ty) = (cx.thread_idx().x, cx.thread_idx().y);
        let rank = ty * 16 + tx;
        let (a, c) = (cx.shared::<f32>(0), cx.shared::<f32>(16 * 64 * 4));
        let mut sum = [[0f32; 4]; 4];
        let mut at = 0;
        while at < k {
            for turn in 0..4 {
                let i = turn * 256 + rank;
                let (row, column) = (top + i / 16, at + i % 16);
                cx.shared_set(a, i, if row < m && column < k { x.get(cx, row * k + column) } else { 0.0 });
                let (row, column) = (at + i / 64, left + i % 64);
                cx.shared_set(c, i, if row < k && column < n { y.get(cx, row * n + column) } else { 0.0 });
            }
            cx.barrier();
            for k in 0..16 {
                let right: [f32; 4] = core::array::from_fn(|j| cx.shared_get(c, k * 64 + tx * 4 + j as u32));
                let left: [f32; 4] = core::array::from_fn(|i| cx.shared_get(a, (ty * 4 + i as u32) * 16 + k));
                sum = core::array::from_fn(|i| core::array::from_fn(|j| cx.fma(left[i], right[j], sum[i][j])));
            }
            cx.barrier();
            at += 16;
        }
        let put = |i: u32, row: [f32; 4]| {
            let (i, j) = (top + ty * 4 + i, left + tx * 4);
            let put = |j, v| {
                if i < m && j < n {
                    z.set(cx, i * n + j, v);
                }
            };
            let [v0, v1, v2, v3] = row;
            put(j, v0);
            put(j + 1, v1);
            put(j + 2, v2);
            put(j + 3, v3);
        };
        let [r0, r1, r2, r3] = sum;
        put(0, r0);
        put(1, r1);
        put(2, r2);
        put(3, r3);
    }
}

kernel! {
    /// Tokens and positions of the selected patches, as `thalweg_kernels::vision::compress`
    /// computes them.
    pub unsafe fn raw_compress(
        cx: impl Simt, height: u32, width: u32, patch: u32, selected: u32, capacity: u32,
        planes: In<f32>, sides: In<i32>, cu_seqlens: In<i32>, patch_id: In<i32>, counts: In<u32>,
        tokens: Out<f32>, position: Out<f32>,
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        (1..=16384).contains(&patch),
        capacity <= 2147483647,
        planes.len() == 13 * height * width,
        sides.len() == height.div_ceil(patch) * width.div_ceil(patch),
        cu_seqlens.len() > selected,
        patch_id.len() >= selected,
        counts.len() == 2,
        tokens.len() == 13 * capacity,
        position.len() == 2 * capacity,
    }
    grid(capacity.div_ceil(32)) block(32, 13)
    {
        let (t, plane) = (cx.global_x(), cx.thread_idx().y);
        let count = counts.get(cx, 1).min(selected);
        if t >= counts.get(cx, 0).min(capacity) || count == 0 {
            return;
        }
        let patches = height.div_ceil(patch) * width.div_ceil(patch);
        let token = Token::find(
            t,
            count,
            patches,
            |n| sides.get(cx, n),
            |k| cu_seqlens.get(cx, k),
            |k| patch_id.get(cx, k),
        );
        let cell = token.cell(cx, Patch::new(token.patch, height, width, patch));
        let mut sum = Sum::default();
        let start = planes.as_ptr().add((plane * height * width) as usize);
        for y in cell.y..cell.y_end {
            for x in cell.x..cell.x_end {
                sum.add(cx.load(start.add((y * width + x) as usize)));
            }
        }
        let mean = sum.total() * cx.recip_approx(cell.area() as f32);
        tokens.set(cx, t as usize * 13 + plane as usize, mean);
        match plane {
            0 => position.set(cx, t as usize * 2, (cell.y + cell.y_end) as f32 * 0.5 * cx.recip_approx(height as f32)),
            1 => position.set(cx, t as usize * 2 + 1, (cell.x + cell.x_end) as f32 * 0.5 * cx.recip_approx(width as f32)),
            _ => {}
        }
    }
}

/// Computes the mean of each plane over the patch of this block.
///
/// # Safety
/// The extents, the buffers, the block and its shared memory are as [`raw_features`] declares them.
#[inline(always)]
unsafe fn mean_planes(cx: impl Cooperative, height: u32, width: u32, patch: u32, planes: In<f32>, features: Out<f32>) {
    let n = cx.block_idx().x;
    let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
    let area = Patch::new(n, height, width, patch);
    let size = (height * width) as usize;

    let mut sums = [Sum::default(); 13];
    area.every(rank, threads, |y, x| {
        let mut p = planes.as_ptr().wrapping_add((y * width + x) as usize);
        for sum in &mut sums {
            // SAFETY: The pixel is in the image, and the launcher checked that there are 13 planes
            // of its extents.
            sum.add(unsafe { cx.load(p) });
            p = p.wrapping_add(size);
        }
    });

    // SAFETY: The declaration has shared memory for 13 rows of as many values as there are threads,
    // and one more. Each thread stores values of its own, and others load them after the barrier.
    // The launcher checked that there are 13 features for each patch.
    unsafe {
        let partial = cx.shared::<f32>(0);
        let pitch = threads + 1;
        for (plane, sum) in sums.into_iter().enumerate() {
            cx.shared_set(partial, plane as u32 * pitch + rank, sum.total());
        }
        cx.barrier();
        if rank < 13 {
            let mut sum = Sum::default();
            for thread in 0..threads {
                sum.add(cx.shared_get(partial, rank * pitch + thread));
            }
            let mean = sum.total() * cx.recip_approx(area.area() as f32);
            features.set(cx, (n * 13 + rank) as usize, mean);
        }
    }
}

kernel! {
    /// The mean of each plane over each patch, as `thalweg_kernels::vision::features` computes it.
    pub unsafe fn raw_features(
        cx: impl Cooperative, height: u32, width: u32, patch: u32, planes: In<f32>, features: Out<f32>,
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        (1..=16384).contains(&patch),
        planes.len() == 13 * height * width,
        features.len() == 13 * height.div_ceil(patch) * width.div_ceil(patch),
    }
    grid(height.div_ceil(patch) * width.div_ceil(patch))
    block((patch * patch).div_ceil(1024).min(8) * 32)
    shared(((patch * patch).div_ceil(1024).min(8) * 32 + 1) * 13 * 4)
    {
        mean_planes(cx, height, width, patch, planes, features);
    }
}

kernel! {
    /// The mean of each plane over each patch, with the bounds of
    /// `thalweg_kernels::vision::features`.
    pub unsafe fn raw_features_bounds(
        cx: impl Cooperative, height: u32, width: u32, patch: u32, planes: In<f32>, features: Out<f32>,
    )
    require {
        (1..=16384).contains(&height),
        (1..=16384).contains(&width),
        (1..=16384).contains(&patch),
        planes.len() == 13 * height * width,
        features.len() == 13 * height.div_ceil(patch) * width.div_ceil(patch),
    }
    grid(height.div_ceil(patch) * width.div_ceil(patch))
    block((patch * patch).div_ceil(1024).min(8) * 32)
    bounds(256, 4)
    shared(((patch * patch).div_ceil(1024).min(8) * 32 + 1) * 13 * 4)
    {
        mean_planes(cx, height, width, patch, planes, features);
    }
}
