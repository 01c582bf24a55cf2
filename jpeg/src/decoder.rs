//! The decoder: a batch of files to images on the device.

use std::ops::Range;

use thalweg::{DeviceBuffer, Event, LiveBrand, On, PinnedBuffer, Plain, Resource, Result, Stream};
use thalweg_kernels::jpeg;

use crate::error::JpegError;
use crate::plan::{Place, Plan};

/// Decoded images on the device, one after another. [`Decoder::decode`] makes it.
///
/// On a stream it has the form [`ImagesOn<S>`](ImagesOn). The pixels of a file that failed are
/// arbitrary, and are there only if its header could be read.
#[derive(Debug, Resource)]
pub struct Images {
    /// The pixels: upright interleaved RGB, [H, W, 3] for each image. Each image begins at a multiple
    /// of 16 bytes, where [`Images::image`] says. The bytes between two images are arbitrary.
    pub rgb: DeviceBuffer<u8>,
    /// What the kernels found wrong, for each image.
    status: PinnedBuffer<u32>,
    #[resource(plain)]
    files: Vec<Result<Place, JpegError>>,
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

impl Images {
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
            status if status & 1 != 0 => Err(JpegError::BrokenData),
            _ => Err(JpegError::Truncated),
        }
    }
}

/// A batch of files, read on the host: their headers, and their coded data as the kernels take it.
///
/// It needs no device, so any thread can make it ahead of the decoder.
#[derive(Debug)]
pub struct Batch {
    plan: Plan,
    files: Vec<Result<Place, JpegError>>,
}

impl Batch {
    /// Reads the headers of files and copies their coded data.
    ///
    /// A file that cannot be decoded does not affect the others: [`Images::image`] says why.
    #[must_use]
    pub fn new(files: &[&[u8]]) -> Self {
        let mut plan = Plan::default();
        let files = files.iter().map(|file| plan.add(file)).collect();
        Self { plan, files }
    }
}

/// Decodes batches of JPEG files on one stream.
///
/// It decodes baseline and extended sequential files of 8 bits with Huffman coding: gray, or three
/// components with sampling factors 1 to 4, with any restart interval and any tables, up to 16384
/// pixels a side. The pixels equal those of libjpeg-turbo with its default options, and the EXIF
/// orientation is applied. Other files are [`JpegError::Unsupported`].
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_jpeg::{Batch, Decoder, JpegError};
///
/// stream_tags!(Decode);
/// # fn main() -> Result<(), thalweg::Error> {
/// let device = Device::cpu()?;
/// let decode = device.stream::<Decode>()?;
/// let images = Decoder::new(&decode).decode(&Batch::new(&[b"not a photograph"]))?;
/// // The stream works; here the host waits. Another stream would `wait` for the event instead.
/// let images = images.synchronize()?;
/// assert_eq!(images.image(0), Err(JpegError::NotJpeg));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Decoder<'s, S> {
    stream: &'s Stream<S>,
}

impl<'s, S: LiveBrand> Decoder<'s, S> {
    /// Makes a decoder that works on `stream`.
    #[must_use]
    pub fn new(stream: &'s Stream<S>) -> Self {
        Self { stream }
    }

    /// Decodes a batch of files. The host copies the coded data into page-locked memory. Everything
    /// else happens on the device, in stream order: this returns at once.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn decode(&self, batch: &Batch) -> Result<Event<Images>> {
        let Batch { plan, files } = batch;
        let stream = *self.stream;
        let count = plan.count();
        let mut rgb = stream.alloc::<u8>(plan.rgb_bytes)?;
        let mut status = stream.alloc_zeroed::<u32>(count as usize)?;
        if count > 0 {
            self.launch(plan, &mut rgb, &mut status)?;
        }
        let mut found = stream.bind(stream.device().pinned::<u32>(count as usize)?)?;
        stream.copy_to_host(&status, &mut found)?;
        Ok(stream.record(ImagesOn { rgb, status: found, files: files.clone() })?)
    }

    fn launch(
        &self,
        plan: &Plan,
        rgb: &mut On<S, DeviceBuffer<u8>>,
        status: &mut On<S, DeviceBuffer<u32>>,
    ) -> Result<()> {
        let stream = *self.stream;
        let (count, segments, pieces) = (plan.count(), (plan.segments.len() / 5) as u32, plan.pieces.len() as u32);
        let (words, tables) = (plan.data.len() as u32, (plan.huffman.len() / jpeg::TABLE_WORDS as usize) as u32);
        let quantisations = (plan.quantisation.len() / 64) as u32;

        let images = self.upload(&plan.images)?;
        let segment = self.upload(&plan.segments)?;
        let piece = self.upload(&plan.pieces)?;
        let huffman = self.upload(&plan.huffman)?;
        let quantisation = self.upload(&plan.quantisation)?;
        let data = self.upload(&plan.data)?;
        let mut states = stream.alloc::<u32>(2 * pieces as usize)?;
        let mut counts = stream.alloc::<u32>(4 * pieces as usize)?;
        let mut places = stream.alloc::<u32>(4 * pieces as usize)?;
        let mut coefficients = stream.alloc_zeroed::<i16>(64 * plan.blocks as usize)?;
        let mut planes = stream.alloc::<u8>(plan.plane_bytes as usize)?;

        jpeg::synchronize(
            &stream,
            count,
            segments,
            pieces,
            words,
            plan.most_pieces,
            tables,
            &images,
            &segment,
            &piece,
            &huffman,
            &data,
            &mut states,
            &mut counts,
        )?;
        jpeg::settle(
            &stream,
            count,
            segments,
            pieces,
            words,
            tables,
            &images,
            &segment,
            &piece,
            &huffman,
            &data,
            &mut states,
            &mut counts,
        )?;
        jpeg::offsets(&stream, count, pieces, &images, &counts, &mut places)?;
        jpeg::coefficients(
            &stream,
            count,
            segments,
            pieces,
            words,
            plan.most_pieces,
            tables,
            plan.blocks,
            &images,
            &segment,
            &piece,
            &huffman,
            &data,
            &states,
            &counts,
            &places,
            &mut coefficients,
            status,
        )?;
        jpeg::inverse_dct(
            &stream,
            count,
            quantisations,
            plan.blocks,
            plan.most_blocks,
            plan.plane_bytes,
            &images,
            &quantisation,
            &coefficients,
            &mut planes,
        )?;
        jpeg::colors(&stream, count, plan.most_pixels, plan.plane_bytes, plan.rgb_bytes as u64, &images, &planes, rgb)?;
        Ok(())
    }

    /// Copies a table to the device through page-locked memory, and waits for nothing.
    fn upload<T: Plain>(&self, table: &[T]) -> Result<On<S, DeviceBuffer<T>>> {
        let host = self.stream.bind(self.stream.device().pinned_from(table)?)?;
        let mut on_device = self.stream.alloc::<T>(table.len())?;
        self.stream.copy_to_device(&host, &mut on_device)?;
        Ok(on_device)
    }
}
