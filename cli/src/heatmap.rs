//! A photograph with its allocation drawn over it.
//!
//! A patch without tokens is dimmed and gray. A patch with n x n of them keeps its colours and carries the lattice of
//! its cells and a frame, whose colour says n; the bar below is the scale. Small photographs are enlarged until cells
//! can be told apart, large ones reduced to fit a page.

use std::ops::RangeInclusive;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::imageops::{self, FilterType as Resample};
use image::{ExtendedColorType, ImageBuffer, ImageEncoder, Rgb, RgbImage};
use thalweg_vision::{Image, TokenSet};

mod lettering;

/// The longest side of the drawn photograph, in pixels; reached by whole factors when enlarging.
const LONG_SIDE: f64 = 1536.0;
/// Enlarging stops where the smallest cells have this side.
const CELL: f64 = 10.0;
/// The narrowest picture that holds the scale.
const NARROWEST: u32 = 640;

const PAGE: [f32; 3] = [0.055, 0.06, 0.075];
const INK: [f32; 3] = [0.86, 0.87, 0.89];
const MUTED: [f32; 3] = [0.56, 0.58, 0.61];
/// Brightness of a patch without tokens.
const DIMMED: f32 = 0.4;

/// Draws and encodes as PNG.
pub(crate) fn png(image: &Image, set: &TokenSet, sides: &RangeInclusive<u32>) -> Result<Vec<u8>, String> {
    let picture = draw(image, set, sides).ok_or("the heatmap does not fit in memory")?;
    let mut bytes = Vec::new();
    PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::Adaptive)
        .write_image(picture.as_raw(), picture.width(), picture.height(), ExtendedColorType::Rgb8)
        .map_err(|e| format!("cannot encode the heatmap: {e}"))?;
    Ok(bytes)
}

fn draw(image: &Image, set: &TokenSet, sides: &RangeInclusive<u32>) -> Option<RgbImage> {
    let (height, width) = (image.height(), image.width());
    let scale = scale(height, width, set.patch, *sides.end());
    let resized = |side: u32| ((f64::from(side) * scale).round() as u32).max(1);
    let (h, w) = (resized(height), resized(width));
    let photo = ImageBuffer::<Rgb<u8>, &[u8]>::from_raw(width, height, image.rgb())?;
    let photo = if scale < 1.0 {
        imageops::thumbnail(&photo, w, h)
    } else {
        imageops::resize(&photo, w, h, Resample::CatmullRom)
    };

    let page = w.max(NARROWEST);
    let legend = Legend::new(page);
    let mut picture = RgbImage::from_pixel(page, h + legend.height(), byte(PAGE));
    // The colours span the sides that occur: by default most patches get the smallest few.
    let most = set.sides.iter().max().map_or(0, |&side| side as u32);
    let used = *sides.start()..=most.max(*sides.start());
    let left = (page - w) / 2;
    for (x, y, pixel) in photo.enumerate_pixels() {
        let at = [
            (f64::from(y) + 0.5) * f64::from(height) / f64::from(h),
            (f64::from(x) + 0.5) * f64::from(width) / f64::from(w),
        ];
        let color = pixel.0.map(|v| f32::from(v) / 255.0);
        picture.put_pixel(left + x, y, byte(shade(color, at, scale, set, &used)));
    }
    legend.draw(&mut picture, h, set, &used);
    Some(picture)
}

/// Canvas pixels per pixel of the photograph.
fn scale(height: u32, width: u32, patch: u32, hi: u32) -> f64 {
    let fits = LONG_SIDE / f64::from(height.max(width));
    if fits < 1.0 {
        return fits;
    }
    let shortest = patch.min(height).min(width);
    let enough = (CELL * f64::from(hi) / f64::from(shortest)).ceil();
    fits.min(enough).floor().max(1.0)
}

/// The colour of a point of the photograph, `at` (y, x) in its pixels.
fn shade(color: [f32; 3], at: [f64; 2], scale: f64, set: &TokenSet, used: &RangeInclusive<u32>) -> [f32; 3] {
    let patch = f64::from(set.patch);
    let [row, column] = at.map(|v| (v / patch) as usize);
    let side = set.sides[row * set.grid[1] as usize + column];
    let extent = [f64::from(set.height), f64::from(set.width)];
    // Of the patch, which is cut at the lower and the right edge: start and length.
    let start = [row, column].map(|i| i as f64 * patch);
    let length = [0, 1].map(|axis| patch.min(extent[axis] - start[axis]));
    // Distance to the nearest of the lines that cut the patch into n parts, in canvas pixels.
    let to_line = |n: f64| {
        [0, 1].map(|axis| {
            let cell = length[axis] / n;
            let within = (at[axis] - start[axis]) % cell;
            within.min(cell - within) * scale
        })
    };
    let line =
        |distance: [f64; 2], width: f64| (width / 2.0 + 0.5 - distance[0].min(distance[1])).clamp(0.0, 1.0) as f32;
    // Lines closer than a few pixels would be a veil, not a lattice.
    let room = |pitch: f64| ((pitch - 2.0) / 4.0).clamp(0.0, 1.0) as f32;
    let pitch = length[0].max(length[1]) * scale;

    if side == 0 {
        let luma = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2];
        let dim = mix(color, [luma; 3], 0.8).map(|v| v * DIMMED);
        return mix(dim, [1.0; 3], 0.1 * line(to_line(1.0), 1.0) * room(pitch));
    }
    let (hue, n) = (scale_color(side as u32, used), f64::from(side));
    let tinted = mix(color, hue, 0.6 - 0.44 * room(pitch));
    let ruled = mix(tinted, hue, 0.45 * line(to_line(n), 1.0) * room(pitch / n));
    mix(ruled, hue, 0.95 * line(to_line(1.0), if scale < 1.0 { 1.0 } else { 3.0 }) * room(pitch))
}

