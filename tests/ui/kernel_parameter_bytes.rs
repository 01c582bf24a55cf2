//! Parameters of more bytes than a launch carries.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    //~^ E0080 `at most 4096 bytes`
    unsafe fn nothing(cx: impl Simt, n: u32, table: [u64; 512]) // bug
    unsafe fn nothing(cx: impl Simt, n: u32, table: [u64; 511]) // fix
    grid(1) block(256)
    {}
}

fn main() {}
