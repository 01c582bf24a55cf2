use thalweg::simt::{bf16, bf16x2, f16, f16x2};
use vocabulary::half::{RESULTS, bfloats, extend, halves, round};

use super::{noise, on_each_device};

/// Gives values that are hard to round: each number of both types, the middle between it and the
/// next one, and the values beside this middle; special values; and a value in every 50,000th of
/// all.
fn values() -> Vec<f32> {
    let numbers = (0..=u16::MAX).flat_map(|bits| {
        let half = |bits| ::half::f16::from_bits(bits).to_f32();
        let bfloat = |bits| ::half::bf16::from_bits(bits).to_f32();
        [[half(bits), half(bits.wrapping_add(1))], [bfloat(bits), bfloat(bits.wrapping_add(1))]]
    });
    let special = [0.0, -0.0, 65504.0, 65519.99, 65520.0, f32::MAX, f32::INFINITY, f32::NAN, f32::from_bits(1)];
    numbers
        .flat_map(|[low, high]| {
            let middle = ((f64::from(low) + f64::from(high)) * 0.5) as f32;
            [low, middle.next_down(), middle, middle.next_up()]
        })
        .chain(special.into_iter().flat_map(|v| [v, -v]))
        .chain((0..=u32::MAX).step_by(49_999).map(f32::from_bits))
        .collect()
}

#[test]
fn numbers_of_16_bits_are_the_nearest() {
    let x = values();
    on_each_device(|s| {
        let from = s.upload_blocking(&x).unwrap();
        let (mut a, mut b) = (s.alloc::<f16>(x.len()).unwrap(), s.alloc::<bf16>(x.len()).unwrap());
        let (mut c, mut d) = (s.alloc::<f16x2>(x.len()).unwrap(), s.alloc::<bf16x2>(x.len()).unwrap());
        round(s, x.len() as u32, &from, &mut a, &mut b, &mut c, &mut d).unwrap();
        let (a, b) = (s.read_blocking(&a).unwrap(), s.read_blocking(&b).unwrap());
        let (c, d) = (s.read_blocking(&c).unwrap(), s.read_blocking(&d).unwrap());
        let half = |v: f32| if v.is_nan() { 0x7fff } else { ::half::f16::from_f32(v).to_bits() };
        let bfloat = |v: f32| if v.is_nan() { 0x7fff } else { ::half::bf16::from_f32(v).to_bits() };
        for (i, &v) in x.iter().enumerate() {
            let got = [a[i].to_bits(), c[i].low().to_bits(), c[i].high().to_bits()];
            assert_eq!(got, [half(v), half(v), half(-v)], "{v:e} to f16 on {}", s.device());
            let got = [b[i].to_bits(), d[i].low().to_bits(), d[i].high().to_bits()];
            assert_eq!(got, [bfloat(v), bfloat(v), bfloat(-v)], "{v:e} to bf16 on {}", s.device());
        }
    });
}

#[test]
fn every_number_of_16_bits_is_an_f32() {
    let (a, b): (Vec<f16>, Vec<bf16>) =
        (0..=u16::MAX).map(|bits| (f16::from_bits(bits), bf16::from_bits(bits))).unzip();
    let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
    on_each_device(|s| {
        let (from, bfloats) = (s.upload_blocking(&a).unwrap(), s.upload_blocking(&b).unwrap());
        let (mut x, mut y) = (s.alloc::<f32>(a.len()).unwrap(), s.alloc::<f32>(a.len()).unwrap());
        extend(s, a.len() as u32, &from, &bfloats, &mut x, &mut y).unwrap();
        let (x, y) = (s.read_blocking(&x).unwrap(), s.read_blocking(&y).unwrap());
        for bits in 0..=u16::MAX {
            let (half, bfloat) = (::half::f16::from_bits(bits).to_f32(), ::half::bf16::from_bits(bits).to_f32());
            let (x, y) = (x[usize::from(bits)], y[usize::from(bits)]);
            assert!(same(x, half) && same(y, bfloat), "{bits:#x}: {x}, {y} on {}", s.device());
            assert_eq!(
                (a[usize::from(bits)].is_nan(), b[usize::from(bits)].is_nan()),
                (half.is_nan(), bfloat.is_nan())
            );
        }
    });
}

