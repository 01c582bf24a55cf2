//! The decoder on the host: one file at a time, on the calling thread.
//!
//! It decodes what the kernels decode, to the same bits, and files of four components. Of a file
//! with one scan it decodes a row of units at a time, up to the pixels, so that what it works on
//! stays in the processor's caches.

mod colors;
mod planes;
mod transform;

use crate::bits::{Bits, Segment, Table};
use crate::entropy::{BY_ROWS, Block, sequential};
use crate::error::{JpegError, Unsupported};
use crate::header::{Header, Parser, check_end};
use crate::orientation::place;
use crate::scans::{self, Steps, restart};
use crate::wide::wide;
use planes::Plane;
use transform::transform;

/// The facts in the header of a file about its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outline {
    /// The number of rows of the upright image.
    pub height: u32,
    /// The number of columns.
    pub width: u32,
    /// The reason why the device does not decode the file, if only the [host](HostDecoder) does.
    pub host_only: Option<Unsupported>,
    /// The most bytes of memory that the host needs to decode the file, beside the pixels.
    pub scratch: usize,
}

/// Reads the header of a file.
///
/// ```
/// use thalweg_jpeg::{JpegError, outline};
///
/// assert_eq!(outline(b"no photograph"), Err(JpegError::NotJpeg));
/// ```
///
/// # Errors
/// The header is broken, nothing here decodes files of this kind, or the file is too short for its
/// size. What follows the header may be broken even if this succeeds.
pub fn outline(file: &[u8]) -> Result<Outline, JpegError> {
    let header = Header::parse(file)?;
    header.check_length(file)?;
    let [height, width] = header.upright();
    let host_only = match header.for_device() {
        Err(JpegError::Unsupported(kind)) => Some(kind),
        _ => None,
    };
    Ok(Outline { height, width, host_only, scratch: scratch(&header, file) })
}

/// Takes the orientation out of a file, which is then decoded as its rows are stored: writes zeros
/// over the segments that may say one. What is broken stays as it is.
///
/// ```
/// let mut file = *b"\xFF\xD8\xFF\xE1\x00\x0AExif\0\0II\xFF\xDA";
/// thalweg_jpeg::clear_orientation(&mut file);
/// assert_eq!(file, *b"\xFF\xD8\xFF\xE1\x00\x0A\0\0\0\0\0\0\0\0\xFF\xDA");
/// ```
pub fn clear_orientation(file: &mut [u8]) {
    for range in Parser::remarks(file) {
        file[range].fill(0);
    }
}

/// Decodes JPEG files on the host, one after another.
///
/// It decodes what [`Decoder`](crate::Decoder) decodes, to the same bits, and besides CMYK and YCCK
/// as Pillow converts them. Its memory serves all files that it decodes.
///
/// ```
/// use thalweg_jpeg::{HostDecoder, JpegError};
///
/// let mut decoder = HostDecoder::new();
/// assert_eq!(decoder.decode(b"not a photograph", &mut []), Err(JpegError::NotJpeg));
/// ```
#[derive(Debug, Default)]
pub struct HostDecoder {
    segment: Segment,
    planes: [Plane; 4],
    /// A row of each component.
    lines: [Vec<u8>; 4],
    /// Rows of pixels of an image that is not upright.
    band: Vec<u8>,
    coefficients: Vec<i16>,
    nonzero: Vec<u64>,
}

/// Returns the most bytes of memory that a decoder needs for a file.
fn scratch(header: &Header, file: &[u8]) -> usize {
    let rows = header.factors()[1] as usize * 8 + 1;
    let row = header.units()[0] as usize * header.factors()[0] as usize * 8;
    // For each component the samples, the sums of two rows and a row of the image, and then rows of
    // pixels.
    let strips = (header.components.len() * (rows + 3) + 3 * rows) * row;
    let coefficients = if header.many { (128 + 8) * header.blocks() as usize } else { 0 };
    file.len() - header.scan + strips + coefficients
}

