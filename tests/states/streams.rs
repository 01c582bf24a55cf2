//! Tests of how streams are made: tags, priorities, pools of streams, and a stream for each thread.

use std::sync::{Mutex, mpsc};
use std::thread;

use testkit::devices::{everywhere, everywhere_and_seeded};
use thalweg::{AnyStream, Device, Error, StreamOptions, StreamPool, stream_tags};

use super::filled;

#[test]
fn a_tag_is_one_stream_for_good() {
    stream_tags!(Here, There);
    let (device, other) = (Device::cpu().unwrap(), Device::new_cpu().unwrap());
    let stream = device.stream::<Here>().unwrap();
    assert_eq!(stream.unique_id(), device.stream::<Here>().unwrap().unique_id());
    assert_ne!(stream.unique_id(), device.stream::<There>().unwrap().unique_id());
    let error = other.stream::<Here>().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::TagBound { priority: 0, .. }) && text.contains("Here"), "{text}");
    assert!(text.contains(&device.to_string()), "{text}");
    let urgent = StreamOptions::default().with_priority(-1);
    assert!(matches!(device.stream_with::<Here>(urgent), Err(Error::TagBound { priority: 0, .. })));
    stream_tags!(Urgent);
    assert_eq!(device.stream_with::<Urgent>(urgent).unwrap().priority(), -1);
    assert!(matches!(device.stream::<Urgent>(), Err(Error::TagBound { priority: -1, .. })));
}

#[test]
fn each_new_device_has_a_number_of_its_own() {
    let [a, b, c] = [Device::cpu(), Device::new_cpu(), Device::new_cpu()].map(Result::unwrap);
    for (one, other) in [(a, b), (a, c), (b, c)] {
        assert!(one != other && one.to_string() != other.to_string(), "{one}, {other}");
    }
}

#[test]
fn priorities_are_those_the_device_has() {
    everywhere(|device| {
        let range = device.priorities();
        assert_eq!(*range.end(), 0);
        // It asks twice, because streams that were given back are reused.
        for priority in range.clone().chain(range.clone()) {
            let stream = AnyStream::with(device, StreamOptions::default().with_priority(priority)).unwrap();
            assert_eq!(stream.enter(|s| s.priority()), priority, "{device}");
            // The driver of a GPU must report the same priority.
            if let Some(raw) = stream.enter(|s| s.raw()) {
                let mut given = 1;
                // SAFETY: `Stream::raw` gives a stream of the driver that the library never
                // destroys. `given` is a local integer that the call may write.
                let result = unsafe { cudarc::driver::sys::cuStreamGetPriority(raw.cast(), &mut given) };
                assert_eq!((result as u32, given), (0, priority), "{device}");
            }
        }
        for priority in [range.start() - 1, range.end() + 1] {
            let error = AnyStream::with(device, StreamOptions::default().with_priority(priority)).unwrap_err();
            assert!(matches!(error, Error::Parameter { name: "priority", .. }), "{error}");
        }
    });
}

#[test]
fn a_pool_without_a_free_stream_waits_for_one() {
    everywhere(|device| {
        assert!(matches!(StreamPool::new(device, 0), Err(Error::Parameter { name: "streams", .. })));
        let pool = StreamPool::new(device, 1).unwrap();
        let (entered, inside) = mpsc::channel();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let (started, second) = mpsc::channel();
            scope.spawn(|| {
                let second = second;
                pool.with_stream(|_| {
                    entered.send(()).unwrap();
                    second.recv().unwrap();
                    (0..100).for_each(|_| thread::yield_now());
                    order.lock().unwrap().push(1);
                });
            });
            inside.recv().unwrap();
            started.send(()).unwrap();
            pool.with_stream(|_| order.lock().unwrap().push(2));
        });
        assert_eq!(*order.lock().unwrap(), [1, 2]);
        // A panic also gives the stream back.
        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.with_stream(|_| panic!("on purpose"))));
        assert!(panicked.is_err());
        pool.with_stream(|s| s.synchronize()).unwrap();
    });
}

#[test]
fn lanes_of_a_pool_are_different_streams() {
    everywhere_and_seeded(|device| {
        let pool = StreamPool::new(device, 3).unwrap();
        let serials = pool
            .with_stream(|a| pool.with_stream(|b| pool.with_stream(|c| [a.unique_id(), b.unique_id(), c.unique_id()])));
        assert!(serials[0] != serials[1] && serials[1] != serials[2] && serials[0] != serials[2]);
        let again = pool.with_stream(|a| a.unique_id());
        assert!(serials.contains(&again));
    });
}

#[test]
fn a_thread_has_one_stream_of_each_device() {
    everywhere(|device| {
        let serial = || device.per_thread(|s| s.unique_id()).unwrap();
        let mine = serial();
        assert_eq!(mine, serial());
        assert_eq!(mine, device.per_thread(|_| serial()).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| assert_ne!(mine, serial()));
        });
        let event = device.per_thread(|s| s.record(filled(*s, 5, 5)).unwrap()).unwrap();
        thread::spawn(move || {
            let got = device.per_thread(|s| s.read_blocking(&s.wait(event).unwrap()).unwrap()).unwrap();
            assert_eq!(got, [5; 5]);
        })
        .join()
        .unwrap();
    });
}
