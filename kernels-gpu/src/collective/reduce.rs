//! The elements of several ranks become one, in the order of the ranks.
//!
//! ```text
//! all = wide x[0, i];   for rank in 1..ranks: all = fold(all, wide x[rank, i])
//! y[i] = narrow all, or all / ranks for the mean
//! ```
//!
//! Launch: a thread for each element.
//! Memory: each element is read once and the result is written.
//!
//! `f16` and `bf16` are widened to `f32` and rounded once. So the bits are those of the reduction on the host
//! (`thalweg_collective`, `element.rs`), which has the same order and the same rules for what is not a number.

use thalweg_simt::{bf16, f16, kernel};

/// The sum of all.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const SUM: u32 = 0;
/// The sum of all, divided by their number. Of integers it is the sum.
pub(super) const MEAN: u32 = 1;
/// The least.
pub(super) const LEAST: u32 = 2;
/// The largest.
pub(super) const LARGEST: u32 = 3;

/// Folds two floating-point numbers. If one is not a number, so is the least and the largest.
macro_rules! fold_float {
    ($op:expr, $a:expr, $b:expr) => {
        match $op {
            LEAST => {
                if $a.is_nan() || $a < $b {
                    $a
                } else {
                    $b
                }
            }
            LARGEST => {
                if $a.is_nan() || $a > $b {
                    $a
                } else {
                    $b
                }
            }
            _ => $a + $b,
        }
    };
}

/// Folds two integers. Sums wrap.
macro_rules! fold_integer {
    ($op:expr, $a:expr, $b:expr) => {
        match $op {
            LEAST => {
                if $a < $b {
                    $a
                } else {
                    $b
                }
            }
            LARGEST => {
                if $a > $b {
                    $a
                } else {
                    $b
                }
            }
            _ => $a.wrapping_add($b),
        }
    };
}

macro_rules! over {
    (fold_float, $wide:ty, $all:expr, $ranks:expr) => {
        $all / $ranks as $wide
    };
    (fold_integer, $wide:ty, $all:expr, $ranks:expr) => {
        $all
    };
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident <$e:ident> as $wide:ty, $fold:ident, $widen:expr, $narrow:expr;)*) => {$(
        kernel! {
            $(#[$doc])*
            pub(super) fn $name(
                t: impl Simt, n: u32, ranks: u32, op: u32, x: In<$e>[ranks, n], y: Out<$e>[n] by [x],
            )
            require { ranks >= 1 && op <= LARGEST }
            grid(n.div_ceil(256)) block(256)
            {
                if let Some(y) = y.cell(t) {
                    let [i] = y.at();
                    let (mut all, mut rank): ($wide, u32) = ($widen(x.get(t, [0, i])), 1);
                    while rank < ranks {
                        let next: $wide = $widen(x.get(t, [rank, i]));
                        all = $fold!(op, all, next);
                        rank += 1;
                    }
                    y.set($narrow(if op == MEAN { over!($fold, $wide, all, ranks) } else { all }));
                }
            }
        }
    )*};
}
reductions! {
    /// Reduces the elements of all ranks.
    reduce_f32 <f32> as f32, fold_float, |v: f32| v, |v: f32| v;
    /// Does the same as [`reduce_f32`].
    reduce_f64 <f64> as f64, fold_float, |v: f64| v, |v: f64| v;
    /// Does the same as [`reduce_f32`] for the bits of `f16`.
    reduce_f16 <u16> as f32, fold_float, |v: u16| f16::from_bits(v).to_f32(), |v: f32| f16::from_f32(v).to_bits();
    /// Does the same as [`reduce_f32`] for the bits of `bf16`.
    reduce_bf16 <u16> as f32, fold_float, |v: u16| bf16::from_bits(v).to_f32(), |v: f32| bf16::from_f32(v).to_bits();
    /// Does the same as [`reduce_f32`] for integers, whose mean is their sum.
    reduce_i32 <i32> as i32, fold_integer, |v: i32| v, |v: i32| v;
    /// Does the same as [`reduce_i32`].
    reduce_u32 <u32> as u32, fold_integer, |v: u32| v, |v: u32| v;
    /// Does the same as [`reduce_i32`].
    reduce_i64 <i64> as i64, fold_integer, |v: i64| v, |v: i64| v;
    /// Does the same as [`reduce_i32`].
    reduce_u64 <u64> as u64, fold_integer, |v: u64| v, |v: u64| v;
    /// Does the same as [`reduce_i32`].
    reduce_u8 <u8> as u8, fold_integer, |v: u8| v, |v: u8| v;
}
