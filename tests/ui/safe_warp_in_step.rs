//! An operation of the warp in a step.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        b.each((), |t, ()| t.warp_sum(1.0)); // bug
        //~^ E0599 `warp_sum`
        let one = b.each((), |_, ()| 1.0); // fix
        b.warp_sum(&one); // fix
    }
}

fn main() {}
