//! Photographs, decoded by the threads of a loader, or by the device, ahead of the consumer.

use std::io::Read;
use std::path::{Path, PathBuf};

use thalweg::{Device, DeviceBuffer, DeviceKind, Error, Event, Size};
use thalweg_loader::{
    BatchEvents, DecodeBackend, DecodeError, ImageSink, Loader, LoaderOptions, Source, UploadMode, decode_photo,
    read_photo,
};
use thalweg_vision::Image;

use crate::args::DecodeArg;
use crate::inputs::{self, STDIN};
use crate::output::{self, say};
use crate::report::Decoded;

/// Prints the line of each image in the order of the images, or says why it has none. Returns how
/// many have none.
pub(crate) fn print_lines(
    images: &[PathBuf],
    mut lines: Vec<(usize, Result<String, String>)>,
) -> Result<usize, String> {
    lines.sort_by_key(|(index, _)| *index);
    let mut failed = 0;
    for (index, line) in lines {
        match line {
            Ok(line) => output::print(&line)?,
            Err(error) => {
                failed += 1;
                say(format_args!("thalweg: {}: {error}", inputs::name(&images[index]).display()));
            }
        }
    }
    Ok(failed)
}

/// A chunk is closed once it holds this many images or bytes.
pub(crate) const CHUNK_IMAGES: usize = 16;
pub(crate) const CHUNK_BYTES: usize = 256 << 20;

/// Memory for the photographs that wait for their turn. A photograph takes at most 768 MiB.
const AHEAD_BYTES: usize = 1 << 30;

/// The most page-locked memory of all photographs.
///
/// A chunk keeps the loader's memory until its results are written, so the memory must always
/// suffice to complete a chunk. Without its last photograph, a chunk holds fewer than `CHUNK_BYTES`
/// bytes, in blocks of up to twice that size. The last photograph takes at most 768 MiB.
const PINNED_BYTES: usize = AHEAD_BYTES + 2 * CHUNK_BYTES;

/// The most bytes to read from standard input.
const STDIN_BYTES: u64 = 1 << 30;

/// The streams of a loader whose photographs the device decodes. Each decodes one at a time, which
/// does not fill a GPU.
const STREAMS: usize = 3;

/// The pixels of a photograph on the device.
type OnDevice = Event<DeviceBuffer<u8>>;

/// Decoded photographs, in order.
pub(crate) enum Pixels {
    Host(Vec<Image>),
    /// Height and width of each, and its pixels.
    Device(Vec<(Size, OnDevice)>),
}

/// Decoded photographs and those that could not be decoded, with their places in the list.
pub(crate) struct Chunk {
    pub(crate) pixels: Pixels,
    pub(crate) inputs: Vec<usize>,
    pub(crate) failures: Vec<(usize, String)>,
}

impl Pixels {
    /// Returns height and width of each photograph.
    pub(crate) fn sizes(&self) -> Vec<Size> {
        match self {
            Self::Host(images) => images.iter().map(Image::size).collect(),
            Self::Device(images) => images.iter().map(|(size, _)| *size).collect(),
        }
    }

    /// Brings all photographs to the host.
    pub(crate) fn into_images(self) -> thalweg::Result<Vec<Image>> {
        match self {
            Self::Host(images) => Ok(images),
            Self::Device(images) => images.into_iter().map(|(size, pixels)| download(size, pixels)).collect(),
        }
    }
}

/// Brings a photograph to the host.
pub(crate) fn download(Size { height, width }: Size, pixels: OnDevice) -> thalweg::Result<Image> {
    let rgb = pixels.device().per_thread(|stream| {
        let pixels = stream.wait(pixels).map_err(|r| r.error)?;
        stream.read_blocking(pixels.slice(..3 * height as usize * width as usize)?)
    })??;
    Image::new(height, width, rgb)
}

/// A list of photographs that are being decoded.
pub(crate) struct Photos {
    device: Device,
    paths: Vec<PathBuf>,
    loader: Loader<PathBuf>,
    on_device: bool,
    decode: DecodeArg,
    /// The counts of the loaders before this one.
    earlier: Decoded,
}

