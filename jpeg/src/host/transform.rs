//! Dequantization and the inverse DCT of a block on the host.
//!
//! ```text
//! for every column, as a lane: dequantize, then the one-dimensional inverse DCT, descaled by 2^11
//! for every row:               its product with the matrix of that transform, descaled by 2^18, plus 128, clamped to 0..255
//! ```
//!
//! - **The integers are those of the kernels**, so of libjpeg's "islow". All sums wrap, so those of
//!   rows may have another order: a sum of products with a matrix is the same number.
//! - **The matrix needs no transposition**: the compiler makes vectors of columns and of results,
//!   not of rows.
//! - **What is 0 is not computed.** Coefficients come in zigzag order, so the last one that is not
//!   0 bounds both sides of the rest.

/// The inverse DCT of 8 values, times 2^13 sqrt(8), as a matrix: what each value adds to each
/// result.
const MATRIX: [[i32; 8]; 8] = {
    let mut matrix = [[0; 8]; 8];
    let mut k = 0;
    while k < 8 {
        let mut unit = [0; 8];
        unit[k] = 1;
        matrix[k] = inverse(unit, 0);
        k += 1;
    }
    matrix
};

/// The number that is added before results are descaled by 2^18: a half, which rounds, and 128,
/// which is the middle of the samples.
const MIDDLE: i32 = (1 << 17) + (128 << 18);

/// For each number of coefficients in zigzag order, the number of columns that have any.
const COLUMNS: [u8; 65] = {
    let mut columns = [0; 65];
    let mut i = 0;
    while i < 64 {
        let own = crate::entropy::BY_ROWS[i] % 8 + 1;
        columns[i + 1] = if own > columns[i] { own } else { columns[i] };
        i += 1;
    }
    columns
};

/// Computes the inverse DCT of 8 values, times 2^13 sqrt(8), plus `more`.
#[inline(always)]
const fn inverse(v: [i32; 8], more: i32) -> [i32; 8] {
    const fn mul(a: i32, b: i32) -> i32 {
        a.wrapping_mul(b)
    }
    const fn add(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    const fn sub(a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }
    // The even part.
    let z1 = mul(add(v[2], v[6]), 4433);
    let low = add(z1, mul(v[6], -15137));
    let high = add(z1, mul(v[2], 6270));
    let (sum, difference) = (add(add(v[0], v[4]) << 13, more), add(sub(v[0], v[4]) << 13, more));
    let even = [add(sum, high), add(difference, low), sub(difference, low), sub(sum, high)];
    // The odd part.
    let (z1, z2) = (mul(add(v[7], v[1]), -7373), mul(add(v[5], v[3]), -20995));
    let (z3, z4) = (add(v[7], v[3]), add(v[5], v[1]));
    let z5 = mul(add(z3, z4), 9633);
    let (z3, z4) = (add(mul(z3, -16069), z5), add(mul(z4, -3196), z5));
    let odd = [
        add(add(mul(v[1], 12299), z1), z4),
        add(add(mul(v[3], 25172), z2), z3),
        add(add(mul(v[5], 16819), z2), z4),
        add(add(mul(v[7], 2446), z1), z3),
    ];
    [
        add(even[0], odd[0]),
        add(even[1], odd[1]),
        add(even[2], odd[2]),
        add(even[3], odd[3]),
        sub(even[3], odd[3]),
        sub(even[2], odd[2]),
        sub(even[1], odd[1]),
        sub(even[0], odd[0]),
    ]
}

/// Writes the samples of a block, whose coefficients lie row by row, to rows of `stride` samples.
/// The coefficients are 0 from number `last` on, in zigzag order.
#[inline(always)]
pub(super) fn transform(coefficients: &[i16; 64], steps: &[u16; 64], last: u32, to: &mut [u8], stride: usize) {
    if last <= 1 {
        let value = i32::from(coefficients[0]).wrapping_mul(i32::from(steps[0]));
        let value = (value << 13).wrapping_add(1 << 10) >> 11;
        let sample = ((value << 13).wrapping_add(MIDDLE) >> 18).clamp(0, 255) as u8;
        for row in to.chunks_mut(stride).take(8) {
            row[..8].fill(sample);
        }
        return;
    }
    let mut sums = [0_i32; 64];
    for x in 0..8 {
        let column: [i32; 8] = std::array::from_fn(|row| {
            let i = 8 * row + x;
            i32::from(coefficients[i]).wrapping_mul(i32::from(steps[i]))
        });
        for (row, value) in inverse(column, 1 << 10).into_iter().enumerate() {
            sums[8 * row + x] = value >> 11;
        }
    }
    if COLUMNS[last as usize & 63] <= 4 && last < 64 {
        rows::<4>(&sums, to, stride);
    } else {
        rows::<8>(&sums, to, stride);
    }
}

/// Transforms the rows, of which the first `N` columns are not 0.
#[inline(always)]
fn rows<const N: usize>(sums: &[i32; 64], to: &mut [u8], stride: usize) {
    for (row, to) in sums.as_chunks::<8>().0.iter().zip(to.chunks_mut(stride)) {
        let mut values = [MIDDLE; 8];
        for (value, weights) in row[..N].iter().zip(&MATRIX) {
            for (sum, weight) in values.iter_mut().zip(weights) {
                *sum = i32::wrapping_add(*sum, value.wrapping_mul(*weight));
            }
        }
        for (to, value) in to[..8].iter_mut().zip(values) {
            *to = (value >> 18).clamp(0, 255) as u8;
        }
    }
}
