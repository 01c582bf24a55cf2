//! The exact forms of the functions in [`Math`](crate::Math), one text for both devices.
//!
//! Each function reduces its argument to a short interval and evaluates a polynomial there. The
//! coefficients are least maximum errors over that interval, found by weighted least squares in 50
//! digits and rounded to `f32`. Where a rounding of the reduced argument would show, the function
//! carries the rest that was cut off in a second number, here called `low`.
//!
//! The GPU has an instruction for [`fused`]. The CPU device may have to emulate it, with a second
//! rounding in one of 2^29 cases. So results may differ between devices in the last place, and the
//! errors that `Math` states hold on both.

// Digits beyond those of `f32` say which number was meant.
#![allow(clippy::excessive_precision)]

/// Computes `a * b + c`, rounded once, or in rare cases twice.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    return core::f32::math::mul_add(a, b, c);
    #[cfg(all(not(target_arch = "nvptx64"), any(target_feature = "fma", target_arch = "aarch64")))]
    return a.mul_add(b, c);
    // The product is exact in `f64`. A sum that `f32` can hold is exact too.
    #[cfg(not(any(target_arch = "nvptx64", target_feature = "fma", target_arch = "aarch64")))]
    return (f64::from(a) * f64::from(b) + f64::from(c)) as f32;
}

#[inline(always)]
fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    return core::f32::math::sqrt(x);
    #[cfg(not(target_arch = "nvptx64"))]
    return x.sqrt();
}

/// Computes the product of two numbers and what it cuts off.
#[inline(always)]
fn product(a: f32, b: f32) -> [f32; 2] {
    let main = a * b;
    [main, fused(a, b, -main)]
}

/// Computes the sum of two numbers and what it cuts off.
#[inline(always)]
fn sum(a: f32, b: f32) -> [f32; 2] {
    let main = a + b;
    let of_b = main - a;
    [main, (a - (main - of_b)) + (b - of_b)]
}

/// Evaluates the polynomial with these coefficients, from the constant one on.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut value = coefficients[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        value = fused(value, x, coefficients[i]);
    }
    value
}

/// Rounds to the nearest integer, as a number and as an integer. `x` is between -2^22 and 2^22.
#[inline(always)]
fn nearest(x: f32) -> (f32, i32) {
    // The last place of the sum with 1.5 * 2^23 is worth 1.
    let sum = x + 12_582_912.0;
    (sum - 12_582_912.0, sum.to_bits().wrapping_sub(0x4b40_0000) as i32)
}

/// Returns 2 to the power `n`, which is from -126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n + 127).cast_unsigned() << 23)
}

/// Computes `x` times 2 to the power `n`, which is from -252 to 254.
#[inline(always)]
fn scale(x: f32, n: i32) -> f32 {
    let half = n / 2;
    x * power_of_two(half) * power_of_two(n - half)
}

/// The natural logarithm of 2, and what `f32` cuts off. The first part has 12 digits, so its
/// products with exponents are exact.
const LN_2: [f32; 2] = [6.931_152_343_75e-1, 3.194_618_329_871e-5];

/// Computes 2 to the power `x + low`. `low` is at most 2^-10.
#[inline(always)]
fn exp2_sum(x: f32, low: f32) -> f32 {
    let x = x.clamp(-152.0, 130.0);
    let (whole, n) = nearest(x);
    let f = (x - whole) + low;
    let p = polynomial(
        f,
        [2.402_265_072e-1, 5.550_410_971e-2, 9.618_035_518e-3, 1.333_342_865e-3, 1.546_762_069e-4, 1.531_544_694e-5],
    );
    // The logarithm of 2 is in two parts.
    let p = fused(f, 6.931_471_825e-1, fused(f * f, p, f * -1.904_654_212e-9));
    if x.is_nan() { x } else { scale(1.0 + p, n) }
}

/// Computes 2 to the power `x`.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    exp2_sum(x, 0.0)
}

