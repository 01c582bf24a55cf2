//! The types in which activations are stored.

use thalweg_simt::{Element, Simt, bf16, hint};

/// A type in which activations are stored: `f32`, or the 16 bits of a [`bf16`].
pub(super) trait Stored: Element {
    fn wide(self) -> f32;
    /// Rounds to the nearest number of this type.
    fn narrow(v: f32) -> Self;
    /// Loads four elements in one access.
    ///
    /// # Safety
    /// The elements are in device memory that the launch only reads, and `p` is aligned to all
    /// four.
    unsafe fn load4(cx: impl Simt, p: *const Self) -> [f32; 4];
    /// Does the same as [`load4`](Self::load4) by another instruction. The compiler would merge two
    /// equal loads of a row, and keep the row in registers from one to the other.
    ///
    /// # Safety
    /// As for [`load4`](Self::load4).
    unsafe fn load4_again(cx: impl Simt, p: *const Self) -> [f32; 4];
    /// Stores four elements in one access.
    ///
    /// # Safety
    /// The elements are in device memory, and `p` is aligned to all four.
    unsafe fn store4(cx: impl Simt, p: *mut Self, v: [f32; 4]);
}

impl Stored for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(v: f32) -> Self {
        v
    }
    #[inline(always)]
    unsafe fn load4(cx: impl Simt, p: *const Self) -> [f32; 4] {
        // SAFETY: The caller promises what `load4` requires.
        unsafe { cx.load4(p) }
    }
    #[inline(always)]
    unsafe fn load4_again(cx: impl Simt, p: *const Self) -> [f32; 4] {
        // SAFETY: The caller promises what both require.
        unsafe { if cfg!(target_arch = "nvptx64") { cx.load_vector::<f32, 4, hint::Cached>(p) } else { cx.load4(p) } }
    }
    #[inline(always)]
    unsafe fn store4(cx: impl Simt, p: *mut Self, v: [f32; 4]) {
        // SAFETY: The caller promises what `store4` requires.
        unsafe { cx.store4(p, v) };
    }
}

impl Stored for u16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        bf16::from_bits(self).to_f32()
    }
    #[inline(always)]
    fn narrow(v: f32) -> Self {
        bf16::from_f32(v).to_bits()
    }
    #[inline(always)]
    unsafe fn load4(cx: impl Simt, p: *const Self) -> [f32; 4] {
        // SAFETY: The caller promises four elements, which are one aligned word of 64 bits.
        let bits = unsafe { cx.load(p.cast::<u64>()) };
        core::array::from_fn(|i| ((bits >> (16 * i)) as u16).wide())
    }
    #[inline(always)]
    unsafe fn load4_again(cx: impl Simt, p: *const Self) -> [f32; 4] {
        // SAFETY: The caller promises four elements, which are one aligned word of 64 bits.
        let [bits] = unsafe { cx.load_vector::<u64, 1, hint::Cached>(p.cast()) };
        core::array::from_fn(|i| ((bits >> (16 * i)) as u16).wide())
    }
    #[inline(always)]
    unsafe fn store4(cx: impl Simt, p: *mut Self, v: [f32; 4]) {
        let [a, b, c, d] = v.map(|v| u64::from(Self::narrow(v)));
        // SAFETY: The caller promises four elements, which are one aligned word of 64 bits.
        unsafe { cx.store(p.cast::<u64>(), a | b << 16 | c << 32 | d << 48) };
    }
}
