//! Every operation, for every element, over memory and over TCP, against the same in plain Rust.

use std::fmt::Debug;

use thalweg::simt::{bf16, f16};
use thalweg::{DeviceRank, stream_tags};
use thalweg_collective::{
    Backend, CollectiveElement, Comm, Error, Max, Mean, Min, Reduction, Result, Sum, World, ranks,
};

use crate::support::{LONG, Over, one_device, options, own_devices, run};

stream_tags!(Reduce);

/// What rank `rank` brings as element `i`: some fractions that do not sum exactly, and some
/// negative numbers.
trait Sample: CollectiveElement + PartialEq + Debug {
    fn sample(rank: usize, i: usize) -> Self;
    /// The reduction in the order of the ranks.
    fn reduced(op: &str, all: &[Self]) -> Self;
    /// Bits, to compare also what is no number.
    fn bits(self) -> u64;
}

macro_rules! float {
    ($($t:ty, $wide:ty, $to:expr, $from:expr, $bits:expr;)*) => {$(
        impl Sample for $t {
            fn sample(rank: usize, i: usize) -> Self {
                $from((((rank * 7919 + i * 104_729) % 2003) as $wide - 1000.0) / 7.0)
            }
            fn reduced(op: &str, all: &[Self]) -> Self {
                let mut values = all.iter().map(|&v| $to(v));
                let first: $wide = values.next().unwrap();
                let n = all.len() as $wide;
                $from(match op {
                    "sum" => values.fold(first, |a, b| a + b),
                    "mean" => values.fold(first, |a, b| a + b) / n,
                    "min" => values.fold(first, <$wide>::min),
                    _ => values.fold(first, <$wide>::max),
                })
            }
            fn bits(self) -> u64 {
                $bits(self)
            }
        }
    )*};
}
float! {
    f32, f32, |v| v, |v| v, |v: f32| v.to_bits().into();
    f64, f64, |v| v, |v| v, f64::to_bits;
    f16, f32, f16::to_f32, f16::from_f32, |v: f16| v.to_bits().into();
    bf16, f32, bf16::to_f32, bf16::from_f32, |v: bf16| v.to_bits().into();
}

macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Sample for $t {
            fn sample(rank: usize, i: usize) -> Self {
                ((rank + 1) * 7919 + i * 104_729) as u64 as $t
            }
            fn reduced(op: &str, all: &[Self]) -> Self {
                let values = all.iter().copied();
                match op {
                    "sum" => values.fold(0, <$t>::wrapping_add),
                    "min" => values.min().unwrap(),
                    _ => values.max().unwrap(),
                }
            }
            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}
integer!(i32 u32 i64 u64 u8);

fn bits<T: Sample>(v: &[T]) -> Vec<u64> {
    v.iter().map(|&v| v.bits()).collect()
}

fn samples<T: Sample>(rank: usize, n: usize) -> Vec<T> {
    (0..n).map(|i| T::sample(rank, i)).collect()
}

fn reduced<T: Sample>(op: &str, ranks: usize, n: usize) -> Vec<u64> {
    let all: Vec<Vec<T>> = (0..ranks).map(|rank| samples(rank, n)).collect();
    let column = |i: usize| -> Vec<T> { all.iter().map(|v| v[i]).collect() };
    (0..n).map(|i| T::reduced(op, &column(i)).bits()).collect()
}

