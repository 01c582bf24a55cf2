//! Products of matrices of bytes in a step, where only some threads reach them.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let (weights, bytes) = (b.each((), |_, ()| [0; 4]), b.each((), |_, ()| [[0; 2]]));
        let sums = b.each((), |_, ()| [[0; 4]]);
        b.each((), |t, ()| if t.rank() == 0 { b.multiply_bytes::<true, 1>(&weights, &bytes, &sums); }); // bug
        //~^ E0277 `Block<` `Copy`
        b.multiply_bytes::<true, 1>(&weights, &bytes, &sums); // fix
    }
}

fn main() {}