/// Returns `n` and `r` such that `x` is about `n` times the logarithm of 2, plus `r`, and e to the
/// power `r`, less 1 and less `r`.
#[inline(always)]
fn exp_parts(x: f32) -> (i32, f32, f32) {
    let (whole, n) = nearest(x * core::f32::consts::LOG2_E);
    let r = fused(whole, -LN_2[1], fused(whole, -LN_2[0], x));
    let p = polynomial(r, [0.5, 1.666_651_368e-1, 4.166_618_735e-2, 8.369_590_156e-3, 1.395_170_344e-3]);
    (n, r, r * r * p)
}

/// Computes e to the power `x`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let clamped = x.clamp(-105.0, 90.0);
    let (n, r, rest) = exp_parts(clamped);
    if x.is_nan() { x } else { scale(1.0 + (r + rest), n) }
}

/// Computes e to the power `x`, less 1.
#[inline(always)]
pub(crate) fn exp_m1(x: f32) -> f32 {
    let clamped = x.clamp(-20.0, 88.8);
    let (n, r, rest) = exp_parts(clamped);
    // 2^n (1 + r + rest) - 1, with half of the power, because the whole one may be 2^128.
    let half = power_of_two(n - 1);
    let sum = fused(half, r, half - 0.5) + half * rest;
    // Rust keeps the sign of 0.
    if x.is_nan() || x == 0.0 {
        x
    } else if n == 0 {
        r + rest
    } else {
        2.0 * sum
    }
}

/// A positive number as `(1 + f) 2^n`. `f` is from -1/3 to 1/3.
#[inline(always)]
fn decompose(x: f32) -> (f32, i32) {
    // A subnormal number becomes a normal one.
    let (x, shift) = if x < f32::MIN_POSITIVE { (x * 8_388_608.0, -23) } else { (x, 0) };
    let n = (x.to_bits().wrapping_sub(0x3f2a_aaab) as i32) >> 23;
    let significand = f32::from_bits(x.to_bits().wrapping_sub((n << 23).cast_unsigned()));
    (significand - 1.0, n + shift)
}

/// Computes ln(1 + f) - f, for `f` from -1/3 to 1/3.
#[inline(always)]
fn ln_rest(f: f32) -> f32 {
    let p = polynomial(
        f,
        [
            3.333_322_108e-1,
            -2.499_968_112e-1,
            2.001_023_889e-1,
            -1.668_583_900e-1,
            1.400_726_140e-1,
            -1.210_989_431e-1,
            1.398_239_583e-1,
            -1.321_461_797e-1,
        ],
    );
    f * f * fused(f, p, -0.5)
}

/// Returns the logarithm of numbers that are not positive and finite, which is the same for each
/// base.
#[inline(always)]
fn ln_special(x: f32) -> f32 {
    if x == 0.0 {
        f32::NEG_INFINITY
    } else if x > 0.0 {
        x
    } else {
        f32::NAN
    }
}

/// Computes a logarithm. `unit` is the logarithm of 2, in two parts of which the first has 12
/// digits, and `factor` that of e, in two parts.
#[inline(always)]
fn logarithm(x: f32, unit: [f32; 2], factor: [f32; 2]) -> f32 {
    let (f, n) = decompose(x);
    let n = n as f32;
    let rest = ln_rest(f);
    let main = f * factor[0];
    let low = fused(f, factor[0], -main) + f * factor[1];
    let whole = n * unit[0];
    // The larger of both is `whole`, or it is 0: so the rest of this sum is exact.
    let sum = whole + main;
    let low = ((whole - sum) + main) + (low + fused(n, unit[1], rest * factor[0]));
    if x > 0.0 && x < f32::INFINITY { sum + low } else { ln_special(x) }
}

/// Computes the natural logarithm.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    logarithm(x, LN_2, [1.0, 0.0])
}

/// Computes the base-2 logarithm.
#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    logarithm(x, [1.0, 0.0], [1.442_695_021_629, 1.925_963_033_5e-8])
}

/// Computes the base-10 logarithm.
#[inline(always)]
pub(crate) fn log10(x: f32) -> f32 {
    logarithm(x, [3.010_253_906_25e-1, 4.605_039_066e-6], [4.342_944_920_063e-1, -1.010_304_995e-8])
}

