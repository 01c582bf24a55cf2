//! A step that borrows a variable of the block to write it.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let mut rank = 0;
        b.each((), |t, ()| rank = t.rank()); // bug
        //~^ E0277 `&mut u32` `Copy`
        rank += b.threads(); // fix
        if rank == 0 { b.sync(()) }
    }
}

fn main() {}
