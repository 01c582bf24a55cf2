//! The witness of one thread.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;

use crate::{Dim3, Simt};

/// A name for one launch. It is invariant, so nothing of one launch passes for something of
/// another, and it is neither `Send` nor `Sync`, so what carries it stays with its thread.
pub(super) type Brand<'k> = PhantomData<(fn(&'k ()) -> &'k (), *const ())>;

/// The witness of one thread of a launch. It exists only in a thread step or in a body over `Simt`,
/// behind a reference that does not outlive it. Nobody can make, copy or keep one.
///
/// It dereferences to its context, whose safe methods it has: positions and arithmetic, such as
/// `t.global_x()` and `t.fma(a, b, c)`. A function that takes `cx: impl Simt` takes `**t`.
pub struct Thread<'k, C> {
    cx: C,
    brand: Brand<'k>,
}

impl<C: Simt> Thread<'_, C> {
    /// Makes the witness of the calling thread.
    ///
    /// # Safety
    /// `cx` is the context of a thread of the launch that `'k` names. The witness goes to code of
    /// that thread only, by reference.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn new(cx: C) -> Self {
        Self { cx, brand: PhantomData }
    }

    /// Returns this thread's index in the block, where `x` varies fastest.
    #[must_use]
    #[inline(always)]
    pub fn rank(&self) -> u32 {
        rank(self.cx)
    }

    /// Returns the number of threads in a block.
    #[must_use]
    #[inline(always)]
    pub fn threads(&self) -> u32 {
        threads(self.cx)
    }
}

impl<C: Simt> Deref for Thread<'_, C> {
    type Target = C;

    #[inline(always)]
    fn deref(&self) -> &C {
        &self.cx
    }
}

impl<C: Simt> fmt::Debug for Thread<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread")
            .field("block", &self.cx.block_idx())
            .field("thread", &self.cx.thread_idx())
            .finish_non_exhaustive()
    }
}

/// The index of a thread in its block.
#[inline(always)]
pub(super) fn rank(cx: impl Simt) -> u32 {
    let (Dim3 { x, y, z }, dim) = (cx.thread_idx(), cx.block_dim());
    (z * dim.y + y) * dim.x + x
}

/// The number of threads in a block.
#[inline(always)]
pub(super) fn threads(cx: impl Simt) -> u32 {
    let Dim3 { x, y, z } = cx.block_dim();
    x * y * z
}

mod sealed {
    pub trait Sealed {}
}
pub(super) use sealed::Sealed;

/// A reader that may read what the launch does not write: a [`Thread`], or the
/// [`Block`](super::Block), whose threads all read the same.
pub trait Witness<'k>: Sealed {
    #[doc(hidden)]
    type Cx: Simt;
    /// Returns the context of a thread.
    ///
    /// # Safety Code of the block does not learn from it in what its threads differ, such as their
    /// positions.
    #[doc(hidden)]
    unsafe fn context(&self) -> Self::Cx;
}

impl<C: Simt> Sealed for Thread<'_, C> {}
impl<'k, C: Simt> Witness<'k> for Thread<'k, C> {
    type Cx = C;
    #[inline(always)]
    unsafe fn context(&self) -> C {
        self.cx
    }
}
