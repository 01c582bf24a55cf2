//! A declaration without `unsafe` whose buffer has no extents.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn clear(t: impl Simt, n: u32, x: Out<f32>) // bug
    //~ error `states the extents of each buffer` `promise that it stays inside its buffers`
    //~ error `It has this form`
    fn clear(t: impl Simt, n: u32, x: Out<f32>[n] by [x]) // fix
    grid(n.div_ceil(256)) block(256)
    {
        if let Some(x) = x.cell(t) {
            x.set(0.0);
        }
    }
}

fn main() {}
