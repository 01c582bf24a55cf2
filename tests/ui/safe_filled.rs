//! A read of shared memory before the barrier.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<f32>(32);
        let s = b.fill(s, (), |_, (), _| 0.0);
        let s = b.sync(s.read()); // fix
        b.each(&s, |_, _| ());
        //~^ E0277 `a thread step cannot take ` `Filled<`
    }
}

fn main() {}
