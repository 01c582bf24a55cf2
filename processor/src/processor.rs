//! The processor: its parameters, and the plan of an image.

use thalweg::Size;

use crate::coefficients::admit;
use crate::error::parameter;
use crate::levels::{Table, table};
use crate::plan::{ImagePlan, UnitOrder, View};
use crate::sizes::{AnyResSize, anyres, naflex_size, shortest_edge, smart_resize, tile_grid};
use crate::{Error, ResampleFilter, Resampler, Result, Style};

/// The mean of red, green and blue, and the deviation of each.
pub type ColorStatistics = [[f64; 3]; 2];

/// The statistics of CLIP's photographs.
pub const CLIP: ColorStatistics = [[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]];
/// The statistics of ImageNet's photographs.
pub const IMAGENET: ColorStatistics = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];
/// Numbers from -1 to 1.
pub const HALF: ColorStatistics = [[0.5; 3]; 2];

/// The way from an image to the input of a family of models.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputFormat {
    /// Qwen2-VL, Qwen2.5-VL, Qwen3-VL: patches of images of any shape, two equal frames each, in
    /// blocks of `merge` x `merge`.
    Qwen {
        /// The pixels a side of a patch.
        patch: u32,
        /// The patches a side of what becomes one token of the language model.
        merge: u32,
        /// The least pixels of a resized image.
        min_pixels: u64,
        /// The most pixels of a resized image.
        max_pixels: u64,
    },
    /// SigLIP2 in its form for images of any shape.
    NaFlex {
        /// The pixels a side of a patch.
        patch: u32,
        /// The most patches of an image.
        max_patches: u32,
        /// Whether images lie one after another, without room for as many patches each.
        packed: bool,
    },
    /// InternVL: tiles, and a thumbnail if there is more than one.
    Tiles {
        /// The pixels a side of a tile.
        tile: u32,
        /// The least tiles of an image.
        min_tiles: u32,
        /// The most tiles of an image, beside the thumbnail.
        max_tiles: u32,
    },
    /// LLaVA-OneVision: a thumbnail, and the tiles of the canvas that fits best.
    AnyRes {
        /// The pixels a side of a tile.
        tile: u32,
        /// The sizes of canvases, in multiples of a tile.
        canvases: Vec<Size>,
    },
    /// CLIP: the middle of an image whose short edge is resized to `edge`.
    Crop {
        /// The pixels of the short edge.
        edge: u32,
        /// The pixels a side of the square in the middle.
        crop: u32,
    },
    /// SigLIP: the image as a square.
    Square {
        /// The pixels a side.
        size: u32,
    },
}

/// The parameters of a [`Processor`]. The default is Qwen2-VL.
///
/// ```
/// use thalweg::Size;
/// use thalweg_processor::{Processor, ProcessorParams, Resampler, Style};
///
/// let params = ProcessorParams::qwen3_vl().with_resampler(Resampler::Pil).with_style(Style::Slow);
/// assert_eq!(Processor::new(params)?.patch_grid(Size::new(480, 640))?, Size::new(30, 40));
/// # Ok::<(), thalweg_processor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[non_exhaustive]
pub struct ProcessorParams {
    /// The sizes, and the order of the numbers.
    pub format: InputFormat,
    /// The filter of the resize.
    pub filter: ResampleFilter,
    /// The library whose resize is computed. Default [`Resampler::Aten`].
    pub resampler: Resampler,
    /// The library whose rounding the numbers have. Default [`Style::Fast`].
    pub style: Style,
    /// Means and deviations of the channels.
    pub statistics: ColorStatistics,
}

impl Default for ProcessorParams {
    fn default() -> Self {
        Self::qwen2_vl()
    }
}

impl ProcessorParams {
    fn of(format: InputFormat, filter: ResampleFilter, statistics: ColorStatistics) -> Self {
        Self { format, filter, resampler: Resampler::default(), style: Style::default(), statistics }
    }

