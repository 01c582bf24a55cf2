//! The host side of a declaration: what a launcher takes and what it hands to a stream.
//!
//! A crate of kernels knows no host types, so the launcher that [`kernel!`](crate::kernel) makes is
//! generic over [`Launch`], which the host crate implements for its streams.

use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::AtomicPtr;

use crate::cpu::CpuBlock;
use crate::{Element, In, InOut, Out};

macro_rules! stream_slice {
    ($(#[$doc:meta])* $name:ident, $ptr:ident, $where:literal) => {
$(#[$doc])*
#[repr(C)]
pub struct $name<S, T> {
    // `fn(S) -> S` makes the tag invariant; `S` lets a thread-bound tag bind the slice to its thread.
    brand: PhantomData<(fn(S) -> S, S, T)>,
    // The reference's address is the device address and its metadata the length; nothing is
    // behind it as far as Rust knows, so the host never touches the memory.
    len: [()],
}

impl<S, T> $name<S, T> {
    #[doc = concat!("A slice of `len` elements at address `addr` in ", $where, ".")]
    ///
    /// # Safety
    /// For `'a` the memory is allocated and usable by the device of stream `S`, holds `len` elements of `T`,
    /// and all its uses are ordered by that stream; `addr` is aligned for `T` and not null.
    pub unsafe fn from_raw<'a>(addr: u64, len: usize) -> &'a Self {
        let p = std::ptr::slice_from_raw_parts(addr as usize as *const (), len);
        // SAFETY: the referent has size 0 and alignment 1, so any address but null will do.
        unsafe { &*(p as *const Self) }
    }

    /// As [`from_raw`](Self::from_raw), exclusively.
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw), and no other slice overlaps it.
    pub unsafe fn from_raw_mut<'a>(addr: u64, len: usize) -> &'a mut Self {
        let p = std::ptr::slice_from_raw_parts_mut(addr as usize as *mut (), len);
        // SAFETY: as above.
        unsafe { &mut *(p as *mut Self) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.len() * size_of::<T>()
    }

    #[doc = concat!("Address in ", $where, ", for interoperation: whoever passes it on orders its use by stream `S`.")]
    pub fn $ptr(&self) -> u64 {
        (&raw const self.len).cast::<()>() as usize as u64
    }

    /// The elements of `range`.
    ///
    /// # Errors
    /// The range is not inside the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<&Self, RangeError> {
        let (start, end) = resolve(range, self.len())?;
        // SAFETY: a part of this slice, borrowed as long.
        Ok(unsafe { Self::from_raw(self.$ptr() + (start * size_of::<T>()) as u64, end - start) })
    }

    /// The elements of `range`, exclusively.
    ///
    /// # Errors
    /// The range is not inside the slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<&mut Self, RangeError> {
        let (start, end) = resolve(range, self.len())?;
        // SAFETY: a part of this slice, borrowed exclusively as long.
        Ok(unsafe { Self::from_raw_mut(self.$ptr() + (start * size_of::<T>()) as u64, end - start) })
    }

    /// The elements before `mid` and those from it on.
    ///
    /// # Errors
    /// `mid` is past the end.
    pub fn split_at_mut(&mut self, mid: usize) -> Result<(&mut Self, &mut Self), RangeError> {
        let (_, end) = resolve(mid.., self.len())?;
        let addr = self.$ptr();
        // SAFETY: two disjoint parts of this slice, borrowed exclusively as long.
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
    /// Elements in device memory, ordered by the stream whose tag is `S`: a length and an address, and
    /// no way to read them on the host.
    ///
    /// It is to device buffers what `[T]` is to `Vec<T>`: always behind a reference, which borrows the
    /// buffer. Being unsized, two of them cannot be swapped.
    DeviceSlice, device_ptr, "device memory"
);
stream_slice!(
    /// Elements in page-locked host memory, ordered by the stream whose tag is `S`, so that the host
    /// cannot read or write them.
    ///
    /// It is to pinned buffers what `[T]` is to `Vec<T>`: always behind a reference, which borrows the
    /// buffer. Being unsized, two of them cannot be swapped.
    HostSlice, host_ptr, "page-locked host memory"
);

impl<S, T: Element> DeviceSlice<S, T> {
    /// The same bytes as elements of another type, whose size divides that of `T`.
    pub fn cast<U: Element>(&self) -> &DeviceSlice<S, U> {
        const {
            assert!(
                size_of::<T>().is_multiple_of(size_of::<U>()),
                "elements can be cast to ones whose size divides theirs"
            )
        };
        // SAFETY: the same bytes, borrowed as long; an element's alignment is its size, and every bit pattern is a value.
        unsafe { DeviceSlice::from_raw(self.device_ptr(), self.byte_len() / size_of::<U>()) }
    }

    /// As [`cast`](Self::cast), exclusively.
    pub fn cast_mut<U: Element>(&mut self) -> &mut DeviceSlice<S, U> {
        const {
            assert!(
                size_of::<T>().is_multiple_of(size_of::<U>()),
                "elements can be cast to ones whose size divides theirs"
            )
        };
        // SAFETY: as above.
        unsafe { DeviceSlice::from_raw_mut(self.device_ptr(), self.byte_len() / size_of::<U>()) }
    }
}

/// A number of things, for a message: `1 element`, `2 elements`.
#[doc(hidden)]
pub fn counted<N: Debug + PartialEq + From<u8>>(count: N, thing: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count:?} {thing}{plural}")
}

/// A range that is not inside the slice it was asked of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeError {
    /// First element asked for.
    pub start: usize,
    /// One past the last element asked for.
    pub end: usize,
    /// Elements there are.
    pub len: usize,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "range {}..{} is not inside the {}", self.start, self.end, counted(self.len, "element"))
    }
}
impl std::error::Error for RangeError {}

