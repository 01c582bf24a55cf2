//! A place of an area that leaves its thread.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative, n: u32, x: In<f32>[n, n])
    grid(1) block(32)
    {
        let area = x.area([0, 0], [n, n]);
        b.each((), move |t, ()| area.every(t, 0, 1).next()); // bug
        //~^ E0277 `Copy`
        b.each((), move |t, ()| area.every(t, 0, 1).next().is_some()); // fix
    }
}

fn main() {}
