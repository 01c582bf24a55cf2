//! The three states, one promise at a time: order proven with a gate that holds a stream up, never with sleeps;
//! what becomes of memory, by counting; and what every misuse is told.

mod support;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use support::devices::{alone_on, devices, everywhere, everywhere_and_seeded};
use support::gate::Gate;
use thalweg::{
    Activity, AnyStream, Device, DeviceBuffer, DeviceKind, Error, Event, Lane, On, PinnedBuffer, PinnedPool, Query,
    Ring, Stall, Stream, StreamOptions, StreamPool, StreamTag, Timeline, concurrency_check, kernel, stream_tags,
};

// --- helpers ---------------------------------------------------------------------------------------------------

/// Runs `check` on three streams of `device`.
fn lanes<T>(
    device: Device,
    check: impl for<'a, 'b, 'c> FnOnce(Stream<Lane<'a>>, Stream<Lane<'b>>, Stream<Lane<'c>>) -> T,
) -> T {
    let [a, b, c] = [(); 3].map(|()| AnyStream::new(device).unwrap());
    a.enter(|&a| b.enter(|&b| c.enter(|&c| check(a, b, c))))
}

/// Asks until it is so.
#[track_caller]
fn soon(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} never came");
        thread::yield_now();
    }
}

/// That it is not so, however often one asks.
#[track_caller]
fn not_yet(what: &str, so: impl Fn() -> bool) {
    for _ in 0..100 {
        assert!(!so(), "{what} too early");
        thread::yield_now();
    }
}

/// A device buffer with the same number everywhere, written and done.
fn filled<S: StreamTag>(s: Stream<S>, len: usize, v: u32) -> On<S, DeviceBuffer<u32>> {
    let x = filling(s, len, v);
    s.synchronize().unwrap();
    x
}

/// As [`filled`], without waiting: a GPU may lend memory whose free stands at a gate, and then the stream stands there
/// too.
fn filling<S: StreamTag>(s: Stream<S>, len: usize, v: u32) -> On<S, DeviceBuffer<u32>> {
    let mut x = s.alloc(len).unwrap();
    s.fill(&mut x, v).unwrap();
    x
}

thalweg::ptx! {}

kernel! {
    unsafe fn panics(cx: impl Simt)
    grid(1) block(1)
    {
        panic!("on purpose");
    }
}

// --- order -----------------------------------------------------------------------------------------------------

#[test]
fn wait_waits() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let (mut x, host) = (filled(a, 1000, 1), b.bind(device.pinned::<u32>(1000).unwrap()).unwrap());
            let gate = Gate::closed(device);
            gate.hold(&a);
            a.fill(&mut x, 2).unwrap();
            let x = b.wait(a.record(x).unwrap()).unwrap();
            let mut host = host;
            b.copy_to_host(&x, &mut host).unwrap();
            let done = b.record((x, host)).unwrap();
            not_yet("the copy", || done.is_ready().unwrap() || b.is_done().unwrap() || a.is_done().unwrap());
            gate.open();
            let (_, host) = done.synchronize().unwrap();
            assert_eq!(*host, [2; 1000]);
            soon("the end", || a.is_done().unwrap() && b.is_done().unwrap());
        });
    });
}

#[test]
fn hand_waits() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, c| {
            let (mut x, host) = (filled(a, 1000, 1), device.pinned::<u32>(1000).unwrap());
            let gate = Gate::closed(device);
            gate.hold(&a);
            a.fill(&mut x, 2).unwrap();
            let x = a.hand(x, &b).unwrap();
            // The same event serves every hand: the first one must not be lost.
            let other = a.hand(a.bind(host).unwrap(), &c).unwrap();
            let mut host = c.hand(other, &b).unwrap();
            b.copy_to_host(&x, &mut host).unwrap();
            let host = b.record(host).unwrap();
            not_yet("the copy", || host.is_ready().unwrap());
            gate.open();
            assert_eq!(*host.synchronize().unwrap(), [2; 1000]);
        });
    });
}

#[test]
fn query_gives_the_event_again_until_the_work_is_done() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            let (x, mut host) = (filled(a, 10, 5), a.bind(device.pinned::<u32>(10).unwrap()).unwrap());
            let gate = Gate::closed(device);
            let start = a.timestamp().unwrap();
            gate.hold(&a);
            a.copy_to_host(&x, &mut host).unwrap();
            let end = a.timestamp().unwrap();
            let mut event = a.record(host).unwrap();
            for _ in 0..100 {
                event = match event.query().unwrap() {
                    Query::Pending(event) => event,
                    Query::Ready(_) => panic!("ready behind a closed gate"),
                };
            }
            assert!(end.elapsed(&start).unwrap().is_none());
            gate.open();
            end.synchronize().unwrap();
            assert!(end.elapsed(&start).unwrap().is_some());
            loop {
                match event.query().unwrap() {
                    Query::Pending(e) => event = e,
                    Query::Ready(host) => break assert_eq!(*host, [5; 10]),
                }
            }
        });
    });
}

