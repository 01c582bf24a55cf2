//! An area of a buffer that other threads write.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, x: InOut<f32>[n, n] by [y, x]) // bug
    fn k(t: impl Simt, n: u32, x: In<f32>[n, n]) // fix
    grid(1) block(32)
    {
        let _ = x.area([0, 0], [0, 0]);
        //~^ E0599 `area`
    }
}

fn main() {}
