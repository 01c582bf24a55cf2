//! Section 6: the reference profile `arr-coc-0-1`.

use super::scores::{Layer, balance, participatory, relevance};
use super::textures::{distance, lab};
use super::{Image, PLANES};

/// What `arr-coc-0-1` computes of one image: 32 x 32 patches, whatever its size.
#[derive(Debug)]
pub struct Profile {
    /// `[13, 32, 32]`
    pub textures: Vec<f64>,
    /// max - min of Gx, Gy and edge magnitude before they are scaled.
    pub ranges: [f64; 3],
    /// `[32, 32]`, as the next two.
    pub information: Vec<f64>,
    pub perspectival: Vec<f64>,
    pub participatory: Vec<f64>,
    pub mix: [f64; 3],
    pub relevance: Vec<f64>,
}

/// Rows and columns of the profile's maps.
pub const PROFILE_SIDE: usize = 32;

/// Rows and columns that images are resized to first.
const RESIZED: usize = 512;

/// The two source indices of a bilinear sample and the weight of the second: half-pixel centers,
/// borders replicated.
fn taps(i: usize, from: usize, to: usize) -> (usize, usize, f64) {
    let at = ((i as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0);
    let first = at.floor() as usize;
    (first, (first + 1).min(from - 1), at - first as f64)
}

/// A plane `[from.0, from.1]` at `[to, to]`.
fn resize(plane: &[f64], from: (usize, usize), to: usize) -> Vec<f64> {
    let mut all = Vec::new();
    for i in 0..to {
        let (y0, y1, fy) = taps(i, from.0, to);
        for j in 0..to {
            let (x0, x1, fx) = taps(j, from.1, to);
            let row = |y: usize| plane[y * from.1 + x0] * (1.0 - fx) + plane[y * from.1 + x1] * fx;
            all.push(row(y0) * (1.0 - fy) + row(y1) * fy);
        }
    }
    all
}

/// (v - min) / (max - min + 1e-8), and max - min.
fn min_max(plane: &[f64]) -> (Vec<f64>, f64) {
    let min = plane.iter().copied().fold(f64::INFINITY, f64::min);
    let max = plane.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (plane.iter().map(|v| (v - min) / (max - min + 1e-8)).collect(), max - min)
}

/// The first eight planes at 512 x 512, each `[512, 512]`: R, G, B, L, a, Gx, Gy and edge
/// magnitude.
fn profile_planes(image: &Image) -> [Vec<f64>; 8] {
    let size = (image.height, image.width);
    let rgb: [Vec<f64>; 3] = std::array::from_fn(|channel| {
        let plane: Vec<f64> = image.rgb.iter().skip(channel).step_by(3).map(|&v| f64::from(v) / 255.0).collect();
        resize(&plane, size, RESIZED)
    });
    let luma = |i: isize, j: isize| {
        let inside = |v: isize| v.clamp(0, RESIZED as isize - 1) as usize;
        let at = inside(i) * RESIZED + inside(j);
        0.299 * rgb[0][at] + 0.587 * rgb[1][at] + 0.114 * rgb[2][at]
    };
    let mut planes: [Vec<f64>; 8] = Default::default();
    for i in 0..RESIZED {
        for j in 0..RESIZED {
            let at = i * RESIZED + j;
            let [l, a, _] = lab([rgb[0][at], rgb[1][at], rgb[2][at]]);
            let (i, j) = (i as isize, j as isize);
            let (mut gx, mut gy) = (0.0, 0.0);
            for (d, weight) in [(-1, 1.0), (0, 2.0), (1, 1.0)] {
                gx += weight * (luma(i + d, j + 1) - luma(i + d, j - 1)) / 8.0;
                gy += weight * (luma(i + 1, j + d) - luma(i - 1, j + d)) / 8.0;
            }
            let mag = (gx * gx + gy * gy + 1e-8).sqrt();
            let values = [rgb[0][at], rgb[1][at], rgb[2][at], l / 100.0, (a + 128.0) / 255.0, gx, gy, mag];
            planes.iter_mut().zip(values).for_each(|(plane, v)| plane.push(v));
        }
    }
    planes
}

/// The profile's information `[N]`: entropy of the softmax of each patch's features, scaled; and
/// its range before that.
pub fn profile_information(features: &[f64]) -> (Vec<f64>, f64) {
    let mut nats = Vec::new();
    for f in features.chunks(PLANES) {
        let sum: f64 = f.iter().map(|v| v.exp()).sum();
        nats.push(f.iter().map(|v| v.exp() / sum).map(|p| -p * (p + 1e-10).ln()).sum());
    }
    min_max(&nats)
}

/// The profile of an image; without a balancer the three scores weigh the same.
pub fn arr_coc_0_1(image: &Image, head: &[Layer; 2], balancer: Option<&[Layer; 3]>, query: &[f64]) -> Profile {
    let side = PROFILE_SIDE;
    let [r, g, b, l, a, gx, gy, mag] = profile_planes(image).map(|plane| resize(&plane, (RESIZED, RESIZED), side));
    let [(gx, x_range), (gy, y_range), (mag, range)] = [gx, gy, mag].map(|plane| min_max(&plane));
    let (mut y, mut x, mut far) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..side * side {
        let at = [i / side, i % side].map(|v| v as f64 / (side - 1) as f64);
        y.push(at[0]);
        x.push(at[1]);
        far.push(distance(at, [0.5, 0.5]));
    }
    let farthest = far.iter().copied().fold(0.0, f64::max);
    let eccentricity: Vec<f64> = far.iter().map(|v| v / farthest).collect();
    let textures = [&r, &g, &b, &l, &a, &gx, &gy, &mag, &y, &x, &eccentricity, &mag, &l].map(Vec::clone).concat();

    let count = side * side;
    let features: Vec<f64> = (0..count).flat_map(|i| textures.iter().skip(i).step_by(count).copied()).collect();
    let (information, _) = profile_information(&features);
    let participatory = participatory(head, query, &features);
    let maps = [&information[..], &mag, &participatory];
    let mix = balancer.map_or([1.0 / 3.0; 3], |balancer| balance(balancer, maps, query));
    let (relevance, _) = relevance(&maps, &mix);
    let ranges = [x_range, y_range, range];
    Profile { textures, ranges, information, perspectival: mag.clone(), participatory, mix, relevance }
}

/// The indices of the `k` largest, in falling order, the lower index first among equals.
pub fn top<T: PartialOrd>(values: &[T], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).expect("a number"));
    order.truncate(k);
    order
}
