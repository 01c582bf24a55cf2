//! Dequantization and the inverse DCT: coefficients to samples.
//!
//! ```text
//! for every block of 8 x 8, in parallel:
//!     for every column: dequantize, then the one-dimensional inverse DCT, descaled by 2^11
//!     for every row:    the one-dimensional inverse DCT, descaled by 2^18, plus 128, clamped to 0..255
//! ```
//!
//! Launch: 8 threads for each block of coefficients. A block of threads makes 64 blocks of samples
//! that follow one another in a plane. Memory: 128 bytes read and 64 written for each block; 14 KiB
//! of shared memory.
//!
//! - **The integers are those of libjpeg** ("islow", after Loeffler, Ligtenberg and Moschytz 1989,
//!   with constants of 13 bits), so every sample equals libjpeg's. Sums wrap, as a broken file may
//!   contain any coefficient.
//! - **Coefficients lie column by column**, so a thread loads its column with one access, and the
//!   block crosses shared memory once, between columns and rows.
//! - **Rows of samples are written in whole sectors** of 32 bytes, because a warp makes 8 blocks
//!   that are neighbors in the image, and not in the data. A block of coefficients is 128 bytes,
//!   which is whole sectors wherever it lies.
//! - **Each group of 8 threads makes two neighbors**, whose rows it stores 16 bytes at a time. What
//!   binds here are the accesses to shared memory and to the L1 cache, so steps of quantization
//!   come two in a word, too.
//! - **One thread finds the place of a block for the 8 that compute it.** It takes several
//!   divisions, which cost as much as the transform if every thread makes them.

use thalweg_simt::{Cooperative, SharedMemory, kernel};

use super::record::{COMPONENT_WORDS, IMAGE_WORDS, Record};

/// The threads of a block.
const THREADS: u32 = 256;
/// The blocks of coefficients that a block of threads computes at a time.
const AT_ONCE: u32 = THREADS / 8;
/// The blocks of coefficients of a block of threads. Each thread takes part in two, one after the
/// other.
const BLOCKS: u32 = 2 * AT_ONCE;
/// The words of a row in shared memory, and of a block. With these, the threads of a warp write
/// columns and read rows, 4 words at a time, without conflicts of banks.
const ROW: u32 = 12;
const BLOCK_WORDS: u32 = 8 * ROW + 8;
/// The place of a block that is not there.
const NOWHERE: u32 = u32::MAX;

/// Computes the inverse DCT of 8 values, times 2^13 sqrt(8), plus `more`.
#[inline(always)]
fn inverse(v: [i32; 8], more: i32) -> [i32; 8] {
    let mul = i32::wrapping_mul;
    let add = i32::wrapping_add;
    let sub = i32::wrapping_sub;
    // The even part.
    let z1 = mul(add(v[2], v[6]), 4433);
    let low = add(z1, mul(v[6], -15137));
    let high = add(z1, mul(v[2], 6270));
    // Every result has one of these two in it, so `more` is added to two numbers and not to eight.
    let (sum, difference) = (add(mul(add(v[0], v[4]), 1 << 13), more), add(mul(sub(v[0], v[4]), 1 << 13), more));
    let even = [add(sum, high), add(difference, low), sub(difference, low), sub(sum, high)];
    // The odd part.
    let (z1, z2) = (mul(add(v[7], v[1]), -7373), mul(add(v[5], v[3]), -20995));
    let (z3, z4) = (add(v[7], v[3]), add(v[5], v[1]));
    let z5 = mul(add(z3, z4), 9633);
    let (z3, z4) = (add(mul(z3, -16069), z5), add(mul(z4, -3196), z5));
    let odd = [
        add(add(mul(v[1], 12299), z1), z4),
        add(add(mul(v[3], 25172), z2), z3),
        add(add(mul(v[5], 16819), z2), z4),
        add(add(mul(v[7], 2446), z1), z3),
    ];
    [
        add(even[0], odd[0]),
        add(even[1], odd[1]),
        add(even[2], odd[2]),
        add(even[3], odd[3]),
        sub(even[3], odd[3]),
        sub(even[2], odd[2]),
        sub(even[1], odd[1]),
        sub(even[0], odd[0]),
    ]
}

