//! A buffer that is kept beyond the launch.
use thalweg::{kernel, ptx};

ptx! {}

use thalweg::simt::safe::In;
thread_local! {
    static KEEP: std::cell::RefCell<Option<In<'static, f32, 1>>> = const { std::cell::RefCell::new(None) };
}

kernel! {
    fn k(t: impl Simt, n: u32, x: In<f32>[n])
    grid(1) block(32)
    {
        KEEP.with(|keep| *keep.borrow_mut() = Some(x)); // bug
        //~^ E0521 `'k` `'static`
        let _ = x.get(t, [0]); // fix
    }
}

fn main() {}
