//! A crate of another name in the place of one whose paths the derive writes.
extern crate self as core; // bug
use thalweg::{PinnedBuffer, Resource};

#[derive(Resource)]
//~^ E0433 `core`
struct Slot {
    host: PinnedBuffer<u8>,
    #[resource(plain)]
    n: u32,
}

fn main() {}
