//! The plain f64 reference of everything the kernels compute.
//!
//! Scalar loops in the order of the definitions, nothing shared with the kernels. Arrays are row-major;
//! planes are `[13, H, W]`; patches are in raster order, `N` of them. `allocate` takes the `f32` relevance
//! a run has computed, because the allocation is an exact function of that.

use std::ops::Range;

/// How many planes the texture array has.
pub const PLANES: usize = 13;

/// The error allowed on each plane.
pub const PLANE_ERROR: [f64; PLANES] = [2e-6, 2e-6, 2e-6, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-6, 2e-6, 2e-6, 2e-5];

/// The error allowed on scores, features and tokens.
pub const SCORE_ERROR: f64 = 2e-5;

/// The error allowed on positions: that of the planes y and x.
pub const POSITION_ERROR: f64 = 2e-6;

/// The error allowed on relevance, from the spread that [`relevance`] returns.
///
/// A spread below 1e-6 makes relevance 1 everywhere. Near that, f32 may fall on either side, and the bound is
/// above 1; well below, as in a uniform image, rounding is no excuse.
pub fn relevance_error(spread: f64) -> f64 {
    if spread < 5e-7 { 0.0 } else { 2e-6 / spread }
}

/// An sRGB image, interleaved `[H, W, 3]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    pub height: usize,
    pub width: usize,
    pub rgb: Vec<u8>,
}

impl Image {
    pub fn pixel(&self, y: usize, x: usize) -> [u8; 3] {
        let at = (y * self.width + x) * 3;
        [self.rgb[at], self.rgb[at + 1], self.rgb[at + 2]]
    }

    /// Luma in units of 1/255000 at a position that may lie one pixel outside: the border is replicated.
    fn luma(&self, y: isize, x: isize) -> i64 {
        let y = y.clamp(0, self.height as isize - 1) as usize;
        let x = x.clamp(0, self.width as isize - 1) as usize;
        let [r, g, b] = self.pixel(y, x).map(i64::from);
        299 * r + 587 * g + 114 * b
    }
}

/// The texture array `[13, H, W]`; `fixation` is (y, x) in the unit square.
pub fn textures(image: &Image, fixation: [f64; 2]) -> Vec<f64> {
    let (h, w) = (image.height, image.width);
    let mut planes = vec![0.0; PLANES * h * w];
    for i in 0..h {
        for j in 0..w {
            let rgb = image.pixel(i, j).map(|v| f64::from(v) / 255.0);
            let [l, a, b] = lab(rgb);
            let [gx, gy] = sobel(image, i, j);
            let y = if h == 1 { 0.0 } else { i as f64 / (h - 1) as f64 };
            let x = if w == 1 { 0.0 } else { j as f64 / (w - 1) as f64 };
            let values = [
                rgb[0],
                rgb[1],
                rgb[2],
                l / 100.0,
                (a + 128.0) / 255.0,
                (b + 128.0) / 255.0,
                gx,
                gy,
                (gx * gx + gy * gy).sqrt(),
                y,
                x,
                distance([y, x], fixation) / farthest_corner(fixation),
                contrast(image, i, j),
            ];
            for (plane, value) in values.into_iter().enumerate() {
                planes[(plane * h + i) * w + j] = value;
            }
        }
    }
    planes
}

/// CIE 1976 L*a*b*, D65, 2 degree observer, of gamma-encoded sRGB in 0..1.
fn lab(rgb: [f64; 3]) -> [f64; 3] {
    let [r, g, b] = rgb.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
    let x = (0.412453 * r + 0.357580 * g + 0.180423 * b) / 0.95047;
    let y = 0.212671 * r + 0.715160 * g + 0.072169 * b;
    let z = (0.019334 * r + 0.119193 * g + 0.950227 * b) / 1.08883;
    let [fx, fy, fz] = [x, y, z].map(|t| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 });
    [116.0 * fy - 16.0, 500.0 * (fx - fy), 200.0 * (fy - fz)]
}

