//! Buffers, as bodies without `unsafe` see them.

use core::fmt;
use core::marker::PhantomData;

use super::owner::Owner;
use super::report;
use super::thread::{Brand, Thread, Witness};
use crate::{AtomicElement, Element, Simt};

/// Returns the offset of the element `at`, or nothing if a coordinate is not below its extent. The
/// launcher checked that the product of the extents is the buffer's length and below 2^32, so the
/// offset is inside the buffer and the computation does not wrap.
#[inline(always)]
fn offset<const D: usize>(at: [u32; D], extents: [u32; D]) -> Option<usize> {
    let mut i = 0;
    for d in 0..D {
        if at[d] >= extents[d] {
            return None;
        }
        i = i * extents[d] + at[d];
    }
    Some(i as usize)
}

macro_rules! view {
    ($(#[$doc:meta])* $name:ident<$($p:ident),*; $(const $c:ident: $ct:ty),*>) => {
        $(#[$doc])*
        pub struct $name<'k, T, const D: usize $(, $p)* $(, const $c: $ct)*> {
            start: *mut T,
            extents: [u32; D],
            brand: Brand<'k>,
            marks: PhantomData<($($p,)*)>,
        }

        impl<T, const D: usize $(, $p)* $(, const $c: $ct)*> Clone for $name<'_, T, D $(, $p)* $(, $c)*> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T, const D: usize $(, $p)* $(, const $c: $ct)*> Copy for $name<'_, T, D $(, $p)* $(, $c)*> {}

        impl<T, const D: usize $(, $p)* $(, const $c: $ct)*> fmt::Debug for $name<'_, T, D $(, $p)* $(, $c)*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("extents", &self.extents).finish_non_exhaustive()
            }
        }

        impl<T, const D: usize $(, $p)* $(, const $c: $ct)*> $name<'_, T, D $(, $p)* $(, $c)*> {
            /// Makes the view of a parameter.
            ///
            /// # Safety
            /// `start` is the address of a device buffer that the launch of `'k` passed for this
            /// parameter. The product of `extents` is its length and below 2^32. The launch passed
            /// no other parameter that overlaps it, unless both are `In`.
            #[doc(hidden)]
            #[inline(always)]
            pub unsafe fn new(start: *mut T, extents: [u32; D]) -> Self {
                Self { start, extents, brand: PhantomData, marks: PhantomData }
            }

            /// Returns the extent of dimension `d`.
            #[must_use]
            #[inline(always)]
            pub fn extent(self, d: usize) -> u32 {
                self.extents[d]
            }
        }
    };
}

view! {
    /// A buffer that no thread of the launch writes. Everyone may read it anywhere.
    In<;>
}

impl<'k, T: Element, const D: usize> In<'k, T, D> {
    /// Loads an element. One outside the extents is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn get(self, t: &impl Witness<'k>, at: [u32; D]) -> T {
        match self.try_get(t, at) {
            Some(v) => v,
            None => report::outside("read", at, self.extents),
        }
    }

    /// Loads an element, if it is inside the extents.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn try_get(self, t: &impl Witness<'k>, at: [u32; D]) -> Option<T> {
        let i = offset(at, self.extents)?;
        // SAFETY: `offset` checked the coordinates against the extents, and the caller of `new`
        // promised that the buffer is as long as their product. So the element is in device memory.
        // It is aligned because every `DeviceSlice` is.
        Some(unsafe { t.context().load(self.start.add(i)) })
    }

    /// Loads the element at `at + by`, or the nearest one if that is outside the extents. If the
    /// buffer has no elements, this is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn clamped(self, t: &impl Witness<'k>, at: [u32; D], by: [i32; D]) -> T {
        let mut near = at;
        for d in 0..D {
            // If the extent is 0, `get` reports the element, whatever it is.
            near[d] = at[d].saturating_add_signed(by[d]).min(self.extents[d].wrapping_sub(1));
        }
        self.get(t, near)
    }
}

view! {
    /// An output. [`Out`] and [`InOut`] are its names. Each element has one owner, and `READ` says
    /// whether the owner may read it.
    Own<O; const READ: bool>
}

/// A buffer that the kernel writes and does not read. Only the owner of an element writes it.
pub type Out<'k, T, const D: usize, O> = Own<'k, T, D, O, false>;
/// A buffer that the kernel reads and writes. Only the owner of an element reads and writes it.
pub type InOut<'k, T, const D: usize, O> = Own<'k, T, D, O, true>;

