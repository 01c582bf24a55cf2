//! JPEG files that the device decodes.
//!
//! A decode thread reads such a file into page-locked memory and looks at its header only. The
//! upload of its batch sends the coded data over the bus, and kernels write the pixels to their
//! place in the batch. The upload waits until it knows what became of each file. What the device
//! cannot decode, the decoder of the host does: a kind of file that the header tells on the decode
//! thread, and a file of which only its data tells here, after which the batch starts over. So
//! pixels and errors are those, and come where they come, without the device.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use thalweg::{Activity, DeviceSlice, Error, LiveBrand, Result, Size, Stream};
use thalweg_jpeg::{Decoder, JpegError, ReservedFile, clear_orientation};

use crate::assembly::Assembly;
use crate::batch::{byte_ranges, padded};
use crate::error::SampleError;
use crate::image_sink::{self, ImageSink, Pixels};
use crate::lock;
use crate::photo::{MAX_FILE, decode_photo};
use crate::queue::{Queue, decoded};
use crate::staging;
use crate::{DecodeError, OrientationRule};

impl ImageSink<'_> {
    /// Reads a JPEG file into page-locked memory, for the device to decode. Returns what was read
    /// if it is of a kind that the host must decode, and `None` if this is no regular file or if
    /// the device is not to decode anything.
    pub(crate) fn jpeg_in_file(&mut self, file: &File) -> Result<Option<Vec<u8>>, DecodeError> {
        let length =
            file.metadata().ok().filter(|file| file.is_file() && file.len() <= MAX_FILE).map(|file| file.len());
        let Some(length) = length.and_then(|len| usize::try_from(len).ok()).filter(|len| self.takes_jpeg && *len > 0)
        else {
            return Ok(None);
        };
        let mut memory = self.memory(length)?;
        let bytes = memory.bytes_mut();
        staging::fill(file, 0, length, length, bytes).map_err(SampleError::file("read it"))?;
        if self.scratch.photo.orientation == OrientationRule::Stored {
            clear_orientation(bytes);
        }
        let outline = thalweg_jpeg::outline(bytes).map_err(SampleError::from)?;
        let (height, width) = (outline.height, outline.width);
        self.scratch.allow(height, width)?;
        if let Some(kind) = outline.host_only {
            self.left_device = Some(kind.to_string());
            // The page-locked memory goes back first, because the pixels need some.
            return Ok(Some(bytes.to_vec()));
        }
        let pixels = Self::bytes(height, width)?;
        self.set(Size::new(height, width), Pixels::Jpeg(Box::new(memory), pixels));
        Ok(Some(Vec::new()))
    }
}

