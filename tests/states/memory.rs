//! Tests that memory comes back only after the work on it, and that buffers split and join.

use testkit::devices::{alone_on, devices, everywhere_and_seeded};
use testkit::gate::Gate;
use thalweg::{Device, DeviceBuffer, DeviceKind, Error, On, PinnedBuffer, PinnedPool, Ring};

use super::{filled, filling, lanes, not_yet};

/// Drops page-locked memory in each state while a copy from it waits at a closed gate. The pool
/// must not give it out again before the gate opens, and must do so after.
#[test]
fn page_locked_memory_comes_back_after_the_work_on_it() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, c| {
            for way in 0..8 {
                let pool = PinnedPool::new(device, 4096);
                let mut host = pool.take::<u32>(1024).unwrap();
                let address = host.as_ptr();
                host.fill(7);
                let mut x = filled(a, 1024, 0);
                let gate = Gate::closed(device);
                gate.hold(&a);
                let mut copied = |host: PinnedBuffer<u32>| {
                    let host = a.bind(host).unwrap();
                    a.copy_to_device(&host, &mut x).unwrap();
                    host
                };
                match way {
                    0 => drop(copied(host)),
                    1 => drop(a.record(copied(host)).unwrap()),
                    2 => drop(a.hand_off(copied(host), &b).unwrap()),
                    3 => drop(a.share(copied(host)).unwrap()),
                    4 | 5 => {
                        // The reader at the gate is neither the producer nor the last reader.
                        let shared = b.share(b.bind(host).unwrap()).unwrap();
                        let (first, second) = (a.reading(&shared).unwrap(), c.reading(&shared).unwrap());
                        a.copy_to_device(&first, &mut x).unwrap();
                        if way == 4 {
                            drop((shared, first, second));
                        } else {
                            drop((first, second));
                            drop(b.unshare(shared).unwrap());
                        }
                    }
                    6 => {
                        // The piece at the gate is not the last one.
                        let mut pieces = host.split_even(2).unwrap();
                        let early = b.bind(pieces.remove(1)).unwrap();
                        let late = a.bind(pieces.remove(0)).unwrap();
                        a.copy_to_device(&late, x.slice_mut(..512).unwrap()).unwrap();
                        drop(late);
                        drop(early);
                    }
                    _ => {
                        let mut ring = Ring::new(1, move || device.pinned::<u32>(0)).unwrap();
                        drop(ring.acquire().unwrap());
                        ring.recycle(a.record(copied(host)).unwrap());
                    }
                }
                not_yet("the memory", || pool.in_use() < 4096 || pool.cached() > 0);
                gate.open();
                let mut again = pool.take::<u32>(1024).unwrap();
                assert_eq!(again.as_ptr(), address, "way {way}");
                again.fill(8);
                assert_eq!(a.read_blocking(&x).unwrap()[..512], [7; 512], "way {way}");
                assert_eq!((pool.in_use(), pool.cached()), (4096, 0));
                drop(again);
                assert_eq!((pool.in_use(), pool.cached()), (0, 4096));
            }
        });
    });
}

/// Does the same with device memory: new allocations must not lie where the pending copy reads.
#[test]
fn device_memory_is_freed_after_the_work_on_it() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, c| {
            for way in 0..7 {
                let (x, mut y) = (filled(b, 1024, 7), filled(a, 1024, 0));
                let x = b.record(x).unwrap().synchronize().unwrap();
                let gate = Gate::closed(device);
                gate.hold(&a);
                let mut copied = |x: DeviceBuffer<u32>| {
                    let x = a.bind(x).unwrap();
                    a.copy(&x, &mut y).unwrap();
                    x
                };
                match way {
                    0 => drop(copied(x)),
                    1 => drop(a.record(copied(x)).unwrap()),
                    2 => drop(a.hand_off(copied(x), &b).unwrap()),
                    3 => drop(a.share(copied(x)).unwrap()),
                    4 | 5 => {
                        let shared = b.share(b.bind(x).unwrap()).unwrap();
                        let (first, second) = (a.reading(&shared).unwrap(), c.reading(&shared).unwrap());
                        a.copy(&first, &mut y).unwrap();
                        if way == 4 {
                            drop((shared, first, second));
                        } else {
                            drop((first, second));
                            drop(b.unshare(shared).unwrap());
                        }
                    }
                    _ => {
                        let mut pieces = x.split_even(2).unwrap();
                        let early = b.bind(pieces.remove(1)).unwrap();
                        let late = a.bind(pieces.remove(0)).unwrap();
                        a.copy(&late, y.slice_mut(..512).unwrap()).unwrap();
                        drop(late);
                        drop(early);
                    }
                }
                let others: Vec<_> = (0..8).map(|_| filling(c, 1024, 99)).collect();
                gate.open();
                assert_eq!(a.read_blocking(&y).unwrap()[..512], [7; 512], "way {way}");
                for other in &others {
                    assert_eq!(c.read_blocking(other).unwrap(), [99; 1024]);
                }
            }
        });
    });
}

