//! Tests of order: transitions, shared reads, events and the calls that block.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::thread;

use testkit::devices::{everywhere, everywhere_and_seeded};
use testkit::gate::Gate;
use testkit::tasks::block_on;
use thalweg::{Device, Error, QueryResult, stream_tags};

use super::{filled, lanes, not_yet, soon};

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
            not_yet("the copy", || done.is_complete().unwrap() || b.is_complete().unwrap() || a.is_complete().unwrap());
            gate.open();
            let (_, host) = done.synchronize().unwrap();
            assert_eq!(*host, [2; 1000]);
            soon("the end", || a.is_complete().unwrap() && b.is_complete().unwrap());
        });
    });
}

#[test]
fn follow_waits() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, _| {
            let gate = Gate::closed(device);
            gate.hold(&a);
            b.follow(&a).unwrap();
            not_yet("the end", || b.is_complete().unwrap());
            gate.open();
            soon("the end", || b.is_complete().unwrap());
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
            let x = a.hand_off(x, &b).unwrap();
            // The stream uses one event for every `hand_off`. The wait of the first must not be
            // lost.
            let other = a.hand_off(a.bind(host).unwrap(), &c).unwrap();
            let mut host = c.hand_off(other, &b).unwrap();
            b.copy_to_host(&x, &mut host).unwrap();
            let host = b.record(host).unwrap();
            not_yet("the copy", || host.is_complete().unwrap());
            gate.open();
            assert_eq!(*host.synchronize().unwrap(), [2; 1000]);
        });
    });
}

#[test]
fn parts_of_an_event_and_events_that_were_dropped_are_waited_for() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, b, c| {
            let (mut x, mut y) = (filled(a, 1000, 1), filled(a, 1000, 1));
            let mut first = b.bind(device.pinned::<u32>(1000).unwrap()).unwrap();
            let mut second = c.bind(device.pinned::<u32>(1000).unwrap()).unwrap();
            let (back, dropped) = mpsc::channel();
            let gate = Gate::closed(device);
            gate.hold(&a);
            a.fill(&mut x, 2).unwrap();
            a.fill(&mut y, 3).unwrap();
            let (x, y) = a.record((x, y)).unwrap().unzip();
            drop(y.on_drop(move |y| back.send(y).unwrap()));
            let (x, y) = (b.wait(x).unwrap(), c.wait(dropped.recv().unwrap()).unwrap());
            b.copy_to_host(&x, &mut first).unwrap();
            c.copy_to_host(&y, &mut second).unwrap();
            let (first, second) = (b.record(first).unwrap(), c.record(second).unwrap());
            not_yet("a copy", || first.is_complete().unwrap() || second.is_complete().unwrap());
            gate.open();
            assert_eq!(*first.synchronize().unwrap(), [2; 1000]);
            assert_eq!(*second.synchronize().unwrap(), [3; 1000]);
        });
    });
}

#[test]
fn a_host_function_has_its_memory_after_the_work_on_it() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            let (x, mut host) = (filled(a, 1000, 5), a.bind(device.pinned::<u32>(1000).unwrap()).unwrap());
            let gate = Gate::closed(device);
            gate.hold(&a);
            a.copy_to_host(&x, &mut host).unwrap();
            a.launch_host_on(&mut host, |host| host.iter_mut().for_each(|v| *v += 1)).unwrap();
            let host = a.record(host).unwrap();
            not_yet("the host function", || host.is_complete().unwrap());
            gate.open();
            assert_eq!(*host.synchronize().unwrap(), [6; 1000]);
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
                    QueryResult::Pending(event) => event,
                    QueryResult::Ready(_) => panic!("ready behind a closed gate"),
                };
            }
            assert!(end.elapsed(&start).unwrap().is_none());
            gate.open();
            end.synchronize().unwrap();
            assert!(end.elapsed(&start).unwrap().is_some());
            loop {
                match event.query().unwrap() {
                    QueryResult::Pending(e) => event = e,
                    QueryResult::Ready(host) => break assert_eq!(*host, [5; 10]),
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
            call(&mut || drop(a.alloc_zeroed::<u32>(10).unwrap().synchronize().unwrap()));
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
            not_yet("a reader", || b.is_complete().unwrap());
            drop((second, first));
            producing.open();
            soon("a reader", || b.is_complete().unwrap());

            // Only the reader on `c` still has pending work.
            let mut x = a.unshare(shared).unwrap();
            a.fill(&mut x, 3).unwrap();
            not_yet("the writer", || a.is_complete().unwrap());
            reading.open();
            assert_eq!(a.read_blocking(&x).unwrap(), [3; 500]);
            assert_eq!(b.read_blocking(&on_b).unwrap(), [2; 500]);
            assert_eq!(c.read_blocking(&on_c).unwrap(), [2; 500]);
        });
    });
}

/// Two threads read on one stream. The thread that records its end first may register that record
/// last, and then it must not replace the newer one. The host function makes this happen on
/// schedules that run it between the two steps.
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
            assert_eq!(shared.ref_count(), 3);
            let returned = a.unshare(shared).unwrap_err();
            assert!(matches!(returned.error, Error::StillShared { ref_count: 2 }));
            drop(clone);
            let returned = b.unshare(returned.value).unwrap_err();
            assert!(matches!(returned.error, Error::StillShared { ref_count: 1 }));
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
                    let there = left.hand_off(x, &right).unwrap();
                    let mut copy = right.alloc(64).unwrap();
                    right.copy(&there, &mut copy).unwrap();
                    x = right.hand_off(there, &left).unwrap();
                    if step % 50 == 0 {
                        assert_eq!(right.read_blocking(&copy).unwrap(), [v; 64]);
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|w| w.join().unwrap());
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
            // An event of another stream is ready before them.
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
            // A future may be dropped before it is ready.
            drop(a.record(x).unwrap().into_future());
        });
    });
}

/// The processor time of this thread, where the system says it.
#[cfg(target_os = "linux")]
fn own_time() -> Option<std::time::Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(std::time::Duration::from_nanos(stat.split_whitespace().next()?.parse().ok()?))
}

#[test]
fn a_sleeping_wait_lasts_until_the_work_is_done_and_keeps_no_core_busy() {
    everywhere(|device| {
        lanes(device, |a, _, _| {
            let mut x = filled(a, 1000, 1);
            let gate = Gate::closed(device);
            gate.hold(&a);
            a.fill(&mut x, 2).unwrap();
            let mut host = a.bind(device.pinned::<u32>(1000).unwrap()).unwrap();
            a.copy_to_host(&x, &mut host).unwrap();
            let done = a.record(host).unwrap();
            let opened = AtomicUsize::new(0);
            thread::scope(|threads| {
                threads.spawn(|| {
                    thread::sleep(std::time::Duration::from_millis(200));
                    opened.store(1, Ordering::SeqCst);
                    gate.open();
                });
                #[cfg(target_os = "linux")]
                let before = own_time();
                assert_eq!(*done.synchronize_sleeping().unwrap(), [2; 1000]);
                assert_eq!(opened.load(Ordering::SeqCst), 1);
                #[cfg(target_os = "linux")]
                if let Some((before, after)) = before.zip(own_time()) {
                    let took = after - before;
                    assert!(took < std::time::Duration::from_millis(50), "{took:?} of 200 ms on {device}");
                }
            });
        });
    });
}
