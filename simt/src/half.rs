//! Floating-point numbers of 16 bits, and pairs of them.

use core::cmp::Ordering;
use core::fmt;
use core::ops::{Add, Div, Mul, Neg, Sub};

/// Makes what both types of numbers have.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $infinity:literal, $one:literal, $max:literal, $least:literal, $digits:literal) => {
        $(#[$doc])*
        #[allow(non_camel_case_types, reason = "it is a number, as `f32` is")]
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $name(u16);

        impl $name {
            /// The number 0.
            pub const ZERO: Self = Self(0);
            /// The number 1.
            pub const ONE: Self = Self($one);
            /// Infinity.
            pub const INFINITY: Self = Self($infinity);
            /// The NaN that every conversion and operation gives.
            pub const NAN: Self = Self(0x7fff);
            /// The largest finite number.
            pub const MAX: Self = Self($max);
            /// The smallest positive normal number.
            pub const MIN_POSITIVE: Self = Self($least);
            /// The number of binary digits of the significand.
            pub const MANTISSA_DIGITS: u32 = $digits;

            /// Returns the number with these bits.
            #[must_use]
            #[inline(always)]
            pub const fn from_bits(bits: u16) -> Self {
                Self(bits)
            }
            /// Returns the bits of the number.
            #[must_use]
            #[inline(always)]
            pub const fn to_bits(self) -> u16 {
                self.0
            }
            /// Returns whether the number is NaN.
            #[must_use]
            #[inline(always)]
            pub const fn is_nan(self) -> bool {
                self.0 & 0x7fff > $infinity
            }
            /// Returns the number without its sign.
            #[must_use]
            #[inline(always)]
            pub const fn abs(self) -> Self {
                Self(self.0 & 0x7fff)
            }
        }

        impl From<$name> for f32 {
            #[inline(always)]
            fn from(v: $name) -> f32 {
                v.to_f32()
            }
        }
        impl From<$name> for f64 {
            #[inline(always)]
            fn from(v: $name) -> f64 {
                f64::from(v.to_f32())
            }
        }
        impl PartialEq for $name {
            #[inline(always)]
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }
        impl PartialOrd for $name {
            #[inline(always)]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }
        impl Neg for $name {
            type Output = Self;
            #[inline(always)]
            fn neg(self) -> Self {
                Self(self.0 ^ 0x8000)
            }
        }
        impl Div for $name {
            type Output = Self;
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                Self::from_f32(self.to_f32() / other.to_f32())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    };
}

number!(
    /// An IEEE 754 number of 16 bits (binary16, CUDA's `__half`): 11 binary digits, up to 65504.
    ///
    /// `+`, `-`, `*` and `/` are correctly rounded on each device, ties to even, and subnormal
    /// numbers count. On a GPU the first three are one instruction each. Each operation gives
    /// [`NAN`](Self::NAN) for NaN.
    ///
    /// For numbers of the crate `half`, use `f16::from_bits(v.to_bits())`; slices of them have the
    /// same bytes.
    ///
    /// ```
    /// use thalweg_simt::f16;
    ///
    /// let third = f16::from_f32(1.0 / 3.0);
    /// assert_eq!(third.to_bits(), 0x3555);
    /// assert_eq!((third * f16::from_f32(3.0)).to_f32(), 1.0);
    /// ```
    f16, 0x7c00, 0x3c00, 0x7bff, 0x0400, 11
);
number!(
    /// A number of 16 bits with the exponent of `f32` (bfloat16, CUDA's `__nv_bfloat16`): 8 binary
    /// digits.
    ///
    /// `+`, `-`, `*` and `/` are correctly rounded on each device, ties to even, and subnormal
    /// numbers count. They are computed in `f32`. Each operation gives [`NAN`](Self::NAN) for NaN.
    ///
    /// For numbers of the crate `half`, use `bf16::from_bits(v.to_bits())`; slices of them have the
    /// same bytes.
    ///
    /// ```
    /// use thalweg_simt::bf16;
    ///
    /// let third = bf16::from_f32(1.0 / 3.0);
    /// assert_eq!(third.to_bits(), 0x3eab);
    /// assert_eq!((third + third).to_f32(), 2.0 * third.to_f32());
    /// ```
    bf16, 0x7f80, 0x3f80, 0x7f7f, 0x0080, 8
);

/// Computes `$result = instruction($v, ...)` with registers of the given classes.
#[cfg(target_arch = "nvptx64")]
macro_rules! instruction {
    ($text:literal, $out:ident, $($class:ident $v:expr),*) => {{
        let result;
        // SAFETY: The instructions only compute with the given registers.
        unsafe {
            core::arch::asm!(
                $text, out($out) result, $(in($class) $v),*, options(pure, nomem, nostack, preserves_flags)
            );
        }
        result
    }};
}

impl f16 {
    /// Rounds `v` to the nearest number (`cvt.rn.f16.f32`). Ties go to the even one. Values of
    /// 65520 or more become infinite.
    #[must_use]
    #[inline(always)]
    pub fn from_f32(v: f32) -> Self {
        #[cfg(target_arch = "nvptx64")]
        return Self(instruction!("cvt.rn.f16.f32 {0}, {1};", reg16, reg32 v));
        #[cfg(not(target_arch = "nvptx64"))]
        {
            if v.is_nan() {
                return Self::NAN;
            }
            let (bits, sign) = (v.to_bits() & 0x7fff_ffff, (v.to_bits() >> 16 & 0x8000) as u16);
            Self(
                sign | if bits >= 0x4780_0000 {
                    // The value is 2^16 or more.
                    0x7c00
                } else if bits < 0x3880_0000 {
                    // The half is subnormal, so its last place is 2^-24. The last place of the sum
                    // with 0.5 is 2^-24 too, so the sum rounds as the half must.
                    ((f32::from_bits(bits) + 0.5).to_bits() - 0x3f00_0000) as u16
                } else {
                    ((bits - 0x3800_0000 + 0xfff + (bits >> 13 & 1)) >> 13) as u16
                },
            )
        }
    }

    /// Returns the number as `f32`, which is exact (`cvt.f32.f16`).
    #[must_use]
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        #[cfg(target_arch = "nvptx64")]
        return instruction!("cvt.f32.f16 {0}, {1};", reg32, reg16 self.0);
        #[cfg(not(target_arch = "nvptx64"))]
        {
            let (bits, sign) = (u32::from(self.0 & 0x7fff), u32::from(self.0 & 0x8000) << 16);
            f32::from_bits(
                sign | if bits > 0x7c00 {
                    0x7fff_ffff
                } else if bits == 0x7c00 {
                    0x7f80_0000
                } else {
                    // The exponents differ by 112. The product is exact, also for subnormal
                    // numbers, whose bits are those of a subnormal `f32`.
                    (f32::from_bits(bits << 13) * f32::from_bits((127 + 112) << 23)).to_bits()
                },
            )
        }
    }

    /// Computes `self * b + c` with one rounding (`fma.rn.f16`).
    #[must_use]
    #[inline(always)]
    pub fn mul_add(self, b: Self, c: Self) -> Self {
        #[cfg(target_arch = "nvptx64")]
        return Self(instruction!("fma.rn.f16 {0}, {1}, {2}, {3};", reg16, reg16 self.0, reg16 b.0, reg16 c.0));
        #[cfg(not(target_arch = "nvptx64"))]
        {
            // The sum is exact in `f64`, unless it is so close to `c` that the half is `c` anyway.
            // It then becomes an `f32` whose last bit says whether something was cut off. So the
            // second rounding cannot take it for a tie.
            let sum = f64::from(self) * f64::from(b) + f64::from(c);
            let near = sum as f32;
            if f64::from(near) == sum || sum.is_nan() {
                return Self::from_f32(near);
            }
            let cut = near.to_bits() - u32::from(f64::from(near).abs() > sum.abs());
            Self::from_f32(f32::from_bits(cut | 1))
        }
    }
}

