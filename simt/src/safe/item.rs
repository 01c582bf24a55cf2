//! The elements of buffers, as declarations without `unsafe` name them.

use core::mem::{transmute_copy, zeroed};

use crate::memory::{LoadHint, StoreHint};
use crate::{Element, Simt, bf16, f16};

/// An element of a buffer in a declaration without `unsafe`: a number, or `[T; N]`, which is `N`
/// neighboring numbers (or arrays) of the buffer.
///
/// Two or four numbers of together at most 16 bytes, or eight of 16 bits, are one access of a GPU
/// (with a hint, eight are loaded and stored part by part). The launcher then refuses a buffer that
/// does not start on a multiple of these bytes. Other arrays are loaded and stored part by part.
#[diagnostic::on_unimplemented(
    message = "a buffer of a kernel without `unsafe` cannot have elements of type `{Self}`",
    note = "an element is a number (`u8` to `u64`, `i8` to `i64`, `f16`, `bf16`, `f32`, `f64`), or an array such as `[f32; 4]`"
)]
pub trait Item: Element + Sealed {
    /// The elements of the buffer that a launcher takes.
    #[doc(hidden)]
    type Number: Element;
    /// The numbers of an element.
    #[doc(hidden)]
    const COUNT: usize;
    /// Each access starts on a multiple of these bytes, if the element does. They divide its size.
    #[doc(hidden)]
    const ALIGN: usize;
    /// The largest number of neighbors that are one access.
    #[doc(hidden)]
    const WIDEST: usize;

    /// # Safety
    /// `p` is a multiple of `ALIGN` bytes and points to an element in device memory.
    #[doc(hidden)]
    unsafe fn get(cx: impl Simt, p: *const Self) -> Self;
    /// # Safety
    /// As for `get`.
    #[doc(hidden)]
    unsafe fn set(cx: impl Simt, p: *mut Self, v: Self);
    /// Loads `N` neighbors, in one access if that is possible.
    ///
    /// # Safety
    /// `p` is a multiple of `<[Self; N]>::ALIGN` bytes and points to the elements, in device
    /// memory. With [`hint::ReadOnly`](crate::hint::ReadOnly), no thread of the grid writes there.
    #[doc(hidden)]
    unsafe fn load<const N: usize, H: LoadHint>(cx: impl Simt, p: *const Self) -> [Self; N];
    /// Stores `N` neighbors, in one access if that is possible.
    ///
    /// # Safety
    /// `p` is a multiple of `<[Self; N]>::ALIGN` bytes and points to the elements, in device
    /// memory.
    #[doc(hidden)]
    unsafe fn store<const N: usize, H: StoreHint>(cx: impl Simt, p: *mut Self, v: [Self; N]);
}

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

macro_rules! numbers {
    ($($widest:literal $several:tt: $($t:ty)*;)*) => {$(numbers!(each $widest $several $($t)*);)*};
    (each $widest:literal $several:tt $($t:ty)*) => {$(numbers!(one $t, $widest $several);)*};
    (one $t:ty, $widest:literal [$($n:literal)*]) => {
        impl Sealed for $t {}
        impl Item for $t {
            type Number = $t;
            const COUNT: usize = 1;
            const ALIGN: usize = align_of::<$t>();
            const WIDEST: usize = $widest;

            #[inline(always)]
            #[track_caller]
            unsafe fn get(cx: impl Simt, p: *const Self) -> Self {
                // SAFETY: The caller promises an aligned address of an element in device memory.
                unsafe { cx.load(p) }
            }
            #[inline(always)]
            #[track_caller]
            unsafe fn set(cx: impl Simt, p: *mut Self, v: Self) {
                // SAFETY: The caller promises an aligned address of an element in device memory.
                unsafe { cx.store(p, v) };
            }
            #[inline(always)]
            #[track_caller]
            unsafe fn load<const N: usize, H: LoadHint>(cx: impl Simt, p: *const Self) -> [Self; N] {
                // SAFETY: The caller promises `N` elements in device memory, the alignment of one
                // access, and what the hint requires.
                unsafe {
                    match N {
                        $($n => {
                            let v = cx.load_vector::<$t, $n, H>(p);
                            core::array::from_fn(|i| v[i])
                        })*
                        _ => {
                            let mut all = zeros::<Self, N>();
                            for i in 0..N {
                                [all[i]] = cx.load_vector::<$t, 1, H>(p.add(i));
                            }
                            all
                        }
                    }
                }
            }
            #[inline(always)]
            #[track_caller]
            unsafe fn store<const N: usize, H: StoreHint>(cx: impl Simt, p: *mut Self, v: [Self; N]) {
                // SAFETY: The caller promises `N` elements in device memory and the alignment of
                // one access.
                unsafe {
                    match N {
                        $($n => cx.store_vector::<$t, $n, H>(p, core::array::from_fn(|i| v[i])),)*
                        _ => for (i, v) in v.into_iter().enumerate() {
                            cx.store_vector::<$t, 1, H>(p.add(i), [v]);
                        },
                    }
                }
            }
        }
    };
}
numbers! {
    4 [2 4]: u8 u16 u32 i8 i16 i32 f16 bf16 f32;
    2 [2]: u64 i64 f64;
}