/// Computes the natural logarithm of `1 + x`.
#[inline(always)]
pub(crate) fn ln_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    // What the sum cuts off, as a part of the sum.
    let cut = if x > 1.0 { 1.0 - (sum - x) } else { x - (sum - 1.0) };
    let (f, n) = decompose(sum);
    let low = if n == 0 { 0.0 } else { cut * power_of_two((-n).max(-126)) };
    let f = if n == 0 { x } else { f };
    let n = n as f32;
    let whole = n * LN_2[0];
    let main = whole + f;
    // The derivative of the logarithm at 1 + f is 1 / (1 + f).
    let low = ((whole - main) + f) + (low / (1.0 + f) + fused(n, LN_2[1], ln_rest(f)));
    if x == 0.0 {
        x
    } else if x > -1.0 && x < f32::INFINITY {
        main + low
    } else {
        ln_special(sum)
    }
}

/// The bits of 2 / pi after its point, behind 64 bits of 0.
static TWO_OVER_PI: [u32; 9] =
    [0, 0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];

/// Returns the integer nearest to `x` times 2 / pi, modulo 4, and what is left of `x`, in two
/// parts. The larger part is from -pi/4 to pi/4, and a little more. `x` is finite.
#[inline(always)]
fn reduce(x: f32) -> (i32, f32, f32) {
    /// pi / 2 in three parts.
    const HALF_PI: [f32; 3] = [1.570_796_370_506, -4.371_138_828_67e-8, -1.715_124_510e-15];
    if x.abs() < 65536.0 {
        let (whole, n) = nearest(x * core::f32::consts::FRAC_2_PI);
        // The first difference is exact: its last place is that of pi / 2, and it is below 1.
        let first = fused(whole, -HALF_PI[0], x);
        let [second, cut] = product(whole, -HALF_PI[1]);
        let [main, low] = sum(first, second);
        return (n, main, fused(whole, -HALF_PI[2], low + cut));
    }
    // The significand is an integer, and `x` is this integer times 2^e, with e from -7 to 104. The
    // bits of 2 / pi that are worth 4 / 2^e and more only add multiples of 4 to the product.
    let bits = x.to_bits();
    let significand = u64::from(bits & 0x7f_ffff | 0x80_0000);
    let skip = (bits >> 23 & 0xff) + 64 - 152;
    let word = |i: u32| TWO_OVER_PI[(skip / 32 + i) as usize];
    let shift = skip % 32;
    let window = |i: u32| ((u64::from(word(i)) << 32 | u64::from(word(i + 1))) << shift >> 32) as u32;
    // The product of the significand and 96 bits, modulo 4. Its two top bits are worth 2 and 1.
    let high = significand.wrapping_mul(u64::from(window(0)) << 32);
    let middle = significand.wrapping_mul(u64::from(window(1)));
    let low = significand.wrapping_mul(u64::from(window(2))) >> 32;
    let product = high.wrapping_add(middle).wrapping_add(low);
    let n = (product.wrapping_add(1 << 61) >> 62) as i32;
    let fraction = (product << 2).cast_signed();
    // The fraction is signed and in units of 2^-64.
    let main = fraction as f32;
    let low = fraction.wrapping_sub(main as i64) as f32;
    let unit = f32::from_bits((127 - 64) << 23);
    let (main, low) = (main * unit, low * unit);
    let product = main * HALF_PI[0];
    let low = fused(main, HALF_PI[0], -product) + fused(main, HALF_PI[1], low * HALF_PI[0]);
    if x < 0.0 { (-n, -product, -low) } else { (n, product, low) }
}

/// Computes the sine of `x + low`, for `x` from -pi/4 to pi/4, and a little more.
#[inline(always)]
fn sin_near(x: f32, low: f32) -> f32 {
    let s = x * x;
    let p = polynomial(s, [-1.666_666_716e-1, 8.333_329_111e-3, -1.983_931_579e-4, 2.718_122_005e-6]);
    // The derivative of the sine is the cosine, which is close to 1 - s / 2.
    let rest = fused(x * s, p, fused(low, -0.5 * s, low));
    x + rest
}

