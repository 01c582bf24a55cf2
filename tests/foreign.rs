//! Streams that other code made: buffers go to them and come back, and each side waits for the
//! other on the device.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

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

/// A foreign stream of a device for tests, by its number.
fn by_number(device: Device, number: usize) -> ForeignStream {
    static LIBRARY: Mutex<Vec<(Device, usize, AnyStream)>> = Mutex::new(Vec::new());
    if device.kind() == DeviceKind::Cpu {
        return ForeignStream::stand_in(device, number).unwrap();
    }
    let mut library = LIBRARY.lock().unwrap();
    let found = library.iter().position(|(of, n, _)| (*of, *n) == (device, number));
    let at = found.unwrap_or_else(|| {
        library.push((device, number, AnyStream::new(device).unwrap()));
        library.len() - 1
    });
    let raw = library[at].2.enter(|s| s.raw()).unwrap();
    // SAFETY: Streams of this crate are never destroyed, and nothing captures this one.
    unsafe { ForeignStream::from_raw(device, raw) }.unwrap()
}

/// A program may make a value for each call: values of one stream are one stream.
#[test]
fn values_of_one_stream_are_one_stream() {
    for &device in devices() {
        let id = |number| by_number(device, number).enter(|s| s.unique_id());
        let ids: BTreeSet<u64> = (0..1000).map(|_| id(1)).collect();
        assert_eq!(ids.len(), 1, "{device}");
        assert!(!ids.contains(&id(2)), "{device}");
        let ours: Vec<_> = (0..4).map(|_| AnyStream::new(device).unwrap()).collect();
        assert!(ours.iter().all(|stream| !ids.contains(&stream.enter(|s| s.unique_id()))), "{device}");
        let legacy = || ForeignStream::legacy(device).unwrap();
        if device.kind() == DeviceKind::Cuda {
            assert_eq!(legacy().enter(|s| s.unique_id()), legacy().enter(|s| s.unique_id()), "{device}");
            let refused = ForeignStream::stand_in(device, 0).unwrap_err();
            assert!(refused.to_string().contains("expected a CPU device"), "{refused}");
        }
        assert!(!by_number(device, 1).is_capturing().unwrap(), "{device}");
    }
}

/// The handle of a stream that was destroyed comes back for another one, which must not be taken
/// for the first.
#[test]
fn a_stream_in_the_place_of_a_destroyed_one_is_another() {
    use cudarc::driver::sys;
    for &device in devices().iter().filter(|device| device.kind() == DeviceKind::Cuda) {
        let mut seen = HashMap::new();
        let (mut again, mut ids) = (0, BTreeSet::new());
        for _ in 0..50 {
            device
                .with_context(|| {
                    let mut stream = std::ptr::null_mut();
                    // SAFETY: A context is current. The call stores one handle in `stream`.
                    let made = unsafe { sys::cuStreamCreate(&mut stream, 1) };
                    assert_eq!(made, sys::CUresult::CUDA_SUCCESS);
                    // SAFETY: The stream exists until the end of this turn, and nothing
                    // captures it.
                    let theirs = unsafe { ForeignStream::from_raw(device, stream.cast()) }.unwrap();
                    let id = theirs.enter(|s| s.unique_id());
                    again += usize::from(seen.insert(stream.addr(), id).is_some());
                    assert!(ids.insert(id), "{device}: a new stream has the number of an old one");
                    // SAFETY: This is the only use of the stream after its work, of which
                    // there is none.
                    assert_eq!(unsafe { sys::cuStreamDestroy_v2(stream) }, sys::CUresult::CUDA_SUCCESS);
                })
                .unwrap();
        }
        println!("{device}: {again} of 50 handles came back");
    }
}

/// Work on borrowed memory is in the order of the stream that borrows it, also when the values are
/// gone by then.
#[test]
fn borrowed_memory_is_written_in_the_order_of_the_stream() {
    for &device in devices() {
        let _alone = alone_on(device);
        for number in [1, 2] {
            AnyStream::new(device).unwrap().enter(|ours| {
                let mut host = ours.bind(device.pinned::<u32>(100).unwrap()).unwrap();
                let mut x = ours.alloc::<u32>(100).unwrap();
                ours.fill(&mut x, 1).unwrap();
                ours.synchronize().unwrap();
                let (addr, gate) = (x.device_ptr(), Gate::closed(device));
                let done = by_number(device, number).enter(|s| {
                    gate.hold(s);
                    // SAFETY: `x` lives until the work is done, and `ours` only reads it meanwhile.
                    // That it does so is what the test looks at: the gate orders the two.
                    let theirs = unsafe { s.borrow::<u32>(addr, 50) }.unwrap();
                    s.fill(theirs, 5).unwrap();
                    s.record(()).unwrap()
                });
                // The log of calls does not know the gate, and would call this a missing wait.
                if std::env::var_os("THALWEG_TRACE").is_none() {
                    ours.copy_to_host(&x, &mut host).unwrap();
                    let host = ours.record(host).unwrap().synchronize().unwrap();
                    assert_eq!(host[..], [1; 100], "{device}: it was written before its turn");
                }
                assert!(!done.is_complete().unwrap(), "{device}");
                gate.open();
                done.synchronize().unwrap();
                let seen = ours.read_blocking(&x).unwrap();
                assert_eq!((&seen[..50], &seen[50..]), (&[5; 50][..], &[1; 50][..]), "{device}");
            });
        }
    }
}

#[test]
fn memory_that_cannot_be_borrowed_is_refused() {
    for &device in devices() {
        let ours = AnyStream::new(device).unwrap();
        let (addr, memory) = ours.enter(|s| {
            let x = s.alloc_zeroed::<u32>(8).unwrap();
            (x.device_ptr(), s.record(x).unwrap().synchronize().unwrap())
        });
        by_number(device, 1).enter(|s| {
            // SAFETY: Nothing is enqueued on the memory here.
            let borrow = |addr, len| unsafe { s.borrow::<u32>(addr, len) }.map(|x| x.len());
            assert_eq!(borrow(addr, 8).unwrap(), 8);
            assert_eq!(borrow(addr + 4, 7).unwrap(), 7);
            assert_eq!(borrow(0, 0).unwrap(), 0);
            for wrong in [0, addr + 1, addr + 2] {
                let error = borrow(wrong, 1).unwrap_err();
                assert!(matches!(error, Error::Parameter { name: "addr", .. }), "{device}: {error}");
            }
            assert!(matches!(borrow(addr, usize::MAX / 2), Err(Error::TooLarge { .. })), "{device}");
            if device.kind() == DeviceKind::Cuda {
                let on_host = Box::new(0u32);
                let error = borrow(std::ptr::from_ref(&*on_host).addr() as u64, 1).unwrap_err();
                assert!(error.to_string().contains(&format!("memory of {device}")), "{error}");
            }
            // For the log, memory that is borrowed is written here.
            s.synchronize().unwrap();
        });
        drop(memory);
    }
}
