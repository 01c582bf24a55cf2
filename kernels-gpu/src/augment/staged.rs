//! The resized crop of a tile, from samples in shared memory.
//!
//! ```text
//! copy the samples that the tile needs to shared memory, a word for each pixel
//! for each column and each row of the tile: where its samples begin, and their weights
//! barrier
//! each thread, down a column of the tile:
//!     for every output: sum new rows across, keep the last 2 or 3; add them
//! ```
//!
//! - **It is for crops that are enlarged, or reduced by at most 3 / 2**: then 2 or 3 samples count
//!   for an output on each axis. Others go through [`resized`], which reads device memory.
//! - **Positions and weights are computed once for a row or a column**, and not by each thread.
//! - **A pixel is one word**, so a row costs a thread 2 or 3 loads. The copy loads 4 pixels as 4
//!   words and shifts them, instead of 12 bytes.

use thalweg_simt::{Cooperative, SharedMemory, Simt};

use super::record::Crop;
use super::resize::{Axis, resized};
use super::{BORDER, ROWS, THREADS};

/// The most rows and columns of a tile with its border.
const HEIGHT: u32 = ROWS + 2 * BORDER;
const WIDTH: u32 = THREADS;
/// The most rows and columns of samples of a tile: with 2 samples for an output as many as the
/// outputs and one more, with 3 as many as half of them more, and 3.
const DOWN: u32 = HEIGHT * 3 / 2 + 3;
const ACROSS: u32 = (WIDTH * 3 / 2 + 3).next_multiple_of(4);
/// The words of shared memory for a tile: positions and weights, and samples.
pub(super) const WORDS: u32 = 4 * (WIDTH + HEIGHT) + DOWN * ACROSS;

/// A part of the crop resized to `size` x `size`, with what is in shared memory of it.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    crop: Crop,
    size: u32,
    /// The first row and column.
    top: u32,
    left: u32,
    /// The samples for an output on both axes, or 0 if they are too many to be in shared memory.
    count: u32,
    table: SharedMemory<u32>,
    pixels: SharedMemory<u32>,
}

impl Tile {
    /// Copies the samples of rows `top..bottom` and columns `left..right` to shared memory. The
    /// caller passes a barrier before it uses the tile.
    ///
    /// # Safety
    /// All threads of a block call this, with the same arguments. There are `threads`, at least as
    /// many as rows and columns of the tile, and a multiple of 32. The part is not empty, it is
    /// inside `size` x `size`, and it has at most [`ROWS`] + 2 [`BORDER`] rows and [`THREADS`]
    /// columns. `window` has [`WORDS`] words, on 16 bytes, and nobody else uses them.
    #[inline(always)]
    pub(super) unsafe fn new<C: Cooperative>(
        cx: C,
        crop: Crop,
        size: u32,
        [top, bottom]: [u32; 2],
        [left, right]: [u32; 2],
        window: SharedMemory<u32>,
        threads: u32,
    ) -> Self {
        let (down, across) = (Axis::new(cx, crop.height, size), Axis::new(cx, crop.width, size));
        let count = match (down.few(), across.few()) {
            (Some(2), Some(2)) => 2,
            (Some(_), Some(_)) if crop.height >= 3 && crop.width >= 3 => 3,
            _ => 0,
        };
        // SAFETY: The samples are behind the table, inside the window that the caller promises.
        let pixels = unsafe { cx.shared_at::<u32>(window.address() + 16 * (WIDTH + HEIGHT)) };
        let tile = Self { crop, size, top, left, count, table: window, pixels };
        if count == 0 {
            return tile;
        }
        let (y0, x0) = (down.window(top, count), across.window(left, count));
        let y1 = down.window(bottom - 1, count) + count;
        let x1 = across.window(right - 1, count) + count;

        let rank = cx.rank();
        let (axis, i, end, first, pitch, scale) = if rank < WIDTH {
            (across, left + rank, right, x0, 1, 1.0)
        } else {
            (down, top + (rank - WIDTH), bottom, y0, ACROSS, 1.0 / 255.0)
        };
        if i < end {
            let begin = axis.window(i, count);
            let [a, b, c] = axis.weights(cx, i, begin, count).map(|weight| (weight * scale).to_bits());
            // SAFETY: There are at most `WIDTH` columns and `HEIGHT` rows, and each has a thread.
            unsafe { cx.shared_set4(window, 4 * rank, [(begin - first) * pitch, a, b, c]) };
        }

        // 16 or 32 threads have a row of samples, and each of them 4 pixels.
        let per_row = if x1 - x0 <= 64 { 16 } else { 32 };
        let (mut y, x) = (y0 + rank / per_row, x0 + rank % per_row * 4);
        while y < y1 && x < x1 {
            // SAFETY: The row is in the crop, as `window` says. There are at most `DOWN` rows and
            // `ACROSS` columns of samples, and both `ACROSS` and the first column of the four are
            // multiples of 4.
            unsafe { cx.shared_set4(pixels, (y - y0) * ACROSS + (x - x0), crop.four(cx, y, x)) };
            y += threads / per_row;
        }
        tile
    }

