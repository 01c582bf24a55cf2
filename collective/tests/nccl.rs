//! What goes wrong on two GPUs over NCCL: as threads of one process, and as processes that are
//! killed and stopped. A device that has failed stays so, so each fault has processes of its own:
//! this binary starts itself again. With `NCCL_MULTI_RANK_GPU_ENABLE=1` and NCCL 2.30, processes
//! share one GPU. Without GPUs the tests cover nothing and say so.

#![cfg(unix)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thalweg::{At, Device, DeviceSlice, LiveBrand, stream_tags};
use thalweg_collective::{Backend, Comm, Error, Result, Store, Sum, World, ranks};

use crate::support::children::{RANK_OF, Ranks};
use crate::support::{LONG, Over, gpus, one_gpu, options, processes_have_gpus};

stream_tags!(Reduce, Compute);

const NCCL: (&str, &str) = ("THALWEG_COLLECTIVE_BACKEND", "nccl");
const TIMEOUT: (&str, &str) = ("THALWEG_COLLECTIVE_TIMEOUT", "8");

/// A process that a test started: one rank, or both as threads. Does nothing in the test run
/// itself.
#[test]
fn rank() {
    let Ok(scenario) = std::env::var(RANK_OF) else { return };
    if let Some(scenario) = scenario.strip_prefix("threads ") {
        return threads(scenario);
    }
    if scenario == "again" {
        return again();
    }
    let world = World::from_env().unwrap();
    let store = world.store().reconnect().unwrap();
    world.device().unwrap().scope(|rank| {
        let mut comm = match world.comm(rank.stream::<Reduce>().unwrap()) {
            Ok(comm) => comm,
            Err(error) => return println!("SAYS {error}"),
        };
        assert_eq!(comm.backend(), Backend::Nccl);
        let outcome = run(&scenario, &mut comm, Some(&store));
        println!("SAYS {}", ending(&comm, outcome));
    });
}

/// Makes communicators one after another. Says how many MiB of the device are free after each.
fn again() {
    for _ in 0..5 {
        let world = World::from_env().unwrap();
        let (store, rank, device) = (world.store().reconnect().unwrap(), world.rank(), world.device().unwrap());
        device.scope(|rank| sum(&mut world.comm(rank.stream().unwrap()).unwrap(), 1 << 20).unwrap());
        // The ranks may share a device.
        store.barrier("both have ended", rank, 2, LONG).unwrap();
        println!("SAYS {}", device.free_memory().unwrap() >> 20);
        store.barrier("both have looked", rank, 2, LONG).unwrap();
    }
}

/// Both ranks in this process.
fn threads(scenario: &str) {
    let options = options(Duration::from_secs(8)).with_backend(Backend::Nccl);
    let started = std::panic::catch_unwind(|| {
        ranks(&gpus().unwrap(), options, |rank, world| {
            let mut comm = world.comm(rank.stream::<Reduce>().unwrap()).unwrap();
            let outcome = run(scenario, &mut comm, None);
            println!("SAYS {} {}", rank.index(), ending(&comm, outcome));
        })
    });
    println!("SAYS {}", if started.is_ok() { "both end" } else { "one panics" });
}

fn ending<S: LiveBrand>(comm: &Comm<S>, outcome: Result<String>) -> String {
    match outcome.map_err(|error| comm.failure_or(error)) {
        Ok(said) => said,
        Err(Error::Failed(failure)) => {
            let device = comm.stream().device();
            assert!(
                matches!(device.ensure_usable(), Err(thalweg::Error::Poisoned { .. })),
                "nobody reads a partial sum"
            );
            format!("failed: {failure}")
        }
        Err(error) => error.to_string(),
    }
}

type C<'r> = Comm<At<'r, Reduce>>;

fn sum(comm: &mut C<'_>, n: usize) -> Result<()> {
    let mut x = comm.stream().alloc_zeroed::<f32>(n)?;
    comm.all_reduce_in_place(Sum, &mut x)
}