impl HostDecoder {
    /// Makes a decoder, which has no memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes that the decoder keeps allocated for the next file.
    #[must_use]
    pub fn memory(&self) -> usize {
        let lines: usize = self.lines.iter().map(Vec::capacity).sum();
        let planes: usize = self.planes.iter().map(Plane::capacity).sum();
        let coefficients = 2 * self.coefficients.capacity() + 8 * self.nonzero.capacity();
        self.segment.capacity() + planes + lines + self.band.capacity() + coefficients
    }

    /// Decodes a file to the upright image: interleaved RGB, [H, W, 3], where
    /// [`outline`](crate::outline) says H and W.
    ///
    /// # Errors
    /// The file is broken or of a kind that is not decoded, or `rgb` does not have 3 H W bytes.
    /// Then the content of `rgb` is arbitrary.
    pub fn decode(&mut self, file: &[u8], rgb: &mut [u8]) -> Result<(), JpegError> {
        let header = Header::parse(file)?;
        header.check_length(file)?;
        if rgb.len() != 3 * header.height as usize * header.width as usize {
            return Err(JpegError::NoRoom);
        }
        let count = header.components.len();
        self.segment.reserve(file.len() - header.scan);
        for (plane, component) in self.planes.iter_mut().zip(&header.components) {
            plane.prepare(&header, component);
        }
        for line in &mut self.lines[..count] {
            line.resize(header.width as usize, 0);
        }
        if header.many {
            let blocks = header.blocks() as usize;
            let Self { segment, coefficients, nonzero, .. } = self;
            coefficients.resize(64 * blocks, 0);
            nonzero.resize(blocks, 0);
            let steps = scans::decode(file, &header, &BY_ROWS, coefficients, nonzero, segment)?;
            wide!(self.rows_of_coefficients(&header, &steps, rgb));
            return Ok(());
        }
        let mut steps = [[0; 64]; 4];
        for (steps, component) in steps.iter_mut().zip(&header.components) {
            *steps = header.quantization[component.quantization];
        }
        let tables: Vec<_> = header
            .components
            .iter()
            .map(|component| {
                let table = |class: usize| header.huffman[class][component.tables[class]].as_ref().map(Table::new);
                table(0).zip(table(1)).ok_or(JpegError::BrokenData)
            })
            .collect::<Result<_, _>>()?;
        let end = wide!(self.rows_of_data(file, &header, &tables, &steps, rgb))?;
        check_end(file, end)
    }

    /// Decodes the only scan. Returns where its data ends.
    #[inline(always)]
    fn rows_of_data(
        &mut self,
        file: &[u8],
        header: &Header,
        tables: &[(Box<Table>, Box<Table>)],
        steps: &Steps,
        rgb: &mut [u8],
    ) -> Result<usize, JpegError> {
        let steps = steps.map(|steps| by_rows(&steps));
        let mut segment = std::mem::take(&mut self.segment);
        let [across, down] = header.units().map(|n| n as usize);
        let mut at = segment.load(file, header.scan);
        let mut bits: Bits<'_> = segment.bits();
        let (mut left, mut number) = (header.restart, 0);
        let mut predictions = [0; 4];
        let mut block: Block = [0; 64];
        for y in 0..down {
            for x in 0..across {
                if header.restart > 0 {
                    if left == 0 {
                        bits.check()?;
                        at = restart(file, at, number)?;
                        at = segment.load(file, at);
                        bits = segment.bits();
                        predictions = [0; 4];
                        (left, number) = (header.restart, number + 1);
                    }
                    left -= 1;
                }
                let parts = header.components.iter().zip(tables).zip(&mut self.planes).zip(&mut predictions);
                for ((((component, (dc, ac)), plane), prediction), steps) in parts.zip(&steps) {
                    let [wide, high] = component.blocks.map(|n| n as usize);
                    let stride = plane.stride;
                    for v in 0..high {
                        for h in 0..wide {
                            let Some(last) = sequential(&mut bits, [dc, ac], prediction, &BY_ROWS, &mut block) else {
                                // The end of the data looks like a code, too.
                                bits.check()?;
                                return Err(JpegError::BrokenData);
                            };
                            let to = &mut plane.rows_mut()[8 * v * stride + 8 * (x * wide + h)..];
                            transform(&block, steps, last, to, stride);
                            if last > 1 {
                                block = [0; 64];
                            }
                        }
                    }
                }
            }
            bits.check()?;
            self.pixels(header, y, rgb);
        }
        self.segment = segment;
        Ok(at)
    }