/// The colour of n on the scale. The dark end of the map is left out: it would not show on a dark photograph.
fn scale_color(side: u32, used: &RangeInclusive<u32>) -> [f32; 3] {
    let span = (used.end() - used.start()).max(1);
    viridis(0.45 + 0.55 * (side - used.start()) as f32 / span as f32)
}

/// Matplotlib's viridis, as the polynomial fitted by Matt Zucker (public domain, CC0).
fn viridis(t: f32) -> [f32; 3] {
    const C: [[f32; 3]; 7] = [
        [0.277_73, 0.005_41, 0.334_10],
        [0.105_09, 1.404_61, 1.384_59],
        [-0.330_86, 0.214_85, 0.095_10],
        [-4.634_23, -5.799_10, -19.332_44],
        [6.228_27, 14.179_93, 56.690_55],
        [4.776_38, -13.745_15, -65.353_03],
        [-5.435_46, 4.645_85, 26.312_44],
    ];
    [0, 1, 2].map(|channel| C.iter().rev().fold(0.0, |sum, c| sum * t + c[channel]).clamp(0.0, 1.0))
}

fn mix(from: [f32; 3], to: [f32; 3], share: f32) -> [f32; 3] {
    [0, 1, 2].map(|c| from[c] + (to[c] - from[c]) * share)
}

fn byte(color: [f32; 3]) -> Rgb<u8> {
    Rgb(color.map(|v| (v * 255.0).round() as u8))
}

/// The bar below the photograph: how many tokens there are, and the colour of each count per patch.
struct Legend {
    /// Height of a digit in pixels, from which all else follows.
    size: f64,
    page: u32,
}

impl Legend {
    fn new(page: u32) -> Self {
        Self { size: (f64::from(page) / 62.0).clamp(10.0, 24.0), page }
    }

    fn height(&self) -> u32 {
        (5.2 * self.size) as u32
    }

    fn draw(&self, picture: &mut RgbImage, top: u32, set: &TokenSet, used: &RangeInclusive<u32>) {
        let (size, small, top) = (self.size, 0.8 * self.size, f64::from(top));
        let (upper, lower, margin) = (top + 1.2 * size, top + 3.2 * size, 1.2 * size);
        let text = format!("{} tokens in {} of {} patches", set.tokens.len() / 13, set.patch_id.len(), set.sides.len());
        lettering::write(picture, [upper, margin], size, &text, INK);

        // One field for none and one for each side in use; a label wherever there is room for one.
        let fields = used.end() - used.start() + 2;
        let free = f64::from(self.page) - 2.0 * margin - 2.0 * size - lettering::width(&text, size);
        let field = (2.6 * size).min(free / f64::from(fields)).max(1.0);
        let widest = lettering::width(&(used.end() * used.end()).to_string(), small);
        let every = ((widest + 0.6 * size) / field).ceil() as u32;
        let left = f64::from(self.page) - margin - field * f64::from(fields);
        let seam = if field < 6.0 { 0.0 } else { 1.0 };
        for i in 0..fields {
            let (side, color) = match i {
                0 => (0, [0.6 * DIMMED; 3]),
                _ => (used.start() + i - 1, scale_color(used.start() + i - 1, used)),
            };
            let at = left + field * f64::from(i);
            for x in at as u32..(at + field - seam) as u32 {
                for y in upper as u32..(upper + 1.1 * size) as u32 {
                    picture.put_pixel(x, y, byte(color));
                }
            }
            if i % every == 0 {
                let label = (side * side).to_string();
                let x = at + (field - seam - lettering::width(&label, small)) / 2.0;
                lettering::write(picture, [lower, x], small, &label, INK);
            }
        }
        let caption = "tokens per patch";
        lettering::write(picture, [lower, left - size - lettering::width(caption, small)], small, caption, MUTED);
    }
}
