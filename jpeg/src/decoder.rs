//! The decoder: a batch of files to images on the device.

use std::ops::Range;

use thalweg::{
    Brand, Device, DeviceBuffer, DeviceSlice, Event, LiveBrand, On, PinnedBuffer, PinnedPool, Resource, Result, Stream,
};
use thalweg_kernels::jpeg::{self, Coded, Images as Admitted, Pieces};

use crate::error::{JpegError, Unsupported};
use crate::plan::{ALIGNED, Decoded, Parts, Place, Plan, ReservedFile, Scratch, step};

/// The buffers of pixels that a decoder keeps for later batches.
const SPARE: usize = 4;

/// The status of each file of a batch.
///
/// On a stream it has the form [`DecodeStatusOn<S>`](DecodeStatusOn).
#[derive(Debug, Resource)]
pub struct DecodeStatus {
    /// The errors that the kernels found, for each image.
    status: PinnedBuffer<u32>,
    #[resource(plain)]
    files: Vec<Result<Place, JpegError>>,
}

/// Decoded images on the device, one after another. [`Decoder::decode`] makes it.
///
/// On a stream it has the form [`DecodedImagesOn<S>`](DecodedImagesOn). The pixels of a file that
/// failed are arbitrary, and are there only if its header could be read.
#[derive(Debug, Resource)]
#[resource(unzip)]
pub struct DecodedImages {
    /// The pixels: upright interleaved RGB, [H, W, 3] for each image. Each image begins at a
    /// multiple of 16 bytes, where [`DecodedImages::image`] says. The bytes between two images and
    /// after the last one are arbitrary.
    pub rgb: DeviceBuffer<u8>,
    /// The status of each file.
    pub report: DecodeStatus,
}

/// An image of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedImage {
    /// The number of rows.
    pub height: u32,
    /// The number of columns.
    pub width: u32,
    /// The range of its bytes in [`DecodedImages::rgb`].
    pub bytes: Range<usize>,
}

impl DecodeStatus {
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
    pub fn image(&self, index: usize) -> Result<DecodedImage, JpegError> {
        let place = self.files[index]?;
        match self.status[place.number] {
            0 => Ok(place.image()),
            // Where pieces are out of step, nothing else that they say counts.
            status if status & 4 != 0 => Err(JpegError::Unsupported(Unsupported::Steps)),
            status if status & 1 != 0 => Err(JpegError::BrokenData),
            _ => Err(JpegError::Truncated),
        }
    }
}

impl DecodedImages {
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

    /// Returns where the image of file `index` lies, as [`DecodeStatus::image`] does.
    ///
    /// # Errors
    /// The file was not decoded. The other files of the batch are not affected.
    ///
    /// # Panics
    /// There is no such file.
    pub fn image(&self, index: usize) -> Result<DecodedImage, JpegError> {
        self.report.image(index)
    }
}

impl Place {
    fn image(self) -> DecodedImage {
        let Self { height, width, start, .. } = self;
        DecodedImage { height, width, bytes: start..start + 3 * height as usize * width as usize }
    }
}

/// A batch of files, read on the host: their headers, and their coded data in page-locked memory as
/// the kernels take it. [`Decoder::read`] makes it with memory that the decoder keeps, and
/// [`EncodedBatch::new`] on any thread without a decoder.
#[derive(Debug)]
pub struct EncodedBatch {
    plan: Plan,
    files: Vec<Result<Place, JpegError>>,
}

impl EncodedBatch {
    /// Reads the headers of files, and copies their coded data into page-locked memory of `device`,
    /// without the stuffing. From 1 MiB on, several threads do it.
    ///
    /// A file that cannot be decoded does not affect the others: [`DecodeStatus::image`] says why.
    ///
    /// # Errors
    /// There is no page-locked memory, or the device failed.
    pub fn new(device: Device, files: &[&[u8]]) -> Result<Self> {
        let files: Vec<_> = files.iter().map(|file| ReservedFile { prefix: 0, file }).collect();
        Self::read(device, &files, false, &mut Scratch::default())
    }

