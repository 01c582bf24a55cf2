//! From the coded data of JPEG files to pixels. A batch of images takes seven or eight
//! launches and a fill.
//!
//! | kernel | from | to | threads |
//! |---|---|---|---|
//! | [`admit`] | the table of images | [`Images`] | one for each image |
//! | [`find_sync_points`] | `data`, `tables` | `states`, `counts` | one for each piece of coded data |
//! | [`repair_sync_points`] | the same | the same | a block for each image |
//! | [`offsets`] | `counts` | `places` | a block for each image |
//! | [`coefficients`] | `data`, `tables`, `states`, `places` | `coefficients` i16 [B, 64] | one for each piece, which writes the blocks that start in it |
//! | [`inverse_dct`] | `coefficients`, `quantization` | `planes` u8 | 8 for each two blocks of 8 x 8 |
//! | [`colors_420`] | `planes` | `rgb` u8 [H, W, 3] for each upright image with chroma halved in both directions | one for 16 pixels of two rows |
//! | [`colors`] | `planes` | `rgb` for each other image | one for 16 pixels of a row |
//!
//! # The method
//!
//! A Huffman code has no marks by which a thread could start in the middle of the data. But a
//! decoder that starts at a wrong bit soon falls into step with the right one
//! (Klein and Wiseman 2003; Weissenberger and Schmidt 2021, arXiv 2111.09219). So the data is cut
//! into pieces of [`PIECE_BITS`] bits. Each piece is decoded from a guess. Then each piece whose
//! predecessor ended in another state than it had assumed is decoded again, until nothing changes.
//! A piece that starts after a restart marker, or at the start of the image, needs no guess.
//!
//! `find_sync_points` does this within a block of [`PIECES_OF_BLOCK`] pieces, `repair_sync_points`
//! between the blocks. Then the number of coefficients of each piece is known, and so are their
//! places. The sums of the DC differences come with the counts, so the coefficients are written
//! once.
//!
//! # Trust
//!
//! The bits come from strangers. Every index that depends on them is bounded before it is used, and
//! a piece is decoded at most 128 times by `find_sync_points` and 16 times by `repair_sync_points`,
//! so the time is in proportion to the length of the data. Data that takes more is reported.
//! Launchers check the shapes of buffers. What is in `images`, `segments` and the other tables
//! never decides an address without a bound, either.
//!
//! No two threads write one element, whatever the tables say. An image has pieces, planes and
//! pixels of its own, because launchers take no table of images but [`Images`], which [`admit`]
//! alone makes. It borrows a copy in which the parts of images are disjoint. Where a block of
//! coefficients goes depends on the data, so [`coefficients`] stores it by relaxed atomic words:
//! pieces that are not in step, or segments with one place, may name one block, and then it has
//! words of either.

mod admit;
mod color;
mod dct;
mod decode;
mod huffman;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
mod pixels;
mod plane;
mod record;

pub use huffman::ZIGZAG;
#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{
    Coded, Images, Pieces, admit, coefficients, colors, colors_420, find_sync_points, inverse_dct, offsets,
    repair_sync_points,
};
pub use record::{COMPONENT_WORDS, IMAGE_WORDS, SEGMENT_WORDS};

/// The bits of a piece of coded data.
pub const PIECE_BITS: u32 = 1024;
/// The pieces of a block of [`find_sync_points`].
pub const PIECES_OF_BLOCK: u32 = 128;
/// The bits of the Huffman codes that one access finds.
pub const FAST_BITS: u32 = 9;
/// The words of a Huffman table: an entry of 16 bits for each [`FAST_BITS`] bits (the length of the
/// code times 256, plus its symbol; 0 where the code is longer), the limits of the codes of 1 to 16
/// bits, what to add to a code of each length to get the index of its symbol, and the symbols.
pub const TABLE_WORDS: u32 = (1 << (FAST_BITS - 1)) + 16 + 16 + 64;
/// The pixels of a row that a thread of [`colors`] makes.
pub const PIXELS: u32 = 16;
/// The most Huffman tables of an image.
pub const TABLES: u32 = 6;
