//! A picture of a photograph with its allocation drawn over it.
//!
//! A patch without tokens is dim and almost gray. A patch with n x n tokens keeps its colors and
//! shows the lattice of its cells and a frame. The color of both says n, and the bar below is the
//! scale. Small photographs are enlarged until their cells are visible, and large ones are reduced
//! to fit a page.

use std::ops::RangeInclusive;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::imageops::{self, FilterType as Resample};
use image::{ExtendedColorType, ImageBuffer, ImageEncoder, Rgb, RgbImage};
use thalweg::{Error, Result, Size};

use crate::{Image, TokenParams, TokenSet};

mod lettering;

/// The longest side of the drawn photograph, in pixels. Photographs are enlarged only by whole
/// factors, so they may stay below it.
const LONG_SIDE: f64 = 1536.0;
/// A photograph is enlarged only until its smallest cells have this side, in pixels of the picture.
const CELL: f64 = 10.0;
/// The least width of a picture. The scale needs it.
const NARROWEST: u32 = 640;

const PAGE: [f32; 3] = [0.055, 0.06, 0.075];
const INK: [f32; 3] = [0.86, 0.87, 0.89];
const MUTED: [f32; 3] = [0.56, 0.58, 0.61];
/// The brightness of a patch without tokens, as a factor.
const DIMMED: f32 = 0.4;

impl TokenSet {
    /// Returns the image with the allocation drawn over it, as a PNG file. Patches without tokens
    /// are dim, and the color and the lattice of the others say how many tokens they have. A bar
    /// below is the scale. `image` and `params` are those that the tokens were made from.
    ///
    /// # Errors
    /// [`Error::Parameter`]: the image has another size than the tokens' image, a parameter is out
    /// of its range, or the sides are not those of a grid of patches, each 0 or one of `params`.
    ///
    /// ```
    /// use thalweg::Device;
    /// use thalweg_vision::{Image, Pipeline, TokenParams};
    ///
    /// let params = TokenParams::default();
    /// let pixels = (0..3 * 48 * 64).map(|i| (i * i % 251) as u8).collect::<Vec<_>>();
    /// let image = || Image::new(48, 64, pixels.clone());
    /// let tokens = Pipeline::new(Device::cpu()?, params.clone())?.run(&[image()?]).remove(0)?;
    /// let png = tokens.heatmap_png(&image()?, &params)?;
    /// assert!(png.starts_with(b"\x89PNG"));
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    pub fn heatmap_png(&self, image: &Image, params: &TokenParams) -> Result<Vec<u8>> {
        params.validate()?;
        let refuse = |name, given, expected| Err(Error::Parameter { name, given, expected });
        let (size, expected) = (image.size(), Size::new(self.height, self.width));
        if size != expected {
            return refuse("image size", size.to_string(), format!("{expected}, as the tokens' image"));
        }
        let grid = [self.height, self.width].map(|side| side.div_ceil(self.patch.max(1)));
        if self.patch == 0
            || self.grid != Size::from(grid)
            || self.sides.len() != grid[0] as usize * grid[1] as usize
            || self
                .sides
                .iter()
                .any(|&side| side != 0 && !u32::try_from(side).is_ok_and(|side| params.sides.contains(&side)))
        {
            let given = format!("{} sides of patches of {} pixels", self.sides.len(), self.patch);
            let (lo, hi) = (params.sides.start(), params.sides.end());
            return refuse("tokens", given, format!("0, or {lo} to {hi}, for each patch of {expected} pixels"));
        }
        let picture = draw(image, self, &params.sides);
        let mut bytes = Vec::new();
        PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::Adaptive)
            .write_image(picture.as_raw(), picture.width(), picture.height(), ExtendedColorType::Rgb8)
            .map_err(|error| Error::Parameter {
                name: "heatmap",
                given: error.to_string(),
                expected: "a picture that PNG can hold".into(),
            })?;
        Ok(bytes)
    }
}

