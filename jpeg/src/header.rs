//! The parser of a file's segments. It allocates nothing that grows with what a file claims.

use crate::error::{JpegError, Unsupported};
use crate::huffman::Huffman;

/// The largest height and width.
pub(crate) const MAX_SIDE: u16 = 16384;

/// The most blocks of one unit of a scan with several components (ITU-T T.81, B.2.3).
const MAX_BLOCKS: u32 = 10;

/// How samples become colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Color {
    /// One component, which is replicated.
    Gray,
    /// Luma and two chroma components, as in ITU-R BT.601 with full range.
    YCbCr,
    /// The components are red, green and blue.
    Rgb,
}

/// A component of the image, such as luma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Component {
    /// The blocks of this component in each unit of the scan, across and down.
    pub(crate) blocks: [u32; 2],
    /// The quantisation table, by position in [`Header::quantisation`].
    pub(crate) quantisation: usize,
    /// The Huffman tables of the DC and of the AC coefficients.
    pub(crate) tables: [usize; 2],
}

/// What a file says before its coded data, and where that starts.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) height: u32,
    pub(crate) width: u32,
    /// The EXIF orientation, 1 to 8.
    pub(crate) orientation: u32,
    pub(crate) color: Color,
    /// 1 or 3 of them.
    pub(crate) components: Vec<Component>,
    /// In the order of the file, which is zigzag.
    pub(crate) quantisation: [[u16; 64]; 4],
    /// DC tables, then AC tables.
    pub(crate) huffman: [[Option<Huffman>; 4]; 2],
    /// The number of units of the scan between two restarts. 0 means that there are no restarts.
    pub(crate) restart: u32,
    /// Where the coded data of the scan starts in the file. In a progressive file it is the length of the
    /// first scan's header.
    pub(crate) scan: usize,
    /// There are many scans, which the host decodes.
    pub(crate) progressive: bool,
    /// The identifiers of the components.
    pub(crate) ids: Vec<u8>,
}

