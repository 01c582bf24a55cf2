//! Tests of the errors that failures and misuse return.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use testkit::devices::{devices, everywhere_and_seeded};
#[cfg(unix)]
use testkit::fork::{fork, leave};
use testkit::gate::Gate;
#[cfg(unix)]
use testkit::process::own_process;
use testkit::tasks::block_on;
use thalweg::Fault;
use thalweg::{AnyStream, Device, DeviceKind, Error, PinnedPool, QueryResult, Ring};

use super::{filled, lanes, nothing, panics, soon};

#[test]
fn a_panicking_kernel_poisons_the_device_and_wakes_everybody() {
    let healthy = Device::cpu().unwrap();
    let device = Device::new_cpu().unwrap();
    let poisoned = |error: &Error| match error {
        Error::Kernel(error) => matches!(&error.fault, Fault::Panicked { message, .. } if message == "on purpose"),
        Error::Poisoned { cause, .. } => cause.contains("on purpose"),
        _ => false,
    };
    lanes(device, |a, b, c| {
        let pool = PinnedPool::new(device, 1 << 20);
        let [start, end] = [(); 2].map(|()| a.timestamp().unwrap());
        let (mut x, y) = (filled(a, 100, 1), filled(b, 100, 1));
        let host = pool.take::<u32>(100).unwrap();
        let gate = Gate::closed(device); // This gate stays closed during the test.
        gate.hold(&b);
        let shared = b.share(y).unwrap();
        let reading = c.reading(&shared).unwrap();
        let (first, second) = (b.record(()).unwrap(), b.record(()).unwrap());
        let third = b.record(b.bind(host).unwrap()).unwrap();
        let (called, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let calls = called.clone();
        b.launch_host(move || _ = calls.fetch_add(1, Ordering::SeqCst)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(poisoned(&first.synchronize().unwrap_err().error));
                count.fetch_add(1, Ordering::SeqCst);
            });
            scope.spawn(|| {
                assert!(poisoned(&block_on(second.into_future()).unwrap_err()));
                count.fetch_add(1, Ordering::SeqCst);
            });
            scope.spawn(|| {
                let stream = AnyStream::new(healthy).unwrap();
                stream.enter(|s| assert_eq!(s.read_blocking(&filled(*s, 3, 3)).unwrap(), [3; 3]));
                count.fetch_add(1, Ordering::SeqCst);
            });
            panics(&a).unwrap();
            a.fill(&mut x, 2).ok();
        });
        assert_eq!(count.load(Ordering::SeqCst), 3);
        for error in [
            device.check().unwrap_err(),
            a.synchronize().unwrap_err(),
            b.is_complete().unwrap_err(),
            c.alloc::<u8>(1).unwrap_err(),
            a.read_blocking(&x).unwrap_err(),
            a.record(x).map(drop).unwrap_err().error,
            device.pinned::<u8>(1).unwrap_err(),
            AnyStream::new(device).unwrap_err(),
            third.is_complete().unwrap_err(),
            a.timestamp().unwrap_err(),
            end.synchronize().unwrap_err(),
            end.elapsed(&start).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Poisoned { .. }) && poisoned(&error), "{error}");
        }
        let third = third.synchronize().unwrap_err().value;
        drop((third, reading, shared));
        soon("the host function's end", || Arc::strong_count(&called) == 1);
        assert_eq!(called.load(Ordering::SeqCst), 0, "dropped, not called");
        pool.trim();
    });
    healthy.check().unwrap();
}

/// A launch that waits for its kernel names the one that fails, and its line.
#[test]
fn a_launch_that_waits_names_the_kernel_that_fails() {
    let device = Device::new_cpu().unwrap();
    lanes(device, |a, b, _| {
        device.set_launch_blocking(true);
        nothing(&a).unwrap();
        assert!(a.is_complete().unwrap(), "the launch has waited");
        // A capture runs nothing, so its launches do not wait.
        let (graph, ()) = a.capture((), |s, ()| panics(s)).unwrap();
        assert_eq!(graph.len(), 1);
        let line = line!() + 1;
        let error = panics(&b).unwrap_err();
        let Error::KernelFailed { kernel, launched, cause } = &error else { panic!("{error}") };
        assert_eq!((*kernel, launched.file(), launched.line()), ("panics", file!(), line));
        assert!(cause.to_string().contains("on purpose"), "{cause}");
        assert!(error.to_string().starts_with("kernel `panics`, launched at tests/states/errors.rs:"), "{error}");
        device.set_launch_blocking(false);
    });
    // Without it, the launch succeeds and a later call fails.
    let device = Device::new_cpu().unwrap();
    lanes(device, |a, _, _| {
        let gate = Gate::closed(device);
        gate.hold(&a);
        panics(&a).unwrap();
        gate.open();
        assert!(matches!(a.synchronize(), Err(Error::Kernel(_) | Error::Poisoned { .. })));
    });
}

