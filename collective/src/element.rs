//! Elements and reductions.

use thalweg::DeviceCopy;
use thalweg::simt::{Element as DeviceElement, bf16, f16};

/// A number that ranks can exchange and reduce: `f32`, `f64`, [`f16`](thalweg::simt::f16),
/// [`bf16`](thalweg::simt::bf16), `i32`, `u32`, `i64`, `u64` or `u8`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element of a collective operation",
    note = "elements are f32, f64, f16, bf16, i32, u32, i64, u64 and u8; a slice of others can be cast to bytes: `x.cast::<u8>()`"
)]
pub trait CollectiveElement: DeviceCopy + DeviceElement + sealed::Element {}

/// A reduction of the elements of the ranks to one: [`Sum`], [`Mean`], [`Min`] or [`Max`].
///
/// Where the host carries out the operation, the order is always that of the ranks, 0 first,
/// whatever the length and however the ranks are connected: so the result has the same bits on
/// every rank, in every run, over threads and over TCP. Sums of `f16` and `bf16` are made in `f32`
/// and rounded once. Sums of integers wrap. If one element is not a number, so is the least and the
/// largest.
#[diagnostic::on_unimplemented(
    message = "a reduction by `{Self}` is not defined for elements of `{T}`",
    note = "Sum, Min and Max are for every element, Mean is for f32, f64, f16 and bf16"
)]
pub trait Reduction<T: CollectiveElement>: sealed::Reduction {}

/// The sum of the elements of all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Sum;
/// The sum of the elements of all ranks, divided by the number of ranks. It is for `f32`, `f64`,
/// `f16` and `bf16` only.
#[derive(Clone, Copy, Debug)]
pub struct Mean;
/// The least element of all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Min;
/// The largest element of all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Max;

mod sealed {
    pub trait Element: thalweg_kernels::collective::ReduceElement {
        const KIND: super::Kind;
    }
    pub trait Reduction {
        const OP: super::Op;
    }
}
pub(crate) use sealed::{Element as HasKind, Reduction as HasOp};

/// A reduction, as ranks name it to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Sum = 1,
    Mean = 2,
    Min = 3,
    Max = 4,
}

impl Op {
    pub(crate) const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Min, Self::Max];
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

macro_rules! reductions {
    ($($name:ident: $($t:ty)*;)*) => {$(
        impl sealed::Reduction for $name {
            const OP: Op = Op::$name;
        }
        $(impl Reduction<$t> for $name {})*
    )*};
}
reductions! {
    Sum: f32 f64 f16 bf16 i32 u32 i64 u64 u8;
    Mean: f32 f64 f16 bf16;
    Min: f32 f64 f16 bf16 i32 u32 i64 u64 u8;
    Max: f32 f64 f16 bf16 i32 u32 i64 u64 u8;
}

macro_rules! elements {
    ($($kind:ident $t:ty, $name:literal;)*) => {
        /// The type of the elements, as ranks name it to one another.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $(#[doc = $name] $kind,)*
        }

        impl Kind {
            pub(crate) const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// The bytes of an element.
            pub(crate) fn size(self) -> usize {
                match self {
                    $(Self::$kind => size_of::<$t>(),)*
                }
            }

            /// Reduces what each rank brings, in the order of the ranks, and writes the result.
            /// `next` writes the bytes of the next rank.
            pub(crate) fn reduce<E>(
                self,
                op: Op,
                ranks: usize,
                to: &mut [u8],
                next: impl FnMut(&mut [u8]) -> Result<(), E>,
            ) -> Result<(), E> {
                match self {
                    $(Self::$kind => reduce::<$t, E>(op, ranks, to, next),)*
                }
            }
        }

        $(
            impl sealed::Element for $t {
                const KIND: Kind = Kind::$kind;
            }
            impl CollectiveElement for $t {}
        )*
    };
}
elements! {
    F32 f32, "f32";
    F64 f64, "f64";
    F16 f16, "f16";
    Bf16 bf16, "bf16";
    I32 i32, "i32";
    U32 u32, "u32";
    I64 i64, "i64";
    U64 u64, "u64";
    U8 u8, "u8";
}

/// An element type and the wider type it is accumulated in.
trait Number: Copy {
    type Wide: Copy;
    fn read(bytes: &[u8]) -> Self::Wide;
    fn write(v: Self::Wide, to: &mut [u8]);
    fn add(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn min(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn max(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn over(a: Self::Wide, n: usize) -> Self::Wide;
}

fn reduce<N: Number, E>(
    op: Op,
    ranks: usize,
    to: &mut [u8],
    mut next: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    next(to)?;
    let mut all: Vec<N::Wide> = to.chunks_exact(size_of::<N>()).map(N::read).collect();
    let fold = match op {
        Op::Sum | Op::Mean => N::add,
        Op::Min => N::min,
        Op::Max => N::max,
    };
    for _ in 1..ranks {
        next(to)?;
        for (all, bytes) in all.iter_mut().zip(to.chunks_exact(size_of::<N>())) {
            *all = fold(*all, N::read(bytes));
        }
    }
    for (&all, bytes) in all.iter().zip(to.chunks_exact_mut(size_of::<N>())) {
        N::write(if op == Op::Mean { N::over(all, ranks) } else { all }, bytes);
    }
    Ok(())
}

/// The bytes of one number. `chunks_exact` gives slices of its size.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

macro_rules! floats {
    ($($t:ty: $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Number for $t {
            type Wide = $wide;
            fn read(bytes: &[u8]) -> $wide {
                $widen(array(bytes))
            }
            fn write(v: $wide, to: &mut [u8]) {
                to.copy_from_slice(&$narrow(v));
            }
            fn add(a: $wide, b: $wide) -> $wide {
                a + b
            }
            fn min(a: $wide, b: $wide) -> $wide {
                if a.is_nan() || a < b { a } else { b }
            }
            fn max(a: $wide, b: $wide) -> $wide {
                if a.is_nan() || a > b { a } else { b }
            }
            fn over(a: $wide, n: usize) -> $wide {
                a / n as $wide
            }
        }
    )*};
}
floats! {
    f32: f32, f32::from_ne_bytes, f32::to_ne_bytes;
    f64: f64, f64::from_ne_bytes, f64::to_ne_bytes;
    f16: f32, |b| f16::from_bits(u16::from_ne_bytes(b)).to_f32(), |v| f16::from_f32(v).to_bits().to_ne_bytes();
    bf16: f32, |b| bf16::from_bits(u16::from_ne_bytes(b)).to_f32(), |v| bf16::from_f32(v).to_bits().to_ne_bytes();
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Number for $t {
            type Wide = $t;
            fn read(bytes: &[u8]) -> $t {
                <$t>::from_ne_bytes(array(bytes))
            }
            fn write(v: $t, to: &mut [u8]) {
                to.copy_from_slice(&v.to_ne_bytes());
            }
            fn add(a: $t, b: $t) -> $t {
                a.wrapping_add(b)
            }
            fn min(a: $t, b: $t) -> $t {
                a.min(b)
            }
            fn max(a: $t, b: $t) -> $t {
                a.max(b)
            }
            // `Mean` is not a `Reduction` of integers, so nobody calls this.
            fn over(a: $t, _: usize) -> $t {
                a
            }
        }
    )*};
}
integers!(i32 u32 i64 u64 u8);
