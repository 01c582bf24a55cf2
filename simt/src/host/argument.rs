//! The arguments of a launch: the slots that carry them, and what predicates see of them.

use std::fmt::{self, Debug};

use super::counted::counted;
use super::slice::DeviceSlice;

mod sealed {
    pub trait Sealed<Wide> {}
}
use sealed::Sealed;

/// Returns the number that a CPU entry takes from its slot.
///
/// Its only bound is `Copy`, because the launcher beside the entry asks for [`Argument`] already.
/// With that bound here too, the compiler would report every wrong type twice, and not only those
/// that are not `Copy`.
///
/// # Safety
/// [`Argument::slot`] of a `T` made the slot.
#[doc(hidden)]
#[inline(always)]
#[must_use]
pub unsafe fn number<T: Copy>(slot: u64) -> T {
    let bytes = slot.to_le_bytes();
    const { assert!(size_of::<T>() <= size_of::<u64>(), "a slot has 8 bytes") };
    // SAFETY: The caller promises that the slot came from `Argument::slot` of a `T`, which puts the
    // bits of the number into its low bytes. The assertion above says that a slot has so many.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// Returns the address of a buffer that a CPU entry takes from its slot.
#[doc(hidden)]
#[inline(always)]
#[must_use]
pub fn address<T>(slot: Slot) -> *mut T {
    slot.bits as usize as *mut T
}

/// The most parameters that a kernel can have.
pub const MAX_PARAMETERS: usize = 32;

/// What a launch carries for a parameter.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// The bits of a number in the low bytes, or the address of a buffer.
    pub bits: u64,
    /// The number of elements of a buffer. It is 0 for a number.
    pub len: u64,
}

/// The words that a launch carries for `N` parameters: their bits, and then their lengths.
#[doc(hidden)]
#[must_use]
pub fn slots<const N: usize>(slots: [Slot; N]) -> [[u64; N]; 2] {
    const { assert!(N <= MAX_PARAMETERS, "a kernel has at most 32 parameters") };
    [slots.map(|slot| slot.bits), slots.map(|slot| slot.len)]
}

/// Returns the slots that [`slots`] made words of.
#[doc(hidden)]
pub fn unpack(words: &[u64]) -> impl Iterator<Item = Slot> {
    let (bits, lens) = words.split_at(words.len() / 2);
    bits.iter().zip(lens).map(|(&bits, &len)| Slot { bits, len })
}

/// An argument of a launch. No other crate can implement it, because the driver reads as many bytes
/// of the slot as the parameter has. `Wide` is the type by which predicates and extents see the
/// argument. Each type has only one, so it could be an associated type, but then the compiler would
/// report each mistake twice.
#[diagnostic::on_unimplemented(
    message = "a kernel cannot have a parameter of type `{Self}`",
    label = "a parameter here is neither a number nor a buffer",
    note = "a parameter is a number (`u8` to `u64`, `usize`, `i8` to `i64`, `f32`, `f64`), a `bool`, or a buffer of \
            numbers (`In<f32>`, `Out<f32>`, `InOut<f32>`). Pass the fields of a struct one by one, or in a buffer"
)]
#[doc(hidden)]
pub trait Argument<Wide: Debug>: Sealed<Wide> {
    /// Returns the argument's bits, in the low bytes of the slot.
    fn slot(&self) -> u64;
    /// Returns the number of elements of a buffer, and 0 for a number.
    fn elements(&self) -> u64 {
        0
    }
    /// Returns the argument as predicates and extents see it.
    fn widen(&self) -> Wide;
}

/// Returns the slot of an argument, and the argument as predicates and extents see it.
#[doc(hidden)]
#[inline(always)]
pub fn argument<A: Argument<Wide>, Wide: Debug>(argument: &A) -> (Slot, Wide) {
    (Slot { bits: argument.slot(), len: argument.elements() }, argument.widen())
}

macro_rules! numbers {
    ($($wide:ty: $($t:ty)*;)*) => {$($(
        impl Sealed<$wide> for $t {}
        impl Argument<$wide> for $t {
            fn slot(&self) -> u64 {
                *self as u64
            }
            fn widen(&self) -> $wide {
                *self as $wide
            }
        }
    )*)*};
}
numbers! {
    i128: i8 i16 i32 i64;
    u128: u8 u16 u32 u64 usize;
    bool: bool; // 0 or 1, in one byte
}
const _: () = assert!(
    size_of::<usize>() == 8 && cfg!(target_endian = "little"),
    "kernels need a little-endian host with a `usize` of 64 bits, as a GPU has"
);

impl Sealed<f32> for f32 {}
impl Argument<f32> for f32 {
    fn slot(&self) -> u64 {
        u64::from(self.to_bits())
    }
    fn widen(&self) -> f32 {
        *self
    }
}
impl Sealed<f64> for f64 {}
impl Argument<f64> for f64 {
    fn slot(&self) -> u64 {
        self.to_bits()
    }
    fn widen(&self) -> f64 {
        *self
    }
}

macro_rules! buffers {
    ($($t:ty)*) => {$(
        impl<S, T> Sealed<Extent> for $t {}
        impl<S, T> Argument<Extent> for $t {
            fn slot(&self) -> u64 {
                self.device_ptr()
            }
            fn elements(&self) -> u64 {
                self.len() as u64
            }
            fn widen(&self) -> Extent {
                Extent { addr: self.device_ptr(), len: self.len() }
            }
        }
    )*};
}
buffers!(&DeviceSlice<S, T> &mut DeviceSlice<S, T>);

/// A buffer as predicates and extents see it.
#[derive(Clone, Copy)]
pub struct Extent {
    addr: u64,
    len: usize,
}

impl Extent {
    /// Returns the number of elements in the buffer.
    #[must_use]
    pub fn len(self) -> u128 {
        self.len as u128
    }

    /// Returns whether the buffer is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns whether the address of the first element is a multiple of `bytes`.
    #[must_use]
    pub fn is_aligned(self, bytes: u64) -> bool {
        self.addr.is_multiple_of(bytes)
    }
}

impl Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} at {:#x}]", counted(self.len, "element"), self.addr)
    }
}
