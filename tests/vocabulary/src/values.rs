//! Structs, arrays and truth values by value.

use thalweg_simt::{by_value, kernel};

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
