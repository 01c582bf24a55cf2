//! What the kernels need to know of a batch: its files' data without stuffing, and their tables.

use thalweg_kernels::jpeg::{IMAGE_WORDS, PIECE_BITS, SEGMENT_WORDS, TABLE_WORDS, ZIGZAG};

use crate::error::JpegError;
use crate::header::{Color, Header};

/// A batch of files as the kernels take it. Files that cannot be decoded take no part in it.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// One record for each image that takes part.
    pub(crate) images: Vec<u32>,
    pub(crate) segments: Vec<u32>,
    /// The segment of each piece.
    pub(crate) pieces: Vec<u32>,
    pub(crate) huffman: Vec<u32>,
    /// Row by row.
    pub(crate) quantisation: Vec<u16>,
    /// Coded data as little-endian words of the bytes. Each segment starts with a word.
    pub(crate) data: Vec<u32>,
    pub(crate) blocks: u32,
    pub(crate) plane_bytes: u64,
    pub(crate) rgb_bytes: usize,
    /// The largest number of pieces, blocks and pixels of an image.
    pub(crate) most_pieces: u32,
    pub(crate) most_blocks: u32,
    pub(crate) most_pixels: u32,
}

/// The words after each segment that a decoder may look at.
const MARGIN: usize = 2;

/// The largest number of blocks of a batch: their coefficients are counted in 32 bits.
const MAX_BLOCKS: u64 = (1 << 31) / 64;

/// Where an image lies in the pixels of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) number: usize,
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) start: usize,
}

impl Plan {
    /// Returns the number of images that take part.
    pub(crate) fn count(&self) -> u32 {
        (self.images.len() / IMAGE_WORDS as usize) as u32
    }

    /// Adds a file. If it cannot be decoded, the plan stays as it is.
    pub(crate) fn add(&mut self, file: &[u8]) -> Result<Place, JpegError> {
        let header = Header::parse(file)?;
        let coded = &file[header.scan.clone()];
        let [across, down] = header.units();
        let units = across * down; // below 2^22
        let of_unit = header.blocks_of_unit();
        let blocks = units * of_unit;
        // A block has a code for its DC coefficient and one for its end, of at least one bit each. So
        // memory is in proportion to the file, whatever size the file claims.
        if u64::from(blocks) * 2 > coded.len() as u64 * 8 {
            return Err(JpegError::Truncated);
        }
        if u64::from(self.blocks) + u64::from(blocks) > MAX_BLOCKS {
            return Err(JpegError::Broken { at: 0, what: "the batch has too many pixels for one call" });
        }

        let restarts = if header.restart == 0 { units } else { header.restart.min(units) };
        let segments = units.div_ceil(restarts);
        let undo = (self.data.len(), self.segments.len(), self.pieces.len());
        let first_piece = undo.2;
        if let Err(error) = self.add_data(&header, file, segments, restarts * of_unit, blocks) {
            self.data.truncate(undo.0);
            self.segments.truncate(undo.1);
            self.pieces.truncate(undo.2);
            return Err(error);
        }
        let own_pieces = (self.pieces.len() - first_piece) as u32;

        let number = self.count() as usize;
        let [height, width] = header.upright();
        let start = self.rgb_bytes;
        let mut record = Vec::with_capacity(IMAGE_WORDS as usize);
        let color = match header.color {
            Color::Gray => 0,
            Color::YCbCr => 1,
            Color::Rgb => 2,
        };
        let kinds =
            header.components.iter().zip(0u32..).flat_map(|(c, i)| vec![i; (c.blocks[0] * c.blocks[1]) as usize]);
        let kinds = kinds.zip(0..).fold(0, |word, (kind, place)| word | kind << (2 * place));
        let first_table = (self.huffman.len() / TABLE_WORDS as usize) as u32;
        let first_quantisation = (self.quantisation.len() / 64) as u32;
        record.extend([header.height, header.width, header.orientation, color, header.components.len() as u32]);
        record.extend([across, down, of_unit, kinds, self.blocks, first_piece as u32, own_pieces]);
        record.extend([first_table, first_quantisation, start as u32, (start as u64 >> 32) as u32]);

        let factors = header.factors();
        let mut packed: Vec<(usize, usize)> = Vec::new();
        let mut first_block = 0;
        for component in &header.components {
            let tables = [0, 1].map(|class| {
                let table = (class, component.tables[class]);
                packed.iter().position(|t| *t == table).unwrap_or_else(|| {
                    packed.push(table);
                    if let Some(table) = &header.huffman[class][component.tables[class]] {
                        table.pack(&mut self.huffman);
                    }
                    packed.len() - 1
                }) as u32
            });
            let [wide, high] = component.blocks;
            record.extend([wide, high, first_block, tables[0] | tables[1] << 16]);
            record.extend([
                self.plane_bytes as u32,
                (self.plane_bytes >> 32) as u32,
                factors[0] / wide,
                factors[1] / high,
            ]);
            first_block += wide * high;
            self.plane_bytes += 64 * u64::from(units) * u64::from(wide * high);
            let mut table = [0; 64];
            for (value, place) in header.quantisation[component.quantisation].iter().zip(ZIGZAG) {
                table[usize::from(place)] = *value;
            }
            self.quantisation.extend(table);
        }
        record.resize(IMAGE_WORDS as usize, 0);
        self.images.extend(record);

        self.blocks += blocks;
        self.rgb_bytes = (start + 3 * height as usize * width as usize).next_multiple_of(16);
        self.most_pieces = self.most_pieces.max(own_pieces);
        self.most_blocks = self.most_blocks.max(blocks);
        self.most_pixels = self.most_pixels.max(height * width);
        Ok(Place { number, height, width, start })
    }

