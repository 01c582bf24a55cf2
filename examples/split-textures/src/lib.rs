//! The planes of the texture array by three kernels instead of one: colors and places, L*a*b*, and
//! what needs the neighbors of a pixel.
//!
//! A thread takes four adjacent pixels of a row, so a store takes 16 bytes. `docs/spec.md` of the
//! repository has the formulas.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use thalweg_simt::{In, Out, Simt, kernel, ptx};

ptx! { unsafe "kernels" }

/// The threads of a block.
const BLOCK: u32 = 256;

kernel! {
    /// Computes R, G and B of each pixel, its row and its column in [0, 1], and its distance from
    /// the fixation, which is in units of the height and the width.
    pub unsafe fn colors(
        cx: impl Simt, height: u32, width: u32, fixation_y: f32, fixation_x: f32, rgb: In<u8>, planes: Out<f32>,
    )
    require {
        (1..=16384).contains(&height),
        (4..=16384).contains(&width),
        width.is_multiple_of(4),
        rgb.len() == 3 * height * width,
        planes.len() == 6 * height * width,
    }
    grid(width.div_ceil(4 * BLOCK), height) block(BLOCK)
    {
        let (y, x) = (cx.block_idx().y, 4 * cx.global_x());
        if x < width {
            let pixels = row(cx, rgb, width, y, x);
            let area = height * width;
            let put = |plane: u32, v: [f32; 4]| store(cx, planes, plane * area + y * width + x, v);
            for c in 0..3 {
                put(c, core::array::from_fn(|k| channel(pixels[k + 1], c) as f32 * (1.0 / 255.0)));
            }
            let far = |f: f32| f.abs().max((1.0 - f).abs());
            let (corner_y, corner_x) = (far(fixation_y), far(fixation_x));
            let nearness = cx.recip_approx(cx.sqrt_approx(cx.fma(corner_y, corner_y, corner_x * corner_x)));
            let down = y as f32 * cx.recip_approx((height.max(2) - 1) as f32);
            let across: [f32; 4] = core::array::from_fn(|k| (x + k as u32) as f32 * cx.recip_approx((width - 1) as f32));
            put(3, [down; 4]);
            put(4, across);
            let dy = (down - fixation_y) * nearness;
            put(5, across.map(|v| {
                let dx = (v - fixation_x) * nearness;
                cx.sqrt_approx(cx.fma(dy, dy, dx * dx))
            }));
        }
    }
}

kernel! {
    /// Computes L* / 100, (a* + 128) / 255 and (b* + 128) / 255 of each pixel. `linear` has the
    /// linear light of each byte.
    pub unsafe fn lab(cx: impl Simt, height: u32, width: u32, linear: In<f32>, rgb: In<u8>, planes: Out<f32>)
    require {
        (1..=16384).contains(&height),
        (4..=16384).contains(&width),
        width.is_multiple_of(4),
        linear.len() == 256,
        rgb.len() == 3 * height * width,
        planes.len() == 3 * height * width,
    }
    grid(width.div_ceil(4 * BLOCK), height) block(BLOCK)
    {
        let (y, x) = (cx.block_idx().y, 4 * cx.global_x());
        if x < width {
            let pixels = row(cx, rgb, width, y, x);
            let lab: [[f32; 3]; 4] = core::array::from_fn(|k| {
                let light = |c| linear.get(cx, channel(pixels[k + 1], c));
                from_linear(cx, [light(0), light(1), light(2)])
            });
            let area = height * width;
            for plane in 0..3 {
                store(cx, planes, plane as u32 * area + y * width + x, lab.map(|v| v[plane]));
            }
        }
    }
}