/// Gx and Gy: the Sobel kernel / 8 over luma.
fn sobel(image: &Image, i: usize, j: usize) -> [f64; 2] {
    let (i, j) = (i as isize, j as isize);
    let (mut gx, mut gy) = (0, 0);
    for (d, weight) in [(-1, 1), (0, 2), (1, 1)] {
        gx += weight * (image.luma(i + d, j + 1) - image.luma(i + d, j - 1));
        gy += weight * (image.luma(i + 1, j + d) - image.luma(i - 1, j + d));
    }
    [gx, gy].map(|g| g as f64 / 8.0 / 255000.0)
}

/// Twice the population standard deviation of luma in the 3x3 window.
fn contrast(image: &Image, i: usize, j: usize) -> f64 {
    let mut window = Vec::new();
    for dy in -1..=1 {
        for dx in -1..=1 {
            window.push(image.luma(i as isize + dy, j as isize + dx) as f64 / 255000.0);
        }
    }
    let mean = window.iter().sum::<f64>() / 9.0;
    let variance = window.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / 9.0;
    2.0 * variance.sqrt()
}

fn distance(p: [f64; 2], q: [f64; 2]) -> f64 {
    ((p[0] - q[0]).powi(2) + (p[1] - q[1]).powi(2)).sqrt()
}

fn farthest_corner(fixation: [f64; 2]) -> f64 {
    let corners = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]];
    corners.map(|c| distance(c, fixation)).into_iter().fold(0.0, f64::max)
}

/// The patch grid (gh, gw).
pub fn grid(h: usize, w: usize, patch: usize) -> (usize, usize) {
    (h.div_ceil(patch), w.div_ceil(patch))
}

/// Rows and columns of each patch, in raster order.
fn patches(h: usize, w: usize, patch: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let (gh, gw) = grid(h, w, patch);
    let mut all = Vec::new();
    for py in 0..gh {
        for px in 0..gw {
            let rows = py * patch..h.min((py + 1) * patch);
            let columns = px * patch..w.min((px + 1) * patch);
            all.push((rows, columns));
        }
    }
    all
}

/// The mean of each of the 13 planes over a rectangle of pixels.
fn means(planes: &[f64], h: usize, w: usize, rows: Range<usize>, columns: Range<usize>) -> [f64; PLANES] {
    std::array::from_fn(|plane| {
        let mut sum = 0.0;
        for i in rows.clone() {
            for j in columns.clone() {
                sum += planes[(plane * h + i) * w + j];
            }
        }
        sum / (rows.len() * columns.len()) as f64
    })
}

/// The features `[N, 13]`.
pub fn features(planes: &[f64], h: usize, w: usize, patch: usize) -> Vec<f64> {
    let mut all = Vec::new();
    for (rows, columns) in patches(h, w, patch) {
        all.extend(means(planes, h, w, rows, columns));
    }
    all
}

/// The 256-bin histograms `[N, 256]` of 8-bit luma.
pub fn histograms(image: &Image, patch: usize) -> Vec<u32> {
    let mut all = Vec::new();
    for (rows, columns) in patches(image.height, image.width, patch) {
        let mut histogram = [0; 256];
        for i in rows {
            for j in columns.clone() {
                let [r, g, b] = image.pixel(i, j).map(usize::from);
                histogram[(77 * r + 150 * g + 29 * b + 128) >> 8] += 1;
            }
        }
        all.extend(histogram);
    }
    all
}

/// The information score `[N]`: entropy of the histogram in bits, divided by 8.
pub fn entropy(image: &Image, patch: usize) -> Vec<f64> {
    let mut all = Vec::new();
    for histogram in histograms(image, patch).chunks(256) {
        let pixels: u32 = histogram.iter().sum();
        let mut bits = 0.0;
        for &count in histogram {
            if count > 0 {
                let p = f64::from(count) / f64::from(pixels);
                bits -= p * p.log2();
            }
        }
        all.push(bits / 8.0);
    }
    all
}

/// The salience score `[N]`, from the features.
pub fn salience(features: &[f64], foveal_bias: f64) -> Vec<f64> {
    let strongest = features.chunks(PLANES).map(|f| f[8]).fold(0.0, f64::max);
    let mut all = Vec::new();
    for f in features.chunks(PLANES) {
        let edge = if strongest == 0.0 { 0.0 } else { f[8] / strongest };
        all.push(edge * (1.0 - foveal_bias * f[11]));
    }
    all
}