/// Enqueues operations at once. Returns how long they take together.
fn burst<'r>(comm: &mut C<'r>, x: &mut DeviceSlice<At<'r, Reduce>, f32>, count: u32) -> Result<Duration> {
    let started = Instant::now();
    for _ in 0..count {
        comm.all_reduce_in_place(Sum, x)?;
    }
    comm.synchronize()?;
    Ok(started.elapsed())
}

/// Waits until the ranks have failed, and gives that as the error.
fn until_failed(comm: &C<'_>) -> Result<String> {
    let started = Instant::now();
    while comm.failure().is_none() {
        assert!(started.elapsed() < LONG, "the ranks do not fail");
        thread::sleep(Duration::from_millis(1));
    }
    Err(Error::Failed(comm.failure().unwrap().clone()))
}

fn run(scenario: &str, comm: &mut C<'_>, store: Option<&Store>) -> Result<String> {
    let rank = comm.rank();
    let s = comm.stream();
    comm.barrier()?;
    comm.synchronize()?;
    match scenario {
        // Buffers are dropped at once; what is read must be right, and the same on both ranks.
        "sums" => {
            let mut hash = 0u64;
            for n in [1, 1000, 100_003, 3_000_000] {
                for round in 0..20 {
                    let own: Vec<f32> = (0..n).map(|i| 1.0 / (1 + (i * 7 + rank * 13 + round) % 1009) as f32).collect();
                    let mut x = s.upload_blocking(&own)?;
                    comm.all_reduce_in_place(Sum, &mut x)?;
                    let mut y = s.alloc::<f32>(n)?;
                    comm.all_reduce(Sum, &x, &mut y)?;
                    drop(x);
                    s.fill(&mut s.alloc::<f32>(n)?, 7.0)?;
                    let peer: Vec<f32> =
                        (0..n).map(|i| 1.0 / (1 + (i * 7 + (1 - rank) * 13 + round) % 1009) as f32).collect();
                    let sums = s.read_blocking(&y)?;
                    assert!(sums.iter().zip(own.iter().zip(&peer)).all(|(v, (a, b))| *v == 2.0 * (a + b)), "{n}");
                    hash = sums.iter().fold(hash, |hash, v| hash.rotate_left(5).wrapping_add(v.to_bits().into()));
                }
            }
            Ok(format!("{hash:016x}"))
        }
        // Captured operations beside direct ones; the graph outlives what it was made with, or the
        // other way round.
        "graphs" | "graph outlives" => {
            let x = s.upload_blocking(&vec![1.0f32; 100_003])?;
            let captured = comm.capture(x, |r, x| {
                r.all_reduce_in_place(Sum, x)?;
                r.all_reduce_in_place(Sum, x)
            });
            let (mut graph, mut x) = captured?;
            for round in 1..=3 {
                x = comm.replay(&mut graph, x)?;
                sum(comm, 1000)?;
                assert!(s.read_blocking(&x)?.iter().all(|&v| v == 4f32.powi(round)), "{round}");
            }
            if scenario == "graph outlives" {
                std::mem::forget(graph);
            }
            Ok("replayed".to_owned())
        }
        // Rank 1 captures another length.
        "graphs differ" => {
            let x = s.alloc_zeroed::<f32>(1000 + rank)?;
            match comm.capture(x, |r, x| {
                r.all_reduce_in_place(Sum, x.slice_mut(..1000 - rank).map_err(thalweg::Error::from)?)
            }) {
                Ok(_) => Ok("captured".to_owned()),
                Err(returned) => Err(returned.error),
            }
        }
        // Rank 0 replays what rank 1 does not.
        "graph alone" => {
            let x = s.alloc_zeroed::<f32>(1000)?;
            let captured = comm.capture(x, |r, x| r.all_reduce_in_place(Sum, x));
            let (mut graph, x) = captured?;
            if rank == 0 {
                _ = comm.replay(&mut graph, x)?;
            } else {
                sum(comm, 1000)?;
            }
            until_failed(comm)
        }
        // Without a wait on the host between the operations.
        "forever" => {
            let mut x = s.alloc_zeroed::<f32>(16 << 20)?;
            loop {
                for _ in 0..8 {
                    comm.all_reduce_in_place(Sum, &mut x)?;
                }
                comm.synchronize()?;
                store.unwrap().add("sums", 1)?;
            }
        }
        // More than the timeout together, and each far less.
        "burst" => {
            let mut x = s.alloc_zeroed::<f32>(if one_gpu() { 64 << 20 } else { 512 << 20 })?;
            burst(comm, &mut x, 4)?;
            let each = burst(comm, &mut x, 16)?.as_secs_f64() / 16.0;
            let mut count = s.upload_blocking(&[(4.5 / each) as u32])?;
            comm.broadcast(0, &mut count)?;
            let count = s.read_blocking(&count)?[0];
            let took = burst(comm, &mut x, count)?;
            println!("{count} operations in {took:?}");
            assert!(took > Duration::from_secs(3), "the test means to take longer than its timeout: {took:?}");
            Ok("done".to_owned())
        }
        "length" => sum(comm, 1000 + rank).and_then(|()| until_failed(comm)),
        "operation" => {
            match rank {
                0 => sum(comm, 1000)?,
                _ => comm.broadcast(0, &mut s.alloc_zeroed::<f32>(1000)?)?,
            }
            until_failed(comm)
        }
        "order" => {
            let (mut x, mut y) = (s.alloc_zeroed::<f32>(5000)?, s.alloc_zeroed::<u8>(77)?);
            match rank {
                0 => comm.all_reduce_in_place(Sum, &mut x).and_then(|()| comm.broadcast(0, &mut y))?,
                _ => comm.broadcast(0, &mut y).and_then(|()| comm.all_reduce_in_place(Sum, &mut x))?,
            }
            until_failed(comm)
        }
        "late" => {
            sum(comm, 100)?;
            match rank {
                0 => sum(comm, 200).and_then(|()| comm.synchronize()).map(|()| "no failure".to_owned()),
                _ => until_failed(comm),
            }
        }
        "leaves" if rank == 1 => Ok("left".to_owned()),
        "leaves" => sum(comm, 200).and_then(|()| until_failed(comm)),
        "panics" if rank == 1 => panic!("on purpose"),
        "panics" => sum(comm, 200).and_then(|()| until_failed(comm)),
        "message" => {
            let mut x = s.alloc_zeroed::<u8>(400)?;
            match rank {
                0 => comm.send(1, &x)?,
                _ => comm.recv(0, x.slice_mut(..300).map_err(thalweg::Error::from)?)?,
            }
            until_failed(comm)
        }
        "device" => {
            if rank == 1 {
                s.device().poison("on purpose");
            }
            sum(comm, 200).and_then(|()| until_failed(comm))
        }
        other => panic!("{other}"),
    }
}

