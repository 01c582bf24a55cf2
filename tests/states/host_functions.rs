//! Tests of host functions: their order, their panics, what they may not call, and what they drop.

use std::sync::{Arc, Mutex, mpsc};

use testkit::devices::{alone_on, devices, everywhere_and_seeded};
use testkit::gate::Gate;
use thalweg::{
    Activity, AnyStream, Device, DeviceKind, Error, Event, PinnedPool, StreamPool, TimedEvent, Timeline,
    concurrency_check, stream_tags,
};

use super::{filled, lanes, not_yet, panics, soon};

#[test]
fn host_functions_run_in_order_and_a_panic_is_reported_once() {
    everywhere_and_seeded(|device| {
        // The next call into a device reports the panic. A new device makes sure that it is not a
        // call of another test.
        let device = if device == Device::cpu().unwrap() { Device::new_cpu().unwrap() } else { device };
        lanes(device, |a, b, _| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let say = |n: u32| {
                let seen = seen.clone();
                move || seen.lock().unwrap().push(n)
            };
            let gate = Gate::closed(device);
            gate.hold(&a);
            a.launch_host(say(1)).unwrap();
            let event = a.record(()).unwrap();
            b.wait(event).unwrap();
            b.launch_host(say(2)).unwrap();
            not_yet("a host function", || !seen.lock().unwrap().is_empty());
            gate.open();
            a.synchronize().unwrap();
            b.synchronize().unwrap();
            assert_eq!(*seen.lock().unwrap(), [1, 2]);

            a.launch_host(|| panic!("on purpose, {}", 1)).unwrap();
            a.launch_host(say(3)).unwrap();
            let error = a.synchronize().unwrap_err();
            assert!(matches!(&error, Error::HostFunctionPanicked { message } if message == "on purpose, 1"), "{error}");
            a.synchronize().unwrap();
            device.check().unwrap();
            assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);

            // Two panics give two errors.
            a.launch_host(|| panic!("first")).unwrap();
            a.launch_host(|| std::panic::panic_any(7)).unwrap();
            a.synchronize().unwrap_err();
            device.check().unwrap_err();
            device.check().unwrap();
        });
    });
}

#[test]
fn a_host_function_may_not_call_into_a_device() {
    everywhere_and_seeded(|device| {
        let (stream, inside) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        let event = inside.enter(|s| s.record(filled(*s, 4, 1)).unwrap());
        let shared = inside.enter(|s| s.share(filled(*s, 4, 1)).unwrap());
        let pool = PinnedPool::new(device, 1 << 20);
        drop(pool.take::<u8>(1).unwrap());
        let (tell, told) = mpsc::channel();
        stream.enter(|s| {
            let calls = move || {
                let mut errors = vec![
                    device.check().unwrap_err(),
                    device.free_memory().unwrap_err(),
                    device.pinned::<u8>(1).unwrap_err(),
                    pool.take::<u8>(1).unwrap_err(),
                    AnyStream::new(device).unwrap_err(),
                    event.is_complete().unwrap_err(),
                ];
                let returned = event.query().unwrap_err();
                errors.push(returned.error);
                let returned = returned.value.synchronize().unwrap_err();
                errors.push(returned.error);
                inside.enter(|s| {
                    errors.push(s.alloc::<u8>(1).unwrap_err());
                    errors.push(s.synchronize().unwrap_err());
                    errors.push(s.is_complete().unwrap_err());
                    errors.push(s.timestamp().unwrap_err());
                    errors.push(s.launch_host(|| ()).unwrap_err());
                    errors.push(s.record(()).unwrap_err().error);
                    errors.push(s.wait(returned.value).map(drop).unwrap_err().error);
                    errors.push(s.reading(&shared).map(drop).unwrap_err());
                    errors.push(s.unshare(shared).map(drop).unwrap_err().error);
                });
                tell.send(errors).unwrap();
            };
            s.launch_host(calls).unwrap();
            s.synchronize().unwrap();
        });
        let errors = told.recv().unwrap();
        assert_eq!(errors.len(), 17);
        for error in errors {
            assert!(matches!(error, Error::InHostFunction), "{error}");
        }
    });
}

/// A host function that waited for its own stream would never return: the stream goes on only after
/// the function. So such a wait is refused.
#[test]
fn a_host_function_does_not_wait_for_itself() {
    stream_tags!(Own);
    let own = Device::new_cpu().unwrap().stream::<Own>().unwrap();
    let mut x = filled(own, 4, 1);
    let (give, given) = mpsc::channel::<(Event<()>, TimedEvent, TimedEvent)>();
    let (tell, told) = mpsc::channel();
    own.launch_host(move || {
        let (event, start, end) = given.recv().unwrap();
        let errors = [
            event.synchronize().unwrap_err().error,
            end.synchronize().unwrap_err(),
            end.elapsed(&start).unwrap_err(),
            own.write_blocking(&[1; 4], &mut x).unwrap_err(),
            own.read_blocking(&x).unwrap_err(),
            own.synchronize().unwrap_err(),
        ];
        tell.send(errors).unwrap();
    })
    .unwrap();
    give.send((own.record(()).unwrap(), own.timestamp().unwrap(), own.timestamp().unwrap())).unwrap();
    for error in told.recv().unwrap() {
        assert!(matches!(error, Error::InHostFunction), "{error}");
    }
}

