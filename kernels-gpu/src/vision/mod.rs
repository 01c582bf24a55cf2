//! From sRGB images to a variable number of tokens. A batch of images takes four launches, six with
//! a query and a balancer, and one more if it has more than one image.
//!
//! | kernel | from | to | threads |
//! |---|---|---|---|
//! | [`analyze`] | `rgb` u8 | `features` f32 [N, 13], `entropy` f32 \[N\] | a warp or a block for each patch |
//! | [`relevance`] | `features`, `entropy` | `salience`, `relevance` f32 \[N\] | a block for each image |
//! | [`participatory`], with a query | `features`, `entropy`, [`projection`] | `participatory`, `salience` f32 \[N\], `summaries` | 4 for each patch |
//! | [`balance`], with a balancer | `summaries`, [`balancer_weights`] | `mix` f32 [B, 3] | a block for each image |
//! | [`relevance_with_query`] | all of these | `relevance` f32 \[N\] | a block for each image |
//! | [`allocate`] | `relevance`, [`gains`] | `sides` i32 \[N\], `cu_seqlens`, `patch_id`, `counts` | a block for each image |
//! | [`compress_fused`] | `rgb`, all of `allocate` | `tokens` f32 [T, 13], `position` f32 [T, 2] | 2 for each token |
//!
//! The images of a batch may differ in size: a [`BatchLayout`] says where they are in `rgb`, and
//! the kernels take its table. Maps hold the images one after another. Each image is scaled on its
//! own and has its own budget. Tokens are packed over the batch. The maps and tokens of an image
//! have the same bits in a batch of one and in a larger batch.
//!
//! These kernels compute the same for one image from its texture array:
//!
//! | kernel | from | to | threads |
//! |---|---|---|---|
//! | [`textures`] | `rgb` u8 [H, W, 3] | `planes` f32 [13, H, W] | one for 4 pixels of 2 rows |
//! | [`features`] | `planes` | `features` f32 [N, 13] | a block for each patch |
//! | [`entropy`] | `rgb` | `entropy` f32 \[N\] | a block for each patch |
//! | [`compress`] | `planes`, all of `allocate` | `tokens` f32 [T, 13], `position` f32 [T, 2] | one for each plane of a token |
//!
//! Half precision: [`compress_fused_f16`], [`compress_fused_bf16`].
//!
//! [`profile_sample`], [`profile_scale`] and [`top`] are the kernels that only the reference
//! profile `arr-coc-0-1` needs.
//!
//! The device decides the number of tokens T and of selected patches K, and nobody reads them back
//! between launches: buffers are sized by the budget, and `counts` holds T and K.
//!
//! Each kernel is declared once, with [`thalweg_simt::kernel!`]. A launcher checks numbers and the
//! shapes of buffers. What is *in* a buffer never decides an address without a check, so no
//! contents, however wrong, make a kernel leave its buffers, or make two of its threads write one
//! element. Launchers with many arguments take them in groups with names, such as [`BatchTable`]
//! and [`Selection`].
//!
//! Images have at most [`MAX_EXTENT`] rows and columns, so 32 bits hold the index of an element in
//! a stack of 13 planes.

mod allocate;
mod analyze;
#[cfg(not(target_arch = "nvptx64"))]
mod arguments;
mod balance;
mod compress;
mod compress_fused;
mod entropy;
mod features;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
mod layout;
mod participatory;
mod patch;
mod profile;
mod relevance;
mod texel;
mod textures;

pub use entropy::entropy;
pub use features::features;
#[cfg(not(target_arch = "nvptx64"))]
pub use host::*;
pub use profile::{profile_sample, profile_scale, top};
pub use textures::textures;

/// The names that only the host has.
#[cfg(not(target_arch = "nvptx64"))]
mod host {
    pub use super::allocate::gains;
    pub use super::arguments::{
        BatchTable, Budget, ParticipatoryMut, Pixels, RelevanceMut, Salience, Scores, Selection, SelectionMut,
        TokensMut,
    };
    pub use super::balance::balancer_weights;
    pub use super::launch::{
        allocate, analyze, balance, compress, compress_fused, compress_fused_bf16, compress_fused_f16, participatory,
        relevance, relevance_with_query,
    };
    pub use super::layout::{BatchLayout, LayoutError};
    pub use super::participatory::projection;
}

/// Planes of a texture array.
pub const PLANES: u32 = 13;
/// Largest height and width of an image, in pixels.
pub const MAX_EXTENT: u32 = 16384;
/// Largest number of patches of a batch: one for each pixel of the largest image.
pub const MAX_PATCHES: u32 = MAX_EXTENT * MAX_EXTENT;
/// Largest number of images of a batch.
pub const MAX_IMAGES: u32 = 65535;
/// Index of the plane of edge magnitude.
pub const EDGE: u32 = 8;
/// Index of the plane of eccentricity.
pub(crate) const ECCENTRICITY: u32 = 11;
