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
//! Launch: a block of 64 x 3 threads for each tile. A thread takes some rows of one column, and
//! then 4 rows of 4 columns of a channel, twice. Memory: the bytes of the crop are read once
//! (columns and rows around a tile come from L1 and L2), and each output is written once, 16 bytes
//! a thread; 54 KiB of shared memory.
//!
//! - **A tile with its border is 64 columns**, a column for each thread of two warps, and the rows
//!   of 56 floats that they store begin at a multiple of 16 bytes if S is a multiple of 4.
//! - **A thread blurs 4 rows and 4 columns in registers**, and gets the 3 columns on each side from
//!   the lanes beside it. So a value is loaded 2.5 times from shared memory for each output, and
//!   not 14 times.
//! - **Columns outside the image are computed as those that they reflect**, and rows outside are
//!   read from those that they reflect. These are in the same tile, since S is at least 7.
//! - **Blocks of 192 threads** leave 80 registers to a thread while four of them fill the shared
//!   memory of a multiprocessor. With 256 threads the blur spilled or three blocks fitted, and with
//!   128 too few warps hid the latency (7 and 3 % slower).

use thalweg_simt::{Cooperative, Element, In, Simt, bf16, bf16x2, kernel};

#[cfg(not(target_arch = "nvptx64"))]
use super::RECORD_WORDS;
use super::color::{adjust, bright};
use super::record::{BLUR, FLIP, Record};
#[cfg(not(target_arch = "nvptx64"))]
use super::staged;
use super::staged::Tile;
use super::{BORDER, ROWS, SIDE, SUM_COLUMNS, THREADS};

/// The threads of a block down: each takes some rows of the tile.
const STRIPS: u32 = 3;
/// The columns of a tile.
const COLUMNS: u32 = THREADS - 2 * SIDE;
/// The rows of a tile with its border.
const HEIGHT: u32 = ROWS + 2 * BORDER;
/// The words of shared memory for the colors of a tile.
const COLORS: u32 = 3 * HEIGHT * THREADS;
/// The rows and columns that a thread blurs at once.
const OWN: u32 = 4;
/// The words of shared memory: the colors, and what `staged` needs.
#[cfg(not(target_arch = "nvptx64"))]
const WORDS: u32 = COLORS + staged::WORDS;

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
    ($($(#[$doc:meta])* $name:ident <$e:ident>;)*) => {$(
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
            grid(size.div_ceil(COLUMNS), size.div_ceil(ROWS), images) block(THREADS, STRIPS) bounds(THREADS * STRIPS, 4) shared(WORDS * 4)
            {
                let input = Input { size, bytes, measured, luma, scale, shift, records, rgb, sums };
                tile(cx, input, blurs, out.as_ptr());
            }
        }
    )*};
}
augment! {
    /// Computes the augmented images `out` [B, 3, S, S], where S is `size`.
    ///
    /// `sums` are those of [`measure`](super::measure), and are read only if `measured` says so;
    /// otherwise the contrast of every image must be 1. An element is
    /// `x scale[channel] + shift[channel]`, with x from 0 to 1. If an image is blurred, S must be
    /// at least 7: this is checked here for all images by the flag `blurs`.
    augment_f32 <f32>;
    /// Does the same as [`augment_f32`], with elements in bfloat16, rounded to nearest even.
    augment_bf16 <bf16>;
}

/// Returns the index that `i` stands for, among `size`, which is at least 7, where the borders are
/// reflected without repeating the edge. Only up to 3 indices beside the image have one, and others
/// get any.
#[inline(always)]
fn reflected(i: i32, size: u32) -> u32 {
    let last = size as i32 - 1;
    let i = i.abs().min(last + 3);
    (if i > last { 2 * last - i } else { i }) as u32
}

/// A type of elements of the result.
trait Output: Element {
    /// Stores an element.
    ///
    /// # Safety
    /// The element is in device memory.
    unsafe fn one(cx: impl Simt, to: *mut Self, v: f32);
    /// Stores four elements in one access.
    ///
    /// # Safety
    /// The elements are in device memory, at a multiple of their size.
    unsafe fn four(cx: impl Simt, to: *mut Self, v: [f32; 4]);
}

impl Output for f32 {
    #[inline(always)]
    unsafe fn one(cx: impl Simt, to: *mut Self, v: f32) {
        // SAFETY: The caller promises the element.
        unsafe { cx.store(to, v) };
    }
    #[inline(always)]
    unsafe fn four(cx: impl Simt, to: *mut Self, v: [f32; 4]) {
        // SAFETY: The caller promises the elements and their place.
        unsafe { cx.store4(to, v) };
    }
}

