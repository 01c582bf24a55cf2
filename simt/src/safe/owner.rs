//! The owners of the elements of an output.
//!
//! An output has an axis for each of its dimensions. An axis **names** coordinates of the launch:
//! the block's position or the thread's position in its block, each along x, y or z. Writes are
//! disjoint because of two facts:
//!
//! 1. Two threads that differ in a coordinate that an axis names own disjoint sets along the
//!    dimension of this axis, whatever its extent.
//! 2. A thread owns something only if all coordinates that no axis names are 0. So two threads that
//!    own something differ in a named coordinate.
//!
//! Fact 1 is a property of each axis alone, and fact 2 of [`By`]. Nothing else must be right.

use core::fmt::Debug;
use core::marker::PhantomData;

use super::thread::{rank, threads};
use crate::{Dim3, Simt};

/// The coordinates of the launch, as bits: those of the block in the grid, then those of the thread
/// in its block.
const BLOCK: u8 = 1;
const THREAD: u8 = 1 << 3;
const RANK: u8 = THREAD | THREAD << 1 | THREAD << 2;

/// The part of one dimension that a thread owns.
pub trait Axis: Debug + 'static {
    /// The coordinates that the axis names.
    const NAMED: u8;
    /// Whether a thread that owns anything owns each position.
    const ALL: bool = false;
    /// Returns the first position that the thread owns, if there is one below `extent`.
    fn first(cx: impl Simt, extent: u32) -> Option<u32>;
    /// Returns the next position that the thread owns, after its position `at`.
    fn next(cx: impl Simt, at: u32, extent: u32) -> Option<u32>;
    /// Calls `f` with each position that the thread owns, in order.
    #[inline(always)]
    fn each(cx: impl Simt, extent: u32, mut f: impl FnMut(u32)) {
        let mut next = Self::first(cx, extent);
        while let Some(at) = next {
            f(at);
            next = Self::next(cx, at, extent);
        }
    }
    /// Returns whether the thread owns the position `at`.
    fn owns(cx: impl Simt, at: u32) -> bool;
}

#[inline(always)]
fn along<const A: u8>(Dim3 { x, y, z }: Dim3) -> u32 {
    match A {
        0 => x,
        1 => y,
        _ => z,
    }
}

/// The position of the thread in the whole grid. It is below 2^32: the launcher checks that.
#[inline(always)]
fn global<const A: u8>(cx: impl Simt) -> u32 {
    along::<A>(cx.block_idx()) * along::<A>(cx.block_dim()) + along::<A>(cx.thread_idx())
}

/// `x`, `y(4)`: the thread at position `p` of the grid along the axis owns positions `p * K` to
/// `p * K + K - 1`.
#[derive(Debug)]
pub enum Global<const A: u8, const K: u32> {}

impl<const A: u8, const K: u32> Axis for Global<A, K> {
    const NAMED: u8 = {
        assert!(K > 0, "a thread owns at least one position: write `x(1)` or more");
        (BLOCK | THREAD) << A
    };
    #[inline(always)]
    fn first(cx: impl Simt, extent: u32) -> Option<u32> {
        global::<A>(cx).checked_mul(K).filter(|at| *at < extent)
    }
    #[inline(always)]
    fn next(_: impl Simt, at: u32, extent: u32) -> Option<u32> {
        let next = at + 1; // at most `extent`
        (K > 1 && !next.is_multiple_of(K) && next < extent).then_some(next)
    }
    /// The number of turns is a constant, so that the loop can be unrolled.
    #[inline(always)]
    fn each(cx: impl Simt, extent: u32, mut f: impl FnMut(u32)) {
        let Some(first) = Self::first(cx, extent) else { return };
        f(first);
        for turn in 1..K {
            if turn < extent - first {
                f(first + turn);
            }
        }
    }
    #[inline(always)]
    fn owns(cx: impl Simt, at: u32) -> bool {
        at / K == global::<A>(cx)
    }
}

/// `xz`, `xz(4)`: the grid counts along x, where it may have 2^31 blocks, and a block along z. The
/// thread at position `p` owns positions `p * K` to `p * K + K - 1`, as with [`Global`].
#[derive(Debug)]
pub enum Across<const K: u32> {}

/// The position of the thread among those of the blocks along x that differ in z. Two threads that
/// differ in either coordinate have another one. One of 2^32 or more owns nothing.
#[inline(always)]
fn across(cx: impl Simt) -> Option<u32> {
    cx.block_idx().x.checked_mul(cx.block_dim().z)?.checked_add(cx.thread_idx().z)
}

