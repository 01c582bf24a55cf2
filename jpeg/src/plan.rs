//! The tables that the kernels need for a batch: its files' data without stuffing, and their
//! tables.
//!
//! Everything lies in one block of page-locked memory, which goes to the device in one copy. The
//! headers say how much of it each file takes at most, so the files get disjoint parts of it, and
//! many threads write them at once. A part is not always full: only the data itself says how many
//! bytes of it are stuffing. What is not used stays as it is, and no record names it.

use std::ops::Range;
use std::sync::OnceLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use thalweg::{Device, Error, PinnedBuffer, PinnedPool};
use thalweg_kernels::jpeg::{IMAGE_WORDS, PIECE_BITS, PIXELS, SEGMENT_WORDS, TABLE_WORDS, ZIGZAG};

use crate::bits::Segment;
use crate::error::{JpegError, Unsupported};
use crate::header::{Color, Component, Header, check_end};
use crate::scans;

/// A file, with bytes that stay free before its pixels.
#[derive(Clone, Copy, Debug)]
pub struct ReservedFile<'a> {
    /// The number of these bytes, which is rounded up to a multiple of 16.
    pub prefix: usize,
    /// The content of the file.
    pub file: &'a [u8],
}

/// A batch of files as the kernels take it. Files that cannot be decoded take no part in it.
#[derive(Debug)]
pub(crate) struct Plan {
    /// All tables and data, each part from a multiple of [`ALIGNED`] words on.
    pub(crate) words: PinnedBuffer<u32>,
    pub(crate) parts: Parts,
    pub(crate) totals: Room,
    pub(crate) rgb_bytes: usize,
    /// The largest number of pieces, blocks and groups of pixels of an image: those of the usual
    /// kind have groups of two rows, and the others of one. Images that turn out to be broken
    /// count.
    pub(crate) most_pieces: u32,
    pub(crate) most_blocks: u32,
    pub(crate) most_pairs: u32,
    pub(crate) most_groups: u32,
    /// The coefficients of progressive files, which the host has decoded.
    pub(crate) decoded: Vec<Decoded>,
}

/// The coefficients of a progressive file.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// They may be shorter than the memory.
    pub(crate) memory: PinnedBuffer<u32>,
    pub(crate) words: usize,
    pub(crate) first_block: usize,
}

/// The places of the parts of a plan in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// A record for each image.
    pub(crate) images: Range<usize>,
    pub(crate) segments: Range<usize>,
    pub(crate) huffman: Range<usize>,
    /// Column by column, two steps in a word.
    pub(crate) quantization: Range<usize>,
    /// The segment of each piece.
    pub(crate) pieces: Range<usize>,
    /// Coded data as little-endian words of the bytes. Each segment starts with a word.
    pub(crate) data: Range<usize>,
}

/// Parts start at multiples of this many words, which are 64 bytes.
pub(crate) const ALIGNED: usize = 16;

/// The words after each segment that a decoder may look at.
const MARGIN: usize = 2;

/// The words of the coefficients of a block, and of a quantization table: 16 bits for each.
const BLOCK_WORDS: usize = 32;

/// The bytes of a piece.
const PIECE_BYTES: usize = PIECE_BITS as usize / 8;

/// The largest number of blocks of a batch: their coefficients are counted in 32 bits.
const MAX_BLOCKS: u64 = (1 << 31) / 64;

/// The largest number of words of coded data of a batch.
const MAX_WORDS: usize = 1 << 30;

/// The bytes of a batch from which several threads read it. One thread reads 1 MiB in about 0.1 ms
/// (`benches/decode.rs`), which leaves little to gain below that.
const PARALLEL: usize = 1 << 20;

/// The ratio of the time to decode the scans of a progressive file to the time to copy as many
/// bytes: 10 GB/s are copied (as above), and 70 to 150 MB/s of scans are decoded.
const SCANS: usize = 64;

/// The place of an image in the pixels of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) number: usize,
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) start: usize,
}

