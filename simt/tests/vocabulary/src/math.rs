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

macro_rules! functions {
    ($($name:ident)*) => {$(
        kernel! {
            /// Computes the function with the kernel's name, element by element.
            pub unsafe fn $name(cx: impl Simt, n: u32, x: In<f32>, y: Out<f32>)
            require { x.len() == n, y.len() == n }
            grid(n.div_ceil(256)) block(256)
            {
                let i = cx.global_x();
                if i < n {
                    y.set(cx, i, cx.$name(x.get(cx, i)));
                }
            }
        }
    )*};
}
functions! {
    sqrt rsqrt recip cbrt exp exp2 exp_m1 ln log2 log10 ln_1p sin cos tan tanh erf floor ceil trunc round round_ties_even
    sqrt_approx rsqrt_approx recip_approx cbrt_approx exp_approx exp2_approx ln_approx log2_approx log10_approx sin_approx cos_approx tanh_approx
}

macro_rules! powers {
    ($($name:ident)*) => {$(
        kernel! {
            /// Computes the function with the kernel's name of the elements of two buffers.
            pub unsafe fn $name(cx: impl Simt, n: u32, x: In<f32>, y: In<f32>, z: Out<f32>)
            require { x.len() == n, y.len() == n, z.len() == n }
            grid(n.div_ceil(256)) block(256)
            {
                let i = cx.global_x();
                if i < n {
                    z.set(cx, i, cx.$name(x.get(cx, i), y.get(cx, i)));
                }
            }
        }
    )*};
}
powers!(powf powf_approx);

kernel! {
    /// Computes the functions of `f32` that Rust has itself: `abs(x)`, `min(x, y)`, `max(x, y)` and
    /// `x.copysign(y)`.
    pub unsafe fn rust_methods(cx: impl Simt, n: u32, x: In<f32>, y: In<f32>, results: Out<f32>)
    require { x.len() == n, y.len() == n, results.len() == 4 * n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            let (x, y) = (x.get(cx, i), y.get(cx, i));
            let values = [x.abs(), x.min(y), x.max(y), x.copysign(y)];
            for (k, v) in values.into_iter().enumerate() {
                results.set(cx, i * 4 + k as u32, v);
            }
        }
    }
}

kernel! {
    /// Computes `x * x + y` and the square root of `x` in `f64`.
    pub unsafe fn doubles(cx: impl Simt, n: u32, x: In<f64>, y: In<f64>, results: Out<f64>)
    require { x.len() == n, y.len() == n, results.len() == 2 * n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            let (x, y) = (x.get(cx, i), y.get(cx, i));
            results.set(cx, 2 * i, cx.fma_f64(x, x, y));
            results.set(cx, 2 * i + 1, cx.sqrt_f64(x));
        }
    }
}