#[test]
fn what_a_host_function_drops_is_given_back_later() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, c| {
            let pool = PinnedPool::new(device, 3 * 4096);
            let take = || pool.take::<u32>(1024).unwrap();
            let (mut x, copy) = (filled(a, 1024, 0), filled(c, 1024, 3));
            let gate = Gate::closed(device);
            let [mut idle, mut moved, shared] = [take(), take(), take()];
            idle.fill(1);
            moved.fill(2);
            let moved = a.bind(moved).unwrap();
            gate.hold(&a);
            a.copy_to_device(&moved, &mut x).unwrap();
            let moved = a.record(moved).unwrap();
            let shared = a.share(a.bind(shared).unwrap()).unwrap();
            let copy = c.record(copy).unwrap();
            let all = (idle, moved, shared, copy);
            b.launch_host(move || drop(all)).unwrap();
            b.synchronize().unwrap();
            not_yet("the memory", || pool.in_use() < 2 * 4096);
            gate.open();
            a.synchronize().unwrap();
            soon("the memory", || {
                drop(pool.take::<u8>(1)); // Collects the memory that was given back.
                pool.in_use() == 0
            });
            assert_eq!(a.read_blocking(&x).unwrap(), [2; 1024]);
            assert_eq!(pool.cached(), 3 * 4096);
        });
    });
}

/// Splitting a buffer into no pieces drops it at once. This may happen in a host function, where
/// the driver must not be called.
#[test]
fn what_a_host_function_splits_into_nothing_is_given_back_later() {
    const BYTES: usize = 64 << 20;
    let cpu = Device::new_cpu().unwrap();
    // `free_memory` then counts from this limit, not from the free memory of the machine.
    cpu.limit_memory(Some(256 << 20));
    for device in devices().iter().copied().filter(|d| d.kind() == DeviceKind::Cuda).chain([cpu]) {
        let _alone = alone_on(device);
        lanes(device, |a, b, _| {
            let pool = PinnedPool::new(device, 4096);
            let free = device.free_memory().unwrap();
            let taken = || device.free_memory().unwrap() + BYTES as u64 / 2 < free;
            let idle = a.alloc_zeroed::<u8>(BYTES).unwrap().synchronize().unwrap();
            let pinned = pool.take::<u8>(4096).unwrap();
            assert!(taken());
            b.launch_host(move || {
                assert!(idle.split_even(0).unwrap().is_empty() && pinned.split_even(0).unwrap().is_empty())
            })
            .unwrap();
            b.synchronize().unwrap();
            soon("the device memory", || !taken());
            soon("the page-locked memory", || pool.in_use() == 0);
        });
    }
}

/// Opening and listing devices calls the driver. So do timelines and giving memory back.
#[test]
fn a_host_function_finds_no_devices() {
    everywhere_and_seeded(|device| {
        let (stream, inside) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        let (timeline, pool) = (Timeline::new(device).unwrap(), PinnedPool::new(device, 1 << 20));
        drop(pool.take::<u8>(1).unwrap());
        let (name, memory) = (device.name(), device.total_memory());
        let (tell, told) = mpsc::channel();
        stream.enter(|s| {
            let dropped = (timeline.clone(), s.timestamp().unwrap());
            let calls = move || {
                let errors = [
                    Device::cpu().map(drop).unwrap_err(),
                    Device::new_cpu().map(drop).unwrap_err(),
                    Device::seeded_cpu(1).map(drop).unwrap_err(),
                    Device::cuda(0).map(drop).unwrap_err(),
                    Device::open("auto").map(drop).unwrap_err(),
                    device.trim().unwrap_err(),
                    device.per_thread(|_| ()).unwrap_err(),
                    StreamPool::new(device, 1).map(drop).unwrap_err(),
                    Timeline::new(device).map(drop).unwrap_err(),
                    timeline.finish().map(drop).unwrap_err(),
                    inside.enter(|s| timeline.span(s, Activity::Compute, "a span", || Ok(()))).unwrap_err(),
                    inside.enter(|s| concurrency_check(s, s).map(drop)).unwrap_err(),
                ];
                pool.trim();
                // These calls read or set what is known without the driver.
                let known = device.name() == name && device.sync_stats().report().waits().is_empty();
                device.limit_pinned(None);
                drop(dropped);
                drop(inside);
                tell.send((Device::all().len(), errors, known, pool.cached(), device.total_memory())).unwrap();
            };
            s.launch_host(calls).unwrap();
            s.synchronize().unwrap();
        });
        let (devices, errors, known, cached, total) = told.recv().unwrap();
        assert_eq!((devices, known, cached, total), (0, true, 4096, memory), "none to call; what was kept is kept");
        for error in errors {
            assert!(matches!(error, Error::InHostFunction), "{error}");
        }
    });
}

