//! The pipeline: three streams, one image behind the other.
//!
//! ```text
//! texture     | up 0 | textures 0 | up 1 | textures 1 | up 2 | ...
//! relevance                       | features, entropy, relevance 0 | ... 1
//! allocation                                                       | allocate, compress, down 0 | ... 1
//! ```
//!
//! Between the streams the buffers travel as events, so a stage of image 1 runs beside a later stage of image 0. Nothing
//! waits for the host between an image's upload and its result: how many tokens there are is known only with them, so
//! their buffers are sized by the budget.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Resource;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::{Event, TimedEvent};
use crate::lane::AnyStream;
use crate::memory::{DeviceBuffer, PinnedBuffer, Plain};
use crate::resource::On;
use crate::shared::Shared;
use crate::stream::{Stream, StreamTag};
use crate::vision::allocate::Capacity;
use crate::vision::kernels::Layout;
use crate::vision::params::check_size;
use crate::vision::{Head, Image, PLANES, Params, Query, kernels};

/// Images that [`Pipeline::run`] keeps under way: enough to fill three stages and the host's own work.
const DEPTH: usize = 4;

/// Everything about one image's tokens, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenSet {
    /// Rows of the image.
    pub height: u32,
    /// Columns of the image.
    pub width: u32,
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Rows and columns of patches, `gh` and `gw`.
    pub grid: [u32; 2],
    /// `[T, 13]`: the mean of each plane over a token's cell, selected patches one after another in raster order,
    /// cells of a patch in raster order.
    pub tokens: Vec<f32>,
    /// `[K + 1]`: where each selected patch's tokens start, and the end; as variable-length attention takes it.
    pub cu_seqlens: Vec<i32>,
    /// `[K]`: raster index of each selected patch.
    pub patch_id: Vec<i32>,
    /// `[T, 2]`: centre of each token's cell, (y, x) as fractions of height and width.
    pub position: Vec<f32>,
    /// `[gh, gw]`: side `n` of each patch's `n` x `n` tokens, or 0.
    pub sides: Vec<i32>,
    /// `[gh, gw]`: relevance, 0 to 1.
    pub relevance: Vec<f32>,
    /// `[gh, gw]`: entropy of the luma histogram in bits, divided by 8.
    pub entropy: Vec<f32>,
    /// `[gh, gw]`: mean edge magnitude, as a fraction of the largest, less the foveal bias.
    pub salience: Vec<f32>,
    /// `[gh, gw]`: how well a patch meets the query, 0 to 1, where there is one.
    pub participatory: Option<Vec<f32>>,
    /// The weights that entropy, salience and participatory score had, where there is a query.
    pub mix: Option<[f32; 3]>,
    /// `[gh * gw, 13]`: mean of each plane over each patch.
    pub features: Vec<f32>,
    /// `[13, H, W]`: the texture array, where it was asked for.
    pub textures: Option<Vec<f32>>,
}

impl TokenSet {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.cu_seqlens.last().copied().unwrap_or(0) as usize
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Device time that each stage took, summed over images. Stages of different images overlap, so it may pass the
/// time on the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Host to device.
    pub upload: Duration,
    /// The texture array.
    pub textures: Duration,
    /// Features, entropy and relevance.
    pub relevance: Duration,
    /// Allocation and compression.
    pub allocation: Duration,
    /// Device to host.
    pub download: Duration,
}

/// Images to tokens, on three streams of a device.
///
/// ```
/// use thalweg::Device;
/// use thalweg::vision::{Image, Params, Pipeline};
///
/// let images: Vec<Image> = [(40, 70), (33, 32), (1, 90)] // any mix of sizes
///     .into_iter()
///     .map(|(h, w)| Image::new(h, w, (0..3 * h * w).map(|i| (i * 31 % 251) as u8).collect()))
///     .collect::<Result<_, _>>()?;
/// let mut pipeline = Pipeline::new(Device::best()?, Params::default())?;
/// for tokens in pipeline.run(&images) {
///     assert!(tokens?.len() <= 4096);
/// }
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    device: Device,
    params: Params,
    gains: Vec<u32>,
    keep_textures: bool,
    query: Option<Coupled>,
    texture: AnyStream,
    relevance: AnyStream,
    allocation: AnyStream,
    stages: Stages,
}

