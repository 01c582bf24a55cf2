//! The operations of a warp, of its tiles, and of any lanes of it.

use core::ops::{BitAnd, BitOr, BitXor};

use crate::Element;

/// A value that the lanes of a warp can exchange: a number of 32 or 64 bits. No other crate can
/// implement it.
#[diagnostic::on_unimplemented(
    message = "the lanes of a warp cannot exchange values of type `{Self}`",
    note = "a shuffle moves 32 bits, or twice 32 bits: `u32`, `i32`, `f32`, `u64`, `i64` or `f64`"
)]
pub trait Exchange: Element + sealed::Sealed {
    /// Returns the bits, in the low end of the word.
    #[doc(hidden)]
    fn to_wide(self) -> u64;
    /// Returns the value with these bits.
    #[doc(hidden)]
    fn from_wide(bits: u64) -> Self;
    /// Returns the sum. Integers wrap around.
    #[doc(hidden)]
    fn plus(self, other: Self) -> Self;
    /// Returns the smaller one. It is the number if one of two floats is NaN.
    #[doc(hidden)]
    fn smaller(self, other: Self) -> Self;
    /// Returns the larger one. It is the number if one of two floats is NaN.
    #[doc(hidden)]
    fn larger(self, other: Self) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! exchange {
    ($($t:ident ($($to:tt)*) ($($from:tt)*) $plus:path, $smaller:path, $larger:path;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Exchange for $t {
            #[inline(always)]
            fn to_wide(self) -> u64 {
                self$($to)*
            }
            #[inline(always)]
            fn from_wide(bits: u64) -> Self {
                let from = $($from)*;
                from(bits)
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                $smaller(self, other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                $larger(self, other)
            }
        }
    )*};
}
exchange! {
    u32 (.into()) (|bits| bits as u32) u32::wrapping_add, Ord::min, Ord::max;
    i32 (as u32 as u64) (|bits| bits as i32) i32::wrapping_add, Ord::min, Ord::max;
    f32 (.to_bits().into()) (|bits| f32::from_bits(bits as u32)) core::ops::Add::add, f32::min, f32::max;
    u64 () (|bits| bits) u64::wrapping_add, Ord::min, Ord::max;
    i64 (as u64) (|bits| bits as i64) i64::wrapping_add, Ord::min, Ord::max;
    f64 (.to_bits()) (f64::from_bits) core::ops::Add::add, f64::min, f64::max;
}

/// The lane whose value a shuffle returns.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    Xor,
    Up,
    Down,
    Index,
}

/// The operations of warps beyond those of [`Cooperative`](crate::Cooperative), whose bodies have
/// them: votes and matches, and the operations of fewer than 32 lanes.
///
/// All 32 lanes of the warp must reach [`all`](Warp::all), [`any`](Warp::any),
/// [`match_any`](Warp::match_any) and [`match_all`](Warp::match_all), at the same call. For fewer
/// lanes there are [`tile`](Warp::tile) and [`lanes`](Warp::lanes). The author of the kernel
/// promises this in [`kernel!`](crate::kernel), and the CPU device reports threads that diverge.
///
/// On a GPU, an operation is an intrinsic of LLVM and not inline assembly. LLVM knows that these
/// intrinsics are convergent, so it neither moves them into a branch nor duplicates them.
pub trait Warp: Copy {
    /// Returns this thread's index in its warp, 0 to 31.
    #[doc(hidden)]
    fn lane_index(self) -> u32;

    /// Shuffles among the lanes of `mask`, in segments of `width` lanes.
    #[doc(hidden)]
    fn shuffle_among<T: Exchange>(self, mask: u32, width: u32, how: Shuffle, v: T, argument: u32) -> T;
    /// Returns the lanes of `mask` whose `p` is true.
    #[doc(hidden)]
    fn ballot_among(self, mask: u32, p: bool) -> u32;
    /// Returns whether `p` is true in all lanes of `mask`.
    #[doc(hidden)]
    fn all_among(self, mask: u32, p: bool) -> bool;
    /// Returns whether `p` is true in one of the lanes of `mask`.
    #[doc(hidden)]
    fn any_among(self, mask: u32, p: bool) -> bool;
    /// Returns the lanes of `mask` whose value has the same bits as this lane's.
    #[doc(hidden)]
    fn match_among<T: Exchange>(self, mask: u32, v: T) -> u32;
    /// Waits for the lanes of `mask`.
    #[doc(hidden)]
    fn sync_among(self, mask: u32);