    /// The parameters of Qwen2-VL and Qwen2.5-VL in their files.
    #[must_use]
    pub fn qwen2_vl() -> Self {
        let format = InputFormat::Qwen { patch: 14, merge: 2, min_pixels: 3136, max_pixels: 12_845_056 };
        Self::of(format, ResampleFilter::Bicubic, CLIP)
    }

    /// The parameters of Qwen3-VL in its files.
    #[must_use]
    pub fn qwen3_vl() -> Self {
        let format = InputFormat::Qwen { patch: 16, merge: 2, min_pixels: 65_536, max_pixels: 16_777_216 };
        Self::of(format, ResampleFilter::Bicubic, HALF)
    }

    /// The parameters of SigLIP2 with at most `max_patches` patches of 16 x 16.
    #[must_use]
    pub fn siglip2_naflex(max_patches: u32) -> Self {
        let format = InputFormat::NaFlex { patch: 16, max_patches, packed: false };
        Self::of(format, ResampleFilter::Bilinear, HALF)
    }

    /// The parameters of InternVL: 1 to 12 tiles of 448 x 448.
    #[must_use]
    pub fn internvl() -> Self {
        let format = InputFormat::Tiles { tile: 448, min_tiles: 1, max_tiles: 12 };
        Self::of(format, ResampleFilter::Bicubic, IMAGENET)
    }

    /// The parameters of LLaVA-OneVision: canvases of up to 6 x 6 tiles of 384 x 384.
    #[must_use]
    pub fn llava_onevision() -> Self {
        let canvases = (1..=6).flat_map(|a| (1..=6).map(move |b| Size::new(384 * a, 384 * b))).collect();
        Self::of(InputFormat::AnyRes { tile: 384, canvases }, ResampleFilter::Bicubic, CLIP)
    }

    /// The parameters of CLIP with `size` x `size` pixels.
    #[must_use]
    pub fn clip(size: u32) -> Self {
        Self::of(InputFormat::Crop { edge: size, crop: size }, ResampleFilter::Bicubic, CLIP)
    }

    /// The parameters of SigLIP with `size` x `size` pixels.
    #[must_use]
    pub fn siglip(size: u32) -> Self {
        Self::of(InputFormat::Square { size }, ResampleFilter::Bicubic, HALF)
    }

    /// Checks every parameter.
    ///
    /// # Errors
    /// The first parameter that is out of its range.
    pub fn validate(&self) -> Result<()> {
        admit(self.filter, self.resampler)?;
        let [mean, deviation] = self.statistics;
        for (name, values) in [("mean", mean), ("deviation", deviation)] {
            if !values.iter().all(|v| v.is_finite() && v.abs() <= 1e6) {
                return Err(parameter(name, format!("{values:?}"), "numbers of at most 1e6"));
            }
        }
        if !deviation.iter().all(|d| *d >= 1e-6) {
            return Err(parameter("deviation", format!("{deviation:?}"), "numbers of at least 1e-6"));
        }
        self.format.validate()
    }
}

/// Checks that a number is in a range.
fn within(name: &'static str, given: u64, lo: u64, hi: u64) -> Result<()> {
    match (lo..=hi).contains(&given) {
        true => Ok(()),
        false => Err(parameter(name, given, format!("{lo} to {hi}"))),
    }
}

/// The largest side of a patch or tile.
const MAX_UNIT: u64 = 4096;

