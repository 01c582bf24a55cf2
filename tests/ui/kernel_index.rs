//! An index that is no whole number of elements.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    unsafe fn double(cx: impl Simt, n: u32, x: In<f32>, y: Out<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        let i = i as f32; // bug
        if i < n as f32 { // bug
        if i < n { // fix
            let first = x.get(cx, 0);
            y.set(cx, i, first * x.get(cx, i));
            //~^ E0277 `f32` `does not index a buffer` `u32` `usize`
        }
    }
}

fn main() {}
