//! Buffers, as bodies without `unsafe` see them.

use core::fmt;
use core::marker::PhantomData;

use super::item::Item;
use super::owner::Owner;
use super::report;
use super::thread::{Brand, Thread, Witness};
use crate::memory::{LoadHint, StoreHint};
use crate::{AtomicElement, Simt};

/// Returns the offset of the element `at`, or nothing if a coordinate is not below its extent. The
/// launcher checked that the product of the extents is the buffer's length and below 2^32, so the
/// offset is inside the buffer. It only wraps where a later extent is 0, and then there is no
/// element.
#[inline(always)]
fn offset<const D: usize>(at: [u32; D], extents: [u32; D]) -> Option<usize> {
    let mut i = 0u32;
    for d in 0..D {
        if at[d] >= extents[d] {
            return None;
        }
        i = i.wrapping_mul(extents[d]).wrapping_add(at[d]);
    }
    Some(i as usize)
}

macro_rules! view {
    ($(#[$doc:meta])* $name:ident<$($p:ident),*; $(const $c:ident: $ct:ty),*>) => {
        $(#[$doc])*
        pub struct $name<'k, T, const D: usize $(, $p)* $(, const $c: $ct)*> {
            pub(super) start: *mut T,
            pub(super) extents: [u32; D],
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
            /// parameter, a multiple of [`Item::ALIGN`]. The buffer holds as many elements `T` as
            /// the product of `extents` says, fewer than 2^32. The launch passed no other parameter
            /// that overlaps it, unless both are `In`.
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

impl<'k, T: Item, const D: usize> In<'k, T, D> {
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
        // promised that the buffer is as long as their product, and where it starts. So the element
        // is in device memory, and aligned. All threads load the same from it.
        Some(unsafe { T::get(t.context(), self.start.add(i)) })
    }

    /// Loads an element as [`get`](Self::get) does, on a GPU through the caches as `hint` says.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn load<H: LoadHint>(self, t: &impl Witness<'k>, at: [u32; D], _hint: H) -> T {
        let Some(i) = offset(at, self.extents) else { report::outside("read", at, self.extents) };
        // SAFETY: As in `try_get`. No thread of the launch writes the buffer, which is what
        // `ReadOnly` requires.
        let [v] = unsafe { T::load::<1, H>(t.context(), self.start.add(i)) };
        v
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

impl<'k, T: Item> In<'k, T, 1> {
    /// Loads the element `at`, or the last one if that is outside the buffer: without a branch, and
    /// without a value for a missing element. If the buffer has no elements, this is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn nearest(self, t: &impl Witness<'k>, at: u32) -> T {
        let Some(last) = self.extents[0].checked_sub(1) else { report::outside("read", [at], self.extents) };
        // SAFETY: `last` is below the extent, so the element is, and the caller of `new` promised
        // that the buffer is as long as it says, and where it starts. So the element is in device
        // memory, and aligned. All threads load the same from it.
        unsafe { T::get(t.context(), self.start.add(at.min(last) as usize)) }
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

impl<'k, T: Item, const D: usize, O: Owner<D>, const READ: bool> Own<'k, T, D, O, READ> {
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

    /// Calls `f` with each element that the thread owns, in order, as a loop over
    /// [`mine`](Self::mine) does. The loops over chunks, such as those of `x(4)`, have constant
    /// numbers of turns, so the compiler unrolls them.
    #[inline(always)]
    pub fn for_each<'t, C: Simt>(self, t: &'t Thread<'k, C>, mut f: impl FnMut(Cell<'t, C, T, D, READ>))
    where
        'k: 't,
    {
        // SAFETY: `at` comes from the owner, for this thread.
        O::each(**t, self.extents, |at| f(unsafe { self.owned(**t, at) }));
    }

    /// Calls `f` with each column of the thread, in order: elements that differ only in dimensions
    /// that belong to `all` are one column. The loops are those of [`for_each`](Self::for_each).
    ///
    /// ```
    /// use thalweg_simt::{hint, kernel, ptx};
    ///
    /// # fn main() {}
    /// ptx! {}
    ///
    /// kernel! {
    ///     /// Takes an image apart: four columns of each plane are one store. Rows have a multiple of four.
    ///     pub fn planes(
    ///         t: impl Simt, height: u32, width: u32, rgb: In<[[u8; 3]; 4]>[height, quads = width / 4],
    ///         planes: Out<[f32; 4]>[3, height, quads] by [all, y, x],
    ///     )
    ///     require { width % 4 == 0 }
    ///     grid(quads.div_ceil(64), height) block(64)
    ///     {
    ///         planes.for_each_column(t, |column| {
    ///             let [_, y, x] = column.at();
    ///             let pixels = rgb.get(t, [y, x]);
    ///             for c in 0..3 {
    ///                 let values = pixels.map(|pixel| f32::from(pixel[c as usize]));
    ///                 column.cell::<0>(c).store(values, hint::Streaming);
    ///             }
    ///         });
    ///     }
    /// }
    /// ```
    #[inline(always)]
    pub fn for_each_column<'t, C: Simt>(self, t: &'t Thread<'k, C>, mut f: impl FnMut(Column<'t, 'k, C, T, D, O, READ>))
    where
        'k: 't,
    {
        let cx = **t;
        O::each(cx, self.flat(), |at| f(Column { cx, at, of: self, thread: PhantomData }));
    }

    /// Returns the thread's first column (see [`for_each_column`](Self::for_each_column)).
    #[must_use]
    #[inline(always)]
    pub fn column<'t, C: Simt>(self, t: &'t Thread<'k, C>) -> Option<Column<'t, 'k, C, T, D, O, READ>>
    where
        'k: 't,
    {
        let (cx, mut at) = (**t, [0; D]);
        O::first(cx, &mut at, self.flat()).then_some(Column { cx, at, of: self, thread: PhantomData })
    }

    /// Returns the extents with one position in each dimension of `all`, by which the owner gives
    /// each column once, at its first element.
    #[inline(always)]
    fn flat(self) -> [u32; D] {
        const { assert!(O::ALL != 0, "an output without a dimension that belongs to `all` has no columns") };
        let mut flat = self.extents;
        for d in 0..D {
            if O::ALL >> d & 1 == 1 {
                flat[d] = flat[d].min(1);
            }
        }
        flat
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
        // promised that the buffer is as long as their product, and where it starts. So the element
        // is in device memory, and aligned. No other thread accesses it, because this one owns it.
        unsafe { T::set(**t, self.start.add(i), v) };
    }

    /// Makes the cell of an element.
    ///
    /// # Safety
    /// `first`, `next` or `each` of the owner gave `at` for this thread and these extents, up to
    /// positions of `all`, each of which is below its extent.
    #[inline(always)]
    unsafe fn owned<'t, C: Simt>(self, cx: C, at: [u32; D]) -> Cell<'t, C, T, D, READ> {
        let i = at.into_iter().zip(self.extents).fold(0, |i, (at, extent)| i * extent + at);
        // SAFETY: What an owner gives is below the extents. The caller of `new` promised that the
        // buffer is as long as their product, which is below 2^32, so `i` is inside the buffer.
        Cell { cx, at, element: unsafe { self.start.add(i as usize) }, thread: PhantomData }
    }
}

/// Elements that a thread owns and that differ only in dimensions that belong to `all`.
pub struct Column<'t, 'k, C, T, const D: usize, O, const READ: bool> {
    cx: C,
    /// An element that the thread owns.
    at: [u32; D],
    of: Own<'k, T, D, O, READ>,
    thread: PhantomData<&'t ()>,
}

impl<C, T, const D: usize, O, const READ: bool> fmt::Debug for Column<'_, '_, C, T, D, O, READ> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Column").field("at", &self.at).finish_non_exhaustive()
    }
}

impl<'t, C: Simt, T: Item, const D: usize, O: Owner<D>, const READ: bool> Column<'t, '_, C, T, D, O, READ> {
    /// Returns the coordinates of the column's first element: they are 0 in dimensions that belong
    /// to `all`.
    #[must_use]
    #[inline(always)]
    pub fn at(&self) -> [u32; D] {
        self.at
    }

    /// Returns the element at `i` of dimension `A`, which belongs to `all`. One outside the extent
    /// is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn cell<const A: usize>(&self, i: u32) -> Cell<'t, C, T, D, READ> {
        const { assert!(A < D && O::ALL >> A & 1 == 1, "this dimension does not belong to `all`") };
        let mut at = self.at;
        at[A] = i;
        if i >= self.of.extents[A] {
            report::outside("took", at, self.of.extents);
        }
        // SAFETY: The owner gave `at` for this thread, which owns every position of dimension `A`.
        // The check says that `i` is one of them.
        unsafe { self.of.owned(self.cx, at) }
    }

    /// Returns the `N` elements from `first` on along dimension `A`, which belongs to `all`: one
    /// check for all of them. If one is outside the extent, this is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn cells<const A: usize, const N: usize>(&self, first: u32) -> [Cell<'t, C, T, D, READ>; N] {
        const { assert!(N > 0, "no elements at once") };
        const { assert!(A < D && O::ALL >> A & 1 == 1, "this dimension does not belong to `all`") };
        let mut at = self.at;
        at[A] = first;
        let extent = self.of.extents[A];
        if (extent as usize) < N || first > extent - N as u32 {
            report::outside("took", at, self.of.extents);
        }
        // From one to the next: found once, for the compiler does not find it.
        let stride: u32 = self.of.extents[A + 1..].iter().product();
        // SAFETY: The owner gave `at` for this thread, which owns every position of dimension
        // `A`. The check says that `first` is one of them.
        let Cell { element, .. } = unsafe { self.of.owned(self.cx, at) };
        core::array::from_fn(|i| {
            let mut at = at;
            at[A] += i as u32;
            // SAFETY: The check says that `first + i` is a position of dimension `A`. So the
            // element is inside the buffer, `i` strides behind the first one.
            let element = unsafe { element.add(i * stride as usize) };
            Cell { cx: self.cx, at, element, thread: PhantomData }
        })
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

