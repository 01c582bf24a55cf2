//! From a photograph to adaptive visual tokens (ARR-COC): textures, relevance, allocation,
//! compression.
//!
//! 1. **Textures**: each pixel has 13 planes (sRGB, CIELAB, Sobel of luma, position, eccentricity,
//!    local contrast).
//! 2. **Relevance** of each patch balances the entropy of its luma (information), its edges
//!    (salience) and, with a [`Query`], how well it meets the query (participatory score).
//! 3. **Allocation**: each patch gets 0, or `lo^2` to `hi^2` tokens (64 to 400 by default), within
//!    a budget.
//! 4. **Compression** averages the planes of a selected patch over `n` x `n` cells, and packs the
//!    results one patch after another.
//!
//! [`Pipeline`] does this for batch after batch. Each batch runs on a stream of its own, replays a
//! graph, and goes straight from RGB to tokens without storing a plane. [`Workspace`] does it for
//! images that are on the device, on your stream. [`kernels`] has the launchers that these two use,
//! and those that write the planes. [`arr_coc_0_1`] computes what the published PyTorch project of
//! that version computes. With the feature `augment`, the module of that name changes images at
//! random, for training. With `heatmap`, a [`TokenSet`] draws its allocation over the image.
//! `docs/spec.md` of the repository defines the numbers, exactly enough that another implementation
//! agrees.
//!
//! ```
//! use thalweg::{Device, Size};
//! use thalweg_vision::{Image, TokenParams, Pipeline};
//!
//! let image = Image::new(2, 3, vec![0, 0, 0, 255, 255, 255, 9, 9, 9, 50, 60, 70, 1, 2, 3, 4, 5, 6])?;
//! let params = TokenParams::default().with_patch(2).with_budget(100).with_sides(2..=4);
//! let pipeline = Pipeline::new(Device::best()?, params)?;
//! let tokens = pipeline.run(&[image]).remove(0)?;
//! assert_eq!(tokens.grid, Size::new(1, 2));
//! assert_eq!(tokens.tokens.len(), 13 * tokens.len());
//! # Ok::<(), thalweg::Error>(())
//! ```

mod allocate;
pub mod arr_coc_0_1;
#[cfg(feature = "augment")]
pub mod augment;
mod block_on;
mod error;
mod frame;
#[cfg(feature = "heatmap")]
mod heatmap;
mod options;
mod params;
mod pipeline;
mod query;
mod slots;
mod stages;
mod tokens;
mod workspace;

pub use allocate::{TokenAllocation, allocate_tokens_blocking};
pub use error::{Error, Result};
pub use frame::Frame;
pub use options::PipelineOptions;
pub use params::{Image, MAX_EXTENT, PLANES, TokenParams, layout};
pub use pipeline::{FrameFuture, Pipeline};
pub use query::{Head, Layer, Query};
pub use stages::StageTimings;
pub use tokens::{KeptTokens, KeptTokensEvents, KeptTokensOn, TokenSet, TokenValues, Tokens};
pub use workspace::{DeviceTokenValues, ResultLayout, TokenPrecision, Workspace, WorkspaceOn};

/// The typed launchers of the kernels. They are asynchronous, and take buffers that one stream
/// orders.
pub use thalweg_kernels::vision as kernels;

/// Locks a mutex. The data of a mutex that a panic poisoned is still consistent, because no code of
/// a user runs under a lock of this crate. A seeded CPU device may run host functions under it; it
/// catches their panics.
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
