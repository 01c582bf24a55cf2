//! The launchers of the kernels that take many arguments: safe functions over the launchers that
//! the declarations make.
//!
//! # Errors
//! Each returns what the launch fails with. That includes every argument that the declaration of
//! the kernel rules out: a number that is out of range or a buffer of another length.

use thalweg_simt::host::{DeviceSlice, Launch};

use crate::vision::analyze::{SMALL, analyze_large, analyze_small};
use crate::vision::arguments::{
    BatchTable, Budget, ParticipatoryMut, Pixels, RelevanceMut, Salience, Scores, Selection, SelectionMut, TokensMut,
};

/// Computes the features and the entropy of each patch, straight from the images: `features` [N,
/// 13] and `entropy` \[N\], image after image, patches in raster order.
///
/// They are those of [`features`](crate::vision::features) of the planes that
/// [`textures`](crate::vision::textures) would make, and of [`entropy`](crate::vision::entropy),
/// except for rounding.
///
/// It is fastest for patches of 4 to 32 pixels a side, if that and the image's width are multiples
/// of 4 and `rgb` starts on a word. Images of other widths do not slow their neighbors down. The
/// patches of an image that is not inside `rgb` are left alone.
///
/// # Errors
/// A patch side that is not within 1 to 16384, a buffer of another length, or what the launch fails
/// with.
pub fn analyze<S, L: Launch<S> + ?Sized>(
    on: &L,
    batch: &BatchTable<'_, S>,
    pixels: &Pixels<'_, S>,
    features: &mut DeviceSlice<S, f32>,
    entropy: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let &BatchTable { images, patches, table, .. } = batch;
    let &Pixels { rgb, bytes, patch, fixation: [y, x] } = pixels;
    let launch = if patch <= SMALL { analyze_small } else { analyze_large };
    launch(on, images, patches, bytes, patch, y, x, table, rgb, features, entropy)
}

/// Computes the salience and the relevance of all patches of a batch from `features` [N, 13] and
/// `entropy` \[N\]. Each image is scaled on its own.
///
/// `mix` are the weights of entropy and salience. `foveal_bias` in [0, 1] lowers salience away from
/// the fixation.
///
/// # Errors
/// A buffer of another length, or what the launch fails with.
pub fn relevance<S, L: Launch<S> + ?Sized>(
    on: &L,
    batch: &BatchTable<'_, S>,
    foveal_bias: f32,
    mix: [f32; 2],
    features: &DeviceSlice<S, f32>,
    entropy: &DeviceSlice<S, f32>,
    out: RelevanceMut<'_, S>,
) -> Result<(), L::Error> {
    let &BatchTable { images, patches, largest, table } = batch;
    let RelevanceMut { salience, relevance } = out;
    let [by_entropy, by_salience] = mix;
    super::relevance::relevance(
        on,
        images,
        patches,
        largest,
        foveal_bias,
        by_entropy,
        by_salience,
        table,
        features,
        entropy,
        salience,
        relevance,
    )
}

/// Computes the participatory score of all patches of a batch from `features` [N, 13], `entropy`
/// \[N\] and `projection`, which is a head and a query as [`projection`](crate::vision::projection)
/// packs them, or those of a query for each image, one after another. It also computes what
/// [`balance`](crate::vision::balance) and [`relevance_with_query`] need of the features.
///
/// The salience that it writes is the feature [`Salience::edge`], less the foveal bias. The
/// statistics are, for entropy, salience, participatory score and that feature, the sum, the sum of
/// squared deviations from the mean, and the maximum of every 64 patches of an image; those of
/// image b start at its first patch / 64 + b. The last maximum is at least
/// [`Salience::least_peak`].
///
/// # Errors
/// An `edge` that is not below 13, a buffer of another length, or what the launch fails with.
pub fn participatory<S, L: Launch<S> + ?Sized>(
    on: &L,
    batch: &BatchTable<'_, S>,
    how: Salience,
    features: &DeviceSlice<S, f32>,
    entropy: &DeviceSlice<S, f32>,
    coupling: &DeviceSlice<S, f32>,
    out: ParticipatoryMut<'_, S>,
) -> Result<(), L::Error> {
    let &BatchTable { images, patches, table, .. } = batch;
    let Salience { edge, least_peak, foveal_bias } = how;
    let ParticipatoryMut { participatory, salience, summaries } = out;
    super::participatory::participatory(
        on,
        images,
        patches,
        (coupling.len() / 3400) as u32,
        edge,
        least_peak,
        foveal_bias,
        table,
        features,
        entropy,
        coupling,
        participatory,
        salience,
        summaries,
    )
}

/// Computes the weights `mix` [B, 3] of entropy, salience and participatory score for each image,
/// from `summaries` as [`participatory`] leaves them and `balancer_weights`, a balancer and a query
/// as [`balancer_weights`](crate::vision::balancer_weights) packs them, or those of a query for each
/// image, one after another. They are the softmax of what the balancer says, or with `tensions` the
/// weights of three pairs of scores.
///
/// # Errors
/// A buffer of another length, or what the launch fails with.
pub fn balance<S, L: Launch<S> + ?Sized>(
    on: &L,
    batch: &BatchTable<'_, S>,
    summaries: &DeviceSlice<S, f32>,
    predictor: &DeviceSlice<S, f32>,
    tensions: bool,
    mix: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let queries = (predictor.len() / 18179) as u32;
    super::balance::balance(on, batch.images, batch.patches, queries, tensions, batch.table, summaries, predictor, mix)
}

