//! A parameter that is neither a number nor a buffer.
use thalweg::{kernel, ptx};

ptx! {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Pair([u32; 2]);

kernel! {
    unsafe fn nothing(cx: impl Simt, pair: Pair) // bug
    //~^ E0277 `a kernel cannot have a parameter of type` `Pair` `by_value!`
    unsafe fn nothing(cx: impl Simt, first: u32, second: usize, both: bool, all: [u64; 2]) // fix
    grid(1) block(256)
    {}
}

fn main() {}