impl Photos {
    /// Starts to decode files in this order. [`STDIN`] stands for standard input.
    pub(crate) fn open<'p>(
        device: Device,
        paths: impl IntoIterator<Item = &'p PathBuf>,
        decode: &DecodeArg,
    ) -> Result<Self, String> {
        let paths: Vec<PathBuf> = paths.into_iter().cloned().collect();
        // Standard input can be read once only, and a device without memory for a photograph is a
        // reason to read it again.
        let on_device = decode.place.on(device.kind()) && paths.iter().all(|path| path.as_os_str() != STDIN);
        let loader = Self::start(device, &paths, on_device, decode)?;
        Ok(Self { device, paths, loader, on_device, decode: *decode, earlier: Decoded::default() })
    }

    fn start(
        device: Device,
        paths: &[PathBuf],
        on_device: bool,
        decode: &DecodeArg,
    ) -> Result<Loader<PathBuf>, String> {
        let (backend, upload) = match (on_device, device.kind()) {
            // Those who use the photographs upload them.
            (false, _) => (DecodeBackend::Host, UploadMode::Off),
            (true, DeviceKind::Cpu) => (DecodeBackend::Device, UploadMode::Sequential),
            (true, _) => (DecodeBackend::Device, UploadMode::Streams),
        };
        let options = LoaderOptions::from_env()
            .map_err(|e| e.to_string())?
            .with_batch_size(1)
            .with_prefetch(CHUNK_IMAGES)
            .with_pinned_budget(PINNED_BYTES)
            .with_pixel_limit(decode.max_pixels)
            .with_photo(decode.photo)
            .with_upload_streams(STREAMS)
            .with_upload(upload)
            .with_decode(backend);
        Loader::new(device, Source::files(paths, read), options).map_err(|e| e.to_string())
    }

    /// Says how the photographs so far were decoded.
    pub(crate) fn decoded(&self) -> Decoded {
        let (stats, mut all) = (self.loader.stats(), self.earlier.clone());
        all.add(Decoded {
            time: stats.decode + stats.device_decoding.total,
            jpeg_on_device: stats.jpeg_on_device,
            jpeg_on_host: stats.jpeg_on_host,
            left_device: self.loader.left_device(),
        });
        all
    }

    /// Waits until the photographs of the next chunk are decoded, and returns them in order. `None`
    /// after the last chunk. A pixel counts for `bytes_per_pixel`.
    pub(crate) fn next_chunk(&mut self, bytes_per_pixel: usize) -> Result<Option<Chunk>, String> {
        let (mut on_host, mut on_device) = (Vec::new(), Vec::new());
        let (mut inputs, mut failures, mut bytes) = (Vec::new(), Vec::new(), 0);
        while inputs.len() < CHUNK_IMAGES
            && bytes < CHUNK_BYTES
            && let Some(item) = self.loader.next()
        {
            match item {
                Ok(batch) if self.on_device => {
                    let BatchEvents { rgb, sizes, indices, .. } = batch.unzip();
                    bytes += sizes[0].area() as usize * bytes_per_pixel;
                    on_device.push((sizes[0], rgb));
                    inputs.push(indices[0] as usize);
                }
                Ok(batch) => {
                    let mut batch = batch.synchronize().map_err(|r| r.to_string())?;
                    let Size { height, width } = batch.sizes[0];
                    let image = if batch.images[0].is_empty() {
                        // The loader could not page-lock the memory of this photograph.
                        Image::new(height, width, batch.pixels(0).to_vec())
                    } else {
                        Image::from_pinned(height, width, batch.images.swap_remove(0))
                    };
                    let image = image.map_err(|e| e.to_string())?;
                    bytes += image.rgb().len() / 3 * bytes_per_pixel;
                    on_host.push(image);
                    inputs.push(batch.indices[0] as usize);
                }
                Err(thalweg_loader::Error::Sample { index, cause, .. }) => {
                    failures.push((index as usize, cause.to_string()))
                }
                // The device has no memory for the next photograph. The host decodes it and those
                // after it.
                Err(thalweg_loader::Error::Device(Error::OutOfMemory { .. } | Error::TooLarge { .. }))
                    if self.on_device =>
                {
                    let (position, decoded) = (self.loader.state(), self.decoded());
                    self.loader = Self::start(self.device, &self.paths, false, &self.decode)?;
                    self.loader.resume(position).map_err(|e| e.to_string())?;
                    (self.on_device, self.earlier) = (false, decoded);
                    if !inputs.is_empty() {
                        break;
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        let pixels = if on_device.is_empty() { Pixels::Host(on_host) } else { Pixels::Device(on_device) };
        let empty = inputs.is_empty() && failures.is_empty();
        Ok((!empty).then_some(Chunk { pixels, inputs, failures }))
    }
}

/// Reads and decodes a photograph from a file or from standard input.
fn read(path: &Path, sink: &mut ImageSink<'_>) -> Result<(), DecodeError> {
    if path.as_os_str() != STDIN {
        return read_photo(path, sink);
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(STDIN_BYTES).read_to_end(&mut bytes);
    read.map_err(|e| format!("cannot read it: {e}"))?;
    decode_photo(&bytes, sink)
}
