//! The decoder: a batch of files to images on the device.

use std::ops::Range;

use thalweg::{
    Device, DeviceBuffer, DeviceSlice, Event, LiveBrand, On, PinnedBuffer, PinnedPool, Resource, Result, Stream,
};
use thalweg_kernels::jpeg::{self, Coded, Pieces};

use crate::error::{JpegError, Unsupported};
use crate::plan::{ALIGNED, Decoded, File, Place, Plan, Scratch, step};

/// The buffers of pixels that a decoder keeps for later batches.
const SPARE: usize = 4;

/// What became of each file of a batch.
///
/// On a stream it has the form [`ReportOn<S>`](ReportOn).
#[derive(Debug, Resource)]
pub struct Report {
    /// What the kernels found wrong, for each image.
    status: PinnedBuffer<u32>,
    #[resource(plain)]
    files: Vec<Result<Place, JpegError>>,
}

/// Decoded images on the device, one after another. [`Decoder::decode`] makes it.
///
/// On a stream it has the form [`ImagesOn<S>`](ImagesOn). The pixels of a file that failed are
/// arbitrary, and are there only if its header could be read.
#[derive(Debug, Resource)]
#[resource(unzip)]
pub struct Images {
    /// The pixels: upright interleaved RGB, [H, W, 3] for each image. Each image begins at a multiple
    /// of 16 bytes, where [`Images::image`] says. The bytes between two images and after the last one
    /// are arbitrary.
    pub rgb: DeviceBuffer<u8>,
    /// What became of each file.
    pub report: Report,
}

/// An image of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The number of rows.
    pub height: u32,
    /// The number of columns.
    pub width: u32,
    /// Where its bytes lie in [`Images::rgb`].
    pub bytes: Range<usize>,
}

impl Report {
    /// Returns the number of files of the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Says whether the batch has no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns where the image of file `index` lies, or why there is none.
    ///
    /// # Errors
    /// The file was not decoded. The other files of the batch are not affected.
    ///
    /// # Panics
    /// There is no such file.
    pub fn image(&self, index: usize) -> Result<Image, JpegError> {
        let Place { number, height, width, start } = self.files[index]?;
        match self.status[number] {
            0 => Ok(Image { height, width, bytes: start..start + 3 * height as usize * width as usize }),
            // Where pieces are out of step, nothing else that they say counts.
            status if status & 4 != 0 => Err(JpegError::Unsupported(Unsupported::Steps)),
            status if status & 1 != 0 => Err(JpegError::BrokenData),
            _ => Err(JpegError::Truncated),
        }
    }
}

impl Images {
    /// Returns the number of files of the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.report.len()
    }

    /// Says whether the batch has no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.report.is_empty()
    }

    /// Returns where the image of file `index` lies, as [`Report::image`] does.
    ///
    /// # Errors
    /// The file was not decoded. The other files of the batch are not affected.
    ///
    /// # Panics
    /// There is no such file.
    pub fn image(&self, index: usize) -> Result<Image, JpegError> {
        self.report.image(index)
    }
}

/// A batch of files, read on the host: their headers, and their coded data in page-locked memory as
/// the kernels take it. [`Decoder::read`] makes it with memory that the decoder keeps, and
/// [`Batch::new`] on any thread without a decoder.
#[derive(Debug)]
pub struct Batch {
    plan: Plan,
    files: Vec<Result<Place, JpegError>>,
}

impl Batch {
    /// Reads the headers of files, and copies their coded data into page-locked memory of `device`,
    /// without the stuffing. From 1 MiB on, several threads do it.
    ///
    /// A file that cannot be decoded does not affect the others: [`Report::image`] says why.
    ///
    /// # Errors
    /// There is no page-locked memory, or the device failed.
    pub fn new(device: Device, files: &[&[u8]]) -> Result<Self> {
        let files: Vec<File<'_>> = files.iter().map(|file| (0, *file)).collect();
        Self::read(device, &files, false, &mut Scratch::default())
    }

    /// Like [`new`](Self::new), but leaves bytes free before the pixels of each file, for images that
    /// come from elsewhere. Each file has the number of these bytes, which is rounded up to a multiple
    /// of 16, before its content.
    ///
    /// A file of which [`size`](crate::size) knows the size keeps the room of its pixels even if it is not
    /// decoded, so the places of the images after it do not depend on it. [`decode`](Decoder::decode) would
    /// allocate that room, however large the file claims to be; this is for
    /// [`decode_into`](Decoder::decode_into), where the caller has it.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_gaps(device: Device, files: &[(usize, &[u8])]) -> Result<Self> {
        Self::read(device, files, true, &mut Scratch::default())
    }

    fn read(device: Device, files: &[File<'_>], keeps: bool, scratch: &mut Scratch) -> Result<Self> {
        let (plan, files) = Plan::read(device, files, keeps, scratch)?;
        Ok(Self { plan, files })
    }

    /// Returns the bytes that the pixels take, from the first image to the end of the last one.
    #[must_use]
    pub fn rgb_bytes(&self) -> usize {
        self.plan.rgb_bytes
    }
}

