//! Sums over the rows of a matrix: gradients of biases.
//!
//! Launch: a thread for each column and each group of rows. A first launch sums the rows of each
//! group, and a second one the groups, so the order of the additions depends on the shape alone. In
//! the second one 16 threads share a column: with one for each, a few blocks wait for a hundred
//! loads after another.

use thalweg_simt::kernel;

use super::number::Stored;

kernel! {
    /// Sums each group of `group` rows. With `add`, the sums are added to `sums`.
    pub(super) fn sum_rows<E: Stored>(
        t: impl Simt, rows: u32, columns: u32, group: u32, add: bool, x: In<E>[rows, columns],
        sums: InOut<f32>[groups = rows.div_ceil(group), columns] by [y, x],
    )
    instances { columns_f32 = <f32>, columns_bf16 = <u16> }
    require { group >= 1 }
    grid(columns.div_ceil(64), groups) block(64)
    {
        if let Some(cell) = sums.cell(t) {
            let [part, column] = cell.at();
            let (mut sum, mut row) = (0.0, part * group);
            let end = rows.min(row + group);
            // The loads of eight rows wait together.
            while row + 8 <= end {
                let eight: [f32; 8] = core::array::from_fn(|i| x.get(t, [row + i as u32, column]).wide());
                let mut i = 0;
                while i < 8 {
                    sum += eight[i];
                    i += 1;
                }
                row += 8;
            }
            while row < end {
                sum += x.get(t, [row, column]).wide();
                row += 1;
            }
            cell.set(if add { cell.get() + sum } else { sum });
        }
    }
}

kernel! {
    /// Adds the sums of groups. With `add`, they are added to `sums`. Each warp of a block of 32
    /// columns adds every 16th group.
    pub(super) fn add_groups(
        b: impl Cooperative, groups: u32, columns: u32, add: bool, parts: In<f32>[groups, columns],
        sums: InOut<f32>[columns] by [x],
    )
    grid(columns.div_ceil(32)) block(32, 16) shared(32 * 16 * 4)
    {
        let first = b.idx().x * 32;
        let part = b.each((), move |t, ()| {
            let (column, mut group, mut sum) = (first + t.rank() % 32, t.rank() / 32, 0.0);
            if column < columns {
                // The loads of eight groups wait together.
                while group < groups {
                    let eight: [f32; 8] =
                        core::array::from_fn(|i| parts.try_get(t, [group + 16 * i as u32, column]).unwrap_or(0.0));
                    let mut i = 0;
                    while i < 8 {
                        sum += eight[i];
                        i += 1;
                    }
                    group += 8 * 16;
                }
            }
            sum
        });
        let window = b.shared::<f32>(32 * 16);
        let filled = b.publish(window, &part);
        let warps = b.sync(filled.read());
        b.each(&warps, move |t, warps| {
            if let Some(cell) = sums.cell(t) {
                let (mut sum, mut warp) = (0.0, 0);
                while warp < 16 {
                    sum += warps.get(t, t.rank() + 32 * warp);
                    warp += 1;
                }
                cell.set(if add { cell.get() + sum } else { sum });
            }
        });
    }
}

kernel! {
    /// Computes, for each group of `group` rows and each column of `x`, the sums over the rows of
    /// the products with both columns of `y`. They are parts of `x^T y`.
    pub(super) fn products_with_two(
        t: impl Simt, rows: u32, columns: u32, group: u32, x: In<f32>[rows, columns], y: In<f32>[rows, 2],
        parts: Out<f32>[groups = rows.div_ceil(group), columns, 2] by [y, x, all],
    )
    require { group >= 1 }
    grid(columns.div_ceil(64), groups) block(64)
    {
        let (column, part) = (t.global_x(), t.global_y());
        if column < columns && part < groups {
            let (mut sums, mut row) = ([0.0; 2], part * group);
            let end = rows.min(row + group);
            let load = |row| [x.get(t, [row, column]), y.get(t, [row, 0]), y.get(t, [row, 1])];
            // The loads of eight rows wait together.
            while row + 8 <= end {
                let eight: [[f32; 3]; 8] = core::array::from_fn(|i| load(row + i as u32));
                let mut i = 0;
                while i < 8 {
                    let [x, a, b] = eight[i];
                    sums = [t.fma(x, a, sums[0]), t.fma(x, b, sums[1])];
                    i += 1;
                }
                row += 8;
            }
            while row < end {
                let [x, a, b] = load(row);
                sums = [t.fma(x, a, sums[0]), t.fma(x, b, sums[1])];
                row += 1;
            }
            for sum in parts.mine(t) {
                let [.., k] = sum.at();
                sum.set(if k == 0 { sums[0] } else { sums[1] });
            }
        }
    }
}
