use vocabulary::math::{fused, saturated};

use crate::{noise, on_each_device};

/// Adds 2^23 to products around every half. A product that is rounded first gives another integer.
/// The expected product in f64 is exact.
#[test]
fn fma_rn_rounds_once() {
    let mut noise = noise(10);
    for scale in [65535.0f32, 1.0, 0.1, 4_194_303.0] {
        let x: Vec<f32> = (0..65535u32)
            .flat_map(|half| {
                let middle = ((f64::from(half) + 0.5) / f64::from(scale)) as f32;
                (-3..=3).map(move |step| f32::from_bits(middle.to_bits().wrapping_add_signed(step)))
            })
            .chain((0..10000).map(|_| f32::from_bits(noise() >> 2)))
            .filter(|v| f64::from(*v) * f64::from(scale) < 4_194_304.0)
            .collect();
        on_each_device(|s| {
            let from = s.upload_blocking(&x).unwrap();
            let mut sums = s.alloc::<f32>(x.len()).unwrap();
            fused(s, x.len() as u32, scale, 8_388_608.0, &from, &mut sums).unwrap();
            for (x, sum) in x.iter().zip(s.read_blocking(&sums).unwrap()) {
                let integer = (f64::from(*x) * f64::from(scale)).round_ties_even();
                assert_eq!(f64::from(sum) - 8_388_608.0, integer, "{x:e} * {scale} on {}", s.device());
            }
        });
    }
}

#[test]
fn saturating_operations_clamp_and_take_nan_for_zero() {
    let values = [f32::NAN, f32::NEG_INFINITY, -1.5, -0.0, 0.0, 1e-40, 0.3, 0.7, 1.0, 1.5, f32::MAX, f32::INFINITY];
    let pairs: Vec<(f32, f32)> = values.into_iter().flat_map(|x| values.map(|y| (x, y))).collect();
    let (x, y): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let clamp = |v: f32| if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) };
    on_each_device(|s| {
        let (a, b) = (s.upload_blocking(&x).unwrap(), s.upload_blocking(&y).unwrap());
        let mut results = s.alloc::<f32>(5 * x.len()).unwrap();
        saturated(s, x.len() as u32, &a, &b, &mut results).unwrap();
        for (&(x, y), got) in pairs.iter().zip(s.read_blocking(&results).unwrap().chunks(5)) {
            let expected = [x, x + y, x - y, x * y].map(clamp);
            assert_eq!(got[..4], expected, "{x}, {y} on {}", s.device());
            assert!((got[4] - clamp(x.mul_add(y, x))).abs() <= 1e-7, "{x}, {y}: {} on {}", got[4], s.device());
        }
    });
}
