//! Data-parallel training: the losses of one rank with all sequences, the same bits on every
//! rank and in every schedule, and what goes on after a failure.

use std::collections::BTreeMap;

use thalweg::{AnyStream, At, Device, DeviceRank, HostWait, stream_tags};
use thalweg_collective::{BucketSizes, Failure, World, WorldOptions, ranks};
use thalweg_train::overlap::DataParallel;
use thalweg_train::{
    AdamW, DeviceBatch, Error, Result, Schedule, Tensors, TokenBatch, TokenTransformer, TokenTransformerConfig,
};

use crate::support::{Sample, base_config};

stream_tags!(Compute, Reduce);

type Model<'r> = DataParallel<At<'r, Reduce>, At<'r, Compute>, f32>;

/// Buckets of a few gradients each, so that there are several.
fn sizes() -> BucketSizes {
    BucketSizes::default().with_first(600).with_others(4000)
}

fn optimizer(clip: Option<f64>) -> AdamW {
    AdamW::default()
        .with_lr(5e-3)
        .with_schedule(Schedule::Cosine { warmup_steps: 5, steps: 60, end: 0.1 })
        .with_max_grad_norm(clip)
}

fn own_devices(size: usize) -> Vec<Device> {
    (0..size).map(|_| Device::new_cpu().unwrap()).collect()
}

/// The samples of a step, one for each sequence of all ranks. Three steps have all that there are.
fn samples(step: usize, sequences: usize) -> Vec<Sample> {
    let one = |k| Sample::new(base_config().input_dim, base_config().num_classes, 1, (step % 3 * 100 + k) as u64);
    (0..sequences).map(one).collect()
}

/// Several samples as one.
fn join(samples: &[Sample]) -> Sample {
    let mut all = Sample { tokens: vec![], position: vec![], cu_seqlens: vec![0], labels: vec![] };
    for sample in samples {
        let before = *all.cu_seqlens.last().unwrap();
        all.tokens.extend(&sample.tokens);
        all.position.extend(&sample.position);
        all.cu_seqlens.extend(sample.cu_seqlens[1..].iter().map(|end| before + end));
        all.labels.extend(&sample.labels);
    }
    all
}

fn start<'r>(rank: DeviceRank<'r>, world: World, clip: Option<f64>, from: Option<&str>) -> Result<Model<'r>> {
    let compute = rank.stream::<Compute>()?;
    let comm = world.comm(rank.stream::<Reduce>()?)?;
    let mut model = match from {
        Some(path) => TokenTransformer::restore(&compute, path)?.0,
        // Only the weights of rank 0 count.
        None => TokenTransformer::new(&compute, base_config(), rank.index() as u64)?,
    };
    *model.optimizer_mut() = optimizer(clip);
    DataParallel::new(comm, model, sizes())
}

/// Runs steps on this rank's share of the samples, in batches of `micro` sequences. Returns the
/// losses.
fn run(model: &mut Model<'_>, steps: std::ops::Range<usize>, sequences: usize, micro: usize) -> Result<Vec<f32>> {
    let (rank, size) = (model.comm_mut().rank(), model.comm_mut().size());
    let mut losses = Vec::new();
    for step in steps {
        let own = sequences / size;
        let samples = samples(step, sequences);
        let samples: Vec<Sample> = samples[rank * own..(rank + 1) * own].chunks(micro).map(join).collect();
        let batches: Vec<TokenBatch<'_>> = samples.iter().map(Sample::batch).collect();
        losses.push(model.step(&batches, sequences)?.item()?);
    }
    Ok(losses)
}

fn bits(tensors: &Tensors) -> Vec<(String, Vec<u32>)> {
    crate::support::bits(tensors)
}

/// Runs `size` ranks, and expects the same losses and weights on each.
fn trained(devices: &[Device], clip: Option<f64>, steps: usize, micro: usize) -> (Vec<f32>, Tensors) {
    trained_on(devices, clip, steps, 8, micro)
}

fn trained_on(
    devices: &[Device],
    clip: Option<f64>,
    steps: usize,
    sequences: usize,
    micro: usize,
) -> (Vec<f32>, Tensors) {
    let ended = ranks(devices, WorldOptions::default(), |rank, world| -> Result<_> {
        let mut model = start(rank, world, clip, None)?;
        assert!(model.buckets().len() > 3, "{:?}", model.buckets());
        let losses = run(&mut model, 0..steps, sequences, micro)?;
        model.verify()?;
        Ok((losses, model.model().tensors()?))
    });
    let mut ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    let (losses, weights) = ended.remove(0);
    for (other, others) in ended {
        assert_eq!(other, losses);
        assert_eq!(bits(&others), bits(&weights));
    }
    (losses, weights)
}

