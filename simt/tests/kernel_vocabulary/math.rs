use std::f64::consts::{LN_2, TAU};

use thalweg::{DeviceSlice, PerThread, Result, Stream};
use vocabulary::math::{self, doubles, fused, powf, powf_approx, rust_methods, saturated};

use super::{noise, on_each_device};

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

/// Gives numbers of every exponent, special ones, and those beside which functions change their
/// ways.
fn numbers() -> Vec<f32> {
    let corners = [0.0f32, 1.0, 0.5, 2.0, 1.0 / 3.0, 0.562_5, 0.921_875, 4.0, 10.0, 88.7, 104.0, 128.0, 150.0, 65536.0];
    let quarters = (1..2000u16).map(|k| f32::from(k) * std::f32::consts::FRAC_PI_4);
    let powers = (-149..128).map(|n| 2f32.powi(n));
    let near = corners
        .into_iter()
        .chain(quarters)
        .chain(powers)
        .flat_map(|v| (-4..=4).map(move |step| f32::from_bits(v.to_bits().saturating_add_signed(step))));
    let special = [f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)];
    near.chain(special).flat_map(|v| [v, -v]).chain((0..=u32::MAX).step_by(4093).map(f32::from_bits)).collect()
}

/// Computes how far `got` is from `want`, in units of the last place of an `f32` there. Signs of
/// zeros and of infinities count.
fn ulps(got: f32, want: f64) -> f64 {
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let rounded = want as f32;
    if got == rounded {
        return match got == 0.0 && want == 0.0 && got.is_sign_negative() != want.is_sign_negative() {
            true => f64::INFINITY,
            // Among the finite numbers, the error may be up to half of the last place.
            false if got.is_finite() => (f64::from(got) - want).abs() / last_place(want),
            false => 0.0,
        };
    }
    // Beyond the largest number, take infinity for the number that would follow it.
    let got = if got.is_infinite() { f64::from(got.signum()) * 2f64.powi(128) } else { f64::from(got) };
    (got - want.clamp(-(2f64.powi(128)), 2f64.powi(128))).abs() / last_place(want.min(f64::from(f32::MAX)))
}

fn last_place(v: f64) -> f64 {
    let exponent = (v.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.clamp(-126, 127) - 23)
}

type Launcher<'l> = fn(
    &Stream<PerThread<'l>>,
    u32,
    &DeviceSlice<PerThread<'l>, f32>,
    &mut DeviceSlice<PerThread<'l>, f32>,
) -> Result<()>;

fn compute<'l>(s: &Stream<PerThread<'l>>, launch: Launcher<'l>, x: &[f32]) -> Vec<f32> {
    let from = s.upload_blocking(x).unwrap();
    let mut to = s.alloc::<f32>(x.len()).unwrap();
    launch(s, x.len() as u32, &from, &mut to).unwrap();
    s.read_blocking(&to).unwrap().to_vec()
}

/// Checks an exact form: its error is at most `most` ulp.
fn exact<'l>(s: &Stream<PerThread<'l>>, x: &[f32], name: &str, launch: Launcher<'l>, most: f64, want: fn(f64) -> f64) {
    let (mut worst, mut at) = (0.0, 0);
    let got = compute(s, launch, x);
    for i in 0..x.len() {
        let error = ulps(got[i], want(f64::from(x[i])));
        if error > worst {
            (worst, at) = (error, i);
        }
    }
    let text = format!("{name} on {}: {worst:.3} ulp at {:e} ({:e})", s.device(), x[at], got[at]);
    println!("{text}");
    assert!(worst <= most, "{text}");
}

