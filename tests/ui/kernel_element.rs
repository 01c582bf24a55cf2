//! Elements that a kernel cannot load in one access, or that not every bit pattern is a value of.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    unsafe fn clear(cx: impl Simt, n: u32, x: Out<bool>) // bug
    //~^ E0277 `bool` `a buffer of a kernel cannot have elements of type` `Pass truth values as`
    unsafe fn clear(cx: impl Simt, n: u32, x: Out<u8>) // fix
    require { x.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x() as usize;
        if i < n as usize {
            x.set(cx, i, Default::default());
            //~^ E0599 `set` `Out<bool>`
        }
    }
}

fn main() {}
