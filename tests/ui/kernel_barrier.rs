//! A barrier among threads that are declared independent.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    unsafe fn meet(cx: impl Simt, n: u32) // bug
    unsafe fn meet(cx: impl Cooperative, n: u32) // fix
    grid(n) block(256)
    {
        cx.barrier();
        //~^ E0277 `have no barriers, shared memory and warp operations` `cx: impl Cooperative`
    }
}

fn main() {}