/// The most of each part that a file takes, or the start of its part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    pub(crate) images: usize,
    pub(crate) segments: usize,
    pub(crate) tables: usize,
    pub(crate) quantizations: usize,
    pub(crate) pieces: usize,
    pub(crate) words: usize,
    pub(crate) blocks: u32,
    pub(crate) plane_bytes: u64,
}

/// The memory for the coefficients that the host decodes, and the number of their words.
type Admitted = Result<Option<(PinnedBuffer<u32>, usize)>, JpegError>;

impl Room {
    /// Returns the memory that a file needs.
    fn of(header: &Header, file: &[u8]) -> Result<Self, JpegError> {
        header.for_device()?;
        header.check_length(file)?;
        let bytes = file.len() - header.scan;
        let blocks = header.blocks(); // below 10 * 2^22
        if header.many {
            return Ok(Self {
                images: 1,
                quantizations: header.components.len(),
                blocks,
                plane_bytes: 64 * u64::from(blocks),
                ..Self::default()
            });
        }
        let segments = header.segments() as usize;
        Ok(Self {
            images: 1,
            segments,
            tables: distinct_tables(header).len(),
            quantizations: header.components.len(),
            // Each segment rounds up once.
            pieces: bytes.div_ceil(PIECE_BYTES) + segments,
            words: bytes.div_ceil(4) + (1 + MARGIN) * segments,
            blocks,
            plane_bytes: 64 * u64::from(blocks),
        })
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            images: self.images + other.images,
            segments: self.segments + other.segments,
            tables: self.tables + other.tables,
            quantizations: self.quantizations + other.quantizations,
            pieces: self.pieces + other.pieces,
            words: self.words + other.words,
            blocks: self.blocks + other.blocks,
            plane_bytes: self.plane_bytes + other.plane_bytes,
        }
    }

    /// Returns why a file does not fit behind those before it. Takes memory for its coefficients if
    /// the host is to decode it.
    fn admit(
        &self,
        header: &Header,
        room: &Self,
        take: impl FnOnce(usize) -> thalweg::Result<PinnedBuffer<u32>>,
    ) -> thalweg::Result<Admitted> {
        let fits = u64::from(self.blocks) + u64::from(room.blocks) <= MAX_BLOCKS
            && self.words.saturating_add(room.words) <= MAX_WORDS;
        if !fits {
            return Ok(Err(JpegError::Broken { at: 0, what: "the batch is too large for one call" }));
        }
        if !header.many {
            return Ok(Ok(None));
        }
        let words = BLOCK_WORDS * room.blocks as usize;
        match take(step(words)) {
            Ok(memory) => Ok(Ok(Some((memory, words)))),
            // This file goes without; the others need not.
            Err(
                Error::PinnedBudget { .. } | Error::OutOfMemory { .. } | Error::Cuda { .. } | Error::TooLarge { .. },
            ) => Ok(Err(JpegError::NoMemory)),
            Err(error) => Err(error),
        }
    }

    /// The words of each part.
    fn lengths(&self) -> [usize; 6] {
        [
            self.images * IMAGE_WORDS as usize,
            self.segments * SEGMENT_WORDS as usize,
            self.tables * TABLE_WORDS as usize,
            self.quantizations * BLOCK_WORDS,
            self.pieces,
            self.words,
        ]
    }
}

/// The Huffman tables that the components of an image name, each once: class and number.
fn distinct_tables(header: &Header) -> Vec<[usize; 2]> {
    let mut tables = Vec::with_capacity(6);
    if header.many {
        return tables; // the kernels decode nothing
    }
    for component in &header.components {
        for (class, &number) in component.tables.iter().enumerate() {
            let table = [class, number];
            if !tables.contains(&table) {
                tables.push(table);
            }
        }
    }
    tables
}

/// Memory that reading a batch keeps for the next one.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    headers: Vec<Parsed>,
    /// The pool of page-locked memory for coefficients. `None` is the device's own pool.
    pub(crate) coefficients: Option<PinnedPool>,
}

