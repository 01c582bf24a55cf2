//! Operations on the bits of integers that Rust's integers have no method for.

/// Operations on integers that a GPU has an instruction for and that Rust's integers lack.
///
/// For the others, Rust's methods become the instructions: `count_ones` (`popc`), `leading_zeros`
/// (`clz`), `reverse_bits` (`brev`), `swap_bytes` (`prmt`), `rotate_left` (`shf.l`), `min` and
/// `max`. `trailing_zeros` and `abs_diff` take three instructions.
pub trait Bits: Copy {
    /// Computes `c` plus the dot product of the four bytes of `a` and the four bytes of `b`, modulo
    /// 2^32 (`dp4a.u32.u32`).
    #[must_use]
    #[inline(always)]
    fn dp4a_u32(self, a: u32, b: u32, c: u32) -> u32 {
        // Written out, as below: iterators over bytes do not always become registers on the host,
        // and then a sum waits for memory several times.
        let product = |shift: u32| (a >> shift & 255) * (b >> shift & 255);
        c.wrapping_add(product(0)).wrapping_add(product(8)).wrapping_add(product(16)).wrapping_add(product(24))
    }
    /// Computes `c` plus the dot product of the four signed bytes of `a` and the four signed bytes
    /// of `b`, modulo 2^32 (`dp4a.s32.s32`).
    #[must_use]
    #[inline(always)]
    fn dp4a_i32(self, a: u32, b: u32, c: i32) -> i32 {
        let product = |shift: u32| i32::from((a >> shift) as i8) * i32::from((b >> shift) as i8);
        c.wrapping_add(product(0)).wrapping_add(product(8)).wrapping_add(product(16)).wrapping_add(product(24))
    }
    /// Computes `c + low * b0 + high * b1` modulo 2^32, where `low` and `high` are the 16-bit
    /// halves of `a`, and `b0` and `b1` are bytes 0 and 1 of `b` (`dp2a.lo.u32.u32`).
    #[must_use]
    #[inline(always)]
    fn dp2a_lo_u32(self, a: u32, b: u32, c: u32) -> u32 {
        c.wrapping_add((a & 0xffff) * (b & 255)).wrapping_add((a >> 16) * (b >> 8 & 255))
    }
    /// Does the same as [`dp2a_lo_u32`](Bits::dp2a_lo_u32) with bytes 2 and 3 of `b`
    /// (`dp2a.hi.u32.u32`).
    #[must_use]
    #[inline(always)]
    fn dp2a_hi_u32(self, a: u32, b: u32, c: u32) -> u32 {
        self.dp2a_lo_u32(a, b >> 16, c)
    }
    /// Computes `c + low * b0 + high * b1` modulo 2^32, where `low` and `high` are the signed
    /// 16-bit halves of `a`, and `b0` and `b1` are the signed bytes 0 and 1 of `b`
    /// (`dp2a.lo.s32.s32`).
    #[must_use]
    #[inline(always)]
    fn dp2a_lo_i32(self, a: u32, b: u32, c: i32) -> i32 {
        let (low, high) = (i32::from(a as i16), a as i32 >> 16);
        c.wrapping_add(low * i32::from(b as i8)).wrapping_add(high * i32::from((b >> 8) as i8))
    }
    /// Does the same as [`dp2a_lo_i32`](Bits::dp2a_lo_i32) with bytes 2 and 3 of `b`
    /// (`dp2a.hi.s32.s32`).
    #[must_use]
    #[inline(always)]
    fn dp2a_hi_i32(self, a: u32, b: u32, c: i32) -> i32 {
        self.dp2a_lo_i32(a, b >> 16, c)
    }
    /// Computes `c + low * b0 + high * b1` modulo 2^32, where `low` and `high` are the signed
    /// 16-bit halves of `a`, and `b0` and `b1` are bytes 0 and 1 of `b`, without signs
    /// (`dp2a.lo.s32.u32`).
    #[must_use]
    #[inline(always)]
    fn dp2a_lo_i32_u32(self, a: u32, b: u32, c: i32) -> i32 {
        let (low, high) = (i32::from(a as i16), a as i32 >> 16);
        c.wrapping_add(low * (b & 255) as i32).wrapping_add(high * (b >> 8 & 255) as i32)
    }
    /// Does the same as [`dp2a_lo_i32_u32`](Bits::dp2a_lo_i32_u32) with bytes 2 and 3 of `b`
    /// (`dp2a.hi.s32.u32`).
    #[must_use]
    #[inline(always)]
    fn dp2a_hi_i32_u32(self, a: u32, b: u32, c: i32) -> i32 {
        self.dp2a_lo_i32_u32(a, b >> 16, c)
    }

    /// Makes a word of four bytes of `a` and `b` (`prmt`, `__byte_perm`). Bytes 0 to 3 are those of
    /// `a`, bytes 4 to 7 those of `b`. Bits 0 to 2 of each hexadecimal digit of `selector` name the
    /// source of a byte of the result, from the lowest digit to the fourth. If bit 3 of the digit
    /// is set, the byte becomes eight copies of the source's top bit.
    #[must_use]
    #[inline(always)]
    fn byte_perm(self, a: u32, b: u32, selector: u32) -> u32 {
        let bytes = u64::from(b) << 32 | u64::from(a);
        u32::from_le_bytes([0, 4, 8, 12].map(|shift| {
            let digit = selector >> shift;
            let byte = (bytes >> (8 * (digit & 7))) as u8;
            if digit & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
        }))
    }
    /// Makes a word of two signed integers, each clamped to 0 ..= 255, and of half a word: byte 0
    /// is `low`, byte 1 is `high`, and the upper half is the lower half of `above`
    /// (`cvt.pack.sat.u8.s32.b32`). Two of them make a word of four integers.
    #[must_use]
    #[inline(always)]
    fn clamped_bytes(self, low: i32, high: i32, above: u32) -> u32 {
        above << 16 | (high.clamp(0, 255) as u32) << 8 | low.clamp(0, 255) as u32
    }
    /// Returns the high word of `high:low << (shift % 32)` (`shf.l.wrap`, `__funnelshift_l`).
    #[must_use]
    #[inline(always)]
    fn funnel_shift_left(self, low: u32, high: u32, shift: u32) -> u32 {
        (((u64::from(high) << 32 | u64::from(low)) << (shift % 32)) >> 32) as u32
    }
    /// Returns the low word of `high:low >> (shift % 32)` (`shf.r.wrap`, `__funnelshift_r`).
    #[must_use]
    #[inline(always)]
    fn funnel_shift_right(self, low: u32, high: u32, shift: u32) -> u32 {
        ((u64::from(high) << 32 | u64::from(low)) >> (shift % 32)) as u32
    }

    /// Returns the high word of the product (`mul.hi.u32`, `__umulhi`).
    #[must_use]
    #[inline(always)]
    fn mul_hi_u32(self, a: u32, b: u32) -> u32 {
        ((u64::from(a) * u64::from(b)) >> 32) as u32
    }
    /// Returns the high word of the product (`mul.hi.s32`, `__mulhi`).
    #[must_use]
    #[inline(always)]
    fn mul_hi_i32(self, a: i32, b: i32) -> i32 {
        ((i64::from(a) * i64::from(b)) >> 32) as i32
    }
    /// Returns the high 64 bits of the product (`mul.hi.u64`, `__umul64hi`).
    #[must_use]
    #[inline(always)]
    fn mul_hi_u64(self, a: u64, b: u64) -> u64 {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    }
}
