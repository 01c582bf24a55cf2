//! A barrier in a function that a step calls.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let mut wait = || b.sync(());
        b.each((), |_, ()| wait()); // bug
        //~^ E0277 `Copy`
        wait(); // fix
    }
}

fn main() {}
