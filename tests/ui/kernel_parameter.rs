//! A parameter whose size is not the same everywhere.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    //~^ E0277 `usize` `Argument`
    unsafe fn nothing(cx: impl Simt, n: usize) // bug
    unsafe fn nothing(cx: impl Simt, n: u64) // fix
    grid(n) block(256)
    {}
}

fn main() {}
