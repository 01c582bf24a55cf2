//! What is never a resource: what is in flight, and what others can reach.
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use thalweg::{DeviceBuffer, Event, On, PinnedBuffer, SharedRead, Resource, Shared, Stream, stream_tags};

stream_tags!(Work);

fn is_resource<R: Resource>() {}

fn main() {
    type Idle = DeviceBuffer<u8>;
    is_resource::<(Idle, [Option<PinnedBuffer<f32>>; 2], Vec<Shared<Idle>>)>();
    is_resource::<On<Work, Idle>>(); // bug
    //~^ E0277 `On<Work, DeviceBuffer<u8>>` `Resource`
    is_resource::<Event<Idle>>(); // bug
    //~^ E0277 `Event<DeviceBuffer<u8>>` `Resource`
    is_resource::<SharedRead<Work, Idle>>(); // bug
    //~^ E0277 `SharedRead<Work, DeviceBuffer<u8>>` `Resource`
    is_resource::<Stream<Work>>(); // bug
    //~^ E0277 `Stream<Work>` `Resource`
    is_resource::<Arc<Idle>>(); // bug
    //~^ E0277 `Arc<DeviceBuffer<u8>>` `Resource`
    is_resource::<Rc<Idle>>(); // bug
    //~^ E0277 `Rc<DeviceBuffer<u8>>` `Resource`
    is_resource::<RefCell<Idle>>(); // bug
    //~^ E0277 `RefCell<DeviceBuffer<u8>>` `Resource`
    is_resource::<Mutex<Idle>>(); // bug
    //~^ E0277 `Mutex<DeviceBuffer<u8>>` `Resource`
    is_resource::<&'static Idle>(); // bug
    //~^ E0277 `&'static DeviceBuffer<u8>` `Resource`
}
