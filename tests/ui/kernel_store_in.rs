//! A body that stores to an input.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    unsafe fn clear(cx: impl Simt, n: u32, x: In<f32>) // bug
    unsafe fn clear(cx: impl Simt, n: u32, x: Out<f32>) // fix
    require { x.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x() as usize;
        if i < n as usize {
            x.set(cx, i, 0.0);
            //~^ E0599 `set` `In<`
        }
    }
}

fn main() {}