#[test]
fn many_pieces_are_all_waited_for() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let pool = PinnedPool::new(device, 4096);
            let mut host = pool.take::<u32>(1000).unwrap();
            host.fill(7);
            let mut x = filled(a, 10, 0);
            let gate = Gate::closed(device);
            gate.hold(&a);
            let mut pieces = host.split_even(100).unwrap().into_iter();
            let first = a.bind(pieces.next().unwrap()).unwrap();
            a.copy_to_device(&first, &mut x).unwrap();
            drop(first);
            pieces.for_each(|piece| drop(b.bind(piece).unwrap()));
            not_yet("the memory", || pool.in_use() < 4096);
            gate.open();
            pool.take::<u32>(1000).unwrap().fill(8);
            assert_eq!(a.read_blocking(&x).unwrap(), [7; 10]);
        });
    });
}

/// Pairs of devices of one kind.
fn pairs() -> Vec<(Device, Device)> {
    let of = |kind| devices().iter().copied().filter(move |d| d.kind() == kind);
    let mut pairs: Vec<_> = of(DeviceKind::Cuda).zip(of(DeviceKind::Cuda).skip(1)).collect();
    if pairs.is_empty() {
        eprintln!("NOT COVERED: copies between two GPUs");
    }
    pairs.push((Device::cpu().unwrap(), Device::new_cpu().unwrap()));
    pairs
}

/// A graph holds copies between devices. Each replay copies what is there then, waits for the other
/// device, and the graph is refused for another buffer of the other device.
#[test]
fn graphs_copy_between_devices() {
    for (here, there) in pairs() {
        let _lock = alone_on(here);
        lanes(here, |a, _, _| {
            lanes(there, |b, _, _| {
                let theirs = b.wait(a.record(filled(a, 1000, 1)).unwrap().map_peer()).unwrap();
                let bundle = (theirs, filled(b, 1000, 0), filled(b, 1000, 0));
                let (mut graph, mut bundle) = b
                    .capture(bundle, |s, (theirs, copy, next)| {
                        s.copy_from_peer(theirs, copy)?;
                        s.copy_to_peer(next, theirs)
                    })
                    .unwrap();
                assert_eq!(graph.len(), 2);
                assert_eq!(b.read_blocking(&bundle.1).unwrap(), [0; 1000], "a capture runs nothing");

                for round in 1..5 {
                    // The other device sets the numbers as late as possible, and the replay waits
                    // for it.
                    let (theirs, copy, mut next) = bundle;
                    let mut x = a.wait(b.record(theirs).unwrap().map_local()).unwrap();
                    let gate = Gate::closed(here);
                    gate.hold(&a);
                    a.fill(&mut x, 10 * round).unwrap();
                    b.fill(&mut next, 10 * round + 1).unwrap();
                    let theirs = b.wait(a.record(x).unwrap().map_peer()).unwrap();
                    bundle = b.replay(&mut graph, (theirs, copy, next)).unwrap();
                    not_yet("the replay", || b.is_complete().unwrap());
                    gate.open();
                    assert_eq!(b.read_blocking(&bundle.1).unwrap(), [10 * round; 1000]);
                    let x = a.wait(b.record(bundle.0).unwrap().map_local()).unwrap();
                    assert_eq!(a.read_blocking(&x).unwrap(), [10 * round + 1; 1000]);
                    bundle.0 = b.wait(a.record(x).unwrap().map_peer()).unwrap();
                }

                let other = b.wait(a.record(filled(a, 1000, 7)).unwrap().map_peer()).unwrap();
                let Err(returned) = b.replay(&mut graph, (other, bundle.1, bundle.2)) else {
                    panic!("the graph ran with another buffer");
                };
                assert!(matches!(returned.error, Error::GraphMismatch { index: 0, .. }), "{}", returned.error);
            });
        });
    }
}

#[test]
fn copies_between_devices_have_one_length() {
    for (here, there) in pairs() {
        let _lock = alone_on(here);
        lanes(here, |a, _, _| {
            lanes(there, |b, _, _| {
                let mut theirs = b.wait(a.record(filled(a, 1000, 1)).unwrap().map_peer()).unwrap();
                for len in [999, 1001] {
                    let mut own = filled(b, len, 2);
                    let lengths = |error: Error| match error {
                        Error::LengthMismatch { source_len, destination_len } => (source_len, destination_len),
                        error => panic!("{error}"),
                    };
                    assert_eq!(lengths(b.copy_from_peer(&theirs, &mut own).unwrap_err()), (1000, len));
                    assert_eq!(lengths(b.copy_to_peer(&own, &mut theirs).unwrap_err()), (len, 1000));
                    assert_eq!(b.read_blocking(&own).unwrap(), vec![2; len], "nothing was enqueued");
                }
                let x = a.wait(b.record(theirs).unwrap().map_local()).unwrap();
                assert_eq!(a.read_blocking(&x).unwrap(), [1; 1000]);
            });
        });
    }
}

