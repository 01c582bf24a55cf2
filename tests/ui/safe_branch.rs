//! Code of the block that branches on a value of a thread.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let first = b.each((), |t, ()| t.rank() == 0);
        if first { // bug
            //~^ E0308 `Local<`
        if b.any(&first) { // fix
            b.sync(());
        }
    }
}

fn main() {}
