//! The family `jpeg`: two images of 256 x 256, one with chroma halved in both directions and one
//! with full chroma.

use thalweg_kernels::jpeg::{
    COMPONENT_WORDS, Coded, IMAGE_WORDS, PIECE_BITS, PIXELS, Pieces, SEGMENT_WORDS, TABLE_WORDS, admit, coefficients,
    colors, colors_420, find_sync_points, inverse_dct, offsets, repair_sync_points,
};
use thalweg_simt::host::LaunchError;

use crate::device::{Timed, buffer, of, zeros};

const SIDE: u32 = 256;

/// The symbols of the codes 000 to 111, for DC coefficients and for the AC coefficients of luma and
/// chroma. They differ, so that a decoder which starts at a wrong bit falls into step.
const SYMBOLS: [[u8; 8]; 3] = [
    [0, 1, 2, 3, 4, 5, 2, 3],
    [0x00, 0x01, 0x02, 0x11, 0x12, 0x21, 0x03, 0x31],
    [0x01, 0x11, 0x03, 0x02, 0x12, 0x00, 0x21, 0x01],
];

/// Coded data, bit by bit.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    len: u32,
    random: u32,
}

impl Bits {
    fn put(&mut self, v: u32, count: u32) {
        for bit in (0..count).rev() {
            if self.len.is_multiple_of(8) {
                self.bytes.push(0);
            }
            *self.bytes.last_mut().expect("there is one") |= ((v >> bit & 1) as u8) << (7 - self.len % 8);
            self.len += 1;
        }
    }

    fn random(&mut self, below: u32) -> u32 {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.random >> 8) % below
    }

    /// Writes a random code of a table and a value of its size. Returns its symbol, whose zeros and
    /// value are at most `room` coefficients.
    fn code(&mut self, symbols: &[u8; 8], room: u32) -> u8 {
        let mut code = self.random(8);
        while u32::from(symbols[code as usize] >> 4) >= room {
            code = self.random(8);
        }
        let symbol = symbols[code as usize];
        self.put(code, 3);
        let value = self.random(1 << 8);
        self.put(value, u32::from(symbol & 15));
        symbol
    }

    /// Writes a block.
    fn block(&mut self, luma: bool) {
        self.code(&SYMBOLS[0], 1);
        let mut next = 1;
        while next < 64 {
            let symbol = self.code(&SYMBOLS[if luma { 1 } else { 2 }], 64 - next);
            if symbol == 0 {
                return;
            }
            next += u32::from(symbol >> 4) + 1;
        }
    }
}

/// Makes a Huffman table with eight codes of three bits, as the kernels take it. No code is longer
/// than the fast part holds, so the rest stays empty.
fn table(symbols: &[u8; 8]) -> Vec<u32> {
    let mut words = vec![0; TABLE_WORDS as usize];
    for at in 0..512 {
        words[at / 2] |= (3 << 8 | u32::from(symbols[at / 64])) << (16 * (at % 2));
    }
    words
}

/// Launches all kernels once.
pub(crate) fn launch(on: &Timed) -> Result<(), LaunchError> {
    let (mut images, mut segments, mut pieces, mut data) = (vec![], vec![], vec![], vec![]);
    let (mut blocks, mut planes, mut most_blocks, mut most_pieces) = (0, 0, 0, 0);
    let rgb_bytes = 3 * SIDE * SIDE;
    for (number, luma) in [(0, 2), (1, 1)] {
        // A unit has `luma` x `luma` blocks of luma, and one of each chroma.
        let (side, of_unit) = (SIDE / (8 * luma), luma * luma + 2);
        let own = side * side * of_unit;
        let mut bits = Bits { random: number, ..Bits::default() };
        for block in 0..own {
            bits.block(block % of_unit < luma * luma);
        }
        let len = 8 * bits.bytes.len() as u32;
        let count = len.div_ceil(PIECE_BITS);
        let first = pieces.len() as u32;
        segments.extend([data.len() as u32, len, first, 0, own]);
        pieces.extend((0..count).map(|_| number));
        bits.bytes.resize(bits.bytes.len().next_multiple_of(4) + 8, 0);
        data.extend(bits.bytes.as_chunks().0.iter().copied().map(u32::from_le_bytes));
        let kinds = (0..of_unit).map(|i| i.saturating_sub(luma * luma - 1) << (2 * i)).sum();
        images.extend([SIDE, SIDE, 1, 1, 3, side, side, of_unit, kinds, blocks, first, count, 0, 0]);
        images.extend([number * rgb_bytes, 0]);
        for (component, wide, place) in [(0, luma, 0), (1, 1, luma * luma), (2, 1, luma * luma + 1)] {
            let ac = if component == 0 { 1 } else { 2 };
            images.extend([wide, wide, place, ac << 16, planes, 0, luma / wide, luma / wide]);
            planes += 64 * side * side * wide * wide;
        }
        blocks += own;
        (most_blocks, most_pieces) = (most_blocks.max(own), most_pieces.max(count));
    }
    assert_eq!(images.len() as u32, 2 * IMAGE_WORDS);
    assert_eq!((segments.len() as u32, COMPONENT_WORDS), (2 * SEGMENT_WORDS, 8));
    let (images, count) = (admit(on, of(&images), zeros(images.len()))?, pieces.len());
    let coded = Coded {
        most_pieces,
        images,
        segments: of(&segments),
        pieces: of(&pieces),
        huffman: of(&SYMBOLS.each_ref().map(table).concat()),
        data: of(&data),
    };
    let (states, counts, places) = (zeros(2 * count), zeros(4 * count), zeros(4 * count));
    find_sync_points(on, &coded, states, counts)?;
    repair_sync_points(on, &coded, states, counts)?;
    offsets(on, &coded, counts, places)?;
    let (found, status) = (zeros(64 * blocks as usize), zeros(2));
    coefficients(on, &coded, &Pieces { states, counts, places }, found, status)?;
    // SAFETY: No kernel runs, and the buffer is that of `status`, which was written when it was
    // made.
    let status_words = unsafe { std::slice::from_raw_parts(status.device_ptr() as *const u32, 2) };
    assert_eq!(status_words, [0; 2], "the kernels refuse the data");
    let (planes, rgb) = (zeros(planes as usize), zeros(2 * rgb_bytes as usize));
    let quantization = buffer(3 * 32, |_| 0x0004_0004);
    inverse_dct(on, images, status, most_blocks, quantization, found, planes)?;
    let across = SIDE.div_ceil(PIXELS);
    colors_420(on, images, status, (SIDE / 2 + 1) * across, planes, rgb)?;
    colors(on, images, status, SIDE * across, planes, rgb)
}
