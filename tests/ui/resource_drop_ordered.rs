//! A composite on a stream with a destructor of its own.
use thalweg::{DeviceBuffer, PinnedBuffer, Resource, StreamTag};

#[derive(Resource)]
//~^ E0509 `SlotOn<` `Drop`
struct Slot {
    host: PinnedBuffer<u8>,
    image: DeviceBuffer<u8>,
}

impl<S: StreamTag> Drop for SlotOn<S> { // bug
    fn drop(&mut self) {} // bug
} // bug

fn main() {}
