//! Operations on integers.

use thalweg_simt::kernel;

/// The number of results of [`integers`] for each element.
pub const RESULTS: u32 = 24;

kernel! {
    /// Computes each operation for each triple of words.
    pub unsafe fn integers(cx: impl Simt, n: u32, a: In<u32>, b: In<u32>, c: In<u32>, results: Out<u32>)
    require { a.len() == n, b.len() == n, c.len() == n, results.len() == n * RESULTS }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            let (a, b, c) = (a.get(cx, i), b.get(cx, i), c.get(cx, i));
            let wide = cx.mul_hi_u64(u64::from(a) << 32 | u64::from(b), u64::from(b) << 32 | u64::from(c));
            let values: [u32; RESULTS as usize] = [
                cx.dp4a_u32(a, b, c),
                cx.dp4a_i32(a, b, c as i32) as u32,
                cx.dp2a_lo_u32(a, b, c),
                cx.dp2a_hi_u32(a, b, c),
                cx.dp2a_lo_i32(a, b, c as i32) as u32,
                cx.dp2a_hi_i32(a, b, c as i32) as u32,
                cx.dp2a_lo_i32_u32(a, b, c as i32) as u32,
                cx.dp2a_hi_i32_u32(a, b, c as i32) as u32,
                cx.byte_perm(a, b, c),
                cx.clamped_bytes(a as i32, b as i32, c),
                cx.clamped_bytes(a as i32 >> 23, b as i32 >> 23, c),
                cx.funnel_shift_left(a, b, c),
                cx.funnel_shift_right(a, b, c),
                cx.mul_hi_u32(a, b),
                cx.mul_hi_i32(a as i32, b as i32) as u32,
                wide as u32,
                (wide >> 32) as u32,
                a.count_ones(),
                a.leading_zeros(),
                a.trailing_zeros(),
                a.reverse_bits(),
                a.swap_bytes(),
                a.rotate_left(c % 32),
                a.abs_diff(b),
            ];
            for (k, v) in values.into_iter().enumerate() {
                results.set(cx, i * RESULTS + k as u32, v);
            }
        }
    }
}
