//! Tests of the tally of hidden synchronization. It counts each call at the caller's line, and
//! counts nothing while it is off.

use testkit::devices::{alone, devices};
use thalweg::{AnyStream, Device, DeviceKind, Error, HostWait, PinnedPool, SyncReport};

/// Lists kind, line in this file and count of each entry, in the order of lines.
fn counts(report: &SyncReport) -> Vec<(HostWait, u32, u64)> {
    let mut all: Vec<_> = report.waits().iter().map(|s| (s.kind, s.location.line(), s.count)).collect();
    for s in report.waits() {
        assert_eq!(s.location.file(), file!(), "{report}");
        assert!(s.longest <= s.total && s.total <= s.longest * s.count as u32, "{report}");
    }
    all.sort_by_key(|(kind, line, _)| (*line, format!("{kind}")));
    all
}

#[test]
fn counts_exactly_what_was_done() {
    let _alone = alone();
    for &device in devices() {
        let stream = AnyStream::new(device).unwrap();
        stream.enter(|s| {
            // The counted calls find these pools filled, except `pool`, which is empty.
            let mut host = s.bind(device.pinned::<u32>(500).unwrap()).unwrap();
            let mut x = s.alloc::<u32>(500).unwrap();
            let data = [3u32; 500];
            s.synchronize().unwrap();
            let events = [0; 16].map(|_| s.record(s.alloc::<u8>(0).unwrap()).unwrap());
            for event in events {
                drop(event.synchronize().unwrap());
            }
            let pool = PinnedPool::new(device, usize::MAX);

            device.sync_stats().enable();
            let first = line!() + 1;
            s.fill(&mut x, 1).unwrap();
            s.copy_to_host(&x, &mut host).unwrap();
            let event = s.record(x).unwrap();
            x = s.wait(event).unwrap(); // +3
            for _ in 0..3 {
                s.synchronize().unwrap(); // +5
            }
            s.write_blocking(&data, &mut x).unwrap(); // +7
            assert_eq!(s.read_blocking(&x).unwrap(), data); // +8
            let pinned = pool.take::<u8>(9000).unwrap(); // +9
            drop(pinned);
            let pinned = pool.take::<u8>(9000).unwrap(); // +11: gets the same memory
            let y = s.upload_blocking(&data).unwrap(); // +12
            let host = host.synchronize().unwrap(); // +13
            let time = s.timestamp().unwrap(); // +14
            time.synchronize().unwrap(); // +15
            device.sync_stats().disable();
            s.synchronize().unwrap();
            drop((pinned, y, host));

            let report = device.sync_stats().report();
            let expected = [
                (HostWait::Synchronize, 5, 3),
                (HostWait::BlockingCopy, 7, 1),
                (HostWait::BlockingCopy, 8, 1),
                (HostWait::PinnedAllocation, 9, 1),
                (HostWait::BlockingCopy, 12, 1),
                (HostWait::Synchronize, 13, 1),
                (HostWait::EventCreation, 14, 1),
                (HostWait::Synchronize, 15, 1),
            ];
            assert_eq!(counts(&report), expected.map(|(kind, line, count)| (kind, first + line, count)), "{report}");
            let sum: std::time::Duration = report.waits().iter().map(|s| s.total).sum();
            assert_eq!(report.total(), sum);
            assert!(report.waits().is_sorted_by(|a, b| a.total >= b.total));
            let table = report.to_string();
            assert!(table.contains("blocking copy") && table.contains(file!()), "{table}");
        });
    }
}

#[test]
fn enabling_starts_from_nothing_and_off_counts_nothing() {
    let _alone = alone();
    for &device in devices() {
        let stream = AnyStream::new(device).unwrap();
        stream.enter(|s| {
            device.sync_stats().enable();
            s.synchronize().unwrap();
            assert_eq!(device.sync_stats().report().waits().len(), 1);
            device.sync_stats().enable();
            assert!(device.sync_stats().report().waits().is_empty());
            device.sync_stats().disable();
            s.synchronize().unwrap();
            drop(s.upload_blocking(&[1u8; 100]).unwrap());
            let report = device.sync_stats().report();
            assert!(report.waits().is_empty() && report.to_string().contains("nothing"), "{report}");
        });
    }
}

#[test]
fn an_event_that_had_to_be_made_is_counted_once() {
    let _alone = alone();
    // A new device has no events left over from other tests.
    let device = Device::new_cpu().unwrap();
    let stream = AnyStream::new(device).unwrap();
    stream.enter(|s| {
        device.sync_stats().enable();
        for _ in 0..5 {
            let x = s.alloc::<u8>(0).unwrap();
            drop(s.record(x).unwrap());
        }
        let report = device.sync_stats().report();
        assert_eq!(counts(&report), [(HostWait::EventCreation, line!() - 3, 1)], "{report}");
        // Two events are in use at once, so the second has to be made.
        device.sync_stats().enable();
        let both = [0; 2].map(|_| s.record(s.alloc::<u8>(0).unwrap()).unwrap());
        assert_eq!(counts(&device.sync_stats().report()), [(HostWait::EventCreation, line!() - 1, 1)]);
        drop(both);
        device.sync_stats().disable();
    });
}