    /// Like [`new`](Self::new), but leaves bytes free before the pixels of each file, for images
    /// that come from elsewhere.
    ///
    /// A file of which [`dimensions`](crate::dimensions) knows the size keeps the room of its
    /// pixels even if it is not decoded, so the places of the images after it do not depend on it.
    /// [`decode`](Decoder::decode) would allocate that room, however large the file claims to be;
    /// this is for [`decode_into`](Decoder::decode_into), where the caller has it.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_reserved_prefix(device: Device, files: &[ReservedFile<'_>]) -> Result<Self> {
        Self::read(device, files, true, &mut Scratch::default())
    }

    fn read(device: Device, files: &[ReservedFile<'_>], keeps: bool, scratch: &mut Scratch) -> Result<Self> {
        let (plan, files) = Plan::read(device, files, keeps, scratch)?;
        Ok(Self { plan, files })
    }

    /// Returns where the image of file `index` will lie, as the header says, or why there will be
    /// none. Only [`DecodeStatus::image`] knows whether its data can be decoded.
    ///
    /// # Errors
    /// The file cannot be decoded.
    ///
    /// # Panics
    /// There is no such file.
    pub fn image(&self, index: usize) -> Result<DecodedImage, JpegError> {
        Ok(self.files[index]?.image())
    }

    /// Returns the bytes that the pixels take, from the first image to the end of the last one.
    #[must_use]
    pub fn rgb_bytes(&self) -> usize {
        self.plan.rgb_bytes
    }
}

/// Decodes batches of JPEG files.
///
/// It decodes baseline, extended sequential and progressive files of 8 bits with Huffman coding:
/// gray, or three components with sampling factors 1 to 4, with any restart interval and any
/// tables, up to 16384 pixels a side. Of a file with several scans, as each progressive file is,
/// the host decodes the scans to coefficients, and the device makes pixels of them. The pixels
/// equal those of libjpeg-turbo with its default options, and the orientation is applied. Other
/// files are [`JpegError::Unsupported`].
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

    /// Takes the page-locked memory for coefficients of progressive files from a pool, instead of
    /// the device's own one: 128 bytes for each block of 8 x 8, which is 3 bytes a pixel where
    /// chroma is halved in both directions. A file for which the pool has none is
    /// [`JpegError::NoMemory`], and the others of its batch are decoded.
    #[must_use]
    pub fn coefficients_from(mut self, pool: PinnedPool) -> Self {
        self.scratch.coefficients = Some(pool);
        self
    }

    /// Reads files as [`EncodedBatch::new`] does, with memory of earlier batches.
    ///
    /// # Errors
    /// The errors of [`EncodedBatch::new`].
    pub fn read(&mut self, files: &[&[u8]]) -> Result<EncodedBatch> {
        let files: Vec<_> = files.iter().map(|file| ReservedFile { prefix: 0, file }).collect();
        EncodedBatch::read(self.device, &files, false, &mut self.scratch)
    }

    /// Reads files as [`EncodedBatch::with_reserved_prefix`] does, with memory of earlier batches.
    ///
    /// # Errors
    /// The errors of [`EncodedBatch::new`].
    pub fn read_with_reserved_prefix(&mut self, files: &[ReservedFile<'_>]) -> Result<EncodedBatch> {
        EncodedBatch::read(self.device, files, true, &mut self.scratch)
    }

    /// Enqueues the upload of a batch and the kernels that decode it. Returns at once.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn decode<S: LiveBrand>(&mut self, stream: &Stream<S>, batch: EncodedBatch) -> Result<Event<DecodedImages>> {
        let bytes = batch.rgb_bytes();
        let found = self.spare.iter().position(|event| event.len() >= bytes);
        let mut rgb = match found.map(|i| self.spare.remove(i)) {
            Some(event) => stream.wait(event).map_err(|r| r.error)?,
            None => stream.alloc(if bytes == 0 { 0 } else { step(bytes) })?,
        };
        let report = self.enqueue(stream, batch, &mut rgb)?;
        Ok(stream.record(DecodedImagesOn { rgb, report })?)
    }

    /// Like [`decode`](Self::decode), but writes the pixels to `rgb`, where [`DecodedImage::bytes`]
    /// says. If `rgb` is shorter than [`EncodedBatch::rgb_bytes`], images that do not fit are not
    /// written, and the [status](DecodeStatus::image) does not say so.
    ///
    /// # Errors
    /// The errors of [`decode`](Self::decode), or `rgb` does not begin at a multiple of 4 bytes.
    pub fn decode_into<S: LiveBrand>(
        &mut self,
        stream: &Stream<S>,
        batch: EncodedBatch,
        rgb: &mut DeviceSlice<S, u8>,
    ) -> Result<Event<DecodeStatus>> {
        let report = self.enqueue(stream, batch, rgb)?;
        Ok(stream.record(report)?)
    }

    /// Takes images back. Their device memory serves a later batch once the event is complete.
    pub fn recycle(&mut self, images: Event<DecodedImages>) {
        let DecodedImagesEvents { rgb, .. } = images.unzip();
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
        batch: EncodedBatch,
        rgb: &mut DeviceSlice<S, u8>,
    ) -> Result<DecodeStatusOn<S>> {
        let EncodedBatch { plan, files } = batch;
        let count = plan.totals.images;
        let mut found = stream.bind(stream.device().pinned::<u32>(count)?)?;
        if count > 0 {
            let shape = Shape::of(&plan);
            let mut work = self.workspace(stream, shape.lengths.total())?;
            let used = plan.used();
            upload(stream, plan.words, used, plan.decoded, &shape.lengths, &mut work)?;
            let made = planes(stream, &shape, Memory::of(&mut work, &shape.lengths)?)?;
            pixels(stream, made, [plan.most_pairs, plan.most_groups], rgb, &mut found)?;
            self.work = Some(stream.record(work)?);
        }
        Ok(DecodeStatusOn { status: found, files })
    }

    /// Returns memory of at least `len` words.
    fn workspace<S: LiveBrand>(&mut self, stream: &Stream<S>, len: usize) -> Result<On<S, DeviceBuffer<u32>>> {
        match self.work.take().filter(|work| work.len() >= len) {
            Some(work) => Ok(stream.wait(work).map_err(|r| r.error)?),
            None => stream.alloc(step(len)),
        }
    }
}

