//! A body that disagrees with the declaration about a buffer's elements.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    unsafe fn clear(cx: impl Simt, n: u32, x: Out<u32>) // bug
    unsafe fn clear(cx: impl Simt, n: u32, x: Out<f32>) // fix
    require { x.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x() as usize;
        if i < n as usize {
            x.set(cx, i, 0.0);
            //~^ E0308 `u32`
        }
    }
}

fn main() {}
