//! The launchers of reductions of any type.

use thalweg_simt::host::{DeviceSlice, Launch};
use thalweg_simt::{Element, bf16, f16};

use super::reduce as kernels;

/// The operation that reduces several elements to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum. That of integers wraps.
    Sum = kernels::SUM as isize,
    /// Their sum divided by their number; of integers the sum.
    Mean = kernels::MEAN as isize,
    /// The least of them.
    Min = kernels::LEAST as isize,
    /// The largest of them.
    Max = kernels::LARGEST as isize,
}

mod sealed {
    pub trait Sealed {}
}

/// A type that can be reduced: `f32`, `f64`, [`struct@f16`], [`bf16`], `i32`, `u32`, `i64`, `u64`
/// or `u8`. No other crate can implement it, because `reduce` is trusted to launch on these
/// buffers:
///
/// ```compile_fail,E0277
/// # use thalweg_simt::host::{DeviceSlice, Launch};
/// #[derive(Clone, Copy)]
/// #[repr(transparent)]
/// struct Mine(u32);
/// // SAFETY: It is transparent over a number.
/// unsafe impl thalweg_simt::Element for Mine {}
///
/// impl thalweg_kernels::collective::ReduceElement for Mine {
///     fn reduce<S, L: Launch<S> + ?Sized>(
///         _: &L, _: [u32; 2], _: u32, _: &DeviceSlice<S, Self>, _: &mut DeviceSlice<S, Self>,
///     ) -> Result<(), L::Error> {
///         Ok(())
///     }
/// }
/// ```
pub trait ReduceElement: Element + sealed::Sealed {
    #[doc(hidden)]
    fn reduce<S, L: Launch<S> + ?Sized>(
        on: &L,
        shape: [u32; 2],
        op: u32,
        x: &DeviceSlice<S, Self>,
        y: &mut DeviceSlice<S, Self>,
    ) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn exchange<S, L: Launch<S> + ?Sized>(
        on: &L,
        blocks: u32,
        shape: [u32; 4],
        op: u32,
        x: &mut DeviceSlice<S, Self>,
        rows: &mut DeviceSlice<S, Self>,
    ) -> Result<(), L::Error>;
}

macro_rules! numbers {
    ($($t:ident as $e:ty: $reduce:ident, $exchange:ident $(, $many:literal of $wide:ty: $wider:ident)?;)*) => {$(
        impl sealed::Sealed for $t {}
        impl ReduceElement for $t {
            fn reduce<S, L: Launch<S> + ?Sized>(
                on: &L, [ranks, n]: [u32; 2], op: u32, x: &DeviceSlice<S, Self>, y: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                kernels::$reduce(on, n, ranks, op, x.cast::<$e>(), y.cast_mut::<$e>())
            }
            fn exchange<S, L: Launch<S> + ?Sized>(
                on: &L, blocks: u32, [n, others, pitch, rank]: [u32; 4], op: u32, x: &mut DeviceSlice<S, Self>,
                rows: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                $(
                    // Rows begin at multiples of 16 bytes, and so does whatever a thread reads.
                    let aligned = |address: u64| address.is_multiple_of(16);
                    let fits = [n, pitch].iter().all(|n| n.is_multiple_of($many));
                    if fits && aligned(x.device_ptr()) && aligned(rows.device_ptr()) {
                        let (x, rows) = (as_words::<S, $t, $wide>(x), as_words::<S, $t, $wide>(rows));
                        return kernels::$wider(on, blocks, n / $many, others, pitch / $many, rank, op, x, rows);
                    }
                )?
                kernels::$exchange(on, blocks, n, others, pitch, rank, op, x.cast_mut::<$e>(), rows.cast_mut::<$e>())
            }
        }
    )*};
}
numbers! {
    f32 as f32: reduce_f32, exchange_f32, 4 of f32: exchange_f32_fours;
    f64 as f64: reduce_f64, exchange_f64;
    f16 as u16: reduce_f16, exchange_f16, 8 of u32: exchange_f16_eights;
    bf16 as u16: reduce_bf16, exchange_bf16, 8 of u32: exchange_bf16_eights;
    i32 as i32: reduce_i32, exchange_i32;
    u32 as u32: reduce_u32, exchange_u32;
    i64 as i64: reduce_i64, exchange_i64;
    u64 as u64: reduce_u64, exchange_u64;
    u8 as u8: reduce_u8, exchange_u8;
}

/// Returns the elements, which begin at a multiple of 16 bytes and fill as many, as others of at
/// most 4 bytes.
fn as_words<S, T: Element, W: Element>(x: &mut DeviceSlice<S, T>) -> &mut DeviceSlice<S, W> {
    const { assert!(size_of::<W>() <= 4 && align_of::<W>() <= 4) };
    // SAFETY: The result has the same bytes and borrows the slice exclusively. The caller checked
    // the address, and every bit pattern is a value of either element.
    unsafe { DeviceSlice::from_raw_mut(x.device_ptr(), x.byte_len() / size_of::<W>()) }
}

/// Reduces the rows of `x`, [ranks, length of `y`], to one, in their order. `f16` and `bf16` are
/// summed in `f32` and rounded once.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
pub fn reduce<S, L: Launch<S> + ?Sized, E: ReduceElement>(
    on: &L,
    op: ReduceOp,
    ranks: u32,
    x: &DeviceSlice<S, E>,
    y: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    // A length that is too large fits no `x` that exists, which the launcher reports.
    let n = u32::try_from(y.len()).unwrap_or(u32::MAX);
    E::reduce(on, [ranks, n], op as u32, x, y)
}

/// Reduces the elements of this rank, `x`, and those of all others in the order of the ranks, and
/// stores the result in place of all of them. `rows` has a row for each of the `ranks - 1` other
/// ranks, in their order; of each, the first elements count, as many as `x` has. It takes `blocks`
/// multiprocessors at most. `f16` and `bf16` are summed in `f32` and rounded once: the bits are
/// those of [`reduce`].
///
/// # Errors
/// A length does not fit, `rank` is none of the `ranks`, there is no other rank, or what the launch
/// fails with.
#[track_caller]
pub fn reduce_in_place<S, L: Launch<S> + ?Sized, E: ReduceElement>(
    on: &L,
    op: ReduceOp,
    blocks: u32,
    [rank, ranks]: [u32; 2],
    x: &mut DeviceSlice<S, E>,
    rows: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    // Lengths that are too large, and rows that are no whole ones, fit no buffer that exists, which
    // the launcher reports.
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let others = ranks.saturating_sub(1);
    let pitch = count(rows.len() / (others.max(1) as usize));
    E::exchange(on, blocks, [count(x.len()), others, pitch, rank], op as u32, x, rows)
}