/// The device that was to wait has not failed: it can be used as before.
#[test]
fn a_refused_wait_for_a_failed_device_harms_no_other() {
    let (healthy, failed) = (Device::new_cpu().unwrap(), Device::new_cpu().unwrap());
    lanes(healthy, |a, _, _| {
        lanes(failed, |b, _, _| {
            // Page-locked memory may go to any of these devices.
            let event = b.record(b.bind(failed.pinned_from(&[1u32; 10]).unwrap()).unwrap()).unwrap();
            b.synchronize().unwrap();
            panics(&b).unwrap();
            soon("the failure", || failed.check().is_err());
            let refused = a.wait(event).unwrap_err();
            assert!(refused.error.to_string().contains("on purpose"), "{refused}");
            drop(refused);
        });
        healthy.check().unwrap();
        assert_eq!(a.read_blocking(&filled(a, 3, 3)).unwrap(), [3; 3]);
    });
}

#[test]
fn a_device_refuses_what_is_anothers_and_gives_it_back() {
    let (here, there) = (Device::cpu().unwrap(), Device::new_cpu().unwrap());
    lanes(here, |a, b, _| {
        lanes(there, |other, _, _| {
            let mismatch = |error: &Error| matches!(error, Error::DeviceMismatch { .. });
            let x = filled(a, 10, 4).synchronize().unwrap();
            let returned = other.bind(x).unwrap_err();
            assert!(mismatch(&returned.error), "{returned}");
            let returned = other.wait(a.record(a.bind(returned.value).unwrap()).unwrap()).unwrap_err();
            assert!(mismatch(&returned.error));
            let returned = a.hand_off(a.wait(returned.value).unwrap(), &other).unwrap_err();
            assert!(mismatch(&returned.error));
            let shared = a.share(returned.value).unwrap();
            assert!(mismatch(&other.reading(&shared).map(drop).unwrap_err()));
            let returned = other.unshare(shared).unwrap_err();
            assert!(mismatch(&returned.error));
            // A composite is refused if one part belongs to another device, and it comes back
            // whole.
            let pair = (here.pinned_from(&[1u32; 10]).unwrap(), b.record(b.unshare(returned.value).unwrap()).unwrap());
            let pair = (pair.0, pair.1.synchronize().unwrap());
            let (host, x) = other.bind(pair).unwrap_err().value;
            assert_eq!(*host, [1; 10]);
            assert_eq!(a.read_blocking(&a.bind(x).unwrap()).unwrap(), [4; 10]);
            // Page-locked memory may be used on any of these devices.
            let host = other.wait(a.record(a.bind(host).unwrap()).unwrap()).unwrap();
            let mut y = other.alloc::<u32>(10).unwrap();
            other.copy_to_device(&host, &mut y).unwrap();
            assert_eq!(other.read_blocking(&y).unwrap(), [1; 10]);
        });
    });
}

/// Work on a seeded device runs only when a thread calls into that device, so no other device may
/// wait for it.
#[test]
fn a_seeded_device_keeps_to_itself() {
    let (threads, first, second) = (Device::cpu(), Device::seeded_cpu(1), Device::seeded_cpu(2));
    let (threads, first, second) = (threads.unwrap(), first.unwrap(), second.unwrap());
    for (here, there) in [(threads, first), (first, threads), (first, second)] {
        lanes(here, |a, _, _| {
            lanes(there, |other, _, _| {
                let mismatch = |error: &Error| matches!(error, Error::DeviceMismatch { .. });
                let host = a.bind(here.pinned_from(&[1u32; 10]).unwrap()).unwrap();
                let returned = other.wait(a.record(host).unwrap()).unwrap_err();
                assert!(mismatch(&returned.error), "{returned}");
                let returned = a.hand_off(a.wait(returned.value).unwrap(), &other).unwrap_err();
                assert!(mismatch(&returned.error), "{returned}");
                let shared = a.share(returned.value).unwrap();
                assert!(mismatch(&other.reading(&shared).map(drop).unwrap_err()));
                let returned = other.unshare(shared).unwrap_err();
                assert!(mismatch(&returned.error), "{returned}");
                assert!(mismatch(&other.wait(a.record(()).unwrap()).unwrap_err().error));
                // The memory may go there through the host.
                let host = a.record(a.unshare(returned.value).unwrap()).unwrap().synchronize().unwrap();
                let host = other.bind(host).unwrap();
                assert_eq!(*other.record(host).unwrap().synchronize().unwrap(), [1; 10]);
            });
        });
    }
}