/// `range` as start and end, checked against `len`.
///
/// # Errors
/// The range is not inside `0..len`.
#[doc(hidden)]
pub fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), RangeError> {
    let start = match range.start_bound() {
        Bound::Included(&s) => s,
        Bound::Excluded(&s) => s.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&e) => e.saturating_add(1),
        Bound::Excluded(&e) => e,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len { Ok((start, end)) } else { Err(RangeError { start, end, len }) }
}

/// Somewhere a kernel can be launched: the host crate's `Stream<S>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot launch on buffers ordered by `{S}`",
    label = "this stream does not order the buffers",
    note = "hand the buffers over first: `stream.hand(buffers, &other)`, or `record` and `wait`"
)]
pub trait Launch<S> {
    /// What a launch can fail with.
    type Error: From<LaunchError>;

    /// Enqueues `kernel`.
    ///
    /// # Safety
    /// `slots` holds one value for each parameter, as [`Argument::slot`] makes them; the buffers
    /// are ordered by stream `S`; the kernel is sound for these arguments and this shape.
    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), Self::Error>;
}

/// Runs one block of a kernel on the CPU.
pub type CpuEntry = unsafe fn(&CpuBlock<'_>, &[u64]);

/// How many devices a kernel remembers its function for; others look it up at each launch.
pub const CACHED_DEVICES: usize = 16;

/// The PTX of a crate's kernels, as [`ptx!`](crate::ptx) declares it.
#[derive(Debug)]
pub struct Ptx {
    texts: &'static [&'static str],
}

impl Ptx {
    /// PTX for the kernels that a crate declares.
    ///
    /// # Safety
    /// As [`ptx!`](crate::ptx) says.
    #[doc(hidden)]
    pub const unsafe fn new(texts: &'static [&'static str]) -> Self {
        Self { texts }
    }

    /// The texts of the files.
    pub fn texts(&self) -> &'static [&'static str] {
        self.texts
    }
}

/// A declared kernel.
#[derive(Debug)]
pub struct Kernel {
    ptx: &'static Ptx,
    origin: &'static str,
    name: &'static str,
    entry: &'static str,
    cpu: Option<CpuEntry>,
    cooperative: bool,
    functions: [AtomicPtr<()>; CACHED_DEVICES],
}

