//! The phases of shared memory. A window is in one phase at a time, for all threads of the block at
//! once: the code of the block moves the handle by value, and a barrier turns it.

use core::fmt;
use core::marker::PhantomData;

use super::report;
use super::team::Member;
use super::thread::{Brand, Thread};
use crate::{Element, SharedMemory};

/// A part of the block's shared memory.
pub(super) struct Window<'k, T> {
    start: SharedMemory<T>,
    len: u32,
    brand: Brand<'k>,
}

impl<T: Element> Window<'_, T> {
    /// # Safety
    /// `start` has `len` elements, of the shared memory of the block of the launch that `'k` names,
    /// and no other window has them.
    #[inline(always)]
    pub(super) unsafe fn new(start: SharedMemory<T>, len: u32) -> Self {
        Self { start, len, brand: PhantomData }
    }
    #[inline(always)]
    pub(super) fn start(&self) -> SharedMemory<T> {
        self.start
    }
    #[inline(always)]
    pub(super) fn len(&self) -> u32 {
        self.len
    }
    #[inline(always)]
    #[track_caller]
    fn check(&self, i: u32) {
        if i >= self.len {
            report::outside_shared(i, self.len);
        }
    }
}

macro_rules! phases {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[must_use = "without its handle, the window is lost to the block"]
        pub struct $name<'k, T>(pub(super) Window<'k, T>);

        impl<T> $name<'_, T> {
            /// Returns the number of elements.
            #[must_use]
            #[inline(always)]
            pub fn len(&self) -> u32 {
                self.0.len
            }
            /// Returns whether the window has no elements.
            #[must_use]
            #[inline(always)]
            pub fn is_empty(&self) -> bool {
                self.0.len == 0
            }
        }
        impl<T> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("len", &self.0.len).finish_non_exhaustive()
            }
        }
    )*};
}
phases! {
    /// Shared memory without contents. Only [`Block::fill`](super::Block::fill) and
    /// [`Block::publish`](super::Block::publish) take it.
    Fresh
    /// Shared memory that was given values since the last barrier. Only
    /// [`Block::sync`](super::Block::sync) takes it.
    Filled
    /// Shared memory that everyone reads anywhere and nobody writes.
    Reading
    /// Shared memory of which a thread reads and writes the elements congruent to its index in the
    /// block, modulo the number of threads. Nobody else accesses them.
    Writing
    /// Shared memory to which everyone adds anywhere. What an addition returns is seen in thread
    /// steps only.
    Adding
}

impl<'k, T: Element> Reading<'k, T> {
    /// Loads an element. One outside the window is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn get<C: Member>(&self, t: &Thread<'k, C>, i: u32) -> T {
        self.0.check(i);
        // SAFETY: The check says that the element is inside the window. Every element was given a
        // value, and since the barrier that made this handle nobody writes the window.
        unsafe { Member::__get(**t, self.0.start, i) }
    }
}

impl<'k, T: Element> Reading<'k, T> {
    /// Loads the 32-bit words at `at` plus each of the offsets. If the last one would be outside
    /// the window, `at` is lowered until it is inside: without a branch, and without a value for a
    /// missing word. The elements have a multiple of 4 bytes. A window with fewer words than the
    /// offsets need is reported.
    #[must_use]
    #[inline(always)]
    #[track_caller]
    pub fn nearest_words<C: Member, const N: usize>(&self, t: &Thread<'k, C>, at: u32, offsets: [u32; N]) -> [u32; N] {
        const { assert!(size_of::<T>() > 0 && size_of::<T>().is_multiple_of(4), "the elements are not words") };
        let all = self.0.len * (size_of::<T>() / 4) as u32;
        let most = offsets.into_iter().fold(0, u32::max);
        let Some(last) = all.checked_sub(1).and_then(|last| last.checked_sub(most)) else {
            report::outside_shared(most, all);
        };
        let (at, words) = (at.min(last), self.0.start.words());
        // SAFETY: `at + most` is below the number of words of the window, so each of the words is
        // inside. Windows of such elements start at a multiple of 4 bytes. Every element was given
        // a value, and since the barrier that made this handle nobody writes the window.
        offsets.map(|offset| unsafe { Member::__get(**t, words, at + offset) })
    }
}

