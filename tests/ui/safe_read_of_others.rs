//! A read of what another thread owns.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: InOut<f32>[n] by [x])
    grid(1) block(32)
    {
        if let Some(mine) = y.cell(t) {
            mine.set(y.get(t, [0])); // bug
            //~^ E0599 `get` `Own<`
            mine.set(mine.get()); // fix
        }
    }
}

fn main() {}
