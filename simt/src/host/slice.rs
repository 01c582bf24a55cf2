//! Slices of memory that a stream orders.

use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::ops::RangeBounds;

use super::range::{RangeError, resolve};
use crate::Element;

macro_rules! stream_slice {
    ($(#[$doc:meta])* $name:ident, $ptr:ident, $where:literal) => {
$(#[$doc])*
#[repr(C)]
pub struct $name<S, T> {
    // `fn(S) -> S` makes the slice invariant in its tag. Because of `S`, a slice is `Send` and
    // `Sync` only if its tag is, so a tag that is bound to a thread binds the slice to it.
    brand: PhantomData<(fn(S) -> S, S, T)>,
    // The address of a reference to this type is the device address, and its metadata is the
    // length. For Rust the referent has no bytes, so the host never touches the memory.
    len: [()],
}

impl<S, T> $name<S, T> {
    #[doc = concat!("Makes a slice of `len` elements at address `addr` in ", $where, ".")]
    ///
    /// # Safety
    /// - During `'a` the memory is allocated, the device of stream `S` can use it, and it holds
    ///   `len` elements of `T`.
    /// - During `'a` that stream orders all uses of the memory.
    /// - `addr` is not null and is aligned for `T`, and to the size of `T` if that is 2 or 4 bytes.
    pub unsafe fn from_raw<'a>(addr: u64, len: usize) -> &'a Self {
        let p = std::ptr::slice_from_raw_parts(addr as usize as *const (), len);
        // SAFETY: The referent has size 0 and alignment 1, so every address but null is valid for a
        // reference. The caller promises that `addr` is not null.
        unsafe { &*(p as *const Self) }
    }

    #[doc = concat!("Makes an exclusive slice of `len` elements at address `addr` in ", $where, ".")]
    ///
    /// # Safety
    /// The caller keeps the promises of [`from_raw`](Self::from_raw), and during `'a` no other
    /// slice overlaps this one.
    pub unsafe fn from_raw_mut<'a>(addr: u64, len: usize) -> &'a mut Self {
        let p = std::ptr::slice_from_raw_parts_mut(addr as usize as *mut (), len);
        // SAFETY: The referent has size 0 and alignment 1, so every address but null is valid for a
        // reference. The caller promises that `addr` is not null.
        unsafe { &mut *(p as *mut Self) }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len.len()
    }

    /// Returns whether the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size in bytes.
    pub fn byte_len(&self) -> usize {
        self.len() * size_of::<T>()
    }

    #[doc = concat!("Returns the address in ", $where, ", for interoperation.")]
    ///
    /// Whoever passes the address on must order its uses by stream `S`.
    pub fn $ptr(&self) -> u64 {
        (&raw const self.len).cast::<()>() as usize as u64
    }

    /// Returns the elements of `range`.
    ///
    /// # Errors
    /// The range is not inside the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<&Self, RangeError> {
        let (start, end) = resolve(range, self.len())?;
        // SAFETY: `resolve` checked that the range is inside this slice. The result borrows this
        // slice, so the promises of `from_raw` hold for the part during the same lifetime.
        Ok(unsafe { Self::from_raw(self.$ptr() + (start * size_of::<T>()) as u64, end - start) })
    }

    /// Returns the elements of `range` as an exclusive slice.
    ///
    /// # Errors
    /// The range is not inside the slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<&mut Self, RangeError> {
        let (start, end) = resolve(range, self.len())?;
        // SAFETY: `resolve` checked that the range is inside this slice. The result borrows this
        // slice exclusively, so no other slice overlaps the part during the same lifetime.
        Ok(unsafe { Self::from_raw_mut(self.$ptr() + (start * size_of::<T>()) as u64, end - start) })
    }

    /// Returns the elements before `mid` and the elements from `mid` on.
    ///
    /// # Errors
    /// `mid` is past the end.
    pub fn split_at_mut(&mut self, mid: usize) -> Result<(&mut Self, &mut Self), RangeError> {
        let (_, end) = resolve(mid.., self.len())?;
        let addr = self.$ptr();
        // SAFETY: `resolve` checked that `mid` is at most the length, so both parts are inside this
        // slice. They are disjoint, and both results borrow this slice exclusively.
        Ok(unsafe {
            (Self::from_raw_mut(addr, mid), Self::from_raw_mut(addr + (mid * size_of::<T>()) as u64, end - mid))
        })
    }
}

impl<S, T> Debug for $name<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(stringify!($name)).field("addr", &self.$ptr()).field("len", &self.len()).finish()
    }
}
    };
}

stream_slice!(
    /// Elements in device memory that the stream with tag `S` orders. It has an address and a
    /// length, and the host cannot read the elements.
    ///
    /// It is to a device buffer what `[T]` is to `Vec<T>`: it is always behind a reference, which
    /// borrows the buffer. It is unsized, so two of them cannot be swapped.
    DeviceSlice, device_ptr, "device memory"
);
stream_slice!(
    /// Elements in page-locked host memory that the stream with tag `S` orders, so the host cannot
    /// read or write them.
    ///
    /// It is to a pinned buffer what `[T]` is to `Vec<T>`: it is always behind a reference, which
    /// borrows the buffer. It is unsized, so two of them cannot be swapped.
    HostSlice, host_ptr, "page-locked host memory"
);

/// Refuses, when it is compiled, casts to elements that do not fit into those of the slice.
const fn castable<T: Element, U: Element>() {
    assert!(
        size_of::<U>() > 0 && size_of::<T>().is_multiple_of(size_of::<U>()),
        "a slice can be cast to elements whose size divides the size of its own"
    );
    // `from_raw` asks for this alignment.
    let needed = if matches!(size_of::<U>(), 2 | 4) { size_of::<U>() } else { align_of::<U>() };
    assert!(needed <= align_of::<T>(), "a slice can be cast to elements that need no larger alignment than its own");
}

impl<S, T: Element> DeviceSlice<S, T> {
    /// Returns the same bytes as elements of type `U`. The size of `U` divides the size of `T`,
    /// and `U` needs no larger alignment than `T`.
    #[must_use]
    pub fn cast<U: Element>(&self) -> &DeviceSlice<S, U> {
        const { castable::<T, U>() };
        // SAFETY: The result has the same bytes and borrows this slice. The address is aligned for
        // `T`, and `castable` says that this is enough for `U`. Every bit pattern is a valid
        // `Element`.
        unsafe { DeviceSlice::from_raw(self.device_ptr(), self.byte_len() / size_of::<U>()) }
    }

    /// Returns the same bytes as an exclusive slice of elements of type `U`. The size of `U`
    /// divides the size of `T`, and `U` needs no larger alignment than `T`.
    pub fn cast_mut<U: Element>(&mut self) -> &mut DeviceSlice<S, U> {
        const { castable::<T, U>() };
        // SAFETY: The result has the same bytes and borrows this slice exclusively. The address is
        // aligned for `T`, and `castable` says that this is enough for `U`. Every bit pattern is a
        // valid `Element`.
        unsafe { DeviceSlice::from_raw_mut(self.device_ptr(), self.byte_len() / size_of::<U>()) }
    }
}
