//! An unsafe function in the body: the macro lends it no `unsafe`.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, x: In<f32>[n])
    grid(1) block(32)
    {
        let v: f32 = t.load(core::ptr::null()); // bug
        //~^ E0133 `load`
        let v: f32 = x.get(t, [0]); // fix
        drop(v);
    }
}

fn main() {}