impl Kernel {
    #[doc(hidden)]
    pub const fn new(
        ptx: &'static Ptx,
        origin: &'static str,
        name: &'static str,
        entry: &'static str,
        cpu: Option<CpuEntry>,
        cooperative: bool,
    ) -> Self {
        Self {
            ptx,
            origin,
            name,
            entry,
            cpu,
            cooperative,
            functions: [const { AtomicPtr::new(std::ptr::null_mut()) }; CACHED_DEVICES],
        }
    }

    /// The PTX of the declaring crate.
    ///
    /// # Safety
    /// The caller declares no kernel with it: only kernels of the declaring crate may refer to it.
    #[doc(hidden)]
    pub unsafe fn ptx(&self) -> &'static Ptx {
        self.ptx
    }

    /// Where it is declared: package, version and module path, with a space between.
    pub fn origin(&self) -> &'static str {
        self.origin
    }

    /// The name in the declaration.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The name of the PTX entry: the name and the signature.
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// The entry for the CPU device, where the declaration has a body.
    pub fn cpu(&self) -> Option<CpuEntry> {
        self.cpu
    }

    /// Whether the threads of a block meet at barriers or in warp operations.
    pub fn cooperative(&self) -> bool {
        self.cooperative
    }

    /// The host crate's memory of the loaded function, a slot a device.
    ///
    /// # Safety
    /// What is stored is this kernel's function on the slot's device.
    #[doc(hidden)]
    pub unsafe fn functions(&self) -> &[AtomicPtr<()>; CACHED_DEVICES] {
        &self.functions
    }
}

/// Grid, block and dynamic shared memory of a launch, within what CUDA allows everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks, `x` fastest; a zero means nothing to do.
    pub grid: [u32; 3],
    /// Threads in a block; at most 1024.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
}

/// Dynamic shared memory that every supported GPU grants without opting in.
const MAX_SHARED: u128 = 48 << 10;

impl LaunchShape {
    /// Checks the extents that a declaration computed.
    #[doc(hidden)]
    pub fn new<const G: usize, const B: usize>(
        kernel: &Kernel,
        grid: &[u128; G],
        block: &[u128; B],
        shared: u128,
    ) -> Result<Self, LaunchError> {
        const { assert!(G <= 3 && B <= 3, "a grid and a block have at most three extents") };
        let at = |v: &[u128], i: usize| v.get(i).copied().unwrap_or(1);
        let threads = block.iter().try_fold(1u128, |n, extent| n.checked_mul(*extent)).unwrap_or(u128::MAX);
        let fits = at(grid, 0) <= i32::MAX as u128
            && at(grid, 1) <= 65535
            && at(grid, 2) <= 65535
            && (1..=1024).contains(&threads)
            && at(block, 2) <= 64
            && shared <= MAX_SHARED
            && (!kernel.cooperative || threads % 32 == 0);
        if !fits {
            return Err(LaunchError::Shape { kernel: kernel.name, grid: grid.to_vec(), block: block.to_vec(), shared });
        }
        let dims = |v: &[u128]| [at(v, 0) as u32, at(v, 1) as u32, at(v, 2) as u32];
        Ok(Self { grid: dims(grid), block: dims(block), shared: shared as u32 })
    }
}

/// An extent in a declaration, from a literal or from widened arguments.
#[doc(hidden)]
pub fn extent(v: u128) -> u128 {
    v
}

/// A launch whose arguments the declaration rules out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchError {
    /// A `require` predicate does not hold.
    Requirement {
        /// The kernel.
        kernel: &'static str,
        /// The predicate's text.
        requirement: &'static str,
        /// The arguments it was given.
        arguments: String,
    },
    /// The grid, block or shared memory is beyond what a launch allows.
    Shape {
        /// The kernel.
        kernel: &'static str,
        /// Blocks.
        grid: Vec<u128>,
        /// Threads in a block.
        block: Vec<u128>,
        /// Bytes.
        shared: u128,
    },
}

