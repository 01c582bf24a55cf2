//! A step that writes a variable of the block.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let mut rank = 0;
        b.each((), move |t, ()| rank = t.rank()); // bug
        //~^ E0594 `rank` `Fn`
        rank += b.threads(); // fix
        if rank == 0 { b.sync(()) }
    }
}

fn main() {}
