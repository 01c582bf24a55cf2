//! An output that says of nothing who owns it.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: Out<f32>[n]) // bug
    //~ error `which coordinate of the launch owns`
    //~ E0308 `Own<`
    fn k(t: impl Simt, n: u32, y: Out<f32>[n] by [x]) // fix
    grid(1) block(32)
    {
        t.rank();
    }
}

fn main() {}
