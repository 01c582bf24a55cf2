//! Writes the text of a legend, in Noto Sans Mono.

use image::{Rgb, RgbImage};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

/// The height in pixels of the largest digits that the font has.
pub(super) const LARGEST: f64 = 17.0;

/// The height of a digit as a share of the height of a line.
const DIGIT: f64 = 0.53;

/// Returns the lines whose digits are closest to `size` pixels high.
fn line(size: f64) -> RasterHeight {
    use RasterHeight::{Size16, Size20, Size24, Size32};
    let off = |line: &RasterHeight| (DIGIT * line.val() as f64 - size).abs();
    [Size20, Size24, Size32].into_iter().fold(Size16, |best, next| if off(&next) < off(&best) { next } else { best })
}

/// Returns the width of a text whose digits are about `size` pixels high.
pub(super) fn width(text: &str, size: f64) -> f64 {
    (text.chars().count() * get_raster_width(FontWeight::Regular, line(size))) as f64
}

/// Writes a text. `(y, x)` is the upper left corner of its first digit.
pub(super) fn write(picture: &mut RgbImage, [y, x]: [f64; 2], size: f64, text: &str, ink: [f32; 3]) {
    let line = line(size);
    let top = (y + (size - line.val() as f64) / 2.0).max(0.0) as u32;
    let characters = text.chars().filter_map(|c| get_raster(c, FontWeight::Regular, line));
    for (left, character) in (x as u32..).step_by(get_raster_width(FontWeight::Regular, line)).zip(characters) {
        for (y, row) in (top..).zip(character.rows()) {
            for (x, &cover) in (left..).zip(row) {
                if let Some(Rgb(pixel)) = picture.get_pixel_mut_checked(x, y) {
                    let below = pixel.map(|v| f32::from(v) / 255.0);
                    *pixel = super::byte(super::mix(below, ink, f32::from(cover) / 255.0)).0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use image::{Rgb, RgbImage};

    #[test]
    fn digits_are_where_and_as_high_as_asked() {
        for size in [8.0, 10.0, 14.0, super::LARGEST] {
            let mut picture = RgbImage::new(300, 80);
            let text = "0123456789";
            super::write(&mut picture, [20.0, 30.0], size, text, [1.0; 3]);
            let ink = || picture.enumerate_pixels().filter(|(_, _, Rgb(pixel))| pixel[0] > 128);
            let rows = ink().map(|(_, y, _)| f64::from(y));
            let (top, bottom) = rows.fold((80.0, 0.0), |(top, bottom): (f64, f64), y| (top.min(y), bottom.max(y)));
            assert!((top - 20.0).abs() <= 2.0 && (bottom + 1.0 - top - size).abs() <= 2.0, "{size}: {top} to {bottom}");
            let within = 30.0..30.0 + super::width(text, size);
            assert!(ink().all(|(x, _, _)| within.contains(&f64::from(x))), "{size}");
        }
    }
}
