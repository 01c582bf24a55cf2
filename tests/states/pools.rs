//! Tests of pools of page-locked memory, their limits, and rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use testkit::devices::{everywhere, everywhere_and_seeded};
use testkit::gate::Gate;
use thalweg::{AnyStream, Device, Error, Event, HostWait, PinnedPool, Ring};

use super::{filled, lanes, not_yet, soon};

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
            // The memory is now in the device's own pool, which must not give it out yet.
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
            drop(pool.take::<u8>(1).unwrap()); // Each call gets the same block.
            assert_eq!((pool.in_use(), pool.cached()), (8192, 4096));
        }
        drop(large);
        // The kept blocks have other sizes, so the pool frees them to make room.
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

/// Counts the blocks that a device's own pool makes. No other test may use the device.
fn made(device: Device, run: impl FnOnce()) -> u64 {
    device.sync_stats().enable();
    run();
    device.sync_stats().disable();
    let report = device.sync_stats().report();
    report.waits().iter().filter(|s| s.kind == HostWait::PinnedAllocation).map(|s| s.count).sum()
}

/// Without the limit on what a pool keeps, 60 buffers of growing size, one alive at a time, keep
/// 610 MiB. What takes time here is that nearly 2 GiB of memory are cleared.
#[test]
fn sizes_that_grow_leave_no_trail_of_page_locked_memory() {
    const MIB: usize = 1 << 20;
    let device = Device::new_cpu().unwrap();
    let pool = device.pinned_pool();
    let mut most = 0;
    for i in 1..=60 {
        drop(device.pinned::<u8>(i * MIB / 3).unwrap());
        most = most.max(pool.cached());
    }
    assert!(most <= 20 * MIB, "{} MiB kept for buffers of at most 20", most.div_ceil(MIB));
    // The pool keeps at most twice what was in use at once, in any order of the sizes.
    for i in (1..=8).chain((1..=8).rev()) {
        drop(device.pinned::<u8>(i * 10 * MIB).unwrap());
        assert!(pool.cached() <= 160 * MIB, "{} MiB kept for buffers of at most 80", pool.cached() / MIB);
    }
    device.trim().unwrap();
    // Each round makes more and smaller buffers of the same total. The blocks of one round are too
    // large for the next.
    for n in [1, 4, 16, 64] {
        drop((0..n).map(|_| device.pinned::<u8>(80 * MIB / n).unwrap()).collect::<Vec<_>>());
        assert!(pool.cached() <= 161 * MIB, "{} MiB kept for buffers of 80 together", pool.cached() / MIB);
    }
    device.trim().unwrap();
    assert_eq!((pool.in_use(), pool.cached()), (0, 0));
    // The peak of memory in use counts from the last trim, so it is 30 MiB now. Up to 64 MiB are
    // always kept.
    for n in [1, 4, 16, 64] {
        drop((0..n).map(|_| device.pinned::<u8>(30 * MIB / n).unwrap()).collect::<Vec<_>>());
    }
    assert!(pool.cached() <= 64 * MIB, "{} MiB kept for buffers of 30 together", pool.cached() / MIB);
}

/// A repeated mix of sizes makes no new block after the first rounds. Some buffers are alive
/// together and some one at a time.
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
    // A block that comes back while the limit is lower is not lent beyond the limit.
    device.limit_pinned(None);
    let large = device.pinned::<u8>(16384).unwrap();
    device.limit_pinned(Some(12288));
    drop(large);
    let error = device.pinned::<u8>(16384).unwrap_err();
    assert!(matches!(error, Error::PinnedBudget { wanted: 16384, budget: 12288, .. }), "{error}");
    device.limit_pinned(Some(4096));
    drop(b);
    drop(device.pinned::<u8>(4096).unwrap());
    assert!(matches!(device.pinned::<u8>(4097), Err(Error::PinnedBudget { .. })));
    assert_eq!((pool.in_use(), pool.cached()), (0, 4096));
    device.limit_pinned(None);
    drop(device.pinned::<u8>(1 << 20).unwrap());
}