#[test]
fn exact_forms_have_the_errors_that_are_stated() {
    let x = numbers();
    on_each_device(|s| {
        exact(s, &x, "sqrt", math::sqrt, 0.5, f64::sqrt);
        exact(s, &x, "rsqrt", math::rsqrt, 0.51, |x| 1.0 / x.sqrt());
        exact(s, &x, "recip", math::recip, 0.5, f64::recip);
        exact(s, &x, "cbrt", math::cbrt, 0.51, f64::cbrt);
        exact(s, &x, "exp", math::exp, 1.1, f64::exp);
        exact(s, &x, "exp2", math::exp2, 1.0, f64::exp2);
        exact(s, &x, "exp_m1", math::exp_m1, 1.5, f64::exp_m1);
        exact(s, &x, "ln", math::ln, 1.0, f64::ln);
        exact(s, &x, "log2", math::log2, 1.3, f64::log2);
        exact(s, &x, "log10", math::log10, 1.5, f64::log10);
        exact(s, &x, "ln_1p", math::ln_1p, 1.0, f64::ln_1p);
        exact(s, &x, "sin", math::sin, 1.0, f64::sin);
        exact(s, &x, "cos", math::cos, 1.0, f64::cos);
        exact(s, &x, "tan", math::tan, 2.5, f64::tan);
        exact(s, &x, "tanh", math::tanh, 1.5, f64::tanh);
        exact(s, &x, "erf", math::erf, 1.5, erf);
        exact(s, &x, "floor", math::floor, 0.0, f64::floor);
        exact(s, &x, "ceil", math::ceil, 0.0, f64::ceil);
        exact(s, &x, "trunc", math::trunc, 0.0, f64::trunc);
        exact(s, &x, "round", math::round, 0.0, f64::round);
        exact(s, &x, "round_ties_even", math::round_ties_even, 0.0, f64::round_ties_even);
    });
}

/// Computes the error function by a series of positive terms, which loses no digits.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 || x == 0.0 {
        return if x == 0.0 { x } else { x.signum() };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    sum * (-x * x).exp() * 2.0 / std::f64::consts::PI.sqrt()
}

#[derive(Clone, Copy)]
struct Approximation<'l> {
    name: &'static str,
    launch: Launcher<'l>,
    want: fn(f64) -> f64,
    /// The numbers for which the error is stated.
    domain: fn(f32) -> bool,
    /// The largest error, for an argument and its result.
    error: fn(f64, f64) -> f64,
}

/// Checks an approximation. A result that is subnormal may also be 0.
fn approximate<'l>(s: &Stream<PerThread<'l>>, x: &[f32], form: Approximation<'l>) {
    let x: Vec<f32> = x.iter().copied().filter(|x| (form.domain)(*x)).collect();
    let got = compute(s, form.launch, &x);
    let mut worst = (0.0, 0);
    for i in 0..x.len() {
        let (v, result) = (f64::from(x[i]), f64::from(got[i]));
        let want = (form.want)(v);
        let of_rounding = if want.abs() < f64::from(f32::MIN_POSITIVE) { f64::from(f32::MIN_POSITIVE) } else { 0.0 };
        let overflows = want > f64::from(f32::MAX) * (1.0 - (form.error)(v, 1.0).abs()) && result == f64::INFINITY;
        if result != want && !overflows {
            let share = (result - want).abs() / ((form.error)(v, want) + of_rounding);
            if share.is_nan() || share > worst.0 {
                worst = (if share.is_nan() { f64::INFINITY } else { share }, i);
            }
        }
    }
    let (share, at) = worst;
    let text = format!(
        "{} on {}: {share:.3} of the error that is stated, at {:e} ({:e})",
        form.name,
        s.device(),
        x[at],
        got[at]
    );
    println!("{text}");
    assert!(share <= 1.0, "{text}");
}