    /// Returns the lanes that execute this call together (`__activemask`).
    ///
    /// It says what the machine does now, not what the program requires: on a GPU, lanes that took
    /// the same branch may be missing. On the CPU device the thread is alone. Use it only where any
    /// answer gives a right result, and pass masks that the program computed to
    /// [`lanes`](Warp::lanes).
    #[must_use]
    fn active_mask(self) -> u32;

    /// Returns whether `p` is true in all lanes (`__all_sync`).
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn all(self, p: bool) -> bool {
        self.all_among(ALL, p)
    }
    /// Returns whether `p` is true in at least one lane (`__any_sync`).
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn any(self, p: bool) -> bool {
        self.any_among(ALL, p)
    }
    /// Returns a word whose bit `i` says whether the value of lane `i` has the same bits as this
    /// lane's (`__match_any_sync`).
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn match_any<T: Exchange>(self, v: T) -> u32 {
        self.match_among(ALL, v)
    }
    /// Returns whether all lanes have the same bits (`__match_all_sync`).
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn match_all<T: Exchange>(self, v: T) -> bool {
        self.match_among(ALL, v) == ALL
    }
    /// Returns the tile of this thread: `N` lanes that follow each other, where `N` is 2, 4, 8, 16
    /// or 32. The whole warp is `tile::<32>()`.
    #[inline(always)]
    fn tile<const N: u32>(self) -> Tile<Self, N> {
        const { assert!(N.is_power_of_two() && N >= 2 && N <= 32, "a tile has 2, 4, 8, 16 or 32 lanes") };
        Tile { cx: self }
    }
    /// Returns the lanes of the warp whose bit is set in `mask`. This thread's lane is one of them.
    #[inline(always)]
    fn lanes(self, mask: u32) -> Lanes<Self> {
        Lanes { cx: self, mask }
    }
}

/// All lanes of a warp.
const ALL: u32 = u32::MAX;

/// `N` lanes that follow each other, from [`Warp::tile`].
///
/// All lanes of the tile must reach an operation, at the same call. Lanes of other tiles need not.
///
/// ```
/// use thalweg_simt::{kernel, ptx};
///
/// # fn main() {}
/// ptx! {}
///
/// kernel! {
///     /// Makes each eight elements a running sum of their own.
///     pub unsafe fn running_sums(cx: impl Cooperative, n: u32, x: InOut<f32>)
///     require { x.len() == n, n % 256 == 0 }
///     grid(n / 256) block(256)
///     {
///         let i = cx.global_x();
///         x.set(cx, i, cx.tile::<8>().inclusive_sum(x.get(cx, i)));
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "this only names the lanes: call an operation"]
pub struct Tile<C, const N: u32> {
    cx: C,
}

#[cfg_attr(not(target_arch = "nvptx64"), expect(clippy::len_without_is_empty, reason = "a tile is never empty"))]
impl<C: Warp, const N: u32> Tile<C, N> {
    /// Returns the number of lanes, `N`.
    #[must_use]
    #[inline(always)]
    pub fn len(self) -> u32 {
        N
    }
    /// Returns this thread's index in the tile, 0 to `N - 1`.
    #[must_use]
    #[inline(always)]
    pub fn rank(self) -> u32 {
        self.cx.lane_index() % N
    }
    /// Returns whether this thread is the first one of the tile.
    #[must_use]
    #[inline(always)]
    pub fn elect(self) -> bool {
        self.rank() == 0
    }
    /// Returns the lane of the tile's first thread.
    #[inline(always)]
    fn first(self) -> u32 {
        self.cx.lane_index() & !(N - 1)
    }
    /// Returns the lanes of the tile as bits of the warp.
    #[must_use]
    #[inline(always)]
    pub fn mask(self) -> u32 {
        if N == 32 { ALL } else { (ALL >> (32 - N)) << self.first() }
    }

