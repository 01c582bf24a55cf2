//! Dequantisation and the inverse DCT: coefficients to samples.
//!
//! ```text
//! for every block of 8 x 8, in parallel:
//!     for every column: dequantise, then the one-dimensional inverse DCT, descaled by 2^11
//!     for every row:    the one-dimensional inverse DCT, descaled by 2^18, plus 128, clamped to 0..255
//! ```
//!
//! Launch: 8 threads for each block, 32 blocks of coefficients for each block of threads.
//! Memory: 128 bytes read and 64 written for each block; 9 KiB of shared memory.
//!
//! - **The integers are those of libjpeg** ("islow", after Loeffler, Ligtenberg and Moschytz 1989,
//!   with constants of 13 bits), so every sample equals libjpeg's. Sums wrap, as a broken file may
//!   contain any coefficient.

use thalweg_simt::kernel;

use super::record::{COMPONENT_WORDS, IMAGE_WORDS, Record};

/// Blocks of coefficients for each block of threads.
const BLOCKS: u32 = 32;
/// The words of a block in shared memory. A row has one word more than 8, so that the threads of a
/// block read columns and rows from different banks.
const BLOCK_WORDS: u32 = 8 * 9;

/// Computes the inverse DCT of 8 values, times 2^13 sqrt(8).
#[inline(always)]
fn inverse(v: [i32; 8]) -> [i32; 8] {
    let mul = i32::wrapping_mul;
    let add = i32::wrapping_add;
    let sub = i32::wrapping_sub;
    // The even part.
    let z1 = mul(add(v[2], v[6]), 4433);
    let low = add(z1, mul(v[6], -15137));
    let high = add(z1, mul(v[2], 6270));
    let (sum, difference) = (mul(add(v[0], v[4]), 1 << 13), mul(sub(v[0], v[4]), 1 << 13));
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

kernel! {
    /// Turns `coefficients` [B, 64] into `planes`. `quantisation` [Q, 64] is in the order of the
    /// coefficients, which is row by row. `most` is the largest number of blocks of an image.
    pub(super) unsafe fn inverse_dct(
        cx: impl Cooperative, image_count: u32, table_count: u32, blocks: u32, most: u32, bytes: u64,
        images: In<u32>, quantisation: In<u16>, coefficients: In<i16>, planes: Out<u8>,
    )
    require {
        image_count >= 1, table_count >= 1, most <= blocks, blocks < 1 << 31,
        images.len() == image_count * IMAGE_WORDS,
        quantisation.len() == table_count * 64,
        coefficients.len() == blocks * 64,
        coefficients.is_aligned(16),
        quantisation.is_aligned(16),
        planes.len() == bytes,
        planes.is_aligned(8),
    }
    grid(most.div_ceil(BLOCKS), image_count) block(BLOCKS * 8) shared(BLOCKS * BLOCK_WORDS * 4)
    {
        let image = Record::new(images, cx.block_idx().y, IMAGE_WORDS);
        let (rank, line) = (cx.rank(), cx.rank() % 8);
        let index = cx.block_idx().x * BLOCKS + rank / 8;
        let (across, down) = (image.get(cx, 5).max(1), image.get(cx, 6));
        let of_unit = image.get(cx, 7).max(1);
        let (unit, place) = (index / of_unit, index % of_unit);
        let component = (image.get(cx, 8) >> (2 * place.min(15)) & 3).min(2);
        let start = 16 + COMPONENT_WORDS * component;
        let block = image.get(cx, 9).saturating_add(index);
        // Threads without a block compute zeros, because they take part in the barriers.
        let present = unit / across < down && block < blocks;

        let work = cx.shared::<i32>(0);
        let own = rank / 8 * BLOCK_WORDS;
        if present {
            // This thread reads row `line`.
            let table = (image.get(cx, 13).saturating_add(component)).min(table_count - 1) as usize * 64;
            // A row of coefficients or of steps is 16 bytes, so one access loads it.
            let row = coefficients.as_ptr().add(block as usize * 64 + 8 * line as usize).cast::<u32>();
            let steps = quantisation.as_ptr().add(table + 8 * line as usize).cast::<u32>();
            let (row, steps) = (cx.load4(row), cx.load4(steps));
            for (i, (pair, steps)) in (0..).zip(row.into_iter().zip(steps)) {
                let at = own + 9 * line + 2 * i;
                cx.shared_set(work, at, i32::from(pair as i16).wrapping_mul((steps & 0xffff) as i32));
                cx.shared_set(work, at + 1, i32::from((pair >> 16) as i16).wrapping_mul((steps >> 16) as i32));
            }
        }
        cx.barrier();
        if present {
            let mut column = [0; 8];
            for (row, value) in (0..).zip(&mut column) {
                *value = cx.shared_get(work, own + 9 * row + line);
            }
            for (row, value) in (0..).zip(inverse(column)) {
                cx.shared_set(work, own + 9 * row + line, value.wrapping_add(1 << 10) >> 11);
            }
        }
        cx.barrier();
        if present {
            let mut row = [0; 8];
            for (column, value) in (0..).zip(&mut row) {
                *value = cx.shared_get(work, own + 9 * line + column);
            }
            let mut samples = 0;
            for (column, value) in (0..).zip(inverse(row)) {
                let sample = (value.wrapping_add(1 << 17) >> 18).saturating_add(128).clamp(0, 255);
                samples |= (sample as u64) << (8 * column);
            }
            let (wide, high) = (image.get(cx, start).max(1), image.get(cx, start + 1));
            let within = place.saturating_sub(image.get(cx, start + 2));
            let (x, y) = (unit % across * wide + within % wide, unit / across * high + within / wide);
            let stride = u64::from(across) * u64::from(wide);
            let at = (image.wide(cx, start + 4) / 8)
                .saturating_add((u64::from(y) * 8 + u64::from(line)).saturating_mul(stride))
                .saturating_add(u64::from(x));
            if at < bytes / 8 {
                // The 8 samples of a row start at a multiple of 8 bytes.
                cx.store(planes.as_ptr().cast::<u64>().add(at as usize), samples);
            }
        }
    }
}