/// Decodes batches of JPEG files.
///
/// It decodes baseline, extended sequential and progressive files of 8 bits with Huffman coding: gray, or
/// three components with sampling factors 1 to 4, with any restart interval and any tables, up to 16384
/// pixels a side. Of a progressive file the host decodes the scans to coefficients, and the device makes
/// pixels of them; one that lacks scans gets what the others say, without the smoothing of libjpeg. The pixels equal those of libjpeg-turbo with its default options, and the EXIF
/// orientation is applied. Other files are [`JpegError::Unsupported`].
///
/// A decoder keeps its memory for later batches: page-locked memory in the pool of the device, and
/// device memory itself. Pixels are kept if [`recycle`](Decoder::recycle) gets them back. So once
/// batches are no larger than those before them, no memory is allocated for them.
///
/// ```
/// use thalweg::{Device, Event, stream_tags};
/// use thalweg_jpeg::{Decoder, JpegError};
///
/// stream_tags!(Decode);
/// # fn main() -> Result<(), thalweg::Error> {
/// let device = Device::cpu()?;
/// let decode = device.stream::<Decode>()?;
/// let mut decoder = Decoder::new(device);
/// let batch = decoder.read(&[b"not a photograph"])?;
/// let images = decoder.decode(&decode, batch)?;
/// // The stream works; here the host waits. Another stream would `wait` for the event instead.
/// let images = images.synchronize()?;
/// assert_eq!(images.image(0), Err(JpegError::NotJpeg));
/// decoder.recycle(Event::ready(images));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Decoder {
    device: Device,
    scratch: Scratch,
    /// The device memory that only the kernels use.
    work: Option<Event<DeviceBuffer<u32>>>,
    spare: Vec<Event<DeviceBuffer<u8>>>,
}

impl Decoder {
    /// Makes a decoder, which has no memory yet.
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self { device, scratch: Scratch::default(), work: None, spare: Vec::new() }
    }

    /// Takes the page-locked memory for coefficients of progressive files from a pool, instead of the device's own
    /// one: 128 bytes for each block of 8 x 8, which is 3 bytes a pixel where chroma is halved in both directions. A
    /// file for which the pool has none is [`JpegError::NoMemory`], and the others of its batch are decoded.
    #[must_use]
    pub fn coefficients_from(mut self, pool: PinnedPool) -> Self {
        self.scratch.coefficients = Some(pool);
        self
    }

    /// Reads files as [`Batch::new`] does, with memory of earlier batches.
    ///
    /// # Errors
    /// The errors of [`Batch::new`].
    pub fn read(&mut self, files: &[&[u8]]) -> Result<Batch> {
        let files: Vec<File<'_>> = files.iter().map(|file| (0, *file)).collect();
        Batch::read(self.device, &files, false, &mut self.scratch)
    }

    /// Reads files as [`Batch::with_gaps`] does, with memory of earlier batches.
    ///
    /// # Errors
    /// The errors of [`Batch::new`].
    pub fn read_with_gaps(&mut self, files: &[(usize, &[u8])]) -> Result<Batch> {
        Batch::read(self.device, files, true, &mut self.scratch)
    }

    /// Enqueues the upload of a batch and the kernels that decode it. Returns at once.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn decode<S: LiveBrand>(&mut self, stream: &Stream<S>, batch: Batch) -> Result<Event<Images>> {
        let bytes = batch.rgb_bytes();
        let found = self.spare.iter().position(|event| event.len() >= bytes);
        let mut rgb = match found.map(|i| self.spare.remove(i)) {
            Some(event) => stream.wait(event).map_err(|r| r.error)?,
            None => stream.alloc(if bytes == 0 { 0 } else { step(bytes) })?,
        };
        let report = self.enqueue(stream, batch, &mut rgb)?;
        Ok(stream.record(ImagesOn { rgb, report })?)
    }

    /// Like [`decode`](Self::decode), but writes the pixels to `rgb`, where [`Image::bytes`] says. If
    /// `rgb` is too short for an image, that image is not written.
    ///
    /// # Errors
    /// The errors of [`decode`](Self::decode), or `rgb` does not begin at a multiple of 4 bytes.
    pub fn decode_into<S: LiveBrand>(
        &mut self,
        stream: &Stream<S>,
        batch: Batch,
        rgb: &mut DeviceSlice<S, u8>,
    ) -> Result<Event<Report>> {
        let report = self.enqueue(stream, batch, rgb)?;
        Ok(stream.record(report)?)
    }

    /// Takes images back. Their device memory serves a later batch once the event is complete.
    pub fn recycle(&mut self, images: Event<Images>) {
        let ImagesEvents { rgb, .. } = images.unzip();
        if rgb.device() != self.device || rgb.is_empty() {
            return;
        }
        self.spare.push(rgb);
        if self.spare.len() > SPARE {
            let smallest = (0..self.spare.len()).min_by_key(|&i| self.spare[i].len());
            smallest.map(|i| self.spare.remove(i));
        }
    }

    fn enqueue<S: LiveBrand>(
        &mut self,
        stream: &Stream<S>,
        batch: Batch,
        rgb: &mut DeviceSlice<S, u8>,
    ) -> Result<ReportOn<S>> {
        let Batch { plan, files } = batch;
        let count = plan.totals.images;
        let mut found = stream.bind(stream.device().pinned::<u32>(count)?)?;
        if count > 0 {
            let lengths = Lengths::of(&plan);
            let mut work = self.workspace(stream, lengths.total())?;
            launch(stream, plan, &lengths, &mut work, rgb, &mut found)?;
            self.work = Some(stream.record(work)?);
        }
        Ok(ReportOn { status: found, files })
    }

    /// Returns memory of at least `len` words.
    fn workspace<S: LiveBrand>(&mut self, stream: &Stream<S>, len: usize) -> Result<On<S, DeviceBuffer<u32>>> {
        match self.work.take().filter(|work| work.len() >= len) {
            Some(work) => Ok(stream.wait(work).map_err(|r| r.error)?),
            None => stream.alloc(step(len)),
        }
    }
}

