//! A read of an output.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: Out<f32>[n] by [x])
    grid(1) block(32)
    {
        if let Some(y) = y.cell(t) {
            y.set(y.get() + 1.0); // bug
            //~^ E0599 `get` `Cell<`
            y.set(1.0); // fix
        }
    }
}

fn main() {}
