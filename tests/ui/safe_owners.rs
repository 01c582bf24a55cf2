//! An output with two dimensions and one owner.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: Out<f32>[n, n] by [x]) // bug
    fn k(t: impl Simt, n: u32, y: Out<f32>[n, n] by [y, x]) // fix
    grid(1) block(32)
    {
        y.cell(t);
        //~^ E0599 `cell`
    }
}

fn main() {}
