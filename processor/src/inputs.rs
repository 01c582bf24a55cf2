//! The shape of a batch, and what models derive from the grids of its images.

use thalweg::Size;

use crate::grids::{self, PatchGrid, WindowIndex};
use crate::plan::{ImagePlan, Units};
use crate::{Error, InputFormat, Processor, Result};

/// The shape of a batch and the tensors beside `pixel_values`, which depend on the sizes of the
/// images only.
///
/// An image with an error is not in the batch. The others are as they would be without it.
#[derive(Clone, Debug)]
pub struct InputLayout {
    processor: Processor,
    /// The plans of the images that are in the batch, each with its index.
    pub(crate) plans: Vec<(usize, ImagePlan)>,
    errors: Vec<RefusedImage>,
    pub(crate) units: Units,
}

/// An image that is not in a batch.
#[derive(Clone, Debug)]
pub struct RefusedImage {
    /// The index of the image.
    pub index: usize,
    /// The reason.
    pub error: Error,
}

impl Processor {
    /// Computes the shape of a batch from the sizes of its images.
    ///
    /// ```
    /// use thalweg::Size;
    /// use thalweg_processor::Processor;
    ///
    /// let layout = Processor::qwen3_vl().layout(&[Size::new(480, 640), Size::new(9, 9000)])?;
    /// assert_eq!((layout.shape(), layout.cu_seqlens()), (vec![1200, 1536], Some(vec![0, 1200])));
    /// assert!(layout.errors()[0].error.to_string().contains("1000 times")); // the second image
    /// # Ok::<(), thalweg_processor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The batch has more than 2^31 - 1 rows. Errors of images are in [`InputLayout::errors`].
    pub fn layout(&self, sizes: &[Size]) -> Result<InputLayout> {
        self.layout_of(sizes.iter().map(|size| self.plan(size.sides())))
    }

    /// Computes the shape of a batch from the plans of its images.
    pub(crate) fn layout_of(&self, plans: impl Iterator<Item = Result<ImagePlan>>) -> Result<InputLayout> {
        let (mut good, mut errors) = (Vec::new(), Vec::new());
        for (i, plan) in plans.enumerate() {
            match plan {
                Ok(plan) => good.push((i, plan)),
                Err(error) => errors.push(RefusedImage { index: i, error }),
            }
        }
        let counts = || good.iter().map(|(_, plan)| plan.units);
        let room = match self.params().format {
            InputFormat::AnyRes { .. } => counts().max(),
            ref format => format.room(),
        };
        let units = Units::new(counts(), room)?;
        Ok(InputLayout { processor: self.clone(), plans: good, errors, units })
    }
}

impl InputLayout {
    /// Returns the number of images in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Says whether the batch has no image.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Returns the indices of the images that are in the batch.
    #[must_use]
    pub fn images(&self) -> Vec<usize> {
        self.plans.iter().map(|(i, _)| *i).collect()
    }

    /// Returns the images that are not in the batch, and why.
    #[must_use]
    pub fn errors(&self) -> &[RefusedImage] {
        &self.errors
    }

