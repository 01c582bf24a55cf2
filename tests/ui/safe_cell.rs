//! A step that writes a `Cell` of the block.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let rank = core::cell::Cell::new(0);
        b.each((), |t, ()| rank.set(t.rank())); // bug
        //~^ E0373 `rank`
        rank.set(b.threads()); // fix
        if rank.get() == 0 { b.sync(()) }
    }
}

fn main() {}