impl Output for bf16 {
    #[inline(always)]
    unsafe fn one(cx: impl Simt, to: *mut Self, v: f32) {
        // SAFETY: The caller promises the element.
        unsafe { cx.store(to, bf16::from_f32(v)) };
    }
    #[inline(always)]
    unsafe fn four(cx: impl Simt, to: *mut Self, [a, b, c, d]: [f32; 4]) {
        let [low, high] = [bf16x2::from_f32s(a, b), bf16x2::from_f32s(c, d)].map(|pair| u64::from(pair.to_bits()));
        // SAFETY: The caller promises the elements, which are one aligned word of 64 bits.
        unsafe { cx.store(to.cast::<u64>(), low | high << 32) };
    }
}

/// Computes the tile of a block.
///
/// # Safety
/// The grid, the block and the shared memory are those of [`augment_f32`], and its requirements
/// hold. `out` has as many elements as that requires.
#[inline(always)]
unsafe fn tile<C: Cooperative, E: Output>(cx: C, input: Input, blurs: bool, out: *mut E) {
    let Input { size, bytes, luma, records, rgb, .. } = input;
    let image = cx.block_idx().z;
    // SAFETY: The last dimension of the grid is the number of images, and `records` has one for
    // each.
    let record = unsafe { Record::load(cx, records, image) };
    let Some(crop) = record.crop(rgb, bytes) else {
        return; // The same in all threads of the block.
    };
    let blur = blurs && record.has(BLUR);
    let (left, top) = (cx.block_idx().x * COLUMNS, cx.block_idx().y * ROWS);
    // The part of the image that the block computes, with the border inside the image.
    let border = if blur { BORDER } else { 0 };
    let (first, end) = (top.saturating_sub(border), (top + ROWS + border).min(size));
    let (from, to) = (left.saturating_sub(SIDE), (left + COLUMNS + SIDE).min(size));
    // Flipped, it is this part of the crop.
    let columns = if record.has(FLIP) { [size - to, size - from] } else { [from, to] };
    // SAFETY: All threads of the block call these. The shared memory behind the colors has the
    // words that the tile needs.
    let (tile, mean) = unsafe {
        let samples = cx.shared(4 * COLORS);
        (Tile::new(cx, crop, size, [first, end], columns, samples, THREADS * STRIPS), mean(cx, input))
    };

    cx.barrier();

    // SAFETY: The window has `COLORS` words.
    let pixels = unsafe { cx.shared::<f32>(0) };
    {
        // Columns outside the image get the colors that they reflect, or some other column's if
        // there are too few to reflect, so that what is behind the barrier need not know.
        let x = reflected((left + cx.thread_idx().x) as i32 - SIDE as i32, size).min(size - 1);
        let strip = (end - first).div_ceil(STRIPS);
        let first = first + cx.thread_idx().y * strip;
        let column = if record.has(FLIP) { size - 1 - x } else { x };
        // SAFETY: Column and rows are in the tile: a reflection goes at most 3 columns back into
        // the image, and a tile with columns behind the image has its last one. Rows of the tile
        // with its border are below `HEIGHT`, and only one thread has a row of a column.
        unsafe {
            tile.column(cx, column, first, (first + strip).min(end), |y, color| {
                let color = adjust(cx, record, luma, mean, bright(cx, record, color));
                each_channel(|c| {
                    let row = c * HEIGHT + y + BORDER - top;
                    cx.shared_set(pixels, row * THREADS + cx.thread_idx().x, color[c as usize]);
                });
            });
        }
    }
    cx.barrier();
    // The record is loaded again, and not reused: with one value, rustc's jump threading could make
    // copies of the barrier (see `Cooperative::barrier`).
    // SAFETY: as above.
    let record = unsafe { Record::load(cx, records, image) };
    let blur = blurs && record.has(BLUR);
    let vector = size.is_multiple_of(OWN) && (out as usize).is_multiple_of(OWN as usize * size_of::<E>());
    // A warp has 4 rows of two strips, and a lane 4 columns. The first and the last lane of a strip
    // have the columns of the border only.
    let group = cx.rank() % (THREADS / OWN);
    let inside = group > 0 && group < THREADS / OWN - 1;
    let x = left + group * OWN - SIDE.min(group * OWN);
    let mut job = cx.rank() / (THREADS / OWN);
    while job < 3 * ROWS / OWN {
        let (c, y) = (job / (ROWS / OWN), top + job % (ROWS / OWN) * OWN);
        // An index that is known only here would put the numbers into memory.
        let of = |v: [f32; 3]| {
            if c == 0 {
                v[0]
            } else if c == 1 {
                v[1]
            } else {
                v[2]
            }
        };
        let (scale, shift) = (of(input.scale), of(input.shift));
        let start =
            out.wrapping_add(((image * 3 + c) as usize * size as usize + y as usize) * size as usize + x as usize);
        let finish = |i: u32, v: [f32; 4]| {
            let v = v.map(|v| cx.fma(v, scale, shift));
            let to = start.wrapping_add((i * size) as usize);
            // SAFETY: Elements of rows and columns below `size` are in the result, and no other
            // thread has them. If `size` is a multiple of 4, all four columns are below it or none.
            unsafe {
                if inside && y + i < size && vector && x < size {
                    E::four(cx, to, v);
                } else if inside && y + i < size {
                    four(|k| {
                        if x + k < size {
                            E::one(cx, to.wrapping_add(k as usize), v[k as usize]);
                        }
                    });
                }
            }
        };
        let at = (c * HEIGHT + BORDER) * THREADS + group * OWN;
        // SAFETY: The window has the tile with its border, as far as it is inside the image, which
        // was written before the barrier. All lanes of the warp are here: the number of jobs is
        // even.
        unsafe {
            if blur {
                let row = |i: u32| {
                    // A row up to 3 above or below the tile, or the row that it reflects: y > -4
                    // becomes at most 3, and y < size + 3 becomes at least size - 4, and the first
                    // row of the tile is below `size`.
                    let row = reflected((y + i) as i32 - BORDER as i32, size) + BORDER - top;
                    cx.shared_get4(pixels, at + row * THREADS - BORDER * THREADS)
                };
                blurred(cx, record.taps(), row, finish);
            } else {
                four(|i| {
                    if y + i < size {
                        finish(i, cx.shared_get4(pixels, at + (y - top + i) * THREADS));
                    }
                });
            }
        }
        job += THREADS * STRIPS / (THREADS / OWN);
    }
}