/// Computes the cosine of `x + low`, for `x` from -pi/4 to pi/4, and a little more.
#[inline(always)]
fn cos_near(x: f32, low: f32) -> f32 {
    let s = x * x;
    let p = polynomial(s, [4.166_666_791e-2, -1.388_888_340e-3, 2.479_949_944e-5, -2.720_847_760e-7]);
    // What rounding of 1 - s / 2 cuts off is exact.
    let main = 1.0 - 0.5 * s;
    let cut = (1.0 - main) - 0.5 * s;
    // What rounding of s cuts off, and what `low` changes.
    let square = fused(x, x, -s);
    main + fused(s * s, p, cut - fused(x, low, 0.5 * square))
}

/// Computes the sine.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    if !x.is_finite() {
        return f32::NAN;
    }
    let (n, main, low) = reduce(x);
    let v = if n & 1 == 0 { sin_near(main, low) } else { cos_near(main, low) };
    if x == 0.0 {
        x
    } else if n & 2 == 0 {
        v
    } else {
        -v
    }
}

/// Computes the cosine.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    if !x.is_finite() {
        return f32::NAN;
    }
    let (n, main, low) = reduce(x);
    let v = if n & 1 == 0 { cos_near(main, low) } else { sin_near(main, low) };
    if (n + 1) & 2 == 0 { v } else { -v }
}

/// Computes the tangent.
#[inline(always)]
pub(crate) fn tan(x: f32) -> f32 {
    if !x.is_finite() {
        return f32::NAN;
    }
    let (n, main, low) = reduce(x);
    let (s, c) = (sin_near(main, low), cos_near(main, low));
    if x == 0.0 {
        x
    } else if n & 1 == 0 {
        s / c
    } else {
        -c / s
    }
}

/// Computes the hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    if a < 0.5625 {
        let s = x * x;
        let p = polynomial(
            s,
            [-3.333_331_347e-1, 1.333_247_125e-1, -5.383_921_042e-2, 2.101_412_602e-2, -6.188_421_044e-3],
        );
        return fused(x * s, p, x).copysign(x);
    }
    // NaN passes the clamp.
    let a = if a > 10.0 { 10.0 } else { a };
    (1.0 - 2.0 / (exp(2.0 * a) + 1.0)).copysign(x)
}

/// Computes the error function.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    if a < 0.921_875 {
        let p = polynomial(
            x * x,
            [
                1.283_791_661e-1,
                -3.761_263_490e-1,
                1.128_370_166e-1,
                -2.685_969_137e-2,
                5.201_686_639e-3,
                -8.149_467_758e-4,
                8.396_346_675e-5,
            ],
        );
        return fused(x, p, x);
    }
    // erf(a) = 1 - exp(-a - p). NaN passes the clamp.
    let a = if a > 4.0 { 4.0 } else { a };
    let p = polynomial(
        a,
        [
            -1.763_464_097e-4,
            1.295_230_836e-1,
            6.333_301_067e-1,
            1.082_989_424e-1,
            -2.513_184_585e-2,
            4.175_862_297e-3,
            -4.354_698_176e-4,
            2.118_355_224e-5,
        ],
    );
    (1.0 - exp(-a - p)).copysign(x)
}

/// Computes the cube root.
#[inline(always)]
pub(crate) fn cbrt(x: f32) -> f32 {
    let a = x.abs();
    let (a, unit) = if a < f32::MIN_POSITIVE { (a * 16_777_216.0, 0.003_906_25) } else { (a, 1.0) };
    // A power of 8 brings the number between 1/8 and 1, so that no product below is subnormal.
    let third = (a.to_bits() >> 23) as i32 / 3 - 42;
    let a = f32::from_bits(a.to_bits().wrapping_sub(((3 * third) << 23).cast_unsigned()));
    // The first guess divides the exponent by 3. Each of the two steps of Halley's method triples
    // the number of correct digits.
    let mut r = f32::from_bits(a.to_bits() / 3 + 0x2a51_37a0);
    let mut step = 0;
    while step < 2 {
        let cube = r * r * r;
        r *= fused(2.0, a, cube) / fused(2.0, cube, a);
        step += 1;
    }
    // One step of Newton's method, with what the products cut off.
    let square = r * r;
    let cut = fused(r, r, -square);
    let excess = fused(square, r, -a) + cut * r;
    let r = r - excess / (3.0 * square);
    if x == 0.0 || !x.is_finite() { x } else { (r * power_of_two(third) * unit).copysign(x) }
}

