//! The reference profile: it computes what the published PyTorch project ARR-COC 0.1 computes of an
//! image, for people who move from that project.
//!
//! It is coarser than [`Pipeline`](crate::Pipeline). Images are resized to 512 x 512 and sampled at
//! 32 x 32 patches, and the 200 most relevant of these 1024 patches are selected. `docs/spec.md` of
//! the repository defines it.
//!
//! ```
//! use thalweg::Device;
//! use thalweg_vision::{Head, Image, Layer, Query, arr_coc_0_1};
//!
//! let noise = |n: usize| (0..n).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect::<Vec<_>>();
//! let (w1, b1, w2, b2) = (noise(64 * 13), noise(64), noise(3 * 64), noise(3));
//! let head = Head::new(Layer { weight: &w1, bias: &b1 }, Layer { weight: &w2, bias: &b2 })?;
//! let profile = arr_coc_0_1::Profile::new(Device::best()?, &head, &Query::new(&[0.3, -1.0, 0.2])?)?;
//!
//! let image = Image::new(50, 70, (0..50 * 70 * 3).map(|i| (i * 31 % 251) as u8).collect())?;
//! let maps = profile.run(&[image])?.remove(0);
//! let best = maps.topk[0] as usize;
//! assert!(maps.relevance.iter().all(|r| *r <= maps.relevance[best]));
//! # Ok::<(), thalweg_vision::Error>(())
//! ```

use thalweg::__counted as counted;
use thalweg::{
    AnyStream, Device, DeviceBuffer, DeviceCopy, DeviceSlice, Error, LiveBrand, On, PinnedBuffer, Resource, Result,
    Shared, Stream,
};

use crate::kernels::{BatchTable, MAX_IMAGES, ParticipatoryMut, RelevanceMut, Salience, Scores};
use crate::{Head, Image, PLANES, Query, kernels};

/// Rows and columns of patches.
pub const SIDE: usize = 32;

/// The number of patches that are selected.
pub const SELECTED: usize = 200;

const PATCHES: usize = SIDE * SIDE;

/// The plane that is the perspectival score, which is the scaled edge magnitude.
const EDGE: u32 = 7;

/// The most images that are under way at once, and their bytes. A larger image goes alone.
const IMAGES: usize = 1024;
const BYTES: usize = 256 << 20;

/// The maps that the profile computes of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Maps {
    /// `[13, 32, 32]`: the planes R, G, B, L, a, Gx, Gy, edge magnitude, y, x, eccentricity, edge
    /// magnitude, L.
    pub textures: Vec<f32>,
    /// `[32, 32]`: the entropy of the softmax of a patch's planes, scaled to 0 to 1.
    pub information: Vec<f32>,
    /// `[32, 32]`: the edge magnitude, scaled to 0 to 1.
    pub perspectival: Vec<f32>,
    /// `[32, 32]`: how well a patch meets the query, 0 to 1.
    pub participatory: Vec<f32>,
    /// The weights of these three scores.
    pub mix: [f32; 3],
    /// `[32, 32]`: the relevance, 0 to 1.
    pub relevance: Vec<f32>,
    /// `[200]`: the most relevant patches, in order. Equal patches come in raster order.
    pub topk: Vec<i32>,
}

/// The profile for a head and a query, on a device.
#[derive(Debug)]
pub struct Profile {
    device: Device,
    stream: AnyStream,
    coupling: Shared<DeviceBuffer<f32>>,
    predictor: Option<Shared<DeviceBuffer<f32>>>,
}

/// Device memory for the maps of some images, one after another in each buffer. [`Profile::alloc`]
/// makes it.
#[derive(Debug, Resource)]
pub struct DeviceMaps {
    /// `[B, 13, 32, 32]`: the planes.
    pub textures: DeviceBuffer<f32>,
    /// `[B, 32, 32]`: the entropy of each patch.
    pub information: DeviceBuffer<f32>,
    /// `[B, 32, 32]`: the edge magnitude.
    pub perspectival: DeviceBuffer<f32>,
    /// `[B, 32, 32]`: how well each patch meets the query.
    pub participatory: DeviceBuffer<f32>,
    /// `[B, 32, 32]`: the relevance.
    pub relevance: DeviceBuffer<f32>,
    /// `[B, 3]`: the weights of the scores. Each is a third if the head has no balancer.
    pub mix: DeviceBuffer<f32>,
    /// `[B, 200]`: the most relevant patches.
    pub topk: DeviceBuffer<i32>,
    features: DeviceBuffer<f32>,
    summaries: DeviceBuffer<f32>,
    /// The layout of the patches, in the form that the batch kernels take.
    layout: DeviceBuffer<u32>,
}