/// A new limit also counts what a stream has used until now, although nobody asked since.
#[test]
fn a_limit_frees_what_a_stream_has_given_back() {
    let device = Device::new_cpu().unwrap();
    lanes(device, |a, _, _| {
        let pool = device.pinned_pool();
        let mut x = filled(a, 1024, 0);
        let gate = Gate::closed(device);
        let of_gate = pool.in_use();
        let host = a.bind(device.pinned::<u32>(1024).unwrap()).unwrap();
        gate.hold(&a);
        a.copy_to_device(&host, &mut x).unwrap();
        drop(host);
        device.limit_pinned(Some(0));
        assert_eq!(pool.in_use(), of_gate + 4096, "the copy still reads it");
        gate.open();
        a.synchronize().unwrap();
        device.limit_pinned(Some(0));
        assert_eq!((pool.in_use(), pool.cached()), (of_gate, 0));
        device.limit_pinned(None);
    });
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

/// Memory that two streams read is free when the second one has ended, whichever that is.
#[test]
fn a_pool_waits_for_every_reader_of_a_block() {
    everywhere(|device| {
        lanes(device, |a, b, c| {
            for last in [0, 1] {
                let pool = PinnedPool::new(device, 2 * 4096);
                drop([(); 2].map(|()| pool.take::<u32>(1024).unwrap())); // no allocation is held up below
                let mut host = pool.take::<u32>(1024).unwrap();
                host.fill(7);
                let address = host.as_ptr();
                let (mut on_b, mut on_c) = (filled(b, 1024, 0), filled(c, 1024, 0));
                let mut gates = vec![Gate::closed(device), Gate::closed(device)];
                let shared = a.share(a.bind(host).unwrap()).unwrap();
                let readers = (b.reading(&shared).unwrap(), c.reading(&shared).unwrap());
                gates[0].hold(&b);
                b.copy_to_device(&readers.0, &mut on_b).unwrap();
                gates[1].hold(&c);
                c.copy_to_device(&readers.1, &mut on_c).unwrap();
                drop((readers, shared));
                let waits = gates.remove(last);
                gates.remove(0).open();
                soon("a reader", || if last == 0 { c.is_complete() } else { b.is_complete() }.unwrap());
                let mut other = pool.take::<u32>(1024).unwrap();
                assert_ne!(other.as_ptr(), address);
                other.fill(8);
                waits.open();
                assert_eq!(
                    (b.read_blocking(&on_b).unwrap(), c.read_blocking(&on_c).unwrap()),
                    (vec![7; 1024], vec![7; 1024])
                );
                drop(other);
            }
        });
    });
}

#[test]
fn a_ring_makes_lost_slots_anew_and_waits_for_the_others() {
    everywhere_and_seeded(|device| {
        lanes(device, |a, _, _| {
            let made = Arc::new(AtomicUsize::new(0));
            let (count, pool) = (made.clone(), PinnedPool::new(device, 3 * 4096));
            // The pool has all blocks before the gate closes, so the gate cannot hold up an
            // allocation below.
            drop([(); 3].map(|()| pool.take::<u32>(100).unwrap()));
            let make = move || {
                count.fetch_add(1, Ordering::SeqCst);
                pool.take::<u32>(100)
            };
            let mut ring = Ring::new(2, make).unwrap();
            let x = filled(a, 100, 6);
            let gate = Gate::closed(device);
            let mut host = a.wait(ring.acquire().unwrap()).unwrap();
            gate.hold(&a);
            a.copy_to_host(&x, &mut host).unwrap();
            ring.recycle(a.record(host).unwrap());
            drop(ring.acquire().unwrap()); // The ring loses this slot.
            let pending = ring.acquire().unwrap();
            not_yet("a slot", || pending.is_complete().unwrap());
            let anew = ring.acquire().unwrap();
            assert!(anew.is_complete().unwrap());
            assert_eq!(made.load(Ordering::SeqCst), 3);
            ring.recycle(pending);
            ring.recycle(anew);
            // The ring has its slots already and drops this one.
            ring.recycle(Event::ready(device.pinned(0).unwrap()));
            assert_eq!((ring.len(), ring.depth()), (2, 2));
            gate.open();
            ring.synchronize().unwrap();
            assert_eq!(*ring.acquire().unwrap().synchronize().unwrap(), [6; 100]);
            assert_eq!(ring.acquire().unwrap().synchronize().unwrap().len(), 100);
        });
    });
}

/// The block that was used last is lent first, so the others become old, and the oldest goes.
#[test]
fn blocks_that_are_not_used_become_old_and_go_first() {
    let device = Device::new_cpu().unwrap();
    let pool = PinnedPool::new(device, 3 * 4096);
    let take = |pages: usize| pool.take::<u8>(4096 * pages).unwrap();
    let [a, b, c] = [(); 3].map(|()| take(1));
    let [_, second, third] = [&a, &b, &c].map(|block| block.as_ptr());
    [a, b, c].into_iter().for_each(drop);
    let last = take(1);
    assert_eq!(last.as_ptr(), third);
    drop(last);
    // Room for one of the three.
    let large = take(2);
    assert_eq!((pool.in_use(), pool.cached()), (2 * 4096, 4096));
    drop(large);
    assert_eq!(take(1).as_ptr(), third);
    assert_ne!(second, third);
}

/// What the system refuses, and what a failed device may still use, is neither lent nor free.
#[test]
fn memory_that_is_not_there_is_not_counted_and_lost_memory_stays_lost() {
    let device = Device::new_cpu().unwrap();
    assert!(device.pinned::<u8>(1 << 62).is_err());
    let pool = device.pinned_pool();
    assert_eq!((pool.in_use(), pool.cached()), (0, 0));
    AnyStream::new(device).unwrap().enter(|s| {
        let x = s.bind(device.pinned::<u8>(100).unwrap()).unwrap();
        device.poison("as asked");
        drop(x);
    });
    assert_eq!((pool.in_use(), pool.cached()), (4096, 0));
}