/// If a host function drops a reading, no event can mark when its stream has finished with it.
#[test]
fn a_reading_dropped_by_a_host_function_is_lost() {
    stream_tags!(Reads, Calls);
    let device = Device::cpu().unwrap();
    let (reads, calls) = (device.stream::<Reads>().unwrap(), device.stream::<Calls>().unwrap());
    let shared = calls.share(filled(calls, 10, 1)).unwrap();
    let reading = reads.reading(&shared).unwrap();
    calls.launch_host(move || drop(reading)).unwrap();
    calls.synchronize().unwrap();
    let returned = calls.unshare(shared).unwrap_err();
    assert!(matches!(returned.error, Error::ReaderLost), "{returned}");
    assert_eq!(calls.read_blocking(&calls.reading(&returned.value).unwrap()).unwrap(), [1; 10], "it can still be read");
}

/// A queue that skips a host function drops it. A call in that drop that waits for the queue would
/// wait for itself.
#[test]
fn what_a_passed_over_host_function_holds_is_told_so() {
    struct Waits(Device, mpsc::Sender<Error>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.1.send(AnyStream::new(self.0).map(drop).unwrap_err()).unwrap();
            self.1.send(self.0.check().unwrap_err()).unwrap();
        }
    }
    for device in [Device::new_cpu().unwrap(), Device::seeded_cpu(0).unwrap()] {
        lanes(device, |a, _, _| {
            let (tell, told) = mpsc::channel();
            let waits = Waits(device, tell);
            panics(&a).unwrap();
            a.launch_host(move || drop(waits)).unwrap();
            a.synchronize().unwrap_err();
            assert!(told.iter().take(2).all(|error| matches!(error, Error::InHostFunction)));
        });
    }
}

/// A host function on page-locked memory runs between the copies before it and those after it.
#[test]
fn a_host_function_on_memory_has_its_turn() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            let mut x = filled(a, 1000, 1);
            let mut host = a.bind(device.pinned::<u32>(1000).unwrap()).unwrap();
            let mut none = a.bind(device.pinned::<u64>(0).unwrap()).unwrap();
            let gate = Gate::closed(device);
            gate.hold(&a);
            let (tell, told) = mpsc::channel();
            let empty = tell.clone();
            a.launch_host_on(&mut none, move |none| empty.send(none.len()).unwrap()).unwrap();
            a.copy_to_host(&x, &mut host).unwrap();
            a.launch_host_on(host.slice_mut(10..20).unwrap(), move |x| {
                tell.send(x.iter().filter(|&&x| x == 1).count()).unwrap();
                x.fill(2);
            })
            .unwrap();
            a.copy_to_device(&host, &mut x).unwrap();
            not_yet("a host function", || told.try_recv().is_ok());
            gate.open();
            let x = a.read_blocking(&x).unwrap();
            assert_eq!(told.try_iter().collect::<Vec<_>>(), [0, 10]);
            assert_eq!((x[9], &x[10..20], x[20]), (1, &[2; 10][..], 1));
        });
    });
}

/// A failure that a host function reports reaches whoever waits for the work after it, through an
/// event that was recorded before the failure too.
#[test]
fn nothing_leaves_a_device_that_has_failed() {
    for device in [Device::new_cpu().unwrap(), Device::seeded_cpu(0).unwrap()] {
        lanes(device, |a, b, _| {
            let gate = Gate::closed(device);
            let (x, y) = (filled(a, 10, 1), filled(a, 10, 2));
            gate.hold(&a);
            a.launch_host(move || device.poison("the first cause")).unwrap();
            let (said, heard) = mpsc::channel();
            a.launch_host(move || said.send(()).unwrap()).unwrap();
            let x = b.record(a.hand_off(x, &b).unwrap()).unwrap();
            let y = a.record(y).unwrap();
            device.ensure_usable().unwrap();
            gate.open();
            let error = x.synchronize().map(drop).unwrap_err().error;
            assert!(matches!(&error, Error::Poisoned { cause, .. } if cause == "the first cause"), "{error}");
            // A host function after it could have seen what is wrong, so it was dropped.
            assert_eq!(heard.try_recv(), Err(mpsc::TryRecvError::Disconnected));
            device.poison("another cause");
            assert_eq!(y.query().map(drop).unwrap_err().to_string(), error.to_string());
            assert_eq!(a.synchronize().unwrap_err().to_string(), error.to_string());
            assert_eq!(b.alloc::<u8>(1).map(drop).unwrap_err().to_string(), error.to_string());
        });
    }
}

#[test]
fn no_stream_of_another_device_takes_over_what_a_failed_device_has() {
    let (failed, other) = (Device::new_cpu().unwrap(), Device::new_cpu().unwrap());
    let event = failed.per_thread(|s| s.record(s.bind(failed.pinned::<u8>(10).unwrap()).unwrap()).unwrap()).unwrap();
    assert_eq!(event.len(), 10);
    failed.poison("the peer is gone");
    let refused = other.per_thread(|s| s.wait(event).map(drop).unwrap_err().error).unwrap();
    assert!(matches!(&refused, Error::Poisoned { cause, .. } if cause == "the peer is gone"), "{refused}");
    other.ensure_usable().unwrap();
}
