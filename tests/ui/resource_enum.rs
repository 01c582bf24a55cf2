//! An enum as a resource: its ordered form could be in another variant.
use thalweg::{DeviceBuffer, Resource};

#[derive(Resource)]
enum Slot { // bug
    //~^ error `structs only`
    Image(DeviceBuffer<u8>), // bug
struct Slot { // fix
    image: DeviceBuffer<u8>, // fix
}

fn main() {}