#[test]
fn approximations_have_the_errors_that_are_stated() {
    let x = numbers();
    fn normal(x: f32) -> bool {
        x.is_normal() && x > 0.0
    }
    /// Absolute from 1/2 to 2, relative elsewhere.
    fn of_logarithm(x: f64, want: f64, bits: i32) -> f64 {
        2f64.powi(-bits) * if (0.5..=2.0).contains(&x) { 1.0 } else { want.abs() }
    }
    on_each_device(|s| {
        let all = |x: f32| !x.is_nan() && !x.is_subnormal();
        let circle = |x: f32| f64::from(x.abs()) <= TAU;
        let forms = [
            Approximation {
                name: "sqrt_approx",
                launch: math::sqrt_approx,
                want: f64::sqrt,
                domain: normal,
                error: |_, y| y * 2f64.powi(-23),
            },
            Approximation {
                name: "rsqrt_approx",
                launch: math::rsqrt_approx,
                want: |x| 1.0 / x.sqrt(),
                domain: normal,
                error: |_, y| y * 2f64.powi(-22),
            },
            Approximation {
                name: "recip_approx",
                launch: math::recip_approx,
                want: f64::recip,
                domain: normal,
                error: |_, y| last_place(y),
            },
            Approximation {
                name: "exp2_approx",
                launch: math::exp2_approx,
                want: f64::exp2,
                domain: all,
                error: |_, y| y * 2f64.powi(-22),
            },
            Approximation {
                name: "exp_approx",
                launch: math::exp_approx,
                want: f64::exp,
                domain: all,
                error: |x, y| y * (2.0 + x.abs()) * 2f64.powi(-23),
            },
            Approximation {
                name: "log2_approx",
                launch: math::log2_approx,
                want: f64::log2,
                domain: normal,
                error: |x, y| of_logarithm(x, y, 22),
            },
            Approximation {
                name: "ln_approx",
                launch: math::ln_approx,
                want: f64::ln,
                domain: normal,
                error: |x, y| of_logarithm(x, y, 21),
            },
            Approximation {
                name: "log10_approx",
                launch: math::log10_approx,
                want: f64::log10,
                domain: normal,
                error: |x, y| of_logarithm(x, y, 21),
            },
            Approximation {
                name: "sin_approx",
                launch: math::sin_approx,
                want: f64::sin,
                domain: circle,
                error: |_, _| 2f64.powi(-20),
            },
            Approximation {
                name: "cos_approx",
                launch: math::cos_approx,
                want: f64::cos,
                domain: circle,
                error: |_, _| 2f64.powi(-20),
            },
            Approximation {
                name: "tanh_approx",
                launch: math::tanh_approx,
                want: f64::tanh,
                domain: |x| !x.is_nan(),
                error: |_, _| 2f64.powi(-20),
            },
            Approximation {
                name: "cbrt_approx, near 1",
                launch: math::cbrt_approx,
                want: f64::cbrt,
                domain: |x| (2f32.powi(-7)..=128.0).contains(&x),
                error: |_, y| y * 2f64.powi(-20),
            },
            Approximation {
                name: "cbrt_approx",
                launch: math::cbrt_approx,
                want: f64::cbrt,
                domain: |x| normal(x) && x < 2f32.powi(126),
                error: |_, y| y * 2f64.powi(-16),
            },
        ];
        for form in forms {
            approximate(s, &x, form);
        }
    });
}

/// Gives pairs for powers: of special numbers, of any numbers, of numbers whose power is in range,
/// of numbers near 1 with large exponents, and of integers.
fn pairs() -> Vec<(f32, f32)> {
    let special =
        [0.0, 1e-45, 0.3, 0.5, 1.0, 1.0f32.next_up(), 2.0, 3.0, 7.5, 16_777_217.0, 1e30, f32::MAX, f32::INFINITY];
    let special: Vec<f32> = special.into_iter().flat_map(|v| [v, -v]).chain([f32::NAN]).collect();
    let mut noise = noise(3);
    let mut unit = move || f64::from(noise()) * 2f64.powi(-32);
    let mut pairs: Vec<(f32, f32)> = special.iter().flat_map(|x| special.iter().map(|y| (*x, *y))).collect();
    for i in 0..400_000 {
        let log = (unit() - 0.5) * 277.0;
        pairs.push(match i % 4 {
            0 => (f32::from_bits((unit() * 2f64.powi(32)) as u32), f32::from_bits((unit() * 2f64.powi(32)) as u32)),
            1 => (log.exp2() as f32, ((unit() - 0.5) * 300.0 / log) as f32),
            2 => {
                let near = (unit() - 0.5) * 2f64.powi(-(i % 64) / 4 - 1);
                ((1.0 + near) as f32, ((unit() - 0.5) * 300.0 * LN_2 / near) as f32)
            }
            _ => (((unit() - 0.5) * 200.0) as f32, (unit() * 60.0 - 30.0).round() as f32),
        });
    }
    pairs
}

