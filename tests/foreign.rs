//! Streams that other code made: buffers go to them and come back, and each side waits for the
//! other on the device.

use testkit::devices::{alone_on, devices};
use testkit::gate::Gate;
use thalweg::{AnyStream, Device, DeviceKind, Error, ForeignStream};

/// The foreign streams of a device, with their names. On a GPU one is a stream of another library:
/// for this test, one of ours by its raw handle.
fn foreign(device: Device) -> Vec<(&'static str, ForeignStream)> {
    let mut all = vec![
        ("legacy", ForeignStream::legacy(device).unwrap()),
        // SAFETY: Nothing in this process captures the default stream of a thread.
        ("per thread", unsafe { ForeignStream::per_thread(device) }.unwrap()),
    ];
    if device.kind() == DeviceKind::Cuda {
        let library = AnyStream::new(device).unwrap();
        let raw = library.enter(|s| s.raw()).unwrap();
        // SAFETY: Streams of this crate are never destroyed, and nothing captures this one.
        all.push(("imported", unsafe { ForeignStream::from_raw(device, raw) }.unwrap()));
        std::mem::forget(library); // nobody else gets the stream
    }
    all
}

/// On the CPU device, a stream of this crate stands in for a default stream. It goes back only
/// with the value.
#[test]
fn nobody_else_gets_the_stream_that_stands_in() {
    let cpu = Device::new_cpu().unwrap();
    let theirs = ForeignStream::legacy(cpu).unwrap();
    let its = theirs.enter(|s| s.unique_id());
    let ours: Vec<_> = (0..4).map(|_| AnyStream::new(cpu).unwrap()).collect();
    assert!(ours.iter().all(|stream| stream.enter(|s| s.unique_id()) != its));
    drop(theirs);
    let next = AnyStream::new(cpu).unwrap().enter(|s| s.unique_id());
    assert_eq!(next, its, "it is used again");
}

#[test]
fn each_side_waits_for_the_other() {
    for &device in devices() {
        let _alone = alone_on(device);
        for (name, theirs) in foreign(device) {
            AnyStream::new(device).unwrap().enter(|ours| {
                let mut x = ours.alloc::<u32>(100).unwrap();
                let mut host = ours.bind(device.pinned::<u32>(100).unwrap()).unwrap();
                ours.fill(&mut x, 0).unwrap(); // a driver may load a kernel here
                ours.synchronize().unwrap();
                let [first, second] = [(); 2].map(|()| Gate::closed(device));

                first.hold(ours);
                ours.fill(&mut x, 1).unwrap();
                let back = theirs.enter(|s| {
                    assert_eq!(s.device(), theirs.device());
                    assert_eq!(s.is_foreign(), device.kind() == DeviceKind::Cuda && !ours.is_foreign(), "{name}");
                    let mut x = ours.hand_off(x, s).unwrap();
                    second.hold(s);
                    // It would write 5 before the fill with 1 if it did not wait.
                    let reached = s.record(()).unwrap();
                    assert!(!reached.is_complete().unwrap(), "{device}, {name}");
                    s.fill(x.slice_mut(..50).unwrap(), 5).unwrap();
                    s.hand_off(x, ours).unwrap()
                });
                ours.copy_to_host(&back, &mut host).unwrap();
                let host = ours.record(host).unwrap();
                first.open();
                assert!(!host.is_complete().unwrap(), "{device}, {name}: ours did not wait for theirs");
                second.open();
                let host = host.synchronize().unwrap();
                assert_eq!((&host[..50], &host[50..]), (&[5; 50][..], &[1; 50][..]), "{device}, {name}");
            });
        }
    }
}

/// What is allocated on a foreign stream is freed on it, and lives on behind an event.
#[test]
fn buffers_may_begin_and_end_there() {
    for &device in devices() {
        let _alone = alone_on(device);
        for (name, theirs) in foreign(device) {
            let event = theirs.enter(|s| {
                drop(s.alloc::<u8>(1 << 20).unwrap());
                let mut x = s.alloc::<u16>(77).unwrap();
                s.fill(&mut x, 3).unwrap();
                let shared = s.share(x).unwrap();
                let mut y = s.alloc(77).unwrap();
                s.copy(&s.reading(&shared).unwrap(), &mut y).unwrap();
                s.record(y).unwrap()
            });
            let idle = event.synchronize().unwrap();
            AnyStream::new(device).unwrap().enter(|ours| {
                assert_eq!(ours.read_blocking(&ours.bind(idle).unwrap()).unwrap(), [3; 77], "{device}, {name}");
            });
        }
    }
}

#[test]
fn a_cpu_device_takes_no_driver_stream() {
    // SAFETY: A CPU device refuses the handle without using it.
    let refused = unsafe { ForeignStream::from_raw(Device::cpu().unwrap(), std::ptr::dangling_mut()) };
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Parameter { name: "stream", .. }), "{error}");
    assert!(error.to_string().contains("primary context of cpu"), "{error}");
}
