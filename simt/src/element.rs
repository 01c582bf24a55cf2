//! The types that kernels load and store.

#[cfg(not(target_arch = "nvptx64"))]
use core::mem::MaybeUninit;
#[cfg(not(target_arch = "nvptx64"))]
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{bf16, bf16x2, f16, f16x2};

/// Refuses, when it is compiled, types that kernels cannot load.
pub(crate) const fn loadable<T>() {
    assert!(size_of::<T>() > 0, "an element must have a size");
    assert!(align_of::<T>() <= 16, "an element is aligned to at most 16 bytes");
}

/// Runs a block for each piece of an element of type `$t`. A piece is an integer `Piece` that is as
/// large as the alignment of the element, but has at most 8 bytes. So each piece is aligned, and
/// the pieces fill the element, whose size is a multiple of its alignment. The function `$atomic`
/// makes an atomic of piece `i` of the element at an address.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! pieces {
    ($t:ty: $i:ident, $atomic:ident => $body:block) => {
        match align_of::<$t>() {
            1 => pieces!(@ $t: $i, $atomic, u8, AtomicU8 => $body),
            2 => pieces!(@ $t: $i, $atomic, u16, AtomicU16 => $body),
            4 => pieces!(@ $t: $i, $atomic, u32, AtomicU32 => $body),
            _ => pieces!(@ $t: $i, $atomic, u64, AtomicU64 => $body),
        }
    };
    (@ $t:ty: $i:ident, $function:ident, $piece:ty, $atomic:ty => $body:block) => {{
        type Piece = $piece;
        /// # Safety
        /// Piece `i` from `p` on is aligned, and valid for reads and writes.
        #[inline(always)]
        unsafe fn $function<'a>(p: *mut Piece, i: usize) -> &'a $atomic {
            // SAFETY: The caller promises an aligned piece that is valid for reads and writes.
            unsafe { <$atomic>::from_ptr(p.add(i)) }
        }
        for $i in 0..size_of::<$t>() / size_of::<Piece>() {
            $body
        }
    }};
}

/// A type that device memory can hold and that kernels load and store: a number, an array of
/// elements, or a struct for which its author says so.
///
/// A number is loaded and stored in one access. An array or a struct is loaded and stored in pieces
/// that are as large as its alignment: at most 16 bytes on a GPU and 8 bytes on the CPU device. So
/// `#[repr(C, align(16))]` makes one access of a struct of four `f32`. Only a single piece is
/// atomic: if one thread stores a struct while another one loads it, the loaded struct may be half
/// old and half new.
///
/// ```
/// use thalweg_simt::{Element, kernel, ptx};
///
/// # fn main() {}
/// ptx! {}
///
/// #[derive(Clone, Copy)]
/// #[repr(C, align(16))]
/// pub struct Point {
///     place: [f32; 3],
///     mass: f32,
/// }
///
/// // SAFETY: Every bit pattern is a `Point`, it is `repr(C)`, and four `f32` fill its 16 bytes.
/// unsafe impl Element for Point {}
///
/// type Place = [f32; 3]; // the element of a buffer is one word
///
/// kernel! {
///     unsafe fn places(cx: impl Simt, n: u32, points: In<Point>, places: Out<Place>)
///     require { points.len() == n, places.len() == n }
///     grid(n.div_ceil(256)) block(256)
///     {
///         let i = cx.global_x();
///         if i < n {
///             places.set(cx, i, points.get(cx, i).place);
///         }
///     }
/// }
/// ```
///
/// # Safety
/// Every bit pattern of the type's size is a valid value. The type has no padding. It is a
/// primitive number, or `repr(C)` or `repr(transparent)`: the compilers of the GPU's code and of
/// the host's code may otherwise order its fields differently.
#[diagnostic::on_unimplemented(
    message = "a buffer of a kernel cannot have elements of type `{Self}`",
    note = "an element is a number (`u8` to `u64`, `i8` to `i64`, `f16`, `bf16`, `f32`, `f64`), an array of elements, or a \
            `repr(C)` struct of them with `unsafe impl Element`. Pass truth values as `u8`"
)]
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The name of a number, and an empty text for other types. The name of an entry has it.
    #[doc(hidden)]
    const NUMBER: &'static str = "";

    /// Loads by relaxed atomic accesses. Other threads of the CPU device may store to the same
    /// address at the same time.
    ///
    /// # Safety
    /// `p` is aligned and points into memory of the CPU device, which is valid for reads and
    /// writes.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn load_relaxed(p: *const Self) -> Self {
        const { loadable::<Self>() };
        let mut v = MaybeUninit::<Self>::uninit();
        pieces!(Self: i, atomic => {
            // SAFETY: The caller promises an aligned pointer into device memory. The CPU device
            // allocates that memory, so it is valid for reads and writes although the kernel only
            // reads here. Piece `i` is inside the element and aligned, as `pieces!` says.
            unsafe { v.as_mut_ptr().cast::<Piece>().add(i).write(atomic(p.cast_mut().cast(), i).load(Relaxed)) };
        });
        // SAFETY: The pieces fill the element, and every bit pattern is a value.
        unsafe { v.assume_init() }
    }
    /// Stores by relaxed atomic accesses.
    ///
    /// # Safety
    /// `p` is aligned and points into memory of the CPU device, which is valid for reads and
    /// writes.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn store_relaxed(p: *mut Self, v: Self) {
        const { loadable::<Self>() };
        pieces!(Self: i, atomic => {
            // SAFETY: The caller promises an aligned pointer into device memory. The CPU device
            // allocates that memory, so it is valid for reads and writes. Piece `i` is inside the
            // element and aligned, as `pieces!` says. An element has no padding, so the bytes of
            // `v` are initialized.
            unsafe { atomic(p.cast(), i).store((&raw const v).cast::<Piece>().add(i).read(), Relaxed) };
        });
    }
}
macro_rules! element {
    ($($t:ident)*) => {$(
        // SAFETY: The type is a primitive number, or a transparent integer, for which every bit
        // pattern is a value.
        unsafe impl Element for $t {
            const NUMBER: &'static str = stringify!($t);
        }
    )*};
}
element!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 f16 bf16 f16x2 bf16x2);

// SAFETY: The elements of an array follow one another without padding, and every bit pattern of
// each is a value.
unsafe impl<T: Element, const N: usize> Element for [T; N] {}

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
