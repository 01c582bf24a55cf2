//! The results of a batch on the host.

use std::fmt;
use std::sync::Weak;

use bytemuck::cast_slice;
use thalweg::simt::{bf16, f16};
use thalweg::{Brand, Event, Resource, Size, Unzip};

use crate::PLANES;
use crate::slots::{Slot, SlotOn, Slots};
use crate::workspace::{Part, Plan, TokenPrecision, WorkspaceOn};

/// Everything about one image's tokens, on the host.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenSet {
    /// Rows of the image.
    pub height: u32,
    /// Columns of the image.
    pub width: u32,
    /// Side of a patch in pixels.
    pub patch: u32,
    /// The grid of patches, `gh` x `gw`.
    pub grid: Size,
    /// `[T, 13]`: the mean of each plane over the cell of a token. Selected patches follow one
    /// another in raster order, and so do the cells of a patch. If the pipeline makes halves, these
    /// are their exact values.
    pub tokens: Vec<f32>,
    /// `[T, 13]`: the bits of the same numbers, if the pipeline makes halves.
    pub halves: Option<Vec<u16>>,
    /// `[K + 1]`: where the tokens of each selected patch start, and the end. Variable-length
    /// attention takes its offsets in this form.
    pub cu_seqlens: Vec<i32>,
    /// `[K]`: the raster index of each selected patch.
    pub patch_id: Vec<i32>,
    /// `[T, 2]`: the center of each token's cell, (y, x) as fractions of height and width.
    pub position: Vec<f32>,
    /// `[gh, gw]`: the side `n` of the `n` x `n` tokens of each patch, or 0.
    pub sides: Vec<i32>,
    /// `[gh, gw]`: relevance, 0 to 1.
    pub relevance: Vec<f32>,
    /// `[gh, gw]`: the entropy of the luma histogram in bits, divided by 8.
    pub entropy: Vec<f32>,
    /// `[gh, gw]`: the mean edge magnitude as a fraction of the largest, reduced by the foveal
    /// bias.
    pub salience: Vec<f32>,
    /// `[gh, gw]`: how well a patch meets the query, 0 to 1, if there is a query.
    pub participatory: Option<Vec<f32>>,
    /// The weights of entropy, salience and participatory score, if there is a query.
    pub mix: Option<[f32; 3]>,
    /// `[gh * gw, 13]`: the mean of each plane over each patch.
    pub features: Vec<f32>,
    /// `[13, H, W]`: the texture array, if the pipeline makes it.
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

/// The tokens of a batch of images in page-locked memory, packed image after image.
/// [`Pipeline::submit`](crate::Pipeline::submit) returns an event of them.
///
/// [`Pipeline::recycle`](crate::Pipeline::recycle) gives the memory to a later batch. Dropping a
/// `Tokens` frees the memory. Dropping an [`Event<Tokens>`](thalweg::Event), or a future of one,
/// gives the memory to a later batch as soon as the work of this batch is done. Until then the
/// batch takes one of the pipeline's [places](crate::Pipeline::depth). A batch that `wait` or
/// `unzip` took over gives its place back as soon as it is dropped, and its memory is freed once
/// its work is done. A batch that is forgotten (`std::mem::forget`) keeps its place forever,
/// because the pipeline cannot tell it from a batch in use.
#[derive(Resource)]
#[resource(unzip)]
pub struct Tokens {
    pub(crate) slot: Slot,
}

/// Shows the numbers of images, selected patches and tokens.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("images", &self.images())
            .field("selected", &self.selected())
            .field("tokens", &self.len())
            .finish_non_exhaustive()
    }
}