#[test]
fn synchronize_waits_for_another_thread_to_open_the_gate() {
    everywhere(|device| {
        lanes(device, |a, _, _| {
            let (x, mut host) = (filled(a, 10, 5), a.bind(device.pinned::<u32>(10).unwrap()).unwrap());
            let gate = Gate::closed(device);
            let opened = AtomicUsize::new(0);
            gate.hold(&a);
            a.copy_to_host(&x, &mut host).unwrap();
            let event = a.record(host).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    opened.store(1, Ordering::SeqCst);
                    gate.open();
                });
                let host = event.synchronize().unwrap();
                assert_eq!(opened.load(Ordering::SeqCst), 1);
                assert_eq!(*host, [5; 10]);
            });
        });
    });
}

#[test]
fn blocking_calls_wait() {
    everywhere(|device| {
        lanes(device, |a, _, _| {
            let mut x = filled(a, 10, 5);
            let call = |what: &mut dyn FnMut()| {
                let (gate, opened) = (Gate::closed(device), AtomicUsize::new(0));
                gate.hold(&a);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        (0..100).for_each(|_| thread::yield_now());
                        opened.store(1, Ordering::SeqCst);
                        gate.open();
                    });
                    what();
                    assert_eq!(opened.load(Ordering::SeqCst), 1);
                });
            };
            call(&mut || a.synchronize().unwrap());
            call(&mut || assert_eq!(a.read_blocking(&x).unwrap(), [5; 10]));
            call(&mut || a.write_blocking(&[6; 10], &mut x).unwrap());
            call(&mut || assert_eq!(a.record(()).unwrap().synchronize().unwrap(), ()));
            assert_eq!(a.read_blocking(&x).unwrap(), [6; 10]);
            call(&mut || drop(a.alloc_zeroed::<u32>(10).unwrap().idle().unwrap()));
        });
    });
}

#[test]
fn readers_wait_for_the_producer_and_the_next_writer_for_every_reader() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, c| {
            let mut x = filled(a, 500, 1);
            let (mut on_b, mut on_c) = (filled(b, 500, 0), filled(c, 500, 0));
            let (producing, reading) = (Gate::closed(device), Gate::closed(device));

            producing.hold(&a);
            a.fill(&mut x, 2).unwrap();
            let shared = a.share(x).unwrap();
            let (first, second) = (b.reading(&shared).unwrap(), c.reading(&shared).unwrap());
            b.copy(&first, &mut on_b).unwrap();
            reading.hold(&c);
            c.copy(&second, &mut on_c).unwrap();
            not_yet("a reader", || b.is_done().unwrap());
            drop((second, first));
            producing.open();
            soon("a reader", || b.is_done().unwrap());

            // Only the reader on `c` is at work now.
            let mut x = a.unshare(shared).unwrap();
            a.fill(&mut x, 3).unwrap();
            not_yet("the writer", || a.is_done().unwrap());
            reading.open();
            assert_eq!(a.read_blocking(&x).unwrap(), [3; 500]);
            assert_eq!(b.read_blocking(&on_b).unwrap(), [2; 500]);
            assert_eq!(c.read_blocking(&on_c).unwrap(), [2; 500]);
        });
    });
}

/// Two threads read on one stream, and the one that recorded its end first says so last: its record must not
/// take the place of the other's. On a schedule on which the host function runs between the record and the saying.
#[test]
fn threads_that_read_on_one_stream_are_all_waited_for() {
    stream_tags!(Reads, Calls, Writes);
    let device = Device::seeded_cpu(0).unwrap();
    let reads = device.stream::<Reads>().unwrap();
    let calls = device.stream::<Calls>().unwrap();
    let writes = device.stream::<Writes>().unwrap();
    for seed in 0..300 {
        let shared = writes.share(filled(writes, 1000, 1)).unwrap();
        device.reseed(seed);
        let first = reads.reading(&shared).unwrap();
        let (clone, mut copy) = (shared.clone(), reads.alloc(1000).unwrap());
        let (go, gone) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let other = thread::spawn(move || {
            gone.recv().unwrap();
            let second = reads.reading(&clone).unwrap();
            reads.copy(&second, &mut copy).unwrap();
            drop((second, clone));
            tell.send(()).unwrap();
            reads.record(copy).unwrap()
        });
        let meanwhile = move || {
            go.send(()).unwrap();
            told.recv().unwrap();
        };
        calls.launch_host(meanwhile).unwrap();
        drop(first);
        calls.synchronize().unwrap();
        let mut x = writes.unshare(shared).unwrap();
        writes.fill(&mut x, 2).unwrap();
        let copy = reads.wait(other.join().unwrap()).unwrap();
        assert_eq!(reads.read_blocking(&copy).unwrap(), [1; 1000], "seed {seed}");
    }
}

#[test]
fn unshare_is_refused_while_others_hold_on() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let shared = a.share(filled(a, 5, 1)).unwrap();
            let (clone, reading) = (shared.clone(), b.reading(&shared).unwrap());
            assert_eq!(shared.holders(), 3);
            let returned = a.unshare(shared).unwrap_err();
            assert!(matches!(returned.error, Error::StillShared { holders: 2 }));
            drop(clone);
            let returned = b.unshare(returned.value).unwrap_err();
            assert!(matches!(returned.error, Error::StillShared { holders: 1 }));
            drop(reading);
            assert_eq!(a.read_blocking(&a.unshare(returned.value).unwrap()).unwrap(), [1; 5]);
        });
    });
}