/// The facts on which the launches of a batch depend, beside its contents.
struct Shape {
    lengths: Lengths,
    parts: Parts,
    most_pieces: u32,
    most_blocks: u32,
}

impl Shape {
    fn of(plan: &Plan) -> Self {
        let &Plan { most_pieces, most_blocks, .. } = plan;
        Self { lengths: Lengths::of(plan), parts: plan.parts.clone(), most_pieces, most_blocks }
    }
}

/// The words of each part of the device memory that only the kernels use.
struct Lengths {
    tables: usize,
    admitted: usize,
    states: usize,
    counts: usize,
    coefficients: usize,
    planes: usize,
    status: usize,
}

impl Lengths {
    fn of(plan: &Plan) -> Self {
        let pieces = plan.parts.pieces.len();
        Self {
            tables: plan.parts.data.end,
            admitted: plan.parts.images.len(),
            states: 2 * pieces,
            counts: 4 * pieces,
            coefficients: 32 * plan.totals.blocks as usize,
            planes: plan.totals.plane_bytes as usize / 4,
            status: plan.totals.images,
        }
    }

    fn total(&self) -> usize {
        let &Self { tables, admitted, states, counts, coefficients, planes, status } = self;
        let parts = [tables, admitted, states, counts, counts, coefficients, planes, status];
        parts.map(|len| len.next_multiple_of(ALIGNED)).iter().sum()
    }
}

/// The parts of the device memory that only the kernels use.
struct Memory<'a, S> {
    tables: &'a mut DeviceSlice<S, u32>,
    /// The records of the images that the kernels take.
    admitted: &'a mut DeviceSlice<S, u32>,
    states: &'a mut DeviceSlice<S, u32>,
    counts: &'a mut DeviceSlice<S, u32>,
    places: &'a mut DeviceSlice<S, u32>,
    coefficients: &'a mut DeviceSlice<S, u32>,
    planes: &'a mut DeviceSlice<S, u32>,
    status: &'a mut DeviceSlice<S, u32>,
}

