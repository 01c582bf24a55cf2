//! A type that only has the name of a number. Its argument was not put into the slots, and the body
//! took the bytes of the next arguments for it.
use thalweg::{kernel, ptx};

ptx! {}

#[allow(non_camel_case_types)] // bug
type f64 = &'static [u8]; // bug

kernel! {
    unsafe fn reads(cx: impl Simt, text: f64, address: u64, len: u64)
    //~^ E0277 `a kernel cannot have a parameter of type` `&'static [u8]` `by_value!`
    grid(1) block(1)
    {}
}

fn main() {}
