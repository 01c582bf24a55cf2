//! A read of shared memory that was never given values.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<f32>(32);
        b.each(&s, |_, _| ()); // bug
        //~^ E0277 `a thread step cannot take ` `Fresh<`
        let s = b.fill(s, (), |_, (), _| 0.0); // fix
        let s = b.sync(s.read()); // fix
        b.each(&s, |t, s| s.get(t, 0)); // fix
    }
}

fn main() {}
