//! Gradients in buckets: their means, what is reduced beside what, and what is refused.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg::{Device, DeviceRank, stream_tags};
use thalweg_collective::overlap::data_parallel;
use thalweg_collective::{BucketSizes, Error, Gradients, Mean, Result, World, ranks};

use crate::support::{LONG, Over, options, own_devices, run};

stream_tags!(Compute, Reduce);

/// A gate that a host function waits for, and that a test opens.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
    /// Whether it was open within the time.
    fn wait(&self) -> bool {
        let open = self.0.0.lock().unwrap();
        *self.0.1.wait_timeout_while(open, Duration::from_secs(20), |open| !*open).unwrap().0
    }
}

/// A sum of lengths that is no `usize` is an error, as a length is that no allocation can have.
#[test]
fn gradients_that_no_memory_can_hold_are_refused() {
    let s = Device::new_cpu().unwrap().stream::<Compute>().unwrap();
    for lens in [&[usize::MAX, 3][..], &[3, usize::MAX], &[usize::MAX], &[1 << 62, 1 << 62, 1 << 62, 1 << 62]] {
        let error = Gradients::<_, f32>::new(&s, lens, BucketSizes::default()).unwrap_err();
        assert!(matches!(error, Error::Device(thalweg::Error::TooLarge { size: 4, .. })), "{lens:?}: {error}");
        assert!(Gradients::<_, u8>::new(&s, lens, BucketSizes::default()).is_err(), "{lens:?}");
    }
}

const LENS: [usize; 6] = [5, 70, 3, 0, 40, 8];

/// What rank `rank` has as element `i` of the flat gradient in a step.
fn value(rank: usize, step: usize, i: usize) -> f32 {
    ((rank * 31 + step * 7 + i * 13) % 101) as f32 / 3.0
}

fn mean(ranks: usize, step: usize, i: usize) -> f32 {
    (1..ranks).fold(value(0, step, i), |sum, rank| sum + value(rank, step, i)) / ranks as f32
}

const SIZES: [[usize; 2]; 3] = [[0, 0], [1 << 10, 1 << 20], [40, 300]];

/// Each rank hands its gradients in in another order, and the buckets have all sizes from one
/// gradient to all of them.
fn means(rank: DeviceRank<'_>, world: World, [first, others]: [usize; 2]) -> Result<()> {
    let (index, size) = (world.rank(), world.size());
    let compute = rank.stream::<Compute>()?;
    let mut comm = world.comm(rank.stream::<Reduce>()?)?;
    let mut gradients = Gradients::new(&compute, &LENS, BucketSizes::default().with_first(first).with_others(others))?;
    let n = gradients.len();
    for step in 0..4 {
        // What both closures get: the end of the bucket that comes next.
        let mut next = 0;
        gradients = data_parallel(
            &mut comm,
            Mean,
            gradients,
            &mut next,
            |next, pass, grads| {
                *next = n;
                let mut grads: Vec<_> = grads.into_iter().map(Some).collect();
                for k in 0..LENS.len() {
                    let k = if index == 0 { k } else { LENS.len() - 1 - k };
                    let start: usize = LENS[..k].iter().sum();
                    let mut grad = grads[k].take().expect("each once");
                    let values: Vec<f32> = (start..start + LENS[k]).map(|i| value(index, step, i)).collect();
                    compute.write_blocking(&values, &mut grad)?;
                    pass.mark_ready(grad)?;
                }
                Ok::<_, Error>(())
            },
            |next, elements, means| {
                assert_eq!((elements.end, means.len()), (*next, elements.len()), "from the end on");
                *next = elements.start;
                let expected: Vec<f32> = elements.map(|i| mean(size, step, i)).collect();
                assert_eq!(compute.read_blocking(means)?, expected);
                Ok(())
            },
        )?;
        assert_eq!(next, 0);
        assert!(compute.read_blocking(&gradients)?.iter().enumerate().all(|(i, v)| *v == mean(size, step, i)));
    }
    comm.synchronize()
}

#[test]
fn every_rank_gets_the_means_in_any_order() {
    for over in [Over::Memory, Over::Tcp, Over::Peer] {
        for sizes in SIZES {
            let results = run(over, &own_devices(3), options(LONG), |rank, world| means(rank, world, sizes));
            results.into_iter().for_each(|result| result.unwrap());
        }
    }
}

