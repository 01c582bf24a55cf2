//! The parser of a file's segments. It allocates nothing that grows with what a file claims.

use std::ops::Range;

use thalweg::Size;

use crate::error::{JpegError, Unsupported};
use crate::huffman::Huffman;
use crate::orientation;

/// The largest height and width.
pub(crate) const MAX_SIDE: u16 = 16384;

/// The most blocks of one unit of a scan with several components (ITU-T T.81, B.2.3).
pub(crate) const MAX_BLOCKS: u32 = 10;

/// The conversion of samples to colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Color {
    /// One component, which is replicated.
    Gray,
    /// Luma and two chroma components, as in ITU-R BT.601 with full range.
    YCbCr,
    /// The components are red, green and blue.
    Rgb,
    /// Cyan, magenta, yellow and black, each inverted, as Adobe's programs write them.
    Cmyk,
    /// The same, with the first three as luma and chroma.
    Ycck,
}

/// A component of the image, such as luma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Component {
    /// The blocks of this component in each unit of the scan, across and down.
    pub(crate) blocks: [u32; 2],
    /// The quantization table, by position in [`Header::quantization`].
    pub(crate) quantization: usize,
    /// The Huffman tables of the DC and of the AC coefficients.
    pub(crate) tables: [usize; 2],
}

/// The contents of a file before its coded data, and the start of that data.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) height: u32,
    pub(crate) width: u32,
    /// The EXIF orientation, 1 to 8.
    pub(crate) orientation: u32,
    pub(crate) color: Color,
    /// 1, 3 or 4 of them.
    pub(crate) components: Vec<Component>,
    /// In the order of the file, which is zigzag.
    pub(crate) quantization: [[u16; 64]; 4],
    /// The tables that the file gives before its first scan.
    pub(crate) defined: [bool; 4],
    /// DC tables, then AC tables.
    pub(crate) huffman: [[Option<Huffman>; 4]; 2],
    /// The number of units of the scan between two restarts. 0 means that there are no restarts.
    pub(crate) restart: u32,
    /// The start of the scan's coded data in the file. With many scans it is the length of the
    /// first one's header.
    pub(crate) scan: usize,
    /// The scans may be many, so that only all of them together give a block. The host decodes them
    /// to coefficients.
    pub(crate) many: bool,
    /// The scans give the coefficients step by step.
    pub(crate) progressive: bool,
    /// The identifiers of the components.
    pub(crate) ids: Vec<u8>,
}

/// Returns height and width of the upright image that a file claims to have, from its header alone.
///
/// ```
/// use thalweg_jpeg::{JpegError, dimensions};
///
/// assert_eq!(dimensions(b"no photograph"), Err(JpegError::NotJpeg));
/// ```
///
/// # Errors
/// The header is broken, or the file is of a kind that the device does not decode. What follows the
/// header may be broken even if this succeeds.
pub fn dimensions(file: &[u8]) -> Result<Size, JpegError> {
    let header = Header::parse(file)?;
    header.for_device()?;
    Ok(header.upright().into())
}

impl Header {
    /// Returns the largest sampling factors, across and down. They are also the size of a unit of
    /// the scan in blocks of the full resolution.
    pub(crate) fn factors(&self) -> [u32; 2] {
        let most = |axis: usize| self.components.iter().map(|c| c.blocks[axis]).max().unwrap_or(1);
        [most(0), most(1)]
    }

    /// Returns the number of units of the scan, across and down.
    pub(crate) fn units(&self) -> [u32; 2] {
        let [across, down] = self.factors();
        [self.width.div_ceil(8 * across), self.height.div_ceil(8 * down)]
    }

    /// Returns the blocks of one unit of the scan.
    pub(crate) fn blocks_of_unit(&self) -> u32 {
        self.components.iter().map(|c| c.blocks[0] * c.blocks[1]).sum()
    }

    /// Returns height and width of the upright image.
    pub(crate) fn upright(&self) -> [u32; 2] {
        if self.orientation >= 5 { [self.width, self.height] } else { [self.height, self.width] }
    }

