//! The augmented images.
//!
//! ```text
//! for every image and every tile of 56 x 32 outputs, in parallel:
//!     m = sum of the image's sums / (S S)
//!     for every pixel of the tile, and 3 pixels around it if the image is blurred:
//!         resize, flip, brightness, contrast, saturation, grayscale
//!     blur down, blur across (through shared memory)
//!     out = x scale + shift
//! ```
//!
//! Launch: a block of 64 x 4 threads for each tile. A thread takes some rows of one column.
//! Memory: the bytes of the crop are read once (columns and rows around a tile come from L1 and L2),
//! and each output is written once; 29 KiB of shared memory.
//!
//! - **A tile with its border is 62 columns**, so that two warps have a column for each thread, and the
//!   rows of 56 floats that they store begin at a multiple of 32 bytes if S is a multiple of 8.
//! - **The blur down happens in place**: each thread reads all rows that it needs, and writes its own
//!   after a barrier.
//! - **Rows and columns outside the image are never computed**: the blur reads the pixels that they
//!   reflect, which are in the same tile, since S is at least 7.

use thalweg_simt::{Cooperative, In, Shared, bf16, kernel};

#[cfg(not(target_arch = "nvptx64"))]
use super::RECORD_WORDS;
use super::color::{adjust, bright};
use super::record::{BLUR, FLIP, Record};
use super::resize::resized;
use super::{ROWS, STRIPS, SUM_COLUMNS};
#[cfg(not(target_arch = "nvptx64"))]
use crate::parts::block::WINDOW;
use crate::parts::block::sum;

/// The threads of a block across.
const THREADS: u32 = 64;
/// The columns of a tile.
const COLUMNS: u32 = 56;
/// The pixels around a tile that the blur needs.
const BORDER: u32 = 3;
/// The rows of a tile with its border.
const HEIGHT: u32 = ROWS + 2 * BORDER;
/// The rows of the output that a thread blurs.
const OWN: u32 = ROWS / STRIPS;
/// The words of shared memory for a tile.
const TILE: u32 = 3 * HEIGHT * THREADS;

/// The arguments of the kernels, apart from the output.
#[derive(Clone, Copy)]
struct Input {
    size: u32,
    bytes: u64,
    measured: bool,
    luma: [f32; 3],
    scale: [f32; 3],
    shift: [f32; 3],
    records: In<u32>,
    rgb: In<u8>,
    sums: In<f32>,
}