/// Rounds to `digits` binary digits, or to a multiple of the last place of subnormal numbers, whose
/// exponent is `least`. Ties go to the even number. (The crate `half` cuts digits of `f64` off
/// first.)
fn rounded(v: f64, digits: i32, least: i32) -> f32 {
    if v == 0.0 || !v.is_finite() {
        return v as f32;
    }
    let exponent = (v.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let place = 2f64.powi((exponent - digits + 1).max(least));
    ((v / place).round_ties_even() * place) as f32
}

/// Gives triples of bits: those of all pairs of special numbers, and random ones, half of them with
/// exponents that are close to one another.
fn triples(infinity: u16, digits: u32) -> Vec<[u16; 3]> {
    let mut noise = noise(u64::from(infinity));
    let hidden = 1u16 << (digits - 1);
    let corners = [0, 1, 2, hidden - 1, hidden, hidden + 1, infinity / 2, infinity - 1, infinity, infinity + 1];
    let signed = corners.into_iter().flat_map(|bits| [bits, bits | 0x8000]);
    let mut triples: Vec<[u16; 3]> =
        signed.clone().flat_map(|a| signed.clone().flat_map(move |b| corners.map(|c| [a, b, c]))).collect();
    for _ in 0..100_000 {
        let [a, b, c] = [0; 3].map(|_| noise() as u16);
        triples.push([a, b, c]);
        let close = |v: u16| (v & (4 * hidden - 1)).wrapping_add(infinity / 2) | v & 0x8000;
        triples.push([close(a), close(b), close(c)]);
    }
    triples
}

#[test]
fn arithmetic_of_halves_is_rounded_once() {
    let triples = triples(0x7c00, 11);
    let column = |k: usize| -> Vec<f16> { triples.iter().map(|triple| f16::from_bits(triple[k])).collect() };
    on_each_device(|s| {
        let [a, b, c] = [0, 1, 2].map(|k| s.upload_blocking(&column(k)).unwrap());
        let mut results = s.alloc::<f16>(triples.len() * RESULTS as usize).unwrap();
        halves(s, triples.len() as u32, &a, &b, &c, &mut results).unwrap();
        let results = s.read_blocking(&results).unwrap();
        for (triple, got) in triples.iter().zip(results.chunks(RESULTS as usize)) {
            // All but quotients are exact in `f64`, or their rest is too small to matter; quotients
            // have enough digits.
            let [a, b, c] = triple.map(|bits| ::half::f16::from_bits(bits).to_f64());
            let of = |v: f64| if v.is_nan() { 0x7fff } else { ::half::f16::from_f32(rounded(v, 11, -24)).to_bits() };
            let [sum, difference, product, fused] = [a + b, a - b, a * b, a * b + c].map(of);
            let expected = [sum, difference, product, of(a / b), fused, sum, difference, product, fused];
            let got: Vec<u16> = got.iter().map(|v| v.to_bits()).collect();
            assert_eq!(got, expected, "{a:e}, {b:e}, {c:e} on {}", s.device());
        }
    });
}

#[test]
fn arithmetic_of_bfloats_is_rounded_once() {
    let triples = triples(0x7f80, 8);
    let column = |k: usize| -> Vec<bf16> { triples.iter().map(|triple| bf16::from_bits(triple[k])).collect() };
    on_each_device(|s| {
        let [a, b, c] = [0, 1, 2].map(|k| s.upload_blocking(&column(k)).unwrap());
        let mut results = s.alloc::<bf16>(triples.len() * RESULTS as usize).unwrap();
        bfloats(s, triples.len() as u32, &a, &b, &c, &mut results).unwrap();
        let results = s.read_blocking(&results).unwrap();
        for (triple, got) in triples.iter().zip(results.chunks(RESULTS as usize)) {
            let [a, b, c] = triple.map(|bits| ::half::bf16::from_bits(bits).to_f32());
            let [x, y] = [a, b].map(f64::from);
            let of = |v: f64| if v.is_nan() { 0x7fff } else { ::half::bf16::from_f32(rounded(v, 8, -133)).to_bits() };
            let [sum, difference, product] = [x + y, x - y, x * y].map(of);
            let fused = a.mul_add(b, c);
            let fused = if fused.is_nan() { 0x7fff } else { ::half::bf16::from_f32(fused).to_bits() };
            let expected = [sum, difference, product, of(x / y), fused, sum, difference, product, fused];
            let got: Vec<u16> = got.iter().map(|v| v.to_bits()).collect();
            assert_eq!(got, expected, "{a:e}, {b:e}, {c:e} on {}", s.device());
        }
    });
}
