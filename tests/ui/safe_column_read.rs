//! A read of an output through a column.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: Out<f32>[3, n] by [all, x]) // bug
    fn k(t: impl Simt, n: u32, y: InOut<f32>[3, n] by [all, x]) // fix
    grid(1) block(32)
    {
        if let Some(column) = y.column(t) {
            let _ = column.cell::<0>(1).get();
            //~^ E0599 `get`
        }
    }
}

fn main() {}