/// The tests take turns, because one of them measures memory that all share. `None` without GPUs.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    processes_have_gpus().then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn processes(scenario: &str, environment: &[(&str, &str)]) -> [String; 2] {
    let mut ranks = Ranks::start(concat!(module_path!(), "::rank"), scenario, 2, &[&[NCCL], environment].concat());
    [ranks.said(0), ranks.said(1)]
}

/// Runs both ranks in a process with two GPUs, and expects what they say, if this machine has two.
#[track_caller]
fn threads_say(scenario: &str, expected: &[&str]) {
    if gpus().is_some() {
        let said = Ranks::start(concat!(module_path!(), "::rank"), &format!("threads {scenario}"), 1, &[]).said(0);
        let mut said: Vec<&str> = said.lines().collect();
        said.sort_unstable();
        assert_eq!(said, expected, "{scenario}");
    }
}

#[test]
fn sums_are_right_and_the_same() {
    let Some(_turn) = turn() else { return };
    let [a, b] = processes("sums", &[]);
    assert_eq!(a.len(), 16, "{a}");
    assert_eq!(a, b);
    assert_eq!(processes("sums", &[("THALWEG_COLLECTIVE_COMPARE", "1")]), [a.clone(), b]);
    threads_say("sums", &[&format!("0 {a}"), &format!("1 {a}"), "both end"]);
}