/// Buckets in small pieces, several of them under way, on more ranks.
#[test]
fn every_rank_gets_the_means_in_pieces_over_peer_copies() {
    for devices in [2, 5, 8].map(own_devices).into_iter().chain(crate::support::gpus()) {
        for sizes in SIZES {
            let options = options(LONG).with_piece(64);
            let results = run(Over::Peer, &devices, options, |rank, world| means(rank, world, sizes));
            results.into_iter().for_each(|result| result.unwrap());
        }
    }
}

/// Over peer copies a bucket comes from the pass, and waits for nothing else: not for what the
/// program enqueues on the communicator's stream. That stream waits for the bucket.
#[test]
fn buckets_over_peer_copies_come_straight_from_the_pass() {
    let results = run(Over::Peer, &own_devices(2), options(LONG), |rank, world| -> Result<()> {
        let (compute, reduce) = (rank.stream::<Compute>()?, rank.stream::<Reduce>()?);
        let mut comm = world.comm(reduce)?;
        let gradients =
            Gradients::<_, f32>::new(&compute, &[10, 10], BucketSizes::default().with_first(0).with_others(0))?;
        let (first, second, behind) = (Gate::default(), Gate::default(), Gate::default());
        let (mut pass, mut grads) = comm.backward(Mean, gradients)?;
        let (gate, opened) = (second.clone(), behind.clone());
        reduce.launch_host(move || assert!(gate.wait(), "a bucket waits for the communicator's stream"))?;
        let gate = first.clone();
        // The last work on the first bucket, and the last work of the pass before it goes on.
        compute.launch_host(move || assert!(gate.wait(), "the host waits for the pass"))?;
        pass.mark_ready(grads.pop().unwrap())?;
        pass.mark_ready(grads.pop().unwrap())?;
        reduce.launch_host(move || opened.open())?;
        first.open();
        let gradients = pass.finish(|_, means| compute.zero(means).map_err(Error::from))?;
        let gate = second.clone();
        compute.launch_host(move || gate.open())?; // behind both buckets
        compute.synchronize()?;
        assert!(behind.wait());
        drop(gradients);
        comm.synchronize()
    });
    results.into_iter().for_each(|result| result.unwrap());
}

