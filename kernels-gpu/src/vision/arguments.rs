//! Groups of arguments, so that a call names what would otherwise be a row of numbers and of
//! buffers of one type.
//!
//! A group only borrows, and nothing in it is checked when it is made: the kernel's declaration
//! checks each launch.

use thalweg_simt::host::DeviceSlice;

/// The images of a batch and their patches, which all kernels of the fused path need.
/// [`BatchLayout::batch`] makes it.
///
/// [`BatchLayout::batch`]: crate::vision::BatchLayout::batch
#[derive(Debug)]
pub struct BatchTable<'a, S> {
    /// Number of images, B.
    pub images: u32,
    /// Patches of all images, N.
    pub patches: u32,
    /// Patches of the image that has the most.
    pub largest: u32,
    /// The table of a [`BatchLayout`](crate::vision::BatchLayout) \[B + 1, 4\]. For a single image,
    /// only [`analyze`](crate::vision::analyze) and
    /// [`compress_fused`](crate::vision::compress_fused) read it.
    pub table: &'a DeviceSlice<S, u32>,
}

/// The pixels of a batch, and how they are looked at. [`BatchLayout::pixels`] makes it.
///
/// [`BatchLayout::pixels`]: crate::vision::BatchLayout::pixels
#[derive(Debug)]
pub struct Pixels<'a, S> {
    /// The images, one after another as the table of the batch says.
    pub rgb: &'a DeviceSlice<S, u8>,
    /// Length of `rgb`.
    pub bytes: u32,
    /// Side of a patch in pixels.
    pub patch: u32,
    /// The fixation (y, x) in units of an image's height and width; (0.5, 0.5) is the center.
    pub fixation: [f32; 2],
}

/// The parameters with which [`participatory`](crate::vision::participatory) makes salience from
/// features.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Salience {
    /// The feature that is salient; [`EDGE`](crate::vision::EDGE) is the edge magnitude.
    pub edge: u32,
    /// The least number by which salience is later divided, if no patch has a larger one.
    pub least_peak: f32,
    /// The fall of salience with eccentricity, from 0 to 1.
    pub foveal_bias: f32,
}

/// The outputs of [`participatory`](crate::vision::participatory).
#[derive(Debug)]
pub struct ParticipatoryMut<'a, S> {
    /// The participatory score of each patch \[N\].
    pub participatory: &'a mut DeviceSlice<S, f32>,
    /// The salience of each patch \[N\], not yet divided by its peak.
    pub salience: &'a mut DeviceSlice<S, f32>,
    /// Statistics of every 64 patches [4, 3, N / 64 + B].
    pub summaries: &'a mut DeviceSlice<S, f32>,
}

/// The scores that [`relevance_with_query`](crate::vision::relevance_with_query) mixes with
/// salience.
#[derive(Debug)]
pub struct Scores<'a, S> {
    /// The entropy of each patch \[N\].
    pub entropy: &'a DeviceSlice<S, f32>,
    /// The participatory score of each patch \[N\].
    pub participatory: &'a DeviceSlice<S, f32>,
    /// Statistics [4, 3, N / 64 + B], as [`participatory`](crate::vision::participatory) leaves
    /// them.
    pub summaries: &'a DeviceSlice<S, f32>,
    /// The weights of entropy, salience and participatory score for each image [B, 3].
    pub mix: &'a DeviceSlice<S, f32>,
}

/// The outputs of [`relevance`](crate::vision::relevance) and
/// [`relevance_with_query`](crate::vision::relevance_with_query).
#[derive(Debug)]
pub struct RelevanceMut<'a, S> {
    /// The salience of each patch \[N\].
    pub salience: &'a mut DeviceSlice<S, f32>,
    /// The relevance of each patch \[N\].
    pub relevance: &'a mut DeviceSlice<S, f32>,
}

/// The number of tokens for an image, and the fewest and the most of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The least side of a selected patch: it has at least `lo` x `lo` tokens.
    pub lo: u32,
    /// The largest side of a patch.
    pub hi: u32,
    /// The most tokens of an image.
    pub tokens: u64,
}

/// The outputs of [`allocate`](crate::vision::allocate).
///
/// With K patches selected, T tokens, and C = min(N, B * (tokens of the budget / lo^2)) the most
/// patches that could be selected:
#[derive(Debug)]
pub struct SelectionMut<'a, S> {
    /// The side of each patch \[N\], or 0.
    pub sides: &'a mut DeviceSlice<S, i32>,
    /// The starts of the tokens of each selected patch [C + 1 or more]: K + 1 offsets, then T up to
    /// element C.
    pub cu_seqlens: &'a mut DeviceSlice<S, i32>,
    /// The selected patches [C or more]: K indices among the N patches, ascending, then -1 up to
    /// element C - 1.
    pub patch_id: &'a mut DeviceSlice<S, i32>,
    /// T and K.
    pub counts: &'a mut DeviceSlice<S, u32>,
    /// The tokens before each image, and T [B + 1].
    pub image_cu_seqlens: &'a mut DeviceSlice<S, i32>,
    /// The selected patches before each image, and K [B + 1].
    pub image_cu_patches: &'a mut DeviceSlice<S, i32>,
}

/// The selected patches, as [`allocate`](crate::vision::allocate) left them.
#[derive(Debug)]
pub struct Selection<'a, S> {
    /// The side of each patch \[N\], or 0.
    pub sides: &'a DeviceSlice<S, i32>,
    /// The starts of the tokens of each selected patch, and their end [`most` + 1 or more].
    pub cu_seqlens: &'a DeviceSlice<S, i32>,
    /// The selected patches [`most` or more].
    pub patch_id: &'a DeviceSlice<S, i32>,
    /// T and K.
    pub counts: &'a DeviceSlice<S, u32>,
    /// The most selected patches that `cu_seqlens` and `patch_id` have room for.
    pub most: u32,
}

/// The outputs of [`compress`](crate::vision::compress) and its relatives. Rows from T on are left
/// alone.
#[derive(Debug)]
pub struct TokensMut<'a, S, T> {
    /// The means of the 13 planes for each token [`capacity`, 13].
    pub tokens: &'a mut DeviceSlice<S, T>,
    /// The center (y, x) of each token's cell, as a fraction of the image's height and width
    /// [`capacity`, 2].
    pub position: &'a mut DeviceSlice<S, f32>,
    /// The most tokens that there is room for.
    pub capacity: u32,
}
