//! The types of elements.

#[cfg(feature = "linear")]
use thalweg_simt::TensorCore;
use thalweg_simt::{Element, bf16, bf16x2, f16, f16x2};

/// A type of elements: `f32`, [`f16`] or [`bf16`].
pub(super) trait Number: Element {
    fn wide(self) -> f32;
    /// Rounds to the nearest number of this type.
    fn narrow(v: f32) -> Self;
    /// Rounds two numbers to a type of 16 bits, and returns the first one in the low half of the
    /// word.
    fn pair(low: f32, high: f32) -> u32;
    /// The elements of a piece of 16 bytes.
    const PIECE: u32 = 16 / size_of::<Self>() as u32;
    /// Returns element `i` of a piece.
    fn wide_of(piece: [u32; 4], i: u32) -> f32;
}

impl Number for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(v: f32) -> Self {
        v
    }
    #[inline(always)]
    fn pair(_: f32, _: f32) -> u32 {
        unreachable!("`f32` is no type of 16 bits")
    }
    #[inline(always)]
    fn wide_of(piece: [u32; 4], i: u32) -> f32 {
        f32::from_bits(piece[i as usize])
    }
}

/// A type of 16 bits that tensor cores multiply.
#[cfg(feature = "linear")]
pub(super) trait Half: Number {
    /// Multiplies two matrices (see [`Tensor`]).
    fn mma(cx: impl TensorCore, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
}

macro_rules! half {
    ($($t:ident $pair:ident $mma:ident;)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn wide(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn narrow(v: f32) -> Self {
                Self::from_f32(v)
            }
            #[inline(always)]
            fn pair(low: f32, high: f32) -> u32 {
                $pair::from_f32s(low, high).to_bits()
            }
            #[inline(always)]
            fn wide_of(piece: [u32; 4], i: u32) -> f32 {
                Self::from_bits((piece[i as usize / 2] >> (16 * (i % 2))) as u16).to_f32()
            }
        }
        #[cfg(feature = "linear")]
        impl Half for $t {
            #[inline(always)]
            fn mma(cx: impl TensorCore, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
                cx.$mma(a, b, c)
            }
        }
    )*};
}
half! {
    f16 f16x2 mma_f16;
    bf16 bf16x2 mma_bf16;
}
