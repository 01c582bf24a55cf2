//! Sections 2 and 3.1: patches, their features and their entropy.

use std::ops::Range;

use super::{Image, PLANES};

/// The patch grid (gh, gw).
pub fn grid(h: usize, w: usize, patch: usize) -> (usize, usize) {
    (h.div_ceil(patch), w.div_ceil(patch))
}

/// Rows and columns of each patch, in raster order.
pub(crate) fn patches(h: usize, w: usize, patch: usize) -> Vec<(Range<usize>, Range<usize>)> {
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
pub(crate) fn means(planes: &[f64], h: usize, w: usize, rows: Range<usize>, columns: Range<usize>) -> [f64; PLANES] {
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
