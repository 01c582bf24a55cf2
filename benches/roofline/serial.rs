//! The plain version in f32: one thread computes one pixel after another. It is a baseline to be
//! timed. The reference, with which results are checked, is the crate `oracle`.

use testkit::oracle;

use crate::Result;
use crate::bencher::compare;
use crate::images::{Content, Photo};
use crate::kernels::{FIXATION, PATCH, checked};

/// Compares the plain version with the oracle.
pub(crate) fn check(photo: &Photo) -> Result {
    let image = checked(Content::Photo, photo);
    let (height, width) = (image.height, image.width);
    let planes = textures(height, width, &image.rgb);
    let want = oracle::textures(&image, [f64::from(FIXATION); 2]);
    compare("textures of the serial version", &planes, &want, 1e-5)?;
    let want = oracle::features(&want, height, width, PATCH as usize);
    compare("features of the serial version", &features(height, width, PATCH as usize, &planes), &want, 1e-5)
}

/// The texture array `[13, H, W]` of `rgb`, fixation in the center.
pub(crate) fn textures(height: usize, width: usize, rgb: &[u8]) -> Vec<f32> {
    let n = height * width;
    let linear: Vec<f32> = (0..256).map(|c| to_linear(c as f32 / 255.0)).collect();
    let luma: Vec<i32> =
        rgb.as_chunks::<3>().0.iter().map(|&[r, g, b]| 299 * r as i32 + 587 * g as i32 + 114 * b as i32).collect();
    let unit = |i: usize, extent: usize| i as f32 / (extent.max(2) - 1) as f32;
    let mut planes = vec![0.0; 13 * n];
    for y in 0..height {
        let rows = [y.max(1) - 1, y, (y + 1).min(height - 1)].map(|y| y * width);
        for x in 0..width {
            let i = y * width + x;
            let columns = [x.max(1) - 1, x, (x + 1).min(width - 1)];
            let [a, b, c] = rows.map(|row| columns.map(|x| luma[row + x]));
            let gx = (a[2] + 2 * b[2] + c[2]) - (a[0] + 2 * b[0] + c[0]);
            let gy = (c[0] + 2 * c[1] + c[2]) - (a[0] + 2 * a[1] + a[2]);
            let (gx, gy) = (gx as f32 / 2_040_000.0, gy as f32 / 2_040_000.0);
            let window = [a, b, c].map(|row| row.map(|l| l as f32 / 255_000.0));
            let mean = window.as_flattened().iter().sum::<f32>() / 9.0;
            let variance = window.as_flattened().iter().map(|l| (l - mean) * (l - mean)).sum::<f32>() / 9.0;
            let pixel = [rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2]];
            let [red, green, blue] = pixel.map(|c| f32::from(c) / 255.0);
            let [l, a, b] = lab(pixel.map(|c| linear[c as usize]));
            let (v, u) = (unit(y, height), unit(x, width));
            let eccentricity = (v - 0.5).hypot(u - 0.5) * std::f32::consts::SQRT_2;
            let contrast = 2.0 * variance.sqrt();
            let values = [red, green, blue, l, a, b, gx, gy, gx.hypot(gy), v, u, eccentricity, contrast];
            for (plane, value) in values.into_iter().enumerate() {
                planes[plane * n + i] = value;
            }
        }
    }
    planes
}

fn to_linear(c: f32) -> f32 {
    if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
}

/// L* / 100, (a* + 128) / 255 and (b* + 128) / 255 of linear light.
fn lab([r, g, b]: [f32; 3]) -> [f32; 3] {
    let f = |t: f32| if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
    let x = f((0.412_453 * r + 0.357_580 * g + 0.180_423 * b) / 0.950_47);
    let y = f(0.212_671 * r + 0.715_160 * g + 0.072_169 * b);
    let z = f((0.019_334 * r + 0.119_193 * g + 0.950_227 * b) / 1.088_83);
    [(116.0 * y - 16.0) / 100.0, (500.0 * (x - y) + 128.0) / 255.0, (200.0 * (y - z) + 128.0) / 255.0]
}

/// Means over patches `[N, 13]` of the planes `[13, H, W]`.
pub(crate) fn features(height: usize, width: usize, patch: usize, planes: &[f32]) -> Vec<f32> {
    let columns = width.div_ceil(patch);
    let mut features = vec![0.0; 13 * height.div_ceil(patch) * columns];
    for (n, mean) in features.as_chunks_mut::<13>().0.iter_mut().enumerate() {
        let rows = n / columns * patch..height.min((n / columns + 1) * patch);
        let (start, end) = (n % columns * patch, width.min((n % columns + 1) * patch));
        for (plane, mean) in planes.chunks(height * width).zip(mean) {
            let sum: f64 = rows.clone().flat_map(|y| &plane[y * width..][start..end]).map(|v| f64::from(*v)).sum();
            *mean = (sum / (rows.len() * (end - start)) as f64) as f32;
        }
    }
    features
}
