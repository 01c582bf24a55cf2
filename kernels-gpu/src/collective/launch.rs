//! The launcher of a reduction of any type.

use thalweg_simt::host::{DeviceSlice, Launch};
use thalweg_simt::{Element, bf16, f16};

use super::reduce as kernels;

/// The operation that reduces several elements to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
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
/// or `u8`. No other crate can implement it, because `reduce` is trusted to launch on these buffers:
///
/// ```compile_fail,E0277
/// # use thalweg_simt::host::{DeviceSlice, Launch};
/// #[derive(Clone, Copy)]
/// #[repr(transparent)]
/// struct Mine(u32);
/// // SAFETY: It is transparent over a number.
/// unsafe impl thalweg_simt::Element for Mine {}
///
/// impl thalweg_kernels::collective::Number for Mine {
///     fn reduce<S, L: Launch<S> + ?Sized>(
///         _: &L, _: [u32; 2], _: u32, _: &DeviceSlice<S, Self>, _: &mut DeviceSlice<S, Self>,
///     ) -> Result<(), L::Error> {
///         Ok(())
///     }
/// }
/// ```
pub trait Number: Element + sealed::Sealed {
    #[doc(hidden)]
    fn reduce<S, L: Launch<S> + ?Sized>(
        on: &L,
        shape: [u32; 2],
        op: u32,
        x: &DeviceSlice<S, Self>,
        y: &mut DeviceSlice<S, Self>,
    ) -> Result<(), L::Error>;
}

macro_rules! numbers {
    ($($t:ident as $e:ty: $reduce:ident;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Number for $t {
            fn reduce<S, L: Launch<S> + ?Sized>(
                on: &L, [ranks, n]: [u32; 2], op: u32, x: &DeviceSlice<S, Self>, y: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                kernels::$reduce(on, n, ranks, op, x.cast::<$e>(), y.cast_mut::<$e>())
            }
        }
    )*};
}
numbers! {
    f32 as f32: reduce_f32;
    f64 as f64: reduce_f64;
    f16 as u16: reduce_f16;
    bf16 as u16: reduce_bf16;
    i32 as i32: reduce_i32;
    u32 as u32: reduce_u32;
    i64 as i64: reduce_i64;
    u64 as u64: reduce_u64;
    u8 as u8: reduce_u8;
}

/// Reduces the rows of `x`, [ranks, length of `y`], to one, in their order. `f16` and `bf16` are summed in `f32` and
/// rounded once.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
pub fn reduce<S, L: Launch<S> + ?Sized, E: Number>(
    on: &L,
    fold: Fold,
    ranks: u32,
    x: &DeviceSlice<S, E>,
    y: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    // A length that is too large fits no `x` that exists, which the launcher reports.
    let n = u32::try_from(y.len()).unwrap_or(u32::MAX);
    E::reduce(on, [ranks, n], fold as u32, x, y)
}
