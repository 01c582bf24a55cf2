//! A barrier in a step, where only some threads reach it.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        b.each((), |t, ()| if t.rank() == 0 { b.sync(()) }); // bug
        //~^ E0277 `Block<` `Copy`
        b.each((), |t, ()| t.rank()); // fix
        b.sync(()); // fix
    }
}

fn main() {}