    /// Returns the processor.
    #[must_use]
    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    /// Returns the shape of `pixel_values`.
    ///
    /// | format | shape |
    /// |---|---|
    /// | [`Qwen`](InputFormat::Qwen) | patches, `3 * 2 * patch * patch` |
    /// | [`NaFlex`](InputFormat::NaFlex) | images, `max_patches`, `patch * patch * 3`; without images if packed |
    /// | [`Tiles`](InputFormat::Tiles) | tiles, 3, rows, columns |
    /// | [`AnyRes`](InputFormat::AnyRes) | images, most tiles of an image, 3, rows, columns |
    /// | [`Crop`](InputFormat::Crop), [`Square`](InputFormat::Square) | images, 3, rows, columns |
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        let (order, total) = (self.processor.order(), self.units.total());
        let images = self.len();
        let square = [3, order.side as usize, order.side as usize];
        match self.processor.params().format {
            InputFormat::Qwen { .. } | InputFormat::NaFlex { packed: true, .. } => vec![total, order.len()],
            InputFormat::NaFlex { max_patches, .. } => vec![images, max_patches as usize, order.len()],
            InputFormat::AnyRes { .. } => [&[images, total / images.max(1)], &square[..]].concat(),
            _ => [&[total], &square[..]].concat(),
        }
    }

    /// Returns the number of elements of `pixel_values`.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.units.total() * self.processor.order().len()
    }

    /// Returns the patches of each image as rows and columns, of all formats but those of tiles.
    fn patches(&self) -> Option<Vec<PatchGrid>> {
        match self.processor.params().format {
            InputFormat::Qwen { .. } | InputFormat::NaFlex { .. } => Some(
                self.plans
                    .iter()
                    .map(|(_, plan)| PatchGrid { frames: 1, rows: plan.grid[0], columns: plan.grid[1] })
                    .collect(),
            ),
            _ => None,
        }
    }

    /// Returns the grids of Qwen's images, from which what models need is derived.
    #[must_use]
    pub fn grids(&self) -> Option<Vec<PatchGrid>> {
        self.patches().filter(|_| self.merge().is_some())
    }

    fn merge(&self) -> Option<u32> {
        match self.processor.params().format {
            InputFormat::Qwen { merge, .. } => Some(merge),
            _ => None,
        }
    }

    /// Returns `image_grid_thw` of Qwen: 1, rows and columns of patches for each image.
    #[must_use]
    pub fn image_grid_thw(&self) -> Option<Vec<[i64; 3]>> {
        Some(self.grids()?.into_iter().map(PatchGrid::thw).collect())
    }

    /// Returns `cu_seqlens` of Qwen and NaFlex: where each image begins among the patches, and
    /// where the last one ends. Patches of padding do not count.
    #[must_use]
    pub fn cu_seqlens(&self) -> Option<Vec<i32>> {
        Some(grids::cu_seqlens(&self.patches()?))
    }

    /// Returns `vision_position_ids` of Qwen: row and column of each patch.
    #[must_use]
    pub fn vision_position_ids(&self) -> Option<Vec<[i64; 2]>> {
        Some(grids::vision_position_ids(&self.grids()?, self.merge()?))
    }

    /// Returns `window_index` and `cu_window_seqlens` of Qwen2.5-VL with windows of `window` pixels
    /// a side, which are 112 in its files.
    #[must_use]
    pub fn window_index(&self, window: u32) -> Option<WindowIndex> {
        Some(grids::window_index(&self.grids()?, self.merge()?, window, self.processor.order().side))
    }

    /// Returns `spatial_shapes` of NaFlex: rows and columns of patches for each image.
    #[must_use]
    pub fn spatial_shapes(&self) -> Option<Vec<[i64; 2]>> {
        let naflex = matches!(self.processor.params().format, InputFormat::NaFlex { .. });
        let shape = |(_, plan): &(usize, ImagePlan)| plan.grid.map(i64::from);
        naflex.then(|| self.plans.iter().map(shape).collect())
    }

    /// Returns `pixel_attention_mask` of NaFlex [images, `max_patches`]: 1 for patches, 0 for
    /// padding.
    #[must_use]
    pub fn pixel_attention_mask(&self) -> Option<Vec<i32>> {
        let InputFormat::NaFlex { max_patches, packed: false, .. } = self.processor.params().format else {
            return None;
        };
        let mask =
            |(_, plan): &(usize, ImagePlan)| (0..max_patches).map(|n| i32::from(n < plan.units)).collect::<Vec<_>>();
        Some(self.plans.iter().flat_map(mask).collect())
    }

    /// Returns `num_patches` of InternVL: the tiles of each image with its thumbnail.
    #[must_use]
    pub fn num_patches(&self) -> Option<Vec<i64>> {
        let tiles = matches!(self.processor.params().format, InputFormat::Tiles { .. });
        tiles.then(|| self.plans.iter().map(|(_, plan)| plan.units.into()).collect())
    }

    /// Returns `image_sizes` of LLaVA-OneVision: rows and columns of each image as it was given.
    #[must_use]
    pub fn image_sizes(&self) -> Option<Vec<[i64; 2]>> {
        let anyres = matches!(self.processor.params().format, InputFormat::AnyRes { .. });
        anyres.then(|| self.plans.iter().map(|(_, plan)| plan.size.map(i64::from)).collect())
    }
}
