//! An index with one coordinate for a buffer with two dimensions.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, x: In<f32>[n, n])
    grid(1) block(32)
    {
        let _ = x.get(t, [3]); // bug
        //~^ E0308 `an array with a size of 2`
        let _ = x.get(t, [3, 0]); // fix
    }
}

fn main() {}
