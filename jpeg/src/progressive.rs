//! Progressive files: the host decodes their scans to coefficients, from which the kernels go on (ITU-T
//! T.81, annex G).
//!
//! Each scan adds bits to the coefficients that earlier scans gave, so a scan cannot start before the one
//! before it has ended. What a file may cost is bounded: each bit of its data takes at most 64 steps,
//! and all scans together look at a block at most [`MOST_VISITS`] times on average.

use thalweg_kernels::jpeg::{FAST_BITS, TABLE_WORDS, ZIGZAG};

use crate::error::{JpegError, Unsupported};
use crate::header::{Header, Parser};
use crate::huffman::Huffman;

/// How often scans look at a block, on average. Encoders of photographs need 5 to 12.
const MOST_VISITS: u64 = 64;

/// The words of a packed Huffman table.
type Table = [u32; TABLE_WORDS as usize];

/// Decodes all scans of a file to its coefficients [B, 64], in the order that the kernels take.
pub(crate) fn decode(file: &[u8], header: &Header, coefficients: &mut [i16]) -> Result<(), JpegError> {
    coefficients.fill(0);
    let mut image = Image {
        header,
        nonzero: vec![0; coefficients.len() / 64],
        coefficients,
        tables: header.huffman.clone(),
        restart: header.restart,
        visits: 0,
        started: [false; 3],
    };
    let mut parser = Parser { file, at: header.scan };
    loop {
        image.scan(&mut parser)?;
        loop {
            let marker = parser.marker()?;
            let start = parser.at;
            match marker {
                0xDA => break,
                0xD9 if image.started[..header.components.len()].iter().all(|started| *started) => return Ok(()),
                0xD9 => return Err(parser.broken("a component has no scan")),
                0xC4 => {
                    let content = parser.segment()?;
                    let broken = |what| JpegError::Broken { at: start, what };
                    Huffman::read(content, &mut image.tables).map_err(broken)?;
                }
                0xDD => image.restart = parser.restart_interval()?,
                0xDB => return Err(JpegError::Unsupported(Unsupported::Scans)),
                0xDC => return Err(JpegError::Unsupported(Unsupported::LateHeight)),
                0x01 | 0xD0..=0xD8 => {} // without a segment
                _ => _ = parser.segment()?,
            }
        }
    }
}

/// The coefficients of a file in the making.
struct Image<'a> {
    header: &'a Header,
    coefficients: &'a mut [i16],
    /// The coefficients of each block that are not 0, by their place in zigzag order.
    nonzero: Vec<u64>,
    tables: [[Option<Huffman>; 4]; 2],
    restart: u32,
    visits: u64,
    /// The components that have had a scan of their DC coefficients.
    started: [bool; 3],
}

/// What the header of a scan says: the coefficients, as places in zigzag order, and their bits.
#[derive(Clone, Copy)]
struct Band {
    first: u32,
    last: u32,
    /// The coefficients have got their upper bits by an earlier scan.
    refines: bool,
    /// The lowest bit that this scan gives.
    low: u32,
}

/// A component of a scan.
struct Part {
    /// Which component of the image it is, and its first block in a unit.
    component: usize,
    first_block: usize,
    /// Its Huffman table, if the scan needs one.
    table: Option<Box<Table>>,
    prediction: i32,
}

