//! A resource that holds a borrow, which could end while a stream has it.
use thalweg::{DeviceBuffer, Resource};

#[derive(Resource)]
struct Slot<'a> { // bug
    //~^ error `cannot hold a borrow`
    #[resource(plain)] // bug
    name: &'a str, // bug
struct Slot { // fix
    #[resource(plain)] // fix
    name: String, // fix
    image: DeviceBuffer<u8>,
}

fn main() {}
