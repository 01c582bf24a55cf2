//! The three kinds of buffer parameter.

use crate::{Element, Index, Simt};

macro_rules! parameter {
    ($(#[$doc:meta])* $name:ident, $ptr:ty) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name<T>($ptr);

        impl<T> Clone for $name<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<T> {}

        impl<T> $name<T> {
            /// Makes the parameter from the slot that the launch carries.
            ///
            /// # Safety
            /// `address` is that of a device buffer that the launch passed for this parameter.
            #[cfg(not(target_arch = "nvptx64"))]
            #[doc(hidden)]
            #[inline(always)]
            pub unsafe fn from_address(address: u64) -> Self
            where
                T: Element,
            {
                Self(address as usize as $ptr)
            }
        }

        impl<T: Element> $name<T> {
            /// Makes the parameter from the address that the launch carries.
            ///
            /// # Safety
            /// `p` is the address of a device buffer that the launch passed for this parameter.
            #[doc(hidden)]
            #[inline(always)]
            pub unsafe fn from_ptr(p: $ptr) -> Self {
                Self(p)
            }

            /// Returns the address of element 0.
            #[must_use]
            #[inline(always)]
            pub fn as_ptr(self) -> $ptr {
                self.0
            }
        }
    };
}

parameter!(
    /// A buffer that the kernel reads. The launcher takes a `&DeviceSlice` for it.
    In, *const T
);
parameter!(
    /// A buffer that the kernel writes and does not read. The launcher takes a `&mut DeviceSlice`
    /// for it.
    Out, *mut T
);
parameter!(
    /// A buffer that the kernel reads and writes. The launcher takes a `&mut DeviceSlice` for it.
    InOut, *mut T
);

impl<T: Element> In<T> {
    /// Loads element `i`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer.
    #[must_use]
    #[inline(always)]
    pub unsafe fn get(self, cx: impl Simt, i: impl Index) -> T {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { cx.load(self.0.add(i.index())) }
    }
}

impl<T: Element> Out<T> {
    /// Stores element `i`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer.
    #[inline(always)]
    pub unsafe fn set(self, cx: impl Simt, i: impl Index, v: T) {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { cx.store(self.0.add(i.index()), v) }
    }
}

impl<T: Element> InOut<T> {
    /// Loads element `i`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer.
    #[must_use]
    #[inline(always)]
    pub unsafe fn get(self, cx: impl Simt, i: impl Index) -> T {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { cx.load(self.0.add(i.index())) }
    }

    /// Stores element `i`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer.
    #[inline(always)]
    pub unsafe fn set(self, cx: impl Simt, i: impl Index, v: T) {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { cx.store(self.0.add(i.index()), v) }
    }
}
