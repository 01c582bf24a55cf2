//! A barrier that is not told what a window becomes.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<f32>(32);
        let s = b.fill(s, (), |_, (), _| 0.0);
        let s = b.sync(s); // bug
        //~^ E0277 `a barrier does not turn ` `Filled<`
        let s = b.sync(s.read()); // fix
        drop(s);
    }
}

fn main() {}
