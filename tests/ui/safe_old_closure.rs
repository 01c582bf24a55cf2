//! A step that keeps a handle of an earlier phase.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(256)
    {
        let s = b.shared::<f32>(32);
        let s = b.fill(s, (), |_, (), _| 0.0);
        let r = b.sync(s.read());
        b.each((), |t, ()| r.get(t, 0)); // bug
        //~^ E0373 `r`
        b.each(&r, |t, r| r.get(t, 0)); // fix
        let _ = b.sync(r.write());
        //~^ E0505 `r`
    }
}

fn main() {}