#[test]
fn the_host_sees_shared_page_locked_memory_once_it_is_written() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let (x, mut y) = (filled(a, 50, 4), filled(b, 50, 0));
            let mut host = a.bind(device.pinned::<u32>(50).unwrap()).unwrap();
            let (writing, reading) = (Gate::closed(device), Gate::closed(device));
            writing.hold(&a);
            a.copy_to_host(&x, &mut host).unwrap();
            let shared = a.share(host).unwrap();
            not_yet("a slice", || shared.host().unwrap().is_some());
            writing.open();
            reading.hold(&b);
            b.copy_to_device(&b.reading(&shared).unwrap(), &mut y).unwrap();
            soon("the slice", || shared.host().unwrap().is_some());
            assert_eq!(shared.host().unwrap().unwrap(), [4; 50], "while another stream reads");
            reading.open();
            assert_eq!(b.read_blocking(&y).unwrap(), [4; 50]);
        });
    });
}

#[test]
fn one_stream_may_be_handed_from_by_several_threads() {
    stream_tags!(Left, Right);
    let device = Device::cpu().unwrap();
    let (left, right) = (device.stream::<Left>().unwrap(), device.stream::<Right>().unwrap());
    let workers: Vec<_> = (0..4)
        .map(|i| {
            thread::spawn(move || {
                let mut x = filled(left, 64, i);
                for step in 0..500 {
                    let v = i + 4 * step;
                    left.fill(&mut x, v).unwrap();
                    let there = left.hand(x, &right).unwrap();
                    let mut copy = right.alloc(64).unwrap();
                    right.copy(&there, &mut copy).unwrap();
                    x = right.hand(there, &left).unwrap();
                    if step % 50 == 0 {
                        assert_eq!(right.read_blocking(&copy).unwrap(), [v; 64]);
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|w| w.join().unwrap());
}

// --- memory ----------------------------------------------------------------------------------------------------

/// Lets go of page-locked memory in each state while a copy from it stands at a closed gate. It must not be lent
/// again before the gate opens, and must be after.
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
                    2 => drop(a.hand(copied(host), &b).unwrap()),
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
                        let mut pieces = host.split(2);
                        let early = b.bind(pieces.remove(1)).unwrap();
                        let late = a.bind(pieces.remove(0)).unwrap();
                        a.copy_to_device(&late, x.slice_mut(..512).unwrap()).unwrap();
                        drop(late);
                        drop(early);
                    }
                    _ => {
                        let mut ring = Ring::new(1, move || device.pinned::<u32>(0)).unwrap();
                        drop(ring.take().unwrap());
                        ring.give(a.record(copied(host)).unwrap());
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

/// The same for device memory: whatever is allocated meanwhile must not be where the pending copy reads.
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
                    2 => drop(a.hand(copied(x), &b).unwrap()),
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
                        let mut pieces = x.split(2);
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
            let mut pieces = host.split(100).into_iter();
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

#[test]
fn a_pool_may_go_before_the_work_on_its_memory() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            let pool = PinnedPool::new(device, 4096);
            let mut host = pool.take::<u32>(1024).unwrap();
            host.fill(7);
            let mut x = filled(a, 1024, 0);
            let others: Vec<_> = (0..4).map(|_| device.pinned::<u32>(1024).unwrap()).collect();
            let gate = Gate::closed(device);
            drop(others);
            gate.hold(&a);
            let host = a.bind(host).unwrap();
            a.copy_to_device(&host, &mut x).unwrap();
            drop(host);
            drop(pool);
            // The device's own pool has it now, and must not lend it yet.
            let others = [(); 4].map(|()| {
                let mut other = device.pinned::<u32>(1024).unwrap();
                other.fill(8);
                other
            });
            gate.open();
            assert_eq!(a.read_blocking(&x).unwrap(), [7; 1024]);
            drop(others);
        });
    });
}

