//! A write to an input.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, x: In<f32>[n], y: Out<f32>[n] by [x])
    grid(1) block(32)
    {
        x.set(t, [0], 1.0); // bug
        //~^ E0599 `set` `In<`
        y.set(t, [t.rank()], x.get(t, [0])); // fix
    }
}

fn main() {}
