//! A buffer that somebody else holds too.
use std::rc::Rc; // bug

use thalweg::{DeviceBuffer, PinnedBuffer, Resource};

#[derive(Resource)]
struct Slot {
    host: Rc<PinnedBuffer<u8>>, // bug
    //~ E0277 `Rc<PinnedBuffer<u8>>` `Resource`
    host: PinnedBuffer<u8>, // fix
    image: DeviceBuffer<u8>,
}

fn main() {}
