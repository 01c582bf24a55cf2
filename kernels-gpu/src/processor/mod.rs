//! Image processors of vision-language models: from images of any sizes to the input of a model, in
//! one launch.
//!
//! | kernel | from | to | a block makes |
//! |---|---|---|---|
//! | `patches` | `rgb` u8, `views`, `axes`, `table` | [units, channels, side, side] | a unit, or 2 x 2 of them |
//! | `tiles` | the same | the same | 32 x 32 pixels of a unit |
//! | `pixels` | the same | [units, side, side, channels] | 16 x 16 pixels of a unit |
//!
//! [`inputs`] chooses one of the first two, [`interleaved_inputs`] launches the last one. A unit is
//! a square of pixels: a patch or a tile. Each kernel exists for elements of 2 bytes and for
//! elements of 4: it copies the numbers of the table and computes none.
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
//! # One launch
//!
//! A block keeps the rows between the passes in shared memory, as a word for each pixel. So an
//! image is read once, but for the rows and columns that two blocks need, and the input is written
//! once. If a block needs more rows than fit, it takes them in parts and keeps the sums in
//! registers.
//!
//! - **A source pixel is a part of two words**, and a thread walks over the words of its samples:
//!   three loads for four pixels, and not twelve.
//! - **A thread has up to four pixels**, and the threads of a warp have neighbors, whose elements
//!   are neighbors in the output.
//!
//! # Trust
//!
//! A view whose image is not inside `rgb` has no units. Samples are cut at the end of the image, so
//! the work of a block is bounded by the image, whatever the tables say. Kernels have no `unsafe`.

mod kernels;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
mod levels;
mod view;

#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{InputNumber, Sources, Units, inputs, interleaved_inputs};
pub use view::{AXIS_MAX, DOWN_FIRST, VIEW_WORDS};
