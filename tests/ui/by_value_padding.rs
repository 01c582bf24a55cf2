//! A struct with padding, whose bytes no kernel may read.
use thalweg::by_value;

by_value! {
    //~^ E0080 `a struct by value has no padding`
    #[derive(Clone, Copy)]
    struct Padded {
        first: u64,
        second: u32,
        unused: u32, // fix
    }
}

fn main() {}
