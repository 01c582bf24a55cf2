//! A step that keeps its witness.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let mut keep = None;
        b.each((), |t, ()| keep = Some(t)); // bug
        //~^ E0277 `Copy`
        keep = Some(b.threads()); // fix
        drop(keep);
    }
}

fn main() {}
