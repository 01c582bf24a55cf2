//! An array whose length is a constant, which could have another value on the GPU.
use thalweg::{kernel, ptx};

ptx! {}

const N: usize = 4;

kernel! {
    fn k(t: impl Simt, n: u32, x: In<[f32; N]>[n]) // bug
    //~ error `cannot have a parameter of type `
    //~ E0277 `cannot have elements of type`
    fn k(t: impl Simt, n: u32, x: In<[f32; 4]>[n]) // fix
    grid(1) block(32)
    {
        let _ = x.extent(0);
    }
}

fn main() {
    let _ = N;
}
