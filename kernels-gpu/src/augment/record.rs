//! The table that says what happens to each image, as words.

use thalweg_simt::{In, Simt};

/// The words of an image in `records`. Floats are stored as their bits.
///
/// | word | content |
/// |---|---|
/// | 0, 1 | the first byte of the image in `rgb`, low and high word |
/// | 2 | the width of the image in pixels |
/// | 3, 4 | the first row and the first column of the crop |
/// | 5, 6 | height and width of the crop |
/// | 7 | [`FLIP`], [`GRAYSCALE`] and [`BLUR`], as far as they apply |
/// | 8, 9, 10 | brightness, contrast and saturation as f32 |
/// | 11 .. 14 | the weights of the blur as f32, from the middle outwards |
/// | 15 | 0 |
pub const RECORD_WORDS: u32 = 16;
/// A flag in word 7 of a record: the image is flipped from left to right.
pub const FLIP: u32 = 1;
/// A flag in word 7 of a record: the image is made gray.
pub const GRAYSCALE: u32 = 2;
/// A flag in word 7 of a record: the image is blurred.
pub const BLUR: u32 = 4;

/// The record of an image.
#[derive(Clone, Copy)]
pub(super) struct Record {
    words: [u32; RECORD_WORDS as usize],
}

impl Record {
    /// Loads record `index`.
    ///
    /// # Safety
    /// `records` starts on 16 bytes and has more than `index` records.
    #[inline(always)]
    pub(super) unsafe fn load(cx: impl Simt, records: In<u32>, index: u32) -> Self {
        // SAFETY: A record is 64 bytes, so each of its quarters starts on 16 bytes. The caller
        // promises that the record is there.
        let quarter = |i: usize| unsafe { cx.load4(records.as_ptr().add((index * RECORD_WORDS) as usize + 4 * i)) };
        let [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]] = [quarter(0), quarter(1), quarter(2), quarter(3)];
        Self { words: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] }
    }

    /// Returns the crop, if it is inside the `bytes` of `rgb`.
    #[inline(always)]
    pub(super) fn crop(self, rgb: In<u8>, bytes: u64) -> Option<Crop> {
        let [low, high, row, top, left, height, width, ..] = self.words;
        let start = u64::from(low) | u64::from(high) << 32;
        let limit = 16384;
        // All sums are of numbers up to 2^14, and the product is below 2^31.
        let inside = row <= limit
            && top < limit
            && left < limit
            && height.wrapping_sub(1) < limit
            && width.wrapping_sub(1) < limit
            && left + width <= row;
        if !inside {
            return None;
        }
        let end = 3 * (u64::from(top + height - 1) * u64::from(row) + u64::from(left + width));
        if start > bytes || end > bytes - start {
            return None;
        }
        let offset = start + 3 * (u64::from(top) * u64::from(row) + u64::from(left));
        let (all, start) = (rgb.as_ptr(), rgb.as_ptr().wrapping_add(offset as usize));
        Some(Crop { rgb: start, stride: 3 * row, height, width, buffer: [all, all.wrapping_add(bytes as usize)] })
    }

    #[inline(always)]
    pub(super) fn has(self, flag: u32) -> bool {
        self.words[7] & flag != 0
    }

    #[inline(always)]
    pub(super) fn brightness(self) -> f32 {
        f32::from_bits(self.words[8])
    }

    #[inline(always)]
    pub(super) fn contrast(self) -> f32 {
        f32::from_bits(self.words[9])
    }

    #[inline(always)]
    pub(super) fn saturation(self) -> f32 {
        f32::from_bits(self.words[10])
    }

    /// Returns the weights of the blur, from the middle outwards.
    #[inline(always)]
    pub(super) fn taps(self) -> [f32; 4] {
        let [.., a, b, c, d, _] = self.words;
        [a, b, c, d].map(f32::from_bits)
    }
}

/// A crop that is inside the buffer of images. Only [`Record::crop`] makes it.
#[derive(Clone, Copy)]
pub(super) struct Crop {
    /// Its first byte.
    rgb: *const u8,
    /// The bytes from one row to the next.
    stride: u32,
    pub(super) height: u32,
    pub(super) width: u32,
    /// The buffer of images: its first byte, and one past its last one.
    buffer: [*const u8; 2],
}

impl Crop {
    /// Returns the address of a pixel of the crop.
    #[inline(always)]
    pub(super) fn pixel(self, y: u32, x: u32) -> *const u8 {
        self.rgb.wrapping_add(y as usize * self.stride as usize + 3 * x as usize)
    }

    /// Loads four pixels of row `y` from column `x` on, each in the low 24 bits of a word. Those
    /// that are not in the crop are anything.
    ///
    /// # Safety
    /// The crop has row `y`.
    #[inline(always)]
    pub(super) unsafe fn four(self, cx: impl Simt, y: u32, x: u32) -> [u32; 4] {
        let start = self.pixel(y, x);
        let shift = start as usize % 4;
        let word = start.wrapping_sub(shift);
        if word >= self.buffer[0] && word.wrapping_add(16) <= self.buffer[1] {
            // SAFETY: The four words are inside the buffer, and aligned.
            let load = |i: usize| unsafe { cx.load(word.wrapping_add(4 * i).cast::<u32>()) };
            let [a, b, c, d] = [load(0), load(1), load(2), load(3)];
            let shift = 8 * shift as u32;
            let [a, b, c] = [(a, b), (b, c), (c, d)].map(|(low, high)| cx.funnel_shift_right(low, high, shift));
            return [a, cx.funnel_shift_right(a, b, 24), cx.funnel_shift_right(b, c, 16), c >> 8];
        }
        let one = |k: u32| {
            let pixel = start.wrapping_add(3 * k as usize);
            // SAFETY: A pixel of the crop is inside the buffer.
            let byte = |c: usize| u32::from(unsafe { cx.load(pixel.wrapping_add(c)) });
            if x + k < self.width { byte(0) | byte(1) << 8 | byte(2) << 16 } else { 0 }
        };
        [one(0), one(1), one(2), one(3)]
    }
}
