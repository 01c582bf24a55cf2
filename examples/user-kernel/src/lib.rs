#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use thalweg_simt::{kernel, ptx};

ptx! { unsafe "kernels" }

const BLOCK: u32 = 256;

kernel! {
    /// Computes `y = a x + y`, element by element.
    pub fn saxpy(t: impl Simt, n: u32, a: f32, x: In<f32>[n], y: InOut<f32>[n] by [x])
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        if let Some(y) = y.cell(t) {
            y.set(t.fma(a, x.get(t, y.at()), y.get()));
        }
    }
}