impl bf16 {
    /// Rounds `v` to the nearest number. Ties go to the even one. PTX for compute capability 8.0
    /// and up has an instruction for it (`cvt.rn.bf16.f32`); older PTX rounds the bits.
    #[must_use]
    #[inline(always)]
    pub fn from_f32(v: f32) -> Self {
        #[cfg(all(target_arch = "nvptx64", target_feature = "sm_80"))]
        return Self(instruction!("cvt.rn.bf16.f32 {0}, {1};", reg16, reg32 v));
        #[cfg(not(all(target_arch = "nvptx64", target_feature = "sm_80")))]
        {
            let bits = v.to_bits();
            if v.is_nan() { Self::NAN } else { Self(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16) }
        }
    }

    /// Returns the number as `f32`, which is exact.
    #[must_use]
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }

    /// Computes `self * b + c` in `f32` with one rounding, and then rounds this to the result.
    #[must_use]
    #[inline(always)]
    pub fn mul_add(self, b: Self, c: Self) -> Self {
        #[cfg(target_arch = "nvptx64")]
        use core::f32::math::mul_add;
        #[cfg(not(target_arch = "nvptx64"))]
        let mul_add = f32::mul_add;
        Self::from_f32(mul_add(self.to_f32(), b.to_f32(), c.to_f32()))
    }
}

