//! A read of shared memory that no barrier turned.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<f32>(32);
        let s = b.fill(s, (), |_, (), _| 0.0).read(); // bug
        let s = b.fill(s, (), |_, (), _| 0.0); // fix
        let s = b.sync(s.read()); // fix
        b.each(&s, |_, _| ());
        //~^ E0277 `a thread step cannot take ` `ToReading<`
    }
}

fn main() {}
