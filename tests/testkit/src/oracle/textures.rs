//! Section 1 of `docs/spec.md`: the texture array.

use super::{Image, PLANES};

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

/// The L*, a* and b* (CIE 1976, D65, 2 degree observer) of gamma-encoded sRGB in 0..1.
pub(crate) fn lab(rgb: [f64; 3]) -> [f64; 3] {
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

pub(crate) fn distance(p: [f64; 2], q: [f64; 2]) -> f64 {
    ((p[0] - q[0]).powi(2) + (p[1] - q[1]).powi(2)).sqrt()
}

fn farthest_corner(fixation: [f64; 2]) -> f64 {
    let corners = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]];
    corners.map(|c| distance(c, fixation)).into_iter().fold(0.0, f64::max)
}
