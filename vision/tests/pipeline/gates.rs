//! Pipelines whose streams stand at gates, and helpers for tests of the work behind these gates.

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use testkit::devices::devices;
use testkit::gate::Gate;
use thalweg::{AnyStream, Device, DeviceKind};
use thalweg_vision::{Frame, Image, Pipeline};

use crate::{deep, finish, frame, small_params, submit};

/// Takes every parked stream of a device, and a new one. A stream is parked again when it is
/// dropped.
fn take_parked(device: Device) -> Vec<AnyStream> {
    // No stream of this device is ever parked, so each is new, and newer than all that are parked.
    static NEVER_PARKED: LazyLock<Device> = LazyLock::new(|| Device::new_cpu().unwrap());
    let newest = AnyStream::new(*NEVER_PARKED).unwrap();
    let serial = newest.enter(|s| s.unique_id());
    std::mem::forget(newest);
    let mut taken = vec![AnyStream::new(device).unwrap()];
    while taken.last().unwrap().enter(|s| s.unique_id()) < serial {
        taken.push(AnyStream::new(device).unwrap());
    }
    taken
}

/// Runs a pipeline until its device has page-locked memory, loaded kernels and streams in stock.
/// To make any of them may wait for the device, which a test behind a gate must not do.
fn warm_up(device: Device, image: &Image) {
    let warm = deep(device, small_params(), 4);
    for _ in 0..3 {
        let under_way: Vec<_> = (0..4).map(|_| submit(&warm, image).unwrap()).collect();
        under_way.into_iter().for_each(|submitted| drop(finish(&warm, submitted)));
    }
}

/// Makes a pipeline of depth `N`, and `N` frames of it for an image. The stream of each frame
/// stands at a gate.
pub(crate) fn gated<const N: usize>(device: Device, image: &Image) -> (Pipeline, Vec<Frame>, [Gate; N]) {
    // A slot takes a parked stream if there is one, so the others are kept away meanwhile. A thread
    // of another test that ends may still park its own in between. Then a gated stream may be left
    // over, and all of it is done again.
    for _ in 0..100 {
        let gates = [(); N].map(|()| Gate::closed(device));
        warm_up(device, image);
        let mut kept = take_parked(device);
        let streams = [(); N].map(|()| AnyStream::new(device).unwrap());
        for (stream, gate) in streams.iter().zip(&gates) {
            stream.enter(|s| gate.hold(s));
        }
        drop(streams);
        let pipeline = deep(device, small_params(), N);
        let frames = (0..N).map(|_| frame(&pipeline, std::slice::from_ref(image)).unwrap()).collect();
        // No stream is left over if one that is parked now is the next. To make a stream could wait
        // for the gates, and here one is parked, so none is made.
        let last = kept.pop().expect("`take_parked` makes a stream");
        let serial = last.enter(|s| s.unique_id());
        drop(last);
        if AnyStream::new(device).unwrap().enter(|s| s.unique_id()) == serial {
            return (pipeline, frames, gates);
        }
    }
    panic!("other threads park streams all the time");
}

/// Drops a value on another thread. If the drop waits, the test fails and does not hang.
pub(crate) fn drop_without_waiting(value: impl Send) {
    let given_up = Instant::now() + Duration::from_secs(30);
    thread::scope(|threads| {
        let dropping = threads.spawn(move || drop(value));
        while !dropping.is_finished() {
            if Instant::now() > given_up {
                // A panic would not end the test, because the scope waits for the thread.
                eprintln!("dropping waits for the device");
                std::process::abort();
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Every GPU, and a CPU device that no other test uses.
pub(crate) fn gpus_and_a_cpu() -> impl Iterator<Item = Device> {
    let gpus = devices().iter().copied().filter(|device| device.kind() == DeviceKind::Cuda);
    gpus.chain([Device::new_cpu().unwrap()])
}
