//! A macro that is called like the one that a launcher declares for itself.
use thalweg::{kernel, ptx};

ptx! {}

macro_rules! __thalweg_known { ($($t:tt)*) => { 1 }; } // bug

kernel! {
    //~^ E0659 `__thalweg_known` `ambiguous`
    fn k(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
}

fn main() {}