/// The largest difference of two rows of losses, relative to the larger one.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    let apart = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) / f64::from(a.abs().max(b.abs()));
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(apart).fold(0.0, f64::max)
}

#[test]
fn ranks_learn_what_one_rank_learns_with_all_sequences() {
    for clip in [None, Some(0.5)] {
        let (alone, _) = trained(&own_devices(1), clip, 50, 8);
        assert!(alone[48] < 0.8 * alone[0], "{alone:?}");
        for size in [2, 4] {
            let (losses, _) = trained(&own_devices(size), clip, 50, 8);
            let apart = apart(&alone, &losses);
            println!("{size} ranks, clip {clip:?}: the losses differ by {apart:e} at most");
            assert!(apart < 1e-5, "{size} ranks: {apart:e}");
        }
        // Gradients of several batches are added before they are reduced.
        let (losses, _) = trained(&own_devices(2), clip, 50, 1);
        assert!(apart(&alone, &losses) < 1e-5);
    }
}

/// What limits the norm of a gradient is the whole gradient, also of one rank.
#[test]
fn one_rank_clips_as_a_model_without_ranks() {
    let clip = Some(0.1);
    let (losses, _) = trained(&own_devices(1), clip, 10, 8);
    AnyStream::new(Device::new_cpu().unwrap()).unwrap().enter(|train| {
        let mut model = TokenTransformer::<_, f32>::new(train, base_config(), 0).unwrap();
        *model.optimizer_mut() = optimizer(clip);
        let step = |step| model.step(&join(&samples(step, 8)).batch()).unwrap().item().unwrap();
        let alone: Vec<f32> = (0..10).map(step).collect();
        assert!(apart(&alone, &losses) < 1e-5, "{alone:?} and {losses:?}");
    });
}

/// Two GPUs over NCCL learn what one learns, if this machine has two.
#[test]
fn gpus_learn_what_one_learns() {
    let gpus: Vec<Device> =
        crate::support::devices().iter().copied().filter(|d| d.kind() == thalweg::DeviceKind::Cuda).collect();
    if gpus.len() < 2 {
        eprintln!("NOT COVERED: this machine has no two GPUs");
        return;
    }
    for clip in [None, Some(0.5)] {
        let ((alone, _), (losses, _)) = (trained(&gpus[..1], clip, 50, 8), trained(&gpus[..2], clip, 50, 2));
        let apart = apart(&alone, &losses);
        println!("2 GPUs, clip {clip:?}: the losses differ by {apart:e} at most");
        assert!(apart < 1e-5, "{apart:e}");
    }
}

/// Late work and other orders do not change a bit.
#[test]
fn every_schedule_gives_the_same_bits() {
    let expected = trained(&own_devices(2), None, 4, 2);
    let devices = [Device::seeded_cpu(0).unwrap(), Device::seeded_cpu(0).unwrap()];
    for seed in 0..6 {
        devices.iter().zip(0..).for_each(|(device, k)| device.reseed(100 * k + seed));
        let (losses, weights) = trained(&devices, None, 4, 2);
        assert_eq!((losses, bits(&weights)), (expected.0.clone(), bits(&expected.1)), "seed {seed}");
    }
}

/// A gradient is reduced once, however many batches a step has.
#[test]
fn accumulation_reduces_once() {
    let operations = |micro| {
        let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<_> {
            let mut model = start(rank, world, None, None)?;
            let count = |model: &mut Model<'_>| {
                let text = format!("{:?}", model.comm_mut());
                let text = text.split("operations: ").nth(1).unwrap().split(',').next().unwrap().to_owned();
                text.parse::<usize>().unwrap()
            };
            let before = count(&mut model);
            run(&mut model, 0..1, 8, micro)?;
            Ok((count(&mut model) - before, model.buckets().len()))
        });
        ended.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    for (operations, buckets) in [operations(4), operations(1)].concat() {
        assert_eq!(operations, buckets);
    }
}

