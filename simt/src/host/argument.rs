//! The arguments of a launch: the slots that carry them, and what predicates see of them.

use std::fmt::{self, Debug};

use super::counted::counted;
use super::slice::DeviceSlice;
use crate::ByValue;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// The bytes of a slot. A parameter starts at a slot and takes as many as it needs.
const SLOT: usize = size_of::<u64>();

/// The most parameters that a kernel can have.
pub const MAX_PARAMETERS: usize = 32;

/// The most bytes that the parameters of a kernel can have together, each at its alignment.
pub const MAX_PARAMETER_BYTES: usize = 4096;

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    name: &'static str,
    size: usize,
    align: usize,
    buffer: Option<BufferKind>,
}

/// A buffer parameter as declared: access and element type.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct BufferKind {
    /// The size of an element in bytes.
    pub element: usize,
    /// Whether the kernel may write it.
    pub written: bool,
}

impl Parameter {
    /// Describes a parameter that is a `T` on a GPU.
    #[doc(hidden)]
    #[must_use]
    pub const fn new<T>(name: &'static str, buffer: Option<BufferKind>) -> Self {
        assert!(size_of::<T>() > 0, "a parameter has at least one byte");
        Self { name, size: size_of::<T>(), align: align_of::<T>(), buffer }
    }

    /// Returns its name in the declaration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether it is a buffer.
    #[must_use]
    pub const fn is_buffer(&self) -> bool {
        self.buffer.is_some()
    }

    /// Returns what the declaration says of it if it is a buffer.
    #[doc(hidden)]
    #[must_use]
    pub const fn buffer(&self) -> Option<BufferKind> {
        self.buffer
    }

    /// Returns how many of the launch's slots of 8 bytes it takes. A buffer takes one for its
    /// address and one for its length, which a GPU does not get.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.size.div_ceil(SLOT) + self.is_buffer() as usize
    }
}

/// Returns `parameters` after checking, when it is compiled, that a launch can carry them.
#[doc(hidden)]
#[must_use]
pub const fn parameters<const N: usize>(parameters: [Parameter; N]) -> [Parameter; N] {
    assert!(N <= MAX_PARAMETERS, "a kernel has at most 32 parameters");
    let (mut end, mut i) = (0usize, 0);
    while i < N {
        end = end.next_multiple_of(parameters[i].align) + parameters[i].size;
        assert!(end <= MAX_PARAMETER_BYTES, "the parameters of a kernel have at most 4096 bytes together");
        i += 1;
    }
    parameters
}

/// Returns the number of slots that all parameters take together.
#[doc(hidden)]
#[must_use]
pub const fn total(parameters: &[Parameter]) -> usize {
    let (mut sum, mut i) = (0, 0);
    while i < parameters.len() {
        sum += parameters[i].slots();
        i += 1;
    }
    sum
}

/// The arguments of a launch in the order of the declaration, each from the start of a slot.
#[doc(hidden)]
#[derive(Debug)]
pub struct Slots<const N: usize> {
    slots: [u64; N],
    next: usize,
}

impl<const N: usize> Slots<N> {
    #[inline(always)]
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { slots: [0; N], next: 0 }
    }

    /// Returns all slots, after checking that each of them was given. Every `put` is inlined, so
    /// the compiler knows the count, and the check costs nothing.
    #[inline(always)]
    #[must_use]
    pub fn all_given(&self) -> &[u64; N] {
        assert!(self.next == N, "a launcher gives each parameter its argument");
        &self.slots
    }
}

/// The argument that the caller of a launcher gave for a parameter.
#[doc(hidden)]
#[derive(Debug)]
pub struct Given<A>(pub A);

impl<A: Argument> Given<A> {
    /// Puts the argument into the next slots, and returns it as predicates and extents see it.
    #[inline(always)]
    pub fn put<const N: usize>(self, slots: &mut Slots<N>) -> A::Wide {
        let end = slots.next + size_of::<A::Value>().div_ceil(SLOT);
        let place = &mut slots.slots[slots.next..end];
        // SAFETY: The place has at least as many bytes as the value, whose alignment does not
        // matter here. A `ByValue` has no padding, so every byte that is written is initialized.
        unsafe { place.as_mut_ptr().cast::<A::Value>().write_unaligned(self.0.value()) };
        slots.next = end;
        self.0.widen()
    }
}

/// Takes the place of [`Given::put`] if the type is no [`Argument`]. The compiler reports that at
/// the parameter, which must be [`ByValue`], and should not do it twice. A launcher that could call
/// this does not compile.
#[doc(hidden)]
pub trait NotGiven: Sized {
    fn put<const N: usize>(self, _: &mut Slots<N>) {
        const { panic!("a launcher gives each parameter its argument") }
    }
}
impl<A> NotGiven for Given<A> {}

/// Takes a value that a CPU entry finds in its slots.
///
/// Its only bound is `Copy`, because the declaration beside the entry asks for [`ByValue`] already.
/// With that bound here too, the compiler would report every wrong type twice, and not only those
/// that are not `Copy`.
///
/// # Safety
/// [`Given::put`] put an argument whose value is a `T` at the start of `slots`.
#[doc(hidden)]
#[inline(always)]
#[must_use]
pub unsafe fn take<T: Copy>(slots: &mut &[u64]) -> T {
    let (value, rest) = slots.split_at(size_of::<T>().div_ceil(SLOT));
    *slots = rest;
    // SAFETY: `value` has at least as many bytes as a `T`. The caller promises that `Given::put`
    // wrote a `T` into its first bytes.
    unsafe { value.as_ptr().cast::<T>().read_unaligned() }
}

/// Takes the address of a buffer that a CPU entry finds in its slots.
///
/// # Safety
/// [`Given::put`] put a buffer at the start of `slots`.
#[doc(hidden)]
#[inline(always)]
#[must_use]
pub unsafe fn take_address<T>(slots: &mut &[u64]) -> *mut T {
    // SAFETY: The caller promises a buffer, whose value is its address and its length.
    let [address, _]: [u64; 2] = unsafe { take(slots) };
    address as usize as *mut T
}

/// An argument of a launch. No other crate can implement it, because the driver reads as many bytes
/// of the slots as the parameter has.
#[doc(hidden)]
pub trait Argument: Sealed {
    /// The type whose bytes the slots carry.
    type Value: ByValue;
    /// The type by which predicates and extents see the argument.
    type Wide: Debug;
    /// Returns what the slots carry.
    fn value(&self) -> Self::Value;
    /// Returns the argument as predicates and extents see it.
    fn widen(&self) -> Self::Wide;
}

impl<T: ByValue> Sealed for T {}
impl<T: ByValue> Argument for T {
    type Value = T;
    type Wide = T::Wide;
    #[inline(always)]
    fn value(&self) -> T {
        *self
    }
    #[inline(always)]
    fn widen(&self) -> T::Wide {
        T::widen(*self)
    }
}

macro_rules! buffers {
    ($($t:ty)*) => {$(
        impl<S, T> Sealed for $t {}
        impl<S, T> Argument for $t {
            type Value = [u64; 2];
            type Wide = Extent;
            #[inline(always)]
            fn value(&self) -> [u64; 2] {
                [self.device_ptr(), self.len() as u64]
            }
            #[inline(always)]
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
