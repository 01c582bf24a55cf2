//! A declaration without the promise that its body stays inside its buffers.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn clear(cx: impl Simt, n: u32, x: Out<f32>) // bug
    //~ error `unsafe`
    unsafe fn clear(cx: impl Simt, n: u32, x: Out<f32>) // fix
    require { x.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x() as usize;
        if i < n as usize {
            x.set(cx, i, 0.0);
        }
    }
}

fn main() {}
