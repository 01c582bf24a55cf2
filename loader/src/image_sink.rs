//! The memory into which a decoder writes its image.

use std::fmt;
use std::fs::File;

use thalweg::{Error, PinnedBuffer, Result, Size};

use crate::DecodeError;
use crate::error::SampleError;
use crate::scratch::Scratch;
use crate::staging::{self, InFile};

/// The memory into which a decoder writes its image.
pub struct ImageSink<'c> {
    memory: Box<dyn FnMut(usize) -> Result<Pixels> + 'c>,
    image: Option<(Size, Pixels)>,
    #[cfg_attr(not(feature = "image"), allow(dead_code, reason = "only photographs need it"))]
    pub(crate) scratch: &'c Scratch,
    /// Nothing is uploaded, so the pixels must be on the host.
    on_host: bool,
    /// The device decodes JPEG files.
    #[cfg(feature = "jpeg-device")]
    pub(crate) takes_jpeg: bool,
    /// This is a JPEG file that the host has decoded, and why the device did not, if it was to.
    pub(crate) host_jpeg: bool,
    pub(crate) left_device: Option<String>,
}

/// The pixels of an image.
pub(crate) enum Pixels {
    Pinned(PinnedBuffer<u8>),
    Pageable(Vec<u8>),
    /// Not yet in memory.
    File(InFile),
    /// A JPEG file in memory, which the device decodes, and the bytes of its pixels.
    #[cfg(feature = "jpeg-device")]
    Jpeg(Box<Pixels>, usize),
}

/// Makes zeros in pageable memory, if there is any: a small file may be a large image.
pub(crate) fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut zeros = Vec::new();
    match zeros.try_reserve_exact(bytes) {
        Ok(()) => zeros.resize(bytes, 0),
        Err(_) => return Err(Error::OutOfMemory { device: "the host".into(), wanted: bytes }),
    }
    Ok(zeros)
}

impl Pixels {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Pinned(buffer) => buffer.len(),
            Self::Pageable(vec) => vec.len(),
            Self::File(file) => file.bytes,
            #[cfg(feature = "jpeg-device")]
            Self::Jpeg(_, pixels) => *pixels,
        }
    }

    /// Returns the bytes that are in memory.
    #[cfg(feature = "jpeg-device")]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Pinned(buffer) => buffer,
            Self::Pageable(vec) => vec,
            Self::File(_) | Self::Jpeg(..) => &[],
        }
    }

    /// Returns the bytes that are in memory, to write them.
    #[cfg(feature = "jpeg-device")]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Pinned(buffer) => buffer,
            Self::Pageable(vec) => vec,
            Self::File(_) | Self::Jpeg(..) => &mut [],
        }
    }
}

impl<'c> ImageSink<'c> {
    pub(crate) fn new(scratch: &'c Scratch, on_host: bool, memory: impl FnMut(usize) -> Result<Pixels> + 'c) -> Self {
        Self {
            memory: Box::new(memory),
            image: None,
            scratch,
            on_host,
            #[cfg(feature = "jpeg-device")]
            takes_jpeg: false,
            host_jpeg: false,
            left_device: None,
        }
    }

    /// Says how large the image is, and returns the memory for its pixels: `[height, width, 3]`.
    /// The memory holds whatever an earlier image left there. Call this as soon as the size is
    /// known. Another call starts over.
    ///
    /// It waits while a [pinned budget](crate::LoaderOptions::pinned_budget) is spent.
    ///
    /// # Errors
    /// A side is 0, or there is no memory. Return the error from the decoder: the sample fails with
    /// it.
    pub fn rgb(&mut self, height: u32, width: u32) -> Result<&mut [u8]> {
        let bytes = Self::bytes(height, width)?;
        self.image = None; // gives its memory back first
        let (_, pixels) = self.image.insert((Size::new(height, width), (self.memory)(bytes)?));
        Ok(match pixels {
            Pixels::Pinned(buffer) => buffer,
            Pixels::Pageable(vec) => vec,
            _ => unreachable!("`memory` returns memory"),
        })
    }

    /// Says how large the image is, and that `file` holds its pixels from byte `at` on, in the
    /// order in which [`rgb`](Self::rgb) would hold them.
    ///
    /// They are read when the batch is uploaded. Threads read pieces of 4 MiB into a few
    /// page-locked slots, which stay in the processor's caches, and each piece goes to the device
    /// at once. So a large frame crosses host memory once; a frame that is read into memory of its
    /// own crosses it four times. The batch has no copy on the host
    /// ([`Batch::pixels`](crate::Batch::pixels) is empty). A file that ends too early fails the
    /// sample.
    ///
    /// The file stays open until then. A file opened for direct I/O (`O_DIRECT`) is read in whole
    /// blocks, past the page cache.
    ///
    /// With [`UploadMode::Off`](crate::UploadMode::Off), this call reads the pixels into memory at
    /// once, and the batch has them on the host. It does not align its reads as direct I/O needs.
    ///
    /// # Errors
    /// A side is 0, or the file ends before the image does. With
    /// [`UploadMode::Off`](crate::UploadMode::Off), also: there is no memory, or the file cannot be
    /// read.
    pub fn rgb_in_file(&mut self, height: u32, width: u32, file: File, at: u64) -> Result<(), DecodeError> {
        let bytes = Self::bytes(height, width)?;
        let failed = SampleError::file("read its pixels");
        staging::reaches(&file, at, bytes).map_err(failed)?;
        if self.on_host {
            return Ok(staging::fill(&file, at, bytes, bytes, self.rgb(height, width)?).map_err(failed)?);
        }
        self.image = Some((Size::new(height, width), Pixels::File(InFile { file, at, bytes })));
        Ok(())
    }

    /// Takes memory that is not for pixels.
    #[cfg(feature = "jpeg-device")]
    pub(crate) fn memory(&mut self, bytes: usize) -> Result<Pixels> {
        self.image = None;
        (self.memory)(bytes)
    }

    #[cfg(feature = "jpeg-device")]
    pub(crate) fn set(&mut self, size: Size, pixels: Pixels) {
        self.image = Some((size, pixels));
    }

    pub(crate) fn bytes(height: u32, width: u32) -> Result<usize> {
        let bytes = (height as usize).checked_mul(width as usize).and_then(|pixels| pixels.checked_mul(3));
        // More than an allocation can hold fails here, and so costs this sample alone.
        let largest = isize::MAX as usize / 2;
        bytes.filter(|&bytes| (1..=largest).contains(&bytes)).ok_or_else(|| Error::Parameter {
            name: "the image's size",
            given: format!("{height} x {width}"),
            expected: "at least 1 x 1 pixels, in memory".into(),
        })
    }

    pub(crate) fn into_image(self) -> Option<(Size, Pixels)> {
        self.image
    }
}

impl fmt::Debug for ImageSink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canvas").field("size", &self.image.as_ref().map(|(size, _)| size)).finish_non_exhaustive()
    }
}