/// A file after its header: the header and what the file needs, or why it is not decoded, with the
/// size of its pixels if the header says one.
type Parsed = Result<(Header, Room), (JpegError, usize)>;

/// The bytes of the pixels of an image, and of the gap up to the next multiple of 16.
fn pixels(header: &Header) -> usize {
    (3 * header.height as usize * header.width as usize).next_multiple_of(16)
}

impl Plan {
    /// Reads files. Also returns where each image lies, or why it is not decoded. With `keeps`, a
    /// file that is refused after its header leaves the room of its pixels free.
    pub(crate) fn read(
        device: Device,
        files: &[ReservedFile<'_>],
        keeps: bool,
        scratch: &mut Scratch,
    ) -> thalweg::Result<(Self, Vec<Result<Place, JpegError>>)> {
        let bytes: usize = files.iter().map(|reserved| reserved.file.len()).sum();
        let pool = (files.len() > 1 && bytes >= PARALLEL).then(pool).flatten();
        let parse = |&ReservedFile { file, .. }: &ReservedFile<'_>| {
            let header = Header::parse(file).map_err(|error| (error, 0))?;
            let room = Room::of(&header, file).map_err(|error| (error, pixels(&header)))?;
            Ok((header, room))
        };
        let Scratch { headers, coefficients: from } = scratch;
        headers.clear();
        match pool {
            Some(pool) => pool.install(|| files.par_iter().with_min_len(8).map(parse).collect_into_vec(headers)),
            None => headers.extend(files.iter().map(parse)),
        }

        let (mut totals, mut rgb_bytes) = (Room::default(), 0);
        let [mut most_pieces, mut most_blocks, mut most_pairs, mut most_groups] = [0; 4];
        let mut places = Vec::with_capacity(files.len());
        let mut decoded: Vec<Decoded> = Vec::new();
        let mut scan_bytes = 0;
        for (&ReservedFile { prefix, file }, parsed) in files.iter().zip(headers.iter_mut()) {
            rgb_bytes = usize::next_multiple_of(rgb_bytes + prefix, 16);
            let mut own = None;
            if let Ok((header, room)) = parsed {
                let take = |words| from.as_ref().map_or_else(|| device.pinned(words), |pool| pool.take(words));
                match totals.admit(header, room, take)? {
                    Ok(memory) => own = memory,
                    Err(error) => *parsed = Err((error, pixels(header))),
                }
            }
            let (header, room) = match parsed {
                Ok(parsed) => parsed,
                Err((error, pixels)) => {
                    places.push(Err(*error));
                    rgb_bytes += if keeps { *pixels } else { 0 };
                    continue;
                }
            };
            if let Some((memory, words)) = own {
                decoded.push(Decoded { memory, words, first_block: totals.blocks as usize });
                scan_bytes += file.len();
            }
            let [height, width] = header.upright();
            places.push(Ok(Place { number: totals.images, height, width, start: rgb_bytes }));
            most_pieces = most_pieces.max(room.pieces as u32);
            most_blocks = most_blocks.max(room.blocks);
            let across = header.width.div_ceil(PIXELS);
            match header.is_usual() {
                true => most_pairs = most_pairs.max((header.height / 2 + 1) * across),
                false => most_groups = most_groups.max(header.height * across),
            }
            rgb_bytes += pixels(header);
            // From here on, the room says where the parts of this file begin.
            (totals, *room) = (totals.plus(room), totals);
        }

        let lengths = totals.lengths();
        let mut end = 0;
        let [images, segments, huffman, quantization, pieces, data] = lengths.map(|length| {
            let start = usize::next_multiple_of(end, ALIGNED);
            end = start + length;
            start..end
        });
        let parts = Parts { images, segments, huffman, quantization, pieces, data };
        // With sizes in steps, the pool finds a block for nearly every batch.
        let mut words = device.pinned::<u32>(if totals.images == 0 { 0 } else { step(end) })?;
        let mut rest = &mut words[..];
        let mut at = 0;
        let mut cut = |range: &Range<usize>| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(range.end - at);
            let own = &mut own[range.start - at..];
            (rest, at) = (others, range.end);
            own
        };
        let mut images = cut(&parts.images);
        let mut segments = cut(&parts.segments);
        let mut huffman = cut(&parts.huffman);
        let mut quantization = cut(&parts.quantization);
        let mut pieces = cut(&parts.pieces);
        let mut data = cut(&parts.data);
        let mut coefficients = decoded.iter_mut();

