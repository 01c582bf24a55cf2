//! Image processors of vision-language models: from images of any sizes to the input of a model.
//!
//! | kernel | from | to | a block makes |
//! |---|---|---|---|
//! | `strips` | `rgb` u8, `views`, `axes`, `fragments`, `table` | [units, channels, side, side] | 32 units |
//! | `strip_pixels` | the same | [units, side, side, channels] | the same |
//! | `patches`, `patch_pixels` | the same | as the two above | the same |
//! | `tiles` | the same without fragments | [units, channels, side, side] | 32 x 32 pixels of a unit |
//! | `pixels` | the same | [units, side, side, channels] | 16 x 16 pixels of a unit |
//! | `fragments` | `axes`, the list of axes | `fragments` | 8 fragments |
//!
//! [`inputs`] and [`interleaved_inputs`] launch one of them. A unit is a square of pixels: a patch
//! or a tile. Each kernel exists for elements of 2 bytes and for elements of 4: it copies the
//! numbers of the table and computes none. Strips and patches are units of an even side up to 16,
//! as models have them, on GPUs with compute capability 8.0; tiles and pixels take units of any
//! size. Strips are faster than patches, and are for resizes that change little: a unit needs at
//! most 32 rows and 32 columns.
//!
//! # What is computed
//!
//! ```text
//! for each pixel of a unit: its view, and its place in the resized image
//!     level = (2^(s - 1) + sum of k[t] row[first + t]) >> s, clamped to 0 to 255, down
//!     row   = the same sum over the pixels of a row of the image, across
//!     out   = table[channel][level], `copies` times
//! ```
//!
//! The levels between the passes are rounded to 8 bits, so sums are integers and their order is
//! free. A view says which pass is first. A pixel of the canvas beside the resized image has level
//! 0. A unit that no view has is zero.
//!
//! # How it is done
//!
//! An image is read once, but for the rows and columns that two blocks need, and the input is
//! written once.
//!
//! - **A warp makes a patch as products of matrices of bytes**, on tensor cores: a matrix of
//!   weights by one of levels, first across and then down. The levels between the passes stay in
//!   registers, because the first result has the form that the second product takes, for rows and
//!   columns that are numbered for it. See `matrices`.
//! - **The matrices of weights are made once for each axis**, by a kernel of their own:
//!   `fragments`.
//! - **A block of strips loads each sample once**, to where eight rows are in different banks. A
//!   thread of patches loads the samples that it needs. See `strips`.
//! - **Patches leave registers as levels**, one byte each, and the threads that store neighbors
//!   give them their numbers.
//! - The kernels for any size keep the sums in registers, and take the samples in parts. A source
//!   pixel is a part of two words.
//!
//! # Trust
//!
//! The tables may say anything. A view whose image is not inside `rgb` has no units. An output has
//! fewer than 2^16 samples. An address behind the end is an error, or becomes the last address.
//! Kernels have no `unsafe`.

#[cfg(any(feature = "processor", not(target_arch = "nvptx64")))]
mod kernels;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
#[cfg(any(feature = "processor", not(target_arch = "nvptx64")))]
mod levels;
// These kernels are in a PTX file of their own, `processor_sm_80`.
#[cfg(any(feature = "processor_sm_80", not(target_arch = "nvptx64")))]
mod matrices;
#[cfg(any(feature = "processor_sm_80", not(target_arch = "nvptx64")))]
mod patches;
#[cfg(any(feature = "processor_sm_80", not(target_arch = "nvptx64")))]
mod strips;
mod view;

#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{InputNumber, Sources, Units, fragments, inputs, interleaved_inputs};
pub use view::{AXIS_MAX, AXIS_WORDS, DOWN_FIRST, FRAGMENT_WORDS, PATCH, QUADS, RECORD_WORDS, STEP, VIEW_WORDS};
