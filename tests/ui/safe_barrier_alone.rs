//! The barrier of unsafe kernels in a kernel without `unsafe`.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt)
    grid(1) block(32)
    {
        t.barrier(); // bug
        //~^ E0599 `barrier`
        t.rank(); // fix
    }
}

fn main() {}
