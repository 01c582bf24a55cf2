//! A witness on another thread of the host.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, y: Out<f32>[n] by [x])
    grid(1) block(32)
    {
        std::thread::scope(|s| { // bug
            s.spawn(|| y.cell(t).is_some()); // bug
            //~^ E0277 `cannot be`
        }); // bug
        y.cell(t); // fix
    }
}

fn main() {}
