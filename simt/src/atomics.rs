//! Atomic operations on device memory and on shared memory, and fences.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use crate::Element;
use crate::shared::SharedMemory;

/// The orders of atomic operations and fences. They mean what those of [`core::sync::atomic`] mean.
pub mod order {
    /// The operation is atomic and orders nothing else.
    #[derive(Clone, Copy, Debug)]
    pub struct Relaxed;
    /// Everything after the operation happens after the operation that stored the value.
    #[derive(Clone, Copy, Debug)]
    pub struct Acquire;
    /// Everything before the operation happens before an [`Acquire`] operation that reads the
    /// value.
    #[derive(Clone, Copy, Debug)]
    pub struct Release;
    /// Both [`Acquire`] and [`Release`].
    #[derive(Clone, Copy, Debug)]
    pub struct AcqRel;
    /// [`AcqRel`], and all such fences happen in one order. It is for fences only: PTX has no
    /// atomic operation of this order.
    #[derive(Clone, Copy, Debug)]
    pub struct SeqCst;
}

/// The scopes of atomic operations and fences: which threads the operation is atomic for, and which
/// it is ordered for. The CPU device takes each scope for the whole process.
pub mod scope {
    /// The threads of the block (`.cta`).
    #[derive(Clone, Copy, Debug)]
    pub struct Block;
    /// The threads of the device (`.gpu`).
    #[derive(Clone, Copy, Debug)]
    pub struct Device;
    /// The threads of all devices, and of the host if it can reach the memory (`.sys`).
    #[derive(Clone, Copy, Debug)]
    pub struct System;
}

use order::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use scope::{Block, Device, System};

/// An order of [`order`]. No other crate can implement it.
pub trait Order: Copy + sealed::Sealed {
    #[doc(hidden)]
    const ORDER: Ordering;
}
/// An order in which an atomic can be loaded: [`order::Relaxed`] or [`order::Acquire`].
#[diagnostic::on_unimplemented(message = "an atomic is loaded by `relaxed` or `acquire`, not by `{Self}`")]
pub trait LoadOrder: Order {}
/// An order in which an atomic can be stored: [`order::Relaxed`] or [`order::Release`].
#[diagnostic::on_unimplemented(message = "an atomic is stored by `relaxed` or `release`, not by `{Self}`")]
pub trait StoreOrder: Order {}
/// An order that a fence can have: [`order::AcqRel`] or [`order::SeqCst`].
#[diagnostic::on_unimplemented(message = "a fence has the order `AcqRel` or `SeqCst`, not `{Self}`")]
pub trait FenceOrder: Copy + sealed::Sealed {
    #[doc(hidden)]
    const ORDER: Ordering;
}
/// A scope of [`scope`]. No other crate can implement it.
pub trait Scope: Copy + sealed::Sealed {
    #[doc(hidden)]
    const SCOPE: Reach;
}

/// The value of a [`Scope`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Block,
    Device,
    System,
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! modes {
    ($($trait:ident $constant:ident $type:ty: $($t:ident)*;)*) => {$($(
        impl $trait for $t {
            const $constant: $type = <$type>::$t;
        }
    )*)*};
}
modes! {
    Order ORDER Ordering: Relaxed Acquire Release AcqRel;
    FenceOrder ORDER Ordering: AcqRel SeqCst;
    Scope SCOPE Reach: Block Device System;
}
macro_rules! marked {
    ($($trait:path: $($t:ty)*;)*) => {$($(impl $trait for $t {})*)*};
}
marked! {
    sealed::Sealed: Relaxed Acquire Release AcqRel SeqCst Block Device System u32 u64 i32 i64 f32 f64;
    LoadOrder: Relaxed Acquire;
    StoreOrder: Relaxed Release;
    AtomicInteger: u32 u64 i32 i64;
}

/// A word on which a device works atomically.
#[doc(hidden)]
pub trait AtomicBits: Element + Eq + sealed::Sealed {
    /// Returns the value in the low bits.
    fn wide(self) -> u64;
    /// Returns the low bits.
    fn narrow(wide: u64) -> Self;
}
impl AtomicBits for u32 {
    #[inline(always)]
    fn wide(self) -> u64 {
        self.into()
    }
    #[inline(always)]
    fn narrow(wide: u64) -> Self {
        wide as u32
    }
}
impl AtomicBits for u64 {
    #[inline(always)]
    fn wide(self) -> u64 {
        self
    }
    #[inline(always)]
    fn narrow(wide: u64) -> Self {
        wide
    }
}

/// The change that an atomic operation makes with the old bits and the operand's.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Add,
    AddFloat,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    And,
    Or,
    Xor,
    Exchange,
}

/// The place of an atomic.
#[doc(hidden)]
#[derive(Debug)]
pub enum Location<T> {
    /// In device memory.
    Device(*mut T),
    /// In shared memory: an element of the window.
    Shared(SharedMemory<T>, u32),
}