/// The bytes of `N` elements `T` if they are one access, otherwise 0.
const fn whole<T: Item, const N: usize>() -> usize {
    let one = (N == 2 || N == 4) && N <= T::WIDEST || N == 8 && T::COUNT == 1 && size_of::<T>() == 2;
    if one { size_of::<[T; N]>() } else { 0 }
}

/// The elements before they are loaded. (A closure for each element would hide the line of the
/// kernel from the checked device.)
#[inline(always)]
fn zeros<T: Item, const N: usize>() -> [T; N] {
    // SAFETY: Every bit pattern is a value of an `Element`.
    unsafe { zeroed() }
}

/// Four words that are one access.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Quad([u32; 4]);

// SAFETY: Four words fill its 16 bytes, each bit pattern is a value, and it is `repr(C)`.
unsafe impl Element for Quad {}

/// Eight numbers of 16 bits that are one access.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Eight([u64; 2]);

// SAFETY: Two words fill its 16 bytes, each bit pattern is a value, and it is `repr(C)`.
unsafe impl Element for Eight {}

impl Eight {
    /// Takes the words apart by shifts. The compiler then sees that two neighbors are 32 bits of
    /// what was loaded, and does not load them again.
    #[inline(always)]
    fn numbers(self) -> [u16; 8] {
        let words = self.0.map(u64::to_le);
        core::array::from_fn(|i| ((words[i / 4] >> (i % 4 * 16)) as u16).to_le())
    }
}

impl<T: Item, const N: usize> Sealed for [T; N] {}
impl<T: Item, const N: usize> Item for [T; N] {
    type Number = T::Number;
    const COUNT: usize = N * T::COUNT;
    const ALIGN: usize = if whole::<T, N>() > 0 { whole::<T, N>() } else { T::ALIGN };
    const WIDEST: usize = 1;

    // Accesses without a hint are ordinary ones of an integer of the same size, so that the
    // compiler may leave out those whose values nobody uses.
    #[inline(always)]
    #[track_caller]
    unsafe fn get(cx: impl Simt, p: *const Self) -> Self {
        // SAFETY: The caller promises the element and its alignment: that of the integer if it is
        // one access, and otherwise that of the parts, which are inside it. The integer has the
        // size of the element, of which each bit pattern is a value.
        unsafe {
            match const { whole::<T, N>() } {
                16 if N == 8 => transmute_copy(&cx.load(p.cast::<Eight>()).numbers()),
                16 => transmute_copy(&cx.load(p.cast::<Quad>())),
                8 => transmute_copy(&cx.load(p.cast::<u64>())),
                4 => transmute_copy(&cx.load(p.cast::<u32>())),
                2 => transmute_copy(&cx.load(p.cast::<u16>())),
                _ => {
                    let mut all = zeros::<T, N>();
                    for i in 0..N {
                        all[i] = T::get(cx, p.cast::<T>().add(i));
                    }
                    all
                }
            }
        }
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn set(cx: impl Simt, p: *mut Self, v: Self) {
        // SAFETY: As for `get`.
        unsafe {
            match const { whole::<T, N>() } {
                16 => cx.store(p.cast::<Quad>(), transmute_copy(&v)),
                8 => cx.store(p.cast::<u64>(), transmute_copy(&v)),
                4 => cx.store(p.cast::<u32>(), transmute_copy(&v)),
                2 => cx.store(p.cast::<u16>(), transmute_copy(&v)),
                _ => {
                    for (i, v) in v.into_iter().enumerate() {
                        T::set(cx, p.cast::<T>().add(i), v);
                    }
                }
            }
        }
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn load<const M: usize, H: LoadHint>(cx: impl Simt, p: *const Self) -> [Self; M] {
        let mut all = zeros::<Self, M>();
        for i in 0..M {
            // SAFETY: The caller promises `M` elements, each aligned for its parts.
            all[i] = unsafe { T::load::<N, H>(cx, p.add(i).cast()) };
        }
        all
    }
    #[inline(always)]
    #[track_caller]
    unsafe fn store<const M: usize, H: StoreHint>(cx: impl Simt, p: *mut Self, v: [Self; M]) {
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: The caller promises `M` elements, each aligned for its parts.
            unsafe { T::store::<N, H>(cx, p.add(i).cast(), v) };
        }
    }
}