/// Calls `work` for each channel. It is no loop, so that what a channel indexes stays in registers.
#[inline(always)]
fn each_channel(work: impl Fn(u32)) {
    work(0);
    work(1);
    work(2);
}

/// Calls `f` with 0 to 3. A loop might not be unrolled, and then its results would be in memory.
#[inline(always)]
fn four<T>(f: impl Fn(u32) -> T) -> [T; 4] {
    [f(0), f(1), f(2), f(3)]
}

/// Blurs 4 rows and 4 columns of a channel, down and then across, and passes each row to `each`.
/// `row` gives the lane's columns of the 10 rows from 3 above on; lanes have neighboring columns.
#[inline(always)]
fn blurred(cx: impl Cooperative, taps: [f32; 4], row: impl Fn(u32) -> [f32; 4], each: impl Fn(u32, [f32; 4])) {
    let blur = |i: u32, rows: [[f32; 4]; 7]| {
        let [a, b, c, d, e, f, g] = rows;
        let [w, x, y, z] = four(|k| {
            let k = k as usize;
            seven(cx, taps, [a[k], b[k], c[k], d[k], e[k], f[k], g[k]])
        });
        let (p, q, r) = (cx.shuffle_up(x, 1), cx.shuffle_up(y, 1), cx.shuffle_up(z, 1));
        let (s, t, u) = (cx.shuffle_down(w, 1), cx.shuffle_down(x, 1), cx.shuffle_down(y, 1));
        let across = [
            seven(cx, taps, [p, q, r, w, x, y, z]),
            seven(cx, taps, [q, r, w, x, y, z, s]),
            seven(cx, taps, [r, w, x, y, z, s, t]),
            seven(cx, taps, [w, x, y, z, s, t, u]),
        ];
        each(i, across);
    };
    let [a, b, c] = [row(0), row(1), row(2)];
    let [d, e, f, g] = [row(3), row(4), row(5), row(6)];
    blur(0, [a, b, c, d, e, f, g]);
    let h = row(7);
    blur(1, [b, c, d, e, f, g, h]);
    let i = row(8);
    blur(2, [c, d, e, f, g, h, i]);
    blur(3, [d, e, f, g, h, i, row(9)]);
}

/// Computes the sum of seven values with the weights of the blur.
#[inline(always)]
fn seven(cx: impl Simt, taps: [f32; 4], v: [f32; 7]) -> f32 {
    let mut sum = taps[0] * v[3];
    sum = cx.fma(taps[1], v[2] + v[4], sum);
    sum = cx.fma(taps[2], v[1] + v[5], sum);
    cx.fma(taps[3], v[0] + v[6], sum)
}

/// Computes the mean of luma of the block's image from its sums. Each warp computes it for itself.
///
/// # Safety
/// All lanes of the warp call it, with the grid of [`augment_f32`].
#[inline(always)]
unsafe fn mean<C: Cooperative>(cx: C, input: Input) -> f32 {
    let Input { size, sums, measured, .. } = input;
    if !measured {
        return 0.0;
    }
    let tiles = size.div_ceil(SUM_COLUMNS) * size.div_ceil(ROWS);
    let mut own = 0.0;
    let mut i = cx.lane();
    while i < tiles {
        // SAFETY: `sums` has `tiles` elements for each image.
        own += unsafe { sums.get(cx, cx.block_idx().z as usize * tiles as usize + i as usize) };
        i += 32;
    }
    cx.warp_sum(own) * cx.recip((size * size) as f32)
}

const _: () = assert!(size_of::<bf16>() == 2 && 2 * THREADS / OWN == 32 && ROWS.is_multiple_of(OWN));
