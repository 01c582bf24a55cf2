//! Structs, arrays, numbers of 16 bits and truth values by value, and bounds of a launch.

use thalweg_simt::{bf16, by_value, f16, kernel};

by_value! {
    /// The size of an image.
    #[derive(Clone, Copy, Debug)]
    pub struct Size {
        /// The number of columns.
        pub width: u32,
        /// The number of rows.
        pub height: u32,
    }
}

by_value! {
    /// Fields of several sizes, one of them a struct.
    #[derive(Clone, Copy, Debug)]
    pub struct Paint {
        /// What is added to the sum.
        pub offset: f64,
        /// The size of the output.
        pub size: Size,
        /// The factors of the column, the row and `add[0]`.
        pub weights: [f32; 3],
        /// The first factor of the step.
        pub step: i16,
        /// The second factor of the step.
        pub scale: u8,
        /// Whether the step is added or subtracted.
        pub upwards: bool,
    }
}

by_value! {
    /// More than a launch carries without an allocation.
    #[derive(Clone, Copy, Debug)]
    pub struct Table {
        /// The values.
        pub values: [u32; 200],
    }
}

kernel! {
    /// Writes for each pixel what all fields and all elements together give.
    pub unsafe fn paint(cx: impl Simt, before: u8, paint: Paint, add: [f32; 2], negate: bool, out: Out<f64>)
    require { out.len() == paint.size.width * paint.size.height, add[0] >= 0.0, paint.step > -100 }
    grid(paint.size.width.div_ceil(8), paint.size.height.div_ceil(4)) block(8, 4)
    {
        let (x, y) = (cx.global_x(), cx.global_y());
        if x < paint.size.width && y < paint.size.height {
            let at = f64::from(x) * f64::from(paint.weights[0]) + f64::from(y) * f64::from(paint.weights[1]);
            let both = f64::from(paint.weights[2]) * f64::from(add[0]) - f64::from(add[1]);
            let step = f64::from(paint.step) * f64::from(paint.scale) + f64::from(before);
            let sum = at + both + paint.offset + if paint.upwards { step } else { -step };
            out.set(cx, y * paint.size.width + x, if negate { -sum } else { sum });
        }
    }
}

kernel! {
    /// Writes each value of a table that is passed by value.
    pub unsafe fn tabulate(cx: impl Simt, first: u64, table: Table, last: bool, out: Out<u64>)
    require { out.len() == 200 }
    grid(1) block(200)
    {
        let i = cx.global_x();
        out.set(cx, i, first + u64::from(table.values[i as usize]) + u64::from(last));
    }
}

kernel! {
    /// Writes numbers of 16 bits that are passed by value.
    pub unsafe fn halves(cx: impl Simt, a: f16, b: bf16, both: [bf16; 2], last: u8, out: Out<f32>)
    require { a > 0.5, both[0] < 0.0, out.len() == 5 }
    grid(1) block(5)
    {
        let i = cx.thread_idx().x;
        let v = match i {
            0 => a.to_f32(),
            1 => b.to_f32(),
            2 => both[0].to_f32(),
            3 => both[1].to_f32(),
            _ => f32::from(last),
        };
        out.set(cx, i, v);
    }
}

kernel! {
    /// Multiplies numbers of 16 bits by one that is passed by value.
    pub fn halves_times(t: impl Simt, n: u32, by: bf16, x: In<f16>[n], y: Out<f32>[n] by [x])
    grid(n.div_ceil(64)) block(64)
    {
        if let Some(y) = y.cell(t) {
            y.set(x.get(t, y.at()).to_f32() * by.to_f32());
        }
    }
}

/// The most threads of a block of [`bounded`].
pub const MOST: u32 = 96;

kernel! {
    /// Counts the threads of a block of any size up to a bound.
    pub unsafe fn bounded(cx: impl Cooperative, threads: u32, out: Out<u32>)
    require { out.len() == 2 }
    grid(2) block(threads) bounds(MOST, 4)
    {
        let count = cx.barrier_count(true);
        if cx.rank() == 0 {
            out.set(cx, cx.block_idx().x, count);
        }
    }
}

kernel! {
    /// Writes the positions of threads, in blocks of any size up to a bound.
    pub fn bounded_positions(t: impl Simt, n: u32, threads: u32, out: Out<u32>[n] by [x])
    require { threads > 0 }
    grid(n.div_ceil(threads)) block(threads) bounds(64)
    {
        if let Some(out) = out.cell(t) {
            out.set(out.at()[0]);
        }
    }
}