    /// Makes pixels of the coefficients.
    #[inline(always)]
    fn rows_of_coefficients(&mut self, header: &Header, steps: &Steps, rgb: &mut [u8]) {
        let steps = steps.map(|steps| by_rows(&steps));
        let [across, down] = header.units().map(|n| n as usize);
        let of_unit = header.blocks_of_unit() as usize;
        for y in 0..down {
            let mut first = y * across * of_unit;
            for x in 0..across {
                let mut place = first;
                for ((component, plane), steps) in header.components.iter().zip(&mut self.planes).zip(&steps) {
                    let [wide, high] = component.blocks.map(|n| n as usize);
                    let stride = plane.stride;
                    for v in 0..high {
                        for h in 0..wide {
                            let block = &self.coefficients.as_chunks().0[place];
                            let last = 64 - self.nonzero[place].leading_zeros();
                            let to = &mut plane.rows_mut()[8 * v * stride + 8 * (x * wide + h)..];
                            transform(block, steps, last, to, stride);
                            place += 1;
                        }
                    }
                }
                first += of_unit;
            }
            self.pixels(header, y, rgb);
        }
    }

    /// Writes the pixels of row `number` of units, with the last one of the row above it if that
    /// had to wait for this.
    #[inline(always)]
    fn pixels(&mut self, header: &Header, number: usize, rgb: &mut [u8]) {
        let [height, width] = [header.height, header.width].map(|n| n as usize);
        let count = header.components.len();
        let high = 8 * header.factors()[1] as usize;
        let lag = usize::from(self.planes[..count].iter().any(Plane::looks_ahead));
        let start = (number * high).saturating_sub(lag);
        let is_last = (number + 1) * high >= height;
        let end = if is_last { height } else { (number + 1) * high - lag };
        let row_bytes = 3 * width;
        if header.orientation > 1 {
            self.band.resize((high + 1) * row_bytes, 0);
        }
        for y in start..end {
            let Self { planes: [a, b, c, d], lines: [la, lb, lc, ld], band, .. } = self;
            let first = a.row(number, y, la);
            let rows = match count {
                1 => [first; 4],
                3 => [first, b.row(number, y, lb), c.row(number, y, lc), first],
                _ => [first, b.row(number, y, lb), c.row(number, y, lc), d.row(number, y, ld)],
            };
            let to = match header.orientation > 1 {
                true => &mut band[(y - start) * row_bytes..][..row_bytes],
                false => &mut rgb[y * row_bytes..][..row_bytes],
            };
            colors::convert(header.color, rows.map(|row| &row[..width]), to);
        }
        if header.orientation > 1 {
            turn(&self.band, [start, end], [height, width], header.orientation, rgb);
        }
        self.planes[..count].iter_mut().for_each(Plane::advance);
    }
}

/// Puts a quantization table into the order of the coefficients.
fn by_rows(steps: &[u16; 64]) -> [u16; 64] {
    let mut table = [0; 64];
    for (step, place) in steps.iter().zip(BY_ROWS) {
        table[usize::from(place)] = *step;
    }
    table
}

/// Writes rows `start` to `end` of an image to their places in the upright image.
fn turn(band: &[u8], [start, end]: [usize; 2], size: [usize; 2], orientation: u32, rgb: &mut [u8]) {
    let (from, to) = (band.as_chunks::<3>().0, rgb.as_chunks_mut::<3>().0);
    let width = size[1];
    let mut write = |y: usize, x: usize| to[place(orientation, size, y, x)] = from[(y - start) * width + x];
    if orientation < 5 {
        (start..end).for_each(|y| (0..width).for_each(|x| write(y, x)));
    } else {
        // What lies below one another is side by side in the upright image.
        (0..width).for_each(|x| (start..end).for_each(|y| write(y, x)));
    }
}
