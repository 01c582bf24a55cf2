//! Upsampling of chroma, conversion to RGB, and orientation.
//!
//! ```text
//! for every 4 pixels of the upright image, in parallel:
//!     for every pixel: its place (y, x) before the orientation was applied
//!         for every component: the sample at (y, x), enlarged as libjpeg does it ("fancy upsampling")
//!         RGB of the samples
//! ```
//!
//! Memory: the planes are read once, 3 bytes are written for each pixel.
//!
//! - **The integers are those of libjpeg.** Where a component is enlarged by 2, a sample is 3/4 of the
//!   nearer one and 1/4 of the farther one, with biases 1 and 2 by turns (8 and 7 in two
//!   dimensions). At borders the last sample of the image repeats, not the padding of the last block.
//!   Enlarged across, this holds for components of more than 2 samples a row. All others are
//!   replicated.
//! - **4 pixels of a row share the sums of their chroma samples and are stored as 3 words** if the
//!   width is a multiple of 4 and the image is upright. Pixel by pixel the kernel took 18 times as long
//!   on an H200.

use thalweg_simt::{In, Simt, kernel};

use super::record::{COMPONENT_WORDS, IMAGE_WORDS, Record};

/// The threads of a block.
const THREADS: u32 = 256;
/// The pixels of a thread.
const PIXELS: u32 = 4;

/// The plane of a component.
#[derive(Clone, Copy)]
struct Plane {
    samples: *const u8,
    stride: u32,
    /// The samples of the image in this component, without padding.
    rows: u32,
    columns: u32,
    /// By how much the component is enlarged, down and across.
    by: [u32; 2],
}

impl Plane {
    /// Reads the plane of component `c` from the record of an image. There is none if it does not lie
    /// in `planes`.
    ///
    /// # Safety
    /// `image` is a record of an image, and `planes` has `bytes` elements.
    #[inline(always)]
    unsafe fn new(cx: impl Simt, image: Record, planes: In<u8>, bytes: u64, c: u32) -> Option<Self> {
        let word = 16 + COMPONENT_WORDS * c;
        // SAFETY: The words are inside the record.
        unsafe {
            let by = [image.get(cx, word + 7).max(1), image.get(cx, word + 6).max(1)];
            let start = image.wide(cx, word + 4);
            let stride = image.get(cx, 5).saturating_mul(image.get(cx, word)).saturating_mul(8);
            let (rows, columns) = (image.get(cx, 0).div_ceil(by[0]).max(1), image.get(cx, 1).div_ceil(by[1]).max(1));
            let size = u64::from(rows) * u64::from(stride);
            let inside = columns <= stride && size < 1 << 32 && start < bytes && size <= bytes - start;
            // The samples lie after a multiple of 64 bytes, or the words of a row would not be aligned.
            let samples = planes.as_ptr().wrapping_add(start as usize);
            (inside && start.is_multiple_of(64)).then_some(Self { samples, stride, rows, columns, by })
        }
    }

    /// Returns the sample of a row and a column of the plane.
    ///
    /// # Safety
    /// `y` is below `rows` and `x` below `columns`.
    #[inline(always)]
    unsafe fn at(self, cx: impl Simt, y: u32, x: u32) -> u32 {
        // SAFETY: `new` checked that `rows` rows of `stride` samples are in `planes`, and that a row has
        // `columns` samples.
        u32::from(unsafe { cx.load(self.samples.add((y * self.stride + x) as usize)) })
    }

    /// Returns the nearer and the farther of the two samples of `len` that count for place `i` of the
    /// enlarged image.
    #[inline(always)]
    fn near(i: u32, len: u32) -> (u32, u32) {
        let near = i / 2;
        (near, if i.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(len - 1) })
    }

    /// Returns the sample at a pixel of the image.
    ///
    /// # Safety
    /// The pixel is in the image.
    #[inline(always)]
    unsafe fn sample(self, cx: impl Simt, y: u32, x: u32) -> u32 {
        let (odd_y, odd_x) = (y & 1, x & 1);
        // SAFETY: `y / by` is below `rows` for a pixel of the image, and `x / by` below `columns`.
        // `near` stays below the length that it is given.
        unsafe {
            match self.by {
                [1, 1] => self.at(cx, y, x),
                [1, 2] if self.columns > 2 => {
                    let (near, far) = Self::near(x, self.columns);
                    (3 * self.at(cx, y, near) + self.at(cx, y, far) + 1 + odd_x) >> 2
                }
                [2, 1] => {
                    let (near, far) = Self::near(y, self.rows);
                    (3 * self.at(cx, near, x) + self.at(cx, far, x) + 1 + odd_y) >> 2
                }
                [2, 2] if self.columns > 2 => {
                    let (rows, (near, far)) = (Self::near(y, self.rows), Self::near(x, self.columns));
                    let sum = |x| 3 * self.at(cx, rows.0, x) + self.at(cx, rows.1, x);
                    (3 * sum(near) + sum(far) + 8 - odd_x) >> 4
                }
                [down, across] => self.at(cx, y / down, x / across),
            }
        }
    }

    /// Returns the samples at 4 pixels of a row, from a multiple of 4 on.
    ///
    /// # Safety
    /// The pixels are in the image.
    #[inline(always)]
    unsafe fn four(self, cx: impl Simt, y: u32, x: u32) -> [u32; 4] {
        // SAFETY: The caller's promise is that of `sample`. In the first case, the 4 samples are one
        // aligned word: `x` and `stride` are multiples of 4, and so is the place of the plane. In the
        // second case, `x / 2` and the next column are of pixels of the image.
        unsafe {
            match self.by {
                [1, 1] => {
                    let word: u32 = cx.load(self.samples.add((y * self.stride + x) as usize).cast());
                    [word & 255, word >> 8 & 255, word >> 16 & 255, word >> 24]
                }
                [2, 2] if self.columns > 2 => {
                    let rows = Self::near(y, self.rows);
                    let sum = |x| 3 * self.at(cx, rows.0, x) + self.at(cx, rows.1, x);
                    let middle = x / 2;
                    let (a, b) = (sum(middle.saturating_sub(1)), sum(middle));
                    let (c, d) = (sum(middle + 1), sum((middle + 2).min(self.columns - 1)));
                    [(3 * b + a + 8) >> 4, (3 * b + c + 7) >> 4, (3 * c + b + 8) >> 4, (3 * c + d + 7) >> 4]
                }
                _ => [
                    self.sample(cx, y, x),
                    self.sample(cx, y, x + 1),
                    self.sample(cx, y, x + 2),
                    self.sample(cx, y, x + 3),
                ],
            }
        }
    }
}

