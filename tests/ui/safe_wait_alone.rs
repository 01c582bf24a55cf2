//! A wait in a kernel whose threads are independent.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt)
    grid(1) block(32)
    {
        t.sync(()); // bug
        //~^ E0599 `sync`
        t.rank(); // fix
    }
}

fn main() {}