#[test]
fn devices_copy_from_one_another_and_wait_for_one_another() {
    let of = |kind| devices().iter().copied().filter(move |d| d.kind() == kind);
    let mut pairs: Vec<_> = of(DeviceKind::Cuda).zip(of(DeviceKind::Cuda).skip(1)).collect();
    if pairs.is_empty() {
        eprintln!("NOT COVERED: copies between two GPUs");
    }
    pairs.push((Device::cpu().unwrap(), Device::new_cpu().unwrap()));
    for (here, there) in pairs {
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
                    not_yet("the copy", || b.is_done().unwrap());
                    gates[0].open();
                    assert_eq!(b.read_blocking(&y).unwrap(), [2; 1000]);

                    gates[1].hold(&b);
                    b.fill(&mut y, 3).unwrap();
                    b.copy_to_peer(&y, &mut x).unwrap();
                    let x = a.wait(b.record(x).unwrap().map_local()).unwrap();
                    not_yet("the copy back", || a.is_done().unwrap());
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
                    // Freed where it was allocated: the other device's books are right.
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
            assert!(matches!(returned.error, Error::StillShared { holders: 1 }), "for good");
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
fn a_pool_keeps_to_its_budget() {
    everywhere_and_seeded(|device| {
        let pool = PinnedPool::new(device, 3 * 4096);
        let large = pool.take::<u8>(8192).unwrap();
        let small = pool.take::<u8>(1).unwrap();
        let error = pool.take::<u8>(1).unwrap_err();
        assert!(matches!(error, Error::PinnedBudget { wanted: 1, in_use: 12288, budget: 12288 }), "{error}");
        drop(small);
        assert_eq!((pool.in_use(), pool.cached()), (8192, 4096));
        for _ in 0..10 {
            drop(pool.take::<u8>(1).unwrap()); // the same block again and again
            assert_eq!((pool.in_use(), pool.cached()), (8192, 4096));
        }
        drop(large);
        // What is kept is of other sizes: it makes room.
        drop(pool.take::<u8>(3 * 4096).unwrap());
        pool.trim();
        assert_eq!((pool.in_use(), pool.cached()), (0, 0));
        assert!(matches!(pool.take::<u8>(3 * 4096 + 1), Err(Error::PinnedBudget { .. })));
        assert!(matches!(pool.take::<u64>(usize::MAX / 8 + 1), Err(Error::TooLarge { size: 8, .. })));
        // A buffer outlives its pool's handle.
        let last = pool.take::<u32>(3).unwrap();
        drop(pool);
        assert_eq!(last.len(), 3);
    });
}

/// Counts the blocks that a device's own pool makes, on a device that nobody else uses.
fn made(device: Device, run: impl FnOnce()) -> u64 {
    device.tally().enable();
    run();
    device.tally().disable();
    let report = device.tally().report();
    report.stalls().iter().filter(|s| s.kind == Stall::PinnedAllocation).map(|s| s.count).sum()
}

/// 300 buffers of growing size, one alive at a time, kept 3 GiB.
#[test]
fn sizes_that_grow_leave_no_trail_of_page_locked_memory() {
    const MIB: usize = 1 << 20;
    let device = Device::new_cpu().unwrap();
    let pool = device.pinned_pool();
    let mut most = 0;
    for i in 1..=300 {
        drop(device.pinned::<u8>(i * MIB / 15).unwrap());
        most = most.max(pool.cached());
    }
    assert!(most <= 20 * MIB, "{} MiB kept for buffers of at most 20", most.div_ceil(MIB));
    // It is at most twice what was in use at once, whatever the order of the sizes.
    for i in (1..=20).chain((1..=20).rev()) {
        drop(device.pinned::<u8>(i * 6 * MIB).unwrap());
        assert!(pool.cached() <= 240 * MIB, "{} MiB kept for buffers of at most 120", pool.cached() / MIB);
    }
    device.trim().unwrap();
    // Buffers of ever smaller sizes, together as large as one at first, whose blocks are too large for the next.
    for n in [1, 4, 16, 64, 256] {
        drop((0..n).map(|_| device.pinned::<u8>(120 * MIB / n).unwrap()).collect::<Vec<_>>());
        assert!(pool.cached() <= 241 * MIB, "{} MiB kept for buffers of 120 together", pool.cached() / MIB);
    }
    device.trim().unwrap();
    assert_eq!((pool.in_use(), pool.cached()), (0, 0));
    // What was in use at once counts from the last trim: of sizes that shrink, no block takes another's place.
    for i in (1..=300).rev() {
        drop(device.pinned::<u8>(i * MIB / 15).unwrap());
    }
    assert!(pool.cached() <= 64 * MIB, "{} MiB", pool.cached() / MIB);
}

/// Mixed sizes, some together and some one at a time, find all blocks there once each was made.
#[test]
fn a_steady_mix_of_sizes_makes_no_page_locked_memory() {
    const MIB: usize = 1 << 20;
    let device = Device::new_cpu().unwrap();
    let round = || {
        let pair = [device.pinned::<u8>(90 * MIB).unwrap(), device.pinned::<u8>(50 * MIB).unwrap()];
        let small: Vec<_> = (1..40).map(|i| device.pinned::<u8>(i * 50_000).unwrap()).collect();
        drop(pair);
        drop(small);
        for size in [3, 10, 35, 60, 100, 17, 35] {
            drop(device.pinned::<u8>(size * MIB).unwrap());
        }
    };
    let first = made(device, || (0..5).for_each(|_| round()));
    assert!(first > 40, "{first}");
    assert_eq!(made(device, || (0..50).for_each(|_| round())), 0);
    let pool = device.pinned_pool();
    assert!(pool.cached() <= 2 * (90 + 50 + 100) * MIB, "{} MiB", pool.cached() / MIB);
}

#[test]
fn page_locked_memory_keeps_to_its_limit() {
    let device = Device::new_cpu().unwrap();
    let pool = device.pinned_pool();
    let (a, b) = (device.pinned::<u8>(8192).unwrap(), device.pinned::<u8>(4096).unwrap());
    device.limit_pinned(Some(12288));
    let error = device.pinned::<u8>(1).unwrap_err();
    assert!(matches!(error, Error::PinnedBudget { wanted: 1, in_use: 12288, budget: 12288 }), "{error}");
    drop(a);
    assert_eq!((pool.in_use(), pool.cached()), (4096, 8192));
    device.limit_pinned(Some(4096));
    assert_eq!((pool.in_use(), pool.cached()), (4096, 0), "what is kept beyond the limit goes");
    assert!(device.pinned::<u8>(1).is_err());
    drop(b);
    drop(device.pinned::<u8>(4096).unwrap());
    assert!(matches!(device.pinned::<u8>(4097), Err(Error::PinnedBudget { .. })));
    assert_eq!((pool.in_use(), pool.cached()), (0, 4096));
    device.limit_pinned(None);
    drop(device.pinned::<u8>(1 << 20).unwrap());
}

#[test]
fn a_pool_waits_for_what_is_about_to_come_back() {
    everywhere(|device| {
        lanes(device, |a, _, _| {
            let pool = PinnedPool::new(device, 4096);
            let mut x = filled(a, 1024, 0);
            let gate = Gate::closed(device);
            let host = a.bind(pool.take::<u32>(1024).unwrap()).unwrap();
            let opened = AtomicUsize::new(0);
            gate.hold(&a);
            a.copy_to_device(&host, &mut x).unwrap();
            drop(host);
            thread::scope(|scope| {
                scope.spawn(|| {
                    opened.store(1, Ordering::SeqCst);
                    gate.open();
                });
                drop(pool.take::<u32>(1024).unwrap());
                assert_eq!(opened.load(Ordering::SeqCst), 1);
            });
        });
    });
}

#[test]
fn pieces_join_again_in_order_only() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let data: Vec<u32> = (0..10).collect();
            let x = a.upload_blocking(&data).unwrap();
            let mut pieces = x.split(3);
            assert_eq!(pieces.iter().map(|p| p.len()).collect::<Vec<_>>(), [4, 3, 3]);
            // Each goes its own way.
            let middle = a.hand(pieces.remove(1), &b).unwrap();
            assert_eq!(b.read_blocking(&middle).unwrap(), [4, 5, 6]);
            let returned = On::<_, DeviceBuffer<u32>>::join(pieces).unwrap_err();
            assert!(matches!(returned.error, Error::NotAdjacent { .. }));
            let mut pieces = returned.value;
            pieces.insert(1, b.hand(middle, &a).unwrap());
            pieces.swap(0, 1);
            let mut pieces = On::<_, DeviceBuffer<u32>>::join(pieces).unwrap_err().value;
            pieces.swap(0, 1);
            let whole = On::<_, DeviceBuffer<u32>>::join(pieces).unwrap();
            assert_eq!(a.read_blocking(&whole).unwrap(), data);

            let returned = DeviceBuffer::<u32>::join(Vec::new()).unwrap_err();
            assert!(matches!(returned.error, Error::NotAdjacent { .. }));
            let [p, q] = [(); 2].map(|()| device.pinned::<u8>(4096).unwrap());
            assert!(matches!(PinnedBuffer::join(vec![p, q]).unwrap_err().error, Error::NotAdjacent { .. }));
            let [p, q] = [(); 2].map(|()| device.pinned::<u8>(2).unwrap().split(2).remove(0));
            assert!(matches!(PinnedBuffer::join(vec![p, q]).unwrap_err().error, Error::NotAdjacent { .. }));
            let mut pinned = PinnedBuffer::join(device.pinned_from(&data).unwrap().split(10)).unwrap();
            assert_eq!(*pinned, *data);
            pinned[9] = 0;
            // More pieces than elements, and none at all.
            assert_eq!(PinnedBuffer::join(pinned.split(20)).unwrap()[8..], [8, 0]);
            assert!(device.pinned::<u8>(5).unwrap().split(0).is_empty());
            assert!(filled(a, 5, 0).split(0).is_empty());
        });
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
            assert!(x.split(3).iter().all(DeviceBuffer::is_empty));
            let mut ring = Ring::new(0, move || device.pinned::<u8>(0)).unwrap();
            let slot = ring.take().unwrap();
            ring.give(slot);
        });
    });
}

