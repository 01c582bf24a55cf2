//! What goes wrong among threads: each rank gets the same typed failure in time, no value of a
//! failed operation reaches the program, and no thread and no socket is left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use thalweg::{At, Event, stream_tags};
use thalweg_collective::{
    Comm, Error, Failure, Max, Mean, RankEnv, Result, StoreLimits, StoreServer, Sum, World, WorldOptions, ranks,
};

use crate::support::{LONG, Over, options, own_devices, run};

stream_tags!(Reduce, Compute);

const SHORT: Duration = Duration::from_millis(300);
const BOTH: [Over; 2] = [Over::Memory, Over::Tcp];
const ALL: [Over; 3] = [Over::Memory, Over::Tcp, Over::Peer];

type C<'r> = Comm<At<'r, Reduce>>;

/// Runs a program on each rank; expects each to end with the same failure, and returns it.
fn failure(
    over: Over,
    size: usize,
    options: WorldOptions,
    f: impl Fn(usize, &mut C<'_>) -> Result<()> + Sync,
) -> Failure {
    let started = Instant::now();
    let ended = run(over, &own_devices(size), options, |rank, world| {
        let mut comm = world.comm(rank.stream::<Reduce>()?)?;
        let outcome = f(rank.index(), &mut comm).and_then(|()| comm.synchronize());
        let outcome = outcome.map_err(|error| comm.failure_or(error));
        // From now on it is the answer to everything, and the device has failed too.
        if outcome.is_err() {
            assert!(matches!(comm.barrier(), Err(Error::Failed(_))));
            assert!(matches!(rank.device().ensure_usable(), Err(thalweg::Error::Poisoned { .. })));
        }
        outcome
    });
    let failures: Vec<Failure> = ended
        .into_iter()
        .map(|ended| match ended {
            Err(Error::Failed(failure)) => failure,
            other => panic!("{over:?}: {other:?}"),
        })
        .collect();
    assert!(failures.iter().all(|failure| *failure == failures[0]), "{over:?}: {failures:?}");
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    failures.into_iter().next().unwrap()
}

fn sum(comm: &mut C<'_>, n: usize) -> Result<()> {
    let mut x = comm.stream().alloc_zeroed::<f32>(n)?;
    comm.all_reduce_in_place(Sum, &mut x)
}

fn mismatch(failure: Failure, seq: u64, differing: &[usize], text: &str) {
    let Failure::Mismatch { seq: s, differing: d, calls } = &failure else { panic!("{failure}") };
    assert_eq!((*s, &d[..], calls.len()), (seq, differing, calls.len()), "{failure}");
    assert!(failure.to_string().contains(text), "{failure}");
}

/// Another operation, length, type, reduction, root or order: with and without the comparison
/// before the call.
#[test]
fn ranks_that_differ_are_named() {
    for (over, compare) in [(Over::Memory, false), (Over::Memory, true), (Over::Tcp, false), (Over::Tcp, true)] {
        let options = options(LONG).with_check_consistency(compare);
        let of = |f: fn(usize, &mut C<'_>) -> Result<()>| failure(over, 3, options, f);
        let operation = of(|rank, comm| {
            comm.barrier()?;
            if rank == 1 { comm.barrier() } else { sum(comm, 8) }
        });
        mismatch(operation, 2, &[1], "rank 1 calls barrier, rank 2 calls all-reduce (sum) of 8 x f32");
        let length = of(|rank, comm| sum(comm, if rank == 2 { 9 } else { 8 }));
        mismatch(length, 1, &[2], "operation 1 differs on rank 2: rank 0 calls all-reduce (sum) of 8 x f32");
        let kind = of(|rank, comm| {
            let s = comm.stream();
            if rank == 0 { comm.all_reduce_in_place(Sum, &mut s.alloc_zeroed::<i32>(8)?) } else { sum(comm, 8) }
        });
        mismatch(kind, 1, &[0], "8 x i32");
        let reduction = of(|rank, comm| {
            let mut x = comm.stream().alloc_zeroed::<f32>(8)?;
            if rank == 2 { comm.all_reduce_in_place(Mean, &mut x) } else { comm.all_reduce_in_place(Max, &mut x) }
        });
        mismatch(reduction, 1, &[2], "all-reduce (mean)");
        let root = of(|rank, comm| comm.broadcast(rank / 2, &mut comm.stream().alloc_zeroed::<u8>(5)?));
        mismatch(root, 1, &[2], "broadcast of 5 x u8 from rank 1");
        let order = failure(over, 2, options, |rank, comm| {
            let mut x = comm.stream().alloc_zeroed::<f32>(8)?;
            if rank == 0 {
                comm.all_reduce_in_place(Sum, &mut x)?;
                comm.broadcast(0, &mut x)
            } else {
                comm.broadcast(0, &mut x)?;
                comm.all_reduce_in_place(Sum, &mut x)
            }
        });
        mismatch(order, 1, &[0, 1], "rank 0 calls all-reduce (sum) of 8 x f32, rank 1 calls broadcast");
    }
}

/// Over peer copies a rank compares its call with that of the first one that came.
#[test]
fn ranks_that_differ_over_peer_copies_are_named() {
    let differs = failure(Over::Peer, 2, options(LONG), |rank, comm| sum(comm, 8 + rank));
    mismatch(differs, 1, &[0, 1], "rank 0 calls all-reduce (sum) of 8 x f32, rank 1 calls all-reduce (sum) of 9 x f32");
    let order = failure(Over::Peer, 2, options(LONG), |rank, comm| {
        comm.barrier()?;
        if rank == 0 { comm.barrier().and_then(|()| sum(comm, 8)) } else { sum(comm, 8).and_then(|()| comm.barrier()) }
    });
    mismatch(order, 2, &[0, 1], "rank 0 calls barrier, rank 1 calls all-reduce (sum) of 8 x f32");
}

#[test]
fn messages_that_differ_are_named() {
    for over in ALL {
        let failure = failure(over, 2, options(LONG), |rank, comm| {
            let s = comm.stream();
            let mut x = s.alloc_zeroed::<u8>(4)?;
            if rank == 0 {
                comm.send(1, &x)?;
                comm.barrier()
            } else {
                comm.recv(0, x.slice_mut(..3).map_err(thalweg::Error::from)?)
            }
        });
        mismatch(failure, 0, &[0, 1], "message of 4 x u8, rank 1 calls message of 3 x u8");
    }
}

/// Two messages with as many bytes are other messages if their types differ.
#[test]
fn messages_of_other_types_are_named() {
    for over in ALL {
        let failure = failure(over, 2, options(LONG), |rank, comm| {
            let s = comm.stream();
            if rank == 0 {
                comm.send(1, &s.alloc_zeroed::<u32>(4)?)?;
                comm.barrier()
            } else {
                comm.recv(0, &mut s.alloc_zeroed::<f32>(4)?)
            }
        });
        mismatch(failure, 0, &[0, 1], "message of 4 x u32, rank 1 calls message of 4 x f32");
    }
}

/// A rank that waits for one that is there, and is not a part of the failure, learns of it at once.
#[test]
fn who_waits_learns_of_a_failure_of_others() {
    for over in [Over::Memory, Over::Tcp] {
        let (learned, ready, started) = (AtomicBool::new(false), Barrier::new(3), Instant::now());
        let ended = run(over, &own_devices(3), options(LONG), |rank, world| -> Result<bool> {
            let mut comm = world.comm(rank.stream::<Reduce>()?)?;
            let mut x = comm.stream().alloc_zeroed::<u8>(4)?;
            ready.wait(); // all have their memory before somebody fails
            let called = match rank.index() {
                0 => comm.recv(1, &mut x),
                1 => comm.recv(2, &mut x),
                _ => comm.send(1, x.slice(..3).map_err(thalweg::Error::from)?),
            };
            // The others may have failed before this call.
            let failed = called.and_then(|()| comm.synchronize()).is_err();
            if rank.index() == 0 {
                learned.store(true, Ordering::Release);
            }
            // Nobody leaves before, because that would be seen, too.
            while !learned.load(Ordering::Acquire) && started.elapsed() < LONG {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(failed)
        });
        assert!(ended.into_iter().next().unwrap().unwrap(), "{over:?}");
        assert!(started.elapsed() < LONG / 2, "{over:?}: {:?}", started.elapsed());
    }
}

/// A rank without memory for an operation says so to those that wait for what it would have sent.
#[test]
fn a_rank_that_cannot_go_on_is_named() {
    let ended = run(Over::Peer, &own_devices(2), options(LONG), |rank, world| -> Result<Error> {
        let mut comm = world.comm(rank.stream::<Reduce>()?)?;
        let mut x = comm.stream().alloc_zeroed::<u8>(2000)?;
        comm.barrier()?;
        comm.synchronize()?;
        if rank.index() == 1 {
            rank.device().limit_memory(Some(0));
        }
        let outcome = comm.all_gather_in_place(&mut x).and_then(|()| comm.synchronize());
        Ok(comm.failure_or(outcome.unwrap_err()))
    });
    // The first rank may learn of it before it has seen the end of the barrier.
    let [Ok(first) | Err(first), _] = <[_; 2]>::try_from(ended).unwrap();
    assert!(matches!(first, Error::Failed(Failure::Abandoned { rank: 1, .. })), "{first:?}");
}

/// A rank that sends without end to one that is away waits, and does not fill the memory.
#[test]
fn a_rank_that_receives_nothing_is_named() {
    for over in BOTH {
        let failure = failure(over, 2, options(SHORT), |rank, comm| {
            let x = comm.stream().alloc_zeroed::<u8>(16 << 20)?;
            for _ in 0..64 {
                while rank == 1 && comm.failure().is_none() {
                    thread::sleep(Duration::from_millis(1));
                }
                comm.send(1 - rank, &x)?;
            }
            Ok(())
        });
        assert!(matches!(&failure, Failure::Timeout { lagging, .. } if *lagging == [1]), "{over:?}: {failure}");
    }
}

#[test]
fn a_late_rank_is_named() {
    for over in ALL {
        let failure = failure(over, 3, options(SHORT), |rank, comm| {
            comm.barrier()?;
            if rank == 1 {
                comm.synchronize()?;
                // It stays away until it learns that the others have given up.
                while comm.failure().is_none() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            sum(comm, 100)
        });
        let op = "all-reduce (sum) of 100 x f32".to_owned();
        assert_eq!(failure, Failure::Timeout { seq: 2, op, lagging: vec![1], waited: SHORT });
        assert_eq!(
            failure.to_string(),
            "rank 1 did not come to operation 2, all-reduce (sum) of 100 x f32, within 300ms"
        );
    }
}

/// Far from four times the timeout, which others count on.
#[test]
fn a_late_rank_is_named_in_time() {
    let (timeout, started) = (Duration::from_secs(2), Instant::now());
    let failure = failure(Over::Memory, 2, options(timeout), |rank, comm| {
        while rank == 1 && comm.failure().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        sum(comm, 100)
    });
    assert!(matches!(&failure, Failure::Timeout { lagging, .. } if *lagging == [1]), "{failure}");
    assert!((timeout..3 * timeout).contains(&started.elapsed()), "{:?}", started.elapsed());
}

/// Over peer copies, a rank that has called but whose stream does not come to the operation is late
/// too: for a sum on streams of the transport, and for an operation on its own stream.
#[test]
fn a_rank_whose_stream_does_not_come_is_named() {
    let waited = 3 * SHORT; // the watchdogs of ranks that have come say so in the meantime
    for sums in [true, false] {
        let failure = failure(Over::Peer, 3, options(waited), |rank, comm| {
            comm.barrier()?;
            let (open, opened) = std::sync::mpsc::channel::<()>();
            if rank == 1 {
                // It stands until the sender is dropped.
                comm.stream().launch_host(move || _ = opened.recv())?;
            }
            if sums {
                sum(comm, 100)?;
            } else {
                comm.all_gather_in_place(&mut comm.stream().alloc_zeroed::<u8>(6)?)?;
            }
            while rank == 1 && comm.failure().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            drop(open);
            Ok(())
        });
        let op = if sums { "all-reduce (sum) of 100 x f32" } else { "all-gather of 2 x u8" }.to_owned();
        assert_eq!(failure, Failure::Timeout { seq: 2, op, lagging: vec![1], waited });
    }
}

/// Ranks whose streams take long for what is before an operation are not late, and the time of each
/// operation counts from its own turn on.
#[test]
fn what_is_before_an_operation_over_peer_copies_takes_its_time() {
    let timeout = Duration::from_secs(1);
    let ended = run(Over::Peer, &own_devices(2), options(timeout), |rank, world| -> Result<()> {
        let s = rank.stream::<Reduce>()?;
        let mut comm = world.comm(s)?;
        s.launch_host(move || thread::sleep(timeout * 5 / 4))?;
        for _ in 0..3 {
            if rank.index() == 1 {
                s.launch_host(move || thread::sleep(timeout * 2 / 5))?;
            }
            sum(&mut comm, 10)?;
        }
        comm.synchronize()
    });
    ended.into_iter().for_each(|ended| ended.unwrap());
}

/// A rank that hangs before a call is late too if the ranks compare first.
#[test]
fn a_rank_that_does_not_call_is_named() {
    let options = options(SHORT).with_check_consistency(true);
    let failure = failure(Over::Tcp, 2, options, |rank, comm| {
        while rank == 0 && comm.failure().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        sum(comm, 1)
    });
    assert!(matches!(&failure, Failure::Timeout { seq: 1, lagging, .. } if *lagging == [0]), "{failure}");
}

#[test]
fn a_rank_that_leaves_or_panics_is_named() {
    for over in ALL {
        let ended = run(over, &own_devices(3), options(LONG), |rank, world| {
            let mut comm = world.comm(rank.stream::<Reduce>()?)?;
            comm.barrier()?;
            if rank.index() == 2 {
                return comm.synchronize();
            }
            let ended = sum(&mut comm, 5).and_then(|()| comm.synchronize());
            ended.map_err(|error| comm.failure_or(error)) // the device may have failed before the memory was there
        });
        for (rank, ended) in ended.into_iter().enumerate() {
            match ended {
                Ok(()) => assert_eq!(rank, 2),
                Err(Error::Failed(failure)) => {
                    let op = "all-reduce (sum) of 5 x f32".to_owned();
                    assert_eq!(failure, Failure::LeftEarly { rank: 2, seq: 2, op }, "{over:?}");
                }
                other => panic!("{other:?}"),
            }
        }

        let (learned, both) = (Mutex::new(Vec::new()), std::sync::Barrier::new(2));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(over, &own_devices(2), options(LONG), |rank, world| {
                let mut comm = world.comm(rank.stream::<Reduce>().unwrap()).unwrap();
                comm.barrier().unwrap();
                comm.synchronize().unwrap();
                both.wait(); // the other rank has read what it waited for
                assert_ne!(rank.index(), 1, "on purpose");
                let error = comm.barrier().and_then(|()| comm.synchronize()).unwrap_err();
                learned.lock().unwrap().push(error.to_string());
            })
        }));
        assert!(panic.is_err());
        assert_eq!(learned.into_inner().unwrap(), ["rank 1 has panicked"], "{over:?}");
    }
}

/// Work behind an operation that fails runs on what is there. None of it reaches the program: not
/// through an event that was recorded before the failure, also on another stream.
#[test]
fn no_partial_sum_leaves_the_device() {
    for over in BOTH {
        let ended = run(over, &own_devices(2), options(SHORT), |rank, world| -> Result<()> {
            let (s, compute) = (rank.stream::<Reduce>()?, rank.stream::<Compute>()?);
            let mut comm = world.comm(s)?;
            if rank.index() == 1 {
                while comm.failure().is_none() {
                    thread::sleep(Duration::from_millis(1));
                }
                return Ok(());
            }
            let mut x = s.upload_blocking(&[1.0f32; 100])?;
            comm.all_reduce_in_place(Sum, &mut x)?;
            let x = s.hand_off(x, &compute).map_err(thalweg::Error::from)?;
            let sum: Event<_> = compute.record(x).map_err(thalweg::Error::from)?;
            let refused = sum.synchronize().map(drop).unwrap_err();
            assert!(
                matches!(&refused.error, thalweg::Error::Poisoned { cause, .. } if cause.starts_with("rank 1 did"))
            );
            assert!(compute.alloc::<f32>(1).is_err());
            Ok(())
        });
        ended.into_iter().for_each(|ended| ended.unwrap());
    }
}

/// A rank whose device fails takes the others with it.
#[test]
fn a_device_that_fails_is_named() {
    let ended = ranks(&own_devices(2), options(LONG), |rank, world| {
        let s = rank.stream::<Reduce>()?;
        let mut comm = world.comm(s)?;
        if rank.index() == 1 {
            let device = s.device();
            s.launch_host(move || device.poison("on purpose"))?;
            _ = s.synchronize();
            assert!(sum(&mut comm, 3).is_err());
            return Ok(());
        }
        sum(&mut comm, 3)?;
        comm.synchronize()
    });
    let failure = ended.into_iter().next().unwrap().unwrap_err();
    let named = match &failure {
        Error::Failed(Failure::LeftEarly { rank, .. } | Failure::Abandoned { rank, .. }) => *rank == 1,
        // The other one was gone before this one allocated memory.
        Error::Device(thalweg::Error::Poisoned { cause, .. }) => cause.starts_with("rank 1 has "),
        _ => false,
    };
    assert!(named, "{failure}");
}

/// A store that ends: without a comparison before the calls nobody misses it. With one, the next
/// call says so.
#[test]
fn a_store_that_goes_away() {
    for compare in [false, true] {
        let server = Mutex::new(Some(StoreServer::bind("127.0.0.1:0", b"s", StoreLimits::default()).unwrap()));
        let store = server.lock().unwrap().as_ref().unwrap().address().to_string();
        let options = options(LONG).with_check_consistency(compare);
        let ended = thalweg::for_each_device(&own_devices(2), |rank| -> Result<()> {
            let world = World::connect(&RankEnv::with_store(rank.index(), 2, &store, b"s"), options)?;
            let mut comm = world.comm(rank.stream::<Reduce>()?)?;
            sum(&mut comm, 4)?;
            comm.synchronize()?;
            if rank.index() == 0 {
                drop(server.lock().unwrap().take());
            }
            while server.lock().unwrap().is_some() {
                thread::yield_now();
            }
            sum(&mut comm, 5)?;
            comm.synchronize()
        });
        for ended in ended {
            match ended {
                Ok(()) => assert!(!compare),
                // Whoever asks the store first ends the connections between the ranks as well.
                Err(Error::Failed(failure)) => {
                    assert!(compare, "{failure}");
                    assert!(
                        matches!(failure, Failure::StoreGone { seq: 2, .. } | Failure::Gone { seq: 2, .. }),
                        "{failure}"
                    );
                    assert!(failure.to_string().contains("all-reduce (sum) of 5 x f32"), "{failure}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Ranks that meet in the store of others that have failed have a fate of their own.
#[test]
fn a_failure_is_of_its_own_ranks() {
    let server = StoreServer::bind("127.0.0.1:0", b"s", StoreLimits::default()).unwrap();
    let store = server.address().to_string();
    let round = |fails: bool, compare: bool, timeout: Duration| {
        let options = options(timeout).with_check_consistency(compare);
        let ended = thalweg::for_each_device(&own_devices(2), |rank| -> Result<()> {
            let world = World::connect(&RankEnv::with_store(rank.index(), 2, &store, b"s"), options)?;
            let mut comm = world.comm(rank.stream::<Reduce>()?)?;
            sum(&mut comm, 4)?;
            comm.synchronize()?;
            while fails && rank.index() == 1 && comm.failure().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            sum(&mut comm, 4)?;
            comm.synchronize()
        });
        assert!(ended.iter().all(|ended| ended.is_err() == fails), "{ended:?}");
    };
    for compare in [false, true] {
        round(true, compare, SHORT);
        round(false, compare, LONG);
    }
}

#[test]
fn ranks_that_do_not_meet() {
    let server = StoreServer::bind("127.0.0.1:0", b"s", StoreLimits::default()).unwrap();
    let join = |secret: &[u8]| {
        let place = RankEnv::with_store(1, 3, server.address().to_string(), secret);
        World::connect(&place, WorldOptions::default().with_connect_timeout(SHORT)).map(drop).unwrap_err().to_string()
    };
    let alone = join(b"s");
    assert!(alone.starts_with("rank 1 could not join the other ranks: ranks 0 and 2 did not come"), "{alone}");
    assert_eq!(join(b"t"), "rank 1 could not join the other ranks: the store has another secret");
}

/// Threads and files of this process, on Linux.
fn held() -> Option<(usize, usize)> {
    let count = |path| std::fs::read_dir(path).ok().map(Iterator::count);
    Some((count("/proc/self/task")?, count("/proc/self/fd")?))
}

/// After a failure and after a good end nothing of the ranks is left: no thread, no socket. It runs
/// in a process of its own, because other tests have threads too.
#[test]
fn nothing_is_left() {
    const ALONE: &str = "THALWEG_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let test =
            testkit::process::again(concat!(module_path!(), "::nothing_is_left")).env(ALONE, "1").output().unwrap();
        assert!(test.status.success(), "{}", String::from_utf8_lossy(&test.stderr));
        return;
    }
    if held().is_none() {
        eprintln!("NOT COVERED: this system has no /proc");
        return;
    }
    // One CPU device, whose threads stay. Only what fails has devices of its own, made before.
    let devices = [own_devices(2), own_devices(2), own_devices(2)];
    let rounds = |devices: &[thalweg::Device], fails: bool| {
        let ended = run(Over::Tcp, devices, options(LONG), |rank, world| {
            let mut comm = world.comm(rank.stream::<Reduce>()?)?;
            sum(&mut comm, 1000)?;
            if fails {
                sum(&mut comm, rank.index())?;
            }
            comm.synchronize()
        });
        assert!(ended.iter().all(|ended| ended.is_err() == fails));
    };
    // The streams of a device are threads that stay, and so is what the library starts once.
    devices.iter().for_each(|devices| rounds(devices, false));
    let before = held();
    rounds(&devices[0], false);
    rounds(&devices[1], true);
    rounds(&devices[2], true);
    let started = Instant::now();
    while held() > before {
        assert!(started.elapsed() < LONG, "{before:?} became {:?}", held());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Two ranks on a device whose host functions run one after another would wait for themselves.
#[test]
fn a_device_for_two_ranks_is_refused_where_they_would_wait_for_themselves() {
    let seeded = thalweg::Device::seeded_cpu(3).unwrap();
    let other = thalweg::Device::new_cpu().unwrap();
    // Also a GPU, if there is one. No rank waits for one that was refused.
    for device in [seeded, thalweg::Device::best().unwrap()] {
        if !device.overlaps_host_functions() {
            let devices = [other, device, device];
            let ended = ranks(&devices, options(LONG), |rank, world| world.comm(rank.stream::<Reduce>()?).map(drop));
            let named = format!("two ranks have {device}: give each rank its own GPU or CPU device");
            let gpu = device.kind() == thalweg::DeviceKind::Cuda;
            for ended in ended {
                let text = ended.unwrap_err().to_string();
                let hint = text.strip_prefix(&named).unwrap_or_else(|| panic!("{text}"));
                assert_eq!((hint.is_empty(), hint.contains("Only ranks that are processes")), (!gpu, gpu), "{text}");
            }
        }
    }
    let devices = [seeded, thalweg::Device::seeded_cpu(4).unwrap()];
    let sums = ranks(&devices, options(LONG), |rank, world| -> Result<()> {
        let mut comm = world.comm(rank.stream::<Reduce>()?)?;
        sum(&mut comm, 100)?;
        comm.synchronize()
    });
    sums.into_iter().for_each(|ended| ended.unwrap());
}
