#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use thalweg_simt::{kernel, ptx};

ptx! { unsafe "kernels" }

const BLOCK: u32 = 256;

kernel! {
    /// Computes `y = a x + y`, element by element.
    pub fn saxpy(t: impl Simt, n: u32, a: f32, x: In<f32>[n], y: InOut<f32>[n] by [x])
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        if let Some(y) = y.cell(t) {
            y.set(t.fma(a, x.get(t, y.at()), y.get()));
        }
    }
}

kernel! {
    /// Computes the matrix product `z = x y`. A thread computes one element.
    pub fn product_of_threads(
        t: impl Simt, m: u32, n: u32, k: u32, x: In<f32>[m, k], y: In<f32>[k, n], z: Out<f32>[m, n] by [y, x],
    )
    grid(n.div_ceil(32), m.div_ceil(8)) block(32, 8)
    {
        if let Some(z) = z.cell(t) {
            let [row, column] = z.at();
            let mut sum = 0.0;
            for i in 0..k {
                sum = t.fma(x.get(t, [row, i]), y.get(t, [i, column]), sum);
            }
            z.set(sum);
        }
    }
}

const TILE: u32 = 32;

kernel! {
    /// Computes the matrix product `z = x y`. A block computes 32 x 32 elements, and a thread four
    /// of a column.
    pub fn product_of_tiles(
        b: impl Cooperative, m: u32, n: u32, k: u32, x: In<f32>[m, k], y: In<f32>[k, n], z: Out<f32>[m, n] by [y(4), x],
    )
    grid(n.div_ceil(TILE), m.div_ceil(TILE)) block(TILE, 8) shared(2 * TILE * TILE * 4)
    {
        let (top, left) = (b.idx().y * TILE, b.idx().x * TILE);
        let sums = b.each((), |_, ()| [0f32; 4]);
        let (mut a, mut c) = (b.shared::<f32>(TILE * TILE), b.shared::<f32>(TILE * TILE));
        let mut at = 0;
        while at < k {
            // What is outside the matrices counts as 0.
            let fa = b.fill(a, (), move |t, (), i| x.try_get(t, [top + i / TILE, at + i % TILE]).unwrap_or(0.0));
            let fc = b.fill(c, (), move |t, (), i| y.try_get(t, [at + i / TILE, left + i % TILE]).unwrap_or(0.0));
            let (ra, rc) = b.sync((fa.read(), fc.read()));
            b.each((&ra, &rc, &sums), |t, (a, c, sums)| {
                let (row, column) = (t.thread_idx().y % 8 * 4, t.thread_idx().x % TILE);
                let mut sum = sums.get(t);
                for i in 0..TILE {
                    let right = c.get(t, i * TILE + column);
                    sum = core::array::from_fn(|r| t.fma(a.get(t, (row + r as u32) * TILE + i), right, sum[r]));
                }
                sums.set(t, sum);
            });
            // The next tiles take the place of these when every thread has read them.
            (a, c) = b.sync((ra.renew(), rc.renew()));
            at += TILE;
        }
        b.each(&sums, move |t, sums| {
            for (z, v) in z.mine(t).zip(sums.get(t)) {
                z.set(v);
            }
        });
    }
}