fn reductions<T: Sample, R: Reduction<T> + Copy>(
    comm: &mut Comm<thalweg::At<'_, Reduce>>,
    op: R,
    name: &str,
    n: usize,
) -> Result<()> {
    let (s, rank, size) = (comm.stream(), comm.rank(), comm.size());
    let own = samples::<T>(rank, n);
    let expected = reduced::<T>(name, size, n);
    let from = s.upload_blocking(&own)?;
    let mut to = s.alloc(n)?;
    comm.all_reduce(op, &from, &mut to)?;
    assert_eq!(bits(&s.read_blocking(&to)?), expected, "all-reduce, {name}, {n} of {size}");
    assert_eq!(s.read_blocking(&from)?, own, "the source stays");
    let mut x = s.upload_blocking(&own)?;
    comm.all_reduce_in_place(op, &mut x)?;
    assert_eq!(bits(&s.read_blocking(&x)?), expected);

    let root = n % size;
    let mut x = s.upload_blocking(&own)?;
    comm.reduce(op, root, &mut x)?;
    let expected_here = if rank == root { expected.clone() } else { bits(&own) };
    assert_eq!(bits(&s.read_blocking(&x)?), expected_here, "reduce to {root}");

    let long = s.upload_blocking(&samples::<T>(rank, n * size))?;
    let mut block = s.alloc(n)?;
    comm.reduce_scatter(op, &long, &mut block)?;
    let expected = reduced::<T>(name, size, n * size);
    assert_eq!(bits(&s.read_blocking(&block)?), expected[rank * n..(rank + 1) * n]);
    Ok(())
}

fn moves<T: Sample>(comm: &mut Comm<thalweg::At<'_, Reduce>>, n: usize) -> Result<()> {
    let (s, rank, size) = (comm.stream(), comm.rank(), comm.size());
    let own = samples::<T>(rank, n);
    let root = (n + 1) % size;
    let mut x = s.upload_blocking(&own)?;
    comm.broadcast(root, &mut x)?;
    assert_eq!(bits(&s.read_blocking(&x)?), bits(&samples::<T>(root, n)), "broadcast from {root}");

    let all: Vec<u64> = (0..size).flat_map(|rank| bits(&samples::<T>(rank, n))).collect();
    let (x, mut to) = (s.upload_blocking(&own)?, s.alloc(n * size)?);
    comm.all_gather(&x, &mut to)?;
    assert_eq!(bits(&s.read_blocking(&to)?), all);
    let mut to = s.upload_blocking(&samples::<T>(rank + 100, n * size))?;
    s.copy(&x, to.slice_mut(rank * n..(rank + 1) * n).map_err(thalweg::Error::from)?)?;
    comm.all_gather_in_place(&mut to)?;
    assert_eq!(bits(&s.read_blocking(&to)?), all);

    // Around the circle, twice as many to the left as to the right.
    if size > 1 {
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        let (mut right, mut left) = (s.alloc::<T>(n)?, s.alloc::<T>(2 * n)?);
        let double = s.upload_blocking(&samples::<T>(rank, 2 * n))?;
        comm.group(|group| {
            group.send(next, &x)?;
            group.send(last, &double)?;
            group.recv(last, &mut right)?;
            group.recv(next, &mut left)
        })?;
        assert_eq!(bits(&s.read_blocking(&right)?), bits(&samples::<T>(last, n)));
        assert_eq!(bits(&s.read_blocking(&left)?), bits(&samples::<T>(next, 2 * n)));
        // One way, several in a row.
        for round in 0..3 {
            if rank == 0 {
                comm.send(1, &x)?;
            } else if rank == 1 {
                comm.recv(0, &mut right)?;
                assert_eq!(bits(&s.read_blocking(&right)?), bits(&samples::<T>(0, n)), "round {round}");
            }
        }
    }
    comm.barrier()
}

fn everything(rank: DeviceRank<'_>, world: World) -> Result<()> {
    if rank.size() > 1 {
        assert_eq!((world.rank(), world.size()), (rank.index(), rank.size()), "these are threads");
    }
    let mut comm = world.comm(rank.stream::<Reduce>()?)?;
    for n in [0, 1, 2, 3, 7, 1000] {
        let comm = &mut comm;
        macro_rules! all {
            ($($t:ty)*) => {$(
                reductions::<$t, _>(comm, Sum, "sum", n)?;
                reductions::<$t, _>(comm, Min, "min", n)?;
                reductions::<$t, _>(comm, Max, "max", n)?;
                moves::<$t>(comm, n)?;
            )*};
        }
        all!(f32 f64 f16 bf16 i32 u32 i64 u64 u8);
        reductions::<f32, _>(comm, Mean, "mean", n)?;
        reductions::<f64, _>(comm, Mean, "mean", n)?;
        reductions::<f16, _>(comm, Mean, "mean", n)?;
        reductions::<bf16, _>(comm, Mean, "mean", n)?;
    }
    comm.synchronize()
}