    /// Computes rows `first..end` of a column, and passes each row and its color, from 0 to 1, to
    /// `each`.
    ///
    /// # Safety
    /// The rows and the column are in the tile, and the block has passed a barrier after
    /// [`new`](Self::new).
    #[inline(always)]
    pub(super) unsafe fn column<C: Cooperative>(
        self,
        cx: C,
        column: u32,
        first: u32,
        end: u32,
        each: impl FnMut(u32, [f32; 3]),
    ) {
        // SAFETY: The caller promises the rows and the column.
        unsafe {
            match self.count {
                2 => self.few::<2, C>(cx, column, first, end, each),
                3 => self.few::<3, C>(cx, column, first, end, each),
                _ => resized(cx, self.crop, self.size, column, first, end, each),
            }
        }
    }

    /// Does the work of [`column`](Self::column), with `N` samples for an output on each axis.
    ///
    /// # Safety
    /// As for [`column`](Self::column).
    #[inline(always)]
    unsafe fn few<const N: usize, C: Cooperative>(
        self,
        cx: C,
        column: u32,
        first: u32,
        end: u32,
        mut each: impl FnMut(u32, [f32; 3]),
    ) {
        if first >= end {
            return;
        }
        // SAFETY: `new` filled the table for the tile's rows and columns, and the caller promises
        // that they are. Samples from the one that the table names on were copied.
        unsafe {
            let [place, a, b, c] = cx.shared_get4(self.table, 4 * (column - self.left));
            let across = [a, b, c].map(f32::from_bits);
            let sum = |row: u32| {
                let mut pixel = [0; N];
                let mut k = 0;
                while k < N {
                    pixel[k] = cx.shared_get(self.pixels, row + place + k as u32);
                    k += 1;
                }
                let channel = |c: u32| {
                    let mut sum = unbiased_product(cx, biased_byte(cx, pixel[0], c), across[0]);
                    let mut k = 1;
                    while k < N {
                        sum = cx.fma(across[k], unbiased(biased_byte(cx, pixel[k], c)), sum);
                        k += 1;
                    }
                    sum
                };
                [channel(0), channel(1), channel(2)]
            };
            let entry = |row: u32| cx.shared_get4(self.table, 4 * (WIDTH + row - self.top));
            let mut begin = entry(first)[0];
            let mut rows = [[0.0; 3]; N];
            let mut k = 0;
            while k < N {
                rows[k] = sum(begin + k as u32 * ACROSS);
                k += 1;
            }
            for i in first..end {
                let [next, a, b, c] = entry(i);
                let down = [a, b, c].map(f32::from_bits);
                // The samples of an output begin at most 1 row below those of the output before, or
                // 2 if there are 3 of them. A loop for as many rows as are new would cost more than
                // the rows.
                let mut step = 1;
                while step < N {
                    if begin < next {
                        let mut k = 1;
                        while k < N {
                            rows[k - 1] = rows[k];
                            k += 1;
                        }
                        rows[N - 1] = sum(begin + N as u32 * ACROSS);
                        begin += ACROSS;
                    }
                    step += 1;
                }
                let channel = |c: usize| {
                    let mut sum = down[0] * rows[0][c];
                    let mut k = 1;
                    while k < N {
                        sum = cx.fma(down[k], rows[k][c], sum);
                        k += 1;
                    }
                    sum
                };
                each(i, [channel(0), channel(1), channel(2)]);
            }
        }
    }
}

/// Returns byte `k` (0 to 3) of `v`, plus 2^23. [`unbiased`] and [`unbiased_product`] take it.
#[inline(always)]
fn biased_byte(cx: impl Simt, v: u32, k: u32) -> f32 {
    if cfg!(target_arch = "nvptx64") {
        // One instruction puts the byte into the mantissa of 2^23.
        f32::from_bits(cx.byte_perm(v, 0x4b00_0000, 0x7650 | k))
    } else {
        f32::from_bits(v >> (8 * k) & 255 | 0x4b00_0000)
    }
}

/// Returns the byte.
#[inline(always)]
fn unbiased(byte: f32) -> f32 {
    byte - 8_388_608.0
}

/// Computes the product of the byte and `scale` with one rounding, as `parts::number::scaled` does.
#[inline(always)]
fn unbiased_product(cx: impl Simt, byte: f32, scale: f32) -> f32 {
    if cfg!(target_arch = "nvptx64") { cx.fma(byte, scale, -8_388_608.0 * scale) } else { unbiased(byte) * scale }
}
