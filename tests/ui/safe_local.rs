//! A look into the value of a thread without its witness.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let rank = b.each((), |t, ()| t.rank());
        if rank.get() == 0 { b.sync(()) } // bug
        //~^ E0061 `this method takes 1 argument`
        b.each(&rank, |t, rank| rank.get(t) == 0); // fix
    }
}

fn main() {}