/// A head and a query on the device.
#[derive(Debug)]
struct Coupled {
    coupling: Shared<DeviceBuffer<f32>>,
    mix: Mix,
}

/// Where the weights of three scores come from.
#[derive(Debug)]
enum Mix {
    Fixed(Shared<DeviceBuffer<f32>>),
    Balancer(Shared<DeviceBuffer<f32>>),
}

/// An image under way; [`Pipeline::finish`] waits for its tokens.
#[derive(Debug)]
pub struct Submitted {
    height: u32,
    width: u32,
    patch: u32,
    grid: [u32; 2],
    results: Event<Results>,
    times: Times,
}

/// What comes back to the host, sized for the most there can be.
#[derive(Debug, Resource)]
struct Results {
    tokens: PinnedBuffer<f32>,
    cu_seqlens: PinnedBuffer<i32>,
    patch_id: PinnedBuffer<i32>,
    position: PinnedBuffer<f32>,
    counts: PinnedBuffer<u32>,
    sides: PinnedBuffer<i32>,
    relevance: PinnedBuffer<f32>,
    entropy: PinnedBuffer<f32>,
    salience: PinnedBuffer<f32>,
    participatory: Option<PinnedBuffer<f32>>,
    mix: Option<PinnedBuffer<f32>>,
    features: PinnedBuffer<f32>,
    textures: Option<PinnedBuffer<f32>>,
}

/// Points in the three streams' time, in the order of the stages.
#[derive(Debug)]
struct Times {
    upload: [TimedEvent; 2],
    textures: TimedEvent,
    relevance: [TimedEvent; 2],
    allocation: [TimedEvent; 2],
    download: TimedEvent,
}

impl Pipeline {
    /// A pipeline on three streams of its own.
    ///
    /// # Errors
    /// A parameter is out of its range, or the device has failed.
    pub fn new(device: Device, params: Params) -> Result<Self> {
        params.validate()?;
        let (lo, hi) = params.side_bounds();
        Ok(Self {
            device,
            gains: kernels::gains(lo, hi, params.focus),
            params,
            keep_textures: false,
            query: None,
            texture: AnyStream::new(device)?,
            relevance: AnyStream::new(device)?,
            allocation: AnyStream::new(device)?,
            stages: Stages::default(),
        })
    }

    /// Whether the texture array comes back too (52 bytes a pixel). Default no.
    pub fn with_textures(mut self, keep: bool) -> Self {
        self.keep_textures = keep;
        self
    }

    /// Makes the participatory score of a query part of relevance, with the balance of the head's balancer if there is one and
    /// [`Params::mix`] does not say otherwise. Waits until the weights are on the device.
    ///
    /// # Errors
    /// Head and query differ in dimension ([`Error::Tensor`]), or the device has failed.
    pub fn with_query(mut self, head: &Head, query: &Query) -> Result<Self> {
        let coupling = head.coupling(query)?;
        let predictor = head.predictor(query)?;
        self.query = Some(self.relevance.enter(|stream| {
            let keep = |values: &[f32]| -> Result<_> { Ok(stream.share(stream.upload_blocking(values)?)?) };
            let mix = match (self.params.mix, predictor) {
                (None, Some(predictor)) => Mix::Balancer(keep(&predictor)?),
                (mix, _) => Mix::Fixed(keep(&mix.unwrap_or([1.0 / 3.0; 3]))?),
            };
            Ok::<_, Error>(Coupled { coupling: keep(&coupling)?, mix })
        })?);
        Ok(self)
    }

    /// The device it runs on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Device time of the images finished so far.
    pub fn stages(&self) -> Stages {
        self.stages
    }

