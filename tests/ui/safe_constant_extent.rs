//! A constant as an extent, which could be another number on the GPU.
use thalweg::{kernel, ptx};

ptx! {}

const N: u32 = 64;

kernel! {
    fn k(t: impl Simt, x: In<f32>[N]) // bug
    //~ error `is not a parameter` `[n = N]`
    fn k(t: impl Simt, x: In<f32>[n = N]) // fix
    grid(1) block(32)
    {
        let _ = x.get(t, [0]);
    }
}

fn main() {}
