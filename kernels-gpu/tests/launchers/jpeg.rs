//! The family `jpeg`.

use thalweg::{PerThread, Result};
use thalweg_kernels::jpeg::{
    self, Coded, IMAGE_WORDS, Images, PIECE_BITS, PIXELS, Pieces, SEGMENT_WORDS, TABLE_WORDS, admit,
};

use super::Launcher;
use super::trial::{Piece, Trial};

pub(crate) const JPEG: &[Launcher] = &[
    Launcher { name: "admit", cases: 180, run: |t| admitted(t, |_, _, _| Ok(())) },
    Launcher { name: "coefficients", cases: 150, run: |t| admitted(t, coefficients) },
    Launcher { name: "colors", cases: 200, run: |t| admitted(t, |t, batch, images| pixels(t, batch, images, false)) },
    Launcher {
        name: "colors_420",
        cases: 200,
        run: |t| admitted(t, |t, batch, images| pixels(t, batch, images, true)),
    },
    Launcher { name: "find_sync_points", cases: 180, run: |t| admitted(t, find_sync_points) },
    Launcher { name: "inverse_dct", cases: 300, run: |t| admitted(t, inverse_dct) },
    Launcher { name: "offsets", cases: 180, run: |t| admitted(t, offsets) },
    Launcher { name: "repair_sync_points", cases: 180, run: |t| admitted(t, repair_sync_points) },
];

/// A batch of images, whose tables may say anything, and which may claim the same pieces, planes
/// and pixels.
#[derive(Default)]
struct Batch {
    images: Vec<u32>,
    segments: Vec<u32>,
    pieces: Vec<u32>,
    words: u32,
    blocks: u32,
    plane_bytes: u32,
    rgb_bytes: u32,
    most_pieces: u32,
    most_blocks: u32,
    most_groups: u32,
    usual: bool,
}

impl Batch {
    fn draw(t: &Trial<'_, '_>, usual: bool) -> Self {
        let mut batch = Self { usual, ..Self::default() };
        // The kernel that admits images takes 256 at a time.
        let count = if t.once_in(12) { t.within(250, 600) } else { t.within(1, 4) };
        for _ in 0..count {
            batch.image(t, if count > 4 { 1 } else { 40 });
        }
        batch.words = batch.words.max(1);
        batch
    }

    /// Adds an image. Each of its parts begins where the images before it end, or somewhere before.
    fn image(&mut self, t: &Trial<'_, '_>, most: u32) {
        let back = |end: u32| if t.once_in(5) { t.below(end + 1) / 64 * 64 } else { end };
        let (height, width) = (t.within(1, most), t.within(1, most));
        let (gray, luma) = if self.usual { (false, 2) } else { (t.once_in(4), t.within(1, 2)) };
        let luma = if gray { 1 } else { luma };
        let (across, down) = (width.div_ceil(8 * luma), height.div_ceil(8 * luma));
        let of_unit = if gray { 1 } else { luma * luma + 2 };
        let own = across * down * of_unit;
        let kinds = (0..of_unit).map(|i| i.saturating_sub(luma * luma - 1).min(2) << (2 * i)).sum();

        let first = back(self.pieces.len() as u32).min(self.pieces.len() as u32);
        let mut pieces = 0;
        let segments = t.within(1, 3);
        for number in 0..segments {
            let bits = t.below(if most > 1 { 6000 } else { 60 });
            let of_segment = own / segments;
            self.segments.extend([self.words, bits, first + pieces, number * of_segment, of_segment]);
            let count = bits.div_ceil(PIECE_BITS).max(1);
            let segment = self.segments.len() as u32 / SEGMENT_WORDS - 1;
            for piece in first + pieces..first + pieces + count {
                match self.pieces.get_mut(piece as usize) {
                    Some(known) => *known = segment,
                    None => self.pieces.push(segment),
                }
            }
            pieces += count;
            self.words += bits.div_ceil(32) + 2;
        }
        let (orientation, color) = if self.usual { (1, 1) } else { (t.pick(&[1, 1, t.within(1, 8)]), t.within(1, 2)) };
        let (color, components) = if gray { (0, 1) } else { (color, 3) };
        let (tables, rgb) = (t.below(2), back(self.rgb_bytes));
        self.images.extend([height, width, orientation, color, components, across, down, of_unit, kinds]);
        self.images.extend([back(self.blocks), first, pieces, tables, t.below(2), rgb, 0]);
        let mut plane = back(self.plane_bytes);
        for (side, place) in [(luma, 0), (1, luma * luma), (1, luma * luma + 1)] {
            let classes = t.below(3) << 16 | t.below(3);
            self.images.extend([side, side, place, classes, plane, 0, luma / side, luma / side]);
            plane += 64 * across * down * side * side;
        }
        self.blocks += own;
        self.plane_bytes = self.plane_bytes.max(plane);
        self.rgb_bytes = self.rgb_bytes.max((rgb + 3 * height * width).next_multiple_of(16));
        self.most_pieces = self.most_pieces.max(pieces);
        self.most_blocks = self.most_blocks.max(own);
        let rows = if self.usual { height / 2 + 1 } else { height };
        self.most_groups = self.most_groups.max(rows.max(width) * width.max(height).div_ceil(PIXELS));
    }
}