#[test]
fn devices_copy_from_one_another_and_wait_for_one_another() {
    for (here, there) in pairs() {
        let _lock = alone_on(here);
        lanes(here, |a, _, _| {
            lanes(there, |b, _, _| {
                for way in 0..3 {
                    let (mut x, mut y) = (filled(a, 1000, 1), filled(b, 1000, 0));
                    let gates = [Gate::closed(here), Gate::closed(there), Gate::closed(there)];
                    gates[0].hold(&a);
                    a.fill(&mut x, 2).unwrap();
                    let mut x = b.wait(a.record(x).unwrap().map_peer()).unwrap();
                    b.copy_from_peer(&x, &mut y).unwrap();
                    not_yet("the copy", || b.is_complete().unwrap());
                    gates[0].open();
                    assert_eq!(b.read_blocking(&y).unwrap(), [2; 1000]);

                    gates[1].hold(&b);
                    b.fill(&mut y, 3).unwrap();
                    b.copy_to_peer(&y, &mut x).unwrap();
                    let x = a.wait(b.record(x).unwrap().map_local()).unwrap();
                    not_yet("the copy back", || a.is_complete().unwrap());
                    gates[1].open();
                    assert_eq!(a.read_blocking(&x).unwrap(), [3; 1000]);

                    let x = b.wait(a.record(x).unwrap().map_peer()).unwrap();
                    b.fill(&mut y, 0).unwrap();
                    gates[2].hold(&b);
                    b.copy_from_peer(&x, &mut y).unwrap();
                    match way {
                        0 => drop(x),
                        1 => drop(b.record(x).unwrap()),
                        _ => drop(b.record(x).unwrap().map_local()),
                    }
                    let others: Vec<_> = (0..8).map(|_| filling(a, 1000, 99)).collect();
                    gates[2].open();
                    assert_eq!(b.read_blocking(&y).unwrap(), [3; 1000], "way {way}");
                    for other in &others {
                        assert_eq!(a.read_blocking(other).unwrap(), [99; 1000]);
                    }
                    // The memory was freed on the device that allocated it, so the count of the
                    // other device is right.
                    assert!(there.free_memory().unwrap() > 1 << 20);
                    drop(b.alloc::<u32>(1 << 20).unwrap());
                }
            });
        });
    }
}

#[test]
fn forgetting_leaks_and_corrupts_nothing() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let pool = PinnedPool::new(device, 1 << 20);
            let (mut x, mut y) = (filled(a, 1024, 1), filled(b, 1024, 1));
            let gate = Gate::closed(device);
            let [first, second, third, fourth] = [(); 4].map(|()| {
                let mut host = pool.take::<u32>(1024).unwrap();
                host.fill(7);
                a.bind(host).unwrap()
            });
            gate.hold(&a);
            a.copy_to_device(&first, &mut x).unwrap();
            std::mem::forget(first);
            std::mem::forget(a.record(second).unwrap());
            std::mem::forget(a.share(third).unwrap());
            let shared = a.share(fourth).unwrap();
            let reading = b.reading(&shared).unwrap();
            b.copy_to_device(&reading, &mut y).unwrap();
            std::mem::forget(reading);
            let returned = a.unshare(shared).unwrap_err();
            assert!(matches!(returned.error, Error::StillShared { ref_count: 1 }), "for good");
            drop(returned);
            gate.open();
            a.synchronize().unwrap();
            let mut others: Vec<_> = (0..4).map(|_| pool.take::<u32>(1024).unwrap()).collect();
            others.iter_mut().for_each(|other| other.fill(9));
            assert_eq!(a.read_blocking(&x).unwrap(), [7; 1024]);
            assert_eq!(b.read_blocking(&y).unwrap(), [7; 1024]);
            drop(others);
            assert_eq!((pool.in_use(), pool.cached()), (4 * 4096, 4 * 4096));
        });
    });
}

