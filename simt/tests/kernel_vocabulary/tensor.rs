use half::{bf16, f16};
use testkit::devices::report;
use thalweg::{DeviceSlice, Error, PerThread, Stream};
use vocabulary::tensor::{COPIED, LOADED, copies, matrices, product_bf16, product_f16, product_tf32};

use super::{noise, on_each_device};

/// Runs `check` on every device that has tensor cores, and on the CPU device.
fn on_each_tensor_device(mut check: impl for<'l> FnMut(&Stream<PerThread<'l>>)) {
    on_each_device(|s| match s.device().compute_capability() {
        Some(capability) if capability.major < 8 => {
            report(&format!("NOT COVERED: {} has no tensor operations", s.device()))
        }
        _ => check(s),
    });
}

#[test]
fn asynchronous_copies_move_and_clear_words() {
    let mut noise = noise(5);
    let from: Vec<u32> = (0..COPIED).map(|_| noise()).collect();
    on_each_tensor_device(|s| {
        let x = s.upload_blocking(&from).unwrap();
        for keep in [u32::MAX, 0, 0x8000_0001, 0x0ff0_5aa5] {
            let mut y = s.upload_blocking(&vec![7u32; COPIED as usize]).unwrap();
            copies(s, keep, &x, &mut y).unwrap();
            let lane = |i: usize| match i {
                0..32 => i,
                32..96 => (i - 32) / 2,
                _ => (i - 96) / 4,
            };
            let expected: Vec<u32> =
                from.iter().enumerate().map(|(i, v)| if keep >> lane(i) & 1 == 1 { *v } else { 0 }).collect();
            assert_eq!(s.read_blocking(&y).unwrap(), expected, "{keep:#x} on {}", s.device());
        }
    });
}

#[test]
fn each_lane_gets_its_part_of_loaded_matrices() {
    let rows: Vec<u16> = (0..256).map(|i| i * 251).collect();
    on_each_tensor_device(|s| {
        let x = s.upload_blocking(&rows).unwrap();
        let mut words = s.alloc::<u32>(32 * LOADED as usize).unwrap();
        matrices(s, &x, &mut words).unwrap();
        let words = s.read_blocking(&words).unwrap();
        let element = |matrix: usize, row: usize, column: usize| u32::from(rows[64 * matrix + 8 * row + column]);
        for (lane, words) in words.chunks(LOADED as usize).enumerate() {
            let (g, t) = (lane / 4, lane % 4);
            let plain = |m: usize| element(m, g, 2 * t) | element(m, g, 2 * t + 1) << 16;
            let transposed = |m: usize| element(m, 2 * t, g) | element(m, 2 * t + 1, g) << 16;
            let order = [0, 0, 1, 0, 1, 2, 3];
            let expected: Vec<u32> = order.map(plain).into_iter().chain(order.map(transposed)).collect();
            assert_eq!(words, expected, "lane {lane} on {}", s.device());
        }
    });
}

/// Numbers from -4 to 4.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut noise = noise(seed);
    (0..count).map(|_| noise() as f32 / (1u64 << 29) as f32 - 4.0).collect()
}

/// Compares a product of fragments with the product of the matrices, and each fragment with the
/// tables of the PTX ISA. `a_at` and `b_at` return row and column of element `e` of a lane, and
/// `bits` rounds a number to the bits of an element.
fn check_product<const K: usize>(
    product: impl for<'l> Fn(
        &Stream<PerThread<'l>>,
        &DeviceSlice<PerThread<'l>, u32>,
        &DeviceSlice<PerThread<'l>, u32>,
        &DeviceSlice<PerThread<'l>, f32>,
        &mut DeviceSlice<PerThread<'l>, f32>,
    ) -> Result<(), Error>,
    per_word: usize,
    a_at: fn(usize, usize, usize) -> (usize, usize),
    b_at: fn(usize, usize, usize) -> (usize, usize),
    bits: fn(f32) -> (u32, f32),
) {
    let (a, b, c) = (numbers(16 * K, 1), numbers(K * 8, 2), numbers(16 * 8, 3));
    // Elements are packed two in a word, or one.
    let pack = |matrix: &[f32], columns: usize, words: usize, at: fn(usize, usize, usize) -> (usize, usize)| {
        let mut packed = vec![0; 32 * words];
        for lane in 0..32 {
            for e in 0..words * per_word {
                let (row, column) = at(lane / 4, lane % 4, e);
                packed[lane * words + e / per_word] |= bits(matrix[row * columns + column]).0 << (16 * (e % per_word));
            }
        }
        packed
    };
    let sum_at = |lane: usize, e: usize| (lane / 4 + 8 * (e / 2), 2 * (lane % 4) + e % 2);
    let sums: Vec<f32> = (0..128).map(|i| sum_at(i / 4, i % 4)).map(|(row, column)| c[row * 8 + column]).collect();
    on_each_tensor_device(|s| {
        let x = s.upload_blocking(&pack(&a, K, 4, a_at)).unwrap();
        let y = s.upload_blocking(&pack(&b, 8, 2, b_at)).unwrap();
        let z = s.upload_blocking(&sums).unwrap();
        let mut d = s.alloc::<f32>(128).unwrap();
        product(s, &x, &y, &z, &mut d).unwrap();
        for (i, got) in s.read_blocking(&d).unwrap().into_iter().enumerate() {
            let (row, column) = sum_at(i / 4, i % 4);
            let value = |v: f32| f64::from(bits(v).1);
            let products = (0..K).map(|k| value(a[row * K + k]) * value(b[k * 8 + column]));
            let expected = products.sum::<f64>() + f64::from(c[row * 8 + column]);
            // The largest sum of magnitudes is 260. A GPU may cut digits of the products off.
            assert!((f64::from(got) - expected).abs() < 1e-4, "{got} is not {expected} on {}", s.device());
        }
    });
}

fn a_16(g: usize, t: usize, e: usize) -> (usize, usize) {
    (g + 8 * (e / 2 % 2), 2 * t + e % 2 + 8 * (e / 4))
}

fn b_16(g: usize, t: usize, e: usize) -> (usize, usize) {
    (2 * t + e % 2 + 8 * (e / 2), g)
}

#[test]
fn products_of_halves() {
    let bits = |v| (u32::from(f16::from_f32(v).to_bits()), f16::from_f32(v).to_f32());
    check_product::<16>(|s, a, b, c, d| product_f16(s, a, b, c, d), 2, a_16, b_16, bits);
}

#[test]
fn products_of_bfloat16() {
    let bits = |v| (u32::from(bf16::from_f32(v).to_bits()), bf16::from_f32(v).to_f32());
    check_product::<16>(|s, a, b, c, d| product_bf16(s, a, b, c, d), 2, a_16, b_16, bits);
}

#[test]
fn products_of_tf32() {
    // The lower digits are there and do not count.
    let bits = |v: f32| (v.to_bits(), f32::from_bits(v.to_bits() & !0x1fff));
    let a_at = |g, t, e| (g + 8 * (e % 2), t + 4 * (e / 2));
    let b_at = |g, t, e| (t + 4 * e, g);
    check_product::<8>(|s, a, b, c, d| product_tf32(s, a, b, c, d), 1, a_at, b_at, bits);
}