/// Computes 1 over the square root.
#[inline(always)]
pub(crate) fn rsqrt(x: f32) -> f32 {
    let (x, unit) = if x < 1e-30 { (x * 281_474_976_710_656.0, 16_777_216.0) } else { (x, 1.0) };
    let root = sqrt(x);
    let r = 1.0 / root;
    // What both roundings cut off changes the result by less than its last place.
    let of_root = fused(-root, root, x) * r;
    let rest = fused(-root, r, 1.0) - 0.5 * of_root * r;
    if r < f32::INFINITY && r > 0.0 { fused(r, rest, r) * unit } else { r }
}

/// Computes the base-2 logarithm of a positive finite number, in two parts.
#[inline(always)]
fn log2_parts(x: f32) -> [f32; 2] {
    let (f, n) = decompose(x);
    // With p = f / (2 + f), ln(1 + f) = 2 atanh p = 2 (p + p^3 / 3 + p^5 / 5 + ...).
    let divisor = 2.0 + f;
    let divisor_low = f - (divisor - 2.0);
    let p = f / divisor;
    let p_low = (fused(-p, divisor, f) - p * divisor_low) / divisor;
    // The cube of p, and what it cuts off.
    let [square, square_low] = product(p, p);
    let [cube, cube_low] = product(p, square);
    let square_low = fused(2.0 * p, p_low, square_low);
    let cube_low = fused(p, square_low, fused(square, p_low, cube_low));
    // p + p^3 / 3, in two parts.
    let [third, third_low] = product(cube, 3.333_333_432_674e-1);
    let third_low = third_low + fused(cube, -9.934_107_759e-9, cube_low * 3.333_333_432_674e-1);
    let tail = square * cube * polynomial(square, [2.000_007_629e-1, 1.427_353_323e-1, 1.171_010_882e-1]);
    let main = p + third;
    let low = ((p - main) + third) + (p_low + (third_low + tail));
    // The same in units of the logarithm of 2.
    let [scaled, scaled_low] = product(main, 2.885_390_043_258);
    let scaled_low = fused(main, 3.851_926_067e-8, fused(low, 2.885_390_043_258, scaled_low));
    let n = n as f32;
    let sum = n + scaled;
    let rest = if n == 0.0 { scaled_low } else { ((n - sum) + scaled) + scaled_low };
    let total = sum + rest;
    [total, (sum - total) + rest]
}

/// Computes `x` to the power `y`.
#[inline(always)]
pub(crate) fn powf(x: f32, y: f32) -> f32 {
    if y == 0.0 || x == 1.0 {
        return 1.0;
    }
    if x.is_nan() || y.is_nan() {
        return f32::NAN;
    }
    // An integer is odd if its last place is worth 1 and set.
    let size = y.abs();
    let whole = size >= 8_388_608.0 || size == (size + 8_388_608.0) - 8_388_608.0;
    let odd = whole && size < 16_777_216.0 && (size as u32) & 1 == 1;
    let a = x.abs();
    let v = if a == 0.0 || a == f32::INFINITY {
        if (a == 0.0) == (y > 0.0) { 0.0 } else { f32::INFINITY }
    } else if a == 1.0 {
        1.0
    } else {
        let [log, log_low] = log2_parts(a);
        // The power is 0 or infinite long before this clamp matters, and an infinite `y` would make
        // NaN of the parts.
        let y = y.clamp(-3e9, 3e9);
        let [main, main_low] = product(log, y);
        // Beyond this limit the rest is not small, and does not matter.
        let low = if main.abs() < 200.0 { fused(log_low, y, main_low) } else { 0.0 };
        exp2_sum(main, low)
    };
    if x < 0.0 && x.is_finite() && !whole {
        f32::NAN
    } else if x.is_sign_negative() && odd {
        -v
    } else {
        v
    }
}
