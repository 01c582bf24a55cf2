//! A step that returns its witness.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        b.each((), |t, ()| t); // bug
        //~^ error `lifetime may not live long enough`
        //~^ E0309 `'k`
        b.each((), |t, ()| t.rank()); // fix
    }
}

fn main() {}