impl LaunchError {
    #[doc(hidden)]
    #[cold]
    pub fn requirement(kernel: &Kernel, requirement: &'static str, arguments: &[(&str, &dyn Debug)]) -> Self {
        let arguments = arguments.iter().map(|(name, v)| format!("{name} = {v:?}")).collect::<Vec<_>>().join(", ");
        Self::Requirement { kernel: kernel.name, requirement, arguments }
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requirement { kernel, requirement, arguments } => {
                write!(f, "kernel `{kernel}` requires `{requirement}`, but was given {arguments}")
            }
            Self::Shape { kernel, grid, block, shared } => write!(
                f,
                "kernel `{kernel}` cannot be launched as grid {grid:?}, block {block:?}, {} of shared memory \
                 (grid at most [2147483647, 65535, 65535], block 1 to 1024 threads, and a multiple of 32 where threads \
                 cooperate, shared memory at most {MAX_SHARED} bytes)",
                counted(*shared, "byte")
            ),
        }
    }
}
impl std::error::Error for LaunchError {}

/// A parameter that a CPU entry takes from its slot.
#[doc(hidden)]
pub trait Parameter {
    /// # Safety
    /// The slot was filled by the matching [`Argument::slot`].
    unsafe fn from_slot(slot: u64) -> Self;
}

/// The slots of a launch, at most as many as a launch can carry.
#[doc(hidden)]
pub fn slots<const N: usize>(slots: [u64; N]) -> [u64; N] {
    const { assert!(N <= 32, "a kernel has at most 32 parameters") };
    slots
}

/// An argument of a launch.
#[doc(hidden)]
pub trait Argument {
    /// What predicates see of it.
    type Wide: Debug;
    /// The argument's bits; its own size, little-endian, at the start.
    fn slot(&self) -> u64;
    /// The argument for predicates.
    fn widen(&self) -> Self::Wide;
}

macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Parameter for $t {
            #[inline(always)]
            unsafe fn from_slot(slot: u64) -> Self {
                slot as $t
            }
        }
        impl Argument for $t {
            type Wide = i128;
            fn slot(&self) -> u64 {
                *self as u64
            }
            fn widen(&self) -> i128 {
                i128::from(*self)
            }
        }
    )*};
}
integer!(i8 i16 i32 i64);

macro_rules! natural {
    ($($t:ty)*) => {$(
        impl Parameter for $t {
            #[inline(always)]
            unsafe fn from_slot(slot: u64) -> Self {
                slot as $t
            }
        }
        impl Argument for $t {
            type Wide = u128;
            fn slot(&self) -> u64 {
                u64::from(*self)
            }
            fn widen(&self) -> u128 {
                u128::from(*self)
            }
        }
    )*};
}
natural!(u8 u16 u32 u64);

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
        impl<T: Element> Parameter for $t<T> {
            #[inline(always)]
            unsafe fn from_slot(slot: u64) -> Self {
                // SAFETY: the slot holds the address of a slice of the CPU device, whose memory's
                // provenance was exposed when it was allocated.
                unsafe { Self::from_ptr(slot as usize as $ptr) }
            }
        }
    )*};
}
pointer! { In *const T; Out *mut T; InOut *mut T; }

impl<S, T> Argument for &DeviceSlice<S, T> {
    type Wide = Extent;
    fn slot(&self) -> u64 {
        self.device_ptr()
    }
    fn widen(&self) -> Extent {
        Extent { addr: self.device_ptr(), len: self.len() }
    }
}
impl<S, T> Argument for &mut DeviceSlice<S, T> {
    type Wide = Extent;
    fn slot(&self) -> u64 {
        self.device_ptr()
    }
    fn widen(&self) -> Extent {
        Extent { addr: self.device_ptr(), len: self.len() }
    }
}

/// What a predicate can ask of a buffer.
#[derive(Clone, Copy)]
pub struct Extent {
    addr: u64,
    len: usize,
}

impl Extent {
    /// Elements in the buffer.
    pub fn len(self) -> u128 {
        self.len as u128
    }

    /// Whether the buffer is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether the first element's address is a multiple of `bytes`.
    pub fn is_aligned(self, bytes: u64) -> bool {
        self.addr.is_multiple_of(bytes)
    }
}

impl Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} at {:#x}]", counted(self.len, "element"), self.addr)
    }
}
