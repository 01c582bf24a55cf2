//! Metadata that is not marked as such.
use thalweg::{DeviceBuffer, Resource};

#[derive(Resource)]
struct Slot {
    image: DeviceBuffer<u8>,
    #[resource(plain)] // fix
    frame: u64,
    //~ E0277 `u64` `Resource`
}

fn main() {}
