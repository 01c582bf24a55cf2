//! Files with several scans: the host decodes them to coefficients, from which the kernels or the
//! host go on.
//!
//! Scans of single components and progressive scans say something of all blocks each, so a block is
//! complete after the last scan only. What a file may cost is bounded: each bit of its data takes
//! at most 64 steps, and all scans together look at a block at most [`MOST_VISITS`] times on
//! average.

use crate::bits::{Bits, Segment, Table};
use crate::entropy::{Band, Block, refine, sequential, upper};
use crate::error::{JpegError, Unsupported};
use crate::header::{Header, MAX_BLOCKS, Parser, quantizations};
use crate::huffman::Huffman;
use crate::wide::wide;

/// The average number of times that scans look at a block. Encoders of photographs need 5 to 12.
const MOST_VISITS: u64 = 64;

/// The quantization table of each component, in zigzag order.
pub(crate) type Steps = [[u16; 64]; 4];

/// Decodes all scans of a file to its coefficients [B, 64]: the blocks of a unit follow one
/// another, and `order` gives the places in a block. `nonzero` [B] gets the coefficients of each
/// block that are not 0, by their places in zigzag order, without that of DC.
pub(crate) fn decode(
    file: &[u8],
    header: &Header,
    order: &[u8; 64],
    coefficients: &mut [i16],
    nonzero: &mut [u64],
    segment: &mut Segment,
) -> Result<Steps, JpegError> {
    coefficients.fill(0);
    nonzero.fill(0);
    let mut image = Image {
        header,
        order,
        blocks: coefficients.as_chunks_mut().0,
        nonzero,
        quantization: std::array::from_fn(|i| header.defined[i].then_some(header.quantization[i])),
        steps: [None; 4],
        tables: header.huffman.clone(),
        restart: header.restart,
        visits: 0,
        lowest: [[None; 64]; 4],
    };
    let mut parser = Parser { file, at: header.scan };
    loop {
        image.scan(&mut parser, segment)?;
        loop {
            let marker = parser.marker()?;
            let start = parser.at;
            let broken = |what| JpegError::Broken { at: start, what };
            match marker {
                0xDA => break,
                0xD9 => return image.end().map_err(|error| error.unwrap_or(parser.broken("a component has no scan"))),
                0xC4 => {
                    let content = parser.segment()?;
                    Huffman::read(content, &mut image.tables).map_err(broken)?;
                }
                0xDD => image.restart = parser.restart_interval()?,
                0xDB => quantizations(parser.segment()?, &mut image.quantization)
                    .ok_or(broken("a quantization table has another length"))?,
                0xD8 => return Err(parser.broken("a second image starts before the first one ends")),
                0xC0..=0xCF => return Err(parser.broken("a second frame")),
                0x01 | 0xD0..=0xD7 => {} // without a segment
                _ => parser.skip()?,
            }
        }
    }
}

/// The coefficients of a file in the making.
struct Image<'a> {
    header: &'a Header,
    order: &'a [u8; 64],
    blocks: &'a mut [Block],
    nonzero: &'a mut [u64],
    quantization: [Option<[u16; 64]>; 4],
    /// The quantization table that each component had when its first scan started.
    steps: [Option<[u16; 64]>; 4],
    tables: [[Option<Huffman>; 4]; 2],
    restart: u32,
    visits: u64,
    /// The lowest bit that the scans have given of each coefficient of each component.
    lowest: [[Option<u8>; 64]; 4],
}

/// A component of a scan.
struct Part {
    /// The component of the image, its blocks in a unit, and the first one of them.
    component: usize,
    blocks: [usize; 2],
    first_block: usize,
    /// Its Huffman tables, if the scan needs them.
    tables: [Option<Box<Table>>; 2],
    prediction: i32,
}