/// The tokens of a batch of images on the device. [`Pipeline::submit_kept`] returns an event of
/// them, and on a stream it has the form [`KeptTokensOn<S>`](KeptTokensOn).
///
/// [`Pipeline::recycle_kept`] gives the memory to a later batch. Dropping an event that no stream
/// has waited for does the same.
///
/// [`Pipeline::submit_kept`]: crate::Pipeline::submit_kept
/// [`Pipeline::recycle_kept`]: crate::Pipeline::recycle_kept
#[derive(Debug, Resource)]
#[resource(unzip)]
pub struct KeptTokens {
    pub(crate) slot: Slot,
    /// The event alone, for [`Slots::give_back`](crate::slots::Slots::give_back).
    pub(crate) done: (),
    /// The places that the slot belongs to.
    #[resource(plain)]
    pub(crate) home: Weak<Slots>,
}

impl<S: Brand> KeptTokensOn<S> {
    /// The memory with the tokens.
    pub fn workspace(&self) -> &WorkspaceOn<S> {
        &self.slot.buffers.workspace
    }
}

/// The form in which the results of a submitted slot are handed out.
pub(crate) trait Sent: Unzip {
    /// Whether the results go to the host.
    const DOWNLOADS: bool;
    fn on<S: Brand>(slot: SlotOn<S>, home: &Weak<Slots>) -> Self::On<S>;
    fn slot(event: Event<Self>) -> Event<Slot>;
}

impl Sent for Tokens {
    const DOWNLOADS: bool = true;
    fn on<S: Brand>(slot: SlotOn<S>, _: &Weak<Slots>) -> TokensOn<S> {
        TokensOn { slot }
    }
    fn slot(event: Event<Self>) -> Event<Slot> {
        event.unzip().slot
    }
}

impl Sent for KeptTokens {
    const DOWNLOADS: bool = false;
    fn on<S: Brand>(slot: SlotOn<S>, home: &Weak<Slots>) -> KeptTokensOn<S> {
        KeptTokensOn { slot, done: (), home: home.clone() }
    }
    fn slot(event: Event<Self>) -> Event<Slot> {
        event.unzip().slot
    }
}

/// The numbers of tokens, in the [`TokenPrecision`] of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenValues<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE halves.
    F16(&'a [f16]),
    /// bfloat16 numbers.
    Bf16(&'a [bf16]),
}

impl TokenValues<'_> {
    /// The numbers as 32-bit floats, which hold each number exactly.
    pub fn to_f32(self) -> Vec<f32> {
        match self {
            Self::F32(values) => values.to_vec(),
            Self::F16(values) => values.iter().map(|half| half.to_f32()).collect(),
            Self::Bf16(values) => values.iter().map(|half| half.to_f32()).collect(),
        }
    }
}

impl Tokens {
    fn plan(&self) -> &Plan {
        self.slot.plan()
    }

    fn words(&self, part: Part) -> &[u32] {
        &self.slot.results()[self.plan().part(part)]
    }

    fn floats(&self, part: Part) -> &[f32] {
        cast_slice(self.words(part))
    }

    fn integers(&self, part: Part) -> &[i32] {
        cast_slice(self.words(part))
    }

    /// T, the number of tokens of all images together.
    pub fn len(&self) -> usize {
        self.words(Part::Counts)[0] as usize
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// K, the number of selected patches of all images together.
    pub fn selected(&self) -> usize {
        self.words(Part::Counts)[1] as usize
    }

    /// Number of images.
    pub fn images(&self) -> usize {
        self.plan().layout.images() as usize
    }

    /// `[T, 13]`: the mean of each plane over the cell of a token.
    pub fn tokens(&self) -> TokenValues<'_> {
        let (words, numbers) = (self.words(Part::Tokens), PLANES * self.len());
        match self.plan().precision {
            TokenPrecision::F32 => TokenValues::F32(&cast_slice(words)[..numbers]),
            TokenPrecision::F16 => TokenValues::F16(&cast_slice(words)[..numbers]),
            TokenPrecision::Bf16 => TokenValues::Bf16(&cast_slice(words)[..numbers]),
        }
    }

    /// `[T, 2]`: the center of each token's cell, (y, x) as fractions of height and width.
    pub fn position(&self) -> &[f32] {
        &self.floats(Part::Position)[..2 * self.len()]
    }