#[test]
fn a_ring_makes_lost_slots_anew_and_waits_for_the_others() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            let made = Arc::new(AtomicUsize::new(0));
            let (count, pool) = (made.clone(), PinnedPool::new(device, 3 * 4096));
            drop([(); 3].map(|()| pool.take::<u32>(100).unwrap())); // so that the gate holds up nothing below
            let make = move || {
                count.fetch_add(1, Ordering::SeqCst);
                pool.take::<u32>(100)
            };
            let mut ring = Ring::new(2, make).unwrap();
            let x = filled(a, 100, 6);
            let gate = Gate::closed(device);
            let mut host = a.wait(ring.take().unwrap()).unwrap();
            gate.hold(&a);
            a.copy_to_host(&x, &mut host).unwrap();
            ring.give(a.record(host).unwrap());
            drop(ring.take().unwrap()); // lost
            let pending = ring.take().unwrap();
            not_yet("a slot", || pending.is_ready().unwrap());
            let anew = ring.take().unwrap();
            assert!(anew.is_ready().unwrap());
            assert_eq!(made.load(Ordering::SeqCst), 3);
            ring.give(pending);
            ring.give(anew);
            ring.give(Event::ready(device.pinned(0).unwrap())); // one too many
            gate.open();
            ring.synchronize().unwrap();
            assert_eq!(*ring.take().unwrap().synchronize().unwrap(), [6; 100]);
            assert_eq!(ring.take().unwrap().synchronize().unwrap().len(), 100);
        });
    });
}