    /// Adds the coded data of a file: without stuffing, and cut at the restart markers.
    fn add_data(
        &mut self,
        header: &Header,
        file: &[u8],
        segments: u32,
        blocks_of_segment: u32,
        blocks: u32,
    ) -> Result<(), JpegError> {
        let end = header.scan.end;
        let mut at = header.scan.start;
        for number in 0..segments {
            let start = self.data.len();
            let mut bytes = Writer::new(&mut self.data);
            loop {
                let found = memchr::memchr(0xFF, &file[at..end]).map_or(end, |i| at + i);
                bytes.extend(&file[at..found]);
                at = found;
                match file.get(at + 1) {
                    Some(0) if at < end => {
                        bytes.extend(&[0xFF]);
                        at += 2;
                    }
                    Some(0xFF) if at < end => at += 1, // a fill byte
                    _ => break,
                }
            }
            let bits = bytes.finish() as u64 * 8;
            let bits =
                u32::try_from(bits).map_err(|_| JpegError::Broken { at, what: "a segment of more than 512 MiB" })?;
            if number + 1 < segments {
                let expected = 0xD0 + (number % 8) as u8;
                if at >= end || file.get(at + 1) != Some(&expected) {
                    return Err(JpegError::Broken { at, what: "a restart marker is missing" });
                }
                at += 2;
            } else if at < end {
                return Err(JpegError::Broken { at, what: "there is a restart marker too many" });
            }
            let first_block = number * blocks_of_segment;
            let segment = (self.segments.len() / SEGMENT_WORDS as usize) as u32;
            let own = blocks_of_segment.min(blocks - first_block);
            self.segments.extend([start as u32, bits, self.pieces.len() as u32, first_block, own]);
            // A segment without data has one piece, which reports that.
            let pieces = bits.div_ceil(PIECE_BITS).max(1) as usize;
            self.pieces.resize(self.pieces.len() + pieces, segment);
            self.data.resize(self.data.len() + MARGIN, 0);
        }
        Ok(())
    }
}

/// Appends bytes to words.
struct Writer<'a> {
    words: &'a mut Vec<u32>,
    partial: [u8; 4],
    filled: usize,
    total: usize,
}

impl<'a> Writer<'a> {
    fn new(words: &'a mut Vec<u32>) -> Self {
        Self { words, partial: [0; 4], filled: 0, total: 0 }
    }

    fn extend(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len();
        while self.filled > 0 && !bytes.is_empty() {
            self.push(bytes[0]);
            bytes = &bytes[1..];
        }
        let (whole, rest) = bytes.as_chunks::<4>();
        self.words.extend(whole.iter().map(|b| u32::from_le_bytes(*b)));
        rest.iter().for_each(|b| self.push(*b));
    }

    fn push(&mut self, byte: u8) {
        self.partial[self.filled] = byte;
        self.filled += 1;
        if self.filled == 4 {
            self.words.push(u32::from_le_bytes(self.partial));
            (self.partial, self.filled) = ([0; 4], 0);
        }
    }

    /// Completes the last word with zeros. Returns the number of bytes.
    fn finish(self) -> usize {
        if self.filled > 0 {
            self.words.push(u32::from_le_bytes(self.partial));
        }
        self.total
    }
}