/// The maps on the host.
#[derive(Debug, Resource)]
struct HostMaps {
    textures: PinnedBuffer<f32>,
    information: PinnedBuffer<f32>,
    perspectival: PinnedBuffer<f32>,
    participatory: PinnedBuffer<f32>,
    relevance: PinnedBuffer<f32>,
    mix: PinnedBuffer<f32>,
    topk: PinnedBuffer<i32>,
}

/// Checks a number of images: each kernel has a block, or a row of blocks, for each image.
fn check_images(images: usize) -> Result<()> {
    if images > MAX_IMAGES as usize {
        return Err(Error::Parameter {
            name: "batch",
            given: counted(images, "image"),
            expected: format!("at most {MAX_IMAGES}"),
        });
    }
    Ok(())
}

impl Profile {
    /// A profile with a stream of its own. Without a balancer, the three scores weigh the same.
    /// Waits until the weights are on the device.
    ///
    /// # Errors
    /// Head and query differ in dimension, or the device has failed.
    pub fn new(device: Device, head: &Head, query: &Query) -> crate::Result<Self> {
        let (coupling, predictor) = (head.projection(query)?, head.balancer_weights(query)?);
        let stream = AnyStream::new(device)?;
        let (coupling, predictor) = stream.enter(|s| {
            let keep = |values: Vec<f32>| -> Result<_> { Ok(s.share(s.upload_blocking(&values)?)?) };
            Ok::<_, Error>((keep(coupling)?, predictor.map(keep).transpose()?))
        })?;
        Ok(Self { device, stream, coupling, predictor })
    }