impl<M: Clone + Send + 'static> Queue<M> {
    /// Says whether the device decodes JPEG files.
    pub(crate) fn taking_jpeg(mut self, takes_jpeg: bool) -> Self {
        self.takes_jpeg = takes_jpeg;
        self
    }

    /// Decodes the JPEG files of a batch to where their pixels belong in `rgb`, and waits. Returns
    /// the numbers of the images that the device could not decode, in order, and why.
    pub(crate) fn decode_on_device<S: LiveBrand>(
        &self,
        stream: &Stream<S>,
        front: &Assembly<M>,
        rgb: &mut DeviceSlice<S, u8>,
    ) -> Result<Vec<(usize, String)>> {
        let ranges = byte_ranges(&front.images().map(|image| image.size).collect::<Vec<_>>());
        let mut broken = Vec::new();
        let mut rest: Vec<_> = front.images().enumerate().collect();
        let mut begin = Instant::now();
        while !rest.is_empty() {
            // One call takes as many images as it can, and leaves the room of all others as it is.
            let (mut files, mut numbers, mut gap, mut sum) = (Vec::new(), Vec::new(), 0, 0);
            let mut later = Vec::new();
            let (mut at, most, mut these) = (0, lock(&self.state).pressure.pixels(), Vec::new());
            for (number, image) in rest {
                let Pixels::Jpeg(file, pixels) = &image.pixels else { continue };
                let [height, width] = image.size.sides().map(|side| u64::from(side.next_multiple_of(32)));
                if sum > 0 && sum + height * width > most {
                    later.push((number, image));
                    continue;
                }
                sum += height * width;
                gap += ranges[number].start - at;
                at = ranges[number].start + padded(*pixels);
                files.push(ReservedFile { prefix: std::mem::take(&mut gap), file: file.bytes() });
                numbers.push(number);
                these.push((number, image));
            }
            rest = later;
            if files.is_empty() {
                break;
            }
            let decoder = lock(&self.decoders).pop();
            // A progressive file for which the budget has no memory is decoded by the host.
            let mut decoder =
                decoder.unwrap_or_else(|| Decoder::new(stream.device()).coefficients_from(self.pool.clone()));
            let report = self.options.timeline.span(stream, Activity::Compute, "decode", || {
                let batch = decoder.read_with_reserved_prefix(&files)?;
                decoder.decode_into(stream, batch, rgb)
            });
            // It takes milliseconds, in which the threads that read have work for the core.
            let report = match report.and_then(|report| Ok(report.synchronize_sleeping()?)) {
                // Fewer images need less. Their order does not matter.
                Err(error) if lacks_memory(&error) && these.len() > 1 => {
                    let mut state = lock(&self.state);
                    state.stats().without_memory += 1;
                    state.pressure.no_memory_to_decode(sum);
                    drop(state);
                    drop(decoder);
                    stream.synchronize()?; // its memory is free
                    rest.extend(these);
                    rest.sort_unstable_by_key(|(number, _)| *number);
                    continue;
                }
                report => report?,
            };
            lock(&self.decoders).push(decoder);
            let why = |i: usize, number: usize| match report.image(i) {
                Ok(image) if image.bytes == ranges[number] => None,
                Ok(_) => Some("its size".to_owned()),
                Err(JpegError::Unsupported(kind)) => Some(kind.to_string()),
                Err(error) => Some(error.to_string()),
            };
            broken.extend(numbers.iter().enumerate().filter_map(|(i, number)| Some((*number, why(i, *number)?))));
            let bytes = numbers.iter().map(|number| ranges[*number].len()).sum();
            lock(&self.state).stats().device_decoding.add(bytes, begin.elapsed());
            begin = Instant::now();
        }
        broken.sort_unstable();
        if broken.is_empty() {
            // Otherwise the batch starts over.
            let count = front.images().filter(|image| matches!(image.pixels, Pixels::Jpeg(..))).count();
            lock(&self.state).stats().jpeg_on_device += count as u64;
        }
        Ok(broken)
    }

    /// Decodes a file that the device could not decode, and notes why. If that fails, the image
    /// becomes an error.
    pub(crate) fn decode_on_host(&self, front: &mut Assembly<M>, number: usize, why: String) {
        let Some(image) = front.images().nth(number) else { return };
        let Pixels::Jpeg(file, _) = &image.pixels else { return };
        // The file keeps its memory until it is decoded, so more of a spent budget may never come.
        let mut sink = ImageSink::new(&self.scratch, true, |bytes| match (self.pin)(&self.pool, bytes) {
            Ok(buffer) => Ok(Pixels::Pinned(buffer)),
            Err(error) => image_sink::zeros(bytes).map(Pixels::Pageable).map_err(|_| error),
        });
        let run = catch_unwind(AssertUnwindSafe(|| decode_photo(file.bytes(), &mut sink)));
        match decoded(run, sink.into_image()) {
            Ok((size, pixels)) => {
                lock(&self.state).note_jpeg(true, Some(why));
                if let Some(image) = front.images_mut().nth(number) {
                    (image.size, image.pixels) = (size, pixels);
                }
            }
            Err(cause) => self.lose(front, number, cause),
        }
    }
}

/// Whether an error says that there is no device memory.
pub(crate) fn lacks_memory(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory { .. } | Error::TooLarge { .. })
}
