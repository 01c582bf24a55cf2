//! What each kernel computes, in f64, short enough to trust by eye.

/// The 13 planes, each [H, W].
pub(crate) fn textures(height: usize, width: usize, fixation: (f64, f64), rgb: &[u8]) -> Vec<Vec<f64>> {
    let mut planes = vec![vec![0.0; height * width]; 13];
    let luma = |y: isize, x: isize| {
        let at = (y.clamp(0, height as isize - 1) as usize * width + x.clamp(0, width as isize - 1) as usize) * 3;
        (299.0 * f64::from(rgb[at]) + 587.0 * f64::from(rgb[at + 1]) + 114.0 * f64::from(rgb[at + 2])) / 255000.0
    };
    let (fy, fx) = fixation;
    let farthest = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
        .map(|(y, x): (f64, f64)| (y - fy).hypot(x - fx))
        .into_iter()
        .fold(0.0, f64::max);
    for y in 0..height {
        for x in 0..width {
            let i = y * width + x;
            let (r, g, b) = (rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2]);
            let (l, a, bb) = lab(r, g, b);
            let at = |dy, dx| luma(y as isize + dy, x as isize + dx);
            let gx = (at(-1, 1) + 2.0 * at(0, 1) + at(1, 1) - at(-1, -1) - 2.0 * at(0, -1) - at(1, -1)) / 8.0;
            let gy = (at(1, -1) + 2.0 * at(1, 0) + at(1, 1) - at(-1, -1) - 2.0 * at(-1, 0) - at(-1, 1)) / 8.0;
            let place = |i: usize, extent: usize| if extent == 1 { 0.0 } else { i as f64 / (extent - 1) as f64 };
            let (py, px) = (place(y, height), place(x, width));
            let window: Vec<f64> =
                (-1..=1).flat_map(|dy| (-1..=1).map(move |dx| (dy, dx))).map(|(dy, dx)| at(dy, dx)).collect();
            let mean = window.iter().sum::<f64>() / 9.0;
            let variance = window.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 9.0;
            let values = [
                f64::from(r) / 255.0,
                f64::from(g) / 255.0,
                f64::from(b) / 255.0,
                l / 100.0,
                (a + 128.0) / 255.0,
                (bb + 128.0) / 255.0,
                gx,
                gy,
                gx.hypot(gy),
                py,
                px,
                (py - fy).hypot(px - fx) / farthest,
                2.0 * variance.sqrt(),
            ];
            for (plane, v) in planes.iter_mut().zip(values) {
                plane[i] = v;
            }
        }
    }
    planes
}

/// L*, a*, b*.
pub(crate) fn lab(r: u8, g: u8, b: u8) -> (f64, f64, f64) {
    let [r, g, b] = [r, g, b].map(|v| {
        let c = f64::from(v) / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    });
    let f = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
    let fx = f((0.412453 * r + 0.357580 * g + 0.180423 * b) / 0.95047);
    let fy = f(0.212671 * r + 0.715160 * g + 0.072169 * b);
    let fz = f((0.019334 * r + 0.119193 * g + 0.950227 * b) / 1.08883);
    (116.0 * fy - 16.0, 500.0 * (fx - fy), 200.0 * (fy - fz))
}

/// Rows and columns of each patch in raster order.
pub(crate) fn patches(
    height: usize,
    width: usize,
    patch: usize,
) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    (0..height)
        .step_by(patch)
        .flat_map(|y| (0..width).step_by(patch).map(move |x| (y..height.min(y + patch), x..width.min(x + patch))))
        .collect()
}

