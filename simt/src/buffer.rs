//! The three kinds of buffer parameter.

use crate::memory::{Cache, LoadHint, StoreHint};
use crate::{Atomic, AtomicElement, Element, Index, Simt};

macro_rules! parameter {
    ($(#[$doc:meta])* $name:ident, $ptr:ty) => {
        $(#[$doc])*
        #[cfg_attr(target_arch = "nvptx64", repr(transparent))]
        #[derive(Debug)]
        pub struct $name<T> {
            start: $ptr,
            /// The number of elements, by which the CPU device checks each index.
            #[cfg(not(target_arch = "nvptx64"))]
            len: usize,
        }

        impl<T> Clone for $name<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<T> {}

        // Without a bound: the declaration asks for `Element` already, where the type of the
        // element stands.
        impl<T> $name<T> {
            /// Takes the parameter from the slots that the launch carries.
            ///
            /// # Safety
            /// The launch put the address and the length of a device buffer at the start of `slots`
            /// for this parameter.
            #[cfg(not(target_arch = "nvptx64"))]
            #[doc(hidden)]
            #[inline(always)]
            pub unsafe fn take(slots: &mut &[u64]) -> Self {
                // SAFETY: The caller promises that these two words are at the start.
                let [address, len]: [u64; 2] = unsafe { crate::host::take(slots) };
                Self { start: address as usize as $ptr, len: len as usize }
            }
        }

        impl<T: Element> $name<T> {
            /// Makes the parameter from the address that the launch carries.
            ///
            /// # Safety
            /// `p` is the address of a device buffer that the launch passed for this parameter.
            #[cfg(target_arch = "nvptx64")]
            #[doc(hidden)]
            #[inline(always)]
            pub unsafe fn from_ptr(p: $ptr) -> Self {
                Self { start: p }
            }

            /// Returns the address of element 0.
            #[must_use]
            #[inline(always)]
            pub fn as_ptr(self) -> $ptr {
                self.start
            }

            /// Returns the part of the buffer from element `start` on.
            ///
            /// # Safety
            /// `start` is at most the length that the declaration requires of the buffer. (The CPU
            /// device checks it and reports a violation.)
            #[must_use]
            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            pub unsafe fn tail(self, start: impl Index) -> Self {
                let start = start.index();
                #[cfg(not(target_arch = "nvptx64"))]
                if start > self.len {
                    crate::violation::outside(start, self.start.addr(), self.len);
                }
                Self {
                    // SAFETY: The caller promises that `start` is at most the buffer's length.
                    start: unsafe { self.start.add(start) },
                    #[cfg(not(target_arch = "nvptx64"))]
                    len: self.len - start,
                }
            }

            /// Returns the address of element `i`. The CPU device checks `i` first.
            ///
            /// # Safety
            /// `i` is below the length that the declaration requires of the buffer.
            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            unsafe fn at(self, i: impl Index) -> $ptr {
                let i = i.index();
                #[cfg(not(target_arch = "nvptx64"))]
                if i >= self.len {
                    crate::violation::outside(i, self.start.addr(), self.len);
                }
                // SAFETY: The caller promises that `i` is below the length that the declaration
                // requires, and the launcher checked that the buffer has this length.
                unsafe { self.start.add(i) }
            }

            /// Returns the address of elements `i` to `i + n - 1`. The CPU device checks them
            /// first.
            ///
            /// # Safety
            /// `i + n` is at most the length that the declaration requires of the buffer.
            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            unsafe fn vector_at(self, i: impl Index, n: usize) -> $ptr {
                let i = i.index();
                #[cfg(not(target_arch = "nvptx64"))]
                if let Some(last) = i.checked_add(n - 1).filter(|last| *last >= self.len) {
                    crate::violation::outside(last, self.start.addr(), self.len);
                }
                #[cfg(target_arch = "nvptx64")]
                let _ = n;
                // SAFETY: The caller promises that `i` is below the length that the declaration
                // requires, and the launcher checked that the buffer has this length.
                unsafe { self.start.add(i) }
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
    /// `i` is below the length that the declaration requires of the buffer. (The CPU device checks
    /// it and reports a violation.)
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn get(self, cx: impl Simt, i: impl Index) -> T {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { cx.load(self.at(i)) }
    }
}

impl<T: Element> Out<T> {
    /// Stores element `i`. [`kernel!`](crate::kernel) says when other threads may access it.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer. (The CPU device checks
    /// it and reports a violation.)
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn set(self, cx: impl Simt, i: impl Index, v: T) {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { cx.store(self.at(i), v) }
    }
}

impl<T: Element> InOut<T> {
    /// Loads element `i`. [`kernel!`](crate::kernel) says when other threads may access it.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer. (The CPU device checks
    /// it and reports a violation.)
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn get(self, cx: impl Simt, i: impl Index) -> T {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { cx.load(self.at(i)) }
    }

    /// Stores element `i`. [`kernel!`](crate::kernel) says when other threads may access it.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer. (The CPU device checks
    /// it and reports a violation.)
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn set(self, cx: impl Simt, i: impl Index, v: T) {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { cx.store(self.at(i), v) }
    }
}

impl<T: AtomicElement> InOut<T> {
    /// Names element `i`, for [atomic operations](Atomic): `y.atomic(i).add(cx, 1)`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer. (The CPU device checks
    /// it and reports a violation.)
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn atomic(self, i: impl Index) -> Atomic<T> {
        // SAFETY: The caller promises that `i` is below the length that the declaration requires,
        // and the launcher checked that the buffer has this length. So the element is in device
        // memory. It is aligned because every `DeviceSlice` is.
        unsafe { Atomic::from_ptr(self.at(i)) }
    }
}

macro_rules! loads {
    ($($name:ident)*) => {$(
        impl<T: Element> $name<T> {
            /// Loads elements `i` to `i + N - 1`, on a GPU in one access that uses the caches as
            /// `hint` says. `N` is 1, 2 or 4, and the elements have at most 16 bytes.
            ///
            /// ```
            /// use thalweg_simt::{hint, kernel, ptx};
            ///
            /// # fn main() {}
            /// ptx! {}
            ///
            /// kernel! {
            ///     /// Adds `x` to `y`, four elements at a time. Nothing uses them again soon.
            ///     pub unsafe fn add(cx: impl Simt, n: u32, x: In<f32>, y: InOut<f32>)
            ///     require { n % 4 == 0, x.len() == n, y.len() == n, x.is_aligned(16), y.is_aligned(16) }
            ///     grid(n.div_ceil(1024)) block(256)
            ///     {
            ///         let i = 4 * cx.global_x();
            ///         if i < n {
            ///             let x: [f32; 4] = x.load(cx, i, hint::ReadOnly);
            ///             let y4: [f32; 4] = y.load(cx, i, hint::Streaming);
            ///             y.store(cx, i, [0, 1, 2, 3].map(|k| x[k] + y4[k]), hint::Streaming);
            ///         }
            ///     }
            /// }
            /// ```
            ///
            /// # Safety
            /// `i + N` is at most the length that the declaration requires of the buffer. (The CPU
            /// device checks it and reports a violation.) The address of element `i` is a multiple
            /// of the `N` elements' size: `require` has `x.is_aligned(bytes)`. With
            /// [`hint::ReadOnly`](crate::hint::ReadOnly), no thread of the grid writes there.
            #[must_use]
            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            pub unsafe fn load<const N: usize, H: LoadHint>(self, cx: impl Simt, i: impl Index, _hint: H) -> [T; N] {
                // SAFETY: The caller promises that the elements are inside the buffer, which is in
                // device memory, and aligned, and what the hint requires.
                unsafe { cx.load_vector::<T, N, H>(self.vector_at(i, N)) }
            }

            /// Asks for the cache line of element `i`, which a later load then finds there. It
            /// changes no result.
            ///
            /// # Safety
            /// `i` is below the length that the declaration requires of the buffer. (The CPU device
            /// checks it and reports a violation.)
            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            pub unsafe fn prefetch(self, cx: impl Simt, i: impl Index, cache: Cache) {
                // SAFETY: The caller promises that the element is inside the buffer, which is in
                // device memory.
                unsafe { cx.prefetch(self.at(i), cache) };
            }
        }
    )*};
}
loads!(In InOut);

macro_rules! stores {
    ($($name:ident)*) => {$(
        impl<T: Element> $name<T> {
            /// Stores elements `i` to `i + N - 1`, on a GPU in one access that uses the caches as
            /// `hint` says. `N` is 1, 2 or 4, and the elements have at most 16 bytes.
            ///
            /// # Safety
            /// `i + N` is at most the length that the declaration requires of the buffer. (The CPU
            /// device checks it and reports a violation.) The address of element `i` is a multiple
            /// of the `N` elements' size: `require` has `x.is_aligned(bytes)`.
            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            pub unsafe fn store<const N: usize, H: StoreHint>(
                self, cx: impl Simt, i: impl Index, v: [T; N], _hint: H
            ) {
                // SAFETY: The caller promises that the elements are inside the buffer, which is in
                // device memory, and aligned.
                unsafe { cx.store_vector::<T, N, H>(self.vector_at(i, N), v) };
            }
        }
    )*};
}
stores!(Out InOut);