        let mut starts = headers.iter().flatten().map(|(_, start)| *start).skip(1).collect::<Vec<_>>();
        starts.push(totals);
        let found = files.iter().zip(headers.iter()).zip(places.iter_mut());
        let found = found.filter_map(|((reserved, parsed), place)| Some((reserved.file, parsed.as_ref().ok()?, place)));
        let jobs = found.zip(&starts).map(|((file, (header, start), place), end)| {
            let [from, to] = [start.lengths(), end.lengths()];
            let own = |part: usize| to[part] - from[part];
            Job {
                file,
                header,
                start,
                place,
                image: split(&mut images, own(0)),
                segments: split(&mut segments, own(1)),
                huffman: split(&mut huffman, own(2)),
                quantization: split(&mut quantization, own(3)),
                pieces: split(&mut pieces, own(4)),
                data: split(&mut data, own(5)),
                coefficients: match header.many {
                    true => coefficients.next().map_or(&mut [], |own| &mut own.memory[..own.words]),
                    false => &mut [],
                },
            }
        });
        let pool = pool.or_else(|| (totals.images > 1 && scan_bytes * SCANS >= PARALLEL).then(self::pool).flatten());
        match pool {
            Some(pool) => {
                let jobs: Vec<_> = jobs.collect();
                pool.install(|| jobs.into_par_iter().for_each(Job::run));
            }
            None => jobs.for_each(Job::run),
        }
        Ok((
            Self { words, parts, totals, rgb_bytes, most_pieces, most_blocks, most_pairs, most_groups, decoded },
            places,
        ))
    }

    /// The words of all parts together that go to the device as they are.
    pub(crate) fn used(&self) -> usize {
        self.parts.data.start + self.totals.words
    }
}

/// The threads that read files, which all decoders share. They are not those of rayon's own pool: a
/// program whose threads there all wait for a batch would wait for ever. `None` if there is one
/// processor, or no thread can be started.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let start = || ThreadPoolBuilder::new().thread_name(|i| format!("jpeg {i}")).build().ok();
    POOL.get_or_init(start).as_ref().filter(|pool| pool.current_num_threads() > 1)
}

/// The next size of memory that is at least `len`: four steps for each power of two.
pub(crate) fn step(len: usize) -> usize {
    let len = len.max(4096);
    len.next_multiple_of((len / 4 + 1).next_power_of_two() / 2)
}

/// Takes the first `len` words off a slice.
fn split<'a>(rest: &mut &'a mut [u32], len: usize) -> &'a mut [u32] {
    let (own, others) = std::mem::take(rest).split_at_mut(len);
    *rest = others;
    own
}

/// A file, and its parts of the plan.
struct Job<'a> {
    file: &'a [u8],
    header: &'a Header,
    start: &'a Room,
    place: &'a mut Result<Place, JpegError>,
    image: &'a mut [u32],
    segments: &'a mut [u32],
    huffman: &'a mut [u32],
    quantization: &'a mut [u32],
    pieces: &'a mut [u32],
    data: &'a mut [u32],
    coefficients: &'a mut [u32],
}