    /// `[K + 1]`: where the tokens of each selected patch start, and the end. Variable-length
    /// attention takes its offsets in this form.
    pub fn cu_seqlens(&self) -> &[i32] {
        &self.integers(Part::CuSeqlens)[..=self.selected()]
    }

    /// `[K]`: the index of each selected patch among the patches of all images.
    pub fn patch_id(&self) -> &[i32] {
        &self.integers(Part::PatchId)[..self.selected()]
    }

    /// `[images + 1]`: where the tokens of each image start, and the end.
    pub fn image_cu_seqlens(&self) -> &[i32] {
        self.integers(Part::ImageCuSeqlens)
    }

    /// `[images + 1]`: where the selected patches of each image start, and the end.
    pub fn image_cu_patches(&self) -> &[i32] {
        self.integers(Part::ImageCuPatches)
    }

    /// A copy of everything about image `i`.
    ///
    /// # Panics
    /// There is no image `i`.
    pub fn set(&self, i: usize) -> TokenSet {
        let plan = self.plan();
        let [height, width] = plan.layout.size(i);
        let (patches, of) = (plan.layout.patch_range(i), |starts: &[i32]| starts[i] as usize..starts[i + 1] as usize);
        let (tokens, selected) = (of(self.image_cu_seqlens()), of(self.image_cu_patches()));
        let map = |part: Part| self.floats(part)[patches.clone()].to_vec();
        let (first_token, first_patch) = (tokens.start as i32, patches.start as i32);
        let numbers = PLANES * tokens.start..PLANES * tokens.end;
        let values = match self.tokens() {
            TokenValues::F32(values) => TokenValues::F32(&values[numbers]),
            TokenValues::F16(values) => TokenValues::F16(&values[numbers]),
            TokenValues::Bf16(values) => TokenValues::Bf16(&values[numbers]),
        };
        let coupled = !self.words(Part::Mix).is_empty();
        let mix = &self.floats(Part::Mix);
        TokenSet {
            height,
            width,
            patch: plan.params.patch,
            grid: plan.layout.grid(i).into(),
            tokens: values.to_f32(),
            halves: match values {
                TokenValues::F32(_) => None,
                TokenValues::F16(values) => Some(cast_slice(values).to_vec()),
                TokenValues::Bf16(values) => Some(cast_slice(values).to_vec()),
            },
            cu_seqlens: self.cu_seqlens()[selected.start..=selected.end].iter().map(|at| at - first_token).collect(),
            patch_id: self.patch_id()[selected].iter().map(|id| id - first_patch).collect(),
            position: self.position()[2 * tokens.start..2 * tokens.end].to_vec(),
            sides: self.integers(Part::Sides)[patches.clone()].to_vec(),
            relevance: map(Part::Relevance),
            entropy: map(Part::Entropy),
            salience: map(Part::Salience),
            participatory: coupled.then(|| map(Part::Participatory)),
            mix: coupled.then(|| [mix[3 * i], mix[3 * i + 1], mix[3 * i + 2]]),
            features: self.floats(Part::Features)[PLANES * patches.start..PLANES * patches.end].to_vec(),
            textures: self.slot.planes(i).map(<[f32]>::to_vec),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TokenValues;
    use thalweg::simt::{bf16, f16};

    #[test]
    fn values_are_those_of_their_bits() {
        let halves = [0, 1, 0x8001, 0x3ff, 0x400, 0x3555, 0xbc00, 0x7bff, 0x7c00].map(f16::from_bits);
        let (tiny, small) = (2f32.powi(-24), 2f32.powi(-14));
        let values = [0.0, tiny, -tiny, 1023.0 * tiny, small, 1365.0 / 4096.0, -1.0, 65504.0, f32::INFINITY];
        assert_eq!(TokenValues::F16(&halves).to_f32(), values);
        assert_eq!(TokenValues::Bf16(&[0x3f80, 0xbf00].map(bf16::from_bits)).to_f32(), [1.0, -0.5]);
    }
}