impl Image<'_> {
    /// Says what the scans together give, or what is wrong with it. A component without a scan is
    /// no error of its own.
    fn end(&self) -> Result<Steps, Option<JpegError>> {
        let count = self.header.components.len();
        let mut steps = [[0; 64]; 4];
        for (to, from) in steps.iter_mut().zip(&self.steps[..count]) {
            *to = from.ok_or(None)?;
        }
        // libjpeg estimates coefficients of which bits are missing from the DC values of neighbors.
        // It does so only if it knows all of these, and only if the first coefficients all have
        // steps.
        let known = self.lowest[..count].iter().all(|lowest| lowest[0].is_some());
        let useful = steps[..count].iter().all(|steps| steps[..10].iter().all(|step| *step > 0));
        let lacking = self.lowest[..count].iter().any(|lowest| lowest[1..10].iter().any(|low| *low != Some(0)));
        if self.header.progressive && known && useful && lacking {
            return Err(Some(JpegError::Unsupported(Unsupported::MissingScans)));
        }
        Ok(steps)
    }

    /// Decodes a scan, from its header on.
    fn scan(&mut self, parser: &mut Parser<'_>, segment: &mut Segment) -> Result<(), JpegError> {
        let (mut parts, band) = self.scan_header(parser)?;
        let header = self.header;
        let [across, down] = header.units();
        let alone = (parts.len() == 1).then(|| header.own(&header.components[parts[0].component]));
        let [columns, rows] = alone.unwrap_or([across, down]);
        let each = if alone.is_some() { 1 } else { parts.iter().map(|part| part.blocks[0] * part.blocks[1]).sum() };
        if each > MAX_BLOCKS as usize {
            return Err(JpegError::Unsupported(Unsupported::Sampling));
        }
        self.visits += u64::from(columns) * u64::from(rows) * each as u64;
        if self.visits > MOST_VISITS * self.nonzero.len() as u64 {
            return Err(JpegError::Unsupported(Unsupported::Scans));
        }
        let (order, of_unit) = (self.order, header.blocks_of_unit() as usize);
        let (file, mut at, interval) = (parser.file, parser.at, self.restart);
        let kind = match (header.progressive, band) {
            (false, _) => Kind::Sequential,
            (true, Band { first: 0, refines: false, .. }) => Kind::First,
            (true, Band { first: 0, .. }) => Kind::FirstBit,
            (true, Band { refines: false, .. }) => Kind::Upper,
            (true, _) => Kind::Refine,
        };
        let (blocks, nonzero) = (&mut *self.blocks, &mut *self.nonzero);
        let mut decode = |bits: &mut Bits<'_>, part: &mut Part, place: usize, run: &mut u32| -> Option<()> {
            let (block, nonzero) = (blocks.get_mut(place)?, nonzero.get_mut(place)?);
            match (kind, &part.tables) {
                (Kind::Sequential, [Some(dc), Some(ac)]) => {
                    let last = sequential(bits, [dc, ac], &mut part.prediction, order, block)?;
                    *nonzero = u64::MAX >> (64 - last) & !1;
                }
                (Kind::First, [Some(dc), _]) => {
                    part.prediction = part.prediction.wrapping_add(bits.code(dc)?.value);
                    block[0] = (part.prediction << band.low) as i16;
                }
                (Kind::FirstBit, _) => block[0] |= (bits.take(1) as i16) << band.low,
                (Kind::Upper, [_, Some(ac)]) => upper(bits, ac, band, run, order, block, nonzero)?,
                (Kind::Refine, [_, Some(ac)]) => refine(bits, ac, band, run, order, block, nonzero)?,
                _ => return None,
            }
            Some(())
        };
        let result = wide!({
            at = segment.load(file, at);
            let mut bits = segment.bits();
            let (mut left, mut number, mut run) = (interval, 0u32, 0);
            for y in 0..rows {
                for x in 0..columns {
                    if interval > 0 {
                        if left == 0 {
                            bits.check()?;
                            at = restart(file, at, number)?;
                            at = segment.load(file, at);
                            bits = segment.bits();
                            parts.iter_mut().for_each(|part| part.prediction = 0);
                            (left, number, run) = (interval, number + 1, 0);
                        }
                        left -= 1;
                    }
                    let mut fits = Some(());
                    if alone.is_some() {
                        // The blocks of a scan with one component are not grouped, and those of
                        // the padding are not there.
                        let part = &mut parts[0];
                        let [wide, high] = part.blocks;
                        let (y, x) = (y as usize, x as usize);
                        let within = part.first_block + y % high * wide + x % wide;
                        let place = (y / high * across as usize + x / wide) * of_unit + within;
                        fits = decode(&mut bits, part, place, &mut run);
                    } else {
                        let start = (y as usize * across as usize + x as usize) * of_unit;
                        for part in &mut parts {
                            let first = start + part.first_block;
                            for place in first..first + part.blocks[0] * part.blocks[1] {
                                fits = fits.and_then(|()| decode(&mut bits, part, place, &mut run));
                            }
                        }
                    }
                    if fits.is_none() {
                        // The end of the data looks like a code, too.
                        bits.check()?;
                        return Err(JpegError::BrokenData);
                    }
                }
                bits.check()?;
            }
            Ok(())
        });
        parser.at = at;
        result
    }

    /// Reads the header of a scan.
    fn scan_header(&mut self, parser: &mut Parser<'_>) -> Result<(Vec<Part>, Band), JpegError> {
        let content = parser.segment()?;
        let broken = |what| JpegError::Broken { at: parser.at, what };
        let short = broken("the scan header has another length");
        let (&count, rest) = content.split_first().ok_or(short)?;
        let (selectors, rest) = rest.split_at_checked(2 * usize::from(count)).ok_or(short)?;
        let &[first, last, bits] = rest else { return Err(short) };
        let progressive = self.header.progressive;
        let mut band =
            Band { first: u32::from(first), last: u32::from(last), refines: bits >> 4 > 0, low: u32::from(bits & 15) };
        if progressive {
            let whole = if first == 0 { last == 0 } else { first <= last && last <= 63 && count == 1 };
            let step = if band.refines { u32::from(bits >> 4) == band.low + 1 } else { true };
            if !whole || !step || band.low > 13 {
                return Err(broken("a scan has coefficients or bits that no scan can have"));
            }
        } else {
            // Sequential scans have all coefficients, whatever they say.
            band = Band { first: 0, last: 63, refines: false, low: 0 };
        }
        if !(1..=4).contains(&count) {
            return Err(broken("a scan has no component or too many"));
        }
        let mut parts: Vec<Part> = Vec::with_capacity(4);
        for (i, selector) in selectors.chunks_exact(2).enumerate() {
            // Components may share an identifier, so libjpeg passes over as many components as
            // selectors came before.
            let component = (i..self.header.ids.len()).find(|&c| self.header.ids[c] == selector[0]);
            let component = component.ok_or(broken("a scan names a component that the frame does not have"))?;
            if parts.iter().any(|part| part.component == component) {
                return Err(broken("a scan names a component twice"));
            }
            let which = self.header.components[component].quantization;
            if self.steps[component].is_none() {
                let table = self.quantization[which].ok_or(broken("a quantization table is missing"))?;
                self.steps[component] = Some(table);
            } else if !progressive {
                return Err(JpegError::Unsupported(Unsupported::Scans));
            }
            let needed = [band.first == 0 && !band.refines, band.last > 0];
            let mut tables = [None, None];
            for (class, number) in [selector[1] >> 4, selector[1] & 15].into_iter().enumerate() {
                if needed[class] {
                    let table = self.tables[class].get(usize::from(number)).and_then(Option::as_ref);
                    tables[class] = Some(Table::new(table.ok_or(broken("a Huffman table is missing"))?));
                }
            }
            let before = &self.header.components[..component];
            let first_block = before.iter().map(|c| (c.blocks[0] * c.blocks[1]) as usize).sum();
            let blocks = self.header.components[component].blocks.map(|n| n as usize);
            parts.push(Part { component, blocks, first_block, tables, prediction: 0 });
        }
        for part in &parts {
            for lowest in &mut self.lowest[part.component][band.first as usize..=band.last as usize] {
                *lowest = Some(band.low as u8);
            }
        }
        Ok((parts, band))
    }
}

/// The kind of a scan's data about a block.
#[derive(Clone, Copy)]
enum Kind {
    /// All of it.
    Sequential,
    /// The upper bits of the DC coefficient, and the next one.
    First,
    FirstBit,
    /// The upper bits of AC coefficients, and the next ones.
    Upper,
    Refine,
}

/// Goes past restart marker `number`, which comes next. Returns where the data after it starts.
pub(crate) fn restart(file: &[u8], at: usize, number: u32) -> Result<usize, JpegError> {
    let mut parser = Parser { file, at };
    if parser.marker()? != 0xD0 + (number % 8) as u8 {
        return Err(JpegError::Broken { at, what: "a restart marker is missing" });
    }
    Ok(parser.at)
}