impl<T> Clone for Location<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Location<T> {}

impl<T> Location<T> {
    #[inline(always)]
    fn cast<U>(self) -> Location<U> {
        match self {
            Self::Device(p) => Location::Device(p.cast()),
            Self::Shared(s, i) => Location::Shared(SharedMemory { start: s.start, element: PhantomData }, i),
        }
    }
}

/// The atomic operations of a thread. Kernels use them through [`Atomic`].
pub trait Atomics: Copy {
    /// Loads the bits of an atomic.
    ///
    /// # Safety
    /// `at` is aligned, and in device memory or in the shared memory of the thread's block.
    #[doc(hidden)]
    unsafe fn atomic_load<B: AtomicBits, O: LoadOrder, S: Scope>(self, at: Location<B>) -> B;
    /// Stores the bits of an atomic.
    ///
    /// # Safety
    /// `at` is aligned, and in device memory or in the shared memory of the thread's block.
    #[doc(hidden)]
    unsafe fn atomic_store<B: AtomicBits, O: StoreOrder, S: Scope>(self, at: Location<B>, v: B);
    /// Replaces the bits of an atomic by the result of `operation`. Returns the old ones.
    ///
    /// # Safety
    /// `at` is aligned, and in device memory or in the shared memory of the thread's block.
    #[doc(hidden)]
    unsafe fn atomic_update<B: AtomicBits, O: Order, S: Scope>(self, at: Location<B>, operation: Operation, v: B) -> B;
    /// Replaces the bits of an atomic by `new` if they are `current`. Returns the old ones.
    ///
    /// # Safety
    /// `at` is aligned, and in device memory or in the shared memory of the thread's block.
    #[doc(hidden)]
    unsafe fn atomic_compare_exchange<B: AtomicBits, O: Order, S: Scope>(
        self,
        at: Location<B>,
        current: B,
        new: B,
    ) -> B;

    /// Orders the accesses of this thread before the fence and those after it, for the threads of
    /// `scope`. `cx.fence(order::SeqCst, scope::Device)` is CUDA's `__threadfence()`.
    fn fence<O: FenceOrder, S: Scope>(self, order: O, scope: S);
}

/// An element on which threads work atomically: `u32`, `i32`, `u64`, `i64`, `f32` or `f64`.
#[diagnostic::on_unimplemented(
    message = "there are no atomic operations on elements of type `{Self}`",
    note = "a GPU works atomically on 32 and 64 bits: `u32`, `i32`, `u64`, `i64`, `f32` or `f64`"
)]
pub trait AtomicElement: Element + sealed::Sealed {
    #[doc(hidden)]
    type Bits: AtomicBits;
    #[doc(hidden)]
    const ADD: Operation;
    #[doc(hidden)]
    fn bits(self) -> Self::Bits;
    #[doc(hidden)]
    fn of_bits(bits: Self::Bits) -> Self;
    /// Returns `-self`, modulo the range of an integer.
    #[doc(hidden)]
    fn negated(self) -> Self;
    /// Calls `update` with the operation that computes the smaller of the old value and this one.
    #[doc(hidden)]
    fn smaller<R>(self, update: impl Fn(Operation) -> R) -> R;
    /// Calls `update` with the operation that computes the larger of the old value and this one.
    #[doc(hidden)]
    fn larger<R>(self, update: impl Fn(Operation) -> R) -> R;
}

/// An integer on which threads work atomically.
#[diagnostic::on_unimplemented(message = "the operation works on the bits of integers, not on `{Self}`")]
pub trait AtomicInteger: AtomicElement {}

macro_rules! integer {
    ($($t:ident $bits:ident $min:ident $max:ident;)*) => {$(
        impl AtomicElement for $t {
            type Bits = $bits;
            const ADD: Operation = Operation::Add;
            #[inline(always)]
            fn bits(self) -> $bits {
                self as $bits
            }
            #[inline(always)]
            fn of_bits(bits: $bits) -> Self {
                bits as $t
            }
            #[inline(always)]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn smaller<R>(self, update: impl Fn(Operation) -> R) -> R {
                update(Operation::$min)
            }
            #[inline(always)]
            fn larger<R>(self, update: impl Fn(Operation) -> R) -> R {
                update(Operation::$max)
            }
        }
    )*};
}
integer! {
    u32 u32 Min Max;
    u64 u64 Min Max;
    i32 u32 MinSigned MaxSigned;
    i64 u64 MinSigned MaxSigned;
}