// --- host functions --------------------------------------------------------------------------------------------

#[test]
fn host_functions_run_in_order_and_a_panic_is_reported_once() {
    everywhere_and_seeded(|device| {
        // Whoever asks the device first is told of a panic: not another test.
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

            // Two panics are two errors.
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
                    event.is_ready().unwrap_err(),
                ];
                let returned = event.query().unwrap_err();
                errors.push(returned.error);
                let returned = returned.value.synchronize().unwrap_err();
                errors.push(returned.error);
                inside.enter(|s| {
                    errors.push(s.alloc::<u8>(1).unwrap_err());
                    errors.push(s.synchronize().unwrap_err());
                    errors.push(s.is_done().unwrap_err());
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
                drop(pool.take::<u8>(1)); // looks after what was given back
                pool.in_use() == 0
            });
            assert_eq!(a.read_blocking(&x).unwrap(), [2; 1024]);
            assert_eq!(pool.cached(), 3 * 4096);
        });
    });
}

/// A buffer that is split into no pieces goes at once, also in a host function, where the driver must not be called.
#[test]
fn what_a_host_function_splits_into_nothing_is_given_back_later() {
    const BYTES: usize = 64 << 20;
    let cpu = Device::new_cpu().unwrap();
    cpu.limit_memory(Some(256 << 20)); // counted from this, and not from what the machine has left
    for device in devices().iter().copied().filter(|d| d.kind() == DeviceKind::Cuda).chain([cpu]) {
        let _alone = alone_on(device);
        lanes(device, |a, b, _| {
            let pool = PinnedPool::new(device, 4096);
            let free = device.free_memory().unwrap();
            let taken = || device.free_memory().unwrap() + BYTES as u64 / 2 < free;
            let idle = a.alloc_zeroed::<u8>(BYTES).unwrap().idle().unwrap();
            let pinned = pool.take::<u8>(4096).unwrap();
            assert!(taken());
            b.launch_host(move || assert!(idle.split(0).is_empty() && pinned.split(0).is_empty())).unwrap();
            b.synchronize().unwrap();
            soon("the device memory", || !taken());
            soon("the page-locked memory", || pool.in_use() == 0);
        });
    }
}

/// Opening and listing devices takes driver calls, and so do timelines and giving memory back.
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
                    Device::from_spec("auto").map(drop).unwrap_err(),
                    device.trim().unwrap_err(),
                    device.per_thread(|_| ()).unwrap_err(),
                    StreamPool::new(device, 1).map(drop).unwrap_err(),
                    Timeline::new(device).map(drop).unwrap_err(),
                    timeline.finish().map(drop).unwrap_err(),
                    inside.enter(|s| timeline.span(s, Activity::Compute, "a span", || Ok(()))).unwrap_err(),
                    inside.enter(|s| concurrency_check(s, s).map(drop)).unwrap_err(),
                ];
                pool.trim();
                // What is known, or set, without the driver.
                let known = device.name() == name && device.tally().report().stalls().is_empty();
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

/// Where a host function drops a reading, nobody can know when that stream has done with it.
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

/// A queue that passes a host function over drops it on a thread of its own, where a call that waits would wait for
/// itself.
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

// --- failures --------------------------------------------------------------------------------------------------