fn draw(image: &Image, set: &TokenSet, sides: &RangeInclusive<u32>) -> RgbImage {
    let (height, width) = (image.height(), image.width());
    let scale = scale(height, width, set.patch, *sides.end());
    let resized = |side: u32| ((f64::from(side) * scale).round() as u32).max(1);
    let (h, w) = (resized(height), resized(width));
    let photo = ImageBuffer::<Rgb<u8>, &[u8]>::from_raw(width, height, image.rgb()).expect("an image has its bytes");
    let photo = if scale < 1.0 {
        imageops::thumbnail(&photo, w, h)
    } else {
        imageops::resize(&photo, w, h, Resample::CatmullRom)
    };

    let page = w.max(NARROWEST);
    let legend = Legend::new(page);
    let mut picture = RgbImage::from_pixel(page, h + legend.height(), byte(PAGE));
    // The colors span only the sides up to the largest in use: by default, most patches get one of
    // the smallest few.
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
    picture
}

/// Returns the number of picture pixels per pixel of the photograph.
fn scale(height: u32, width: u32, patch: u32, hi: u32) -> f64 {
    let fits = LONG_SIDE / f64::from(height.max(width));
    if fits < 1.0 {
        return fits;
    }
    let shortest = patch.min(height).min(width);
    let enough = (CELL * f64::from(hi) / f64::from(shortest)).ceil();
    fits.min(enough).floor().max(1.0)
}

/// Returns the color of the picture at the point `at` (y, x), in pixels of the photograph.
fn shade(color: [f32; 3], at: [f64; 2], scale: f64, set: &TokenSet, used: &RangeInclusive<u32>) -> [f32; 3] {
    let patch = f64::from(set.patch);
    let [row, column] = at.map(|v| (v / patch) as usize);
    let side = set.sides[row * set.grid.width as usize + column];
    let extent = [f64::from(set.height), f64::from(set.width)];
    // The patch's start and length. The lower and the right edge of the photograph cut patches.
    let start = [row, column].map(|i| i as f64 * patch);
    let length = [0, 1].map(|axis| patch.min(extent[axis] - start[axis]));
    // The distance to the nearest line that cuts the patch into n parts, in pixels of the picture.
    let to_line = |n: f64| {
        [0, 1].map(|axis| {
            let cell = length[axis] / n;
            // By a conversion: the remainder of two floats and `floor` are calls.
            let cells = (at[axis] - start[axis]) / cell;
            let within = cells - f64::from(cells as u32);
            within.min(1.0 - within) * cell * scale
        })
    };
    let line =
        |distance: [f64; 2], width: f64| (width / 2.0 + 0.5 - distance[0].min(distance[1])).clamp(0.0, 1.0) as f32;
    // Lines that are only a few pixels apart fade, because they would hide the photograph.
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

/// Returns the color of n on the scale. The scale leaves out the dark end of the color map, which
/// would be invisible on a dark photograph.
fn scale_color(side: u32, used: &RangeInclusive<u32>) -> [f32; 3] {
    let span = (used.end() - used.start()).max(1);
    viridis(0.45 + 0.55 * (side - used.start()) as f32 / span as f32)
}

/// Computes Matplotlib's color map viridis with a polynomial that Matt Zucker fitted (public
/// domain, CC0).
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
    Rgb(color.map(|v| (v * 255.0 + 0.5) as u8))
}

/// The bar below the photograph. It says how many tokens there are, and shows the color of each
/// number of tokens per patch.
struct Legend {
    /// The height of a digit in pixels. All other sizes are multiples of it.
    size: f64,
    page: u32,
}

impl Legend {
    fn new(page: u32) -> Self {
        Self { size: (f64::from(page) / 62.0).clamp(10.0, lettering::LARGEST), page }
    }

    fn height(&self) -> u32 {
        (5.2 * self.size) as u32
    }

    fn draw(&self, picture: &mut RgbImage, top: u32, set: &TokenSet, used: &RangeInclusive<u32>) {
        let (size, small, top) = (self.size, 0.8 * self.size, f64::from(top));
        let (upper, lower, margin) = (top + 1.2 * size, top + 3.2 * size, 1.2 * size);
        let text = format!("{} tokens in {} of {} patches", set.tokens.len() / 13, set.patch_id.len(), set.sides.len());
        lettering::write(picture, [upper, margin], size, &text, INK);

        // There is one field for no tokens and one for each side in use. A field gets a label only
        // if there is room for it.
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
