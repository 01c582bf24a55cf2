//! Layer norm, forward and backward.
//!
//! ```text
//! n = (x - mean) r, r = 1 / sqrt(population variance + eps);  y = n weight + bias
//! g = dy weight;    dx = r (g - mean(g) - n mean(g n));       dweight = sum of dy n;  dbias = sum of dy
//! ```
//!
//! Launch: a block of one warp for each row of up to 1024 elements, and of eight warps for wider
//! ones and where there are few rows; for the sums over rows a thread for each column and each
//! group of rows. Memory: a row is read once. What is behind its first 2048 elements is read again
//! from the L1 cache.
//!
//! - **A thread loads its elements of a row before it uses one**, and keeps them in registers, so
//!   the loads wait together: 8 elements in rows of up to 256, 24 up to 768, 32 up to 1024, else 8.
//!   The sums over rows load 8 rows at once for the same reason.
//! - **A row of up to 1024 elements has one warp**, so its sums are butterflies of the warp, and no
//!   barrier is needed. With 64 elements of a wider row in each lane there were registers for 12
//!   warps only.
//! - **The variance is the mean of squares of differences from the mean**, so large means do not
//!   cancel.

use thalweg_simt::kernel;

use super::number::Stored;

/// Calls `f` with the places of a thread's first elements of a row, of which a block has `threads`
/// threads.
#[inline(always)]
fn slots<const SLOTS: usize>(f: impl Fn(u32) -> f32, rank: u32, threads: u32) -> [f32; SLOTS] {
    core::array::from_fn(|i| f(rank + threads * i as u32))
}

/// Adds values of all threads of a block of so many.
macro_rules! row_sums {
    (32, $b:ident, $($v:ident)*) => {
        $(let $v = $b.warp_sum(&$v);)*
    };
    (256, $b:ident, $($v:ident)*) => {
        $(
            let window = $b.shared::<f32>(32);
            let $v = $b.warp_sum(&$v);
            let $v = $b.publish_warps(window, &$v);
        )*
        let ($($v,)*) = $b.sync(($($v.read(),)*));
        $(
            let $v = $b.each(&$v, |t, warps| warps.get(t, t.rank() % 32));
            let $v = $b.warp_sum(&$v);
        )*
    };
}

