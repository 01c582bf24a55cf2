//! A type of parameter that a module could define twice.
use thalweg::{kernel, ptx};

ptx! {}

type Float = f32;

kernel! {
    fn k(t: impl Simt, a: Float) // bug
    //~ error `cannot have a parameter of type `
    //~ E0080 `at least one byte`
    //~ E0599 `put`
    //~ E0277 `a kernel cannot have a parameter of type`
    fn k(t: impl Simt, a: f32) // fix
    grid(1) block(32)
    {
        let _ = t.rank();
    }
}

fn main() {}
