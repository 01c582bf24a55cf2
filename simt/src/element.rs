//! Elements and the three kinds of buffer parameter.

use crate::Simt;

/// A type that device memory can hold and a kernel can load and store in one access.
///
/// # Safety
/// Every bit pattern of the type's size is a valid value, the type has no padding, and its size is
/// 1, 2, 4 or 8 bytes, equal to its alignment.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Loads as one relaxed atomic access (CPU device: other threads may store at the same time).
    ///
    /// # Safety
    /// `p` is aligned and points into device memory of the CPU device, which is always valid for reads and writes.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    unsafe fn load_relaxed(p: *const Self) -> Self;
    /// Stores as one relaxed atomic access.
    ///
    /// # Safety
    /// `p` is aligned and valid for writes.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    unsafe fn store_relaxed(p: *mut Self, v: Self);
}

macro_rules! element {
    ($($t:ty => $atomic:ident, $to:expr, $from:expr;)*) => {$(
        // SAFETY: a primitive number: no padding, no invalid value, size equal to alignment on the
        // 64-bit targets this crate supports.
        unsafe impl Element for $t {
            #[cfg(not(target_arch = "nvptx64"))]
            #[inline(always)]
            unsafe fn load_relaxed(p: *const Self) -> Self {
                // SAFETY: The caller promises an aligned pointer into device memory. The CPU device allocates that
                // memory itself, so it is valid for reads and writes although the kernel only reads here.
                let bits = unsafe { core::sync::atomic::$atomic::from_ptr(p.cast_mut().cast()) }
                    .load(core::sync::atomic::Ordering::Relaxed);
                $from(bits)
            }
            #[cfg(not(target_arch = "nvptx64"))]
            #[inline(always)]
            unsafe fn store_relaxed(p: *mut Self, v: Self) {
                // SAFETY: The caller promises an aligned pointer that is valid for reads and writes.
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
}

/// A 32-bit value that a warp can exchange: `u32`, `i32` or `f32`.
pub trait Word: Element {
    /// The value's bits.
    fn to_word(self) -> u32;
    /// The value with these bits.
    fn from_word(bits: u32) -> Self;
}

impl Word for u32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self
    }
    #[inline(always)]
    fn from_word(bits: u32) -> Self {
        bits
    }
}

impl Word for i32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self as u32
    }
    #[inline(always)]
    fn from_word(bits: u32) -> Self {
        bits as i32
    }
}

impl Word for f32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    #[inline(always)]
    fn from_word(bits: u32) -> Self {
        f32::from_bits(bits)
    }
}

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

        impl<T: Element> $name<T> {
            /// A parameter from the address the launch carries.
            ///
            /// # Safety
            /// Accesses through the result are as valid as through the pointer.
            #[doc(hidden)]
            #[inline(always)]
            pub unsafe fn from_ptr(p: $ptr) -> Self {
                Self(p)
            }

            /// The address of element 0.
            #[inline(always)]
            pub fn as_ptr(self) -> $ptr {
                self.0
            }
        }
    };
}

parameter!(
    /// A buffer the kernel reads: `&DeviceSlice` at the launch.
    In, *const T
);
parameter!(
    /// A buffer the kernel writes without reading what was there: `&mut DeviceSlice` at the launch.
    Out, *mut T
);
parameter!(
    /// A buffer the kernel reads and writes: `&mut DeviceSlice` at the launch.
    InOut, *mut T
);

impl<T: Element> In<T> {
    /// Loads element `i`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer.
    #[inline(always)]
    pub unsafe fn get(self, cx: impl Simt, i: usize) -> T {
        // SAFETY: in bounds by the caller's promise.
        unsafe { cx.load(self.0.add(i)) }
    }
}

impl<T: Element> Out<T> {
    /// Stores element `i`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer.
    #[inline(always)]
    pub unsafe fn set(self, cx: impl Simt, i: usize, v: T) {
        // SAFETY: in bounds by the caller's promise.
        unsafe { cx.store(self.0.add(i), v) }
    }
}

impl<T: Element> InOut<T> {
    /// Loads element `i`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer.
    #[inline(always)]
    pub unsafe fn get(self, cx: impl Simt, i: usize) -> T {
        // SAFETY: in bounds by the caller's promise.
        unsafe { cx.load(self.0.add(i)) }
    }

    /// Stores element `i`.
    ///
    /// # Safety
    /// `i` is below the length that the declaration requires of the buffer.
    #[inline(always)]
    pub unsafe fn set(self, cx: impl Simt, i: usize, v: T) {
        // SAFETY: in bounds by the caller's promise.
        unsafe { cx.store(self.0.add(i), v) }
    }
}
