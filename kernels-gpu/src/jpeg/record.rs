//! The tables that describe images and segments to the kernels, as words.

use thalweg_simt::{In, Simt};

/// The words of an image in `images`:
///
/// | word | content |
/// |---|---|
/// | 0, 1 | height, width, before the orientation is applied |
/// | 2 | EXIF orientation, 1 to 8 |
/// | 3 | color: 0 gray, 1 YCbCr, 2 RGB |
/// | 4 | number of components, 1 or 3 |
/// | 5, 6 | units of the scan across and down |
/// | 7 | blocks of a unit |
/// | 8 | the component of each block of a unit, 2 bits each |
/// | 9 | the first block in `coefficients` |
/// | 10 | the first piece |
/// | 11 | the number of pieces |
/// | 12 | the first Huffman table |
/// | 13 | the first quantization table |
/// | 14, 15 | the first byte in `rgb`, low and high word |
/// | 16 .. | [`COMPONENT_WORDS`] for each of 3 components |
pub const IMAGE_WORDS: u32 = 16 + 3 * COMPONENT_WORDS;

/// The words of a component in the record of an image:
///
/// | word | content |
/// |---|---|
/// | 0, 1 | blocks of a unit across and down |
/// | 2 | its first block in a unit |
/// | 3 | its DC table in the low half, its AC table in the high one, counted from the image's first |
/// | 4, 5 | the first byte of its plane in `planes`, low and high word |
/// | 6, 7 | by how much it is enlarged across and down |
pub const COMPONENT_WORDS: u32 = 8;

/// The words of a segment in `segments`. A segment is the data between two restarts.
///
/// | word | content |
/// |---|---|
/// | 0 | its first word in `data` |
/// | 1 | its length in bits |
/// | 2 | its first piece |
/// | 3 | its first block in `coefficients`, counted from that of its image |
/// | 4 | its number of blocks |
pub const SEGMENT_WORDS: u32 = 5;

/// A record in a table of records.
#[derive(Clone, Copy)]
pub(super) struct Record {
    table: In<u32>,
    start: u32,
}

impl Record {
    /// Takes record `index` of `table`.
    ///
    /// # Safety
    /// `table` has more than `index` records of `words` words, and no thread writes it.
    #[inline(always)]
    pub(super) unsafe fn new(table: In<u32>, index: u32, words: u32) -> Self {
        Self { table, start: index * words }
    }

    /// Reads word `i`.
    ///
    /// # Safety
    /// `i` is inside the record.
    #[inline(always)]
    pub(super) unsafe fn get(self, cx: impl Simt, i: u32) -> u32 {
        // SAFETY: The caller promises that the word is inside the record, and `new` that the record
        // is inside the table.
        unsafe { self.table.get(cx, self.start + i) }
    }

    /// Reads words `i` and `i + 1` as one number.
    ///
    /// # Safety
    /// Both words are inside the record.
    #[inline(always)]
    pub(super) unsafe fn wide(self, cx: impl Simt, i: u32) -> u64 {
        // SAFETY: The caller's promise is that of `get`.
        unsafe { u64::from(self.get(cx, i)) | u64::from(self.get(cx, i + 1)) << 32 }
    }
}