/// The relevance `[N]` of score maps under a mix, and the spread (max - min) of their weighted sum.
pub fn relevance(maps: &[&[f64]], mix: &[f64]) -> (Vec<f64>, f64) {
    assert_eq!(maps.len(), mix.len());
    let mut raw = vec![0.0; maps[0].len()];
    for (map, weight) in maps.iter().zip(mix) {
        for (sum, score) in raw.iter_mut().zip(*map) {
            *sum += weight * score;
        }
    }
    let min = raw.iter().copied().fold(f64::INFINITY, f64::min);
    let max = raw.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let spread = max - min;
    for value in &mut raw {
        *value = if spread < 1e-6 { 1.0 } else { (*value - min) / (spread + 1e-8) };
    }
    (raw, spread)
}

/// The gain of each step, `g_lo` to `g_hi`.
pub fn gains(lo: u32, hi: u32, focus: f64) -> Vec<u32> {
    let utility = |n: u32| f64::from(n * n).powf(focus);
    let first = utility(lo) / f64::from(lo * lo);
    let mut all = vec![65535];
    let mut least = 65535;
    for n in lo + 1..=hi {
        let slope = (utility(n) - utility(n - 1)) / f64::from(2 * n - 1);
        let gain = (65535.0 * slope / first + 0.5).floor() as u32;
        least = gain.min(least);
        all.push(least);
    }
    all
}

/// Relevance as the integer 1..=65535 that keys are made of.
///
/// In f64 the sum is exact wherever its floor could change, so this is the definition over real numbers;
/// in f32 it is not (the sum can round up to the next integer).
pub fn quantise(relevance: f32) -> u32 {
    (65535.0 * f64::from(relevance) + 0.5).floor().clamp(1.0, 65535.0) as u32
}

/// One rise of one patch: to side `to`, for `cost` tokens more.
struct Step {
    key: u32,
    patch: usize,
    to: u32,
    cost: u64,
}

/// The side of each patch `[N]`, 0 for none: all steps by falling key, taken until one does not fit.
///
/// That is the definition by thresholds: t* - 1 is the key of the first step that does not fit, the steps of
/// greater key all fit, and those of that key come in raster order. A patch's own steps stay in order
/// because gains never rise and the sort is stable.
pub fn allocate(relevance: &[f32], lo: u32, hi: u32, budget: u64, focus: f64) -> Vec<u32> {
    let gains = gains(lo, hi, focus);
    let mut steps = Vec::new();
    for (patch, &r) in relevance.iter().enumerate() {
        for (to, gain) in (lo..=hi).zip(&gains) {
            let below = if to == lo { 0 } else { to - 1 };
            let cost = u64::from(to * to - below * below);
            let key = quantise(r) * gain;
            steps.push(Step { key, patch, to, cost });
        }
    }
    steps.retain(|step| step.key >= 1); // a threshold is at least 1, so a step of no gain is never taken
    steps.sort_by_key(|step| std::cmp::Reverse(step.key));

    let mut sides = vec![0; relevance.len()];
    let mut left = budget;
    for step in steps {
        if step.cost > left {
            break;
        }
        left -= step.cost;
        sides[step.patch] = step.to;
    }
    sides
}

/// Packed tokens.
#[derive(Debug, PartialEq)]
pub struct Tokens {
    /// `[T, 13]`
    pub tokens: Vec<f64>,
    /// `[K + 1]`
    pub cu_seqlens: Vec<i32>,
    /// `[K]`
    pub patch_id: Vec<i32>,
    /// `[T, 2]`
    pub position: Vec<f64>,
}

/// The tokens of the patches whose side is not 0.
pub fn compress(planes: &[f64], h: usize, w: usize, patch: usize, sides: &[u32]) -> Tokens {
    let mut packed = Tokens { tokens: Vec::new(), cu_seqlens: vec![0], patch_id: Vec::new(), position: Vec::new() };
    for (id, (rows, columns)) in patches(h, w, patch).into_iter().enumerate() {
        let n = sides[id] as usize;
        if n == 0 {
            continue;
        }
        for cy in 0..n {
            for cx in 0..n {
                let ys = cell(&rows, cy, n);
                let xs = cell(&columns, cx, n);
                packed.position.push((ys.start + ys.end) as f64 / 2.0 / h as f64);
                packed.position.push((xs.start + xs.end) as f64 / 2.0 / w as f64);
                packed.tokens.extend(means(planes, h, w, ys, xs));
            }
        }
        packed.patch_id.push(id as i32);
        packed.cu_seqlens.push((packed.tokens.len() / PLANES) as i32);
    }
    packed
}