// The bits of floats without sign grow with the value, and the bits of those with a sign grow with
// the magnitude. As signed integers, all with a sign are below all without. So if `self` has no
// sign, the signed comparison is that of `total_cmp`. If it has one, the unsigned comparison is the
// reverse of `total_cmp`.
macro_rules! float {
    ($($t:ident $bits:ident;)*) => {$(
        impl AtomicElement for $t {
            type Bits = $bits;
            const ADD: Operation = Operation::AddFloat;
            #[inline(always)]
            fn bits(self) -> $bits {
                self.to_bits()
            }
            #[inline(always)]
            fn of_bits(bits: $bits) -> Self {
                Self::from_bits(bits)
            }
            #[inline(always)]
            fn negated(self) -> Self {
                -self
            }
            #[inline(always)]
            fn smaller<R>(self, update: impl Fn(Operation) -> R) -> R {
                if self.is_sign_negative() { update(Operation::Max) } else { update(Operation::MinSigned) }
            }
            #[inline(always)]
            fn larger<R>(self, update: impl Fn(Operation) -> R) -> R {
                if self.is_sign_negative() { update(Operation::Min) } else { update(Operation::MaxSigned) }
            }
        }
    )*};
}
float! {
    f32 u32;
    f64 u64;
}

/// An element of device memory or of shared memory on which threads work atomically.
///
/// [`InOut::atomic`](crate::InOut::atomic) and [`SharedMemory::atomic`] make it. The order is
/// relaxed unless you choose another one, and the scope is the device, or the block for shared
/// memory.
///
/// ```
/// use thalweg_simt::{kernel, order, ptx, scope};
///
/// # fn main() {}
/// ptx! {}
///
/// kernel! {
///     /// Adds up `parts`, the sums of the blocks, in the block that is done last.
///     pub unsafe fn total(cx: impl Simt, x: In<f32>, parts: InOut<f32>, done: InOut<u32>, sum: Out<f32>)
///     require { x.len() == parts.len() * 256, done.len() == 1, sum.len() == 1 }
///     grid(parts.len()) block(1)
///     {
///         let (block, blocks) = (cx.block_idx().x, cx.grid_dim().x);
///         let mut part = 0.0;
///         for i in 0..256 {
///             part += x.get(cx, block * 256 + i);
///         }
///         parts.set(cx, block, part);
///         // The release publishes `part`, and the acquire sees the parts of the blocks before.
///         if done.atomic(0).acq_rel().add(cx, 1) == blocks - 1 {
///             let mut all = 0.0;
///             for i in 0..blocks {
///                 all += parts.get(cx, i);
///             }
///             sum.set(cx, 0, all);
///         }
///     }
/// }
/// ```
///
/// A thread must not wait in a loop for a value that another thread stores. A GPU promises no order
/// in which blocks start, and the CPU device runs the threads of a block by turns, so the loop may
/// never end.
#[must_use = "this only names the element: call `add`, `load` or another operation"]
pub struct Atomic<T, O = Relaxed, S = Device> {
    at: Location<T>,
    mode: PhantomData<(O, S)>,
}

impl<T, O, S> Clone for Atomic<T, O, S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, O, S> Copy for Atomic<T, O, S> {}

impl<T, O: Order, S: Scope> fmt::Debug for Atomic<T, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Atomic");
        match self.at {
            Location::Device(p) => f.field("device", &p),
            Location::Shared(s, i) => f.field("shared", &(s.start, i)),
        };
        f.field("order", &O::ORDER).field("scope", &S::SCOPE).finish()
    }
}

impl<T: AtomicElement> Atomic<T> {
    /// Names an element of device memory.
    ///
    /// # Safety
    /// `p` is aligned and points to an element in an allocation of device memory, as long as this
    /// value is used.
    #[inline(always)]
    pub unsafe fn from_ptr(p: *mut T) -> Self {
        Self { at: Location::Device(p), mode: PhantomData }
    }
}

impl<T: AtomicElement> SharedMemory<T> {
    /// Names element `i` of the window, for atomic operations.
    ///
    /// # Safety
    /// `i` is inside the window. (The CPU device checks it at each operation.)
    #[inline(always)]
    pub unsafe fn atomic(self, i: u32) -> Atomic<T, Relaxed, Block> {
        Atomic { at: Location::Shared(self, i), mode: PhantomData }
    }
}

impl<T, O, S> Atomic<T, O, S> {
    #[inline(always)]
    fn in_mode<P, R>(self) -> Atomic<T, P, R> {
        Atomic { at: self.at, mode: PhantomData }
    }