    /// Processes images of any sizes, some of them at a time, and waits for all. A result, or an error, for each
    /// image, in order; one that fails does not stop the others.
    pub fn run(&mut self, images: &[Image]) -> Vec<Result<TokenSet>> {
        let mut done = Vec::with_capacity(images.len());
        let mut under_way = VecDeque::new();
        for image in images {
            if under_way.len() == DEPTH
                && let Some(first) = under_way.pop_front()
            {
                done.push(self.settle(first));
            }
            let submitted =
                self.device.pinned_from(image.rgb()).and_then(|rgb| self.submit(image.height(), image.width(), rgb));
            under_way.push_back(submitted);
        }
        done.extend(under_way.into_iter().map(|submitted| self.settle(submitted)));
        done
    }

    fn settle(&mut self, submitted: Result<Submitted>) -> Result<TokenSet> {
        self.finish(submitted?)
    }

    /// Starts an image in page-locked memory on its way, and returns without waiting for it.
    ///
    /// # Errors
    /// The bytes are not `3 * height * width`, [`Params::mix`] weighs a query that is not there, there is no memory, or the
    /// device has failed.
    pub fn submit(&self, height: u32, width: u32, rgb: PinnedBuffer<u8>) -> Result<Submitted> {
        check_size(height, width, rgb.len())?;
        if let (None, Some([.., third])) = (&self.query, self.params.mix)
            && third != 0.0
        {
            return Err(Error::Parameter {
                name: "mix",
                given: format!("{third} for the participatory score"),
                expected: "0, since there is no query".into(),
            });
        }
        self.texture.enter(|texture| {
            self.relevance.enter(|relevance| {
                self.allocation.enter(|allocation| self.enqueue(height, width, rgb, texture, relevance, allocation))
            })
        })
    }

