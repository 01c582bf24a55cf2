//! Photographs, decoded by the threads of a loader ahead of the consumer.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg::{Device, Error};
use thalweg_loader::{Canvas, DecodeError, Loader, Options, Source, Upload, decode_photo, read_photo};
use thalweg_vision::Image;

use crate::inputs::STDIN;

/// A chunk is closed once it holds this many images or bytes.
const CHUNK_IMAGES: usize = 16;
const CHUNK_BYTES: usize = 256 << 20;

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

/// Decoded photographs and those that could not be decoded, with their places in the list.
#[derive(Default)]
pub(crate) struct Chunk {
    pub(crate) images: Vec<Image>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) failures: Vec<(usize, String)>,
}

/// A list of photographs that are being decoded.
pub(crate) struct Photos {
    loader: Loader<PathBuf>,
}

impl Photos {
    /// Starts to decode files in this order. [`STDIN`] stands for standard input.
    pub(crate) fn open<'p>(device: Device, paths: impl IntoIterator<Item = &'p PathBuf>) -> Result<Self, String> {
        let options = Options {
            batch: 1,
            prefetch: CHUNK_IMAGES,
            pinned_budget: PINNED_BYTES,
            upload: Upload::Off, // those who use the photographs upload them
            ..Options::default()
        };
        let loader = Loader::new(device, Source::files(paths, read), options).map_err(|e| e.to_string())?;
        Ok(Self { loader })
    }

    /// Returns the time that all threads together spent on decoding.
    pub(crate) fn decoding(&self) -> Duration {
        self.loader.stats().decode
    }

    /// Waits until the photographs of the next chunk are decoded, and returns them in order. `None`
    /// after the last chunk. A pixel counts for `bytes_per_pixel`.
    pub(crate) fn next_chunk(&mut self, bytes_per_pixel: usize) -> Result<Option<Chunk>, String> {
        let (mut chunk, mut bytes) = (Chunk::default(), 0);
        while chunk.images.len() < CHUNK_IMAGES
            && bytes < CHUNK_BYTES
            && let Some(item) = self.loader.next()
        {
            match item {
                Ok(batch) => {
                    let mut batch = batch.synchronize().map_err(|r| r.to_string())?;
                    let [height, width] = batch.sizes[0];
                    let image = if batch.images[0].is_empty() {
                        // The loader could not page-lock the memory of this photograph.
                        Image::new(height, width, batch.pixels(0).to_vec())
                    } else {
                        Image::from_pinned(height, width, batch.images.swap_remove(0))
                    };
                    let image = image.map_err(|e| e.to_string())?;
                    bytes += image.rgb().len() / 3 * bytes_per_pixel;
                    chunk.images.push(image);
                    chunk.inputs.push(batch.indices[0] as usize);
                }
                Err(Error::Sample { index, cause, .. }) => chunk.failures.push((index as usize, cause.to_string())),
                Err(error) => return Err(error.to_string()),
            }
        }
        let empty = chunk.images.is_empty() && chunk.failures.is_empty();
        Ok((!empty).then_some(chunk))
    }
}

/// Reads and decodes a photograph from a file or from standard input.
fn read(path: &Path, canvas: &mut Canvas<'_>) -> Result<(), DecodeError> {
    if path.as_os_str() != STDIN {
        return read_photo(path, canvas);
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(STDIN_BYTES).read_to_end(&mut bytes);
    read.map_err(|e| format!("cannot read it: {e}"))?;
    decode_photo(&bytes, canvas)
}