impl<'k, T: Element> Writing<'k, T> {
    /// The index of the thread's own element number `turn`, if it is inside the window.
    #[inline(always)]
    fn own<C: Member>(&self, t: &Thread<'k, C>, turn: u32) -> Option<u32> {
        turn.checked_mul(t.threads())?.checked_add(t.rank()).filter(|i| *i < self.0.len)
    }

    /// Loads the thread's own element number `turn`: the one at `turn * threads + rank`.
    #[must_use]
    #[inline(always)]
    pub fn get<C: Member>(&self, t: &Thread<'k, C>, turn: u32) -> Option<T> {
        // SAFETY: `own` checked that the element is inside the window, and it is this thread's.
        // Every element was given a value.
        self.own(t, turn).map(|i| unsafe { Member::__get(**t, self.0.start, i) })
    }

    /// Stores the thread's own element number `turn`, and returns whether there is one.
    #[inline(always)]
    pub fn set<C: Member>(&self, t: &Thread<'k, C>, turn: u32, v: T) -> bool {
        let own = self.own(t, turn);
        if let Some(i) = own {
            // SAFETY: `own` checked that the element is inside the window, and it is this thread's.
            unsafe { Member::__set(**t, self.0.start, i, v) };
        }
        own.is_some()
    }
}

impl<'k> Adding<'k, u32> {
    /// Adds `v` to an element, atomically and modulo 2^32, and returns the old value. An element
    /// outside the window is reported.
    #[inline(always)]
    #[track_caller]
    pub fn add<C: Member>(&self, t: &Thread<'k, C>, i: u32, v: u32) -> u32 {
        self.0.check(i);
        // SAFETY: The check says that the element is inside the window. Every element was given a
        // value, and since the barrier that made this handle the window is only added to.
        unsafe { Member::__add(**t, self.0.start, i, v) }
    }
}

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// A window that a barrier turns into its next phase.
#[diagnostic::on_unimplemented(
    message = "a barrier does not turn `{Self}`",
    label = "`sync` takes what `.read()`, `.write()`, `.add()` and `.renew()` return",
    note = "say what a window becomes, as in `b.sync(filled.read())`. Several windows turn together: \
            `b.sync((a.read(), b.renew()))`. `b.sync(())` only waits"
)]
pub trait Turn: Sealed {
    /// The next phase.
    type Then;
    #[doc(hidden)]
    fn then(self) -> Self::Then;
}

macro_rules! turns {
    ($($(#[$doc:meta])* $to:ident by $method:ident as $pending:ident from $($from:ident)*;)*) => {$(
        #[doc = concat!("A window that the next barrier turns into [`", stringify!($to), "`].")]
        #[must_use = "the barrier turns it: pass it to `sync`"]
        pub struct $pending<'k, T>(Window<'k, T>);

        impl<T> fmt::Debug for $pending<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($pending)).field("len", &self.0.len).finish_non_exhaustive()
            }
        }
        $(
            impl<'k, T> $from<'k, T> {
                #[doc = concat!("Makes the next barrier turn the window into [`", stringify!($to), "`].")]
                #[inline(always)]
                pub fn $method(self) -> $pending<'k, T> {
                    $pending(self.0)
                }
            }
        )*
        impl<T> Sealed for $pending<'_, T> {}
        impl<'k, T> Turn for $pending<'k, T> {
            type Then = $to<'k, T>;
            #[inline(always)]
            fn then(self) -> $to<'k, T> {
                $to(self.0)
            }
        }
    )*};
}
turns! {
    Reading by read as ToReading from Filled Writing Adding;
    Writing by write as ToWriting from Filled Reading Adding;
    Adding by add as ToAdding from Filled Reading Writing;
    Fresh by renew as ToFresh from Reading Writing Adding;
}

impl Sealed for () {}
impl Turn for () {
    type Then = ();
    #[inline(always)]
    fn then(self) {}
}

macro_rules! tuples {
    ($(($($a:ident $i:tt),*))*) => {$(
        impl<$($a: Turn),*> Sealed for ($($a,)*) {}
        impl<$($a: Turn),*> Turn for ($($a,)*) {
            type Then = ($($a::Then,)*);
            #[inline(always)]
            fn then(self) -> Self::Then {
                ($(self.$i.then(),)*)
            }
        }
    )*};
}
tuples! { (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4) }
