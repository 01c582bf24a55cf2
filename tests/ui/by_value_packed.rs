//! A packed struct, whose fields are not aligned.
use thalweg::by_value;

by_value! {
    //~^ E0080 `a struct by value is neither packed nor aligned`
    #[derive(Clone, Copy)]
    #[repr(packed)] // bug
    struct Pair {
        first: u32,
        second: u32,
    }
}

fn main() {}
