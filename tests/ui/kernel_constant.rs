//! A constant in a clause that is no number.
use std::time::Duration;
use thalweg::{kernel, ptx};

ptx! {}

const BLOCK: Duration = Duration::from_secs(256); // bug
const BLOCK: u32 = 256; // fix

kernel! {
    unsafe fn nothing(cx: impl Simt, n: u32)
    require { n.is_multiple_of(BLOCK) } // fix
    grid(n.div_ceil(BLOCK)) block(256) // bug
    //~^ E0277 `Duration` `cannot be used in a clause of `
    grid(n.div_ceil(BLOCK)) block(BLOCK) shared(BLOCK * 4) // fix
    {}
}

fn main() {}
