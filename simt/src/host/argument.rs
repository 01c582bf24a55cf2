//! The arguments of a launch: the slots that carry them, and what predicates see of them.

use std::fmt::{self, Debug};

use super::counted::counted;
use super::slice::DeviceSlice;
use crate::{Element, In, InOut, Out};

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// A parameter that a CPU entry reads from its slot. No other crate can implement it, because the
/// driver reads as many bytes of the slot as the parameter has.
#[doc(hidden)]
pub trait Parameter: Sealed {
    /// Returns the parameter.
    ///
    /// # Safety
    /// [`Argument::slot`] of the matching argument made the slot.
    unsafe fn from_slot(slot: u64) -> Self;
}

/// The most parameters that a kernel can have.
pub const MAX_PARAMETERS: usize = 32;

/// Returns `slots` after checking, when it is compiled, that a launch can carry so many.
#[doc(hidden)]
pub fn slots<const N: usize>(slots: [u64; N]) -> [u64; N] {
    const { assert!(N <= MAX_PARAMETERS, "a kernel has at most 32 parameters") };
    slots
}

/// An argument of a launch. No other crate can implement it.
#[doc(hidden)]
pub trait Argument: Sealed {
    /// The type by which predicates and extents see the argument.
    type Wide: Debug;
    /// Returns the argument's bits, in the low bytes of the slot.
    fn slot(&self) -> u64;
    /// Returns the argument as predicates and extents see it.
    fn widen(&self) -> Self::Wide;
}

macro_rules! integers {
    ($wide:ty: $($t:ty)*) => {$(
        impl Sealed for $t {}
        impl Parameter for $t {
            #[inline(always)]
            unsafe fn from_slot(slot: u64) -> Self {
                slot as $t
            }
        }
        impl Argument for $t {
            type Wide = $wide;
            fn slot(&self) -> u64 {
                *self as u64
            }
            fn widen(&self) -> $wide {
                <$wide>::from(*self)
            }
        }
    )*};
}
integers!(i128: i8 i16 i32 i64);
integers!(u128: u8 u16 u32 u64);

impl Sealed for f32 {}
impl Parameter for f32 {
    #[inline(always)]
    unsafe fn from_slot(slot: u64) -> Self {
        f32::from_bits(slot as u32)
    }
}
impl Argument for f32 {
    type Wide = f32;
    fn slot(&self) -> u64 {
        u64::from(self.to_bits())
    }
    fn widen(&self) -> f32 {
        *self
    }
}
impl Sealed for f64 {}
impl Parameter for f64 {
    #[inline(always)]
    unsafe fn from_slot(slot: u64) -> Self {
        f64::from_bits(slot)
    }
}
impl Argument for f64 {
    type Wide = f64;
    fn slot(&self) -> u64 {
        self.to_bits()
    }
    fn widen(&self) -> f64 {
        *self
    }
}

macro_rules! pointer {
    ($($t:ident $ptr:ty;)*) => {$(
        impl<T: Element> Sealed for $t<T> {}
        impl<T: Element> Parameter for $t<T> {
            #[inline(always)]
            unsafe fn from_slot(slot: u64) -> Self {
                // SAFETY: The caller promises that the slot came from `Argument::slot` of a device
                // slice. So it holds the address of a buffer that the launch passed. The CPU device
                // exposed the memory's provenance when it allocated it.
                unsafe { Self::from_ptr(slot as usize as $ptr) }
            }
        }
    )*};
}
pointer! { In *const T; Out *mut T; InOut *mut T; }

impl<S, T> Sealed for &DeviceSlice<S, T> {}
impl<S, T> Argument for &DeviceSlice<S, T> {
    type Wide = Extent;
    fn slot(&self) -> u64 {
        self.device_ptr()
    }
    fn widen(&self) -> Extent {
        Extent { addr: self.device_ptr(), len: self.len() }
    }
}
impl<S, T> Sealed for &mut DeviceSlice<S, T> {}
impl<S, T> Argument for &mut DeviceSlice<S, T> {
    type Wide = Extent;
    fn slot(&self) -> u64 {
        self.device_ptr()
    }
    fn widen(&self) -> Extent {
        Extent { addr: self.device_ptr(), len: self.len() }
    }
}

/// A buffer as predicates and extents see it.
#[derive(Clone, Copy)]
pub struct Extent {
    addr: u64,
    len: usize,
}

impl Extent {
    /// Returns the number of elements in the buffer.
    pub fn len(self) -> u128 {
        self.len as u128
    }

    /// Returns whether the buffer is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns whether the address of the first element is a multiple of `bytes`.
    pub fn is_aligned(self, bytes: u64) -> bool {
        self.addr.is_multiple_of(bytes)
    }
}

impl Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} at {:#x}]", counted(self.len, "element"), self.addr)
    }
}