impl Job<'_> {
    /// Fills the parts. A file that turns out to be broken leaves a record of an image without
    /// pixels.
    fn run(mut self) {
        // No kernel finds anything to do in such a record.
        self.image.fill(0);
        let Ok(place) = *self.place else { return };
        let read = match self.header.many {
            true => self.decode_scans().map(|()| 0),
            false => self.copy_data(),
        };
        match read {
            Ok(pieces) => self.record(place, pieces),
            Err(error) => *self.place = Err(error),
        }
    }

    /// Decodes the scans to coefficients.
    fn decode_scans(&mut self) -> Result<(), JpegError> {
        let coefficients = bytemuck::cast_slice_mut(self.coefficients);
        let mut nonzero = vec![0; coefficients.len() / 64];
        let (file, header) = (self.file, self.header);
        let steps = scans::decode(file, header, &ZIGZAG, coefficients, &mut nonzero, &mut Segment::default())?;
        let same = |(component, steps): (&Component, &[u16; 64])| header.quantization[component.quantization] == *steps;
        match header.components.iter().zip(&steps).all(same) {
            true => Ok(()),
            false => Err(JpegError::Unsupported(Unsupported::LateTables)),
        }
    }

    /// Copies the coded data without stuffing, cut at the restart markers. Returns the number of
    /// pieces.
    fn copy_data(&mut self) -> Result<usize, JpegError> {
        let (file, header) = (self.file, self.header);
        let blocks = header.units().iter().product::<u32>() * header.blocks_of_unit();
        let of_segment = if header.restart == 0 { blocks } else { header.restart * header.blocks_of_unit() };
        let count = header.segments();
        let (mut at, mut words, mut pieces, mut total) = (header.scan, 0, 0, 0);
        for number in 0..count {
            let to = &mut self.data[words..];
            let (end, bytes) = unstuff(file, at, bytemuck::cast_slice_mut(to));
            let length = bytes.div_ceil(4);
            bytemuck::cast_slice_mut::<u32, u8>(to)[bytes..4 * (length + MARGIN)].fill(0);
            if cfg!(target_endian = "big") {
                to[..length].iter_mut().for_each(|word| *word = word.swap_bytes());
            }
            let bits = u32::try_from(bytes as u64 * 8);
            let bits = bits.map_err(|_| JpegError::Broken { at, what: "a segment of more than 512 MiB" })?;
            at = end;
            let marker = *file.get(at + 1).ok_or(JpegError::Truncated)?;
            if number + 1 < count {
                if marker != 0xD0 + (number % 8) as u8 {
                    if !(0xD0..=0xD7).contains(&marker) {
                        check_end(file, at)?;
                    }
                    return Err(JpegError::Broken { at, what: "a restart marker is missing" });
                }
                at += 2;
            }
            let first_block = number * of_segment;
            let segment = self.start.segments as u32 + number;
            let record = [
                (self.start.words + words) as u32,
                bits,
                (self.start.pieces + pieces) as u32,
                first_block,
                of_segment.min(blocks - first_block),
            ];
            let place = number as usize * record.len();
            self.segments[place..place + record.len()].copy_from_slice(&record);
            // A segment without data has one piece, which reports that.
            let own = bits.div_ceil(PIECE_BITS).max(1) as usize;
            self.pieces[pieces..pieces + own].fill(segment);
            pieces += own;
            words += length + MARGIN;
            total += u64::from(bits);
        }
        check_end(file, at)?;
        // As for the whole file, now that the end of the data is known.
        if u64::from(blocks) * 2 > total { Err(JpegError::Truncated) } else { Ok(pieces) }
    }

    /// Writes the record of the image, and its tables.
    fn record(self, place: Place, pieces: usize) {
        let Self { header, start, image, huffman, quantization, .. } = self;
        let color = match header.color {
            Color::Gray => 0,
            Color::YCbCr => 1,
            // No device gets those of four components.
            Color::Rgb | Color::Cmyk | Color::Ycck => 2,
        };
        let [across, down] = header.units();
        let kinds = header.components.iter().zip(0u32..);
        let kinds = kinds.flat_map(|(c, i)| std::iter::repeat_n(i, (c.blocks[0] * c.blocks[1]) as usize));
        let kinds = kinds.zip(0..).fold(0, |word, (kind, place)| word | kind << (2 * place));
        let ([rgb_low, rgb_high], count) = (halves(place.start as u64), header.components.len() as u32);
        image[..16].copy_from_slice(&[
            header.height,
            header.width,
            header.orientation,
            color,
            count,
            across,
            down,
            header.blocks_of_unit(),
            kinds,
            start.blocks,
            start.pieces as u32,
            pieces as u32,
            start.tables as u32,
            start.quantizations as u32,
            rgb_low,
            rgb_high,
        ]);

        let tables = distinct_tables(header);
        for ([class, number], words) in tables.iter().zip(huffman.chunks_exact_mut(TABLE_WORDS as usize)) {
            if let Some(table) = &header.huffman[*class][*number] {
                table.pack(words);
            }
        }
        let [factor_across, factor_down] = header.factors();
        let (mut first_block, mut plane) = (0, start.plane_bytes);
        let records = image[16..].chunks_exact_mut(8).zip(quantization.chunks_exact_mut(BLOCK_WORDS));
        for (component, (record, table)) in header.components.iter().zip(records) {
            let packed = |class: usize| tables.iter().position(|t| *t == [class, component.tables[class]]).unwrap_or(0);
            let [wide, high] = component.blocks;
            let [plane_low, plane_high] = halves(plane);
            record.copy_from_slice(&[
                wide,
                high,
                first_block,
                packed(0) as u32 | (packed(1) as u32) << 16,
                plane_low,
                plane_high,
                factor_across / wide,
                factor_down / high,
            ]);
            first_block += wide * high;
            plane += 64 * u64::from(across * down) * u64::from(wide * high);
            table.fill(0);
            for (value, place) in header.quantization[component.quantization].iter().zip(ZIGZAG) {
                table[usize::from(place) / 2] |= u32::from(*value) << (16 * (place % 2));
            }
        }
    }
}

