//! Arithmetic of floating-point numbers.

use thalweg_simt::kernel;

kernel! {
    /// Computes `x * scale + c` with one rounding, element by element.
    pub unsafe fn fused(cx: impl Simt, n: u32, scale: f32, c: f32, x: In<f32>, y: Out<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            y.set(cx, i, cx.fma_rn(x.get(cx, i), scale, c));
        }
    }
}

kernel! {
    /// Computes `saturate(x)` and the sum, the difference and the product of `x` and `y`, and
    /// `x y + x`, clamped to [0, 1].
    pub unsafe fn saturated(cx: impl Simt, n: u32, x: In<f32>, y: In<f32>, results: Out<f32>)
    require { x.len() == n, y.len() == n, results.len() == 5 * n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            let (x, y) = (x.get(cx, i), y.get(cx, i));
            let values = [cx.saturate(x), cx.add_sat(x, y), cx.sub_sat(x, y), cx.mul_sat(x, y), cx.fma_sat(x, y, x)];
            for (k, v) in values.into_iter().enumerate() {
                results.set(cx, i * 5 + k as u32, v);
            }
        }
    }
}