impl InputFormat {
    fn validate(&self) -> Result<()> {
        match *self {
            Self::Qwen { patch, merge, min_pixels, max_pixels } => {
                within("patch", patch.into(), 1, 256)?;
                within("merge", merge.into(), 1, 16)?;
                within("max_pixels", max_pixels, 1, u32::MAX.into())?;
                within("min_pixels", min_pixels, 0, max_pixels)
            }
            Self::NaFlex { patch, max_patches, .. } => {
                within("patch", patch.into(), 1, 256)?;
                within("max_patches", max_patches.into(), 1, 1 << 24)
            }
            Self::Tiles { tile, min_tiles, max_tiles } => {
                within("tile", tile.into(), 1, MAX_UNIT)?;
                within("max_tiles", max_tiles.into(), 1, 1024)?;
                within("min_tiles", min_tiles.into(), 1, max_tiles.into())
            }
            Self::AnyRes { tile, ref canvases } => {
                within("tile", tile.into(), 1, MAX_UNIT)?;
                within("canvases", canvases.len() as u64, 1, 4096)?;
                canvases.iter().flat_map(|canvas| canvas.sides()).try_for_each(|side| {
                    within("canvas", side.into(), 1, 16384)?;
                    within("canvas modulo tile", (side % tile).into(), 0, 0)
                })
            }
            Self::Crop { edge, crop } => {
                within("edge", edge.into(), 1, MAX_UNIT)?;
                within("crop", crop.into(), 1, edge.into())
            }
            Self::Square { size } => within("size", size.into(), 1, MAX_UNIT),
        }
    }

    /// Returns the order of the numbers of a unit.
    fn order(&self) -> UnitOrder {
        let tile = |side| UnitOrder { side, merge: 1, copies: 1, channels_last: false };
        match *self {
            Self::Qwen { patch, merge, .. } => UnitOrder { side: patch, merge, copies: 2, channels_last: false },
            Self::NaFlex { patch, .. } => UnitOrder { side: patch, merge: 1, copies: 1, channels_last: true },
            Self::Tiles { tile: side, .. } | Self::AnyRes { tile: side, .. } => tile(side),
            Self::Crop { crop, .. } => tile(crop),
            Self::Square { size } => tile(size),
        }
    }

    /// Returns the views of an image of a size that is in its range.
    fn views(&self, size: Size) -> Result<Vec<View>> {
        Ok(match *self {
            Self::Qwen { patch, merge, min_pixels, max_pixels } => {
                vec![View::whole(smart_resize(size, patch * merge, min_pixels, max_pixels)?.sides(), 0)]
            }
            Self::NaFlex { patch, max_patches, .. } => {
                vec![View::whole(naflex_size(size, patch, max_patches)?.sides(), 0)]
            }
            Self::Tiles { tile, min_tiles, max_tiles } => {
                let Size { height: rows, width: columns } = tile_grid(size, tile, min_tiles, max_tiles);
                let tiles = View::whole([rows * tile, columns * tile], 0);
                let thumbnail = (rows * columns > 1).then(|| View::whole([tile; 2], rows * columns));
                [tiles].into_iter().chain(thumbnail).collect()
            }
            Self::AnyRes { tile, ref canvases } => {
                let AnyResSize { canvas, resized } = anyres(size, canvases)?;
                let (canvas, resized) = (canvas.sides(), resized.sides());
                let at = [0, 1].map(|i| ((canvas[i] - resized[i]) / 2) as i32);
                vec![View::whole([tile; 2], 0), View { resized, canvas, at, first: 1 }]
            }
            Self::Crop { edge, crop } => {
                let resized = shortest_edge(size, edge)?.sides();
                let at = resized.map(|side| -(((side - crop) / 2) as i32));
                vec![View { resized, canvas: [crop; 2], at, first: 0 }]
            }
            Self::Square { size } => vec![View::whole([size; 2], 0)],
        })
    }

    /// Returns the units for which each image has room, if that does not depend on the image.
    pub(crate) fn room(&self) -> Option<u32> {
        match *self {
            Self::NaFlex { max_patches, packed: false, .. } => Some(max_patches),
            _ => None,
        }
    }
}