/// The lower and the upper half of a number.
fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> u32::BITS) as u32]
}

/// Copies the bytes from `at` up to the next marker, without stuffing. Returns where that marker
/// is, or where the file ends, and the number of bytes.
fn unstuff(file: &[u8], mut at: usize, to: &mut [u8]) -> (usize, usize) {
    let mut filled = 0;
    loop {
        let rest = &file[at..];
        let run = memchr::memchr(0xFF, rest).unwrap_or(rest.len());
        to[filled..filled + run].copy_from_slice(&rest[..run]);
        filled += run;
        at += run;
        match file.get(at + 1) {
            Some(0) => {
                to[filled] = 0xFF;
                filled += 1;
                at += 2;
            }
            Some(0xFF) => at += 1, // a fill byte
            _ => return (at, filled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one gray block without coefficients, with the marker of its frame and the bands of
    /// its scans.
    fn gray(frame: u8, scans: &[[u8; 2]]) -> Vec<u8> {
        let mut file = vec![0xFF, 0xD8];
        let mut add = |marker: u8, body: &[u8], data: &[u8]| {
            file.extend([0xFF, marker, 0, body.len() as u8 + 2]);
            file.extend([body, data].concat());
        };
        add(0xDB, &[&[0][..], &[64; 64]].concat(), &[]);
        add(frame, &[8, 0, 8, 0, 8, 1, 1, 0x11, 0], &[]);
        for class in [0x00, 0x10] {
            add(0xC4, &[&[class, 1][..], &[0; 15], &[0]].concat(), &[]);
        }
        for &[first, last] in scans {
            add(0xDA, &[1, 1, 0, first, last, 0], &[0x3F]);
        }
        file.extend([0xFF, 0xD9]);
        file
    }

    /// The tables of a batch have one record for each image, of whichever kind, and none for a file
    /// that has none. A record more would be one of an earlier batch.
    #[test]
    fn a_batch_has_a_record_for_each_image() {
        let (one, many) = (gray(0xC0, &[[0, 63]]), gray(0xC2, &[[0, 0], [1, 63]]));
        let files = [one.clone(), many.clone(), vec![0; 10], many, one];
        let files: Vec<_> = files.iter().map(|file| ReservedFile { prefix: 0, file }).collect();
        let (plan, places) = Plan::read(Device::cpu().unwrap(), &files, false, &mut Scratch::default()).unwrap();
        let numbers: Vec<_> = places.iter().map(|place| place.map(|place| place.number)).collect();
        assert_eq!(numbers, [Ok(0), Ok(1), Err(JpegError::NotJpeg), Ok(2), Ok(3)]);
        assert_eq!((plan.totals.images, plan.parts.images.len()), (4, 4 * IMAGE_WORDS as usize));
    }

    /// Metadata before the data takes no room, and a block takes two bits at least.
    #[test]
    fn room_is_for_the_data() {
        let mut file = gray(0xC0, &[[0, 63]]);
        let comment = [&[0xFF, 0xFE, 0xF0, 0][..], &[0; 0xF000 - 2]].concat();
        file.splice(2..2, comment);
        let room = Room::of(&Header::parse(&file).unwrap(), &file).unwrap();
        assert_eq!((room.words, room.pieces), (1 + 1 + MARGIN, 1 + 1), "of 3 bytes of data");
        // Four blocks in one byte are as many as fit, and five are too many.
        for (width, read) in [(32, Ok(())), (40, Err(JpegError::Truncated))] {
            let mut file = gray(0xC0, &[[0, 63]]);
            let frame = file.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
            file[frame + 8] = width;
            let files = [ReservedFile { prefix: 0, file: &file }];
            let (_, places) = Plan::read(Device::cpu().unwrap(), &files, false, &mut Scratch::default()).unwrap();
            assert_eq!(places[0].map(drop), read, "{width}");
        }
    }

    /// Of three segments, the last one follows a marker that is not its own.
    #[test]
    fn restart_markers_come_in_turn() {
        let read = |marker: u8| {
            let mut file = gray(0xC0, &[[0, 63]]);
            let at = |file: &[u8], marker: u8| file.windows(2).position(|pair| pair == [0xFF, marker]).unwrap();
            let frame = at(&file, 0xC0);
            file[frame + 8] = 24;
            let (scan, end) = (at(&file, 0xDA), file.len() - 2);
            file.splice(end..end, [0xFF, 0xD0, 0x3F, 0xFF, marker, 0x3F]);
            file.splice(scan..scan, [0xFF, 0xDD, 0, 4, 0, 1]);
            let files = [ReservedFile { prefix: 0, file: &file }];
            let (_, places) = Plan::read(Device::cpu().unwrap(), &files, false, &mut Scratch::default()).unwrap();
            places[0].map(drop)
        };
        assert_eq!(read(0xD1), Ok(()));
        for (marker, why) in [
            (0xD0, "a restart marker is missing"),
            (0xD7, "a restart marker is missing"),
            (0xD8, "a second image starts before the first one ends"),
            (0xD9, "a restart marker is missing"),
            (0xDA, "there is a scan after the last one"),
        ] {
            let refused = read(marker);
            assert!(matches!(refused, Err(JpegError::Broken { what, .. }) if what == why), "{marker:x}: {refused:?}");
        }
    }

    #[test]
    fn places_may_have_more_than_32_bits() {
        assert_eq!(halves(0x1234_5678_9ABC_DEF0), [0x9ABC_DEF0, 0x1234_5678]);
    }

    #[test]
    fn sizes_of_memory_come_in_steps() {
        assert_eq!([0, 1, 4096].map(step), [4096; 3]);
        for len in [4097usize, 5000, 65_536, 65_537, 1_000_003] {
            assert!((len..len + len / 4 + 1).contains(&step(len)), "{len}: {}", step(len));
            assert_eq!(step(step(len)), step(len));
        }
        let mut sizes: Vec<_> = (1 << 20..1 << 21).step_by(999).map(step).collect();
        sizes.dedup();
        assert!(sizes.len() <= 5, "{sizes:?}");
    }
}
