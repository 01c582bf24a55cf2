//! GELU where it is no epilogue of a product, its gradient, and rounding.
//!
//! ```text
//! tanh: y = x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3)
//! erf:  y = x / 2 (1 + erf(x / sqrt 2)) = x F(x);  dy / dx = F(x) + x exp(-x^2 / 2) / sqrt(2 pi)
//! ```
//!
//! Launch: a thread for each element, or for four neighbors of `bf16`, which are one word of 64
//! bits, if buffers begin at multiples of a word and have whole ones. Accesses of 2 bytes took
//! three times as long.

use thalweg_simt::{Simt, kernel};

use super::number::Stored;
use crate::parts::gelu::{gelu_erf, gelu_tanh};

/// Computes the derivative of GELU.
#[inline(always)]
fn derivative(cx: impl Simt, erf: bool, x: f32) -> f32 {
    const LOG2_E: f32 = core::f32::consts::LOG2_E;
    if erf {
        // F(x) = gelu(x) / x, and 1 / 2 at 0.
        let f = if x == 0.0 { 0.5 } else { gelu_erf(cx, x) / x };
        cx.fma(x * 0.398_942_3, cx.exp2_approx(-0.5 * LOG2_E * x * x), f)
    } else {
        // With f = (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), the derivative is f + x f' and
        // f' = 2 f (1 - f) du/dx. If the exponential overflows, f and f' are 0.
        let u = 0.797_884_6 * x * cx.fma(0.044_715 * x, x, 1.0);
        let f = cx.recip_approx(1.0 + cx.exp2_approx(-2.0 * LOG2_E * u));
        let slope = 0.797_884_6 * cx.fma(0.134_145 * x, x, 1.0);
        let bell = 2.0 * f * (1.0 - f);
        f + if bell == 0.0 { 0.0 } else { x * bell * slope }
    }
}

kernel! {
    /// Computes GELU of each element, by the error function or by the hyperbolic tangent. For
    /// `bf16`, it has `f32` in between.
    pub(super) fn gelu<E: Stored>(t: impl Simt, n: u32, erf: bool, x: In<E>[n], y: Out<E>[n] by [x])
    instances { gelu_f32 = <f32>, gelu_bf16 = <u16> }
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(y) = y.cell(t) {
            let x = x.get(t, y.at()).wide();
            y.set(E::narrow(if erf { gelu_erf(**t, x) } else { gelu_tanh(**t, x) }));
        }
    }
}

kernel! {
    /// Multiplies the gradients `d` of GELU's results by its derivative at `x`.
    pub(super) fn gelu_backward<E: Stored>(t: impl Simt, n: u32, erf: bool, x: In<E>[n], d: InOut<E>[n] by [x])
    instances { gelu_backward_f32 = <f32>, gelu_backward_bf16 = <u16> }
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(d) = d.cell(t) {
            let slope = derivative(**t, erf, x.get(t, d.at()).wide());
            d.set(E::narrow(d.get().wide() * slope));
        }
    }
}

/// Applies `f` to the four elements of each word, element by element.
#[inline(always)]
fn each(words: [u64; 2], f: impl Fn(f32, f32) -> f32) -> u64 {
    let one = |shift: u32| {
        let [a, b] = words.map(|word| ((word >> shift) as u16).wide());
        u64::from(u16::narrow(f(a, b))) << shift
    };
    one(0) | one(16) | one(32) | one(48)
}

kernel! {
    /// Does the same as [`gelu`] for four elements of `bf16` in a word.
    pub(super) fn gelu_bf16_words(t: impl Simt, n: u32, erf: bool, x: In<u64>[n], y: Out<u64>[n] by [x])
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(y) = y.cell(t) {
            let x = x.get(t, y.at());
            y.set(each([x, x], |x, _| if erf { gelu_erf(**t, x) } else { gelu_tanh(**t, x) }));
        }
    }
}