/// A new folder for files.
fn folder(test: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("thalweg-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A rank leaves in the middle; the others get an error that names it, and the ranks that are
/// started next go on from the checkpoint as if nothing had happened.
#[test]
fn training_goes_on_from_the_checkpoint() {
    let (folder, undisturbed) = (folder("data-parallel"), trained(&own_devices(2), Some(0.5), 8, 2));
    let path = folder.join("checkpoint.safetensors");
    let path = path.to_str().unwrap();
    let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<Vec<f32>> {
        let mut model = start(rank, world, Some(0.5), None)?;
        let losses = run(&mut model, 0..4, 8, 2)?;
        model.checkpoint(path, &BTreeMap::new())?;
        if rank.index() == 1 {
            return Ok(losses);
        }
        run(&mut model, 4..6, 8, 2)
    });
    // A read of the device or a call of the communicator comes first.
    match &ended[0] {
        Err(Error::Ranks(thalweg_collective::Error::Failed(Failure::LeftEarly { rank: 1, .. }))) => {}
        Err(Error::Device(thalweg::Error::Poisoned { cause, .. })) => {
            assert!(cause.starts_with("rank 1 has dropped its communicator before operation"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    let before = ended.into_iter().nth(1).unwrap().unwrap();
    let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<_> {
        let mut model = start(rank, world, Some(0.5), Some(path))?;
        assert_eq!(model.model().steps(), 4);
        Ok((run(&mut model, 4..8, 8, 2)?, model.model().tensors()?))
    });
    for ended in ended {
        let (after, weights) = ended.unwrap();
        assert_eq!([&before[..], &after].concat(), undisturbed.0);
        assert_eq!(bits(&weights), bits(&undisturbed.1));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Rank 0 has a checkpoint and the others are new: they get moments and steps with the weights.
#[test]
fn new_ranks_get_all_that_a_restored_one_has() {
    let (folder, undisturbed) = (folder("new-ranks"), trained(&own_devices(2), Some(0.5), 8, 2));
    let path = folder.join("of-rank-0.safetensors");
    let path = path.to_str().unwrap();
    let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<()> {
        let mut model = start(rank, world, Some(0.5), None)?;
        run(&mut model, 0..4, 8, 2)?;
        model.checkpoint(path, &BTreeMap::new())
    });
    ended.into_iter().for_each(|ended| ended.unwrap());
    let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<_> {
        let mut model = start(rank, world, Some(0.5), (rank.index() == 0).then_some(path))?;
        assert_eq!(model.model().steps(), 4);
        Ok((run(&mut model, 4..8, 8, 2)?, model.model().tensors()?))
    });
    for ended in ended {
        let (after, weights) = ended.unwrap();
        assert_eq!(after, undisturbed.0[4..]);
        assert_eq!(bits(&weights), bits(&undisturbed.1));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The host enqueues a step and goes on, with one limit of the norm or none.
#[test]
fn steps_of_ranks_wait_for_nothing() {
    for clip in [None, Some(0.5)] {
        let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<_> {
            let mut model = start(rank, world, clip, None)?;
            run(&mut model, 0..4, 8, 2)?;
            rank.device().sync_stats().enable();
            let own = join(&samples(4, 8)[4 * rank.index()..][..4]);
            let losses = (0..3).map(|_| model.step(&[own.batch()], 8)).collect::<Result<Vec<_>>>()?;
            rank.device().sync_stats().disable();
            for loss in losses {
                loss.item()?;
            }
            let waits = rank.device().sync_stats().report().waits().to_vec();
            let waits = waits.into_iter().filter(|wait| wait.kind == HostWait::Synchronize);
            Ok(waits.map(|wait| format!("{} waits at {}", wait.count, wait.location)).collect::<Vec<_>>())
        });
        for ended in ended {
            assert_eq!(ended.unwrap(), [""; 0], "clip {clip:?}");
        }
    }
}

#[test]
fn ranks_that_drift_are_named() {
    let ended = ranks(&own_devices(3), WorldOptions::default(), |rank, world| -> Result<()> {
        let mut model = start(rank, world, None, None)?;
        run(&mut model, 0..1, 6, 2)?;
        model.verify()?;
        if rank.index() == 1 {
            let alone = join(&samples(7, 2));
            model.model_mut().step(&alone.batch())?;
        }
        // A checkpoint verifies, too.
        let path = std::env::temp_dir().join(format!("thalweg-drift-{}", std::process::id()));
        let written = model.checkpoint(&path, &BTreeMap::new());
        assert_eq!(written.unwrap_err().to_string(), "rank 1 differs from the others in the weights");
        assert!(!path.exists());
        model.verify()
    });
    for ended in ended {
        assert_eq!(ended.unwrap_err().to_string(), "rank 1 differs from the others in the weights");
    }
}

/// Ranks that have unequal parts of a batch, or none at all, and batches on the device, learn the
/// same.
#[test]
fn parts_may_be_unequal_or_empty() {
    // The first sequences of each rank, of 5 in all.
    let parts = |from: [usize; 3], on_device: bool| {
        let ended = ranks(&own_devices(3), WorldOptions::default(), |rank, world| -> Result<_> {
            let mut model = start(rank, world, Some(0.5), None)?;
            let s = model.model().stream();
            let mut losses = Vec::new();
            for step in 0..50 {
                let samples = samples(step, 5);
                let end = from.get(rank.index() + 1).copied().unwrap_or(5);
                let own = &samples[from[rank.index()]..end];
                let loss = match (own, on_device) {
                    ([], _) => model.step(&[] as &[TokenBatch<'_>], 5)?,
                    (_, false) => model.step(&[join(own).batch()], 5)?,
                    (_, true) => {
                        let Sample { tokens, position, cu_seqlens, labels } = join(own);
                        let (tokens, position) = (s.upload_blocking(&tokens)?, s.upload_blocking(&position)?);
                        let (cu_seqlens, labels) = (s.upload_blocking(&cu_seqlens)?, s.upload_blocking(&labels)?);
                        let (tokens, position, cu_seqlens, labels) = (&*tokens, &*position, &*cu_seqlens, &*labels);
                        let batch = DeviceBatch { tokens, position, cu_seqlens, labels, padded: false };
                        model.step_on(&batch, 5)?
                    }
                };
                losses.push(loss.item()?);
            }
            model.verify()?;
            Ok(losses)
        });
        let mut ended: Vec<Vec<f32>> = ended.into_iter().map(Result::unwrap).collect();
        assert!(ended.iter().all(|losses| *losses == ended[0]));
        ended.swap_remove(0)
    };
    let (alone, _) = trained_on(&own_devices(1), Some(0.5), 50, 5, 5);
    for from in [[0, 1, 3], [0, 0, 2], [0, 5, 5]] {
        let host = parts(from, false);
        let apart = apart(&alone, &host);
        assert!(apart < 1e-5, "{from:?}: {apart:e}");
        assert_eq!(host, parts(from, true), "{from:?}: the same bits from the device");
    }
}

/// A number of sequences that is not that of all ranks would scale the gradients wrongly.
#[test]
fn a_wrong_number_of_sequences_is_found() {
    let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<f32> {
        let mut model = start(rank, world, None, None)?;
        let own = join(&samples(0, 2));
        // Rank 0 forgets the other one's.
        model.step(&[own.batch()], if rank.index() == 0 { 2 } else { 4 })?.item()
    });
    assert_eq!(
        ended[0].as_ref().unwrap_err().to_string(),
        "the batch: all ranks have 4 losses together, and this one says 2"
    );
    assert!(ended[1].is_ok(), "{ended:?}");
}

/// Models of as many weights and other shapes would mix up their gradients.
#[test]
fn models_of_other_shapes_are_refused() {
    let with = |other: TokenTransformerConfig| {
        let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<()> {
            let compute = rank.stream::<Compute>()?;
            let config = if rank.index() == 1 { other } else { base_config() };
            let model = TokenTransformer::<_, f32>::new(&compute, config, 1)?;
            DataParallel::new(world.comm(rank.stream::<Reduce>()?)?, model, sizes()).map(drop)
        });
        for ended in ended {
            let error = ended.unwrap_err().to_string();
            assert_eq!(error, "ranks 0 and 1 differ from the others in the shape of the model");
        }
    };
    // The weights have the same number, and even the same shapes.
    with(base_config().with_num_heads(base_config().num_heads / 2));
    with(base_config().with_embed_dim(2 * base_config().embed_dim));
}

/// A program can put another model into the place of this one.
#[test]
fn another_model_is_refused() {
    let ended = ranks(&own_devices(2), WorldOptions::default(), |rank, world| -> Result<()> {
        let mut model = start(rank, world, None, None)?;
        let config = base_config().with_depth(base_config().depth + 1);
        *model.model_mut() = TokenTransformer::new(&rank.stream::<Compute>()?, config, 1)?;
        model.step(&[join(&samples(0, 1)).batch()], 2).map(drop)
    });
    assert!(
        ended.iter().any(|ended| {
            ended.as_ref().unwrap_err().to_string() == "the configuration: the model is another one than at the start"
        }),
        "{ended:?}"
    );
}
