//! A composite on a stream with a destructor of its own.
use thalweg::{Brand, DeviceBuffer, PinnedBuffer, Resource};

#[derive(Resource)]
//~^ E0509 `SlotOn<` `Drop`
struct Slot {
    host: PinnedBuffer<u8>,
    image: DeviceBuffer<u8>,
}

impl<S: Brand> Drop for SlotOn<S> { // bug
    fn drop(&mut self) {} // bug
} // bug

fn main() {}