    /// Says whether the image is of the kind that the kernel `photographs` takes: upright YCbCr
    /// whose chroma is enlarged by 2 in both directions. A chroma of 1 or 2 columns is replicated,
    /// so it is of another kind.
    pub(crate) fn is_usual(&self) -> bool {
        let [luma, blue, red] = &self.components[..] else { return false };
        let doubled = |chroma: &Component| luma.blocks == chroma.blocks.map(|own| 2 * own);
        self.color == Color::YCbCr && self.orientation <= 1 && self.width > 4 && doubled(blue) && doubled(red)
    }

    /// Returns the number of segments of the coded data: one more than restarts.
    pub(crate) fn segments(&self) -> u32 {
        let [across, down] = self.units();
        if self.restart == 0 { 1 } else { (across * down).div_ceil(self.restart) }
    }

    /// Checks that the device decodes files of this kind.
    pub(crate) fn for_device(&self) -> Result<(), JpegError> {
        match self.components.len() {
            1 | 3 if self.blocks_of_unit() <= MAX_BLOCKS => Ok(()),
            1 | 3 => Err(JpegError::Unsupported(Unsupported::Sampling)),
            _ => Err(JpegError::Unsupported(Unsupported::Cmyk)),
        }
    }

    /// Returns the number of blocks of all components, with those of the padding: below 2^27.
    pub(crate) fn blocks(&self) -> u32 {
        let [across, down] = self.units();
        across * down * self.blocks_of_unit()
    }

    /// Checks that the file is long enough for the blocks that it claims to have. So memory is in
    /// proportion to the file, whatever size the file claims.
    pub(crate) fn check_length(&self, file: &[u8]) -> Result<(), JpegError> {
        let bits = (file.len() - self.scan) as u64 * 8;
        // A block has a code for its DC coefficient and one for its end, of at least one bit each.
        // In a progressive file it has a bit at least in the scan of the DC coefficients. The
        // blocks of the padding may be missing in a scan of one component, and are fewer than the
        // others, apart from those of one unit in each row and column.
        let needed = match (self.many, self.progressive) {
            (false, _) => 2 * u64::from(self.blocks()),
            (true, progressive) => self.own_blocks() * if progressive { 1 } else { 2 },
        };
        // A restart takes two bytes.
        let restarts = if self.many { 0 } else { 2 * u64::from(self.segments() - 1) };
        if needed > bits || restarts > bits / 8 { Err(JpegError::Truncated) } else { Ok(()) }
    }

    /// Returns the number of blocks of all components without the padding.
    fn own_blocks(&self) -> u64 {
        let own = |component: &Component| self.own(component).iter().map(|n| u64::from(*n)).product::<u64>();
        self.components.iter().map(own).sum()
    }

    /// Returns the blocks of a component without the padding, across and down.
    pub(crate) fn own(&self, component: &Component) -> [u32; 2] {
        let [most_wide, most_high] = self.factors();
        let [wide, high] = component.blocks;
        [(self.width * wide).div_ceil(8 * most_wide), (self.height * high).div_ceil(8 * most_high)]
    }

    /// Parses a file up to its coded data.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, JpegError> {
        let mut parser = Parser { file, at: 0 };
        if parser.file.get(..2) != Some(&[0xFF, 0xD8]) {
            return Err(JpegError::NotJpeg);
        }
        parser.at = 2;
        parser.file()
    }
}

/// A component as the frame header declares it.
#[derive(Clone, Copy)]
struct Declared {
    id: u8,
    factors: [u8; 2],
    quantization: u8,
}