#[test]
fn a_panicking_kernel_poisons_the_device_and_wakes_everybody() {
    let healthy = Device::cpu().unwrap();
    let device = Device::new_cpu().unwrap();
    let poisoned = |error: &Error| match error {
        Error::Kernel(text) | Error::Poisoned { cause: text, .. } => text.contains("on purpose"),
        _ => false,
    };
    lanes(device, |a, b, c| {
        let pool = PinnedPool::new(device, 1 << 20);
        let (mut x, y) = (filled(a, 100, 1), filled(b, 100, 1));
        let host = pool.take::<u32>(100).unwrap();
        let gate = Gate::closed(device); // never opened
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
            b.is_done().unwrap_err(),
            c.alloc::<u8>(1).unwrap_err(),
            a.read_blocking(&x).unwrap_err(),
            a.record(x).map(drop).unwrap_err().error,
            device.pinned::<u8>(1).unwrap_err(),
            AnyStream::new(device).unwrap_err(),
            third.is_ready().unwrap_err(),
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

#[test]
fn a_device_refuses_what_is_anothers_and_gives_it_back() {
    let (here, there) = (Device::cpu().unwrap(), Device::new_cpu().unwrap());
    lanes(here, |a, b, _| {
        lanes(there, |other, _, _| {
            let mismatch = |error: &Error| matches!(error, Error::DeviceMismatch { .. });
            let x = filled(a, 10, 4).idle().unwrap();
            let returned = other.bind(x).unwrap_err();
            assert!(mismatch(&returned.error), "{returned}");
            let returned = other.wait(a.record(a.bind(returned.value).unwrap()).unwrap()).unwrap_err();
            assert!(mismatch(&returned.error));
            let returned = a.hand(a.wait(returned.value).unwrap(), &other).unwrap_err();
            assert!(mismatch(&returned.error));
            let shared = a.share(returned.value).unwrap();
            assert!(mismatch(&other.reading(&shared).map(drop).unwrap_err()));
            let returned = other.unshare(shared).unwrap_err();
            assert!(mismatch(&returned.error));
            // A composite is refused for any part of it, and comes back whole.
            let pair = (here.pinned_from(&[1u32; 10]).unwrap(), b.record(b.unshare(returned.value).unwrap()).unwrap());
            let pair = (pair.0, pair.1.synchronize().unwrap());
            let (host, x) = other.bind(pair).unwrap_err().value;
            assert_eq!(*host, [1; 10]);
            assert_eq!(a.read_blocking(&a.bind(x).unwrap()).unwrap(), [4; 10]);
            // Page-locked memory is anybody's.
            let host = other.wait(a.record(a.bind(host).unwrap()).unwrap()).unwrap();
            let mut y = other.alloc::<u32>(10).unwrap();
            other.copy_to_device(&host, &mut y).unwrap();
            assert_eq!(other.read_blocking(&y).unwrap(), [1; 10]);
        });
    });
}

/// What a seeded device has enqueued runs when somebody calls into it, so no other device may wait for it.
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
                let returned = a.hand(a.wait(returned.value).unwrap(), &other).unwrap_err();
                assert!(mismatch(&returned.error), "{returned}");
                let shared = a.share(returned.value).unwrap();
                assert!(mismatch(&other.reading(&shared).map(drop).unwrap_err()));
                let returned = other.unshare(shared).unwrap_err();
                assert!(mismatch(&returned.error), "{returned}");
                assert!(mismatch(&other.wait(a.record(()).unwrap()).unwrap_err().error));
                // By way of the host.
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
fn a_tag_is_one_stream_for_good() {
    stream_tags!(Here, There);
    let (device, other) = (Device::cpu().unwrap(), Device::new_cpu().unwrap());
    let stream = device.stream::<Here>().unwrap();
    assert_eq!(stream.serial(), device.stream::<Here>().unwrap().serial());
    assert_ne!(stream.serial(), device.stream::<There>().unwrap().serial());
    let error = other.stream::<Here>().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::TagBound { priority: 0, .. }) && text.contains("Here"), "{text}");
    assert!(text.contains(&device.to_string()), "{text}");
    let urgent = StreamOptions::default().priority(-1);
    assert!(matches!(device.stream_with::<Here>(urgent), Err(Error::TagBound { priority: 0, .. })));
    stream_tags!(Urgent);
    assert_eq!(device.stream_with::<Urgent>(urgent).unwrap().priority(), -1);
    assert!(matches!(device.stream::<Urgent>(), Err(Error::TagBound { priority: -1, .. })));
}

#[test]
fn priorities_are_those_the_device_has() {
    everywhere(|device| {
        let range = device.priorities();
        assert_eq!(*range.end(), 0);
        // Twice, because streams that were given back are lent again.
        for priority in range.clone().chain(range.clone()) {
            let stream = AnyStream::with(device, StreamOptions::default().priority(priority)).unwrap();
            assert_eq!(stream.enter(|s| s.priority()), priority, "{device}");
            // As the driver of a GPU says by itself.
            if let Some(raw) = stream.enter(|s| s.raw()) {
                let mut given = 1;
                // SAFETY: a stream of the driver, which is never destroyed; the call stores one integer.
                let result = unsafe { cudarc::driver::sys::cuStreamGetPriority(raw.cast(), &mut given) };
                assert_eq!((result as u32, given), (0, priority), "{device}");
            }
        }
        for priority in [range.start() - 1, range.end() + 1] {
            let error = AnyStream::with(device, StreamOptions::default().priority(priority)).unwrap_err();
            assert!(matches!(error, Error::Parameter { name: "priority", .. }), "{error}");
        }
    });
}

#[test]
fn device_names_that_are_none() {
    for bad in ["gpu", "cuda", "cuda:", "cuda:-1", "cuda:x", ""] {
        assert!(matches!(Device::from_spec(bad), Err(Error::DeviceSpec { .. })), "{bad}");
    }
    let error = Device::from_spec("cuda:999").unwrap_err();
    assert!(matches!(error, Error::NoSuchDevice { ordinal: 999, .. } | Error::NoDriver { .. }), "{error}");
    assert_eq!(Device::from_spec("cpu").unwrap().0, Device::cpu().unwrap());
    let (auto, why) = Device::from_spec("auto").unwrap();
    assert_eq!(why.is_some(), auto.kind() == DeviceKind::Cpu);
}

// --- streams known at run time ---------------------------------------------------------------------------------

#[test]
fn a_pool_without_a_free_stream_waits_for_one() {
    everywhere(|device| {
        assert!(matches!(StreamPool::new(device, 0), Err(Error::Parameter { name: "lanes", .. })));
        let pool = StreamPool::new(device, 1).unwrap();
        let (entered, inside) = mpsc::channel();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let (started, second) = mpsc::channel();
            scope.spawn(|| {
                let second = second;
                pool.lane(|_| {
                    entered.send(()).unwrap();
                    second.recv().unwrap();
                    (0..100).for_each(|_| thread::yield_now());
                    order.lock().unwrap().push(1);
                });
            });
            inside.recv().unwrap();
            started.send(()).unwrap();
            pool.lane(|_| order.lock().unwrap().push(2));
        });
        assert_eq!(*order.lock().unwrap(), [1, 2]);
        // A panic gives the stream back too.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.lane(|_| panic!("on purpose"))));
        assert!(panicked.is_err());
        pool.lane(|s| s.synchronize()).unwrap();
    });
}

