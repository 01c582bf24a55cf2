//! Augmentation: section 9 of the spec.

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

/// What happens to an image after that. Angles are in degrees, the hue in turns, and what is erased
/// is top, left, height, width in shares of the side.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    pub flip_vertical: bool,
    pub angle: f64,
    pub hue: f64,
    pub erased: Option<[f64; 4]>,
    pub fill: [f64; 3],
}

/// The image `[3, size, size]` after these steps.
pub fn finish(image: &[f64], how: Finished, size: usize) -> Vec<f64> {
    let n = size as isize;
    let at = |c: usize, y: isize, x: isize| {
        let inside = (0..n).contains(&y) && (0..n).contains(&x);
        let y = if how.flip_vertical { n - 1 - y } else { y };
        if inside { image[(c * size + y as usize) * size + x as usize] } else { 0.0 }
    };
    let (sin, cos) = how.angle.to_radians().sin_cos();
    let middle = (size as f64 - 1.0) / 2.0;
    let mut out = vec![0.0; 3 * size * size];
    for y in 0..size {
        for x in 0..size {
            let (dy, dx) = (y as f64 - middle, x as f64 - middle);
            let (v, u) = (sin * dx + cos * dy + middle, cos * dx - sin * dy + middle);
            let (row, column) = (v.floor(), u.floor());
            let (dv, du) = (v - row, u - column);
            let (row, column) = (row as isize, column as isize);
            let mut color = [0, 1, 2].map(|c| {
                let across = |y| (1.0 - du) * at(c, y, column) + du * at(c, y, column + 1);
                (1.0 - dv) * across(row) + dv * across(row + 1)
            });
            if how.hue != 0.0 {
                color = shifted(color, how.hue);
            }
            if let Some([top, left, height, width]) = how.erased {
                let [y, x] = [y, x].map(|i| (i as f64 + 0.5) / size as f64);
                if y >= top && y < top + height && x >= left && x < left + width {
                    color = how.fill;
                }
            }
            for c in 0..3 {
                out[(c * size + y) * size + x] = color[c];
            }
        }
    }
    out
}

/// The color in HSV with another hue, by way of the six sectors of the hue.
fn shifted([r, g, b]: [f64; 3], turns: f64) -> [f64; 3] {
    let (value, least) = (r.max(g).max(b), r.min(g).min(b));
    let chroma = value - least;
    if chroma == 0.0 {
        return [r, g, b];
    }
    let sixths = if r == value {
        (g - b) / chroma
    } else if g == value {
        2.0 + (b - r) / chroma
    } else {
        4.0 + (r - g) / chroma
    };
    let sixths = (sixths + 6.0 * turns).rem_euclid(6.0);
    let part = sixths.fract();
    let (falling, rising) = (value - chroma * part, value - chroma * (1.0 - part));
    match sixths as u32 {
        0 => [value, rising, least],
        1 => [falling, value, least],
        2 => [least, value, rising],
        3 => [least, falling, value],
        4 => [rising, least, value],
        _ => [value, least, falling],
    }
}