impl Image<'_> {
    /// Decodes a scan, from its header on.
    fn scan(&mut self, parser: &mut Parser<'_>) -> Result<(), JpegError> {
        let (mut parts, band) = self.scan_header(parser)?;
        let header = self.header;
        let [across, down] = header.units();
        let of_unit = header.blocks_of_unit() as usize;
        let mut bits = Bits { file: parser.file, at: parser.at, word: 0, count: 0 };
        // The blocks of a scan with one component are not grouped, and those of the padding are not there.
        let alone = (parts.len() == 1).then(|| {
            let [wide, high] = header.components[parts[0].component].blocks;
            let [most_wide, most_high] = header.factors();
            let blocks = |length: u32, own: u32, most: u32| (length * own).div_ceil(8 * most);
            (blocks(header.width, wide, most_wide), blocks(header.height, high, most_high), wide, high)
        });
        let units = alone.map_or(across * down, |(columns, rows, ..)| columns * rows);
        let blocks_of = |part: &Part| header.components[part.component].blocks.iter().product::<u32>();
        let each: u32 = if alone.is_some() { 1 } else { parts.iter().map(blocks_of).sum() };
        self.visits += u64::from(units) * u64::from(each);
        if self.visits > MOST_VISITS * self.nonzero.len() as u64 {
            return Err(JpegError::Unsupported(Unsupported::Scans));
        }
        let mut run = 0;
        for unit in 0..units {
            if self.restart > 0 && unit > 0 && unit % self.restart == 0 {
                bits.restart(unit / self.restart - 1)?;
                parts.iter_mut().for_each(|part| part.prediction = 0);
                run = 0;
            }
            if let Some((columns, _, wide, high)) = alone {
                let (y, x) = (unit / columns, unit % columns);
                let part = &mut parts[0];
                let within = (y % high * wide + x % wide) as usize;
                let place = (y / high * across + x / wide) as usize * of_unit + part.first_block + within;
                self.block(&mut bits, part, band, place, &mut run)?;
            } else {
                for part in &mut parts {
                    let start = unit as usize * of_unit + part.first_block;
                    for block in 0..blocks_of(part) as usize {
                        self.block(&mut bits, part, band, start + block, &mut run)?;
                    }
                }
            }
        }
        parser.at = bits.end()?;
        Ok(())
    }

    /// Reads the header of a scan.
    fn scan_header(&mut self, parser: &mut Parser<'_>) -> Result<(Vec<Part>, Band), JpegError> {
        let content = parser.segment()?;
        let broken = |what| JpegError::Broken { at: parser.at, what };
        let short = broken("the scan header has another length");
        let (&count, rest) = content.split_first().ok_or(short)?;
        let (selectors, rest) = rest.split_at_checked(2 * usize::from(count)).ok_or(short)?;
        let &[first, last, bits] = rest else { return Err(short) };
        let band =
            Band { first: u32::from(first), last: u32::from(last), refines: bits >> 4 > 0, low: u32::from(bits & 15) };
        let whole = if first == 0 { last == 0 } else { first <= last && last <= 63 && count == 1 };
        let step = if band.refines { u32::from(bits >> 4) == band.low + 1 } else { true };
        if !whole || !step || band.low > 13 || count == 0 {
            return Err(broken("a scan has coefficients or bits that no scan can have"));
        }
        let mut parts: Vec<Part> = Vec::with_capacity(3);
        for selector in selectors.chunks_exact(2) {
            let component = self.header.ids.iter().position(|id| *id == selector[0]);
            let component = component.ok_or(broken("a scan names a component that the frame does not have"))?;
            if parts.iter().any(|part| part.component >= component) {
                return Err(broken("a scan names its components in another order than the frame"));
            }
            if first > 0 && !self.started[component] {
                return Err(broken("a component's first scan is not that of its DC coefficients"));
            }
            let (class, number) = if first == 0 { (0, selector[1] >> 4) } else { (1, selector[1] & 15) };
            let table = if first == 0 && band.refines {
                None
            } else {
                let table = self.tables[class].get(usize::from(number)).and_then(Option::as_ref);
                let mut packed = Box::new([0; TABLE_WORDS as usize]);
                table.ok_or(broken("a Huffman table is missing"))?.pack(&mut packed[..]);
                Some(packed)
            };
            let before = &self.header.components[..component];
            let first_block = before.iter().map(|c| (c.blocks[0] * c.blocks[1]) as usize).sum();
            parts.push(Part { component, first_block, table, prediction: 0 });
        }
        for part in &parts {
            self.started[part.component] |= first == 0;
        }
        Ok((parts, band))
    }

    /// Decodes what a scan says of a block. `run` counts the blocks, this one included, of which it says no more.
    #[inline]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        part: &mut Part,
        band: Band,
        place: usize,
        run: &mut u32,
    ) -> Result<(), JpegError> {
        let (Some(nonzero), Some(block)) =
            (self.nonzero.get_mut(place), self.coefficients.as_chunks_mut::<64>().0.get_mut(place))
        else {
            return Err(JpegError::BrokenData);
        };
        let bit = 1_i16 << band.low;
        match &part.table {
            // The next bit of a DC coefficient.
            None => {
                if bits.take(1)? == 1 {
                    block[0] |= bit;
                }
            }
            Some(table) if band.first == 0 => {
                let size = bits.symbol(table)?;
                part.prediction = part.prediction.wrapping_add(bits.value(size)?);
                block[0] = (part.prediction << band.low) as i16;
            }
            Some(_) if *run > 0 && !band.refines => *run -= 1,
            Some(table) if !band.refines => {
                let mut next = band.first;
                while next <= band.last {
                    let symbol = bits.symbol(table)?;
                    let (zeros, size) = (symbol >> 4, symbol & 15);
                    if size > 0 {
                        next += zeros;
                        if next > band.last {
                            return Err(JpegError::BrokenData);
                        }
                        block[usize::from(ZIGZAG[next as usize])] = (bits.value(size)? << band.low) as i16;
                        *nonzero |= 1 << next;
                        next += 1;
                    } else if zeros == 15 {
                        next += 16;
                    } else {
                        *run = (1 << zeros) + bits.take(zeros)? - 1;
                        break;
                    }
                }
            }
            Some(table) => {
                let mut next = band.first;
                while *run == 0 && next <= band.last {
                    let symbol = bits.symbol(table)?;
                    let (mut zeros, size) = (symbol >> 4, symbol & 15);
                    let value = match size {
                        0 if zeros < 15 => {
                            *run = (1 << zeros) + bits.take(zeros)?;
                            break;
                        }
                        0 => 0,
                        1 if bits.take(1)? == 1 => bit,
                        1 => -bit,
                        _ => return Err(JpegError::BrokenData),
                    };
                    // Passes so many coefficients that are still 0, and gives those that are not their next bit.
                    while next <= band.last {
                        if *nonzero >> next & 1 == 1 {
                            refine(bits, &mut block[usize::from(ZIGZAG[next as usize])], bit)?;
                        } else if zeros == 0 {
                            break;
                        } else {
                            zeros -= 1;
                        }
                        next += 1;
                    }
                    if value != 0 {
                        if next > band.last {
                            return Err(JpegError::BrokenData);
                        }
                        block[usize::from(ZIGZAG[next as usize])] = value;
                        *nonzero |= 1 << next;
                    }
                    next += 1;
                }
                if *run > 0 {
                    *run -= 1;
                    // Only those that are not 0 have a bit.
                    let from = if next > 63 { 0 } else { u64::MAX << next };
                    let mut left = *nonzero & from & (u64::MAX >> (63 - band.last));
                    while left != 0 {
                        refine(bits, &mut block[usize::from(ZIGZAG[left.trailing_zeros() as usize])], bit)?;
                        left &= left - 1;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads the next bit of a coefficient that is not 0.
#[inline]
fn refine(bits: &mut Bits<'_>, coefficient: &mut i16, bit: i16) -> Result<(), JpegError> {
    if bits.take(1)? == 1 && *coefficient & bit == 0 {
        *coefficient = coefficient.wrapping_add(if *coefficient >= 0 { bit } else { -bit });
    }
    Ok(())
}

/// The bits of a scan, up to the next marker.
struct Bits<'a> {
    file: &'a [u8],
    /// The next byte that is not in `word`.
    at: usize,
    /// The next bits, from the top on, and how many of them there are.
    word: u64,
    count: u32,
}

impl Bits<'_> {
    /// Takes bytes over until there are more than 56 bits, or a marker follows.
    #[inline]
    fn fill(&mut self) {
        while self.count <= 56 {
            let (byte, length) = match (self.file.get(self.at), self.file.get(self.at + 1)) {
                (Some(0xFF), Some(0)) => (0xFF, 2),
                (Some(0xFF) | None, _) => return,
                (Some(byte), _) => (*byte, 1),
            };
            self.word |= u64::from(byte) << (56 - self.count);
            self.count += 8;
            self.at += length;
        }
    }

    /// Takes up to 16 bits.
    #[inline]
    fn take(&mut self, count: u32) -> Result<u32, JpegError> {
        if count > self.count {
            self.fill();
            if count > self.count {
                return Err(JpegError::Truncated);
            }
        }
        // Two shifts, because a shift by 64 is none.
        let value = (self.word >> 1 >> (63 - count)) as u32;
        self.word <<= count;
        self.count -= count;
        Ok(value)
    }

    /// Takes a code and returns its symbol.
    #[inline]
    fn symbol(&mut self, table: &Table) -> Result<u32, JpegError> {
        const LIMITS: usize = 1 << (FAST_BITS - 1);
        if self.count < 16 {
            self.fill();
        }
        let top = (self.word >> (64 - FAST_BITS)) as usize;
        let entry = table[top / 2] >> (16 * (top & 1)) & 0xffff;
        if entry != 0 {
            self.take(entry >> 8)?;
            return Ok(entry & 255);
        }
        let code = (self.word >> 48) as u32;
        for length in FAST_BITS + 1..=16 {
            let row = LIMITS + length as usize - 1;
            if code < table[row] {
                self.take(length)?;
                let index = (code >> (16 - length)).wrapping_add(table[row + 16]) & 255;
                return Ok(table[LIMITS + 32 + index as usize / 4] >> (8 * (index & 3)) & 255);
            }
        }
        // The end of the data looks like this, too.
        Err(if self.count < 16 { JpegError::Truncated } else { JpegError::BrokenData })
    }

    /// Takes a value of `size` bits with its sign, as T.81 extends it.
    #[inline]
    fn value(&mut self, size: u32) -> Result<i32, JpegError> {
        let value = self.take(size)? as i32;
        Ok(if size > 0 && value >> (size - 1) == 0 { value - (1 << size) + 1 } else { value })
    }

    /// Returns where the marker after the scan is. At most 7 bits are left.
    fn end(&mut self) -> Result<usize, JpegError> {
        self.fill();
        if self.count >= 8 {
            return Err(JpegError::Broken { at: self.at, what: "there is data after the end of a scan" });
        }
        Ok(self.at)
    }

    /// Goes past restart marker `number`.
    fn restart(&mut self, number: u32) -> Result<(), JpegError> {
        let mut parser = Parser { file: self.file, at: self.end()? };
        if parser.marker()? != 0xD0 + (number % 8) as u8 {
            return Err(parser.broken("a restart marker is missing"));
        }
        (self.at, self.word, self.count) = (parser.at, 0, 0);
        Ok(())
    }
}