    /// Returns the value of the thread with the rank `source % N`, which may differ between
    /// threads.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn shuffle<T: Exchange>(self, v: T, source: u32) -> T {
        self.cx.shuffle_among(self.mask(), N, Shuffle::Index, v, source)
    }
    /// Returns the value of the thread with the rank `rank ^ (mask % N)`.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn shuffle_xor<T: Exchange>(self, v: T, mask: u32) -> T {
        self.cx.shuffle_among(self.mask(), N, Shuffle::Xor, v, mask % N)
    }
    /// Returns the value of the thread with the rank `rank - delta`, or this thread's own if there
    /// is no such thread. Only the low five bits of `delta` count.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn shuffle_up<T: Exchange>(self, v: T, delta: u32) -> T {
        self.cx.shuffle_among(self.mask(), N, Shuffle::Up, v, delta)
    }
    /// Returns the value of the thread with the rank `rank + delta`, or this thread's own if there
    /// is no such thread. Only the low five bits of `delta` count.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn shuffle_down<T: Exchange>(self, v: T, delta: u32) -> T {
        self.cx.shuffle_among(self.mask(), N, Shuffle::Down, v, delta)
    }

    /// Returns a word whose bit `i` says whether `p` is true in the thread with the rank `i`.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn ballot(self, p: bool) -> u32 {
        self.cx.ballot_among(self.mask(), p) >> self.first()
    }
    /// Returns whether `p` is true in all threads of the tile.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn all(self, p: bool) -> bool {
        self.cx.all_among(self.mask(), p)
    }
    /// Returns whether `p` is true in at least one thread of the tile.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn any(self, p: bool) -> bool {
        self.cx.any_among(self.mask(), p)
    }
    /// Returns a word whose bit `i` says whether the value of the thread with the rank `i` has the
    /// same bits as this thread's.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn match_any<T: Exchange>(self, v: T) -> u32 {
        self.cx.match_among(self.mask(), v) >> self.first()
    }
    /// Returns whether all threads of the tile have the same bits.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn match_all<T: Exchange>(self, v: T) -> bool {
        self.cx.match_among(self.mask(), v) == self.mask()
    }
    /// Waits until every thread of the tile has reached this call. After it, the tile sees the
    /// memory that its threads wrote before it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn sync(self) {
        self.cx.sync_among(self.mask());
    }

    /// Reduces by `op` in every thread: a butterfly of [`shuffle_xor`](Self::shuffle_xor) by
    /// `N / 2` down to 1, where a thread's own value is the left operand. If `op` does not depend
    /// on the order of its two operands, all threads get the same bits.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn reduce<T: Exchange>(self, mut v: T, op: impl Fn(T, T) -> T) -> T {
        let mut mask = N / 2;
        while mask > 0 {
            v = op(v, self.shuffle_xor(v, mask));
            mask /= 2;
        }
        v
    }
    /// Returns the sum in every thread. Integers wrap around. Floats are added as in
    /// [`reduce`](Self::reduce).
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn sum<T: Exchange>(self, v: T) -> T {
        self.reduce(v, T::plus)
    }
    /// Returns the smallest value in every thread. It is NaN only if all values are.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn min<T: Exchange>(self, v: T) -> T {
        self.reduce(v, T::smaller)
    }
    /// Returns the largest value in every thread. It is NaN only if all values are.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn max<T: Exchange>(self, v: T) -> T {
        self.reduce(v, T::larger)
    }
    /// Returns the bitwise AND of the values of all threads, in every thread.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn and<T: Exchange + BitAnd<Output = T>>(self, v: T) -> T {
        self.reduce(v, T::bitand)
    }
    /// Returns the bitwise OR of the values of all threads, in every thread.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn or<T: Exchange + BitOr<Output = T>>(self, v: T) -> T {
        self.reduce(v, T::bitor)
    }
    /// Returns the bitwise XOR of the values of all threads, in every thread.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn xor<T: Exchange + BitXor<Output = T>>(self, v: T) -> T {
        self.reduce(v, T::bitxor)
    }

    /// Combines the values of the threads up to this one by `op`, in the order of their ranks.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn inclusive_scan<T: Exchange>(self, mut v: T, op: impl Fn(T, T) -> T) -> T {
        let mut delta = 1;
        while delta < N {
            let before = self.shuffle_up(v, delta);
            // This asks for the rank again each time, because rustc's jump threading on MIR could
            // duplicate the shuffle if both comparisons used one value.
            if self.rank() >= delta {
                v = op(before, v);
            }
            delta *= 2;
        }
        v
    }
    /// Combines the values of the threads before this one by `op`, in the order of their ranks. The
    /// first thread gets `start`, and it is the left operand in the others.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn exclusive_scan<T: Exchange>(self, v: T, start: T, op: impl Fn(T, T) -> T) -> T {
        let before = self.shuffle_up(self.inclusive_scan(v, &op), 1);
        if self.rank() == 0 { start } else { op(start, before) }
    }
    /// Returns the sum of the values of the threads up to this one.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn inclusive_sum<T: Exchange>(self, v: T) -> T {
        self.inclusive_scan(v, T::plus)
    }
    /// Returns the sum of the values of the threads before this one.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn exclusive_sum<T: Exchange>(self, v: T) -> T {
        let before = self.shuffle_up(self.inclusive_sum(v), 1);
        if self.rank() == 0 { T::from_wide(0) } else { before }
    }
}