#[test]
fn powers_have_the_errors_that_are_stated() {
    let (x, y): (Vec<f32>, Vec<f32>) = pairs().into_iter().unzip();
    on_each_device(|s| {
        let (a, b) = (s.upload_blocking(&x).unwrap(), s.upload_blocking(&y).unwrap());
        let (mut exact, mut fast) = (s.alloc::<f32>(x.len()).unwrap(), s.alloc::<f32>(x.len()).unwrap());
        powf(s, x.len() as u32, &a, &b, &mut exact).unwrap();
        powf_approx(s, x.len() as u32, &a, &b, &mut fast).unwrap();
        let (exact, fast) = (s.read_blocking(&exact).unwrap(), s.read_blocking(&fast).unwrap());
        let (mut worst, mut worst_fast) = (0.0f64, 0.0f64);
        for i in 0..x.len() {
            let (x, y) = (f64::from(x[i]), f64::from(y[i]));
            let want = x.powf(y);
            let error = ulps(exact[i], want);
            assert!(error <= 1.5, "{x:e} to the power {y:e} is {:e} by {error} ulp on {}", exact[i], s.device());
            worst = worst.max(error);
            let most = (1.0 + y.abs() + (y * x.log2()).abs()) * 2f64.powi(-21);
            // The result is neither subnormal nor infinite if the logarithm is as exact as that.
            let range = -126.0 + most..128.0 - most;
            if x >= f64::from(f32::MIN_POSITIVE) && range.contains(&want.log2()) {
                let error = (f64::from(fast[i]).log2() - want.log2()).abs() / most;
                assert!(error <= 1.0, "{x:e} to the power {y:e} is about {:e} on {}", fast[i], s.device());
                worst_fast = worst_fast.max(error);
            }
        }
        println!("powf on {}: {worst:.3} ulp; powf_approx: {worst_fast:.3} of what is stated", s.device());
    });
}

#[test]
fn methods_of_rust_are_the_same_on_each_device() {
    let numbers = [f32::NEG_INFINITY, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, f32::MAX, f32::INFINITY, f32::NAN];
    let (x, y): (Vec<f32>, Vec<f32>) = numbers.into_iter().flat_map(|x| numbers.map(|y| (x, y))).unzip();
    on_each_device(|s| {
        let (a, b) = (s.upload_blocking(&x).unwrap(), s.upload_blocking(&y).unwrap());
        let mut results = s.alloc::<f32>(4 * x.len()).unwrap();
        rust_methods(s, x.len() as u32, &a, &b, &mut results).unwrap();
        for (i, got) in s.read_blocking(&results).unwrap().chunks(4).enumerate() {
            let (x, y) = (x[i], y[i]);
            let same = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan();
            let expected = [x.abs(), x.min(y), x.max(y), x.copysign(y)];
            assert!(got.iter().zip(expected).all(|(a, b)| same(*a, b)), "{x}, {y}: {got:?} on {}", s.device());
        }
    });
}

#[test]
fn numbers_of_64_bits_are_rounded_once() {
    let mut noise = noise(4);
    let x: Vec<f64> = (0..20_000).map(|_| f64::from_bits(u64::from(noise()) << 32 | u64::from(noise()))).collect();
    let y: Vec<f64> = x.iter().map(|x| -x * x * (1.0 + f64::from(noise() % 3) * f64::EPSILON)).collect();
    on_each_device(|s| {
        let (a, b) = (s.upload_blocking(&x).unwrap(), s.upload_blocking(&y).unwrap());
        let mut results = s.alloc::<f64>(2 * x.len()).unwrap();
        doubles(s, x.len() as u32, &a, &b, &mut results).unwrap();
        for (i, got) in s.read_blocking(&results).unwrap().chunks(2).enumerate() {
            let expected = [x[i].mul_add(x[i], y[i]), x[i].sqrt()];
            let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
            assert!(
                got.iter().zip(expected).all(|(a, b)| same(*a, b)),
                "{}, {}: {got:?} on {}",
                x[i],
                y[i],
                s.device()
            );
        }
    });
}
