//! A write to an element of shared memory that another thread owns.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<f32>(32);
        let s = b.fill(s, (), |_, (), _| 0.0);
        let w = b.sync(s.write());
        b.each(&w, |_, w| w.set(0, 1.0)); // bug
        //~^ E0061 `this method takes 3 arguments`
        b.each(&w, |t, w| w.set(t, 0, 1.0)); // fix
    }
}

fn main() {}
