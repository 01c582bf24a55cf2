//! The result of an addition in code of the block.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<u32>(32);
        let s = b.fill(s, (), |_, (), _| 0);
        let s = b.sync(s.add());
        if s.add(&b, 0, 1) == 0 { b.sync(()) } // bug
        //~^ E0308 `Thread<`
        b.each(&s, |t, s| s.add(t, 0, 1)); // fix
    }
}

fn main() {}