impl<const K: u32> Axis for Across<K> {
    const NAMED: u8 = {
        assert!(K > 0, "a thread owns at least one position: write `xz(1)` or more");
        BLOCK | THREAD << 2
    };
    #[inline(always)]
    fn first(cx: impl Simt, extent: u32) -> Option<u32> {
        across(cx)?.checked_mul(K).filter(|at| *at < extent)
    }
    #[inline(always)]
    fn next(_: impl Simt, at: u32, extent: u32) -> Option<u32> {
        let next = at + 1; // at most `extent`
        (K > 1 && !next.is_multiple_of(K) && next < extent).then_some(next)
    }
    #[inline(always)]
    fn owns(cx: impl Simt, at: u32) -> bool {
        across(cx) == Some(at / K)
    }
}

/// `stride`, `stride(y)`: a thread owns every nth position, where n is the number of threads of the
/// whole grid along the axis.
#[derive(Debug)]
pub enum Stride<const A: u8> {}

impl<const A: u8> Axis for Stride<A> {
    const NAMED: u8 = (BLOCK | THREAD) << A;
    #[inline(always)]
    fn first(cx: impl Simt, extent: u32) -> Option<u32> {
        Some(global::<A>(cx)).filter(|at| *at < extent)
    }
    #[inline(always)]
    fn next(cx: impl Simt, at: u32, extent: u32) -> Option<u32> {
        let step = along::<A>(cx.grid_dim()) * along::<A>(cx.block_dim());
        at.checked_add(step).filter(|at| *at < extent)
    }
    #[inline(always)]
    fn owns(cx: impl Simt, at: u32) -> bool {
        at % (along::<A>(cx.grid_dim()) * along::<A>(cx.block_dim())) == global::<A>(cx)
    }
}

/// `block`, `block(y)`: the position of the block in the grid along the axis. Unless another axis
/// names the threads of the block, its first thread is the owner.
#[derive(Debug)]
pub enum Group<const A: u8> {}

impl<const A: u8> Axis for Group<A> {
    const NAMED: u8 = BLOCK << A;
    #[inline(always)]
    fn first(cx: impl Simt, extent: u32) -> Option<u32> {
        Some(along::<A>(cx.block_idx())).filter(|at| *at < extent)
    }
    #[inline(always)]
    fn next(_: impl Simt, _: u32, _: u32) -> Option<u32> {
        None
    }
    #[inline(always)]
    fn owns(cx: impl Simt, at: u32) -> bool {
        at == along::<A>(cx.block_idx())
    }
}

/// `rank`: a thread owns every nth position from its index in the block on, where n is the number
/// of threads of the block.
#[derive(Debug)]
pub enum Rank {}

impl Axis for Rank {
    const NAMED: u8 = RANK;
    #[inline(always)]
    fn first(cx: impl Simt, extent: u32) -> Option<u32> {
        Some(rank(cx)).filter(|at| *at < extent)
    }
    #[inline(always)]
    fn next(cx: impl Simt, at: u32, extent: u32) -> Option<u32> {
        at.checked_add(threads(cx)).filter(|at| *at < extent)
    }
    #[inline(always)]
    fn owns(cx: impl Simt, at: u32) -> bool {
        at % threads(cx) == rank(cx)
    }
}

/// `all`: the whole dimension belongs to whoever owns the other coordinates.
#[derive(Debug)]
pub enum All {}

impl Axis for All {
    const NAMED: u8 = 0;
    const ALL: bool = true;
    #[inline(always)]
    fn first(_: impl Simt, extent: u32) -> Option<u32> {
        (extent > 0).then_some(0)
    }
    #[inline(always)]
    fn next(_: impl Simt, at: u32, extent: u32) -> Option<u32> {
        let next = at + 1; // at most `extent`
        (next < extent).then_some(next)
    }
    #[inline(always)]
    fn owns(_: impl Simt, _: u32) -> bool {
        true
    }
}

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// The part of an output with `D` dimensions that each thread owns. [`By`] is the only one: no
/// other crate can implement it, because the writes to an output are disjoint only if its owner is
/// right.
#[diagnostic::on_unimplemented(
    message = "`by` names another number of owners than the output has extents",
    label = "this output has {D} extents",
    note = "`by` has one owner for each extent, such as `y: Out<f32>[h, w] by [y, x]`: `x`, `x(4)`, `stride`, `block`, \
            `rank`, or `all`"
)]
pub trait Owner<const D: usize>: Sealed + 'static {
    /// Writes the first element that the thread owns to `at`, and returns whether it owns one.
    ///
    /// (An `Option` of a short array would be returned as one integer, which the compiler for the
    /// GPU does not take apart again, so it would keep checks that are proven.)
    #[doc(hidden)]
    fn first(cx: impl Simt, at: &mut [u32; D], extents: [u32; D]) -> bool;
    /// Advances `at`, an element that the thread owns, to its next one, and returns whether there
    /// is one.
    #[doc(hidden)]
    fn next(cx: impl Simt, at: &mut [u32; D], extents: [u32; D]) -> bool;
    /// Calls `f` with each element that the thread owns, in order.
    #[doc(hidden)]
    fn each(cx: impl Simt, extents: [u32; D], f: impl FnMut([u32; D]));
    /// Returns whether the thread owns the element `at`.
    #[doc(hidden)]
    fn owns(cx: impl Simt, at: [u32; D]) -> bool;
    /// The dimensions whose axis is `all`, as bits.
    #[doc(hidden)]
    const ALL: u8;
}