/// The pixels of cell `c` of `n` along one axis of a patch; neighbours share a pixel where `n` does not divide.
fn cell(extent: &Range<usize>, c: usize, n: usize) -> Range<usize> {
    let length = extent.len();
    extent.start + c * length / n..extent.start + ((c + 1) * length).div_ceil(n)
}

// --- with a query ----------------------------------------------------------------------------------------

/// A layer `y = W x + b`; `weight` is `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub struct Layer {
    pub weight: Vec<f64>,
    pub bias: Vec<f64>,
}

impl Layer {
    fn apply(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(self.weight.len(), self.bias.len() * x.len(), "a layer's weights and its input");
        let rows = self.weight.chunks(x.len()).zip(&self.bias);
        rows.map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias).collect()
    }
}

fn relu(mut x: Vec<f64>) -> Vec<f64> {
    x.iter_mut().for_each(|v| *v = v.max(0.0));
    x
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// The participatory score `[N]`: how well the query and the projection of each patch's features point the same way.
///
/// `head` are the layers 13 to 64 and 64 to D.
pub fn participatory(head: &[Layer; 2], query: &[f64], features: &[f64]) -> Vec<f64> {
    let mut all = Vec::new();
    for f in features.chunks(PLANES) {
        let z = head[1].apply(&relu(head[0].apply(f)));
        let dot: f64 = z.iter().zip(query).map(|(z, q)| z * q).sum();
        let cos = dot / (norm(&z).max(1e-12) * norm(query).max(1e-12));
        all.push((1.0 + cos.clamp(-1.0, 1.0)) / 2.0);
    }
    all
}

/// How much relative errors of `h` and of the weights grow in a patch's cosine `[N]`: the length of `z` if nothing
/// cancelled, over its length.
pub fn participatory_condition(head: &[Layer; 2], features: &[f64]) -> Vec<f64> {
    let mut all = Vec::new();
    for f in features.chunks(PLANES) {
        let magnitude = |layer: &Layer| Layer {
            weight: layer.weight.iter().map(|v| v.abs()).collect(),
            bias: layer.bias.iter().map(|v| v.abs()).collect(),
        };
        let f_abs: Vec<f64> = f.iter().map(|v| v.abs()).collect();
        let whole = magnitude(&head[1]).apply(&magnitude(&head[0]).apply(&f_abs));
        let z = head[1].apply(&relu(head[0].apply(f)));
        all.push(norm(&whole) / norm(&z).max(1e-12));
    }
    all
}

/// The weights of the scores, from the score maps and the query; `balancer` are its three layers.
pub fn balance(balancer: &[Layer; 3], maps: [&[f64]; 3], query: &[f64]) -> [f64; 3] {
    let mut input = Vec::new();
    for map in maps {
        let n = map.len() as f64;
        let mean = map.iter().sum::<f64>() / n;
        let squares = map.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
        input.push(mean);
        input.push(map.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        input.push(if map.len() == 1 { 0.0 } else { (squares / (n - 1.0)).sqrt() });
    }
    input.extend(query);
    let hidden = relu(balancer[1].apply(&relu(balancer[0].apply(&input))));
    let logits = balancer[2].apply(&hidden);
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|v| (v - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    [powers[0] / sum, powers[1] / sum, powers[2] / sum]
}

// --- the reference profile -------------------------------------------------------------------------------

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

/// The two source indices of a bilinear sample and the weight of the second: half-pixel centres, borders replicated.
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

/// The first eight planes at 512 x 512, each `[512, 512]`: R, G, B, L, a, Gx, Gy and edge magnitude.
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

/// The profile's information `[N]`: entropy of the softmax of each patch's features, scaled; and its range before that.
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
