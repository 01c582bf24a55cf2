//! A handle of one phase in the place of another.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let (s, u) = (b.shared::<f32>(32), b.shared::<f32>(32));
        let (s, u) = (b.fill(s, (), |_, (), _| 0.0), b.fill(u, (), |_, (), _| 0.0));
        let (mut w, mut r) = b.sync((s.write(), u.read())); // bug
        let (mut w, mut r) = b.sync((s.read(), u.read())); // fix
        core::mem::swap(&mut w, &mut r);
        //~^ E0308 `mismatched types`
        drop((w, r));
    }
}

fn main() {}