/// Computes the salience and the relevance of all patches of a batch, with a query. Each image is
/// scaled on its own.
///
/// The salience is that which [`participatory`] left, and is divided by its peak.
///
/// # Errors
/// A buffer of another length, or what the launch fails with.
pub fn relevance_with_query<S, L: Launch<S> + ?Sized>(
    on: &L,
    batch: &BatchTable<'_, S>,
    scores: &Scores<'_, S>,
    out: RelevanceMut<'_, S>,
) -> Result<(), L::Error> {
    let &BatchTable { images, patches, largest, table } = batch;
    let &Scores { entropy, participatory, summaries, mix } = scores;
    let RelevanceMut { salience, relevance } = out;
    super::relevance::relevance_with_query(
        on,
        images,
        patches,
        largest,
        table,
        entropy,
        participatory,
        summaries,
        mix,
        salience,
        relevance,
    )
}

/// Allocates tokens to the patches of a batch: from `relevance` \[N\] to the side of each patch and
/// the packed order of the tokens. Each image has a budget of its own. `gains` [hi - lo + 1] are
/// [`gains`](crate::vision::gains)`(lo, hi, focus)`.
///
/// # Errors
/// Sides that are not 1 <= `lo` <= `hi` <= 255, a budget below `lo`^2, one with which all images
/// together could have 2^31 tokens, a buffer of another length, or what a launch fails with.
pub fn allocate<S, L: Launch<S> + ?Sized>(
    on: &L,
    batch: &BatchTable<'_, S>,
    budget: Budget,
    relevance: &DeviceSlice<S, f32>,
    gains: &DeviceSlice<S, u32>,
    out: SelectionMut<'_, S>,
) -> Result<(), L::Error> {
    let &BatchTable { images, patches, largest, table } = batch;
    let Budget { lo, hi, tokens: budget } = budget;
    let SelectionMut { sides, cu_seqlens, patch_id, counts, image_cu_seqlens, image_cu_patches } = out;
    super::allocate::allocate_each(
        on,
        images,
        patches,
        largest,
        lo,
        hi,
        budget,
        table,
        relevance,
        gains,
        sides,
        cu_seqlens,
        patch_id,
        counts,
        image_cu_seqlens,
        image_cu_patches,
    )?;
    if images == 1 {
        return Ok(());
    }
    let each = (budget / u64::from(lo * lo)) as u32;
    super::allocate::pack(
        on,
        images,
        patches,
        each,
        table,
        cu_seqlens,
        patch_id,
        counts,
        image_cu_seqlens,
        image_cu_patches,
    )
}

/// Computes the packed tokens of the selected patches of an image from its `planes` [13, H, W].
///
/// # Errors
/// An extent or a patch side that is not within 1 to 16384, a buffer of another length, or what the
/// launch fails with.
pub fn compress<S, L: Launch<S> + ?Sized>(
    on: &L,
    height: u32,
    width: u32,
    patch: u32,
    planes: &DeviceSlice<S, f32>,
    selection: &Selection<'_, S>,
    out: TokensMut<'_, S, f32>,
) -> Result<(), L::Error> {
    let &Selection { sides, cu_seqlens, patch_id, counts, most } = selection;
    let TokensMut { tokens, position, capacity } = out;
    // The kernel wants no more than it reads. If a buffer is too short, it says so.
    let cu_seqlens = cu_seqlens.slice(..=most as usize).unwrap_or(cu_seqlens);
    let patch_id = patch_id.slice(..most as usize).unwrap_or(patch_id);
    super::compress::compress(
        on, height, width, patch, most, capacity, planes, sides, cu_seqlens, patch_id, counts, tokens, position,
    )
}

macro_rules! compress_fused {
    ($(#[$doc:meta])* $name:ident $element:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// A patch side that is not within 1 to 16384, a buffer of another length, or what the
        /// launch fails with.
        pub fn $name<S, L: Launch<S> + ?Sized>(
            on: &L,
            batch: &BatchTable<'_, S>,
            pixels: &Pixels<'_, S>,
            selection: &Selection<'_, S>,
            out: TokensMut<'_, S, $element>,
        ) -> Result<(), L::Error> {
            let &BatchTable { images, patches, table, .. } = batch;
            let &Pixels { rgb, bytes, patch, fixation: [y, x] } = pixels;
            let &Selection { sides, cu_seqlens, patch_id, counts, most } = selection;
            let TokensMut { tokens, position, capacity } = out;
            super::compress_fused::$name(
                on, images, patches, bytes, patch, most, capacity, y, x, table, rgb, sides, cu_seqlens, patch_id,
                counts, tokens, position,
            )
        }
    };
}

compress_fused! {
    /// Computes the packed tokens of the selected patches of a batch, straight from the images.
    ///
    /// The tokens are those of [`compress`] of the planes that
    /// [`textures`](crate::vision::textures) would make. Tokens of an image that is not inside
    /// `rgb` are left alone.
    compress_fused f32
}
compress_fused! {
    /// As [`compress_fused`], with tokens in IEEE half precision, rounded to nearest even.
    compress_fused_f16 u16
}
compress_fused! {
    /// As [`compress_fused`], with tokens in bfloat16, rounded to nearest even.
    compress_fused_bf16 u16
}