/// The image processor of a family of models.
///
/// ```
/// use thalweg_processor::{Processor, RgbImage};
///
/// let processor = Processor::qwen2_5_vl();
/// let rgb = vec![128; 3 * 60 * 90];
/// let inputs = processor.process::<f32>(&[RgbImage { height: 60, width: 90, rgb: &rgb }])?;
/// assert_eq!(inputs.layout.image_grid_thw(), Some(vec![[1, 4, 6]])); // 56 x 84 pixels
/// assert_eq!(inputs.layout.shape(), [24, 3 * 2 * 14 * 14]);
/// # Ok::<(), thalweg_processor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Processor {
    params: ProcessorParams,
    order: UnitOrder,
    table: Table<f32>,
}

impl Processor {
    /// Makes a processor.
    ///
    /// # Errors
    /// A parameter is out of its range ([`Error::Parameter`]).
    pub fn new(params: ProcessorParams) -> Result<Self> {
        params.validate()?;
        Ok(Self::checked(params))
    }

    fn checked(params: ProcessorParams) -> Self {
        let [mean, deviation] = params.statistics;
        Self { order: params.format.order(), table: table(mean, deviation, params.style), params }
    }

    /// The processor of Qwen2-VL.
    #[must_use]
    pub fn qwen2_vl() -> Self {
        Self::checked(ProcessorParams::qwen2_vl())
    }

    /// The processor of Qwen2.5-VL, which is that of Qwen2-VL.
    #[must_use]
    pub fn qwen2_5_vl() -> Self {
        Self::qwen2_vl()
    }

    /// The processor of Qwen3-VL.
    #[must_use]
    pub fn qwen3_vl() -> Self {
        Self::checked(ProcessorParams::qwen3_vl())
    }

    /// The processor of InternVL.
    #[must_use]
    pub fn internvl() -> Self {
        Self::checked(ProcessorParams::internvl())
    }

    /// The processor of LLaVA-OneVision.
    #[must_use]
    pub fn llava_onevision() -> Self {
        Self::checked(ProcessorParams::llava_onevision())
    }

    /// The processor of SigLIP2 with at most `max_patches` patches of 16 x 16.
    ///
    /// # Errors
    /// The number is out of its range.
    pub fn siglip2_naflex(max_patches: u32) -> Result<Self> {
        Self::new(ProcessorParams::siglip2_naflex(max_patches))
    }

    /// The processor of CLIP with `size` x `size` pixels.
    ///
    /// # Errors
    /// The number is out of its range.
    pub fn clip(size: u32) -> Result<Self> {
        Self::new(ProcessorParams::clip(size))
    }

    /// The processor of SigLIP with `size` x `size` pixels.
    ///
    /// # Errors
    /// The number is out of its range.
    pub fn siglip(size: u32) -> Result<Self> {
        Self::new(ProcessorParams::siglip(size))
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &ProcessorParams {
        &self.params
    }

    /// The numbers of the 256 levels of red, green and blue.
    #[must_use]
    pub fn levels(&self) -> &[[f32; 256]; 3] {
        &self.table
    }

    pub(crate) fn order(&self) -> UnitOrder {
        self.order
    }

    /// Returns the grid of the patches or tiles of an image of this size, without thumbnails.
    ///
    /// # Errors
    /// The size is refused.
    pub fn patch_grid(&self, size: Size) -> Result<Size> {
        Ok(self.plan(size.sides())?.grid.into())
    }

    /// Returns the plan of an image.
    pub(crate) fn plan(&self, size: [u32; 2]) -> Result<ImagePlan> {
        crate::sizes::admit(size)?;
        let views = self.params.format.views(size.into())?;
        let grids = views.iter().map(|view| self.order.grid(view.canvas));
        let units = grids.map(|[rows, columns]| u64::from(rows) * u64::from(columns)).sum::<u64>();
        let [height, width] = size;
        let refused = || Error::ResizedSize { height, width, resized: views[0].resized.map(u64::from) };
        let units = i32::try_from(units).map_err(|_| refused())? as u32;
        let grid = match self.params.format {
            InputFormat::AnyRes { .. } => self.order.grid(views[1].canvas),
            _ => self.order.grid(views[0].canvas),
        };
        Ok(ImagePlan { size, views, units, grid })
    }
}
