//! Augmentation: section 10 of the spec.

use super::Image;

/// What happens to an image. The crop is top, left, height, width; `sigma` 0 is no blur.
#[derive(Clone, Copy, Debug)]
pub struct Augmented {
    pub crop: [usize; 4],
    pub flip: bool,
    pub brightness: f64,
    pub contrast: f64,
    pub saturation: f64,
    pub grayscale: bool,
    pub sigma: f64,
}

/// The antialiased bilinear weights of `n` samples for output `i` of `size`.
fn weights(n: usize, size: usize, i: usize) -> Vec<f64> {
    let scale = n as f64 / size as f64;
    let (center, support) = ((i as f64 + 0.5) * scale, scale.max(1.0));
    let raw: Vec<f64> = (0..n).map(|j| (1.0 - (j as f64 + 0.5 - center).abs() / support).max(0.0)).collect();
    let total: f64 = raw.iter().sum();
    raw.into_iter().map(|w| w / total).collect()
}

/// The augmented image `[3, size, size]`, from 0 to 1, with these weights of luma and this number
/// of taps.
pub fn augment(image: &Image, how: Augmented, size: usize, luma: [f64; 3], taps: usize) -> Vec<f64> {
    let [top, left, height, width] = how.crop;
    let at = |c: usize, y: usize, x: usize| (c * size + y) * size + x;
    let mut out = vec![0.0; 3 * size * size];
    let rows: Vec<Vec<f64>> = (0..size).map(|i| weights(height, size, i)).collect();
    let columns: Vec<Vec<f64>> = (0..size).map(|i| weights(width, size, i)).collect();
    for c in 0..3 {
        // Down first, then across.
        let mut half = vec![0.0; size * width];
        for y in 0..size {
            for (j, &w) in rows[y].iter().enumerate().filter(|(_, w)| **w > 0.0) {
                for x in 0..width {
                    half[y * width + x] += w * f64::from(image.pixel(top + j, left + x)[c]) / 255.0;
                }
            }
        }
        for y in 0..size {
            for x in 0..size {
                let sum: f64 = columns[x].iter().zip(&half[y * width..]).map(|(w, v)| w * v).sum();
                out[at(c, y, if how.flip { size - 1 - x } else { x })] = sum;
            }
        }
    }
    let gray = |out: &[f64], i: usize| (0..3).map(|c| luma[c] * out[c * size * size + i]).sum::<f64>();
    out.iter_mut().for_each(|v| *v = (*v * how.brightness).clamp(0.0, 1.0));
    let mean = (0..size * size).map(|i| gray(&out, i)).sum::<f64>() / (size * size) as f64;
    out.iter_mut().for_each(|v| *v = (how.contrast * *v + (1.0 - how.contrast) * mean).clamp(0.0, 1.0));
    for i in 0..size * size {
        let g = gray(&out, i);
        for c in 0..3 {
            let v = &mut out[c * size * size + i];
            *v = (how.saturation * *v + (1.0 - how.saturation) * g).clamp(0.0, 1.0);
        }
        if how.grayscale {
            let g = gray(&out, i);
            (0..3).for_each(|c| out[c * size * size + i] = g);
        }
    }
    if how.sigma > 0.0 {
        let reach = (taps / 2) as isize;
        let raw: Vec<f64> =
            (-reach..=reach).map(|k| (-((k * k) as f64) / (2.0 * how.sigma * how.sigma)).exp()).collect();
        let total: f64 = raw.iter().sum();
        let reflected = |i: isize| (if i < 0 { -i } else { i.min(2 * (size as isize - 1) - i) }) as usize;
        for down in [true, false] {
            let before = out.clone();
            for c in 0..3 {
                for y in 0..size {
                    for x in 0..size {
                        out[at(c, y, x)] = (-reach..=reach)
                            .zip(&raw)
                            .map(|(k, w)| {
                                let [y, x] = match down {
                                    true => [reflected(y as isize + k), x],
                                    false => [y, reflected(x as isize + k)],
                                };
                                w / total * before[at(c, y, x)]
                            })
                            .sum();
                    }
                }
            }
        }
    }
    out
}
