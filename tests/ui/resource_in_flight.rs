//! A buffer that a stream orders already, as a part of a resource.
use thalweg::{DeviceBuffer, On, Resource, stream_tags}; // bug
use thalweg::{DeviceBuffer, Resource}; // fix

stream_tags!(Upload); // bug

#[derive(Resource)]
struct Slot {
    image: On<Upload, DeviceBuffer<u8>>, // bug
    //~ E0277 `On<Upload, DeviceBuffer<u8>>` `Resource`
    image: DeviceBuffer<u8>, // fix
}

fn main() {}