    fn enqueue<A: StreamTag, B: StreamTag, C: StreamTag>(
        &self,
        height: u32,
        width: u32,
        rgb: PinnedBuffer<u8>,
        texture: &Stream<A>,
        relevance: &Stream<B>,
        allocation: &Stream<C>,
    ) -> Result<Submitted> {
        let Params { patch, fixation: [fixation_y, fixation_x], foveal_bias, .. } = self.params;
        let (lo, hi) = self.params.side_bounds();
        let [gh, gw] = self.params.grid(height, width);
        let patches = gh as usize * gw as usize;
        let capacity = Capacity::new(&self.params, patches)?;
        let pixels = height as usize * width as usize;

        let upload_start = texture.timestamp()?;
        let host = texture.bind(rgb)?;
        let mut rgb = texture.alloc(3 * pixels)?;
        texture.copy_to_device(&host, &mut rgb)?;
        let upload_end = texture.timestamp()?;
        let mut planes = texture.alloc(PLANES * pixels)?;
        kernels::textures(texture, height, width, fixation_y, fixation_x, &rgb, &mut planes)?;
        let textures_end = texture.timestamp()?;
        let (rgb, planes) = texture.hand((rgb, planes), relevance)?;

        let relevance_start = relevance.timestamp()?;
        let layout = Layout::new(&[[height, width]], patch)?;
        let n = layout.patches();
        let host_table = relevance.bind(self.device.pinned_from(layout.table())?)?;
        let mut table = relevance.alloc(host_table.len())?;
        relevance.copy_to_device(&host_table, &mut table)?;
        let mut features = relevance.alloc(PLANES * patches)?;
        let mut entropy = relevance.alloc(patches)?;
        let mut salience = relevance.alloc(patches)?;
        let mut map = relevance.alloc(patches)?;
        kernels::features(relevance, height, width, patch, &planes, &mut features)?;
        kernels::entropy(relevance, height, width, patch, &rgb, &mut entropy)?;
        let coupled = match &self.query {
            Some(query) => {
                Some(couple(relevance, query, foveal_bias, &table, &features, &entropy, &mut salience, &mut map)?)
            }
            None => {
                let [mix_entropy, mix_salience, _] = self.params.mix.unwrap_or([0.5, 0.5, 0.0]);
                kernels::relevance(
                    relevance,
                    1,
                    n,
                    n,
                    foveal_bias,
                    mix_entropy,
                    mix_salience,
                    &table,
                    &features,
                    &entropy,
                    &mut salience,
                    &mut map,
                )?;
                None
            }
        };
        let relevance_end = relevance.timestamp()?;
        let scores = (table, planes, features, entropy, salience, map, coupled);
        let (table, planes, features, entropy, salience, map, coupled) = relevance.hand(scores, allocation)?;
        let (participatory, mix) = coupled.unzip();

        let allocation_start = allocation.timestamp()?;
        let gains = allocation.bind(self.device.pinned_from(&self.gains)?)?;
        let mut device_gains = allocation.alloc(self.gains.len())?;
        allocation.copy_to_device(&gains, &mut device_gains)?;
        let mut sides = allocation.alloc(patches)?;
        let mut cu_seqlens = allocation.alloc(capacity.selected + 1)?;
        let mut patch_id = allocation.alloc(capacity.selected)?;
        let mut counts = allocation.alloc(2)?;
        let (mut image_tokens, mut image_patches) = (allocation.alloc(2)?, allocation.alloc(2)?);
        kernels::allocate(
            allocation,
            1,
            n,
            n,
            lo,
            hi,
            capacity.budget,
            &table,
            &map,
            &device_gains,
            &mut sides,
            &mut cu_seqlens,
            &mut patch_id,
            &mut counts,
            &mut image_tokens,
            &mut image_patches,
        )?;
        // Zeroed, because all of it is downloaded and only the first T rows are written.
        let mut tokens = allocation.alloc_zeroed(PLANES * capacity.tokens)?;
        let mut position = allocation.alloc_zeroed(2 * capacity.tokens)?;
        kernels::compress(
            allocation,
            height,
            width,
            patch,
            capacity.selected as u32,
            capacity.tokens as u32,
            &planes,
            &sides,
            &cu_seqlens,
            &patch_id,
            &counts,
            &mut tokens,
            &mut position,
        )?;
        let allocation_end = allocation.timestamp()?;

        let results = ResultsOn {
            tokens: self.download(allocation, &tokens)?,
            cu_seqlens: self.download(allocation, &cu_seqlens)?,
            patch_id: self.download(allocation, &patch_id)?,
            position: self.download(allocation, &position)?,
            counts: self.download(allocation, &counts)?,
            sides: self.download(allocation, &sides)?,
            relevance: self.download(allocation, &map)?,
            entropy: self.download(allocation, &entropy)?,
            salience: self.download(allocation, &salience)?,
            participatory: participatory.map(|p| self.download(allocation, &p)).transpose()?,
            mix: mix.map(|m| self.download(allocation, &m)).transpose()?,
            features: self.download(allocation, &features)?,
            textures: self.keep_textures.then(|| self.download(allocation, &planes)).transpose()?,
        };
        let download = allocation.timestamp()?;
        Ok(Submitted {
            height,
            width,
            patch,
            grid: [gh, gw],
            results: allocation.record(results)?,
            times: Times {
                upload: [upload_start, upload_end],
                textures: textures_end,
                relevance: [relevance_start, relevance_end],
                allocation: [allocation_start, allocation_end],
                download,
            },
        })
    }

    fn download<S: StreamTag, T: Plain>(
        &self,
        stream: &Stream<S>,
        from: &On<S, DeviceBuffer<T>>,
    ) -> Result<On<S, PinnedBuffer<T>>> {
        let mut to = stream.bind(self.device.pinned(from.len())?)?;
        stream.copy_to_host(from, &mut to)?;
        Ok(to)
    }

