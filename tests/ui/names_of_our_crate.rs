//! Another crate in the place of the library, whose paths the derive writes.
extern crate thalweg as library;
extern crate self as thalweg; // bug

use library::PinnedBuffer;

#[derive(library::Resource)]
//~^ E0433 `thalweg`
//~^ E0405 `cannot find trait `
//~^ E0425 `cannot find type `
struct Slot {
    host: PinnedBuffer<u8>,
}

fn main() {}
