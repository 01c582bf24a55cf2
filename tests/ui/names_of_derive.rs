//! Constants that are called like variables of the derive, and types like its parameters of
//! generics.
#![allow(non_upper_case_globals, non_camel_case_types, dead_code)]
use thalweg::{PinnedBuffer, Resource};

const __visit: u8 = 0; // bug
const __sink: u8 = 0; // bug
const __stream: u8 = 0; // bug
const __token: u8 = 0; // bug
const __splitter: u8 = 0; // bug

#[derive(Resource)]
//~^ E0308 `mismatched types` `Token`
#[resource(unzip)]
struct Slot {
    host: PinnedBuffer<u8>,
}

mod generics {
    use super::{PinnedBuffer, Resource};
    type __S = u32; // bug
    type Number = u32; // fix

    #[derive(Resource)]
    struct Slot {
        host: PinnedBuffer<u8>,
        #[resource(plain)]
        n: __S, // bug
        //~^ E0308 `mismatched types` `__S`
        //~^ E0277 `__S: Clone`
        n: Number, // fix
    }
}

fn main() {}
