//! Images on the device, and what travels with them.

use std::ops::Range;

use thalweg::{DeviceBuffer, PinnedBuffer, Resource, Size};

/// Images of any sizes on the device, and what travels with them.
///
/// On a stream it has the form [`BatchOn<S>`](BatchOn). The fields that are not buffers can be read
/// in every state.
#[derive(Debug, Resource)]
#[resource(unzip)]
pub struct Batch<M: Clone + Send + 'static> {
    /// The pixels of the images, interleaved RGB, one image after another. [`byte_ranges`] says
    /// where each image lies; each begins at a multiple of 16 bytes, and the bytes between two
    /// images are arbitrary. The buffer is empty with [`UploadMode::Off`](crate::UploadMode::Off).
    pub rgb: DeviceBuffer<u8>,
    /// The same pixels on the host, as they were decoded. A buffer is empty if its memory could not
    /// be page-locked (then [`Batch::pixels`] still has the pixels), and if the pixels went from a
    /// file to the device ([`ImageSink::rgb_in_file`](crate::ImageSink::rgb_in_file)).
    pub images: Vec<PinnedBuffer<u8>>,
    #[resource(plain)]
    pub(crate) pageable: Vec<Vec<u8>>,
    /// The size of each image.
    #[resource(plain)]
    pub sizes: Vec<Size>,
    /// The index of each image in its source.
    #[resource(plain)]
    pub indices: Vec<u64>,
    /// The names of the samples.
    #[resource(plain)]
    pub names: Vec<String>,
    /// The metadata of the samples.
    #[resource(plain)]
    pub meta: Vec<M>,
    /// The indices of the samples of this batch that failed, in no particular order. They are not
    /// among the images.
    #[resource(plain)]
    pub failed: Vec<u64>,
}

impl<M: Clone + Send + 'static> Batch<M> {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there are no images, because all samples failed. Only a loader with
    /// [`drop_last`](crate::LoaderOptions::drop_last) yields such a batch.
    ///
    /// There is nothing to launch for it, and no kernel layout can describe it. Wait for it, record
    /// it and recycle it like any other batch. On a stream, `sizes.is_empty()` says the same.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// The pixels of an image on the host, interleaved RGB. The slice is empty if they went from a
    /// file to the device.
    ///
    /// # Panics
    /// There is no such image: `image` is not below [`len`](Self::len).
    pub fn pixels(&self, image: usize) -> &[u8] {
        if self.pageable[image].is_empty() { &self.images[image] } else { &self.pageable[image] }
    }
}

/// Returns the ranges of images of these sizes in [`Batch::rgb`]: one after
/// another, each from a multiple of 16 bytes on.
///
/// # Panics
/// The images together have more bytes than a `usize` can count, which no batch has.
pub fn byte_ranges(sizes: &[Size]) -> Vec<Range<usize>> {
    let mut start = 0_usize;
    let range = |&Size { height, width }: &Size| {
        let bytes = (height as usize).checked_mul(width as usize).and_then(|pixels| pixels.checked_mul(3));
        let end = bytes.and_then(|bytes| start.checked_add(bytes)).filter(|end| *end <= usize::MAX - 15);
        let range = start..end.expect("the images have more bytes than a `usize` can count");
        start = padded(range.end); // it began at a multiple of 16
        range
    };
    sizes.iter().map(range).collect()
}

/// Bytes of an image and of the gap up to the next one.
pub(crate) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}
