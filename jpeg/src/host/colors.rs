//! Samples to RGB, with the integers of libjpeg, and of Pillow for CMYK.

use crate::header::Color;

/// Converts a row: the samples of each component, as many as there are pixels.
#[inline(always)]
pub(super) fn convert(color: Color, samples: [&[u8]; 4], rgb: &mut [u8]) {
    let [a, b, c, d] = samples;
    let pixels = rgb.as_chunks_mut::<3>().0;
    let three = pixels.iter_mut().zip(a.iter().zip(b).zip(c));
    match color {
        Color::Gray => pixels.iter_mut().zip(a).for_each(|(to, v)| *to = [*v; 3]),
        Color::Rgb => three.for_each(|(to, ((r, g), b))| *to = [*r, *g, *b]),
        Color::YCbCr => three.for_each(|(to, ((y, cb), cr))| *to = from_ycbcr(*y, *cb, *cr)),
        Color::Cmyk => three.zip(d).for_each(|((to, ((c, m), y)), k)| *to = [*c, *m, *y].map(|v| product(v, *k))),
        Color::Ycck => three.zip(d).for_each(|((to, ((y, cb), cr)), k)| {
            // libjpeg makes the inverse of what Adobe's programs write of it, and that is inverted
            // again.
            *to = from_ycbcr(*y, *cb, *cr).map(|v| product(255 - v, *k));
        }),
    }
}

/// Converts full-range YCbCr of ITU-R BT.601, in fixed point with 16 bits. The constants are split
/// so that products have factors of 16 bits: 1.402 is 1 + 0.402, 0.71414 is 1 - 0.28586, and 1.772
/// is 2 - 0.228.
#[inline(always)]
fn from_ycbcr(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(i16::from(cb) - 128), i32::from(i16::from(cr) - 128));
    let r = y + cr + ((26345 * cr + 32768) >> 16);
    let g = y - cr + ((18734 * cr - 22554 * cb + 32768) >> 16);
    let b = y + 2 * cb + ((-14942 * cb + 32768) >> 16);
    [r, g, b].map(|v| v.clamp(0, 255) as u8)
}

/// The product of two values, where 255 stands for 1, rounded as Pillow does it.
#[inline(always)]
fn product(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    (((product >> 8) + product) >> 8) as u8
}

#[cfg(test)]
mod tests {
    use super::from_ycbcr;

    /// The sums with libjpeg's constants, for all values.
    #[test]
    fn split_constants_give_the_same_colors() {
        for cb in 0..=255u8 {
            for cr in 0..=255u8 {
                let (blue, red) = (i32::from(cb) - 128, i32::from(cr) - 128);
                for y in [0, 1, 77, 128, 254, 255u8] {
                    let sums = [91881 * red, -22554 * blue - 46802 * red, 116_130 * blue];
                    let expected = sums.map(|v| (i32::from(y) + ((v + 32768) >> 16)).clamp(0, 255) as u8);
                    assert_eq!(from_ycbcr(y, cb, cr), expected, "{y} {cb} {cr}");
                }
            }
        }
    }
}
