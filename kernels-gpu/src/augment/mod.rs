//! Augmentation: from images of any sizes to a batch of images of one size, changed at random. It
//! takes two launches, or one if no image changes its contrast.
//!
//! | kernel | from | to | threads |
//! |---|---|---|---|
//! | [`measure`] | `rgb` u8, `records` | `sums` f32 [B, tiles] | 16 rows of a column each |
//! | [`augment_f32`], [`augment_bf16`] | `rgb`, `records`, `sums` | `out` [B, 3, S, S] | 11 to 13 rows of a column each |
//! | [`finish_f32`], [`finish_bf16`] | `x` f32 [B, 3, S, S], `steps` | `out` [B, 3, S, S] | a pixel each |
//!
//! # What is computed
//!
//! For each image, with the numbers of its record (see [`RECORD_WORDS`]):
//!
//! ```text
//! x = crop / 255, resized to S x S by the separable antialiased bilinear filter:
//!     output i has its center at c = (i + 0.5) n / S among n samples; sample j inside the crop weighs
//!     max(0, 1 - |j + 0.5 - c| / max(1, n / S)), and weights are divided by their sum
//! x = x from right to left                                       if the flag says so
//! x = clamp(brightness x);  m = mean of luma(x) over the S x S pixels
//! x = clamp(contrast x + (1 - contrast) m)
//! x = clamp(saturation x + (1 - saturation) luma(x))
//! x = luma(x), three times                                       if the flag says so
//! x = 7 taps down, 7 taps across; borders are reflected without repeating the edge   if the flag says so
//! out = x scale + shift, for each channel
//! ```
//!
//! For a batch with a vertical flip, a rotation, a change of hue, an erased rectangle, a mixture of
//! two images or a kernel of its own before the normalization, `augment` writes x as f32, and
//! `finish` does the rest (see [`STEP_WORDS`]). So a batch without them costs what it did.
//!
//! # Why two launches
//!
//! The mean of luma needs every pixel of the resized image before the first one can be finished,
//! and an image of 224 x 224 floats does not fit into the shared memory of a block. So `measure`
//! computes the resized image and keeps only one sum for each tile, and `augment` computes it
//! again. For a crop of h x w, the two read 3 h w bytes each (the second time mostly from L2) and
//! write 12 S S bytes, or 6 S S as bf16. Storing the resized image instead would move another 24 S
//! S bytes to save the arithmetic of one resize.
//!
//! # What takes the time
//!
//! Instructions do, not memory: about 70 % of the issue slots of an H200 are used, and 25 to 40 %
//! of its memory. With a thread's own weights, positions and loads of bytes, more instructions
//! prepared a column than computed it. So a block prepares them once, in shared memory (`staged`),
//! and a thread has many rows of a column.
//!
//! # Exactness
//!
//! The position of a sample relative to the center of an output is a whole number in units of
//! 1 / (2 S). All weights are computed from such whole numbers, so that they are exact at any
//! distance from the corner. Sums have a fixed order, so the same input gives the same bits.
//!
//! # Trust
//!
//! A record never decides an address without a check. An image whose crop is not inside `rgb`
//! leaves its part of `out` as it was.

mod apply;
mod color;
mod finish;
mod measure;
mod record;
mod resize;
mod staged;

pub use apply::{augment_bf16, augment_f32};
pub use finish::{STEP_WORDS, finish_bf16, finish_f32};
pub use measure::measure;
pub use record::{BLUR, FLIP, GRAYSCALE, RECORD_WORDS};

/// The largest S, and the largest side of a crop and of an image.
pub const MAX_SIZE: u32 = 16384;
/// The columns of a tile of [`measure`], which has a sum of its own.
pub const SUM_COLUMNS: u32 = THREADS;
/// The rows of a tile.
pub const ROWS: u32 = 32;
/// The threads of a block across. In `measure` a tile has as many columns.
const THREADS: u32 = 64;
/// The rows above and below a tile that the blur needs.
const BORDER: u32 = 3;
/// The columns beside a tile. Only 3 of them count, but with 4 the columns of a tile begin at
/// multiples of 4.
const SIDE: u32 = 4;