kernel! {
    /// Computes Gx, Gy and the edge magnitude of luma, and its local contrast, in windows of 3 x 3
    /// pixels whose border is replicated.
    pub unsafe fn edges(cx: impl Simt, height: u32, width: u32, rgb: In<u8>, planes: Out<f32>)
    require {
        (1..=16384).contains(&height),
        (4..=16384).contains(&width),
        width.is_multiple_of(4),
        rgb.len() == 3 * height * width,
        planes.len() == 4 * height * width,
    }
    grid(width.div_ceil(4 * BLOCK), height) block(BLOCK)
    {
        let (y, x) = (cx.block_idx().y, 4 * cx.global_x());
        if x < width {
            // Luma times 255000 is an integer below 2^24, which a float holds exactly.
            let luma = |y| row(cx, rgb, width, y, x).map(|p| {
                (299 * channel(p, 0) + 587 * channel(p, 1) + 114 * channel(p, 2)) as f32
            });
            let (above, here, below) = (luma(y.max(1) - 1), luma(y), luma((y + 1).min(height - 1)));
            let values: [[f32; 4]; 4] = core::array::from_fn(|k| {
                let smooth = |i: usize| above[i] + 2.0 * here[i] + below[i];
                let slope = |i: usize| below[i] - above[i];
                let gx = (smooth(k + 2) - smooth(k)) * (1.0 / (8.0 * 255_000.0));
                let gy = (slope(k) + 2.0 * slope(k + 1) + slope(k + 2)) * (1.0 / (8.0 * 255_000.0));
                // Deviations from the pixel in the middle are small where the contrast is small, so
                // the difference of squares below loses no digits there.
                let (mut sum, mut squares) = (0.0f32, 0.0f32);
                for i in k..k + 3 {
                    for v in [above[i], here[i], below[i]] {
                        let deviation = (v - here[k + 1]) * (1.0 / 255_000.0);
                        sum += deviation;
                        squares = cx.fma(deviation, deviation, squares);
                    }
                }
                let variance = cx.fma(sum * (-1.0 / 9.0), sum, squares) * (1.0 / 9.0);
                [gx, gy, cx.sqrt_approx(cx.fma(gx, gx, gy * gy)), 2.0 * cx.sqrt_approx(variance.max(0.0))]
            });
            let area = height * width;
            for plane in 0..4 {
                store(cx, planes, plane as u32 * area + y * width + x, values.map(|v| v[plane]));
            }
        }
    }
}

/// Channel `c` of a pixel in the low bytes of a word.
#[inline(always)]
fn channel(pixel: u32, c: u32) -> u32 {
    pixel >> (8 * c) & 255
}

/// Loads pixels `x - 1` to `x + 4` of row `y`. The columns beyond the border are those on it.
///
/// # Safety
/// `rgb` has rows of `width` pixels, of which `y` is one. `width` and `x` are multiples of 4, and
/// `x < width`.
#[inline(always)]
unsafe fn row(cx: impl Simt, rgb: In<u8>, width: u32, y: u32, x: u32) -> [u32; 6] {
    let start = 3 * width * y;
    let words = rgb.as_ptr().wrapping_add(start as usize).cast::<u32>();
    if !words.addr().is_multiple_of(4) {
        return core::array::from_fn(|k| {
            let column = (x + k as u32).clamp(1, width) - 1;
            // SAFETY: The three bytes are those of a pixel of row `y`.
            let byte = |c: u32| u32::from(unsafe { rgb.get(cx, start + 3 * column + c) });
            byte(0) | byte(1) << 8 | byte(2) << 16
        });
    }
    // SAFETY: The row starts on a word (checked above) and is 3/4 `width` whole words. The three
    // words from `p` on are those of pixels x to x + 3. The words before and after them are loaded
    // only if they are in the row.
    unsafe {
        let p = words.add(3 * x as usize / 4);
        let [a, b, c] = [cx.load(p), cx.load(p.add(1)), cx.load(p.add(2))];
        let left = if x > 0 { cx.load(p.sub(1)) } else { a << 8 };
        let right = if x + 4 < width { cx.load(p.add(3)) } else { c >> 8 };
        [left >> 8, a, a >> 24 | b << 8, b >> 16 | c << 16, c >> 8, right]
    }
}

/// Stores four values from element `i` on, which is a multiple of 4.
///
/// # Safety
/// The four elements are in the buffer, and no other thread writes them.
#[inline(always)]
unsafe fn store(cx: impl Simt, planes: Out<f32>, i: u32, v: [f32; 4]) {
    // SAFETY: The caller promises that the elements are in the buffer. `store4_streaming` is used
    // only if they are aligned.
    unsafe {
        let p = planes.as_ptr().add(i as usize);
        if p.addr().is_multiple_of(16) {
            cx.store4_streaming(p, v);
        } else {
            for (k, v) in (0..).zip(v) {
                cx.store(p.add(k), v);
            }
        }
    }
}

/// Computes the planes of L*a*b* from linear light (CIE 1976, D65, 2 degree observer).
#[inline(always)]
fn from_linear(cx: impl Simt, [r, g, b]: [f32; 3]) -> [f32; 3] {
    let f = |x: f64, y: f64, z: f64, white: f64| {
        let t = cx.fma((x / white) as f32, r, cx.fma((y / white) as f32, g, (z / white) as f32 * b));
        if t > 0.008856 { cx.cbrt_approx(t) } else { cx.fma(7.787, t, 16.0 / 116.0) }
    };
    let x = f(0.412453, 0.357580, 0.180423, 0.95047);
    let y = f(0.212671, 0.715160, 0.072169, 1.0);
    let z = f(0.019334, 0.119193, 0.950227, 1.08883);
    [cx.fma(1.16, y, -0.16), cx.fma(500.0 / 255.0, x - y, 128.0 / 255.0), cx.fma(200.0 / 255.0, y - z, 128.0 / 255.0)]
}