/// Makes the operators of numbers and of pairs. On a GPU each is the instruction that is given.
macro_rules! operators {
    ($($trait:ident $method:ident $op:tt $one:literal $two:literal;)*) => {$(
        impl $trait for f16 {
            type Output = Self;
            // `f32` has more than twice the digits, so rounding its result once more gives what one
            // rounding gives.
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                #[cfg(target_arch = "nvptx64")]
                return Self(instruction!($one, reg16, reg16 self.0, reg16 other.0));
                #[cfg(not(target_arch = "nvptx64"))]
                Self::from_f32(self.to_f32() $op other.to_f32())
            }
        }
        impl $trait for f16x2 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                #[cfg(target_arch = "nvptx64")]
                return Self(instruction!($two, reg32, reg32 self.0, reg32 other.0));
                #[cfg(not(target_arch = "nvptx64"))]
                Self::new(self.low() $op other.low(), self.high() $op other.high())
            }
        }
        impl $trait for bf16 {
            type Output = Self;
            // As for `f16`: `f32` has more than twice the digits.
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self::from_f32(self.to_f32() $op other.to_f32())
            }
        }
        impl $trait for bf16x2 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let ([a, b], [c, d]) = (self.to_f32s(), other.to_f32s());
                Self::from_f32s(a $op c, b $op d)
            }
        }
    )*};
}
operators! {
    Add add + "add.rn.f16 {0}, {1}, {2};" "add.rn.f16x2 {0}, {1}, {2};";
    Sub sub - "sub.rn.f16 {0}, {1}, {2};" "sub.rn.f16x2 {0}, {1}, {2};";
    Mul mul * "mul.rn.f16 {0}, {1}, {2};" "mul.rn.f16x2 {0}, {1}, {2};";
}

/// Makes what both types of pairs have.
macro_rules! pair {
    ($(#[$doc:meta])* $name:ident, $number:ident) => {
        $(#[$doc])*
        #[allow(non_camel_case_types, reason = "it is a pair of numbers with such names")]
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// Makes a pair of two numbers. `low` is in the low half of the word.
            #[must_use]
            #[inline(always)]
            pub const fn new(low: $number, high: $number) -> Self {
                Self(low.0 as u32 | (high.0 as u32) << 16)
            }
            /// Makes a pair of twice the same number.
            #[must_use]
            #[inline(always)]
            pub const fn splat(v: $number) -> Self {
                Self::new(v, v)
            }
            /// Returns the number in the low half.
            #[must_use]
            #[inline(always)]
            pub const fn low(self) -> $number {
                $number(self.0 as u16)
            }
            /// Returns the number in the high half.
            #[must_use]
            #[inline(always)]
            pub const fn high(self) -> $number {
                $number((self.0 >> 16) as u16)
            }
            /// Returns both numbers as `f32`, the low one first.
            #[must_use]
            #[inline(always)]
            pub fn to_f32s(self) -> [f32; 2] {
                [self.low().to_f32(), self.high().to_f32()]
            }
            /// Returns the pair with these bits.
            #[must_use]
            #[inline(always)]
            pub const fn from_bits(bits: u32) -> Self {
                Self(bits)
            }
            /// Returns the bits of the pair.
            #[must_use]
            #[inline(always)]
            pub const fn to_bits(self) -> u32 {
                self.0
            }
        }

        impl PartialEq for $name {
            #[inline(always)]
            fn eq(&self, other: &Self) -> bool {
                self.to_f32s() == other.to_f32s()
            }
        }
        impl Neg for $name {
            type Output = Self;
            #[inline(always)]
            fn neg(self) -> Self {
                Self(self.0 ^ 0x8000_8000)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32s(), f)
            }
        }
    };
}

