//! The numbers of streams and devices in a log.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread::ThreadId;

use super::{Kind, Row, put};
use crate::lock;

/// The identity of a stream among all of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The place of the device.
    pub(crate) device: usize,
    /// The handle of the stream, or its place.
    pub(crate) handle: usize,
    /// The thread, if the handle means another stream on each one.
    pub(crate) thread: Option<ThreadId>,
}

#[derive(Default)]
struct Numbers {
    devices: HashMap<usize, u64>,
    streams: HashMap<Key, (u64, &'static Mutex<()>)>,
}

static NUMBERS: Mutex<Option<Numbers>> = Mutex::new(None);

/// Notes the name of a device.
pub(crate) fn opened(device: usize, name: &str) {
    let mut numbers = lock(&NUMBERS);
    let devices = &mut numbers.get_or_insert_default().devices;
    let number = devices.len() as u64 + 1;
    devices.insert(device, number);
    put(&Row::new(Kind::Device { device: number, name: name.to_owned() }, ""));
}

/// The number of a stream, and the lock that gives its calls their order if its device does not.
pub(crate) fn stream(key: Key) -> (u64, &'static Mutex<()>) {
    let mut numbers = lock(&NUMBERS);
    let Numbers { devices, streams } = numbers.get_or_insert_default();
    if let Some(&found) = streams.get(&key) {
        return found;
    }
    let made = (streams.len() as u64 + 1, &*Box::leak(Box::default()));
    streams.insert(key, made);
    let device = devices.get(&key.device).copied().unwrap_or_default();
    put(&Row::new(Kind::Stream { stream: made.0, device }, ""));
    made
}

/// Notes what a stream is for.
pub(crate) fn named(key: Key, name: &str) {
    let (stream, _) = stream(key);
    put(&Row::new(Kind::Name { stream, name: name.to_owned() }, ""));
}