    /// Waits for an image's tokens.
    ///
    /// # Errors
    /// The device has failed.
    pub fn finish(&mut self, submitted: Submitted) -> Result<TokenSet> {
        let Submitted { height, width, patch, grid, results, times } = submitted;
        let results = results.synchronize()?;
        self.stages = self.stages + Stages::measured(&times)?;
        let (tokens, selected) = (results.counts[0] as usize, results.counts[1] as usize);
        Ok(TokenSet {
            height,
            width,
            patch,
            grid,
            tokens: results.tokens[..PLANES * tokens].to_vec(),
            cu_seqlens: results.cu_seqlens[..=selected].to_vec(),
            patch_id: results.patch_id[..selected].to_vec(),
            position: results.position[..2 * tokens].to_vec(),
            sides: results.sides.to_vec(),
            relevance: results.relevance.to_vec(),
            entropy: results.entropy.to_vec(),
            salience: results.salience.to_vec(),
            participatory: results.participatory.map(|p| p.to_vec()),
            mix: results.mix.map(|m| [m[0], m[1], m[2]]),
            features: results.features.to_vec(),
            textures: results.textures.map(|t| t.to_vec()),
        })
    }
}

/// Salience and relevance of an image with a query; its participatory score and the weights of the three scores.
#[expect(clippy::type_complexity, clippy::too_many_arguments, reason = "buffers")]
fn couple<S: StreamTag>(
    stream: &Stream<S>,
    query: &Coupled,
    foveal_bias: f32,
    table: &On<S, DeviceBuffer<u32>>,
    features: &On<S, DeviceBuffer<f32>>,
    entropy: &On<S, DeviceBuffer<f32>>,
    salience: &mut On<S, DeviceBuffer<f32>>,
    relevance: &mut On<S, DeviceBuffer<f32>>,
) -> Result<(On<S, DeviceBuffer<f32>>, On<S, DeviceBuffer<f32>>)> {
    let patches = entropy.len();
    let n = patches as u32;
    let mut participatory = stream.alloc(patches)?;
    let mut summaries = stream.alloc(12 * (patches / 64 + 1))?;
    let coupling = stream.read(&query.coupling)?;
    kernels::participatory(
        stream,
        1,
        n,
        kernels::EDGE,
        0.0,
        foveal_bias,
        table,
        features,
        entropy,
        &coupling,
        &mut participatory,
        salience,
        &mut summaries,
    )?;
    let mut mix = stream.alloc(3)?;
    match &query.mix {
        Mix::Fixed(weights) => stream.copy(&stream.read(weights)?, &mut mix)?,
        Mix::Balancer(predictor) => {
            kernels::balance(stream, 1, n, table, &summaries, &stream.read(predictor)?, &mut mix)?
        }
    }
    kernels::relevance_with_query(
        stream,
        1,
        n,
        n,
        table,
        entropy,
        &participatory,
        &summaries,
        &mix,
        salience,
        relevance,
    )?;
    Ok((participatory, mix))
}

impl std::ops::Add for Stages {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            upload: self.upload + other.upload,
            textures: self.textures + other.textures,
            relevance: self.relevance + other.relevance,
            allocation: self.allocation + other.allocation,
            download: self.download + other.download,
        }
    }
}

impl Stages {
    /// The stages in order, with their names.
    pub fn named(&self) -> [(&'static str, Duration); 5] {
        [
            ("upload", self.upload),
            ("textures", self.textures),
            ("relevance", self.relevance),
            ("allocation", self.allocation),
            ("download", self.download),
        ]
    }

    fn measured(times: &Times) -> Result<Self> {
        let between =
            |start: &TimedEvent, end: &TimedEvent| Ok::<_, crate::Error>(end.elapsed(start)?.unwrap_or_default());
        Ok(Self {
            upload: between(&times.upload[0], &times.upload[1])?,
            textures: between(&times.upload[1], &times.textures)?,
            relevance: between(&times.relevance[0], &times.relevance[1])?,
            allocation: between(&times.allocation[0], &times.allocation[1])?,
            download: between(&times.allocation[1], &times.download)?,
        })
    }
}