/// Converts full-range YCbCr of ITU-R BT.601 to RGB, in fixed point with 16 bits.
#[inline(always)]
fn rgb(y: u32, cb: u32, cr: u32) -> [u32; 3] {
    let (y, cb, cr) = (y as i32, cb as i32 - 128, cr as i32 - 128);
    let clamped = |v: i32| v.clamp(0, 255) as u32;
    [
        clamped(y + ((91881 * cr + 32768) >> 16)),
        clamped(y + ((-22554 * cb - 46802 * cr + 32768) >> 16)),
        clamped(y + ((116_130 * cb + 32768) >> 16)),
    ]
}

kernel! {
    /// Turns `planes` into `rgb`, the upright images one after another. `most` is the largest number
    /// of pixels of an image.
    pub(super) unsafe fn colors(
        cx: impl Simt, image_count: u32, most: u32, bytes: u64, rgb_bytes: u64,
        images: In<u32>, planes: In<u8>, rgb: Out<u8>,
    )
    require {
        image_count >= 1, bytes >= 1, most <= 1 << 30,
        images.len() == image_count * IMAGE_WORDS,
        planes.len() == bytes,
        rgb.len() == rgb_bytes,
        planes.is_aligned(64),
        rgb.is_aligned(4),
    }
    grid(most.div_ceil(THREADS * PIXELS), image_count) block(THREADS)
    {
        let image = Record::new(images, cx.block_idx().y, IMAGE_WORDS);
        let (height, width) = (image.get(cx, 0), image.get(cx, 1));
        let (orientation, color) = (image.get(cx, 2), image.get(cx, 3));
        let first = (cx.block_idx().x * THREADS + cx.thread_idx().x) * PIXELS;
        let pixels = u64::from(height) * u64::from(width);
        let start = image.wide(cx, 14);
        let inside = start < rgb_bytes && 3 * pixels.min(1 << 40) <= rgb_bytes - start && start.is_multiple_of(4);
        let luma = Plane::new(cx, image, planes, bytes, 0);
        // A gray image has no other planes, so its luma stands for them.
        let others = [1, 2].map(|c| if color == 0 { luma } else { Plane::new(cx, image, planes, bytes, c) });
        if let (Some(luma), [Some(blue), Some(red)]) = (luma, others)
            && inside
            && u64::from(first) < pixels
        {
            let convert = |y: u32, cb: u32, cr: u32| match color {
                0 => [y; 3],
                1 => self::rgb(y, cb, cr),
                _ => [y, cb, cr],
            };
            let to = rgb.as_ptr().add(start as usize + 3 * first as usize);
            if orientation <= 1 && width.is_multiple_of(PIXELS) {
                let (y, x) = (first / width, first % width);
                let (a, b, c) = (luma.four(cx, y, x), blue.four(cx, y, x), red.four(cx, y, x));
                let [r0, g0, b0] = convert(a[0], b[0], c[0]);
                let [r1, g1, b1] = convert(a[1], b[1], c[1]);
                let [r2, g2, b2] = convert(a[2], b[2], c[2]);
                let [r3, g3, b3] = convert(a[3], b[3], c[3]);
                // 4 pixels are 3 words, which are aligned because the image is.
                let to = to.cast::<u32>();
                cx.store(to, r0 | g0 << 8 | b0 << 16 | r1 << 24);
                cx.store(to.add(1), g1 | b1 << 8 | r2 << 16 | g2 << 24);
                cx.store(to.add(2), b2 | r3 << 8 | g3 << 16 | b3 << 24);
            } else {
                let columns = if orientation >= 5 { height } else { width };
                for i in 0..PIXELS {
                    let pixel = first + i;
                    if u64::from(pixel) < pixels {
                        let (v, u) = (pixel / columns, pixel % columns);
                        let (bottom, right) = (height - 1, width - 1);
                        let (y, x) = match orientation {
                            2 => (v, right - u),
                            3 => (bottom - v, right - u),
                            4 => (bottom - v, u),
                            5 => (u, v),
                            6 => (bottom - u, v),
                            7 => (bottom - u, right - v),
                            8 => (u, right - v),
                            _ => (v, u),
                        };
                        let values = convert(luma.sample(cx, y, x), blue.sample(cx, y, x), red.sample(cx, y, x));
                        cx.store(to.add(3 * i as usize), values[0] as u8);
                        cx.store(to.add(3 * i as usize + 1), values[1] as u8);
                        cx.store(to.add(3 * i as usize + 2), values[2] as u8);
                    }
                }
            }
        }
    }
}
