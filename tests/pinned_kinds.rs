//! Page-locked memory of every kind: from a pool, write-combined, and vectors that are locked in
//! place. What is done with one kind can be done with all, and memory goes back when the last work
//! on it is done, not before.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use testkit::devices::{alone, devices};
use testkit::gate::Gate;
use thalweg::{AnyStream, Device, Error, PinnedBuffer, PinnedPool};

/// The system's allocator, which says whether it was given the watched address.
struct Watching;

static WATCHED: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicBool = AtomicBool::new(false);

// SAFETY: Every call goes to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: The caller meets the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        if p.addr() == WATCHED.load(Ordering::SeqCst) {
            FREED.store(true, Ordering::SeqCst);
        }
        // SAFETY: The caller meets the contract of `dealloc`, which is that of the system's.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

const LEN: usize = 5000;

/// A buffer of each kind, with the numbers from `first` on.
fn kinds(device: Device, first: u32) -> Vec<(&'static str, PinnedBuffer<u32>)> {
    let numbers: Vec<u32> = (first..).take(LEN).collect();
    let mut combined = PinnedPool::write_combined(device, 1 << 20).take(LEN).unwrap();
    combined.copy_from_slice(&numbers);
    vec![
        ("pool", device.pinned_from(&numbers).unwrap()),
        ("write-combined", combined),
        ("registered", device.register(numbers).unwrap()),
    ]
}

#[test]
fn every_kind_is_copied_and_split() {
    let _alone = alone();
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|s| {
            for (kind, buffer) in kinds(device, 7) {
                let mut x = s.alloc::<u32>(LEN).unwrap();
                let mut host = s.bind(buffer).unwrap();
                s.copy_to_device(&host, &mut x).unwrap();
                assert!(s.read_blocking(&x).unwrap().into_iter().eq((7..).take(LEN)), "{kind} on {device}");
                s.fill(&mut x, 3).unwrap();
                s.copy_to_host(&x, &mut host).unwrap();
                let pieces = s.record(host).unwrap().synchronize().unwrap().split_even(3).unwrap();
                assert!(pieces.iter().all(|piece| piece.iter().all(|&v| v == 3)), "{kind} on {device}");
                assert_eq!(pieces.iter().map(|piece| piece.len()).sum::<usize>(), LEN);
            }
        });
    }
}

#[test]
fn kernels_read_and_write_every_kind_in_place() {
    let _alone = alone();
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|s| {
            for (kind, buffer) in kinds(device, 1) {
                let mut host = s.bind(buffer).unwrap();
                let mut x = s.alloc::<u32>(LEN).unwrap();
                s.copy(host.mapped().unwrap(), &mut x).unwrap();
                s.fill(host.mapped_mut().unwrap().slice_mut(..10).unwrap(), 9).unwrap();
                let host = s.record(host).unwrap().synchronize().unwrap();
                assert_eq!((&host[..10], host[10]), (&[9; 10][..], 11), "{kind} on {device}");
                assert!(s.read_blocking(&x).unwrap().into_iter().eq((1..).take(LEN)), "{kind} on {device}");
            }
            let mut empty = s.bind(PinnedBuffer::<u32>::empty(device)).unwrap();
            assert!(empty.mapped().unwrap().is_empty() && empty.mapped_mut().unwrap().is_empty());
        });
    }
}

#[test]
fn a_registered_vector_is_dropped_after_the_last_work_on_it() {
    let _alone = alone();
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|s| {
            let mut x = s.alloc::<u32>(LEN).unwrap();
            let vector: Vec<u32> = (0..).take(LEN).collect();
            FREED.store(false, Ordering::SeqCst);
            WATCHED.store(vector.as_ptr().addr(), Ordering::SeqCst);
            let host = s.bind(device.register(vector).unwrap()).unwrap();
            s.copy_to_device(&host, &mut x).unwrap();
            s.synchronize().unwrap();
            let gate = Gate::closed(device);
            gate.hold(s);
            s.copy_to_device(&host, &mut x).unwrap();
            drop(host);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!FREED.load(Ordering::SeqCst), "the vector was dropped under a copy on {device}");
            gate.open();
            let start = Instant::now();
            while !FREED.load(Ordering::SeqCst) {
                assert!(start.elapsed() < Duration::from_secs(10), "the vector is never dropped on {device}");
                std::thread::yield_now();
            }
            WATCHED.store(0, Ordering::SeqCst);
            assert!(s.read_blocking(&x).unwrap().into_iter().eq((0..).take(LEN)));
        });
    }
}