kernel! {
    /// Does the same as [`gelu_backward`] for four elements of `bf16` in a word.
    pub(super) fn gelu_backward_bf16_words(t: impl Simt, n: u32, erf: bool, x: In<u64>[n], d: InOut<u64>[n] by [x])
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(d) = d.cell(t) {
            let x = x.get(t, d.at());
            d.set(each([d.get(), x], |d, x| d * derivative(**t, erf, x)));
        }
    }
}

kernel! {
    /// Rounds each element to `bf16`. The result has the bits of the numbers.
    pub(super) fn round(t: impl Simt, n: u32, x: In<f32>[n], y: Out<u16>[n] by [x])
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(y) = y.cell(t) {
            y.set(u16::narrow(x.get(t, y.at())));
        }
    }
}

kernel! {
    /// Does the same as [`round`] for four elements, whose numbers are two words and whose bits are
    /// one.
    pub(super) fn round_words(t: impl Simt, n: u32, x: In<u64>[n, 2], y: Out<u64>[n] by [x])
    grid(n.div_ceil(128)) block(128)
    {
        if let Some(y) = y.cell(t) {
            let [i] = y.at();
            let two = |k: u32| {
                let word = x.get(t, [i, k]);
                let [low, high] = [word as u32, (word >> 32) as u32].map(|bits| u16::narrow(f32::from_bits(bits)));
                u64::from(low) | u64::from(high) << 16
            };
            y.set(two(0) | two(1) << 32);
        }
    }
}

/// Replaces each element of the thread's columns by what `f` computes from it and its number, and
/// returns the sums of the results as they are stored. The loads of four rows wait together.
macro_rules! with_sums {
    ($cells:expr, |$cell:ident| $load:expr, $none:expr, |$v:ident| $f:expr) => {{
        let (mut cells, mut sums) = ($cells, [0.0; 4]);
        loop {
            let four = [cells.next(), cells.next(), cells.next(), cells.next()];
            let loaded = four.each_ref().map(|cell| cell.as_ref().map_or($none, |$cell| $load));
            let mut i = 0;
            while i < 4 {
                let $v = loaded[i];
                let result: [u16; 4] = $f;
                let Some(cell) = &four[i] else { break };
                cell.set(result);
                let mut k = 0;
                while k < 4 {
                    sums[k] += result[k].wide();
                    k += 1;
                }
                i += 1;
            }
            if i < 4 {
                break;
            }
        }
        sums
    }};
}

kernel! {
    /// Does the same as [`gelu_backward`], and sums the rows of the results by columns: every row
    /// whose number is `k` modulo `groups` belongs to sum `k`.
    pub(super) fn gelu_backward_columns(
        t: impl Simt, rows: u32, columns: u32, groups: u32, erf: bool, x: In<[u16; 4]>[rows, fours = columns / 4],
        d: InOut<[u16; 4]>[rows, fours] by [stride(y), x], sums: Out<[f32; 4]>[groups, fours] by [y, x],
    )
    require { columns.is_multiple_of(4) }
    grid(fours.div_ceil(64), groups) block(64)
    {
        if let Some(cell) = sums.cell(t) {
            cell.set(with_sums!(d.mine(t), |cell| [cell.get(), x.get(t, cell.at())], [[0; 4]; 2], |v| {
                core::array::from_fn(|k| u16::narrow(v[0][k].wide() * derivative(**t, erf, v[1][k].wide())))
            }));
        }
    }
}

kernel! {
    /// Does the same as [`round`], and sums the rows of the results by columns, as
    /// [`gelu_backward_columns`] does.
    pub(super) fn round_columns(
        t: impl Simt, rows: u32, columns: u32, groups: u32, x: In<[f32; 4]>[rows, fours = columns / 4],
        y: Out<[u16; 4]>[rows, fours] by [stride(y), x], sums: Out<[f32; 4]>[groups, fours] by [y, x],
    )
    require { columns.is_multiple_of(4) }
    grid(fours.div_ceil(64), groups) block(64)
    {
        if let Some(cell) = sums.cell(t) {
            cell.set(with_sums!(y.mine(t), |cell| x.get(t, cell.at()), [0.0; 4], |v| v.map(u16::narrow)));
        }
    }
}
