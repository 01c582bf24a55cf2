//! The last steps of an augmentation, for batches that need more than `augment` does at once.
//!
//! ```text
//! for every pixel of every image, in parallel:
//!     color = pixel after vertical flip and rotation (4 samples), hue, erasing
//!     color = weight color + (1 - weight) the same of another image    if the weight is not 1
//!     out = color scale + shift
//! ```
//!
//! Launch: a thread for each pixel. Memory: 12 bytes are read for each pixel, or those of 4 pixels
//! with a rotation, and of both images with a mixture; 12 bytes are written, or 6.

use thalweg_simt::{Simt, bf16, kernel, safe};

/// The words of an image in `steps`. Floats are stored as their bits.
///
/// | word | content |
/// |---|---|
/// | 0 | the image that is mixed in |
/// | 1 | the weight of the image itself as f32; 1 mixes nothing in |
/// | 2 | 1 if the image is flipped from top to bottom, else 0 |
/// | 3 | the shift of hue as f32, in sixths of a turn |
/// | 4, 5 | cosine and sine of the rotation, as i32 in units of 2^-30 |
/// | 6, 7 | 0 |
/// | 8, 9 | the first row and the first column that are erased |
/// | 10, 11 | the first row and the first column after them |
/// | 12 .. 14 | the color of what is erased as f32 |
/// | 16 .. 18 | the factor of each channel as f32 |
/// | 20 .. 22 | what is added to each channel as f32 |
pub const STEP_WORDS: u32 = 24;

/// Red, green and blue.
type Color = [f32; 3];

/// A batch of images.
#[derive(Clone, Copy)]
struct Batch<'k> {
    size: u32,
    steps: safe::In<'k, [u32; 4], 2>,
    images: safe::In<'k, f32, 4>,
}

macro_rules! finish {
    ($($(#[$doc:meta])* $name:ident <$e:ident>($v:ident => $convert:expr);)*) => {$(
        kernel! {
            $(#[$doc])*
            pub fn $name(
                t: impl Simt, images: u32, size: u32, steps: In<[u32; 4]>[images, 6],
                x: In<f32>[images, 3, size, size], out: Out<$e>[images, 3, size, size] by [z, all, y, x],
            )
            require { (1..=65535).contains(&images), (1..=16384).contains(&size) }
            grid(size.div_ceil(64), size.div_ceil(4), images) block(64, 4)
            {
                let batch = Batch { size, steps, images: x };
                out.for_each_column(t, |column| {
                    let [image, _, y, x] = column.at();
                    let mut color = pixel(t, batch, image, y, x);
                    let [other, weight, ..] = steps.get(t, [image, 0]);
                    let weight = f32::from_bits(weight);
                    if weight != 1.0 && other < images {
                        let other = pixel(t, batch, other, y, x);
                        for c in 0..3 {
                            color[c] = t.fma(weight, color[c], (1.0 - weight) * other[c]);
                        }
                    }
                    let (scale, shift) = (numbers(t, steps, image, 4), numbers(t, steps, image, 5));
                    for c in 0..3 {
                        let $v = t.fma(color[c], scale[c], shift[c]);
                        column.cell::<1>(c as u32).set($convert);
                    }
                });
            }
        }
    )*};
}
finish! {
    /// Computes the finished images `out` [B, 3, S, S] of `x` [B, 3, S, S], where S is `size`, with
    /// the [words](STEP_WORDS) of each image in `steps`. Erased pixels get the color `fill`. An
    /// element is `v scale[channel] + shift[channel]`, with v as the images have it, from 0 to 1.
    finish_f32 <f32>(v => v);
    /// Does the same as [`finish_f32`], with elements in bfloat16, rounded to nearest even.
    finish_bf16 <bf16>(v => bf16::from_f32(v));
}

/// Returns three numbers of a step.
#[inline(always)]
fn numbers<'k, C: Simt>(t: &safe::Thread<'k, C>, steps: safe::In<'k, [u32; 4], 2>, image: u32, quad: u32) -> Color {
    let [a, b, c, _] = steps.get(t, [image, quad]);
    [a, b, c].map(f32::from_bits)
}

/// Returns a pixel of an image after its own steps, before another image is mixed in.
#[inline(always)]
fn pixel<'k, C: Simt>(t: &safe::Thread<'k, C>, batch: Batch<'k>, image: u32, y: u32, x: u32) -> Color {
    let Batch { size, steps, images } = batch;
    let [top, left, bottom, right] = steps.get(t, [image, 2]);
    if y >= top && y < bottom && x >= left && x < right {
        return numbers(t, steps, image, 3);
    }
    let [_, _, vertical, hue] = steps.get(t, [image, 0]);
    let [cos, sin, ..] = steps.get(t, [image, 1]);
    // A sample outside the image is black. A row above the image wraps to one below it.
    let sample = |y: u32, x: u32| {
        let y = if vertical == 1 { (size - 1).wrapping_sub(y) } else { y };
        let one = |c: u32| images.try_get(t, [image, c, y, x]).unwrap_or(0.0);
        [one(0), one(1), one(2)]
    };
    let color = if [cos, sin] == [1 << 30, 0] {
        sample(y, x)
    } else {
        // Distances from the center in half pixels. With the units of cosine and sine, a place is a
        // whole number of 2^-31 pixels, below 2^48, so no place is rounded.
        let [down, across] = [y, x].map(|i| i64::from(2 * i + 1) - i64::from(size));
        let [cos, sin] = [cos, sin].map(|v| i64::from(v.cast_signed()));
        let middle = i64::from(size - 1) << 30;
        let [down, across] = [sin * across + cos * down + middle, cos * across - sin * down + middle];
        let ([y, x], [v, u]) = (
            [down, across].map(|place| (place >> 31) as u32),
            [down, across].map(|place| (place as u32 & 0x7fff_ffff) as f32 * (1.0 / 2_147_483_648.0)),
        );
        let row = |y: u32| {
            let (a, b) = (sample(y, x), sample(y, x.wrapping_add(1)));
            [0, 1, 2].map(|c| t.fma(u, b[c] - a[c], a[c]))
        };
        let (a, b) = (row(y), row(y.wrapping_add(1)));
        [0, 1, 2].map(|c| t.fma(v, b[c] - a[c], a[c]))
    };
    if hue == 0 { color } else { turned(t, f32::from_bits(hue), color) }
}

/// Shifts the hue of a color by sixths of a turn. Value and chroma stay.
#[inline(always)]
fn turned<C: Simt>(t: &safe::Thread<'_, C>, sixths: f32, [r, g, b]: Color) -> Color {
    let value = r.max(g).max(b);
    let chroma = value - r.min(g).min(b);
    if chroma < 1e-30 {
        return [r, g, b];
    }
    let scale = t.recip(chroma);
    let hue = if value == r {
        (g - b) * scale
    } else if value == g {
        t.fma(b - r, scale, 2.0)
    } else {
        t.fma(r - g, scale, 4.0)
    };
    [5.0, 3.0, 1.0].map(|n| {
        let k = n + hue + sixths;
        let k = t.fma(t.floor(k * (1.0 / 6.0)), -6.0, k);
        t.fma(-chroma, k.min(4.0 - k).clamp(0.0, 1.0), value)
    })
}