/// The owners that `by [..]` declares: an axis for each dimension, in a launch whose grid has `G`
/// extents and whose block has `B`.
#[derive(Debug)]
pub struct By<A, const G: usize, const B: usize>(PhantomData<A>);
impl<A, const G: usize, const B: usize> Sealed for By<A, G, B> {}

/// Returns whether all coordinates that are not `named` are 0. Of a grid with `G` extents and a
/// block with `B`, the others are 0 anyway.
#[inline(always)]
fn leads<const G: usize, const B: usize>(cx: impl Simt, named: u8) -> bool {
    let (block, thread) = (cx.block_idx(), cx.thread_idx());
    let of = |bit: u8, used: bool, at: u32| !used || named & bit != 0 || at == 0;
    of(BLOCK, G > 0, block.x)
        && of(BLOCK << 1, G > 1, block.y)
        && of(BLOCK << 2, G > 2, block.z)
        && of(THREAD, B > 0, thread.x)
        && of(THREAD << 1, B > 1, thread.y)
        && of(THREAD << 2, B > 2, thread.z)
}

/// Makes the loops over the positions along each axis, the first one outside.
macro_rules! each {
    ($cx:ident $extents:ident $f:ident [$($at:ident)*]) => { $f([$($at),*]) };
    ($cx:ident $extents:ident $f:ident [$($at:ident)*] $a:ident $i:tt $(, $more:ident $j:tt)*) => {
        $a::each($cx, $extents[$i], |at| each!($cx $extents $f [$($at)* at] $($more $j),*))
    };
}

macro_rules! owners {
    ($($d:literal: $($a:ident $i:tt),+;)*) => {$(
        impl<$($a: Axis,)+ const G: usize, const B: usize> Owner<$d> for By<($($a,)+), G, B> {
            #[inline(always)]
            fn first(cx: impl Simt, at: &mut [u32; $d], extents: [u32; $d]) -> bool {
                leads::<G, B>(cx, 0 $(| $a::NAMED)+)
                    $(&& $a::first(cx, extents[$i]).inspect(|first| at[$i] = *first).is_some())+
            }
            #[inline(always)]
            fn next(cx: impl Simt, at: &mut [u32; $d], extents: [u32; $d]) -> bool {
                let next = [$(<$a as Axis>::next(cx, at[$i], extents[$i])),+];
                let first = [$($a::first(cx, extents[$i])),+];
                for d in (0..$d).rev() {
                    match next[d] {
                        Some(next) => {
                            at[d] = next;
                            return true;
                        }
                        None => at[d] = first[d].unwrap_or_default(),
                    }
                }
                false
            }
            #[inline(always)]
            fn each(cx: impl Simt, extents: [u32; $d], mut f: impl FnMut([u32; $d])) {
                if leads::<G, B>(cx, 0 $(| $a::NAMED)+) {
                    each!(cx extents f [] $($a $i),+);
                }
            }
            const ALL: u8 = 0 $(| ($a::ALL as u8) << $i)+;
            #[inline(always)]
            fn owns(cx: impl Simt, at: [u32; $d]) -> bool {
                leads::<G, B>(cx, 0 $(| $a::NAMED)+) $(&& $a::owns(cx, at[$i]))+
            }
        }
    )*};
}
owners! {
    1: A0 0;
    2: A0 0, A1 1;
    3: A0 0, A1 1, A2 2;
    4: A0 0, A1 1, A2 2, A3 3;
}
