//! A buffer in flight passed off as metadata, of which a reading would get a second owner.
use thalweg::{DeviceBuffer, On, PinnedBuffer, Resource, stream_tags}; // bug
use thalweg::{DeviceBuffer, PinnedBuffer, Resource}; // fix

stream_tags!(Upload); // bug

#[derive(Resource)]
struct Slot {
    host: PinnedBuffer<u8>,
    #[resource(plain)] // bug
    image: On<Upload, DeviceBuffer<u8>>, // bug
    //~^ E0277 `On<Upload, DeviceBuffer<u8>>` `Clone`
    image: DeviceBuffer<u8>, // fix
}

fn main() {}
