//! Augmentation by the host, as the baseline of what the device does: section 9 of the
//! specification in f32, an image for each core at a time.

use std::thread;

use thalweg_vision::augment::{Augmentation, Crop, Normalization, Parameters};

/// The first sample of an output, and the weights of the samples from it on.
type Taps = (usize, Vec<f32>);

/// Returns the antialiased bilinear weights of each output.
fn taps(samples: usize, size: usize) -> Vec<Taps> {
    let scale = samples as f32 / size as f32;
    let support = scale.max(1.0);
    let of = |i: usize| {
        let center = (i as f32 + 0.5) * scale;
        let (first, end) = ((center - support).max(0.0) as usize, ((center + support).ceil() as usize).min(samples));
        let weights: Vec<f32> =
            (first..end).map(|j| (1.0 - (j as f32 + 0.5 - center).abs() / support).max(0.0)).collect();
        let total: f32 = weights.iter().sum();
        (first, weights.into_iter().map(|weight| weight / total).collect())
    };
    (0..size).map(of).collect()
}

/// Resizes the crop of an image of rows of `width` pixels: [S, S, 3], from 0 to 1.
fn resized(rgb: &[u8], width: usize, crop: Crop, size: usize) -> Vec<f32> {
    let [top, left, height, across] = [crop.top, crop.left, crop.height, crop.width].map(|n| n as usize);
    let (rows, columns) = (taps(height, size), taps(across, size));
    let mut out = vec![0.0; 3 * size * size];
    // Rows that are narrowed already; a row of the result needs those next to one another.
    let mut narrow: Vec<Vec<f32>> = vec![vec![]; height];
    for (y, (first, weights)) in rows.iter().enumerate() {
        narrow[..*first].iter_mut().for_each(|row| *row = vec![]);
        let out = &mut out[3 * size * y..][..3 * size];
        for (row, weight) in (*first..).zip(weights) {
            if narrow[row].is_empty() {
                let source = &rgb[3 * ((top + row) * width + left)..][..3 * across];
                narrow[row] = columns
                    .iter()
                    .flat_map(|(first, weights)| {
                        let mut sum = [0.0; 3];
                        for (pixel, weight) in source[3 * first..].chunks_exact(3).zip(weights) {
                            for c in 0..3 {
                                sum[c] += weight * f32::from(pixel[c]);
                            }
                        }
                        sum.map(|v| v * (1.0 / 255.0))
                    })
                    .collect();
            }
            for (to, v) in out.iter_mut().zip(&narrow[row]) {
                *to += weight * v;
            }
        }
    }
    out
}

/// Blurs planes [3, S, S] down and across.
fn blur(planes: &mut [f32], size: usize, sigma: f64, taps: u32) {
    let reach = (taps / 2) as isize;
    let weights: Vec<f64> = (-reach..=reach).map(|k| (-((k * k) as f64) / (2.0 * sigma * sigma)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let weights: Vec<f32> = weights.into_iter().map(|weight| (weight / total) as f32).collect();
    let last = size as isize - 1;
    let reflected = |i: isize| (if i < 0 { -i } else { i.min(2 * last - i) }) as usize;
    let mut down = vec![0.0; planes.len()];
    for (row, to) in down.chunks_exact_mut(size).enumerate() {
        let (plane, y) = (row / size * size, (row % size) as isize);
        for (k, weight) in (-reach..).zip(&weights) {
            let from = &planes[(plane + reflected(y + k)) * size..][..size];
            to.iter_mut().zip(from).for_each(|(to, v)| *to += weight * v);
        }
    }
    for (from, to) in down.chunks_exact(size).zip(planes.chunks_exact_mut(size)) {
        for (x, to) in (0..).zip(to) {
            *to = (-reach..).zip(&weights).map(|(k, weight)| weight * from[reflected(x + k)]).sum();
        }
    }
}

/// Augments an image: [3, S, S].
fn one(rgb: &[u8], width: usize, p: &Parameters, options: &Augmentation, out: &mut [f32], size: usize) {
    let mut pixels = resized(rgb, width, p.crop, size);
    if p.flip {
        for row in pixels.chunks_exact_mut(3 * size) {
            row.as_chunks_mut::<3>().0.reverse();
        }
    }
    let weights = options.luma.map(|v| v as f32);
    let luma = |[r, g, b]: [f32; 3]| weights[0] * r + weights[1] * g + weights[2] * b;
    let [brightness, contrast, saturation] = [p.brightness, p.contrast, p.saturation].map(|v| v as f32);
    pixels.iter_mut().for_each(|v| *v = (*v * brightness).clamp(0.0, 1.0));
    let pixels = pixels.as_chunks_mut::<3>().0;
    let mean = pixels.iter().map(|pixel| f64::from(luma(*pixel))).sum::<f64>() / pixels.len() as f64;
    let mut planes = vec![0.0; 3 * size * size];
    for (i, pixel) in pixels.iter().enumerate() {
        let pixel = pixel.map(|v| (contrast * v + (1.0 - contrast) * mean as f32).clamp(0.0, 1.0));
        let gray = luma(pixel);
        let pixel = pixel.map(|v| (saturation * v + (1.0 - saturation) * gray).clamp(0.0, 1.0));
        let pixel = if p.grayscale { [luma(pixel); 3] } else { pixel };
        (0..3).for_each(|c| planes[c * size * size + i] = pixel[c]);
    }
    if let (true, Some(options)) = (p.sigma > 0.0, &options.blur) {
        blur(&mut planes, size, p.sigma, options.taps);
    }
    let Normalization { mean, std, .. } = options.normalize.clone().unwrap_or_default();
    for c in 0..3 {
        let (scale, shift) = ((1.0 / std[c]) as f32, (-mean[c] / std[c]) as f32);
        let (to, from) = (&mut out[c * size * size..][..size * size], &planes[c * size * size..]);
        to.iter_mut().zip(from).for_each(|(to, v)| *to = v * scale + shift);
    }
}

/// Augments images of `width` columns, each with its parameters, with all cores: [B, 3, S, S].
pub(crate) fn augment(images: &[(&[u8], Parameters)], width: u32, options: &Augmentation, size: u32, out: &mut [f32]) {
    let (width, size) = (width as usize, size as usize);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let part = images.len().div_ceil(cores);
    thread::scope(|threads| {
        for (images, out) in images.chunks(part).zip(out.chunks_mut(part * 3 * size * size)) {
            threads.spawn(move || {
                for ((rgb, p), out) in images.iter().zip(out.chunks_exact_mut(3 * size * size)) {
                    one(rgb, width, p, options, out, size);
                }
            });
        }
    });
}