/// A place in a file.
pub(crate) struct Parser<'a> {
    pub(crate) file: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Parser<'a> {
    pub(crate) fn broken(&self, what: &'static str) -> JpegError {
        JpegError::Broken { at: self.at, what }
    }

    /// Reads the next marker. Any number of 0xFF may stand before it, and before them anything
    /// else, which libjpeg passes over, too.
    pub(crate) fn marker(&mut self) -> Result<u8, JpegError> {
        loop {
            let rest = self.file.get(self.at..).unwrap_or_default();
            self.at += memchr::memchr(0xFF, rest).ok_or(JpegError::Truncated)?;
            while *self.file.get(self.at).ok_or(JpegError::Truncated)? == 0xFF {
                self.at += 1;
            }
            self.at += 1;
            match self.file[self.at - 1] {
                0 => {}
                // An extension of the format, which nobody can pass over without knowing it.
                0x02..=0xBF | 0xC8 | 0xDE | 0xDF | 0xF0..=0xFD => return Err(self.broken("there is an unknown marker")),
                marker => return Ok(marker),
            }
        }
    }

    /// Reads the content of a segment that is about the image, such as a comment. libjpeg takes one
    /// that is shorter than its own length field for an empty one.
    fn remark(&mut self) -> Result<&'a [u8], JpegError> {
        if self.file.get(self.at..).is_some_and(|rest| matches!(rest, [0, 0 | 1, ..])) {
            self.at += 2;
            return Ok(&[]);
        }
        self.segment()
    }

    /// Passes over a segment that says nothing about the image.
    pub(crate) fn skip(&mut self) -> Result<(), JpegError> {
        self.remark().map(|_| ())
    }

    /// Reads the content of a segment that starts with its length.
    pub(crate) fn segment(&mut self) -> Result<&'a [u8], JpegError> {
        let rest = &self.file[self.at..];
        let length = rest.first_chunk().ok_or(JpegError::Truncated)?;
        let length = usize::from(u16::from_be_bytes(*length));
        if length < 2 {
            return Err(self.broken("a segment is shorter than its own length field"));
        }
        self.at += length;
        rest.get(2..length).ok_or(JpegError::Truncated)
    }

    /// Reads the segment that says how many units of the scan there are between two restarts.
    pub(crate) fn restart_interval(&mut self) -> Result<u32, JpegError> {
        match *self.segment()? {
            [high, low] => Ok(u32::from(u16::from_be_bytes([high, low]))),
            _ => Err(self.broken("the restart interval has another length than 2 bytes")),
        }
    }

    /// Returns where the contents of the segments are that may say an orientation.
    pub(crate) fn remarks(file: &[u8]) -> Vec<Range<usize>> {
        let mut parser = Parser { file, at: 2 };
        let mut found = Vec::new();
        while let Ok(marker) = parser.marker() {
            match marker {
                0x01 | 0xD0..=0xD7 => {}
                0xDA => break,
                _ => match parser.remark() {
                    Ok(content) if marker == 0xE1 => found.push(parser.at - content.len()..parser.at),
                    Ok(_) => {}
                    Err(_) => break,
                },
            }
        }
        found
    }

    fn file(mut self) -> Result<Header, JpegError> {
        let mut quantization = [None; 4];
        let mut huffman = <[[Option<Huffman>; 4]; 2]>::default();
        let (mut restart, mut exif, mut xmp) = (0, None, None);
        let (mut jfif, mut adobe) = (false, None);
        let (mut frame, mut progressive) = (None, false);
        loop {
            let marker = self.marker()?;
            let start = self.at;
            match marker {
                0x01 | 0xD0..=0xD7 => {} // without a segment
                0xD8 => return Err(self.broken("a second image starts before the first one ends")),
                0xD9 => return Err(self.broken("the image ends before its data starts")),
                0xC0..=0xC2 => {
                    progressive = marker == 0xC2;
                    if frame.is_some() {
                        return Err(self.broken("a second frame"));
                    }
                    let content = self.segment()?;
                    frame = Some(self.frame(content)?);
                }
                0xC9 | 0xCA => return Err(JpegError::Unsupported(Unsupported::Arithmetic)),
                0xC3 | 0xCB => return Err(JpegError::Unsupported(Unsupported::Lossless)),
                0xC5..=0xC7 | 0xCD..=0xCF => return Err(JpegError::Unsupported(Unsupported::Hierarchical)),
                0xC4 => {
                    let content = self.segment()?;
                    let broken = |what| JpegError::Broken { at: start, what };
                    Huffman::read(content, &mut huffman).map_err(broken)?;
                }
                0xDB => {
                    let content = self.segment()?;
                    quantizations(content, &mut quantization)
                        .ok_or(JpegError::Broken { at: start, what: "a quantization table has another length" })?;
                }
                0xDD => restart = self.restart_interval()?,
                0xE0 => {
                    let content = self.remark()?;
                    jfif |= content.len() >= 14 && content.starts_with(b"JFIF\0");
                }
                0xE1 => {
                    let content = self.remark()?;
                    if content.starts_with(b"Exif\0\0") {
                        exif = exif.or(Some(content));
                    } else if let Some(packet) = content.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0") {
                        xmp = Some(packet);
                    }
                }
                0xEE => {
                    if let Some([_, _, _, _, _, _, transform, ..]) = self.remark()?.strip_prefix(b"Adobe") {
                        adobe = Some(*transform);
                    }
                }
                0xDA => break,
                _ => self.skip()?,
            }
        }

        let ([height, width], declared) = frame.ok_or(self.broken("the scan stands before the frame"))?;
        let color = color(&declared, jfif, adobe);
        let mut scan = self.at;
        let selected = if progressive { None } else { self.scan(&declared)? };
        let many = selected.is_none();
        if !many {
            scan = self.at;
        }
        if !progressive {
            // Frames of Motion JPEG leave these out.
            for (class, tables) in huffman.iter_mut().enumerate() {
                for (number, table) in tables[..2].iter_mut().enumerate() {
                    table.get_or_insert_with(|| Huffman::standard(class, number));
                }
            }
        }
        let mut tables = [[0; 64]; 4];
        let single = declared.len() == 1;
        let mut components = Vec::with_capacity(declared.len());
        for (i, declared) in declared.iter().enumerate() {
            let which = usize::from(declared.quantization);
            let of = selected.as_ref().map_or([0, 0], |selected| selected[i]);
            match quantization[which] {
                Some(table) => tables[which] = table,
                // It may come before the scan that needs it.
                None if many => {}
                None => return Err(self.broken("a quantization table is missing")),
            }
            if !many && (0..2).any(|class| huffman[class][of[class]].is_none()) {
                return Err(self.broken("a Huffman table is missing"));
            }
            // The blocks of a scan with one component are not grouped, whatever its factors.
            let blocks = if single { [1, 1] } else { declared.factors.map(u32::from) };
            components.push(Component { blocks, quantization: which, tables: of });
        }
        let header = Header {
            height: u32::from(height),
            width: u32::from(width),
            orientation: orientation::of(exif, xmp),
            color,
            components,
            quantization: tables,
            defined: quantization.map(|table| table.is_some()),
            huffman,
            restart,
            scan,
            many,
            progressive,
            ids: declared.iter().map(|c| c.id).collect(),
        };
        let [across, down] = header.factors();
        let divides = |c: &Component| across % c.blocks[0] == 0 && down % c.blocks[1] == 0;
        if !header.components.iter().all(divides) || (!many && header.blocks_of_unit() > MAX_BLOCKS) {
            return Err(JpegError::Unsupported(Unsupported::Sampling));
        }
        Ok(header)
    }

    /// Reads the frame header: the size and the components.
    fn frame(&self, content: &[u8]) -> Result<([u16; 2], Vec<Declared>), JpegError> {
        let short = self.broken("the frame header has another length");
        let (head, components) = content.split_at_checked(6).ok_or(short)?;
        let (bits, count) = (head[0], head[5]);
        let (height, width) = (u16::from_be_bytes([head[1], head[2]]), u16::from_be_bytes([head[3], head[4]]));
        if components.len() != 3 * usize::from(count) {
            return Err(short);
        }
        if bits != 8 {
            return Err(JpegError::Unsupported(Unsupported::Bits(bits)));
        }
        if !matches!(count, 1 | 3 | 4) {
            return Err(JpegError::Unsupported(Unsupported::Components(count)));
        }
        if width == 0 {
            return Err(self.broken("the image has no columns"));
        }
        if height == 0 {
            return Err(JpegError::Unsupported(Unsupported::LateHeight));
        }
        if height > MAX_SIDE || width > MAX_SIDE {
            return Err(JpegError::Unsupported(Unsupported::Size { height, width }));
        }
        let declared = components.chunks_exact(3).map(|c| Declared {
            id: c[0],
            factors: [c[1] >> 4, c[1] & 15],
            quantization: c[2],
        });
        let declared: Vec<_> = declared.collect();
        if declared.iter().any(|c| c.quantization > 3) {
            return Err(self.broken("a component names a quantization table above 3"));
        }
        if declared.iter().any(|c| c.factors.iter().any(|f| !(1..=4).contains(f))) {
            return Err(JpegError::Unsupported(Unsupported::Sampling));
        }
        Ok(([height, width], declared))
    }

    /// Reads the scan header. Returns the DC and the AC table of each component if the scan has all
    /// of them, in the order of the frame.
    fn scan(&mut self, declared: &[Declared]) -> Result<Option<Vec<[usize; 2]>>, JpegError> {
        let content = self.segment()?;
        let broken = self.broken("the scan header has another length");
        let (&count, rest) = content.split_first().ok_or(broken)?;
        if rest.len() != 2 * usize::from(count) + 3 {
            return Err(broken);
        }
        let selectors = rest.chunks_exact(2).zip(declared);
        if usize::from(count) != declared.len() || !selectors.clone().all(|(selector, own)| selector[0] == own.id) {
            return Ok(None);
        }
        let selected = selectors.map(|(selector, _)| {
            let tables = [selector[1] >> 4, selector[1] & 15].map(usize::from);
            if tables.iter().any(|t| *t > 3) {
                return Err(self.broken("a component names a Huffman table above 3"));
            }
            Ok(tables)
        });
        selected.collect::<Result<_, _>>().map(Some)
    }
}