/// Any lanes of a warp, from [`Warp::lanes`].
///
/// All lanes of the mask must reach an operation, at the same call and with the same mask, and no
/// other lane may. So a mask is what the program computed together, such as the result of
/// [`Cooperative::ballot`](crate::Cooperative::ballot) or [`Warp::match_any`]:
///
/// ```
/// use thalweg_simt::{kernel, ptx};
///
/// # fn main() {}
/// ptx! {}
///
/// kernel! {
///     /// Counts how often each value below 256 occurs. The lanes of a warp that have the same value
///     /// elect one of them, which adds for all.
///     pub unsafe fn histogram(cx: impl Cooperative, n: u32, x: In<u8>, counts: InOut<u32>)
///     require { x.len() == n, n % 128 == 0, counts.len() == 256 }
///     grid(n / 128) block(128)
///     {
///         let v = u32::from(x.get(cx, cx.global_x()));
///         let same = cx.lanes(cx.match_any(v));
///         if same.elect() {
///             counts.atomic(v).add(cx, same.len());
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "this only names the lanes: call an operation"]
pub struct Lanes<C> {
    cx: C,
    mask: u32,
}

#[cfg_attr(
    not(target_arch = "nvptx64"),
    expect(clippy::len_without_is_empty, reason = "the calling lane is in the mask")
)]
impl<C: Warp> Lanes<C> {
    /// Returns the mask.
    #[must_use]
    #[inline(always)]
    pub fn mask(self) -> u32 {
        self.mask
    }
    /// Returns the number of lanes.
    #[must_use]
    #[inline(always)]
    pub fn len(self) -> u32 {
        self.mask.count_ones()
    }
    /// Returns the number of lanes of the mask that are below this one.
    #[must_use]
    #[inline(always)]
    pub fn rank(self) -> u32 {
        (self.mask & ((1 << self.cx.lane_index()) - 1)).count_ones()
    }
    /// Returns the lowest lane of the mask.
    #[must_use]
    #[inline(always)]
    pub fn first(self) -> u32 {
        self.mask.trailing_zeros()
    }
    /// Returns whether this lane is the lowest one of the mask.
    #[must_use]
    #[inline(always)]
    pub fn elect(self) -> bool {
        self.cx.lane_index() == self.first()
    }

    /// Returns the value of lane `source` of the warp, which is in the mask and may differ between
    /// lanes. Only the low five bits of `source` count.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn shuffle<T: Exchange>(self, v: T, source: u32) -> T {
        self.cx.shuffle_among(self.mask, 32, Shuffle::Index, v, source)
    }
    /// Returns a word whose bit `i` says whether lane `i` of the warp is in the mask and `p` is
    /// true there.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn ballot(self, p: bool) -> u32 {
        self.cx.ballot_among(self.mask, p)
    }
    /// Returns whether `p` is true in all lanes of the mask.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn all(self, p: bool) -> bool {
        self.cx.all_among(self.mask, p)
    }
    /// Returns whether `p` is true in at least one lane of the mask.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn any(self, p: bool) -> bool {
        self.cx.any_among(self.mask, p)
    }
    /// Returns a word whose bit `i` says whether lane `i` of the warp is in the mask and its value
    /// has the same bits as this lane's.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn match_any<T: Exchange>(self, v: T) -> u32 {
        self.cx.match_among(self.mask, v)
    }
    /// Returns whether all lanes of the mask have the same bits.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn match_all<T: Exchange>(self, v: T) -> bool {
        self.cx.match_among(self.mask, v) == self.mask
    }
    /// Waits until every lane of the mask has reached this call. After it, these lanes see the
    /// memory that each of them wrote before it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn sync(self) {
        self.cx.sync_among(self.mask);
    }

    /// Reduces by `op` in every lane of the mask, in the order of the lanes. It takes ten shuffles,
    /// whatever the mask is, and another one for the result.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn reduce<T: Exchange>(self, mut v: T, op: impl Fn(T, T) -> T) -> T {
        // Each lane knows the lane behind the last one whose value it has. In each step it takes
        // over what that lane has and knows, so the number of values doubles.
        let above = |lane: u32| self.mask & !(ALL >> (31 - lane));
        let mut next = above(self.cx.lane_index()).trailing_zeros();
        for _ in 0..5 {
            // A lane that has all values up to the last lane asks itself and drops the answer.
            let source = if next < 32 { next } else { self.cx.lane_index() };
            let (value, further) = (self.shuffle(v, source), self.shuffle(next, source));
            if next < 32 {
                v = op(v, value);
                next = further;
            }
        }
        self.shuffle(v, self.first())
    }
    /// Returns the sum in every lane of the mask. Integers wrap around. Floats are added as in
    /// [`reduce`](Self::reduce).
    #[must_use]
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn sum<T: Exchange>(self, v: T) -> T {
        self.reduce(v, T::plus)
    }
}
