//! A stage for the chunked patterns, with an adjustable amount of work.

use thalweg::overlap::{Chunks, StageTimes, measure_stages};
use thalweg::{AnyStream, Device, DeviceBuffer, DeviceSlice, Error, LiveBrand, PinnedBuffer, Ring, Stream};
use thalweg_vision::{PLANES, kernels};

/// A stage with an adjustable amount of work. It computes the edge magnitude of images and keeps
/// the middle three quarters of their rows, so that as many bytes are downloaded (4 for each kept
/// pixel) as are uploaded (3 for each pixel).
pub struct Edges {
    height: u32,
    width: u32,
    /// Extra rows of textures that are computed for each image and not kept.
    pub extra_rows: u32,
    /// Memory for textures, which the streams use in turn.
    planes: Ring<DeviceBuffer<f32>>,
}

impl Edges {
    /// Makes a stage for images of `height` (a multiple of 8) by `width`, with `streams` streams
    /// that run kernels.
    pub fn new(device: Device, height: u32, width: u32, streams: usize) -> Result<Self, Error> {
        let room = PLANES * height as usize * width as usize;
        let make = move || AnyStream::new(device)?.enter(|s| s.alloc(room)?.synchronize());
        Ok(Self { height, width, extra_rows: 0, planes: Ring::new(streams, make)? })
    }

    /// Cuts a buffer into chunks of whole images.
    pub fn chunks(&self, count: usize) -> Chunks {
        let pixels = self.height as usize * self.width as usize;
        Chunks::of_items(count, 3 * pixels, 3 * pixels / 4)
    }

    /// Enqueues the work on a chunk.
    pub fn run<S: LiveBrand>(
        &mut self,
        s: &Stream<S>,
        rgb: &DeviceSlice<S, u8>,
        edges: &mut DeviceSlice<S, f32>,
    ) -> Result<(), Error> {
        let (height, width) = (self.height, self.width as usize);
        let pixels = height as usize * width;
        let mut planes = s.wait(self.planes.acquire()?)?;
        for image in 0..rgb.len() / (3 * pixels) {
            let rgb = rgb.slice(3 * image * pixels..3 * (image + 1) * pixels)?;
            let mut textures = |rows: u32| {
                let pixels = rows as usize * width;
                let planes = planes.slice_mut(..PLANES * pixels)?;
                kernels::textures(s, rows, self.width, 0.5, 0.5, rgb.slice(..3 * pixels)?, planes)
            };
            let (passes, rest) = (self.extra_rows / height, self.extra_rows % height);
            (0..passes).try_for_each(|_| textures(height))?;
            if rest > 0 {
                textures(rest)?;
            }
            textures(height)?;
            let kept = pixels * kernels::EDGE as usize + pixels / 8;
            let kept = planes.slice(kept..kept + 3 * pixels / 4)?;
            s.copy(kept, edges.slice_mut(3 * pixels / 4 * image..3 * pixels / 4 * (image + 1))?)?;
        }
        self.planes.recycle(s.record(planes)?);
        Ok(())
    }

    /// Sets the work so that a chunk's kernels take as long as its upload, or as little as possible
    /// if they take longer in any case. Returns the time that each step of a chunk then takes
    /// alone, and the input.
    pub fn balance(
        &mut self,
        stream: &AnyStream,
        mut input: PinnedBuffer<u8>,
        chunks: Chunks,
    ) -> Result<(StageTimes, PinnedBuffer<u8>), Error> {
        let mut times = |edges: &mut Self, extra_rows| {
            edges.extra_rows = extra_rows;
            let nothing = stream.device().pinned(0)?;
            let given = std::mem::replace(&mut input, nothing);
            let (times, back) = measure_stages(stream, given, chunks, |s, x, y| edges.run(s, x, y))?;
            input = back;
            Ok::<_, Error>(times)
        };
        let (bare, doubled) = (times(self, 0)?, times(self, self.height)?);
        let row = doubled.kernel.saturating_sub(bare.kernel).as_secs_f64() / f64::from(self.height);
        let missing = bare.upload.saturating_sub(bare.kernel).as_secs_f64();
        let balanced = times(self, if row > 0.0 { (missing / row) as u32 } else { 0 })?;
        Ok((balanced, input))
    }
}