#[test]
fn over_memory() {
    for size in 1..=4 {
        for result in run(Over::Memory, &one_device(size), options(LONG), everything) {
            result.unwrap();
        }
    }
}

#[test]
fn over_tcp() {
    for size in [1, 2, 3] {
        for result in run(Over::Tcp, &one_device(size), options(LONG), everything) {
            result.unwrap();
        }
    }
}

#[test]
fn over_peer_copies() {
    for size in 1..=4 {
        for devices in [one_device(size), own_devices(size)] {
            for result in run(Over::Peer, &devices, options(LONG), everything) {
                result.unwrap();
            }
        }
    }
}

/// Sums in pieces of 64 bytes: up to 160 pieces, which take several rounds of the rooms. The bits
/// are those of the sum in the order of the ranks, so they are the same on all ranks and in every
/// run.
#[test]
fn sums_in_pieces_over_peer_copies() {
    for devices in [2, 3, 5, 8].map(own_devices).into_iter().chain(crate::support::gpus()) {
        let (size, options) = (devices.len(), options(LONG).with_piece(64));
        let results = run(Over::Peer, &devices, options, |rank, world| -> Result<()> {
            let mut comm = world.comm(rank.stream::<Reduce>()?)?;
            for n in [1, size - 1, size + 1, 64 * size, 2003] {
                reductions::<f32, _>(&mut comm, Sum, "sum", n)?;
                reductions::<f32, _>(&mut comm, Mean, "mean", n)?;
                reductions::<f16, _>(&mut comm, Mean, "mean", n)?;
                reductions::<bf16, _>(&mut comm, Mean, "mean", n)?;
                reductions::<bf16, _>(&mut comm, Max, "max", n)?;
            }
            reductions::<u8, _>(&mut comm, Sum, "sum", 5001)?;
            reductions::<f64, _>(&mut comm, Min, "min", 500)?;
            reductions::<i64, _>(&mut comm, Sum, "sum", 501)?;
            // Elements that do not begin at a multiple of 16 bytes.
            let (s, rank) = (comm.stream(), comm.rank());
            let mut x = s.upload_blocking(&samples::<bf16>(rank, 1001))?;
            comm.all_reduce_in_place(Mean, x.slice_mut(1..).map_err(thalweg::Error::from)?)?;
            let (all, expected) = (bits(&s.read_blocking(&x)?), reduced::<bf16>("mean", size, 1001));
            assert_eq!((all[0], &all[1..]), (samples::<bf16>(rank, 1)[0].bits(), &expected[1..]));
            Ok(())
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}

/// Hosts and streams of ranks come to operations at different times. The elements are written just
/// before an operation and just behind it, several operations are under way, and their elements are
/// freed meanwhile.
#[test]
fn ranks_that_come_at_different_times_over_peer_copies() {
    let pause = |number: usize| std::thread::sleep(std::time::Duration::from_micros(number as u64 * 7919 % 1500));
    let options = options(LONG).with_piece(256);
    let results = run(Over::Peer, &own_devices(3), options, |rank, world| -> Result<()> {
        let (s, index) = (rank.stream::<Reduce>()?, rank.index());
        let mut comm = world.comm(s)?;
        let mut sums = Vec::new();
        for round in 0..40 {
            if round % 3 == index {
                pause(round + 17 * index);
            }
            let mut x = s.alloc::<u32>(1500)?;
            s.launch_host(move || pause(5 * round + 3 * index))?;
            s.fill(&mut x, (round * (index + 1)) as u32)?;
            comm.all_reduce_in_place(Sum, &mut x)?;
            let mut sum = s.alloc(1500)?;
            s.copy(&x, &mut sum)?;
            s.fill(&mut x, u32::MAX)?;
            sums.push(sum);
        }
        for (round, sum) in sums.into_iter().enumerate() {
            assert_eq!(s.read_blocking(&sum)?, [6 * round as u32; 1500]);
        }
        Ok(())
    });
    results.into_iter().for_each(|result| result.unwrap());
}

/// Over NCCL, over peer copies, and through the host between GPUs. A sum of two numbers has one
/// order, so the bits are the same.
#[test]
fn on_gpus() {
    let Some(gpus) = crate::support::gpus() else { return };
    for (backend, over) in [
        (Backend::Nccl, Over::Memory),
        (Backend::Nccl, Over::Tcp),
        (Backend::Host, Over::Memory),
        (Backend::Host, Over::Tcp),
        (Backend::Peer, Over::Peer),
    ] {
        let options = options(LONG).with_backend(backend);
        let results = run(over, &gpus, options, |rank, world| {
            everything(rank, world).and_then(|()| Ok(rank.device().check()?))
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}

/// A process that [`on_gpus_in_processes`] started. Does nothing in the test run itself.
#[test]
#[cfg(unix)]
fn rank() {
    if std::env::var_os(crate::support::children::RANK_OF).is_some() {
        let world = World::from_env().unwrap();
        let device = world.device().unwrap();
        assert_eq!(device.kind(), thalweg::DeviceKind::Cuda);
        device.scope(|rank| everything(rank, world)).unwrap();
        println!("SAYS {:?}", device.check());
    }
}

/// The same in processes, which may share a GPU.
#[test]
#[cfg(unix)]
fn on_gpus_in_processes() {
    if crate::support::processes_have_gpus() {
        for backend in ["nccl", "host"] {
            let environment = [("THALWEG_COLLECTIVE_BACKEND", backend)];
            let mut ranks = crate::support::children::Ranks::start(
                concat!(module_path!(), "::rank"),
                "everything",
                2,
                &environment,
            );
            assert_eq!([ranks.said(0), ranks.said(1)], ["Ok(())", "Ok(())"], "{backend}");
        }
    }
}

#[test]
fn compared_before_each_call() {
    for over in [Over::Memory, Over::Tcp, Over::Peer] {
        let options = options(LONG).with_check_consistency(true);
        let results = run(over, &one_device(3), options, |rank, world| -> Result<()> {
            let mut comm = world.comm(rank.stream::<Reduce>()?)?;
            reductions::<f32, _>(&mut comm, Sum, "sum", 100)?;
            moves::<u8>(&mut comm, 10)
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}

#[test]
fn alone() {
    thalweg::Device::cpu().unwrap().scope(|rank| everything(rank, World::single())).unwrap();
}

/// Large messages in both directions at once fill every buffer of the system: no rank may wait for
/// another one to read first.
#[test]
fn large_messages_do_not_block_one_another() {
    const N: usize = 4 << 20;
    let results = run(Over::Tcp, &one_device(2), options(LONG), |rank, world| -> Result<(f32, f32)> {
        let s = rank.stream::<Reduce>()?;
        let mut comm = world.comm(s)?;
        let (mut x, mut y) = (s.alloc::<f32>(N)?, s.alloc::<f32>(N)?);
        s.fill(&mut x, 1.0 + rank.index() as f32)?;
        let peer = 1 - rank.index();
        comm.group(|group| {
            group.send(peer, &x)?;
            group.recv(peer, &mut y)
        })?;
        comm.all_reduce_in_place(Sum, &mut x)?;
        Ok((s.read_blocking(&x)?[N - 1], s.read_blocking(&y)?[N - 1]))
    });
    let results: Vec<_> = results.into_iter().map(|result| result.unwrap()).collect();
    assert_eq!(results, [(3.0, 2.0), (3.0, 1.0)]);
}

/// What is not a number stays visible in the least and the largest element.
#[test]
fn not_a_number_wins() {
    let results = ranks(&one_device(3), options(LONG), |rank, world| -> Result<Vec<f32>> {
        let s = rank.stream::<Reduce>()?;
        let mut comm = world.comm(s)?;
        let mut v = vec![rank.index() as f32; 6];
        v[rank.index()] = f32::NAN;
        v[rank.index() + 3] = f32::NAN;
        let mut x = s.upload_blocking(&v)?;
        let (least, largest) = x.split_at_mut(3).map_err(thalweg::Error::from)?;
        comm.all_reduce_in_place(Min, least)?;
        comm.all_reduce_in_place(Max, largest)?;
        Ok(s.read_blocking(&x)?)
    });
    for result in results {
        assert!(result.unwrap().iter().all(|v| v.is_nan()));
    }
}

/// A call enqueues and does not wait: the peers may call later. It has its turn on the stream.
#[test]
fn a_call_does_not_wait() {
    let (tell, told) = std::sync::mpsc::channel();
    let (tell, told) = (std::sync::Mutex::new(tell), std::sync::Mutex::new(told));
    let results = ranks(&one_device(2), options(LONG), |rank, world| -> Result<Vec<u32>> {
        let s = rank.stream::<Reduce>()?;
        let mut comm = world.comm(s)?;
        let mut x = s.alloc::<u32>(3)?;
        s.fill(&mut x, 1)?;
        if rank.index() == 1 {
            // Rank 0 has enqueued everything, also what comes after the operation.
            told.lock().unwrap().recv().unwrap();
        }
        comm.all_reduce_in_place(Sum, &mut x)?;
        comm.all_reduce_in_place(Sum, &mut x)?;
        let mut y = s.alloc::<u32>(3)?;
        s.copy(&x, &mut y)?;
        s.fill(&mut x, 9)?;
        if rank.index() == 0 {
            assert!(!s.is_complete()?);
            tell.lock().unwrap().send(()).unwrap();
        }
        Ok(s.read_blocking(&y)?)
    });
    for result in results {
        assert_eq!(result.unwrap(), [4; 3]);
    }
}

#[test]
fn wrong_lengths_roots_and_peers_are_refused() {
    let results = ranks(&one_device(2), options(LONG), |rank, world| -> Result<()> {
        let s = rank.stream::<Reduce>()?;
        let mut comm = world.comm(s)?;
        let (x, mut y, mut z) = (s.alloc_zeroed::<f32>(4)?, s.alloc_zeroed::<f32>(5)?, s.alloc_zeroed::<f32>(2)?);
        let length = |result: Result<()>| assert!(matches!(result, Err(Error::Length { .. })), "{result:?}");
        length(comm.all_reduce(Sum, &x, &mut y));
        length(comm.reduce_scatter(Sum, &x, &mut y));
        length(comm.all_gather(&x, &mut y));
        length(comm.all_gather_in_place(&mut y));
        let wrong = |result: Result<()>| assert!(matches!(result, Err(Error::Rank { .. })), "{result:?}");
        wrong(comm.broadcast(2, &mut y));
        wrong(comm.reduce(Sum, usize::MAX, &mut y));
        wrong(comm.send(rank.index(), &x));
        wrong(comm.recv(2, &mut y));
        // Nothing was enqueued by any of these, not even the part of a group before its error.
        wrong(comm.group(|group| {
            group.send(1 - rank.index(), &x)?;
            group.recv(9, &mut y)
        }));
        comm.reduce_scatter(Sum, &x, &mut z)?;
        comm.synchronize()
    });
    results.into_iter().for_each(|result| result.unwrap());
}
