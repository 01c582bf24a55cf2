//! Vector accesses and cache hints, prefetches, and clocks.

use crate::Element;

/// Hints that tell a load or a store how to use the caches of a GPU. The CPU device ignores it.
///
/// Each is a hint: it changes how fast a kernel is, not what it computes. Only
/// [`ReadOnly`](hint::ReadOnly) requires something.
pub mod hint {
    /// Caches at all levels (`ca` of a load, `wb` of a store). It is what an access without a hint
    /// does.
    #[derive(Clone, Copy, Debug)]
    pub struct Cached;
    /// Caches in the L2 only (`cg`), for data that other blocks use and this one does not use
    /// again.
    #[derive(Clone, Copy, Debug)]
    pub struct Global;
    /// Evicts the data first (`cs`), because it is used once.
    #[derive(Clone, Copy, Debug)]
    pub struct Streaming;
    /// Loads by the path for read-only data (`nc`). **No thread of the grid writes the data.**
    #[derive(Clone, Copy, Debug)]
    pub struct ReadOnly;
    /// Loads from memory again (`cv`), because something outside the grid may have written there.
    #[derive(Clone, Copy, Debug)]
    pub struct Volatile;
    /// Stores through the L2 to memory (`wt`), for a reader outside the GPU.
    #[derive(Clone, Copy, Debug)]
    pub struct WriteThrough;
}

/// A hint for a load: [`hint::Cached`], [`hint::Global`], [`hint::Streaming`], [`hint::ReadOnly`]
/// or [`hint::Volatile`].
#[diagnostic::on_unimplemented(message = "`{Self}` is not a hint for a load")]
pub trait LoadHint: Copy + sealed::Sealed {
    #[doc(hidden)]
    const LOAD: Load;
}
/// A hint for a store: [`hint::Cached`], [`hint::Global`], [`hint::Streaming`] or
/// [`hint::WriteThrough`].
#[diagnostic::on_unimplemented(message = "`{Self}` is not a hint for a store")]
pub trait StoreHint: Copy + sealed::Sealed {
    #[doc(hidden)]
    const STORE: Store;
}

/// The value of a [`LoadHint`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    Cached,
    Global,
    Streaming,
    ReadOnly,
    Volatile,
}
/// The value of a [`StoreHint`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Cached,
    Global,
    Streaming,
    WriteThrough,
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! hints {
    ($($t:ident: $($trait:ident $constant:ident $value:ident)*;)*) => {$(
        impl sealed::Sealed for hint::$t {}
        $(
            impl $trait for hint::$t {
                const $constant: $value = $value::$t;
            }
        )*
    )*};
}
hints! {
    Cached: LoadHint LOAD Load StoreHint STORE Store;
    Global: LoadHint LOAD Load StoreHint STORE Store;
    Streaming: LoadHint LOAD Load StoreHint STORE Store;
    ReadOnly: LoadHint LOAD Load;
    Volatile: LoadHint LOAD Load;
    WriteThrough: StoreHint STORE Store;
}

/// A cache of a GPU into which data can be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// The cache of the multiprocessor.
    L1,
    /// The cache of the device.
    L2,
}

/// Refuses to compile a vector that no single access can move.
pub(crate) const fn check_vector<T, const N: usize>() {
    assert!(N == 1 || N == 2 || N == 4, "a vector access has 1, 2 or 4 elements");
    let bytes = N * size_of::<T>();
    assert!(bytes.is_power_of_two() && bytes <= 16, "a vector access has 1, 2, 4, 8 or 16 bytes");
}

/// The accesses of a thread to device memory beyond plain loads and stores, and its clocks.
///
/// Kernels use the accesses through buffers: [`In::load`](crate::In::load),
/// [`Out::store`](crate::Out::store) and their like.
pub trait Memory: Copy {
    /// Loads `N` consecutive elements in one access.
    ///
    /// # Safety
    /// `p` is a multiple of `N * size_of::<T>()` bytes and points to `N` elements in an allocation
    /// of device memory. With [`hint::ReadOnly`], no thread of the grid writes there.
    #[doc(hidden)]
    #[must_use]
    unsafe fn load_vector<T: Element, const N: usize, H: LoadHint>(self, p: *const T) -> [T; N];
    /// Stores `N` consecutive elements in one access.
    ///
    /// # Safety
    /// `p` is a multiple of `N * size_of::<T>()` bytes and points to `N` elements in an allocation
    /// of device memory.
    #[doc(hidden)]
    unsafe fn store_vector<T: Element, const N: usize, H: StoreHint>(self, p: *mut T, v: [T; N]);
    /// Asks for the cache line at `p`.
    ///
    /// # Safety
    /// `p` points into an allocation of device memory.
    #[doc(hidden)]
    unsafe fn prefetch<T: Element>(self, p: *const T, cache: Cache);

    /// Returns a count that grows with time: clock cycles of the multiprocessor on a GPU,
    /// nanoseconds on the CPU device. Counts of two multiprocessors cannot be compared.
    #[must_use]
    fn clock(self) -> u64;
    /// Returns the time in nanoseconds since some moment, the same for all threads of the device.
    /// On a GPU it may advance in steps of a microsecond.
    #[must_use]
    fn timer(self) -> u64;
    /// Lets the thread pause for at most twice `nanoseconds`, which is at most a million.
    fn nanosleep(self, nanoseconds: u32);
}