/// The words of each part of the device memory that only the kernels use.
struct Lengths {
    tables: usize,
    states: usize,
    counts: usize,
    coefficients: usize,
    planes: usize,
    status: usize,
}

impl Lengths {
    fn of(plan: &Plan) -> Self {
        let pieces = plan.totals.pieces;
        Self {
            tables: plan.used(),
            states: 2 * pieces,
            counts: 4 * pieces,
            coefficients: 32 * plan.totals.blocks as usize,
            planes: plan.totals.plane_bytes as usize / 4,
            status: plan.totals.images,
        }
    }

    fn total(&self) -> usize {
        let &Self { tables, states, counts, coefficients, planes, status } = self;
        let parts = [tables, states, counts, counts, coefficients, planes, status];
        parts.map(|len| len.next_multiple_of(ALIGNED)).iter().sum()
    }
}

/// Enqueues the upload of a batch, its kernels, and the download of what they found.
fn launch<S: LiveBrand>(
    stream: &Stream<S>,
    plan: Plan,
    lengths: &Lengths,
    work: &mut DeviceSlice<S, u32>,
    rgb: &mut DeviceSlice<S, u8>,
    found: &mut On<S, PinnedBuffer<u32>>,
) -> Result<()> {
    let Plan { words, parts, most_pieces, most_blocks, most_pairs, most_groups, decoded, .. } = plan;
    let [tables, rest] = cut(work, lengths.tables)?;
    let [states, rest] = cut(rest, lengths.states)?;
    let [counts, rest] = cut(rest, lengths.counts)?;
    let [places, rest] = cut(rest, lengths.counts)?;
    let [coefficients, rest] = cut(rest, lengths.coefficients)?;
    let [planes, rest] = cut(rest, lengths.planes)?;
    let [status, _] = cut(rest, lengths.status)?;

    let words = stream.bind(words)?;
    stream.copy_to_device(words.slice(..lengths.tables)?, tables)?;
    stream.zero(status)?;
    for Decoded { memory, words, first_block } in decoded {
        let (memory, start) = (stream.bind(memory)?, 32 * first_block);
        stream.copy_to_device(memory.slice(..words)?, coefficients.slice_mut(start..start + words)?)?;
    }
    let tables = &*tables;
    let images = tables.slice(parts.images)?;
    let coefficients = coefficients.cast_mut();
    // There are none if the host has decoded all coefficients.
    if most_pieces > 0 {
        let coded = Coded {
            most_pieces,
            images,
            segments: tables.slice(parts.segments)?,
            pieces: tables.slice(parts.pieces)?,
            huffman: tables.slice(parts.huffman)?,
            data: tables.slice(parts.data)?,
        };
        jpeg::synchronize(stream, &coded, states, counts)?;
        jpeg::settle(stream, &coded, states, counts)?;
        jpeg::offsets(stream, &coded, counts, places)?;
        jpeg::coefficients(stream, &coded, &Pieces { states, counts, places }, coefficients, status)?;
    }
    let (status, quantisation) = (&*status, tables.slice(parts.quantisation)?);
    let planes = planes.cast_mut();
    jpeg::inverse_dct(stream, images, status, most_blocks, quantisation, coefficients, planes)?;
    if most_pairs > 0 {
        jpeg::photographs(stream, images, status, most_pairs, planes, rgb)?;
    }
    if most_groups > 0 {
        jpeg::colors(stream, images, status, most_groups, planes, rgb)?;
    }
    stream.copy_to_host(status, found)
}

/// Cuts `len` words off the front. What is left begins at a multiple of [`ALIGNED`] words.
fn cut<S>(work: &mut DeviceSlice<S, u32>, len: usize) -> Result<[&mut DeviceSlice<S, u32>; 2]> {
    let (own, rest) = work.split_at_mut(len.next_multiple_of(ALIGNED))?;
    Ok([own.slice_mut(..len)?, rest])
}
