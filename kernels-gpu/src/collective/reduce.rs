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
//! [`exchange_f32`] and its like do the same where this rank's elements `x` and those of the others
//! lie apart, and store the result in all of these places, so that it can be copied back to the
//! others from there:
//!
//! ```text
//! all = wide v[0, i];    for k in 1..ranks: all = fold(all, wide v[k, i])
//! x[i] = rows[.., i] = narrow all, or all / ranks for the mean
//! with v[rank] = x, and v[k] = rows[k], or rows[k - 1] behind `rank`
//! ```
//!
//! Launch: as many blocks of 1024 threads as the caller grants, because they run beside products
//! that want all multiprocessors. A thread has every nth element, or every nth 16 bytes if
//! everything is aligned to them (`exchange_f32_fours`, `exchange_f16_eights`,
//! `exchange_bf16_eights`): few blocks use the memory well only if each access is a large one.
//! Memory: each element is read once, and the result is written once for each rank.
//!
//! `f16` and `bf16` are widened to `f32` and rounded once. So the bits are those of the reduction
//! on the host (`thalweg_collective`, `element.rs`), which has the same order and the same rules
//! for what is not a number.

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

/// Folds the numbers of two ranks. `op` is the same for all threads, so it is asked once for all of
/// them.
macro_rules! fold_all {
    ($fold:ident, $op:expr, $all:expr, $next:expr) => {
        match $op {
            LEAST => core::array::from_fn(|i| $fold!(LEAST, $all[i], $next[i])),
            LARGEST => core::array::from_fn(|i| $fold!(LARGEST, $all[i], $next[i])),
            _ => core::array::from_fn(|i| $fold!(MEAN, $all[i], $next[i])),
        }
    };
}

macro_rules! exchanges {
    ($($(#[$doc:meta])* $name:ident <$e:tt> as [$wide:ty; $lanes:literal], $fold:ident, $widen:expr, $narrow:expr;)*) => {$(
        kernel! {
            $(#[$doc])*
            pub(super) fn $name(
                t: impl Simt, blocks: u32, n: u32, others: u32, pitch: u32, rank: u32, op: u32,
                x: InOut<$e>[n] by [stride], rows: InOut<$e>[others, pitch] by [all, stride],
            )
            require { blocks >= 1 && others >= 1 && rank <= others && n <= pitch && op <= LARGEST }
            grid(blocks) block(1024)
            {
                // Both have the same owners, and there are no more cells than columns.
                let mut cells = x.mine(t);
                rows.for_each_column(t, |column| {
                    let Some(own) = cells.next() else { return };
                    // Both before either is used, so that a thread waits for the memory once if
                    // there are two ranks.
                    let (mine, first) = (own.get(), column.cell::<0>(0).get());
                    let (mine, first): ([$wide; $lanes], [$wide; $lanes]) = ($widen(mine), $widen(first));
                    // The order of the ranks. A choice between `mine` and a row would put both in
                    // memory, so each has its place in the code.
                    let (mut all, mut row) = (first, 1);
                    if rank == 0 {
                        all = fold_all!($fold, op, mine, first);
                    } else {
                        while row < rank {
                            let next: [$wide; $lanes] = $widen(column.cell::<0>(row).get());
                            all = fold_all!($fold, op, all, next);
                            row += 1;
                        }
                        all = fold_all!($fold, op, all, mine);
                    }
                    while row < others {
                        let next: [$wide; $lanes] = $widen(column.cell::<0>(row).get());
                        all = fold_all!($fold, op, all, next);
                        row += 1;
                    }
                    if op == MEAN {
                        all = all.map(|all| over!($fold, $wide, all, (others + 1)));
                    }
                    let result: $e = $narrow(all);
                    own.set(result);
                    let mut row = 0;
                    while row < others {
                        column.cell::<0>(row).set(result);
                        row += 1;
                    }
                });
            }
        }
    )*};
}

/// The numbers of eight halves of words.
macro_rules! eight {
    ($half:ident, $words:expr) => {{
        let words: [u32; 4] = $words;
        core::array::from_fn(|i| $half::from_bits((words[i / 2] >> (16 * (i as u32 % 2))) as u16).to_f32())
    }};
}

/// The words of eight numbers.
macro_rules! halves {
    ($half:ident, $all:expr) => {{
        let bits = $all.map(|v: f32| u32::from($half::from_f32(v).to_bits()));
        core::array::from_fn(|i| bits[2 * i] | bits[2 * i + 1] << 16)
    }};
}

exchanges! {
    /// Reduces this rank's elements and those of the others, and stores the result in place of all.
    exchange_f32 <f32> as [f32; 1], fold_float, |v: f32| [v], |[v]: [f32; 1]| v;
    /// Does the same as [`exchange_f32`] for four elements at once.
    exchange_f32_fours <[f32; 4]> as [f32; 4], fold_float, |v: [f32; 4]| v, |v: [f32; 4]| v;
    /// Does the same as [`exchange_f32`].
    exchange_f64 <f64> as [f64; 1], fold_float, |v: f64| [v], |[v]: [f64; 1]| v;
    /// Does the same as [`exchange_f32`] for the bits of `f16`.
    exchange_f16 <u16> as [f32; 1], fold_float, |v: u16| [f16::from_bits(v).to_f32()],
        |[v]: [f32; 1]| f16::from_f32(v).to_bits();
    /// Does the same as [`exchange_f16`] for eight elements at once.
    exchange_f16_eights <[u32; 4]> as [f32; 8], fold_float, |v: [u32; 4]| eight!(f16, v), |v: [f32; 8]| halves!(f16, v);
    /// Does the same as [`exchange_f32`] for the bits of `bf16`.
    exchange_bf16 <u16> as [f32; 1], fold_float, |v: u16| [bf16::from_bits(v).to_f32()],
        |[v]: [f32; 1]| bf16::from_f32(v).to_bits();
    /// Does the same as [`exchange_bf16`] for eight elements at once.
    exchange_bf16_eights <[u32; 4]> as [f32; 8], fold_float, |v: [u32; 4]| eight!(bf16, v),
        |v: [f32; 8]| halves!(bf16, v);
    /// Does the same as [`exchange_f32`] for integers, whose mean is their sum.
    exchange_i32 <i32> as [i32; 1], fold_integer, |v: i32| [v], |[v]: [i32; 1]| v;
    /// Does the same as [`exchange_i32`].
    exchange_u32 <u32> as [u32; 1], fold_integer, |v: u32| [v], |[v]: [u32; 1]| v;
    /// Does the same as [`exchange_i32`].
    exchange_i64 <i64> as [i64; 1], fold_integer, |v: i64| [v], |[v]: [i64; 1]| v;
    /// Does the same as [`exchange_i32`].
    exchange_u64 <u64> as [u64; 1], fold_integer, |v: u64| [v], |[v]: [u64; 1]| v;
    /// Does the same as [`exchange_i32`].
    exchange_u8 <u8> as [u8; 1], fold_integer, |v: u8| [v], |[v]: [u8; 1]| v;
}