/// Finds the block of number `index` in an image: the blocks of a plane row by row, plane after
/// plane. Returns its number in `coefficients`, where its first row starts in `planes` and how far
/// the next row is, both in 8 bytes, and its quantization table. A block that is not there is
/// [`NOWHERE`], and the first one of the image stands for it.
///
/// # Safety
/// `image` is a record of an image.
#[inline(always)]
unsafe fn locate(cx: impl Cooperative, image: Record, index: u32, blocks: u32, tables: u32, bytes: u64) -> [u32; 4] {
    // SAFETY: All words are inside the record.
    unsafe {
        let (across, down) = (image.get(cx, 5), image.get(cx, 6));
        let (mut rest, mut found) = (index, [image.get(cx, 9).min(blocks - 1), NOWHERE, 0, 0]);
        let mut c = 0;
        while c < 3 {
            let word = 16 + COMPONENT_WORDS * c;
            let (wide, high) = (image.get(cx, word).max(1), image.get(cx, word + 1).max(1));
            let stride = across.saturating_mul(wide).max(1);
            let size = stride.saturating_mul(down.saturating_mul(high));
            if c < image.get(cx, 4) && rest < size {
                let (y, x) = (rest / stride, rest % stride);
                let unit = (y / high).wrapping_mul(across).wrapping_add(x / wide);
                let within = image.get(cx, word + 2).wrapping_add((y % high).wrapping_mul(wide).wrapping_add(x % wide));
                let block = unit.wrapping_mul(image.get(cx, 7)).wrapping_add(within).wrapping_add(image.get(cx, 9));
                let at = image.wide(cx, word + 4) / 8 + 8 * u64::from(y) * u64::from(stride) + u64::from(x);
                let end = at + 7 * u64::from(stride);
                if block < blocks && end < (bytes / 8).min(u64::from(NOWHERE)) {
                    found = [block, at as u32, stride, image.get(cx, 13).saturating_add(c).min(tables - 1)];
                }
                break;
            }
            // Gone through with the last plane, a place past the end is found in none.
            rest = rest.saturating_sub(size);
            c += 1;
        }
        found
    }
}

/// The shared memory of a block of 8 x 8, and the column and the row of it that a thread computes.
#[derive(Clone, Copy)]
struct Work {
    window: SharedMemory<i32>,
    own: u32,
    line: u32,
}

impl Work {
    /// Transforms a block of which this thread has one column of coefficients. `steps` is this
    /// column of its quantization table. Returns a row of samples.
    ///
    /// # Safety
    /// All lanes of the warp call it.
    #[inline(always)]
    unsafe fn transform(self, cx: impl Cooperative, column: [u32; 4], steps: [u32; 4]) -> [u32; 2] {
        let Self { window, own, line } = self;
        // SAFETY: A block has `BLOCK_WORDS` words in the window.
        unsafe {
            let ([a, b, c, d], [q, r, s, t]) = (column, steps);
            let low = |pair: u32, steps: u32| i32::from(pair as i16).wrapping_mul((steps & 0xffff) as i32);
            let high = |pair: u32, steps: u32| (pair as i32 >> 16).wrapping_mul((steps >> 16) as i32);
            let values = [low(a, q), high(a, q), low(b, r), high(b, r), low(c, s), high(c, s), low(d, t), high(d, t)];
            let [v0, v1, v2, v3, v4, v5, v6, v7] = inverse(values, 1 << 10);
            let keep = |row: u32, value: i32| cx.shared_set(window, own + ROW * row + line, value >> 11);
            keep(0, v0);
            keep(1, v1);
            keep(2, v2);
            keep(3, v3);
            keep(4, v4);
            keep(5, v5);
            keep(6, v6);
            keep(7, v7);
            // The 8 threads of a block are in one warp.
            cx.warp_barrier();
            let start = own + ROW * line;
            let ([a, b, c, d], [e, f, g, h]) = (cx.shared_get4(window, start), cx.shared_get4(window, start + 4));
            let [s0, s1, s2, s3, s4, s5, s6, s7] = inverse([a, b, c, d, e, f, g, h], (1 << 17) + (128 << 18));
            let word = |a: i32, b: i32, c: i32, d: i32| {
                cx.clamped_bytes(a >> 18, b >> 18, cx.clamped_bytes(c >> 18, d >> 18, 0))
            };
            [word(s0, s1, s2, s3), word(s4, s5, s6, s7)]
        }
    }
}