impl<C: Simt, T: Item, const D: usize, const READ: bool> Cell<'_, C, T, D, READ> {
    /// Returns the coordinates of the element, in the order in which the declaration lists the
    /// extents: the last one varies fastest in memory.
    #[must_use]
    #[inline(always)]
    pub fn at(&self) -> [u32; D] {
        self.at
    }

    /// Stores the element.
    #[inline(always)]
    #[track_caller]
    pub fn set(&self, v: T) {
        // SAFETY: `owned` made the address, of an aligned element in device memory. No other thread
        // accesses it, because this one owns it.
        unsafe { T::set(self.cx, self.element, v) };
    }

    /// Stores the element, on a GPU through the caches as `hint` says.
    #[inline(always)]
    #[track_caller]
    pub fn store<H: StoreHint>(&self, v: T, _hint: H) {
        // SAFETY: As in `set`.
        unsafe { T::store::<1, H>(self.cx, self.element, [v]) };
    }
}

impl<C: Simt, T: Item, const D: usize> Cell<'_, C, T, D, true> {
    /// Loads the element.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn get(&self) -> T {
        // SAFETY: `owned` made the address, of an aligned element in device memory. No other thread
        // accesses it, because this one owns it.
        unsafe { T::get(self.cx, self.element) }
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
    /// Replaces an element by the larger of it and `v`, as [`Atomic::max`](crate::Atomic::max)
    /// does.
    max;
    /// Replaces an element by the smaller of it and `v`, as [`Atomic::min`](crate::Atomic::min)
    /// does.
    min;
}
