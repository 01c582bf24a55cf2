//! Layer norm, forward and backward.
//!
//! ```text
//! n = (x - mean) r, r = 1 / sqrt(population variance + eps);  y = n weight + bias
//! g = dy weight;    dx = r (g - mean(g) - n mean(g n));       dweight = sum of dy n;  dbias = sum of dy
//! ```
//!
//! Launch: a block of one warp for each row; for the sums over rows a thread for each column and each
//! group of rows.
//! Memory: a row is read three times, twice from the L1 cache.
//!
//! - **A row has one warp**, so its sums are butterflies of the warp, and no barrier is needed.
//! - **The variance is the mean of squares of differences from the mean**, so large means do not
//!   cancel.

use thalweg_simt::kernel;

use super::number::Stored;

macro_rules! norm {
    ($($(#[$doc:meta])* $name:ident <$e:ident>;)*) => {$(
        kernel! {
            $(#[$doc])*
            pub(super) fn $name(
                b: impl Cooperative, rows: u32, columns: u32, eps: f32, x: In<f32>[rows, columns],
                weight: In<f32>[columns], bias: In<f32>[columns], stats: Out<f32>[rows, 2] by [block, rank],
                y: Out<$e>[rows, columns] by [block, rank],
            )
            require { columns >= 1 }
            grid(rows) block(32)
            {
                let (row, per_column) = (b.idx().x, 1.0 / columns as f32);
                let sum = b.each((), move |t, ()| {
                    let (mut sum, mut c) = (0.0, t.rank());
                    while c < columns {
                        sum += x.get(t, [row, c]);
                        c += 32;
                    }
                    sum
                });
                let sum = b.warp_sum(&sum);
                let squares = b.each(&sum, move |t, sum| {
                    let (mean, mut squares, mut c) = (sum.get(t) * per_column, 0.0, t.rank());
                    while c < columns {
                        let off = x.get(t, [row, c]) - mean;
                        squares = t.fma(off, off, squares);
                        c += 32;
                    }
                    squares
                });
                let squares = b.warp_sum(&squares);
                b.each((&sum, &squares), move |t, (sum, squares)| {
                    let mean = sum.get(t) * per_column;
                    let r = 1.0 / t.sqrt(squares.get(t) * per_column + eps);
                    for stat in stats.mine(t) {
                        let [_, k] = stat.at();
                        stat.set(if k == 0 { mean } else { r });
                    }
                    for y in y.mine(t) {
                        let [_, c] = y.at();
                        let n = (x.get(t, [row, c]) - mean) * r;
                        y.set($e::narrow(t.fma(n, weight.get(t, [c]), bias.get(t, [c]))));
                    }
                });
            }
        }
    )*};
}
norm! {
    /// Normalises each row, and stores its mean and 1 / its standard deviation in `stats`.
    norm_f32 <f32>;
    /// Does the same as [`norm_f32`] and rounds the result to `bf16`.
    norm_bf16 <u16>;
}

kernel! {
    /// Computes the gradient of the rows `x` from that of their norms, `dy`. With `add`, it is added
    /// to `dx`.
    pub fn norm_backward(
        b: impl Cooperative, rows: u32, columns: u32, add: bool, dy: In<f32>[rows, columns], x: In<f32>[rows, columns],
        stats: In<f32>[rows, 2], weight: In<f32>[columns], dx: InOut<f32>[rows, columns] by [block, rank],
    )
    require { columns >= 1 }
    grid(rows) block(32)
    {
        let (row, per_column) = (b.idx().x, 1.0 / columns as f32);
        let (mean, r) = (stats.get(&b, [row, 0]), stats.get(&b, [row, 1]));
        let sums = b.each((), move |t, ()| {
            let (mut sum, mut product, mut c) = (0.0, 0.0, t.rank());
            while c < columns {
                let g = dy.get(t, [row, c]) * weight.get(t, [c]);
                sum += g;
                product = t.fma(g, (x.get(t, [row, c]) - mean) * r, product);
                c += 32;
            }
            [sum, product]
        });
        let sum = b.each(&sums, |t, sums| sums.get(t)[0]);
        let product = b.each(&sums, |t, sums| sums.get(t)[1]);
        let (sum, product) = (b.warp_sum(&sum), b.warp_sum(&product));
        b.each((&sum, &product), move |t, (sum, product)| {
            let (sum, product) = (sum.get(t) * per_column, product.get(t) * per_column);
            for dx in dx.mine(t) {
                let [_, c] = dx.at();
                let g = dy.get(t, [row, c]) * weight.get(t, [c]);
                let n = (x.get(t, [row, c]) - mean) * r;
                let v = r * (g - sum - n * product);
                dx.set(if add { dx.get() + v } else { v });
            }
        });
    }
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
            while row < end {
                let dy = dy.get(t, [row, column]);
                let n = (x.get(t, [row, column]) - stats.get(t, [row, 0])) * stats.get(t, [row, 1]);
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
