//! The conversions between states written by hand, without a promise.
use thalweg::{DeviceBuffer, Resource};

#[derive(Resource)] // fix
struct Slot {
    image: DeviceBuffer<u8>,
}
impl Resource for Slot {} // bug
//~^ E0200 `Resource`

fn main() {}