#[test]
fn calls_that_differ_are_named() {
    let Some(_turn) = turn() else { return };
    for (scenario, a, b) in [
        ("length", "all-reduce (sum) of 1000 x f32", "all-reduce (sum) of 1001 x f32"),
        ("operation", "all-reduce (sum) of 1000 x f32", "broadcast of 1000 x f32 from rank 0"),
        ("order", "all-reduce (sum) of 5000 x f32", "broadcast of 77 x u8 from rank 0"),
    ] {
        let text = format!("failed: operation 2 differs on ranks 0 and 1: rank 0 calls {a}, rank 1 calls {b}");
        assert_eq!(processes(scenario, &[]), [text.clone(), text.clone()], "{scenario}");
        assert_eq!(processes(scenario, &[("THALWEG_COLLECTIVE_COMPARE", "1")]), [text.clone(), text.clone()]);
        threads_say(scenario, &[&format!("0 {text}"), &format!("1 {text}"), "both end"]);
    }
    // A message is no operation of all ranks, so it has the number of the one before: the barrier.
    let text = "failed: operation 1 differs on ranks 0 and 1: rank 0 calls message of 400 x u8, rank 1 calls message of 300 x u8";
    threads_say("message", &[&format!("0 {text}"), &format!("1 {text}"), "both end"]);
}

#[test]
fn captured_operations_are_replayed_and_compared() {
    let Some(_turn) = turn() else { return };
    for scenario in ["graphs", "graph outlives"] {
        assert_eq!(processes(scenario, &[]), ["replayed", "replayed"]);
        threads_say(scenario, &["0 replayed", "1 replayed", "both end"]);
    }
    let text = "ranks 0 and 1 differ from the others in the captured operations";
    assert_eq!(processes("graphs differ", &[]), [text, text]);
    let text = "failed: operation 3 differs on ranks 0 and 1: rank 0 calls replay of graph 1, rank 1 calls all-reduce (sum) of 1000 x f32";
    assert_eq!(processes("graph alone", &[]), [text, text]);
    threads_say("graph alone", &[&format!("0 {text}"), &format!("1 {text}"), "both end"]);
}

#[test]
fn a_late_rank_is_named() {
    let Some(_turn) = turn() else { return };
    let text = "failed: rank 1 did not come to operation 3, all-reduce (sum) of 200 x f32, within 8s";
    assert_eq!(processes("late", &[TIMEOUT]), [text, text]);
    threads_say("late", &[&format!("0 {text}"), &format!("1 {text}"), "both end"]);
}

/// The timeout is that of a few operations, not of all that a program enqueues at once.
#[test]
fn many_operations_may_take_longer_than_one() {
    let Some(_turn) = turn() else { return };
    assert_eq!(processes("burst", &[("THALWEG_COLLECTIVE_TIMEOUT", "1.5")]), ["done", "done"]);
}

#[test]
fn a_rank_that_leaves_panics_or_fails_is_named() {
    let Some(_turn) = turn() else { return };
    let left = "failed: rank 1 has dropped its communicator before operation 2, all-reduce (sum) of 200 x f32";
    assert_eq!(processes("leaves", &[]), [left, "left"]);
    threads_say("leaves", &[&format!("0 {left}"), "1 left", "both end"]);
    assert_eq!(processes("panics", &[]), ["failed: rank 1 has panicked", ""]);
    threads_say("panics", &["0 failed: rank 1 has panicked", "one panics"]);
    // Which operation is named depends on how far the watchdog saw the stream come.
    let [said, own] = processes("device", &[]);
    assert!(said.starts_with("failed: rank 1 could not run operation "), "{said}");
    assert!(said.ends_with(": its device has failed"), "{said}");
    assert!(own == said || own.ends_with("cannot be used any more after an earlier failure: on purpose"), "{own}");
}