/// The mean of a plane over rows and columns.
pub(crate) fn mean(plane: &[f32], width: usize, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> f64 {
    let n = rows.len() * columns.len();
    rows.flat_map(|y| columns.clone().map(move |x| f64::from(plane[y * width + x]))).sum::<f64>() / n as f64
}

/// Entropy of each patch, in bytes.
pub(crate) fn entropy(height: usize, width: usize, patch: usize, rgb: &[u8]) -> Vec<f64> {
    let of = |(rows, columns): (std::ops::Range<usize>, std::ops::Range<usize>)| {
        let mut counts = [0u32; 256];
        for y in rows.clone() {
            for x in columns.clone() {
                let [r, g, b] = [0, 1, 2].map(|k| u32::from(rgb[(y * width + x) * 3 + k]));
                counts[((77 * r + 150 * g + 29 * b + 128) >> 8) as usize] += 1;
            }
        }
        let n = (rows.len() * columns.len()) as f64;
        let p = counts.iter().filter(|c| **c > 0).map(|c| f64::from(*c) / n);
        p.map(|p| -p * p.log2()).sum::<f64>() / 8.0
    };
    patches(height, width, patch).into_iter().map(of).collect()
}

/// Salience, relevance, and the range of the raw scores.
pub(crate) fn relevance(features: &[f32], entropy: &[f32], bias: f64, mix: (f64, f64)) -> (Vec<f64>, Vec<f64>, f64) {
    let feature = |i: usize, k: usize| f64::from(features[i * 13 + k]);
    let n = entropy.len();
    let peak = (0..n).map(|i| feature(i, 8)).fold(0.0, f64::max);
    let salience: Vec<f64> =
        (0..n).map(|i| if peak == 0.0 { 0.0 } else { feature(i, 8) / peak * (1.0 - bias * feature(i, 11)) }).collect();
    let raw: Vec<f64> = (0..n).map(|i| mix.0 * f64::from(entropy[i]) + mix.1 * salience[i]).collect();
    let (min, max) = raw.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    let scaled = raw.iter().map(|v| if max - min < 1e-6 { 1.0 } else { (v - min) / (max - min + 1e-8) }).collect();
    (salience, scaled, max - min)
}

/// 65535 r + 1/2, rounded down; an f32 times 65535 plus a half is exact in f64 wherever that could matter.
pub(crate) fn quantise(r: f32) -> u32 {
    (65535.0 * f64::from(r) + 0.5).floor().clamp(1.0, 65535.0) as u32
}

/// The sides, greedily: keys in falling order, then the steps of the first key that does not fit as a whole.
pub(crate) fn allocate(relevance: &[f32], gains: &[u32], lo: u32, budget: u64) -> Vec<u32> {
    let steps = gains.len() as u32;
    let cost = |taken: u32| if taken == 0 { 0 } else { u64::from((lo + taken - 1).pow(2)) };
    let keys = |i: usize| {
        let q = quantise(relevance[i]);
        gains.iter().scan(u32::MAX, move |least, g| {
            *least = (*least).min(q * g);
            Some(*least)
        })
    };
    let mut taken = vec![0u32; relevance.len()];
    let mut spent = 0;
    let mut order: Vec<(u32, usize)> =
        (0..relevance.len()).flat_map(|i| keys(i).filter(|k| *k > 0).map(move |k| (k, i))).collect();
    // Largest key first; at equal keys, raster order. A patch's own steps stay in order: its keys never rise.
    order.sort_by_key(|(k, i)| (std::cmp::Reverse(*k), *i));
    for (_, i) in order {
        assert!(taken[i] < steps);
        let step = cost(taken[i] + 1) - cost(taken[i]);
        if spent + step > budget {
            break;
        }
        spent += step;
        taken[i] += 1;
    }
    taken.into_iter().map(|t| if t == 0 { 0 } else { lo + t - 1 }).collect()
}

/// Whether a float in 16 bits is among the nearest to `v`, which is finite, and even if there are two; `value` gives the
/// value of its bits without the sign.
fn is_nearest(bits: u16, v: f32, value: impl Fn(u16) -> f64) -> bool {
    let magnitude = bits & 0x7fff;
    let v = if bits >> 15 == 1 { -f64::from(v) } else { v.into() };
    let error = |m: u16| (value(m) - v).abs();
    let closer = |m: u16| error(magnitude) < error(m) || error(magnitude) == error(m) && magnitude.is_multiple_of(2);
    (magnitude == 0 || closer(magnitude - 1)) && closer(magnitude + 1)
}

/// Whether `bits` is the IEEE half nearest to `v`.
pub(crate) fn is_half_of(bits: u16, v: f32) -> bool {
    is_nearest(bits, v, |m| {
        let (exponent, mantissa) = (i32::from(m >> 10), f64::from(m & 1023));
        if exponent == 0 { mantissa * 2f64.powi(-24) } else { (1024.0 + mantissa) * 2f64.powi(exponent - 25) }
    })
}

/// Whether `bits` is the bfloat16 nearest to `v`.
pub(crate) fn is_bfloat_of(bits: u16, v: f32) -> bool {
    is_nearest(bits, v, |m| f32::from_bits(u32::from(m) << 16).into())
}