/// Checks what follows the coded data, from its last marker on: the image must end there.
pub(crate) fn check_end(file: &[u8], at: usize) -> Result<(), JpegError> {
    let mut parser = Parser { file, at };
    loop {
        match parser.marker()? {
            0xD9 => return Ok(()),
            0xDA => return Err(parser.broken("there is a scan after the last one")),
            0xD8 => return Err(parser.broken("a second image starts before the first one ends")),
            0x01 | 0xD0..=0xD7 => {}
            _ => parser.skip()?,
        }
    }
}

/// Reads the tables of a DQT segment.
pub(crate) fn quantizations(mut content: &[u8], tables: &mut [Option<[u16; 64]>; 4]) -> Option<()> {
    while let Some((&kind, rest)) = content.split_first() {
        let table = tables.get_mut(usize::from(kind & 15))?;
        let mut values = [0; 64];
        content = match kind >> 4 {
            0 => {
                let (own, rest) = rest.split_at_checked(64)?;
                values.iter_mut().zip(own).for_each(|(to, v)| *to = u16::from(*v));
                rest
            }
            1 => {
                let (own, rest) = rest.split_at_checked(128)?;
                values.iter_mut().zip(own.chunks_exact(2)).for_each(|(to, v)| *to = u16::from_be_bytes([v[0], v[1]]));
                rest
            }
            _ => return None,
        };
        *table = Some(values);
    }
    Some(())
}

/// Says how the components become colors, by the rules of libjpeg.
fn color(declared: &[Declared], jfif: bool, adobe: Option<u8>) -> Color {
    match (declared, adobe) {
        ([_], _) => Color::Gray,
        ([_, _, _, _], None | Some(0)) => Color::Cmyk,
        ([_, _, _, _], _) => Color::Ycck,
        _ if jfif => Color::YCbCr,
        (_, Some(0)) => Color::Rgb,
        (_, Some(_)) => Color::YCbCr,
        ([a, b, c], None) if [a.id, b.id, c.id] == *b"RGB" => Color::Rgb,
        (_, None) => Color::YCbCr,
    }
}
