//! A write by a handle of an earlier phase.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<f32>(32);
        let s = b.fill(s, (), |_, (), _| 0.0);
        let w = b.sync(s.write());
        b.each(&w, |t, w| w.set(t, 0, 1.0)); // fix
        let r = b.sync(w.read());
        b.each(&w, |t, w| w.set(t, 0, 1.0)); // bug
        //~^ E0382 `w`
        b.each(&r, |t, r| r.get(t, 0));
    }
}

fn main() {}