kernel! {
    /// Turns `coefficients` [B, 64] into `planes`. `quantization` [Q, 32] has two steps in each
    /// word, in the order of the coefficients, which is column by column. `most` is the largest
    /// number of blocks of an image. Images whose `status` [I] is not 0 are left out, and those
    /// without components: nobody has written all of their coefficients.
    pub(super) unsafe fn inverse_dct(
        cx: impl Cooperative, image_count: u32, table_count: u32, blocks: u32, most: u32, bytes: u64,
        images: In<u32>, status: In<u32>, quantization: In<u32>, coefficients: In<i16>, planes: Out<u8>,
    )
    require {
        image_count >= 1, table_count >= 1, most <= blocks, blocks < 1 << 31,
        images.len() == image_count * IMAGE_WORDS,
        status.len() == image_count,
        quantization.len() == table_count * 32,
        coefficients.len() == blocks * 64,
        coefficients.is_aligned(16),
        quantization.is_aligned(16),
        planes.len() == bytes,
        planes.is_aligned(16),
    }
    grid(most.div_ceil(BLOCKS), image_count) block(THREADS) shared((BLOCKS * 4 + AT_ONCE * BLOCK_WORDS) * 4)
    {
        let image = Record::new(images, cx.block_idx().y, IMAGE_WORDS);
        if status.get(cx, cx.block_idx().y) != 0 || image.get(cx, 4) == 0 {
            return;
        }
        let (rank, line) = (cx.rank(), cx.rank() % 8);
        let found = cx.shared::<u32>(0);
        let work = cx.shared::<i32>(BLOCKS * 16);
        if rank < BLOCKS {
            let index = cx.block_idx().x * BLOCKS + rank;
            cx.shared_set4(found, 4 * rank, locate(cx, image, index, blocks, table_count, bytes));
        }
        cx.barrier();

        // A column of coefficients is 16 bytes, so one access loads it. All loads are under way
        // before the first result is needed. A block that is not there has the coefficients of the
        // image's first, and its samples are not stored: its threads take part in the barriers.
        let pair = 8 * (rank / 8);
        let ([block, at, stride, table], [next, beside, other, last]) =
            (cx.shared_get4(found, pair), cx.shared_get4(found, pair + 4));
        let column = |of: u32| cx.load4(coefficients.as_ptr().add(of as usize * 64 + 8 * line as usize).cast::<u32>());
        let steps = |table: u32| cx.load4(quantization.as_ptr().add(table as usize * 32 + 4 * line as usize));
        let (columns, steps) = ([column(block), column(next)], [steps(table), steps(last)]);
        let work = Work { window: work, own: rank / 8 * BLOCK_WORDS, line };
        let [a, b] = work.transform(cx, columns[0], steps[0]);
        cx.warp_barrier();
        let [c, d] = work.transform(cx, columns[1], steps[1]);
        let to = planes.as_ptr().cast::<u32>();
        let row = |at: u32, stride: u32| 2 * (at + line * stride) as usize;
        // The samples of two neighbors are 16 bytes. `beside` is a place of its own if the first
        // block is not there.
        if at % 2 == 0 && stride.is_multiple_of(2) && beside == at + 1 && stride == other {
            cx.store4(to.add(row(at, stride)), [a, b, c, d]);
        } else {
            if at != NOWHERE {
                cx.store(to.add(row(at, stride)).cast::<u64>(), u64::from(b) << 32 | u64::from(a));
            }
            if beside != NOWHERE {
                cx.store(to.add(row(beside, other)).cast::<u64>(), u64::from(d) << 32 | u64::from(c));
            }
        }
    }
}