#[test]
fn failures_and_slow_allocations_count_too() {
    let _alone = alone();
    let device = Device::new_cpu().unwrap();
    assert_eq!(device.kind(), DeviceKind::Cpu);
    let stream = AnyStream::new(device).unwrap();
    stream.enter(|s| {
        device.sync_stats().enable();
        // The CPU device writes a pattern to new memory. For 256 MiB this takes more than 100 us on
        // any machine.
        drop(s.alloc::<u8>(256 << 20).unwrap());
        assert_eq!(counts(&device.sync_stats().report()), [(HostWait::DeviceAllocation, line!() - 1, 1)]);
        device.sync_stats().enable();
        (0..1000).for_each(|_| drop(s.alloc::<u8>(8).unwrap()));
        let slow: u64 = device.sync_stats().report().waits().iter().map(|waits| waits.count).sum();
        assert!(slow < 1000, "an allocation of few microseconds does not count");
        device.sync_stats().enable();
        let pool = PinnedPool::new(device, 4096);
        let held = pool.take::<u8>(10).unwrap();
        assert!(matches!(pool.take::<u8>(10), Err(Error::PinnedBudget { .. })), "nothing was waited for");
        assert_eq!(counts(&device.sync_stats().report()), [(HostWait::PinnedAllocation, line!() - 2, 1)]);
        drop(held);
        device.sync_stats().disable();
    });
}

/// The log of memory knows who allocated what, on which stream, and how much was in use when.
#[test]
fn device_memory_is_logged_by_line_and_stream() {
    let _alone = alone();
    for &device in devices() {
        let [a, b] = [(); 2].map(|()| AnyStream::new(device).unwrap());
        let log = device.memory_log();
        a.enter(|a| {
            b.enter(|b| {
                let before = a.alloc::<u8>(10).unwrap(); // is not seen
                log.enable();
                let first = log.report();
                assert!(first.lines().is_empty() && first.over_time().is_empty());
                assert!(first.to_string().contains("no buffer was made"));
                drop(a.alloc::<u8>(100).unwrap());
                drop(b.alloc::<u8>(300).unwrap());
                let (x, line) = (a.alloc_zeroed::<u32>(1000).unwrap(), line!());
                let pieces = a.hand_off(x, b).unwrap().split_even(2).unwrap();
                drop(before);
                let report = log.report();
                let [own, of_b, of_a] = report.lines() else { panic!("{report}") };
                assert_eq!((own.in_use, own.peak, own.allocations), (4000, 4000, 1));
                assert_eq!(
                    (own.location.file(), own.location.line(), own.stream),
                    (file!(), line, Some(a.unique_id()))
                );
                assert_eq!((of_b.in_use, of_b.peak, of_b.stream), (0, 300, Some(b.unique_id())));
                assert_eq!((of_a.in_use, of_a.peak, of_a.stream), (0, 100, Some(a.unique_id())));
                let streams: Vec<_> = report.by_stream().into_iter().map(|(_, id, bytes)| (id, bytes)).collect();
                assert_eq!(streams, [(Some(a.unique_id()), 4000), (Some(b.unique_id()), 0)]);
                let bytes: Vec<u64> = report.over_time().iter().map(|(_, bytes)| *bytes).collect();
                let steps: Vec<i64> = bytes.windows(2).map(|w| w[1] as i64 - w[0] as i64).collect();
                assert_eq!(steps, [-100, 300, -300, 4000, -10]);
                assert!(report.over_time().is_sorted_by_key(|(at, _)| *at));
                let most = bytes.iter().max().unwrap();
                assert!(report.to_svg().contains(&format!("{:.1} MiB", (most / 4 * 4) as f64 / f64::from(1 << 20))));
                assert!(report.to_string().contains(&format!("{}:{line}:", file!())));
                log.disable();
                drop(pieces);
                drop(a.alloc::<u8>(7).unwrap());
                assert_eq!(log.report().over_time().len(), bytes.len(), "it is off");
                // A long run keeps its peaks, and takes no more memory.
                log.enable();
                for i in 0..20_000 {
                    drop(a.alloc::<u8>(if i == 777 { 1 << 16 } else { 1 }).unwrap());
                }
                let long = log.report();
                let all = long.over_time();
                let (least, most) = (all.iter().map(|m| m.1).min().unwrap(), all.iter().map(|m| m.1).max().unwrap());
                assert!(all.len() <= 1 << 14 && most - least >= 1 << 15, "{} moments, {most}", all.len());
                log.disable();
            });
        });
    }
}

/// The bytes of buffers are counted until their last piece is dropped, on every path.
#[test]
fn device_memory_is_counted_as_long_as_somebody_owns_it() {
    let _alone = alone();
    for &device in devices() {
        let [a, b] = [(); 2].map(|()| AnyStream::new(device).unwrap());
        a.enter(|a| {
            b.enter(|b| {
                a.synchronize().unwrap();
                let before = device.memory_stats().unwrap();
                device.reset_peak_memory();
                let now = || {
                    let stats = device.memory_stats().unwrap();
                    (stats.in_use - before.in_use, stats.peak - before.in_use, stats.allocations - before.allocations)
                };
                let x = a.alloc::<u32>(1000).unwrap();
                assert_eq!(now(), (4000, 4000, 1), "{device}");
                drop(a.alloc::<u8>(500).unwrap()); // freed on its stream
                assert_eq!(now(), (4000, 4500, 2));
                let mut pieces = a.hand_off(x, b).unwrap().split_even(3).unwrap();
                drop(pieces.pop());
                assert_eq!(now(), (4000, 4500, 2), "a piece keeps the whole");
                drop(b.record(pieces).unwrap()); // freed after an event
                assert_eq!(now(), (0, 4500, 2));
                device.reset_peak_memory();
                assert_eq!(now(), (0, 0, 2));
                drop(a.alloc_zeroed::<u64>(0).unwrap()); // takes no memory
                assert_eq!(now(), (0, 0, 2));
                let text = device.memory_stats().unwrap().to_string();
                assert!(text.contains("device memory") && text.contains("page-locked") && text.lines().count() == 3);
            });
        });
    }
}