/// A bucket waits for its pass, also on a rank that is later than the others, and the
/// communicator's stream waits for the bucket.
#[test]
fn buckets_over_peer_copies_wait_for_the_pass() {
    for late in 0..2 {
        let results = run(Over::Peer, &own_devices(2), options(LONG), |rank, world| -> Result<()> {
            let (compute, reduce) = (rank.stream::<Compute>()?, rank.stream::<Reduce>()?);
            let mut comm = world.comm(reduce)?;
            let mut gradients = Gradients::<_, f32>::new(&compute, &[100], BucketSizes::default())?;
            for step in 1..4 {
                let gate = Gate::default();
                let (mut pass, mut grads) = comm.backward(Mean, gradients)?;
                if rank.index() == late {
                    let gate = gate.clone();
                    compute.launch_host(move || assert!(gate.wait(), "the host waits for the pass"))?;
                }
                let mut grad = grads.pop().unwrap();
                compute.fill(&mut grad, (step * (1 + 2 * rank.index())) as f32)?;
                pass.mark_ready(grad)?;
                let (tell, told) = std::sync::mpsc::channel();
                reduce.launch_host(move || tell.send(()).unwrap())?; // behind the bucket
                if rank.index() == late {
                    told.recv_timeout(Duration::from_millis(30)).expect_err("the bucket is not there yet");
                    gate.open();
                }
                gradients = pass.finish(|_, _| Ok::<_, Error>(()))?;
                assert_eq!(compute.read_blocking(&gradients)?, [2.0 * step as f32; 100]);
                told.recv_timeout(Duration::from_secs(20)).unwrap();
            }
            comm.synchronize()
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}

/// A process that [`every_process_gets_the_means_over_nccl`] started. Does nothing in the test run
/// itself.
#[test]
#[cfg(unix)]
fn rank() {
    if std::env::var_os(crate::support::children::RANK_OF).is_some() {
        for sizes in SIZES {
            let world = World::from_env().unwrap();
            world.device().unwrap().scope(|rank| means(rank, world, sizes)).unwrap();
        }
        println!("SAYS the means");
    }
}

/// The sum of two numbers has one order, and half of it is exact. With graphs, the second pass
/// captures the reductions.
#[test]
#[cfg(unix)]
fn every_process_gets_the_means_over_nccl() {
    if crate::support::processes_have_gpus() {
        for graphs in ["0", "1"] {
            let environment = [("THALWEG_COLLECTIVE_BACKEND", "nccl"), ("THALWEG_COLLECTIVE_GRAPHS", graphs)];
            let mut ranks =
                crate::support::children::Ranks::start(concat!(module_path!(), "::rank"), "means", 2, &environment);
            assert_eq!([ranks.said(0), ranks.said(1)], ["the means", "the means"], "graphs: {graphs}");
        }
    }
}

/// The first bucket is reduced while the pass goes on: the last work of the pass waits for it. And
/// the update of the first bucket runs before the second is reduced, which waits for that update.
#[test]
fn reduction_runs_beside_the_pass_and_updates_beside_reduction() {
    let results = ranks(&own_devices(2), options(LONG), |rank, world| -> Result<()> {
        let (compute, reduce) = (rank.stream::<Compute>()?, rank.stream::<Reduce>()?);
        let mut comm = world.comm(reduce)?;
        let gradients =
            Gradients::<_, f32>::new(&compute, &[10, 10], BucketSizes::default().with_first(0).with_others(0))?;
        let (reduced, updated) = (Gate::default(), Gate::default());
        let (mut pass, mut grads) = comm.backward(Mean, gradients)?;
        let (last, first) = (grads.pop().unwrap(), grads.pop().unwrap());
        pass.mark_ready(last)?; // the bucket of the end of the buffer
        let gate = reduced.clone();
        reduce.launch_host(move || gate.open())?; // behind its reduction
        let (gate, held) = (reduced.clone(), updated.clone());
        compute.launch_host(move || assert!(gate.wait(), "the pass waits for its end before the reduction begins"))?;
        // In front of the second reduction, on its stream.
        reduce.launch_host(move || assert!(held.wait(), "the update waits for all buckets"))?;
        pass.mark_ready(first)?;
        let mut count = 0;
        let gradients = pass.finish(|_, _| {
            count += 1;
            if count == 1 {
                let gate = updated.clone();
                compute.launch_host(move || gate.open())?;
            }
            Ok::<_, Error>(())
        })?;
        assert_eq!((count, gradients.len()), (2, 20));
        compute.synchronize()?;
        comm.synchronize()
    });
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn what_is_missing_or_of_another_pass_is_refused() {
    let device = Device::cpu().unwrap();
    device.scope(|rank| {
        let compute = rank.stream::<Compute>().unwrap();
        let mut comm = World::single().comm(rank.stream::<Reduce>().unwrap()).unwrap();
        let gradients = || Gradients::<_, f32>::new(&compute, &[2, 3], BucketSizes::default()).unwrap();
        let (mut pass, mut grads) = comm.backward(Mean, gradients()).unwrap();
        pass.mark_ready(grads.remove(1)).unwrap();
        let missing = pass.finish(|_, _| Ok::<_, Error>(())).map(drop).unwrap_err();
        assert!(matches!(missing, Error::GradientMissing { gradient: 0 }), "{missing}");
        let (mut pass, _new) = comm.backward(Mean, gradients()).unwrap();
        let other = pass.mark_ready(grads.remove(0)).unwrap_err();
        assert!(matches!(other, Error::OtherPass { gradient: 0 }), "{other}");
    });
}

#[test]
fn numbers_that_drift_are_named() {
    let results = ranks(&own_devices(3), options(LONG), |rank, world| -> Result<String> {
        let mut comm = world.comm(rank.stream::<Reduce>()?)?;
        comm.verify_equal("the seed", 7)?;
        let error = comm.verify_equal("the checksum", (rank.index() / 2) as u64).unwrap_err();
        let alone = comm.verify_equal("the rank", rank.index() as u64).unwrap_err();
        comm.synchronize()?;
        Ok(format!("{error}; {alone}"))
    });
    for result in results {
        let expected =
            "rank 2 differs from the others in the checksum; ranks 0, 1 and 2 differ from the others in the rank";
        assert_eq!(result.unwrap(), expected);
    }
}
