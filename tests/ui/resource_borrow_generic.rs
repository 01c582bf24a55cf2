//! A resource whose metadata might hold a borrow.
use thalweg::{DeviceBuffer, Resource};

#[derive(Resource)]
struct Slot<M: Clone + Send> { // bug
    //~ E0310 `M` `may not live long enough`
struct Slot<M: Clone + Send + 'static> { // fix
    #[resource(plain)]
    name: M,
    image: DeviceBuffer<u8>,
}

fn main() {}