    /// Lets the operation order nothing else.
    #[inline(always)]
    pub fn relaxed(self) -> Atomic<T, Relaxed, S> {
        self.in_mode()
    }
    /// Lets the accesses after the operation see what happened before the value was released.
    #[inline(always)]
    pub fn acquire(self) -> Atomic<T, Acquire, S> {
        self.in_mode()
    }
    /// Publishes the accesses before the operation to whom acquires the value.
    #[inline(always)]
    pub fn release(self) -> Atomic<T, Release, S> {
        self.in_mode()
    }
    /// Orders as [`acquire`](Self::acquire) and [`release`](Self::release) do together.
    #[inline(always)]
    pub fn acq_rel(self) -> Atomic<T, AcqRel, S> {
        self.in_mode()
    }
    /// Makes the operation atomic for the threads of the block only.
    #[inline(always)]
    pub fn block(self) -> Atomic<T, O, Block> {
        self.in_mode()
    }
    /// Makes the operation atomic for the threads of the device.
    #[inline(always)]
    pub fn device(self) -> Atomic<T, O, Device> {
        self.in_mode()
    }
    /// Makes the operation atomic for all devices and the host.
    #[inline(always)]
    pub fn system(self) -> Atomic<T, O, System> {
        self.in_mode()
    }
}

impl<T: AtomicElement, O: LoadOrder, S: Scope> Atomic<T, O, S> {
    /// Loads the element.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn load(self, cx: impl Atomics) -> T {
        // SAFETY: Whoever made this value promised that the element is in device memory, or inside
        // a window of the block's shared memory.
        T::of_bits(unsafe { cx.atomic_load::<T::Bits, O, S>(self.at.cast()) })
    }
}

impl<T: AtomicElement, O: StoreOrder, S: Scope> Atomic<T, O, S> {
    /// Stores the element.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn store(self, cx: impl Atomics, v: T) {
        // SAFETY: Whoever made this value promised that the element is in device memory, or inside
        // a window of the block's shared memory.
        unsafe { cx.atomic_store::<T::Bits, O, S>(self.at.cast(), v.bits()) };
    }
}

impl<T: AtomicElement, O: Order, S: Scope> Atomic<T, O, S> {
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn update(self, cx: impl Atomics, operation: Operation, v: T) -> T {
        // SAFETY: Whoever made this value promised that the element is in device memory, or inside
        // a window of the block's shared memory.
        T::of_bits(unsafe { cx.atomic_update::<T::Bits, O, S>(self.at.cast(), operation, v.bits()) })
    }

    /// Adds `v`. Returns the old value. Integers wrap around.
    ///
    /// The order of several additions is not determined, so a sum of floats differs from launch to
    /// launch. A GPU takes subnormal `f32` in device memory for zero here.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn add(self, cx: impl Atomics, v: T) -> T {
        self.update(cx, T::ADD, v)
    }
    /// Subtracts `v`. Returns the old value. Otherwise it is as [`add`](Self::add).
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn sub(self, cx: impl Atomics, v: T) -> T {
        self.update(cx, T::ADD, v.negated())
    }
    /// Replaces the element by the smaller of it and `v`. Returns the old value.
    ///
    /// Floats compare as by [`f32::total_cmp`]: -0 is below 0, and a NaN is above infinity, or
    /// below negative infinity if its sign is set.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn min(self, cx: impl Atomics, v: T) -> T {
        v.smaller(|operation| self.update(cx, operation, v))
    }
    /// Replaces the element by the larger of it and `v`. Returns the old value. Floats compare as
    /// in [`min`](Self::min).
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn max(self, cx: impl Atomics, v: T) -> T {
        v.larger(|operation| self.update(cx, operation, v))
    }
    /// Replaces the element by `v`. Returns the old value.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn exchange(self, cx: impl Atomics, v: T) -> T {
        self.update(cx, Operation::Exchange, v)
    }
    /// Replaces the element by `new` if its bits are those of `current`.
    ///
    /// # Errors
    /// It returns the old value: as `Ok` if it was `current`, and otherwise as `Err`.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn compare_exchange(self, cx: impl Atomics, current: T, new: T) -> Result<T, T> {
        let (current, new) = (current.bits(), new.bits());
        // SAFETY: Whoever made this value promised that the element is in device memory, or inside
        // a window of the block's shared memory.
        let old = unsafe { cx.atomic_compare_exchange::<T::Bits, O, S>(self.at.cast(), current, new) };
        if old == current { Ok(T::of_bits(old)) } else { Err(T::of_bits(old)) }
    }
}

impl<T: AtomicInteger, O: Order, S: Scope> Atomic<T, O, S> {
    /// Replaces the element by its bitwise AND with `v`. Returns the old value.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn and(self, cx: impl Atomics, v: T) -> T {
        self.update(cx, Operation::And, v)
    }
    /// Replaces the element by its bitwise OR with `v`. Returns the old value.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn or(self, cx: impl Atomics, v: T) -> T {
        self.update(cx, Operation::Or, v)
    }
    /// Replaces the element by its bitwise XOR with `v`. Returns the old value.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn xor(self, cx: impl Atomics, v: T) -> T {
        self.update(cx, Operation::Xor, v)
    }
}