macro_rules! augment {
    ($($(#[$doc:meta])* $name:ident <$e:ident> by $narrow:expr;)*) => {$(
        kernel! {
            $(#[$doc])*
            pub unsafe fn $name(
                cx: impl Cooperative, images: u32, size: u32, bytes: u64, measured: bool, blurs: bool,
                luma: [f32; 3], scale: [f32; 3], shift: [f32; 3],
                records: In<u32>, rgb: In<u8>, sums: In<f32>, out: Out<$e>,
            )
            require {
                (1..=65535).contains(&images),
                (1..=16384).contains(&size),
                !blurs || size >= 7,
                records.len() == images * RECORD_WORDS,
                records.is_aligned(16),
                rgb.len() == bytes,
                sums.len() == images * size.div_ceil(SUM_COLUMNS) * size.div_ceil(ROWS),
                out.len() == images * 3 * size * size,
            }
            grid(size.div_ceil(COLUMNS), size.div_ceil(ROWS), images) block(THREADS, STRIPS) shared((TILE + WINDOW) * 4)
            {
                let input = Input { size, bytes, measured, luma, scale, shift, records, rgb, sums };
                tile(cx, input, blurs, |at, v| out.set(cx, at, $narrow(v)));
            }
        }
    )*};
}
augment! {
    /// Computes the augmented images `out` [B, 3, S, S], where S is `size`.
    ///
    /// `sums` are those of [`measure`](super::measure), and are read only if `measured` says so;
    /// otherwise the contrast of every image must be 1. An element is
    /// `x scale[channel] + shift[channel]`, with x from 0 to 1. If an image is blurred, S must be at
    /// least 7: this is checked here for all images by the flag `blurs`.
    augment_f32 <f32> by core::convert::identity;
    /// Does the same as [`augment_f32`], with elements in bfloat16, rounded to nearest even.
    augment_bf16 <bf16> by bf16::from_f32;
}

/// Returns the index that `i` stands for, among `size`, where the borders are reflected without
/// repeating the edge. `i` is at least -3 and below `size + 3`.
#[inline(always)]
fn reflected(i: i32, size: u32) -> i32 {
    let size = size as i32;
    let i = if i < 0 { -i } else { i };
    if i < size { i } else { 2 * size - 2 - i }
}

/// Computes the tile of a block. `store` takes the index of an element and its value.
///
/// # Safety
/// The grid, the block and the shared memory are those of [`augment_f32`], and its requirements hold.
#[inline(always)]
unsafe fn tile<C: Cooperative>(cx: C, input: Input, blurs: bool, store: impl Fn(usize, f32)) {
    let Input { size, bytes, luma, records, rgb, .. } = input;
    let image = cx.block_idx().z;
    // SAFETY: The last dimension of the grid is the number of images, and `records` has one for each.
    let record = unsafe { Record::load(cx, records, image) };
    let Some(crop) = record.crop(rgb, bytes) else {
        return; // The same in all threads of the block.
    };
    // SAFETY: All threads of the block call it.
    let mean = unsafe { mean(cx, input) };

    let blur = blurs && record.has(BLUR);
    let border = if blur { BORDER } else { 0 };
    let (left, top) = (cx.block_idx().x * COLUMNS, cx.block_idx().y * ROWS);
    let output = |channel: u32, y: u32, x: u32| {
        ((image as usize * 3 + channel as usize) * size as usize + y as usize) * size as usize + x as usize
    };
    let finish = |channel: u32, y: u32, x: u32, v: f32| {
        let c = channel as usize;
        store(output(channel, y, x), cx.fma(v, input.scale[c], input.shift[c]));
    };
    // SAFETY: The window has `TILE` words.
    let pixels = unsafe { cx.shared::<f32>(0) };
    {
        // Column and row of the tile with its border: 0 is `border` pixels before the tile. A sum that
        // wraps below 0 is not below `size`.
        let x = (left + cx.thread_idx().x).wrapping_sub(border);
        let rows = (ROWS + 2 * border).div_ceil(STRIPS);
        let first = (top + cx.thread_idx().y * rows) as i32 - border as i32;
        let end = (first + rows as i32).min((top + ROWS + border) as i32).min(size as i32);
        if x < size && cx.thread_idx().x < COLUMNS + 2 * border {
            let column = if record.has(FLIP) { size - 1 - x } else { x };
            let place = |y: u32| (y + border - top) * THREADS + cx.thread_idx().x;
            // SAFETY: `column` is below `size`, and `end` at most `size`. Rows of the tile with its border
            // are below `HEIGHT`, and only one thread has a row of a column.
            unsafe {
                resized(cx, crop, size, column, first.max(0) as u32, end.max(0) as u32, |y, color| {
                    let color = adjust(cx, record, luma, mean, bright(cx, record, color));
                    each_channel(|c| match blur {
                        true => cx.shared_set(pixels, c * HEIGHT * THREADS + place(y), color[c as usize]),
                        false => finish(c, y, x, color[c as usize]),
                    });
                });
            }
        }
    }
    // The record is loaded again, and not reused: with one value, rustc's jump threading could make
    // copies of the barriers (see `Cooperative::barrier`).
    // SAFETY: as above.
    if !blurs || !unsafe { Record::load(cx, records, image) }.has(BLUR) {
        return;
    }
    cx.barrier();
    let taps = record.taps();
    // SAFETY: All threads of the block are here, and the tile with its border was written before the
    // barrier.
    let down = |c| unsafe { blurred_down(cx, pixels, taps, size, c) };
    let blurred = [down(0), down(1), down(2)];
    cx.barrier();
    let own = cx.thread_idx().y * OWN;
    each_channel(|c| {
        for (i, v) in (0..).zip(blurred[c as usize]) {
            // SAFETY: The rows of the tile without its border are below `HEIGHT`. Each thread has its own
            // rows of its own column, and no thread reads before the next barrier.
            unsafe { cx.shared_set(pixels, (c * HEIGHT + BORDER + own + i) * THREADS + cx.thread_idx().x, v) };
        }
    });
    cx.barrier();
    let (x, own) = (left + cx.thread_idx().x, cx.thread_idx().y * OWN);
    if x >= size || cx.thread_idx().x >= COLUMNS {
        return;
    }
    // The seven columns of the tile with its border.
    let column = |k: i32| (reflected(x as i32 + k, size) + BORDER as i32 - left as i32) as u32;
    let columns = [column(-3), column(-2), column(-1), column(0), column(1), column(2), column(3)];
    for y in top + own..(top + own + OWN).min(size) {
        each_channel(|c| {
            let row = (c * HEIGHT + BORDER + y - top) * THREADS;
            // SAFETY: Columns up to 3 beside the tile, which is all that a reflection gives, are 0 to 61
            // here, and the row is below `HEIGHT`. They were written before the barrier.
            let at = |i: usize| unsafe { cx.shared_get(pixels, row + columns[i]) };
            let mut sum = taps[0] * at(3);
            sum = cx.fma(taps[1], at(2) + at(4), sum);
            sum = cx.fma(taps[2], at(1) + at(5), sum);
            sum = cx.fma(taps[3], at(0) + at(6), sum);
            finish(c, y, x, sum);
        });
    }
}

/// Calls `work` for each channel. It is no loop, so that what a channel indexes stays in registers.
#[inline(always)]
fn each_channel(work: impl Fn(u32)) {
    work(0);
    work(1);
    work(2);
}

/// Blurs the rows of a thread down its column of a channel of the tile, and returns them. A value
/// outside the image is arbitrary.
///
/// # Safety
/// `pixels` holds the tile with its border, as far as it is inside the image.
#[inline(always)]
unsafe fn blurred_down<C: Cooperative>(
    cx: C,
    pixels: Shared<f32>,
    taps: [f32; 4],
    size: u32,
    channel: u32,
) -> [f32; OWN as usize] {
    let (left, top) = (cx.block_idx().x * COLUMNS, cx.block_idx().y * ROWS);
    let first = (top + cx.thread_idx().y * OWN) as i32 - BORDER as i32;
    let x = (left + cx.thread_idx().x).wrapping_sub(BORDER);
    let inside = x < size && cx.thread_idx().x < COLUMNS + 2 * BORDER;
    let rows: [f32; (OWN + 2 * BORDER) as usize] = core::array::from_fn(|i| {
        let y = first + i as i32;
        // Rows further out belong to no output.
        if inside && y < (size + BORDER) as i32 {
            let row = (reflected(y, size) + BORDER as i32 - top as i32) as u32;
            // SAFETY: A row up to 3 above or below the tile is 0 to 37 here. So is the row that it
            // reflects: y > -4 becomes at most 3, and y < size + 3 becomes at least size - 4, and the first
            // row of the tile is below `size`.
            unsafe { cx.shared_get(pixels, (channel * HEIGHT + row) * THREADS + cx.thread_idx().x) }
        } else {
            0.0
        }
    });
    core::array::from_fn(|i| {
        let mut sum = taps[0] * rows[i + 3];
        sum = cx.fma(taps[1], rows[i + 2] + rows[i + 4], sum);
        sum = cx.fma(taps[2], rows[i + 1] + rows[i + 5], sum);
        cx.fma(taps[3], rows[i] + rows[i + 6], sum)
    })
}

/// Computes the mean of luma of the block's image from its sums.
///
/// # Safety
/// All threads of the block call it, with the grid of [`augment_f32`].
#[inline(always)]
unsafe fn mean<C: Cooperative>(cx: C, input: Input) -> f32 {
    let Input { size, sums, measured, .. } = input;
    if !measured {
        return 0.0;
    }
    let tiles = size.div_ceil(SUM_COLUMNS) * size.div_ceil(ROWS);
    let mut own = 0.0;
    let mut i = cx.rank();
    while i < tiles {
        // SAFETY: `sums` has `tiles` elements for each image.
        own += unsafe { sums.get(cx, cx.block_idx().z as usize * tiles as usize + i as usize) };
        i += THREADS * STRIPS;
    }
    // SAFETY: All threads of the block call it, and the window lies behind the tile, where no other
    // access goes.
    let total = unsafe { sum(cx, cx.shared::<f32>(TILE * 4), own) };
    total * cx.recip((size * size) as f32)
}

const _: () = assert!(size_of::<bf16>() == 2 && COLUMNS + 2 * BORDER <= THREADS);
