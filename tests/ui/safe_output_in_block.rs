//! A read of an output in code of the block.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative, n: u32, y: InOut<f32>[n] by [x])
    grid(1) block(32)
    {
        if y.cell(&b).is_some() { b.sync(()) } // bug
        //~^ E0308 `Thread<`
        b.each((), move |t, ()| y.cell(t).is_some()); // fix
    }
}

fn main() {}
