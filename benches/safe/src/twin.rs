//! The same kernels as `unsafe fn`, as one writes them by hand.

use thalweg_simt::kernel;

kernel! {
    /// Computes `y = a x + y`.
    pub unsafe fn raw_saxpy(cx: impl Simt, n: u32, a: f32, x: In<f32>, y: InOut<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            y.set(cx, i, cx.fma(a, x.get(cx, i), y.get(cx, i)));
        }
    }
}
