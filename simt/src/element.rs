//! The types that kernels load and store.

use crate::{bf16, bf16x2, f16, f16x2};

/// A type that device memory can hold and that a kernel loads and stores in one access.
///
/// # Safety
/// Every bit pattern of the type's size is a valid value. The type has no padding. Its size is 1,
/// 2, 4 or 8 bytes and equals its alignment.
#[diagnostic::on_unimplemented(
    message = "a buffer of a kernel cannot have elements of type `{Self}`",
    note = "an element is a number that one access loads: `u8` to `u64`, `i8` to `i64`, `f16`, `bf16`, `f32` or `f64`. Pass truth values \
            as `u8`, and the fields of a struct in a buffer each"
)]
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Loads by one relaxed atomic access. Other threads of the CPU device may store to the same
    /// address at the same time.
    ///
    /// # Safety
    /// `p` is aligned and points into memory of the CPU device, which is valid for reads and
    /// writes.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    unsafe fn load_relaxed(p: *const Self) -> Self;
    /// Stores by one relaxed atomic access.
    ///
    /// # Safety
    /// `p` is aligned and points into memory of the CPU device, which is valid for reads and
    /// writes.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    unsafe fn store_relaxed(p: *mut Self, v: Self);
}

macro_rules! element {
    ($($t:ty => $atomic:ident, $to:expr, $from:expr;)*) => {$(
        // SAFETY: A primitive number has no padding and no invalid value. Its size equals its
        // alignment on the 64-bit targets that this crate supports.
        unsafe impl Element for $t {
            #[cfg(not(target_arch = "nvptx64"))]
            #[inline(always)]
            unsafe fn load_relaxed(p: *const Self) -> Self {
                // SAFETY: The caller promises an aligned pointer into device memory. The CPU device
                // allocates that memory, so it is valid for reads and writes although the kernel
                // only reads here.
                let bits = unsafe { core::sync::atomic::$atomic::from_ptr(p.cast_mut().cast()) }
                    .load(core::sync::atomic::Ordering::Relaxed);
                $from(bits)
            }
            #[cfg(not(target_arch = "nvptx64"))]
            #[inline(always)]
            unsafe fn store_relaxed(p: *mut Self, v: Self) {
                // SAFETY: The caller promises an aligned pointer into device memory. The CPU device
                // allocates that memory, so it is valid for reads and writes.
                unsafe { core::sync::atomic::$atomic::from_ptr(p.cast()) }
                    .store($to(v), core::sync::atomic::Ordering::Relaxed);
            }
        }
    )*};
}

element! {
    u8 => AtomicU8, core::convert::identity, core::convert::identity;
    i8 => AtomicI8, core::convert::identity, core::convert::identity;
    u16 => AtomicU16, core::convert::identity, core::convert::identity;
    i16 => AtomicI16, core::convert::identity, core::convert::identity;
    u32 => AtomicU32, core::convert::identity, core::convert::identity;
    i32 => AtomicI32, core::convert::identity, core::convert::identity;
    u64 => AtomicU64, core::convert::identity, core::convert::identity;
    i64 => AtomicI64, core::convert::identity, core::convert::identity;
    f32 => AtomicU32, f32::to_bits, f32::from_bits;
    f64 => AtomicU64, f64::to_bits, f64::from_bits;
    f16 => AtomicU16, f16::to_bits, f16::from_bits;
    bf16 => AtomicU16, bf16::to_bits, bf16::from_bits;
    f16x2 => AtomicU32, f16x2::to_bits, f16x2::from_bits;
    bf16x2 => AtomicU32, bf16x2::to_bits, bf16x2::from_bits;
}

/// A 32-bit value that the lanes of a warp can exchange: `u32`, `i32`, `f32`, `f16x2` or `bf16x2`.
/// No other type can be one: vector loads rely on four bytes.
pub trait Word: Element + sealed::Sealed {
    /// Returns the bits of the value.
    fn to_word(self) -> u32;
    /// Returns the value with these bits.
    fn from_word(bits: u32) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
    impl Sealed for f32 {}
    impl Sealed for crate::f16x2 {}
    impl Sealed for crate::bf16x2 {}
}

macro_rules! word {
    ($($t:ty: $to:expr, $from:expr;)*) => {$(
        impl Word for $t {
            #[inline(always)]
            fn to_word(self) -> u32 {
                $to(self)
            }
            #[inline(always)]
            fn from_word(bits: u32) -> Self {
                $from(bits)
            }
        }
    )*};
}
word! {
    u32: core::convert::identity, core::convert::identity;
    i32: i32::cast_unsigned, u32::cast_signed;
    f32: f32::to_bits, f32::from_bits;
    f16x2: f16x2::to_bits, f16x2::from_bits;
    bf16x2: bf16x2::to_bits, bf16x2::from_bits;
}