/// Small vectors share pages. If the driver refuses to lock a page twice, the vector comes back and
/// the device goes on.
#[test]
fn many_small_vectors_are_registered_at_once() {
    let _alone = alone();
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|s| {
            let mut refused = 0;
            let mut kept = Vec::new();
            for v in 0..50u32 {
                match device.register(vec![v; 10]) {
                    Ok(buffer) => kept.push((v, s.bind(buffer).unwrap())),
                    Err(returned) => {
                        assert_eq!(returned.value, [v; 10]);
                        refused += 1;
                    }
                }
            }
            println!("{device}: {refused} of 50 vectors were refused");
            let mut x = s.alloc::<u32>(10).unwrap();
            for (v, host) in &kept {
                s.copy_to_device(host, &mut x).unwrap();
                assert_eq!(s.read_blocking(&x).unwrap(), [*v; 10], "{device}");
            }
            drop(kept);
        });
        device.check().unwrap();
    }
}

#[test]
fn write_combined_memory_has_a_pool_of_its_own() {
    let _alone = alone();
    for &device in devices() {
        device.trim().unwrap();
        let pool = PinnedPool::write_combined(device, 1 << 20);
        let before = device.pinned_pool().cached();
        drop(pool.take::<u8>(1 << 20).unwrap());
        assert_eq!((pool.in_use(), pool.cached()), (0, 1 << 20));
        let whole = pool.take::<u8>(1 << 20).unwrap();
        assert!(matches!(pool.take::<u8>(1), Err(Error::PinnedBudget { .. })));
        drop(pool);
        drop(whole);
        assert_eq!(device.pinned_pool().cached(), before, "{device} does not lend it as pageable memory");
    }
}

#[test]
fn a_vector_without_bytes_is_registered_as_nothing() {
    let _alone = alone();
    for &device in devices() {
        let buffer = device.register(Vec::<f32>::with_capacity(100)).unwrap();
        assert!(buffer.is_empty());
        AnyStream::new(device).unwrap().enter(|s| drop(s.bind(buffer).unwrap()));
    }
}

/// What a pool no longer counts is also free for the rest of the process, and what it counts is
/// not. The CPU device's memory comes from Rust's allocator, so here it can be seen.
#[test]
fn what_a_pool_gives_back_goes_to_the_system() {
    let _alone = alone();
    let cpu = Device::new_cpu().unwrap();
    // A block that its pool keeps, whose address is watched from now on.
    let kept = |pool: &PinnedPool| {
        let block = pool.take::<u8>(1 << 16).unwrap();
        FREED.store(false, Ordering::SeqCst);
        WATCHED.store(block.as_ptr().addr(), Ordering::SeqCst);
        drop(block);
        assert!(pool.cached() >= 1 << 16 && !FREED.load(Ordering::SeqCst), "the pool keeps the block");
    };
    type GiveBack<'a> = &'a dyn Fn(PinnedPool);
    let ways: [(_, _, GiveBack<'_>); 4] = [
        ("trim", PinnedPool::new(cpu, 1 << 20), &|pool| pool.trim()),
        ("a new limit", cpu.pinned_pool(), &|_| cpu.limit_pinned(Some(0))),
        ("room for a new block", PinnedPool::new(cpu, 1 << 20), &|pool| drop(pool.take::<u8>(1 << 20).unwrap())),
        ("the end of a write-combined pool", PinnedPool::write_combined(cpu, 1 << 20), &drop),
    ];
    for (way, pool, give_back) in ways {
        kept(&pool);
        give_back(pool);
        let start = Instant::now();
        while !FREED.load(Ordering::SeqCst) {
            assert!(start.elapsed() < Duration::from_secs(10), "after {way}, the system does not have the block");
            std::thread::yield_now();
        }
        WATCHED.store(0, Ordering::SeqCst);
    }
}

/// The device's own pool takes the blocks that a dropped pool kept, and counts them.
#[test]
fn the_device_keeps_what_a_dropped_pool_has_kept() {
    let cpu = Device::new_cpu().unwrap();
    let home = cpu.pinned_pool();
    let before = home.cached();
    let pool = PinnedPool::new(cpu, 1 << 20);
    drop([pool.take::<u8>(1000).unwrap(), pool.take::<u8>(5000).unwrap()]);
    let kept = pool.cached();
    assert!(pool.in_use() == 0 && kept >= 6000, "{kept}");
    drop(pool);
    assert_eq!((home.in_use(), home.cached()), (0, before + kept));
    home.trim();
    assert_eq!((home.in_use(), home.cached()), (0, 0), "what is counted is there");
}
