//! Two blocks out of one.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let mut other = b.clone(); // bug
        //~^ E0599 `clone` `Block<`
        let mut other = b; // fix
        other.sync(());
    }
}

fn main() {}