/// Waits until the ranks are in the middle of their work.
fn under_way(ranks: &Ranks) {
    let started = Instant::now();
    while ranks.store.add("sums", 0).unwrap() < 12 {
        assert!(started.elapsed() < LONG, "the ranks do nothing");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_rank_is_named() {
    let Some(_turn) = turn() else { return };
    let mut ranks = Ranks::start(concat!(module_path!(), "::rank"), "forever", 2, &[NCCL]);
    under_way(&ranks);
    let killed = Instant::now();
    ranks.signal(1, "-KILL");
    let said = ranks.said(0);
    println!("{:?} after the kill: {said}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert!(said.starts_with("failed: rank 1 is gone: operation "), "{said:?}");
    assert!(said.ends_with(", all-reduce (sum) of 16777216 x f32, needs it"), "{said:?}");
}

#[test]
fn a_stopped_rank_is_named_and_learns_it() {
    let Some(_turn) = turn() else { return };
    let mut ranks = Ranks::start(concat!(module_path!(), "::rank"), "forever", 2, &[NCCL, TIMEOUT]);
    under_way(&ranks);
    ranks.signal(1, "-STOP");
    let said = ranks.said(0);
    assert!(said.starts_with("failed: rank 1 did not come to operation "), "{said:?}");
    assert!(said.ends_with(", all-reduce (sum) of 16777216 x f32, within 8s"), "{said:?}");
    ranks.signal(1, "-CONT");
    assert_eq!(ranks.said(1), said);
}

/// Communicators that end give their memory back.
#[test]
fn communicators_leave_nothing() {
    let Some(_turn) = turn() else { return };
    for said in processes("again", &[]) {
        let free: Vec<u64> = said.lines().map(|line| line.parse().unwrap()).collect();
        assert!(free.len() == 5 && free[1].abs_diff(free[4]) < 16, "MiB free after each: {free:?}");
    }
    let Some(gpus) = gpus() else { return };
    let options = options(LONG).with_backend(Backend::Nccl);
    let mut free = Vec::new();
    for _ in 0..5 {
        ranks(&gpus, options, |rank, world| {
            let mut comm = world.comm(rank.stream::<Compute>().unwrap()).unwrap();
            let mut x = comm.stream().alloc_zeroed::<f32>(1 << 20).unwrap();
            comm.all_reduce_in_place(Sum, &mut x).unwrap();
            comm.synchronize().unwrap();
        });
        free.push(gpus[0].free_memory().unwrap() >> 20);
    }
    assert!(free[1].abs_diff(free[4]) < 16, "MiB free after each: {free:?}");
}

/// Ranks get a GPU together only as processes, and only if the environment of all of them says so.
#[test]
fn a_gpu_is_shared_by_processes_that_ask_for_it() {
    let Some(_turn) = turn() else { return };
    // Threads that join as processes do.
    let options = options(LONG).with_backend(Backend::Nccl);
    for said in crate::support::run(Over::Tcp, &[Device::cuda(0).unwrap(); 2], options, |rank, world| {
        world.comm(rank.stream::<Reduce>().unwrap()).map(drop).unwrap_err().to_string()
    }) {
        assert!(said.starts_with("two ranks have the same GPU (ranks 0 and 1): give each rank its own GPU"), "{said}");
        assert!(said.contains("Only ranks that are processes can try one GPU together"), "{said}");
    }
    if one_gpu() {
        for said in processes("sums", &[("NCCL_MULTI_RANK_GPU_ENABLE", "")]) {
            assert!(said.starts_with("two ranks have the same GPU (ranks 0 and 1): give each rank its own"), "{said}");
            assert!(said.ends_with("set NCCL_MULTI_RANK_GPU_ENABLE=1 (rank 0 has not)"), "{said}");
        }
    }
}
