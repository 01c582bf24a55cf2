#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use thalweg_simt::{kernel, ptx};

ptx! { unsafe "kernels" }

const BLOCK: u32 = 256;

kernel! {
    /// Computes `y = a x + y`, element by element.
    pub unsafe fn saxpy(cx: impl Simt, n: u32, a: f32, x: In<f32>, y: InOut<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        let i = cx.global_x();
        if i < n {
            y.set(cx, i, cx.fma(a, x.get(cx, i), y.get(cx, i)));
        }
    }
}
