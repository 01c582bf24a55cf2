//! The matrix operations of a warp. The layouts of fragments are those in
//! [`TensorCore`](crate::TensorCore).

/// The lanes of a warp.
const WARP: usize = 32;

/// The words that a lane gives and gets.
pub(super) const WIDE: usize = 10;

/// Distributes the rows that the lanes have loaded, as `ldmatrix` does.
pub(super) fn distribute(words: &mut [[u32; WIDE]; WARP], transposed: bool) {
    let rows = *words;
    // The 16-bit element in this row and column of matrix `j`.
    let element = |j: usize, row: usize, column: usize| rows[8 * j + row][column / 2] >> (16 * (column % 2)) & 0xffff;
    for (lane, words) in words.iter_mut().enumerate() {
        let (outer, inner) = (lane / 4, 2 * (lane % 4));
        for (j, word) in words[..4].iter_mut().enumerate() {
            *word = if transposed {
                element(j, inner, outer) | element(j, inner + 1, outer) << 16
            } else {
                element(j, outer, inner) | element(j, outer, inner + 1) << 16
            };
        }
    }
}

/// Computes `A * B + C` for elements of 16 bits, which `value` converts, as `mma.m16n8k16` does.
/// The first four words of each lane become its sums.
pub(super) fn multiply_16(words: &mut [[u32; WIDE]; WARP], value: impl Fn(u16) -> f32) {
    let (mut a, mut b) = ([[0.0; 16]; 16], [[0.0; 8]; 16]);
    for (lane, words) in words.iter().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        let half = |e: usize, first: usize| value((words[first + e / 2] >> (16 * (e % 2))) as u16);
        for e in 0..8 {
            a[g + 8 * (e / 2 % 2)][2 * t + e % 2 + 8 * (e / 4)] = half(e, 0);
        }
        for e in 0..4 {
            b[2 * t + e % 2 + 8 * (e / 2)][g] = half(e, 4);
        }
    }
    add_products(words, &a, &b);
}

/// Computes `A * B + C` for elements in tf32, as `mma.m16n8k8` does.
pub(super) fn multiply_tf32(words: &mut [[u32; WIDE]; WARP]) {
    let (mut a, mut b) = ([[0.0; 8]; 16], [[0.0; 8]; 8]);
    // Of the fraction, the operation uses the upper 10 bits of 23.
    let value = |bits: u32| f32::from_bits(bits & !0x1fff);
    for (lane, words) in words.iter().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for e in 0..4 {
            a[g + 8 * (e % 2)][t + 4 * (e / 2)] = value(words[e]);
        }
        for e in 0..2 {
            b[t + 4 * e][g] = value(words[4 + e]);
        }
    }
    add_products(words, &a, &b);
}

/// Adds the products to the sums in words 6 to 9 of each lane, and leaves the result in words 0 to
/// 3.
fn add_products<const K: usize>(words: &mut [[u32; WIDE]; WARP], a: &[[f32; K]; 16], b: &[[f32; 8]; K]) {
    for (lane, words) in words.iter_mut().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for e in 0..4 {
            let (row, column) = (g + 8 * (e / 2), 2 * t + e % 2);
            // A product of two elements is exact in `f32`: each has at most 11 digits.
            let products = (0..K).map(|k| a[row][k] * b[k][column]);
            words[e] = products.fold(f32::from_bits(words[6 + e]), |sum, product| sum + product).to_bits();
        }
    }
}

/// Returns a matrix of 16 x 32 bytes, whose fragments the lanes hold.
pub(super) fn bytes_16(signed: bool, lane: impl Fn(usize) -> [u32; 4]) -> [[i16; 32]; 16] {
    let mut a = [[0; 32]; 16];
    for l in 0..WARP {
        let (g, t) = (l / 4, l % 4);
        for (w, word) in lane(l).into_iter().enumerate() {
            for (e, byte) in word.to_le_bytes().into_iter().enumerate() {
                a[g + 8 * (w % 2)][4 * t + e + 16 * (w / 2)] = if signed { (byte as i8).into() } else { byte.into() };
            }
        }
    }
    a
}

/// Returns the columns of a matrix of 32 x 8 bytes, whose fragments the lanes hold.
pub(super) fn columns_8(lane: impl Fn(usize) -> [u32; 2]) -> [[i16; 32]; 8] {
    let mut b = [[0; 32]; 8];
    for l in 0..WARP {
        let (g, t) = (l / 4, l % 4);
        for (w, word) in lane(l).into_iter().enumerate() {
            for (e, byte) in word.to_le_bytes().into_iter().enumerate() {
                b[g][4 * t + e + 16 * w] = byte.into();
            }
        }
    }
    b
}

/// Adds the products of a lane to its sums, as `mma.m16n8k32` does.
pub(super) fn products(a: &[[i16; 32]; 16], b: &[[i16; 32]; 8], lane: usize, sums: [i32; 4]) -> [i32; 4] {
    let (g, t) = (lane / 4, lane % 4);
    std::array::from_fn(|e| {
        let (row, column) = (&a[g + 8 * (e / 2)], &b[2 * t + e % 2]);
        // The sum of 32 products of bytes does not wrap.
        let products: i32 = row.iter().zip(column).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
        sums[e].wrapping_add(products)
    })
}

/// Returns the value of an IEEE half.
pub(super) fn f16(bits: u16) -> f32 {
    let (sign, magnitude) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let v = if magnitude >= 0x7c00 {
        f32::from_bits(0x7f80_0000 | (magnitude & 0x3ff) << 13)
    } else {
        // The exponent moves from bias 15 to bias 127 by the multiplication, which is exact. So
        // subnormal halves are right too.
        f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23)
    };
    f32::from_bits(v.to_bits() | sign)
}

/// Returns the value of a bfloat16.
pub(super) fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
