//! Numbers: conversions that the machine's own instructions would do more slowly, and tables in
//! shared memory that a byte indexes.

use thalweg_simt::{Cooperative, SharedMemory, Simt, Word};

/// Computes `v * scale` with one rounding, for `v` below 2^23.
#[inline(always)]
pub(crate) fn scaled(cx: impl Simt, v: u32, scale: f32) -> f32 {
    if cfg!(target_arch = "nvptx64") {
        // With `v` in the mantissa of 2^23, the bits are the float 2^23 + v. `fma` computes
        // (2^23 + v) * scale - 2^23 * scale. The constant term is exact, so only the result is
        // rounded. A conversion from integer to float would use the pipe that computes roots and
        // exponentials.
        cx.fma(f32::from_bits(v | 0x4b00_0000), scale, -8_388_608.0 * scale)
    } else {
        // `fma` may round twice here, and a conversion costs no more than other operations.
        v as f32 * scale
    }
}

/// Rounds the exact product `v * scale`, which is from 0 to 2^22, to the nearest integer. Ties go
/// to the even one.
#[inline(always)]
pub(crate) fn nearest(cx: impl Simt, v: f32, scale: f32) -> u32 {
    // The last place of the sum with 2^23 is worth 1, and `fma_rn` rounds once.
    cx.fma_rn(v, scale, 8_388_608.0).to_bits() & 0x7f_ffff
}

/// Loads the word of `table` whose index is byte `k` (0 to 3) of `v`.
///
/// # Safety
/// The window has 256 words, and `k` is at most 3.
#[inline(always)]
pub(crate) unsafe fn lookup_byte<T: Word>(cx: impl Cooperative, table: SharedMemory<T>, v: u32, k: u32) -> T {
    // SAFETY: `entry` returns the address of a word of the window, for which it requires the same.
    unsafe { cx.shared_get(entry(cx, table, v, k), 0) }
}

/// Adds 1 to the word of `counts` whose index is byte `k` (0 to 3) of `v`, atomically for the
/// block.
///
/// # Safety
/// The window has 256 words, and `k` is at most 3.
#[inline(always)]
pub(crate) unsafe fn count_byte(cx: impl Cooperative, counts: SharedMemory<u32>, v: u32, k: u32) {
    // SAFETY: `entry` returns the address of a word of the window, for which it requires the same.
    unsafe { cx.shared_add(entry(cx, counts, v, k), 0, 1) };
}

/// Returns the window that starts at the word of `table` whose index is byte `k` of `v`.
///
/// # Safety
/// The window has 256 words, and `k` is at most 3.
#[inline(always)]
unsafe fn entry<T: Word>(cx: impl Cooperative, table: SharedMemory<T>, v: u32, k: u32) -> SharedMemory<T> {
    // One dot product extracts the byte, multiplies it by 4 and adds the address.
    let address = cx.dp4a_u32(4 << (8 * k), v, table.address());
    // SAFETY: The address is that of a word whose index is a byte, so at most 255, and the caller
    // promises that the window has 256 words.
    unsafe { cx.shared_at(address) }
}
