//! The sum of luma over each tile of the resized and brightened images.
//!
//! ```text
//! for every image and every tile of 64 x 32 outputs, in parallel:
//!     sums[image][tile] = sum of luma(clamp(brightness x)) over the tile
//! ```
//!
//! Launch: a block of 64 x 2 threads for each tile; a thread takes 16 rows of one column. 25 KiB of
//! shared memory. Memory: the bytes of the crop are read once, and 4 bytes are written for each
//! tile.

use thalweg_simt::kernel;

#[cfg(not(target_arch = "nvptx64"))]
use super::RECORD_WORDS;
use super::color::{bright, luma};
use super::record::Record;
use super::staged::{Tile, WORDS};
use super::{ROWS, SUM_COLUMNS};
#[cfg(not(target_arch = "nvptx64"))]
use crate::parts::block::WINDOW;
use crate::parts::block::sum;

/// The threads of a block down: each takes some rows of the tile.
const STRIPS: u32 = 2;

kernel! {
    /// Computes the sum of luma of each tile of [`SUM_COLUMNS`] x [`ROWS`] outputs: `sums` [B,
    /// tiles down, tiles across]. The sum of an image whose crop is not inside `rgb` is 0.
    pub unsafe fn measure(
        cx: impl Cooperative, images: u32, size: u32, bytes: u64, luma_weights: [f32; 3],
        records: In<u32>, rgb: In<u8>, sums: Out<f32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=16384).contains(&size),
        records.len() == images * RECORD_WORDS,
        records.is_aligned(16),
        rgb.len() == bytes,
        sums.len() == images * size.div_ceil(SUM_COLUMNS) * size.div_ceil(ROWS),
    }
    grid(size.div_ceil(SUM_COLUMNS), size.div_ceil(ROWS), images) block(SUM_COLUMNS, STRIPS) shared((WORDS + WINDOW) * 4)
    {
        let image = cx.block_idx().z;
        let record = Record::load(cx, records, image);
        let crop = record.crop(rgb, bytes);
        let (top, left) = (cx.block_idx().y * ROWS, cx.block_idx().x * SUM_COLUMNS);
        let (bottom, right) = ((top + ROWS).min(size), (left + SUM_COLUMNS).min(size));
        let mut own = 0.0;
        if let Some(crop) = crop { // The same in all threads of the block.
            let tile = Tile::new(cx, crop, size, [top, bottom], [left, right], cx.shared(0), SUM_COLUMNS * STRIPS);
            cx.barrier();
            // The mean of the image does not depend on the flip.
            let (column, first) = (left + cx.thread_idx().x, top + cx.thread_idx().y * (ROWS / STRIPS));
            if column < right {
                tile.column(cx, column, first, (first + ROWS / STRIPS).min(size), |_, color| {
                    own += luma(cx, luma_weights, bright(cx, record, color));
                });
            }
        }
        let total = sum(cx, cx.shared::<f32>(WORDS * 4), own);
        if cx.rank() == 0 {
            let tile = cx.block_idx().y * cx.grid_dim().x + cx.block_idx().x;
            sums.set(cx, image as usize * (cx.grid_dim().x * cx.grid_dim().y) as usize + tile as usize, total);
        }
    }
}