impl<'a, S> Memory<'a, S> {
    fn of(work: &'a mut DeviceSlice<S, u32>, lengths: &Lengths) -> Result<Self> {
        let [tables, rest] = cut(work, lengths.tables)?;
        let [admitted, rest] = cut(rest, lengths.admitted)?;
        let [states, rest] = cut(rest, lengths.states)?;
        let [counts, rest] = cut(rest, lengths.counts)?;
        let [places, rest] = cut(rest, lengths.counts)?;
        let [coefficients, rest] = cut(rest, lengths.coefficients)?;
        let [planes, rest] = cut(rest, lengths.planes)?;
        let [status, _] = cut(rest, lengths.status)?;
        Ok(Self { tables, admitted, states, counts, places, coefficients, planes, status })
    }
}

/// Enqueues the upload of what the host has made of a batch.
fn upload<S: LiveBrand>(
    stream: &Stream<S>,
    words: PinnedBuffer<u32>,
    used: usize,
    decoded: Vec<Decoded>,
    lengths: &Lengths,
    work: &mut DeviceSlice<S, u32>,
) -> Result<()> {
    let Memory { tables, coefficients, .. } = Memory::of(work, lengths)?;
    let words = stream.bind(words)?;
    stream.copy_to_device(words.slice(..used)?, tables.slice_mut(..used)?)?;
    for Decoded { memory, words, first_block } in decoded {
        let (memory, start) = (stream.bind(memory)?, 32 * first_block);
        stream.copy_to_device(memory.slice(..words)?, coefficients.slice_mut(start..start + words)?)?;
    }
    Ok(())
}

/// The buffers that the kernels that make pixels need.
struct Made<'a, S> {
    images: Admitted<'a, S>,
    planes: &'a mut DeviceSlice<S, u32>,
    status: &'a mut DeviceSlice<S, u32>,
}

/// Enqueues the kernels from the coded data to the planes. They need nothing but this memory.
fn planes<'a, S: Brand>(stream: &Stream<S>, shape: &Shape, memory: Memory<'a, S>) -> Result<Made<'a, S>> {
    let Shape { parts, most_pieces, most_blocks, .. } = shape;
    let Memory { tables, admitted, states, counts, places, coefficients, planes, status } = memory;
    let tables = &*tables;
    let images = jpeg::admit(stream, tables.slice(parts.images.clone())?, admitted)?;
    let coefficients = coefficients.cast_mut();
    stream.zero(status)?;
    // There are none if the host has decoded all coefficients.
    if *most_pieces > 0 {
        let coded = Coded {
            most_pieces: *most_pieces,
            images,
            segments: tables.slice(parts.segments.clone())?,
            pieces: tables.slice(parts.pieces.clone())?,
            huffman: tables.slice(parts.huffman.clone())?,
            data: tables.slice(parts.data.clone())?,
        };
        jpeg::find_sync_points(stream, &coded, states, counts)?;
        jpeg::repair_sync_points(stream, &coded, states, counts)?;
        jpeg::offsets(stream, &coded, counts, places)?;
        jpeg::coefficients(stream, &coded, &Pieces { states, counts, places }, coefficients, status)?;
    }
    let quantization = tables.slice(parts.quantization.clone())?;
    jpeg::inverse_dct(stream, images, status, *most_blocks, quantization, coefficients, planes.cast_mut())?;
    Ok(Made { images, planes, status })
}

/// Enqueues the kernels that make pixels, and the download of what the kernels found. `most` are
/// the largest numbers of groups of pixels of an image, of two rows and of one.
fn pixels<S: LiveBrand>(
    stream: &Stream<S>,
    made: Made<'_, S>,
    [most_pairs, most_groups]: [u32; 2],
    rgb: &mut DeviceSlice<S, u8>,
    found: &mut On<S, PinnedBuffer<u32>>,
) -> Result<()> {
    let Made { images, planes, status } = made;
    let planes = &*planes.cast_mut();
    if most_pairs > 0 {
        jpeg::colors_420(stream, images, status, most_pairs, planes, rgb)?;
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
