//! Metadata that belongs to one thread, in a resource that travels between threads.
use std::rc::Rc; // bug
use std::sync::Arc; // fix

use thalweg::{DeviceBuffer, Resource};

#[derive(Resource)]
struct Slot {
    #[resource(plain)]
    name: Rc<str>, // bug
    //~ E0277 `Rc<str>` `cannot be sent between threads safely`
    name: Arc<str>, // fix
    image: DeviceBuffer<u8>,
}

fn main() {}
