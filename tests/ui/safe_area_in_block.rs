//! A walk over an area in code of the block, which would give each thread the same places.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative, n: u32, x: In<f32>[n, n])
    grid(1) block(32)
    {
        let area = x.area([0, 0], [n, n]);
        let _ = area.every(&b, 0, 1).count(); // bug
        //~^ E0308 `Thread<`
        b.each((), move |t, ()| area.every(t, 0, 1).count()); // fix
    }
}

fn main() {}