#[test]
fn sizes_and_ranges_that_do_not_fit() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            let too_large = |error: Error| matches!(error, Error::TooLarge { size: 8, .. });
            assert!(too_large(a.alloc::<u64>(usize::MAX).map(drop).unwrap_err()));
            assert!(too_large(a.alloc::<u64>(isize::MAX as usize / 8 + 1).map(drop).unwrap_err()));
            assert!(too_large(device.pinned::<u64>(usize::MAX / 8 + 1).unwrap_err()));
            let len = device.total_memory() as usize / 4;
            let error = a.alloc::<u64>(len).map(drop).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { wanted, .. } if wanted == 8 * len), "{error}");

            let (x, mut y) = (filled(a, 3, 0), filled(a, 4, 0));
            let mut host = a.bind(device.pinned::<u32>(5).unwrap()).unwrap();
            let lengths = |error: Error| match error {
                Error::LengthMismatch { source_len, destination_len } => (source_len, destination_len),
                error => panic!("{error}"),
            };
            assert_eq!(lengths(a.copy(&x, &mut y).unwrap_err()), (3, 4));
            assert_eq!(lengths(a.copy_to_device(&host, &mut y).unwrap_err()), (5, 4));
            assert_eq!(lengths(a.copy_to_host(&y, &mut host).unwrap_err()), (4, 5));
            assert_eq!(lengths(a.write_blocking(&[1, 2], &mut y).unwrap_err()), (2, 4));
            assert!(y.slice(2..5).is_err() && y.slice_mut(5..).is_err() && y.split_at_mut(5).is_err());
            a.copy(&x, y.slice_mut(1..).unwrap()).unwrap();
            device.check().unwrap();
        });
    });
}

#[test]
fn device_names_that_are_none() {
    for bad in ["gpu", "cuda", "cuda:", "cuda:-1", "cuda:x", ""] {
        assert!(matches!(Device::open(bad), Err(Error::DeviceSpec { .. })), "{bad}");
    }
    let error = Device::open("cuda:999").unwrap_err();
    assert!(matches!(error, Error::NoSuchDevice { ordinal: 999, .. }) || error.means_no_gpu(), "{error}");
    assert_eq!(Device::open("cpu").unwrap().device, Device::cpu().unwrap());
    let auto = Device::open("auto").unwrap();
    assert_eq!(auto.fallback.is_some(), auto.device.kind() == DeviceKind::Cpu);
}

/// CUDA does not work in a forked child, so every call there returns an error, on every kind of
/// device. The test runs itself again in a new process and forks there.
#[cfg(unix)]
#[test]
fn a_forked_child_gets_a_typed_error() {
    if !own_process(concat!(module_path!(), "::a_forked_child_gets_a_typed_error")) {
        return;
    }
    for &device in devices() {
        lanes(device, |a, _, _| {
            let pool = PinnedPool::new(device, 1 << 20);
            let (x, event) = (filled(a, 10, 1), a.record(filled(a, 10, 1)).unwrap());
            let host = a.bind(pool.take::<u8>(1).unwrap()).unwrap();
            let idle = filled(a, 10, 1).synchronize().unwrap();
            // SAFETY: This process runs one test and the work above is done, so no other thread
            // holds a lock that the child needs.
            let Some(child) = (unsafe { fork() }) else {
                leave(move || {
                    let told = [
                        device.check().unwrap_err(),
                        a.alloc::<u8>(1).map(drop).unwrap_err(),
                        a.read_blocking(&x).unwrap_err(),
                        event.is_complete().unwrap_err(),
                        device.pinned::<u8>(1).unwrap_err(),
                        device.trim().unwrap_err(),
                        Device::cpu().unwrap_err(),
                        Device::new_cpu().unwrap_err(),
                    ];
                    drop((x, event, host, idle.split_even(0).unwrap()));
                    Device::all().is_empty() && told.iter().all(|error| matches!(error, Error::Forked))
                })
            };
            child.ends_well(&device.to_string());
            assert_eq!(a.read_blocking(&x).unwrap(), [1; 10], "the parent goes on");
            drop(event);
        });
    }
}

#[test]
fn a_hand_over_to_a_failed_device_gives_the_value_back() {
    let [a, b] = [(); 2].map(|()| Device::new_cpu().unwrap());
    let [from, to] = [a, b].map(|device| AnyStream::new(device).unwrap());
    b.poison("as asked");
    from.enter(|s| {
        to.enter(|t| {
            let x = s.bind(a.pinned_from(&[1u32, 2]).unwrap()).unwrap();
            let returned = s.hand_off(x, t).unwrap_err();
            assert!(matches!(returned.error, Error::Poisoned { .. }), "{}", returned.error);
            assert_eq!(s.record(returned.value).unwrap().synchronize().unwrap()[..], [1, 2]);
        });
    });
}

