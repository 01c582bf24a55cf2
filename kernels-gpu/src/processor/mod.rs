//! Image processors of vision-language models: from images of any sizes to the input of a model, in
//! one launch.
//!
//! | kernel | from | to | a block makes |
//! |---|---|---|---|
//! | `strips` | `rgb` u8, `views`, `axes`, `table` | [units, channels, side, side] | units side by side |
//! | `strip_pixels` | the same | [units, side, side, channels] | the same |
//! | `tiles` | the same | [units, channels, side, side] | 32 x 32 pixels of a unit |
//! | `pixels` | the same | [units, side, side, channels] | 16 x 16 pixels of a unit |
//!
//! [`inputs`] and [`interleaved_inputs`] launch one of them. A unit is a square of pixels: a patch
//! or a tile. Each kernel exists for elements of 2 bytes and for elements of 4: it copies the
//! numbers of the table and computes none. Strips take patches of an even side up to 16, as models
//! have them; the other two take units of any size and resizes of any ratio.
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
//! A block keeps the rows between the passes in shared memory. So an image is read once, but for
//! the rows and columns that two blocks need, and the input is written once.
//!
//! - **Strips multiply four samples at once** (`dp2a`, `dp4a`): a word has the levels of four
//!   neighbors in one channel, and a record of the table has their weights. Without that, a resize
//!   waits for its integer multiplications, of which an SM has half as many as of other operations.
//!   Rows whose samples do not fit into shared memory are made band by band.
//! - **A source pixel is a part of two words**: four loads are four pixels, and not twelve.
//! - **The threads of a warp have neighbors**, whose elements are neighbors in the output.
//! - The kernels for any ratio keep the sums in registers, and take the samples in parts.
//!
//! # Trust
//!
//! The tables may say anything. A view whose image is not inside `rgb` has no units. An output has
//! fewer than 2^16 samples. An address behind the end is an error, or becomes the last address.
//! Kernels have no `unsafe`.

mod kernels;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
mod levels;
mod strips;
mod view;

#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{InputNumber, Sources, Units, inputs, interleaved_inputs};
#[cfg(not(target_arch = "nvptx64"))]
pub use strips::STRIP_WINDOW;
pub use view::{AXIS_MAX, DOWN_FIRST, RECORD_WORDS, VIEW_WORDS};
