//! An ordinary read of what others add to.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<u32>(32);
        let s = b.fill(s, (), |_, (), _| 0);
        let s = b.sync(s.add());
        b.each(&s, |t, s| s.get(t, 0)); // bug
        //~^ E0599 `get` `Adding<`
        b.each(&s, |t, s| s.add(t, 0, 1)); // fix
    }
}

fn main() {}
