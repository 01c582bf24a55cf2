//! From sRGB images to a variable number of tokens, four launches for a batch of images, six with a query and a
//! balancer, and one more for a batch of more than one.
//!
//! | kernel | from | to | threads |
//! |---|---|---|---|
//! | [`analyze`] | `rgb` u8 | `features` f32 [N, 13], `entropy` f32 \[N\] | a warp or a block a patch |
//! | [`relevance`] | `features`, `entropy` | `salience`, `relevance` f32 \[N\] | a block an image |
//! | [`participatory`], with a query | `features`, `entropy`, [`coupling`] | `participatory`, `salience` f32 \[N\], `summaries` | 2 for a patch |
//! | [`balance`], with a balancer | `summaries`, [`predictor`] | `mix` f32 [B, 3] | a block an image |
//! | [`relevance_with_query`] | all of these | `relevance` f32 \[N\] | a block an image |
//! | [`allocate`] | `relevance`, [`gains`] | `sides` i32 \[N\], `cu_seqlens`, `patch_id`, `counts` | a block an image |
//! | [`compress_fused`] | `rgb`, all of `allocate` | `tokens` f32 [T, 13], `position` f32 [T, 2] | 2 for a token |
//!
//! The images of a batch may differ in size: a [`Layout`] says where they are in `rgb`, and the kernels take its table. Maps hold
//! them one after another; each image is scaled, and has its budget, alone. Tokens are packed over the batch. A batch of one gives
//! the same bits as a part of a larger one.
//!
//! The same for one image by way of its texture array, for who wants that:
//!
//! | kernel | from | to | threads |
//! |---|---|---|---|
//! | [`textures`] | `rgb` u8 [H, W, 3] | `planes` f32 [13, H, W] | 4 pixels each |
//! | [`features`] | `planes` | `features` f32 [N, 13] | a block a patch |
//! | [`entropy`] | `rgb` | `entropy` f32 \[N\] | a block a patch |
//! | [`compress`] | `planes`, all of `allocate` | `tokens` f32 [T, 13], `position` f32 [T, 2] | a token's plane each |
//!
//! Half precision: [`textures_f16`], [`compress_fused_f16`], [`compress_fused_bf16`].
//!
//! [`profile_sample`], [`profile_scale`] and [`top`] are what the reference profile `arr-coc-0-1` has of its own.
//!
//! The number of tokens T and of selected patches K are decided on the device and never read back
//! between launches: buffers are sized by the budget, and `counts` holds T and K.
//!
//! Each is declared once, with [`thalweg_simt::kernel!`]: compiled for `nvptx64` this crate is the PTX,
//! compiled for the host it is the safe launchers and the bodies that the CPU device runs. A launcher checks the
//! shapes of its buffers; what is *in* a buffer is never trusted with an address, so no contents,
//! however wrong, make a kernel leave its buffers or two of its threads write one element.
//!
//! Images have at most [`MAX_EXTENT`] rows and columns, so an element of a plane stack fits 32 bits.

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
pub use textures::{textures, textures_f16};

/// What only the host names.
#[cfg(not(target_arch = "nvptx64"))]
mod host {
    pub use super::allocate::gains;
    pub use super::arguments::{
        Batch, Budget, ParticipatoryMut, Pixels, RelevanceMut, Salience, Scores, Selection, SelectionMut, TokensMut,
    };
    pub use super::balance::predictor;
    pub use super::launch::{
        allocate, analyze, balance, compress, compress_fused, compress_fused_bf16, compress_fused_f16, participatory,
        relevance, relevance_with_query,
    };
    pub use super::layout::{Layout, LayoutError};
    pub use super::participatory::coupling;
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