    /// The device that the profile runs on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Processes images of any sizes, many at a time, and waits for the results. They come in
    /// order.
    ///
    /// # Errors
    /// There is no memory, or the device has failed.
    pub fn run(&self, images: &[Image]) -> Result<Vec<Maps>> {
        let mut done = Vec::with_capacity(images.len());
        let mut rest = images;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fitting = rest.iter().take(IMAGES).take_while(|image| {
                bytes += image.rgb().len();
                bytes <= BYTES
            });
            let (batch, later) = rest.split_at(fitting.count().max(1));
            rest = later;
            done.extend(self.batch(batch)?);
        }
        Ok(done)
    }

    fn batch(&self, images: &[Image]) -> Result<Vec<Maps>> {
        let mut rgb = self.device.pinned(images.iter().map(|image| image.rgb().len()).sum())?;
        let mut table = self.device.pinned(3 * images.len())?;
        let mut start = 0;
        for (image, row) in images.iter().zip(table.chunks_exact_mut(3)) {
            // `start` is below 2^32: several images have at most `BYTES` bytes together, and a
            // single image starts at 0.
            row.copy_from_slice(&[start as u32, image.height(), image.width()]);
            rgb[start..start + image.rgb().len()].copy_from_slice(image.rgb());
            start += image.rgb().len();
        }
        let maps = self.stream.enter(|stream| {
            let (rgb, table) = (stream.bind(rgb)?, stream.bind(table)?);
            let mut device_rgb = stream.alloc(rgb.len())?;
            let mut device_table = stream.alloc(table.len())?;
            stream.copy_to_device(&rgb, &mut device_rgb)?;
            stream.copy_to_device(&table, &mut device_table)?;
            let mut maps = self.alloc(stream, images.len())?;
            self.enqueue(stream, &device_table, &device_rgb, &mut maps)?;
            let maps = HostMapsOn {
                textures: self.download(stream, &maps.textures)?,
                information: self.download(stream, &maps.information)?,
                perspectival: self.download(stream, &maps.perspectival)?,
                participatory: self.download(stream, &maps.participatory)?,
                relevance: self.download(stream, &maps.relevance)?,
                mix: self.download(stream, &maps.mix)?,
                topk: self.download(stream, &maps.topk)?,
            };
            Ok::<_, Error>(stream.record(maps)?)
        })?;
        let maps = maps.synchronize()?;
        let map = |map: &[f32], i: usize| map[i * PATCHES..(i + 1) * PATCHES].to_vec();
        let of = |i: usize| Maps {
            textures: maps.textures[i * PLANES * PATCHES..(i + 1) * PLANES * PATCHES].to_vec(),
            information: map(&maps.information, i),
            perspectival: map(&maps.perspectival, i),
            participatory: map(&maps.participatory, i),
            relevance: map(&maps.relevance, i),
            mix: [maps.mix[3 * i], maps.mix[3 * i + 1], maps.mix[3 * i + 2]],
            topk: maps.topk[i * SELECTED..(i + 1) * SELECTED].to_vec(),
        };
        Ok((0..images.len()).map(of).collect())
    }

    /// Device memory for the maps of this many images, at most 65535.
    ///
    /// # Errors
    /// There are too many images, there is no memory, or the device has failed.
    pub fn alloc<S: LiveBrand>(&self, stream: &Stream<S>, images: usize) -> Result<DeviceMapsOn<S>> {
        check_images(images)?;
        let mut mix = stream.alloc(3 * images)?;
        stream.fill(&mut mix, 1.0 / 3.0)?;
        // The layout of images of 32 x 32 pixels in which each pixel is a patch.
        let table: Vec<u32> = (0..=images as u32).flat_map(|b| [32, 32, 0, b * PATCHES as u32]).collect();
        let table = stream.bind(self.device.pinned_from(&table)?)?;
        let mut layout = stream.alloc(table.len())?;
        stream.copy_to_device(&table, &mut layout)?;
        Ok(DeviceMapsOn {
            textures: stream.alloc(images * PLANES * PATCHES)?,
            information: stream.alloc(images * PATCHES)?,
            perspectival: stream.alloc(images * PATCHES)?,
            participatory: stream.alloc(images * PATCHES)?,
            relevance: stream.alloc(images * PATCHES)?,
            mix,
            topk: stream.alloc(images * SELECTED)?,
            features: stream.alloc(images * PLANES * PATCHES)?,
            summaries: stream.alloc(12 * (images * PATCHES / 64 + images))?,
            layout,
        })
    }

    /// Enqueues the computation of the maps of images that are on the device, and returns without
    /// waiting. One launch of each kernel handles all images.
    ///
    /// `table` [B, 3] holds for each image the byte of `rgb` where it starts (interleaved RGB), its
    /// height and its width in pixels, as [`kernels::profile_sample`] takes them. `maps` must be
    /// for B images.
    ///
    /// # Errors
    /// The lengths do not agree, there are more than 65535 images, or the device has failed.
    pub fn enqueue<S: LiveBrand>(
        &self,
        stream: &Stream<S>,
        table: &DeviceSlice<S, u32>,
        rgb: &DeviceSlice<S, u8>,
        maps: &mut DeviceMapsOn<S>,
    ) -> Result<()> {
        check_images(table.len() / 3)?;
        let images = (table.len() / 3) as u32;
        let n = PATCHES as u32;
        let DeviceMapsOn { information, perspectival, participatory, relevance, mix, topk, .. } = maps;
        let (textures, features, summaries) = (&mut maps.textures, &mut maps.features, &mut maps.summaries);
        let batch = BatchTable { images, patches: images * n, largest: n, table: &maps.layout };
        kernels::profile_sample(stream, images, rgb.len() as u32, table, rgb, textures)?;
        kernels::profile_scale(stream, images, textures, features, information)?;
        // The score is scaled already, so a peak of 1 leaves it unchanged.
        let coupling = stream.reading(&self.coupling)?;
        let how = Salience { edge: EDGE, least_peak: 1.0, foveal_bias: 0.0 };
        let out = ParticipatoryMut { participatory, salience: perspectival, summaries };
        kernels::participatory(stream, &batch, how, features, information, &coupling, out)?;
        if let Some(predictor) = &self.predictor {
            kernels::balance(stream, &batch, summaries, &stream.reading(predictor)?, false, mix)?;
        }
        let scores = Scores { entropy: information, participatory, summaries, mix };
        let out = RelevanceMut { salience: perspectival, relevance };
        kernels::relevance_with_query(stream, &batch, &scores, out)?;
        kernels::top(stream, images, n, SELECTED as u32, relevance, topk)
    }

    fn download<S: LiveBrand, T: DeviceCopy>(
        &self,
        stream: &Stream<S>,
        from: &On<S, DeviceBuffer<T>>,
    ) -> Result<On<S, PinnedBuffer<T>>> {
        let mut to = stream.bind(self.device.pinned(from.len())?)?;
        stream.copy_to_host(from, &mut to)?;
        Ok(to)
    }
}
