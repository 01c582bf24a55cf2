//! The families with few kernels: `augment`, `collective` and `linear`.

use thalweg_kernels::augment::{
    BLUR, FLIP, RECORD_WORDS, ROWS, STEP_WORDS, SUM_COLUMNS, augment_bf16, augment_f32, finish_bf16, finish_f32,
    measure,
};
use thalweg_kernels::collective::{ReduceOp, reduce, reduce_in_place};
use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut, Operand, Product, matmul};
use thalweg_simt::host::LaunchError;
use thalweg_simt::{bf16, f16};

use crate::device::{Timed, buffer, noise, number, of, zeros};

/// Launches the kernels of `augment` and `collective`.
pub(crate) fn launch(on: &Timed) -> Result<(), LaunchError> {
    augmentation(on)?;
    let (ranks, n) = (3, 20_000);
    macro_rules! reductions {
        ($($t:ty: $value:expr;)*) => {$(
            reduce::<(), _, $t>(on, ReduceOp::Sum, ranks, buffer(ranks as usize * n, $value), buffer(n, $value))?;
            let rows = buffer((ranks - 1) as usize * n, $value);
            reduce_in_place::<(), _, $t>(on, ReduceOp::Sum, 4, [1, ranks], buffer(n, $value), rows)?;
        )*};
    }
    reductions! {
        f32: number;
        f64: |i| f64::from(number(i));
        f16: |i| f16::from_f32(number(i));
        bf16: |i| bf16::from_f32(number(i));
        i32: |i| i32::from(noise(i));
        u32: |i| u32::from(noise(i));
        i64: |i| i64::from(noise(i));
        u64: |i| u64::from(noise(i));
        u8: noise;
    }
    Ok(())
}

/// Augments a crop of an image, flipped and blurred.
fn augmentation(on: &Timed) -> Result<(), LaunchError> {
    let (size, side) = (112_u32, 128_u32);
    let mut record = [0; RECORD_WORDS as usize];
    record[2..8].copy_from_slice(&[side, 8, 8, 96, 100, FLIP | BLUR]);
    for (word, v) in record[8..15].iter_mut().zip([1.1_f32, 0.9, 1.2, 0.4, 0.2, 0.07, 0.03]) {
        *word = v.to_bits();
    }
    let records = of(&record);
    let bytes = 3 * side * side;
    let rgb = buffer(bytes as usize, noise);
    let sums = zeros((size.div_ceil(SUM_COLUMNS) * size.div_ceil(ROWS)) as usize);
    let (bytes, n, luma) = (u64::from(bytes), (3 * size * size) as usize, [0.299, 0.587, 0.114]);
    measure(on, 1, size, bytes, luma, records, rgb, sums)?;
    let (scale, shift) = ([4.0; 3], [-2.0; 3]);
    augment_f32(on, 1, size, bytes, true, true, luma, scale, shift, records, rgb, sums, zeros(n))?;
    let out = buffer(n, |_| bf16::from_f32(0.0));
    augment_bf16(on, 1, size, bytes, true, true, luma, scale, shift, records, rgb, sums, out)?;
    // A rotation by 30 degrees and a shift of the hue.
    let mut step = [0; STEP_WORDS as usize];
    step[1..6].copy_from_slice(&[1_f32.to_bits(), 0, 0.5_f32.to_bits(), 929_887_697, 1 << 29]);
    finish_f32(on, 1, size, of(&step), buffer(n, number), zeros(n))?;
    finish_bf16(on, 1, size, of(&step), buffer(n, number), out)
}

/// Multiplies matrices of 128 x 128 in each form, and operands that are not aligned.
pub(crate) fn products<T: Operand + Product<T>>(on: &Timed, value: impl Fn(usize) -> T) -> Result<(), LaunchError> {
    let data = buffer(128 * 129, &value);
    let x = Matrix::new(data, 128, 128);
    let unaligned = x.with_stride(129);
    for (a, b) in [(x, x), (x, x.transposed()), (x.transposed(), x), (unaligned, x)] {
        let c = MatrixMut::new(buffer(128 * 128, &value), 128, 128);
        matmul::<(), _, T, T>(on, 1, a, b, &Epilogue::default(), c)?;
    }
    Ok(())
}