pair!(
    /// Two [`f16`](struct@f16) in a word (CUDA's `__half2`). Operators work on both halves, on a
    /// GPU in one instruction.
    ///
    /// ```
    /// use thalweg_simt::f16x2;
    ///
    /// let sum = f16x2::from_f32s(1.0, 2.0) + f16x2::from_f32s(0.5, -2.0);
    /// assert_eq!(sum.to_f32s(), [1.5, 0.0]);
    /// ```
    f16x2, f16
);
pair!(
    /// Two [`bf16`] in a word (CUDA's `__nv_bfloat162`). Operators work on both halves, in `f32`.
    ///
    /// ```
    /// use thalweg_simt::bf16x2;
    ///
    /// let product = bf16x2::from_f32s(1.5, 2.0) * bf16x2::from_f32s(2.0, -0.5);
    /// assert_eq!(product.to_f32s(), [3.0, -1.0]);
    /// ```
    bf16x2, bf16
);

impl f16x2 {
    /// Rounds two values as `f16::from_f32` does. PTX for compute capability 8.0 and up does it in
    /// one instruction (`cvt.rn.f16x2.f32`).
    #[must_use]
    #[inline(always)]
    pub fn from_f32s(low: f32, high: f32) -> Self {
        #[cfg(all(target_arch = "nvptx64", target_feature = "sm_80"))]
        return Self(instruction!("cvt.rn.f16x2.f32 {0}, {2}, {1};", reg32, reg32 low, reg32 high));
        #[cfg(all(target_arch = "nvptx64", not(target_feature = "sm_80")))]
        return Self(instruction!(
            "{{ .reg .b16 l, h; cvt.rn.f16.f32 l, {1}; cvt.rn.f16.f32 h, {2}; mov.b32 {0}, {{l, h}}; }}",
            reg32,
            reg32 low,
            reg32 high
        ));
        #[cfg(not(target_arch = "nvptx64"))]
        Self::new(f16::from_f32(low), f16::from_f32(high))
    }

    /// Computes `self * b + c` in each half, with one rounding (`fma.rn.f16x2`).
    #[must_use]
    #[inline(always)]
    pub fn mul_add(self, b: Self, c: Self) -> Self {
        #[cfg(target_arch = "nvptx64")]
        return Self(instruction!("fma.rn.f16x2 {0}, {1}, {2}, {3};", reg32, reg32 self.0, reg32 b.0, reg32 c.0));
        #[cfg(not(target_arch = "nvptx64"))]
        Self::new(self.low().mul_add(b.low(), c.low()), self.high().mul_add(b.high(), c.high()))
    }
}

impl bf16x2 {
    /// Rounds two values as `bf16::from_f32` does. PTX for compute capability 8.0 and up does it
    /// in one instruction (`cvt.rn.bf16x2.f32`).
    #[must_use]
    #[inline(always)]
    pub fn from_f32s(low: f32, high: f32) -> Self {
        #[cfg(all(target_arch = "nvptx64", target_feature = "sm_80"))]
        return Self(instruction!("cvt.rn.bf16x2.f32 {0}, {2}, {1};", reg32, reg32 low, reg32 high));
        #[cfg(not(all(target_arch = "nvptx64", target_feature = "sm_80")))]
        Self::new(bf16::from_f32(low), bf16::from_f32(high))
    }

    /// Computes `bf16::mul_add` in each half.
    #[must_use]
    #[inline(always)]
    pub fn mul_add(self, b: Self, c: Self) -> Self {
        Self::new(self.low().mul_add(b.low(), c.low()), self.high().mul_add(b.high(), c.high()))
    }
}

/// Says that `bytemuck` may make these types of any bytes.
#[cfg(feature = "bytemuck")]
mod plain {
    use bytemuck::{Pod, Zeroable};

    use super::{bf16, bf16x2, f16, f16x2};

    macro_rules! plain {
        ($($t:ty)*) => {$(
            // SAFETY: The type is a transparent integer, for which all bits 0 are a value.
            unsafe impl Zeroable for $t {}
            // SAFETY: The type is a transparent integer: it has no padding, and every bit pattern
            // is a value.
            unsafe impl Pod for $t {}
        )*};
    }
    plain!(f16 bf16 f16x2 bf16x2);
}
