//! A write by nobody.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: Out<f32>[n] by [x])
    grid(1) block(32)
    {
        y.set([0], 1.0); // bug
        //~^ E0061 `this method takes 3 arguments`
        y.set(t, [t.rank()], 1.0); // fix
    }
}

fn main() {}