/// Draws a batch, admits its images, and runs the rest of the case with those.
fn admitted<'l>(
    t: &Trial<'_, 'l>,
    rest: impl FnOnce(&Trial<'_, 'l>, &Batch, Images<'_, PerThread<'l>>) -> Result<()>,
) -> Result<()> {
    let batch = Batch::draw(t, t.flip());
    assert_eq!(batch.images.len() % IMAGE_WORDS as usize, 0);
    let images = t.table(batch.images.clone(), IMAGE_WORDS as usize)?;
    let mut room = t.room(batch.images.len())?;
    let images = admit(t, &images, &mut room)?;
    rest(t, &batch, images)
}

/// The coded data of a batch.
struct Tables<'l> {
    segments: Piece<'l, u32>,
    pieces: Piece<'l, u32>,
    huffman: Piece<'l, u32>,
    data: Piece<'l, u32>,
    most_pieces: u32,
}

impl<'l> Tables<'l> {
    fn draw(t: &Trial<'_, 'l>, batch: &Batch) -> Result<Self> {
        // Eight codes of three bits each, so most data has a meaning.
        let mut huffman = Vec::new();
        for _ in 0..4 {
            let symbols = [0; 8].map(|_| t.pick(&[0x00, 0x01, 0x02, 0x11, 0x12, 0x21, 0x03, 0xf0, 0x05]));
            let of = |at: u32| 3 << 8 | symbols[at as usize / 64];
            huffman.extend((0..256).map(|word| of(2 * word) | of(2 * word + 1) << 16));
            huffman.resize(huffman.len().next_multiple_of(TABLE_WORDS as usize), 0);
        }
        Ok(Self {
            segments: t.table(batch.segments.clone(), SEGMENT_WORDS as usize)?,
            pieces: t.table(batch.pieces.clone(), 1)?,
            huffman: t.table(huffman, TABLE_WORDS as usize)?,
            data: t.filled(batch.words as usize, || t.next() as u32)?,
            most_pieces: if t.once_in(8) { t.below(batch.pieces.len() as u32 + 2) } else { batch.most_pieces },
        })
    }

    fn coded<'a>(&'a self, images: Images<'a, PerThread<'l>>) -> Coded<'a, PerThread<'l>> {
        let Self { segments, pieces, huffman, data, most_pieces } = self;
        Coded { most_pieces: *most_pieces, images, segments, pieces, huffman, data }
    }
}

fn find_sync_points<'l>(t: &Trial<'_, 'l>, batch: &Batch, images: Images<'_, PerThread<'l>>) -> Result<()> {
    let (tables, n) = (Tables::draw(t, batch)?, batch.pieces.len());
    jpeg::find_sync_points(t, &tables.coded(images), &mut t.room(2 * n)?, &mut t.room(4 * n)?)
}

fn repair_sync_points<'l>(t: &Trial<'_, 'l>, batch: &Batch, images: Images<'_, PerThread<'l>>) -> Result<()> {
    let (tables, n) = (Tables::draw(t, batch)?, batch.pieces.len());
    jpeg::repair_sync_points(t, &tables.coded(images), &mut t.words(2 * n)?, &mut t.words(4 * n)?)
}

fn offsets<'l>(t: &Trial<'_, 'l>, batch: &Batch, images: Images<'_, PerThread<'l>>) -> Result<()> {
    let (tables, n) = (Tables::draw(t, batch)?, batch.pieces.len());
    jpeg::offsets(t, &tables.coded(images), &t.words(4 * n)?, &mut t.room(4 * n)?)
}

/// With what the other kernels say of the pieces, and with any numbers.
fn coefficients<'l>(t: &Trial<'_, 'l>, batch: &Batch, images: Images<'_, PerThread<'l>>) -> Result<()> {
    let (tables, n) = (Tables::draw(t, batch)?, batch.pieces.len());
    let coded = tables.coded(images);
    let (mut states, mut counts, mut places) = (t.words(2 * n)?, t.words(4 * n)?, t.words(4 * n)?);
    if t.flip() {
        jpeg::find_sync_points(t, &coded, &mut states, &mut counts)?;
        jpeg::repair_sync_points(t, &coded, &mut states, &mut counts)?;
    }
    if t.flip() {
        jpeg::offsets(t, &coded, &counts, &mut places)?;
    }
    let known = Pieces { states: &states, counts: &counts, places: &places };
    let mut status = t.filled(batch.images.len() / IMAGE_WORDS as usize, || 0)?;
    jpeg::coefficients(t, &coded, &known, &mut t.room(64 * batch.blocks as usize)?, &mut status)
}