/// Returns height and width of the upright image that a file claims to have, from its header alone.
///
/// ```
/// use thalweg_jpeg::{JpegError, size};
///
/// assert_eq!(size(b"no photograph"), Err(JpegError::NotJpeg));
/// ```
///
/// # Errors
/// The header is broken, or the file is of a kind that the device does not decode. What follows the
/// header may be broken even if this succeeds.
pub fn size(file: &[u8]) -> Result<[u32; 2], JpegError> {
    Header::parse(file).map(|header| header.upright())
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

    /// Says whether the image is of the kind that the kernel `photographs` takes: upright YCbCr whose chroma is
    /// enlarged by 2 in both directions. A chroma of 1 or 2 columns is replicated, so it is of another kind.
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

/// What the frame header says of a component.
#[derive(Clone, Copy)]
struct Declared {
    id: u8,
    factors: [u8; 2],
    quantisation: u8,
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

    /// Reads the next marker. Any number of 0xFF may stand before it.
    pub(crate) fn marker(&mut self) -> Result<u8, JpegError> {
        if *self.file.get(self.at).ok_or(JpegError::Truncated)? != 0xFF {
            return Err(self.broken("a marker is missing"));
        }
        while *self.file.get(self.at).ok_or(JpegError::Truncated)? == 0xFF {
            self.at += 1;
        }
        self.at += 1;
        Ok(self.file[self.at - 1])
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

    fn file(mut self) -> Result<Header, JpegError> {
        let mut quantisation = [None; 4];
        let mut huffman = <[[Option<Huffman>; 4]; 2]>::default();
        let (mut restart, mut orientation) = (0, 1);
        let (mut jfif, mut adobe) = (false, None);
        let (mut frame, mut progressive) = (None, false);
        loop {
            let marker = self.marker()?;
            let start = self.at;
            match marker {
                0xD8 | 0x01 | 0xD0..=0xD7 => {} // without a segment
                0xD9 => return Err(self.broken("the image ends before its data starts")),
                0xC0..=0xC2 => {
                    progressive = marker == 0xC2;
                    if frame.is_some() {
                        return Err(self.broken("a second frame"));
                    }
                    let content = self.segment()?;
                    frame = Some(self.frame(content)?);
                }
                0xC9 | 0xCA | 0xCC => return Err(JpegError::Unsupported(Unsupported::Arithmetic)),
                0xC3 | 0xC5..=0xC7 | 0xCB | 0xCD..=0xCF => return Err(JpegError::Unsupported(Unsupported::Lossless)),
                0xC4 => {
                    let content = self.segment()?;
                    let broken = |what| JpegError::Broken { at: start, what };
                    Huffman::read(content, &mut huffman).map_err(broken)?;
                }
                0xDB => {
                    let content = self.segment()?;
                    quantisations(content, &mut quantisation)
                        .ok_or(JpegError::Broken { at: start, what: "a quantisation table has another length" })?;
                }
                0xDD => restart = self.restart_interval()?,
                0xE0 => jfif |= self.segment()?.starts_with(b"JFIF\0"),
                0xE1 => {
                    if let Some(tiff) = self.segment()?.strip_prefix(b"Exif\0\0") {
                        orientation = exif_orientation(tiff).unwrap_or(orientation);
                    }
                }
                0xEE => {
                    if let Some([_, _, _, _, _, _, transform, ..]) = self.segment()?.strip_prefix(b"Adobe") {
                        adobe = Some(*transform);
                    }
                }
                0xDA => break,
                _ => {
                    self.segment()?;
                }
            }
        }

        let ([height, width], declared) = frame.ok_or(self.broken("the scan stands before the frame"))?;
        let selected = if progressive { vec![[0, 0]; declared.len()] } else { self.scan(&declared)? };
        let color = color(&declared, jfif, adobe);
        let scan = self.at;
        let mut tables = [[0; 64]; 4];
        let single = declared.len() == 1;
        let mut components = Vec::with_capacity(declared.len());
        for (declared, of) in declared.iter().zip(selected) {
            let which = usize::from(declared.quantisation);
            tables[which] = quantisation[which].ok_or(self.broken("a quantisation table is missing"))?;
            if !progressive && (0..2).any(|class| huffman[class][of[class]].is_none()) {
                return Err(self.broken("a Huffman table is missing"));
            }
            // The blocks of a scan with one component are not grouped, whatever its factors.
            let blocks = if single { [1, 1] } else { declared.factors.map(u32::from) };
            components.push(Component { blocks, quantisation: which, tables: of });
        }
        let header = Header {
            height: u32::from(height),
            width: u32::from(width),
            orientation,
            color,
            components,
            quantisation: tables,
            huffman,
            restart,
            scan,
            progressive,
            ids: declared.iter().map(|c| c.id).collect(),
        };
        let [across, down] = header.factors();
        let divides = |c: &Component| across % c.blocks[0] == 0 && down % c.blocks[1] == 0;
        if !header.components.iter().all(divides) || header.blocks_of_unit() > MAX_BLOCKS {
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
        if count != 1 && count != 3 {
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
            quantisation: c[2],
        });
        let declared: Vec<_> = declared.collect();
        if declared.iter().any(|c| c.quantisation > 3) {
            return Err(self.broken("a component names a quantisation table above 3"));
        }
        if declared.iter().any(|c| c.factors.iter().any(|f| !(1..=4).contains(f))) {
            return Err(JpegError::Unsupported(Unsupported::Sampling));
        }
        Ok(([height, width], declared))
    }

    /// Reads the scan header. Returns the DC and the AC table of each component.
    fn scan(&mut self, declared: &[Declared]) -> Result<Vec<[usize; 2]>, JpegError> {
        let content = self.segment()?;
        let broken = self.broken("the scan header has another length");
        let (&count, rest) = content.split_first().ok_or(broken)?;
        if rest.len() != 2 * usize::from(count) + 3 {
            return Err(broken);
        }
        if usize::from(count) != declared.len() {
            return Err(JpegError::Unsupported(Unsupported::Scans));
        }
        let selected = rest.chunks_exact(2).zip(declared).map(|(selector, component)| {
            if selector[0] != component.id {
                return Err(self.broken("the scan names other components than the frame"));
            }
            let tables = [selector[1] >> 4, selector[1] & 15].map(usize::from);
            if tables.iter().any(|t| *t > 3) {
                return Err(self.broken("a component names a Huffman table above 3"));
            }
            Ok(tables)
        });
        selected.collect()
    }
}

/// Checks what follows the coded data, from its last marker on: the image must end there.
pub(crate) fn check_end(file: &[u8], at: usize) -> Result<(), JpegError> {
    let mut parser = Parser { file, at };
    loop {
        match parser.marker()? {
            0xD9 => return Ok(()),
            0xDA | 0xC4 | 0xDB => return Err(JpegError::Unsupported(Unsupported::Scans)),
            0xDC => return Err(JpegError::Unsupported(Unsupported::LateHeight)),
            0x01 | 0xD0..=0xD8 => {}
            _ => {
                parser.segment()?;
            }
        }
    }
}

/// Reads the tables of a DQT segment.
fn quantisations(mut content: &[u8], tables: &mut [Option<[u16; 64]>; 4]) -> Option<()> {
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

/// Says how the components become colours, by the rules of libjpeg.
fn color(declared: &[Declared], jfif: bool, adobe: Option<u8>) -> Color {
    let [a, b, c] = declared else { return Color::Gray };
    match adobe {
        _ if jfif => Color::YCbCr,
        Some(0) => Color::Rgb,
        Some(_) => Color::YCbCr,
        None if [a.id, b.id, c.id] == *b"RGB" => Color::Rgb,
        None => Color::YCbCr,
    }
}

/// Finds the orientation in the first directory of a TIFF structure.
fn exif_orientation(tiff: &[u8]) -> Option<u32> {
    const ORIENTATION: u16 = 0x0112;
    const SHORT: u16 = 3;
    let big = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes = *tiff.get(at..)?.first_chunk()?;
        Some(if big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let first = *tiff.get(4..)?.first_chunk()?;
    let first = if big { u32::from_be_bytes(first) } else { u32::from_le_bytes(first) } as usize;
    let entries = short(first)?;
    let entry = (0..usize::from(entries))
        .map(|i| first.saturating_add(2 + 12 * i))
        .find(|&at| short(at) == Some(ORIENTATION) && short(at.saturating_add(2)) == Some(SHORT))?;
    let value = u32::from(short(entry.saturating_add(8))?);
    (1..=8).contains(&value).then_some(value)
}