/// A seeded device runs the work of an event when somebody asks for it, so the device fails between
/// the question and the answer.
#[test]
fn work_that_fails_its_device_leaves_nothing_complete() {
    let mut asked = [0; 2];
    for seed in 0..40 {
        let device = Device::seeded_cpu(seed).unwrap();
        let stream = AnyStream::new(device).unwrap();
        stream.enter(|s| {
            let x = s.alloc::<u8>(1).unwrap();
            s.launch_host(move || device.poison("as asked")).unwrap();
            let Ok(mut event) = s.record(x) else { return }; // it has run already
            let waits = seed % 2 == 0;
            asked[usize::from(waits)] += 1;
            let error = match waits {
                true => event.synchronize().unwrap_err().error,
                false => loop {
                    match event.query() {
                        Ok(QueryResult::Pending(again)) => event = again,
                        Ok(QueryResult::Ready(_)) => panic!("seed {seed}: what a failed device did is complete"),
                        Err(returned) => break returned.error,
                    }
                },
            };
            assert!(matches!(error, Error::Poisoned { .. }), "seed {seed}: {error}");
        });
    }
    assert!(asked.iter().all(|times| *times > 0), "{asked:?}");
}

#[test]
fn what_is_of_two_devices_or_too_long_is_refused() {
    let streams = [(); 2].map(|()| AnyStream::new(Device::new_cpu().unwrap()).unwrap());
    let [start, end] = streams.each_ref().map(|stream| stream.enter(|s| s.timestamp()).unwrap());
    assert!(matches!(end.elapsed(&start), Err(Error::DeviceMismatch { .. })));
    streams[0].enter(|s| {
        let room = s.wait(s.record(s.alloc::<u8>(4).unwrap()).unwrap().map_peer()).unwrap();
        for (bytes, fits) in [(3, true), (4, true), (5, false)] {
            assert_eq!(s.copy_start_from_peer(&room, &mut s.alloc::<u8>(bytes).unwrap()).is_ok(), fits, "{bytes}");
        }
    });
}

/// A read waits for the work before it, also if there is nothing to read.
#[test]
fn a_read_of_nothing_waits() {
    let done = Arc::new(AtomicUsize::new(0));
    AnyStream::new(Device::new_cpu().unwrap()).unwrap().enter(|s| {
        let (x, done) = (s.alloc::<u8>(0).unwrap(), done.clone());
        s.launch_host(move || {
            thread::sleep(std::time::Duration::from_millis(30));
            done.store(1, Ordering::Release);
        })
        .unwrap();
        assert!(s.read_blocking(&x).unwrap().is_empty());
    });
    assert_eq!(done.load(Ordering::Acquire), 1);
}

#[test]
fn a_ring_waits_for_each_of_its_slots() {
    let device = Device::new_cpu().unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    AnyStream::new(device).unwrap().enter(|s| {
        let mut ring = Ring::new(2, move || device.pinned::<u8>(1)).unwrap();
        for _ in 0..2 {
            let (slot, done) = (s.wait(ring.acquire().unwrap()).unwrap(), done.clone());
            s.launch_host(move || {
                thread::sleep(std::time::Duration::from_millis(30));
                done.fetch_add(1, Ordering::AcqRel);
            })
            .unwrap();
            ring.recycle(s.record(slot).unwrap());
        }
        ring.synchronize().unwrap();
    });
    assert_eq!(done.load(Ordering::Acquire), 2);
}

#[test]
fn a_ring_of_a_device_that_has_failed_keeps_its_slots() {
    let device = Device::new_cpu().unwrap();
    let mut ring = Ring::new(2, move || device.pinned::<u8>(1)).unwrap();
    AnyStream::new(device).unwrap().enter(|s| {
        let slot = s.wait(ring.acquire().unwrap()).unwrap();
        let gate = Gate::closed(device);
        gate.hold(s);
        ring.recycle(s.record(slot).unwrap());
        device.poison("as asked");
        // One of the two was never used, so nothing has to be asked for it. The other one is still
        // in use, and nobody waits for that.
        assert!(matches!(ring.synchronize(), Err(Error::Poisoned { .. })));
        assert_eq!(ring.len(), 2);
        gate.open();
    });
}

#[test]
fn a_thread_has_another_stream_on_another_device() {
    let [a, b] = [(); 2].map(|()| Device::new_cpu().unwrap());
    let of = |device: Device| device.per_thread(|s| (s.device(), s.unique_id())).unwrap();
    assert_eq!(((of(a).0, of(b).0), of(a)), ((a, b), of(a)));
    assert_ne!(of(a).1, of(b).1);
}
