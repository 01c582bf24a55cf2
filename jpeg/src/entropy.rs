//! The entropy decoder of scans, for the host: sequential ones (ITU-T T.81, F.2.2) and progressive
//! ones (annex G).
//!
//! `order` gives the place in the block of each coefficient, which come in zigzag order. Data with
//! a code that its table lacks, or with too many coefficients for a block or band, does not fit.

use crate::bits::{Bits, Table};

/// The coefficients of a block.
pub(crate) type Block = [i16; 64];

/// The place of each coefficient of a block, row by row, in zigzag order (T.81, figure A.6).
pub(crate) const BY_ROWS: [u8; 64] = {
    let mut order = thalweg_kernels::jpeg::ZIGZAG;
    let mut i = 0;
    while i < 64 {
        order[i] = order[i] % 8 * 8 + order[i] / 8;
        i += 1;
    }
    order
};

/// Decodes a block of a sequential scan, whose coefficients are 0 before. Returns one more than the
/// place of the last coefficient that is not 0, in zigzag order, or a larger number. `None` if its
/// codes do not fit.
#[inline(always)]
pub(crate) fn sequential(
    bits: &mut Bits<'_>,
    [dc, ac]: [&Table; 2],
    prediction: &mut i32,
    order: &[u8; 64],
    block: &mut Block,
) -> Option<u32> {
    *prediction = prediction.wrapping_add(bits.code(dc)?.value);
    block[usize::from(order[0]) & 63] = *prediction as i16;
    let mut next = 1;
    while next < 64 {
        let code = bits.code(ac)?;
        if code.size > 0 {
            next += code.run;
            block[place(order, next)] = code.value as i16;
            next += 1;
        } else if code.run == 15 {
            next += 16;
        } else {
            return Some(next);
        }
    }
    // A run of 16 zeros that ends with the block is the end of the block, too.
    (next == 64).then_some(64)
}

/// Returns the place of a coefficient in its block.
#[inline(always)]
fn place(order: &[u8; 64], number: u32) -> usize {
    usize::from(order[number as usize & 63]) & 63
}

/// The band of a progressive scan: the coefficients, as places in zigzag order, and their bits.
#[derive(Clone, Copy)]
pub(crate) struct Band {
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The coefficients have got their upper bits by an earlier scan.
    pub(crate) refines: bool,
    /// The lowest bit that this scan gives.
    pub(crate) low: u32,
}

/// Decodes the upper bits of the coefficients of a band. `nonzero` are the coefficients that are
/// not 0, by their places in zigzag order, and `run` counts the blocks of which the scan says no
/// more.
#[inline(always)]
pub(crate) fn upper(
    bits: &mut Bits<'_>,
    table: &Table,
    band: Band,
    run: &mut u32,
    order: &[u8; 64],
    block: &mut Block,
    nonzero: &mut u64,
) -> Option<()> {
    if *run > 0 {
        *run -= 1;
        return Some(());
    }
    let mut next = band.first;
    while next <= band.last {
        let code = bits.code(table)?;
        if code.size > 0 {
            next += code.run;
            if next > band.last {
                return None;
            }
            block[place(order, next)] = (code.value << band.low) as i16;
            *nonzero |= 1 << next;
            next += 1;
        } else if code.run == 15 {
            next += 16;
        } else {
            *run = (1 << code.run) + bits.take(code.run) - 1;
            break;
        }
    }
    Some(())
}

/// Decodes the next bit of the coefficients of a band, as [`upper`] decodes the upper ones.
#[inline(always)]
pub(crate) fn refine(
    bits: &mut Bits<'_>,
    table: &Table,
    band: Band,
    run: &mut u32,
    order: &[u8; 64],
    block: &mut Block,
    nonzero: &mut u64,
) -> Option<()> {
    let bit = 1_i16 << band.low;
    let known = *nonzero;
    let mut next = band.first;
    while *run == 0 && next <= band.last {
        let symbol = bits.symbol(table)?;
        let mut zeros = symbol >> 4;
        let value = match symbol & 15 {
            0 if zeros < 15 => {
                *run = (1 << zeros) + bits.take(zeros);
                break;
            }
            0 => 0,
            1 if bits.take(1) == 1 => bit,
            1 => -bit,
            _ => return None,
        };
        // Passes so many coefficients that are still 0, and gives those that are not their next
        // bit.
        while next <= band.last {
            if known >> next & 1 == 1 {
                next_bit(bits, &mut block[place(order, next)], bit);
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            next += 1;
        }
        if value != 0 {
            if next > band.last {
                return None;
            }
            block[place(order, next)] = value;
            *nonzero |= 1 << next;
        }
        next += 1;
    }
    if *run > 0 {
        *run -= 1;
        // Only those that are not 0 have a bit.
        let from = if next > 63 { 0 } else { u64::MAX << next };
        let mut left = known & from & (u64::MAX >> (63 - band.last));
        while left != 0 {
            next_bit(bits, &mut block[place(order, left.trailing_zeros())], bit);
            left &= left - 1;
        }
    }
    Some(())
}

/// Takes the next bit of a coefficient that is not 0.
#[inline(always)]
fn next_bit(bits: &mut Bits<'_>, coefficient: &mut i16, bit: i16) {
    if bits.take(1) == 1 && *coefficient & bit == 0 {
        *coefficient = coefficient.wrapping_add(if *coefficient >= 0 { bit } else { -bit });
    }
}