fn status<'l>(t: &Trial<'_, 'l>, batch: &Batch) -> Result<Piece<'l, u32>> {
    t.filled(batch.images.len() / IMAGE_WORDS as usize, || u32::from(t.once_in(6)))
}

fn inverse_dct<'l>(t: &Trial<'_, 'l>, batch: &Batch, images: Images<'_, PerThread<'l>>) -> Result<()> {
    let most = if t.once_in(8) { t.below(batch.blocks + 2) } else { batch.most_blocks };
    let (status, coefficients) = (status(t, batch)?, t.numbers(64 * batch.blocks as usize)?);
    let (quantization, mut planes) = (t.words(32 * 4)?, t.room(batch.plane_bytes as usize)?);
    jpeg::inverse_dct(t, images, &status, most, &quantization, &coefficients, &mut planes)
}

fn pixels<'l>(t: &Trial<'_, 'l>, batch: &Batch, images: Images<'_, PerThread<'l>>, usual: bool) -> Result<()> {
    let most = if t.once_in(8) { t.below(2 * batch.most_groups) } else { batch.most_groups };
    let (status, planes) = (status(t, batch)?, t.bytes(batch.plane_bytes as usize)?);
    let mut rgb = t.room(batch.rgb_bytes as usize)?;
    if usual {
        jpeg::colors_420(t, images, &status, most, &planes, &mut rgb)
    } else {
        jpeg::colors(t, images, &status, most, &planes, &mut rgb)
    }
}

/// The launchers' cases only show that no two admitted images overlap.
#[test]
fn admit_leaves_out_the_images_that_overlap_and_no_others() {
    let words = IMAGE_WORDS as usize;
    // Gray images of 8 x 8 pixels, one piece each.
    let record = |i: u32| {
        let mut record = vec![0; words];
        record[..16].copy_from_slice(&[8, 8, 1, 0, 1, 1, 1, 1, 0, i, i, 1, 0, 0, 192 * i, 0]);
        record[16..24].copy_from_slice(&[1, 1, 0, 0, 64 * i, 0, 1, 1]);
        record
    };
    let admitted = |table: &[u32]| -> Vec<u32> {
        let run = |s: &thalweg::Stream<PerThread<'_>>| {
            let mut admitted = s.alloc::<u32>(table.len())?;
            admit(s, &s.upload_blocking(table)?, &mut admitted)?;
            s.read_blocking(&admitted)
        };
        thalweg::Device::checked_cpu().unwrap().per_thread(|s| run(s)).unwrap().unwrap()
    };
    for count in [1, 31, 33, 256, 257, 700] {
        let table: Vec<u32> = (0..count).flat_map(record).collect();
        assert!(admitted(&table) == table, "{count} proper images");
        // Piece, pixels and plane of the last image become those of any before it.
        for (word, before) in [(10, 0), (14, count / 2), (20, count.saturating_sub(2))] {
            let last = (count as usize - 1) * words;
            let mut wrong = table.clone();
            wrong[last + word] = record(before)[word];
            let mut expected = wrong.clone();
            if count > 1 {
                expected[last..].fill(0);
            }
            assert!(admitted(&wrong) == expected, "{count} images, word {word} of the last one");
        }
    }
}

/// A query about the launch of `admit` launches nothing, so it admits no images.
#[test]
fn a_query_admits_no_images() {
    let device = thalweg::Device::checked_cpu().unwrap();
    device
        .per_thread(|s| {
            // Two images at one place, which `admit` would not let through.
            let mut record = vec![0; IMAGE_WORDS as usize];
            record[..16].copy_from_slice(&[8, 8, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
            record[16..24].copy_from_slice(&[1, 1, 0, 0, 0, 0, 1, 1]);
            let table = s.upload_blocking(&record.repeat(2)).unwrap();
            let mut admitted = s.upload_blocking(&record.repeat(2)).unwrap();
            let (status, planes) = (s.alloc_zeroed::<u32>(2).unwrap(), s.alloc_zeroed::<u8>(64).unwrap());
            let mut rgb = s.alloc_zeroed::<u8>(192).unwrap();
            let mut images = None;
            s.occupancy(|query| {
                images = Some(admit(query, &table, &mut admitted)?);
                Ok(())
            })
            .unwrap();
            let launched = jpeg::colors(s, images.unwrap(), &status, 64, &planes, &mut rgb);
            assert!(matches!(launched, Err(thalweg::Error::Launch(_))), "{launched:?}");
            s.synchronize().unwrap();
        })
        .unwrap();
}
