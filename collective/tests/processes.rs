//! Ranks that are processes: this test binary starts itself again, once for each rank. Then ranks
//! can be killed and stopped.

#![cfg(unix)]

use std::time::{Duration, Instant};

use crate::support::LONG;
use crate::support::children::{RANK_OF, Ranks};

use thalweg::{Device, stream_tags};
use thalweg_collective::{Comm, Error, Result, Store, StoreLimits, StoreServer, Sum, World};

stream_tags!(Reduce);

/// A process that [`Ranks::start`] started. Does nothing in the test run itself.
#[test]
fn rank() {
    let Ok(scenario) = std::env::var(RANK_OF) else { return };
    let world = World::from_env().unwrap();
    let store = world.store().reconnect().unwrap();
    let reduce = Device::new_cpu().unwrap().stream::<Reduce>().unwrap();
    let mut comm = world.comm(reduce).unwrap();
    let outcome = match &scenario[..] {
        "sums" => sums(&mut comm).map_err(|error| comm.failure_or(error)),
        "forever" => forever(&mut comm, &store).map_err(|error| comm.failure_or(error)),
        "forks" => forks(comm, &store),
        other => panic!("{other}"),
    };
    match outcome {
        Ok(said) => println!("SAYS {said}"),
        Err(Error::Failed(failure)) => println!("SAYS failed: {failure}"),
        Err(error) => println!("SAYS {error}"),
    }
}

/// Sums whose bits depend on the order; says a hash of the bits.
fn sums<S: thalweg::Tag>(comm: &mut Comm<S>) -> Result<String> {
    let (s, rank) = (comm.stream(), comm.rank());
    let mut hash = 0u64;
    for n in [1, 10, 1000, 100_003] {
        let own: Vec<f32> = (0..n).map(|i| 1.0 / (1 + (i * 7 + rank * 13) % 1009) as f32).collect();
        let mut x = s.upload_blocking(&own)?;
        for _ in 0..5 {
            comm.all_reduce_in_place(Sum, &mut x)?;
        }
        let sums = s.read_blocking(&x)?;
        hash = sums.iter().fold(hash, |hash, v| hash.rotate_left(5).wrapping_add(v.to_bits().into()));
    }
    Ok(format!("{hash:016x}"))
}

/// Forks, and drops in the child what the rank has. The rank is the parent: it goes on as if
/// nothing had happened, and so does the store.
fn forks(mut comm: Comm<Reduce>, store: &Store) -> Result<String> {
    let server = StoreServer::bind("127.0.0.1:0", b"s", StoreLimits::default()).unwrap();
    let own = Store::connect(server.address(), b"s", LONG).unwrap();
    sums(&mut comm)?;
    let (rank, size) = (comm.rank(), comm.size());
    // SAFETY: The harness of this process runs one test, and the ranks are at rest. The child drops
    // values and leaves; it needs no lock that another thread of the parent may hold.
    let Some(child) = (unsafe { testkit::fork::fork() }) else {
        testkit::fork::leave(|| {
            drop((comm, server));
            true
        })
    };
    child.ends_well("the child of a rank");
    store.barrier("all have forked", rank, size, LONG)?;
    own.set("a", b"b")?;
    assert!(Store::connect(server.address(), b"s", LONG).unwrap().get("a")?.is_some());
    sums(&mut comm)
}

/// Sums until something goes wrong, and counts them in the store.
fn forever(comm: &mut Comm<Reduce>, store: &Store) -> Result<String> {
    let mut x = comm.stream().alloc_zeroed::<f32>(1 << 20)?;
    loop {
        comm.all_reduce_in_place(Sum, &mut x)?;
        comm.synchronize()?;
        store.add("sums", 1)?;
    }
}

/// Waits until the ranks are in the middle of their work.
fn under_way(ranks: &Ranks) {
    let started = Instant::now();
    while ranks.store.add("sums", 0).unwrap() < 12 {
        assert!(started.elapsed() < LONG, "the ranks do nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every rank and every run has the same bits, and so have ranks that are threads.
#[test]
fn the_same_bits_everywhere() {
    let mut first = Ranks::start(concat!(module_path!(), "::rank"), "sums", 3, &[]);
    let mut second = Ranks::start(concat!(module_path!(), "::rank"), "sums", 3, &[("THALWEG_COLLECTIVE_COMPARE", "1")]);
    let said: Vec<String> = (0..3).flat_map(|rank| [first.said(rank), second.said(rank)]).collect();
    let devices = [Device::cpu().unwrap(); 3];
    let threads = thalweg_collective::ranks(&devices, thalweg_collective::WorldOptions::default(), |_, world| {
        stream_tags!(A, B, C);
        // A communicator of a plain tag, as the processes have.
        fn on<S: thalweg::Tag>(world: World) -> Comm<S> {
            world.comm(Device::cpu().unwrap().stream::<S>().unwrap()).unwrap()
        }
        match world.rank() {
            0 => sums(&mut on::<A>(world)).unwrap(),
            1 => sums(&mut on::<B>(world)).unwrap(),
            _ => sums(&mut on::<C>(world)).unwrap(),
        }
    });
    assert_eq!(said[0].len(), 16, "{said:?}");
    assert!(said.iter().chain(&threads).all(|bits| *bits == said[0]), "{said:?} {threads:?}");
}

/// What a forked child drops is that of its parent.
#[test]
fn a_forked_child_leaves_the_ranks_alone() {
    let mut ranks = Ranks::start(concat!(module_path!(), "::rank"), "forks", 3, &[]);
    let said = [0, 1, 2].map(|rank| ranks.said(rank));
    assert_eq!(said[0].len(), 16, "{said:?}");
    assert!(said.iter().all(|bits| *bits == said[0]), "{said:?}");
}

#[test]
fn a_killed_rank_is_named() {
    let mut ranks = Ranks::start(concat!(module_path!(), "::rank"), "forever", 3, &[]);
    under_way(&ranks);
    let killed = Instant::now();
    ranks.signal(1, "-KILL");
    let said = [ranks.said(0), ranks.said(2)];
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert_eq!(said[0], said[1]);
    assert!(said[0].starts_with("failed: rank 1 is gone: operation "), "{said:?}");
    assert!(said[0].ends_with(", all-reduce (sum) of 1048576 x f32, needs it"), "{said:?}");
}

#[test]
fn a_stopped_rank_is_named_and_learns_it() {
    let mut ranks =
        Ranks::start(concat!(module_path!(), "::rank"), "forever", 3, &[("THALWEG_COLLECTIVE_TIMEOUT", "0.7")]);
    under_way(&ranks);
    ranks.signal(2, "-STOP");
    let said = [ranks.said(0), ranks.said(1)];
    assert_eq!(said[0], said[1]);
    assert!(said[0].starts_with("failed: rank 2 did not come to operation "), "{said:?}");
    assert!(said[0].ends_with(", all-reduce (sum) of 1048576 x f32, within 700ms"), "{said:?}");
    ranks.signal(2, "-CONT");
    assert_eq!(ranks.said(2), said[0]);
}
