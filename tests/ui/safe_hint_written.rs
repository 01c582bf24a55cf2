//! A load by the path for data that nobody writes, of a buffer that the kernel writes.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: InOut<f32>[n] by [x]) // bug
    fn k(t: impl Simt, n: u32, y: In<f32>[n]) // fix
    grid(1) block(32)
    {
        let _ = y.load(t, [0], thalweg::simt::hint::ReadOnly);
        //~^ E0599 `load`
    }
}

fn main() {}
