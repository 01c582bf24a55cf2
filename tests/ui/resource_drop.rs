//! A composite resource with a destructor of its own, which could touch what is in flight.
use thalweg::{DeviceBuffer, PinnedBuffer, Resource};

#[derive(Resource)]
//~^ E0509 `Slot` `Drop`
struct Slot {
    host: PinnedBuffer<u8>,
    image: DeviceBuffer<u8>,
}

impl Drop for Slot { // bug
    fn drop(&mut self) {} // bug
} // bug

fn main() {}