impl<'k, T: Element, const D: usize, O: Owner<D>, const READ: bool> Own<'k, T, D, O, READ> {
    /// Returns the elements that the thread owns, in order.
    #[inline(always)]
    pub fn mine<'t, C: Simt>(
        self,
        t: &'t Thread<'k, C>,
    ) -> impl Iterator<Item = Cell<'t, C, T, D, READ>> + use<'t, 'k, C, T, D, O, READ>
    where
        'k: 't,
    {
        let cx = **t;
        let mut next = [0; D];
        let mut more = O::first(cx, &mut next, self.extents);
        core::iter::from_fn(move || {
            if !more {
                return None;
            }
            let at = next;
            more = O::next(cx, &mut next, self.extents);
            // SAFETY: `at` comes from the owner, for this thread.
            Some(unsafe { self.owned(cx, at) })
        })
    }

    /// Returns the first element that the thread owns. If `by` gives each thread at most one, it is
    /// the only one.
    #[must_use]
    #[inline(always)]
    pub fn cell<'t, C: Simt>(self, t: &'t Thread<'k, C>) -> Option<Cell<'t, C, T, D, READ>>
    where
        'k: 't,
    {
        let mut at = [0; D];
        if !O::first(**t, &mut at, self.extents) {
            return None;
        }
        // SAFETY: `at` comes from the owner, for this thread.
        Some(unsafe { self.owned(**t, at) })
    }

    /// Stores an element that the thread owns. One outside the extents or of another thread is
    /// reported. [`mine`](Self::mine) and [`cell`](Self::cell) need no such checks.
    #[inline(always)]
    #[track_caller]
    pub fn set<C: Simt>(self, t: &Thread<'k, C>, at: [u32; D], v: T) {
        let Some(i) = offset(at, self.extents) else { report::outside("wrote", at, self.extents) };
        if !O::owns(**t, at) {
            report::not_owned(at);
        }
        // SAFETY: `offset` checked the coordinates against the extents, and the caller of `new`
        // promised that the buffer is as long as their product. No other thread accesses the
        // element, because this one owns it. It is aligned because every `DeviceSlice` is.
        unsafe { t.store(self.start.add(i), v) };
    }

    /// Makes the cell of an element.
    ///
    /// # Safety
    /// `first` or `next` of the owner gave `at` for this thread and these extents.
    #[inline(always)]
    unsafe fn owned<'t, C: Simt>(self, cx: C, at: [u32; D]) -> Cell<'t, C, T, D, READ> {
        let i = at.into_iter().zip(self.extents).fold(0, |i, (at, extent)| i * extent + at);
        // SAFETY: What an owner gives is below the extents. The caller of `new` promised that the
        // buffer is as long as their product, which is below 2^32, so `i` is inside the buffer.
        Cell { cx, at, element: unsafe { self.start.add(i as usize) }, thread: PhantomData }
    }
}

/// An element that its thread owns. Neither its bounds nor its owner are checked again.
pub struct Cell<'t, C, T, const D: usize, const READ: bool> {
    cx: C,
    at: [u32; D],
    element: *mut T,
    thread: PhantomData<&'t ()>,
}

impl<C, T, const D: usize, const READ: bool> fmt::Debug for Cell<'_, C, T, D, READ> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell").field("at", &self.at).finish_non_exhaustive()
    }
}

impl<C: Simt, T: Element, const D: usize, const READ: bool> Cell<'_, C, T, D, READ> {
    /// Returns the coordinates of the element.
    #[must_use]
    #[inline(always)]
    pub fn at(&self) -> [u32; D] {
        self.at
    }

    /// Stores the element.
    #[inline(always)]
    #[track_caller]
    pub fn set(&self, v: T) {
        // SAFETY: `owned` made the address, of an element in device memory. No other thread accesses
        // it, because this one owns it. It is aligned because every `DeviceSlice` is.
        unsafe { self.cx.store(self.element, v) };
    }
}

impl<C: Simt, T: Element, const D: usize> Cell<'_, C, T, D, true> {
    /// Loads the element.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn get(&self) -> T {
        // SAFETY: `owned` made the address, of an element in device memory. No other thread accesses
        // it, because this one owns it. It is aligned because every `DeviceSlice` is.
        unsafe { self.cx.load(self.element) }
    }
}

view! {
    /// A buffer that the launch accesses by atomic operations only. What they return differs
    /// between threads, so they take a thread's witness.
    Atomic<;>
}

macro_rules! atomics {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl<'k, T: AtomicElement, const D: usize> Atomic<'k, T, D> {$(
            $(#[$doc])*
            ///
            /// It returns the old value. An element outside the extents is reported.
            #[inline(always)]
            #[track_caller]
            pub fn $name<C: Simt>(self, t: &Thread<'k, C>, at: [u32; D], v: T) -> T {
                let Some(i) = offset(at, self.extents) else { report::outside("updated", at, self.extents) };
                // SAFETY: `offset` checked the coordinates against the extents, and the caller of
                // `new` promised that the buffer is as long as their product. So the element is in
                // device memory, and the launch accesses it by atomic operations only.
                unsafe { crate::Atomic::from_ptr(self.start.add(i)) }.$name(**t, v)
            }
        )*}
    };
}
atomics! {
    /// Adds `v` to an element. Integers wrap around.
    add;
    /// Replaces an element by the larger of it and `v`, as [`Atomic::max`](crate::Atomic::max) does.
    max;
    /// Replaces an element by the smaller of it and `v`, as [`Atomic::min`](crate::Atomic::min) does.
    min;
}