#[test]
fn pieces_join_again_in_order_only() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let data: Vec<u32> = (0..10).collect();
            let x = a.upload_blocking(&data).unwrap();
            let mut pieces = x.split_even(3).unwrap();
            assert_eq!(pieces.iter().map(|p| p.len()).collect::<Vec<_>>(), [4, 3, 3]);
            // The pieces can go to different streams.
            let middle = a.hand_off(pieces.remove(1), &b).unwrap();
            assert_eq!(b.read_blocking(&middle).unwrap(), [4, 5, 6]);
            let returned = On::<_, DeviceBuffer<u32>>::join(pieces).unwrap_err();
            assert!(matches!(returned.error, Error::NotAdjacent { .. }));
            let mut pieces = returned.value;
            pieces.insert(1, b.hand_off(middle, &a).unwrap());
            pieces.swap(0, 1);
            let mut pieces = On::<_, DeviceBuffer<u32>>::join(pieces).unwrap_err().value;
            pieces.swap(0, 1);
            let whole = On::<_, DeviceBuffer<u32>>::join(pieces).unwrap();
            assert_eq!(a.read_blocking(&whole).unwrap(), data);

            let returned = DeviceBuffer::<u32>::join(Vec::new()).unwrap_err();
            assert!(matches!(returned.error, Error::NotAdjacent { .. }));
            let [p, q] = [(); 2].map(|()| device.pinned::<u8>(4096).unwrap());
            assert!(matches!(PinnedBuffer::join(vec![p, q]).unwrap_err().error, Error::NotAdjacent { .. }));
            let [p, q] = [(); 2].map(|()| device.pinned::<u8>(2).unwrap().split_even(2).unwrap().remove(0));
            assert!(matches!(PinnedBuffer::join(vec![p, q]).unwrap_err().error, Error::NotAdjacent { .. }));
            let mut pinned = PinnedBuffer::join(device.pinned_from(&data).unwrap().split_even(10).unwrap()).unwrap();
            assert_eq!(*pinned, *data);
            pinned[9] = 0;
            // A buffer can be split into more pieces than it has elements, and into none.
            assert_eq!(PinnedBuffer::join(pinned.split_even(20).unwrap()).unwrap()[8..], [8, 0]);
            assert!(device.pinned::<u8>(5).unwrap().split_even(0).unwrap().is_empty());
            assert!(filled(a, 5, 0).split_even(0).unwrap().is_empty());
        });
    });
}

#[test]
fn lengths_of_pieces_are_those_of_the_whole() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            let mut x = filled(a, 10, 1);
            for wrong in [&[3, 6][..], &[3, 8], &[], &[usize::MAX, 11]] {
                let refused = x.split_at_lengths(wrong).unwrap_err();
                assert!(matches!(refused.error, Error::Parameter { name: "lens", .. }), "{}", refused.error);
                x = refused.value;
            }
            let lens: Vec<_> = x.split_at_lengths(&[3, 0, 7]).unwrap().iter().map(|piece| piece.len()).collect();
            assert_eq!(lens, [3, 0, 7]);
        });
    });
}

#[test]
fn memory_of_joined_pieces_is_given_back() {
    let device = Device::new_cpu().unwrap();
    let in_use = || device.memory_stats().unwrap().in_use;
    lanes(device, |a, _, _| {
        let whole = On::<_, DeviceBuffer<u32>>::join(filled(a, 1000, 1).split_even(3).unwrap()).unwrap();
        assert_eq!(in_use(), 4000);
        drop(whole);
        assert_eq!(in_use(), 0);
    });
}

#[test]
fn buffers_without_elements() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let (mut x, mut y) = (a.alloc::<u32>(0).unwrap(), a.alloc_zeroed::<u32>(0).unwrap());
            let mut host = a.bind(device.pinned::<u32>(0).unwrap()).unwrap();
            a.fill(&mut x, 1).unwrap();
            a.copy(&x, &mut y).unwrap();
            a.copy_to_device(&host, &mut x).unwrap();
            a.copy_to_host(&x, &mut host).unwrap();
            a.write_blocking(&[], &mut x).unwrap();
            assert!(a.read_blocking(&x).unwrap().is_empty());
            let shared = a.share((x, host)).unwrap();
            b.reading(&shared).unwrap();
            let (x, host) = b.unshare(shared).unwrap();
            let (x, host) = b.record((x, host)).unwrap().synchronize().unwrap();
            assert!(x.is_empty() && host.is_empty());
            assert!(x.split_even(3).unwrap().iter().all(DeviceBuffer::is_empty));
            let mut ring = Ring::new(0, move || device.pinned::<u8>(0)).unwrap();
            let slot = ring.acquire().unwrap();
            ring.recycle(slot);
        });
    });
}

#[test]
fn an_event_says_how_long_its_buffer_is() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            for len in [0, 3] {
                let x = a.record(filled(a, len, 1)).unwrap();
                let host = a.record(a.bind(device.pinned::<u32>(len).unwrap()).unwrap()).unwrap();
                assert_eq!((x.len(), x.is_empty()), (len, len == 0));
                assert_eq!((host.len(), host.is_empty()), (len, len == 0));
            }
        });
    });
}