#[test]
fn lanes_of_a_pool_are_different_streams() {
    everywhere_and_seeded(|device| {
        let pool = StreamPool::new(device, 3).unwrap();
        let serials = pool.lane(|a| pool.lane(|b| pool.lane(|c| [a.serial(), b.serial(), c.serial()])));
        assert!(serials[0] != serials[1] && serials[1] != serials[2] && serials[0] != serials[2]);
        let again = pool.lane(|a| a.serial());
        assert!(serials.contains(&again));
    });
}

#[test]
fn a_thread_has_one_stream_of_each_device() {
    everywhere(|device| {
        let serial = || device.per_thread(|s| s.serial()).unwrap();
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

// --- futures ---------------------------------------------------------------------------------------------------

/// The smallest executor there is.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}

#[test]
fn events_are_awaited_by_any_executor() {
    everywhere(|device| {
        lanes(device, |a, b, _| {
            let x = filled(a, 10, 8);
            let gate = Gate::closed(device);
            let hosts: Vec<_> = (0..64).map(|_| device.pinned::<u32>(10).unwrap()).collect();
            gate.hold(&a);
            let mut futures: Vec<_> = hosts
                .into_iter()
                .map(|host| {
                    let mut host = a.bind(host).unwrap();
                    a.copy_to_host(&x, &mut host).unwrap();
                    Some(a.record(host).unwrap().into_future())
                })
                .collect();
            // One of another stream is ready before them.
            let other = b.record(()).unwrap();
            block_on(other.into_future()).unwrap();
            let opened = AtomicUsize::new(0);
            thread::scope(|scope| {
                let (polled, first) = mpsc::channel();
                let (gate, opened) = (&gate, &opened);
                scope.spawn(move || {
                    first.recv().unwrap();
                    opened.store(1, Ordering::SeqCst);
                    gate.open();
                });
                let mut left = futures.len();
                let all = std::future::poll_fn(|cx| {
                    for slot in &mut futures {
                        let Some(future) = slot else { continue };
                        if let Poll::Ready(host) = pin!(future).poll(cx) {
                            assert_eq!(opened.load(Ordering::SeqCst), 1);
                            assert_eq!(*host.unwrap(), [8; 10]);
                            *slot = None;
                            left -= 1;
                        }
                    }
                    polled.send(()).ok();
                    if left == 0 { Poll::Ready(()) } else { Poll::Pending }
                });
                block_on(all);
            });
            // One that is dropped unfinished.
            drop(a.record(x).unwrap().into_future());
        });
    });
}

// --- processes -------------------------------------------------------------------------------------------------

/// CUDA does not survive a fork, so a child is told, whatever the device. The fork happens in a process of its own.
#[cfg(unix)]
#[test]
fn a_forked_child_gets_a_typed_error() {
    const MARK: &str = "THALWEG_TEST_FORKS";
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }
    if std::env::var_os(MARK).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_forked_child_gets_a_typed_error", "--test-threads=1", "--nocapture"])
            .env(MARK, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    for &device in devices() {
        lanes(device, |a, _, _| {
            let pool = PinnedPool::new(device, 1 << 20);
            let (x, event) = (filled(a, 10, 1), a.record(filled(a, 10, 1)).unwrap());
            let host = a.bind(pool.take::<u8>(1).unwrap()).unwrap();
            let idle = filled(a, 10, 1).idle().unwrap();
            // SAFETY: no other thread of this process holds a lock that the child needs.
            let child = unsafe { fork() };
            if child == 0 {
                let told = [
                    device.check().unwrap_err(),
                    a.alloc::<u8>(1).map(drop).unwrap_err(),
                    a.read_blocking(&x).unwrap_err(),
                    event.is_ready().unwrap_err(),
                    device.pinned::<u8>(1).unwrap_err(),
                    device.trim().unwrap_err(),
                    Device::cpu().unwrap_err(),
                    Device::new_cpu().unwrap_err(),
                ];
                drop((x, event, host, idle.split(0)));
                let all = Device::all().is_empty() && told.iter().all(|error| matches!(error, Error::Forked));
                // SAFETY: ends the child without running what the parent will run.
                unsafe { _exit(if all { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: a child of this process; stores one integer.
            let ended = unsafe { waitpid(child, &mut status, 0) };
            assert_eq!((ended, status), (child, 0), "{device}");
            assert_eq!(a.read_blocking(&x).unwrap(), [1; 10], "the parent goes on");
            drop(event);
        });
    }
}