/// Makes both kernels with blocks of so many threads.
macro_rules! norms {
    ($threads:tt: $norm:ident { $($norms:tt)* } $backward:ident { $($backwards:tt)* } $($shared:tt)*) => {
        kernel! {
            /// Normalizes each row, and stores its mean and 1 / its standard deviation in `stats`.
            pub(super) fn $norm<E: Stored, const SLOTS: usize>(
                b: impl Cooperative, rows: u32, columns: u32, eps: f32, x: In<f32>[rows, columns],
                weight: In<f32>[columns], bias: In<f32>[columns], stats: Out<f32>[rows, 2] by [block, rank],
                y: Out<E>[rows, columns] by [block, rank],
            )
            instances { $($norms)* }
            require { columns >= 1 }
            grid(rows) block($threads) $($shared)*
            {
                let (row, per_column) = (b.idx().x, 1.0 / columns as f32);
                let first = b.each((), move |t, ()| slots::<SLOTS>(|c| x.try_get(t, [row, c]).unwrap_or(0.0), t.rank(), $threads));
                let sum = b.each(&first, move |t, first| {
                    let (first, mut sum, mut i) = (first.get(t), 0.0, 0);
                    while i < SLOTS {
                        sum += first[i];
                        i += 1;
                    }
                    let mut c = t.rank() + $threads * SLOTS as u32;
                    while c < columns {
                        sum += x.get(t, [row, c]);
                        c += $threads;
                    }
                    sum
                });
                row_sums!($threads, b, sum);
                let squares = b.each((&first, &sum), move |t, (first, sum)| {
                    let (first, mean) = (first.get(t), sum.get(t) * per_column);
                    let (mut squares, mut c, mut i) = (0.0, t.rank(), 0);
                    while i < SLOTS {
                        let off = first[i] - mean;
                        squares = if c < columns { t.fma(off, off, squares) } else { squares };
                        c += $threads;
                        i += 1;
                    }
                    while c < columns {
                        let off = x.get(t, [row, c]) - mean;
                        squares = t.fma(off, off, squares);
                        c += $threads;
                    }
                    squares
                });
                row_sums!($threads, b, squares);
                b.each((&first, &sum, &squares), move |t, (first, sum, squares)| {
                    let (first, mean) = (first.get(t), sum.get(t) * per_column);
                    let r = 1.0 / t.sqrt(squares.get(t) * per_column + eps);
                    for stat in stats.mine(t) {
                        let [_, k] = stat.at();
                        stat.set(if k == 0 { mean } else { r });
                    }
                    let normed = |c: u32, x: f32| {
                        E::narrow(t.fma((x - mean) * r, weight.get(t, [c]), bias.get(t, [c])))
                    };
                    let (mut mine, mut i) = (y.mine(t), 0);
                    while i < SLOTS {
                        let Some(y) = mine.next() else { return };
                        let [_, c] = y.at();
                        y.set(normed(c, first[i]));
                        i += 1;
                    }
                    for y in mine {
                        let [_, c] = y.at();
                        y.set(normed(c, x.get(t, [row, c])));
                    }
                });
            }
        }

        kernel! {
            /// Computes the gradient of the rows `x` from that of their norms, `dy`.
            pub(super) fn $backward<const SLOTS: usize>(
                b: impl Cooperative, rows: u32, columns: u32, add: bool, dy: In<f32>[rows, columns], x: In<f32>[rows, columns],
                stats: In<f32>[rows, 2], weight: In<f32>[columns], dx: InOut<f32>[rows, columns] by [block, rank],
            )
            instances { $($backwards)* }
            require { columns >= 1 }
            grid(rows) block($threads) $($shared)*
            {
                let (row, per_column) = (b.idx().x, 1.0 / columns as f32);
                let (mean, r) = (stats.get(&b, [row, 0]), stats.get(&b, [row, 1]));
                let gradient = move |t: &_, c| dy.get(t, [row, c]) * weight.get(t, [c]);
                let normed = move |t: &_, c| (x.get(t, [row, c]) - mean) * r;
                let g = b.each((), move |t, ()| slots::<SLOTS>(|c| if c < columns { gradient(t, c) } else { 0.0 }, t.rank(), $threads));
                let n = b.each((), move |t, ()| slots::<SLOTS>(|c| if c < columns { normed(t, c) } else { 0.0 }, t.rank(), $threads));
                let sums = b.each((&g, &n), move |t, (g, n)| {
                    let (g, n) = (g.get(t), n.get(t));
                    let (mut sum, mut product, mut i) = (0.0, 0.0, 0);
                    while i < SLOTS {
                        sum += g[i];
                        product = t.fma(g[i], n[i], product);
                        i += 1;
                    }
                    let mut c = t.rank() + $threads * SLOTS as u32;
                    while c < columns {
                        let g = gradient(t, c);
                        sum += g;
                        product = t.fma(g, normed(t, c), product);
                        c += $threads;
                    }
                    [sum, product]
                });
                let sum = b.each(&sums, |t, sums| sums.get(t)[0]);
                let product = b.each(&sums, |t, sums| sums.get(t)[1]);
                row_sums!($threads, b, sum product);
                b.each((&g, &n, &sum, &product), move |t, (g, n, sum, product)| {
                    let (g, n) = (g.get(t), n.get(t));
                    let (sum, product) = (sum.get(t) * per_column, product.get(t) * per_column);
                    // Eight old elements are loaded before one is stored: a load may not pass a
                    // store to the same buffer, so each would wait for the one before.
                    let (mut ahead, mut mine, mut i) = (dx.mine(t), dx.mine(t), 0);
                    while i < SLOTS {
                        let mut old = || if add { ahead.next().map_or(0.0, |dx| dx.get()) } else { 0.0 };
                        let old = [old(), old(), old(), old(), old(), old(), old(), old()];
                        let mut k = 0;
                        while k < 8 {
                            let Some(dx) = mine.next() else { return };
                            dx.set(old[k] + r * (g[i + k] - sum - n[i + k] * product));
                            k += 1;
                        }
                        i += 8;
                    }
                    for dx in mine {
                        let [_, c] = dx.at();
                        let v = r * (gradient(t, c) - sum - normed(t, c) * product);
                        dx.set(if add { dx.get() + v } else { v });
                    }
                });
            }
        }
    };
}
norms! {
    32:
    norm {
        norm_f32_256 = <f32, 8>, norm_f32_768 = <f32, 24>, norm_f32_1024 = <f32, 32>,
        norm_bf16_256 = <u16, 8>, norm_bf16_768 = <u16, 24>, norm_bf16_1024 = <u16, 32>,
    }
    norm_backward { norm_backward_256 = <8>, norm_backward_768 = <24>, norm_backward_1024 = <32> }
}
norms! {
    256:
    norm_wide { norm_f32_2048 = <f32, 8>, norm_bf16_2048 = <u16, 8> }
    norm_wide_backward { norm_backward_2048 = <8> }
    shared(2 * 32 * 4)
}

kernel! {
    /// Computes, for each group of `group` rows, the sums over the rows of `dy n` and of `dy`. They
    /// are parts of the gradients of weight and bias.
    pub(super) fn norm_columns(
        t: impl Simt, rows: u32, columns: u32, group: u32, dy: In<f32>[rows, columns], x: In<f32>[rows, columns],
        stats: In<f32>[rows, 2], parts: Out<f32>[2, groups = rows.div_ceil(group), columns] by [all, y, x],
    )
    require { group >= 1 }
    grid(columns.div_ceil(64), groups) block(64)
    {
        let (column, part) = (t.global_x(), t.global_y());
        if column < columns && part < groups {
            let (mut weight, mut bias, mut row) = (0.0, 0.0, part * group);
            let end = rows.min(row + group);
            let load = |row| {
                let n = (x.get(t, [row, column]) - stats.get(t, [row, 0])) * stats.get(t, [row, 1]);
                [dy.get(t, [row, column]), n]
            };
            while row + 8 <= end {
                let eight: [[f32; 2]; 8] = core::array::from_fn(|i| load(row + i as u32));
                let mut i = 0;
                while i < 8 {
                    let [dy, n] = eight[i];
                    weight = t.fma(dy, n, weight);
                    bias += dy;
                    i += 1;
                }
                row += 8;
            }
            while row < end {
                let [dy, n] = load(row);
                weight = t.fma(dy, n, weight);
                bias += dy;
                row += 1;
            }
            for sum in parts.mine(t) {
                let [k, ..] = sum.at();
                sum.set(if k == 0 { weight } else { bias });
            }
        }
    }
}
