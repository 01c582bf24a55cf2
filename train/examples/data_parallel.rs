//! Trains one model on several ranks: gradients are reduced in buckets while the backward pass goes
//! on.
//!
//! ```text
//! compute | forward | backward: head | block 2 | block 1 | embed |      | update bucket 0 | update 1 |
//! reduce                             | bucket 0 |  bucket 1  | bucket 2 |
//! ```
//!
//! Alone:           `cargo run --release -p thalweg-train --example data_parallel`
//! Two processes:   `thalweg launch -n 2 -- target/release/examples/data_parallel`
//! Two GPUs:        `torchrun --nproc-per-node 2 --no-python target/release/examples/data_parallel`
//!
//! It measures a step without other ranks, with one reduction behind the backward pass, and with
//! buckets. What a step takes longer than the one without other ranks is exposed communication.

mod support;

use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{DeviceKind, LiveBrand, Stream, stream_tags};
use thalweg_collective::{BucketSizes, Comm, Sum, World};
use thalweg_train::overlap::DataParallel;
use thalweg_train::{Result, TokenBatch, TokenTransformer, TokenTransformerConfig};

stream_tags!(Compute, Reduce, Alone);

type Model<C> = DataParallel<C, Compute, bf16>;

fn main() -> Result<()> {
    support::Arguments::parse("Reduces gradients in buckets while the backward pass goes on.", &[]);
    let world = World::from_env()?;
    let (rank, size, device) = (world.rank(), world.size(), world.device()?);
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let ([sequences, tokens, width, heads, depth], steps) =
        support::sized(device, ([32, 128, 1024, 16, 12], 9), ([2, 16, 16, 2, 2], 3));
    let config = TokenTransformerConfig::default().with_embed_dim(width).with_num_heads(heads).with_depth(depth);

    // This rank's part of each batch.
    let rows = sequences * tokens;
    let cu_seqlens: Vec<i32> = (0..=sequences).map(|i| (i * tokens) as i32).collect();
    let labels: Vec<i32> = (0..sequences).map(|i| ((i + rank) % config.num_classes) as i32).collect();
    let (data, position) = (support::numbers(rows * config.input_dim, rank as u64), support::numbers(2 * rows, 99));
    let batch = TokenBatch { tokens: &data, position: &position, cu_seqlens: &cu_seqlens, labels: &labels };

    // A step without other ranks.
    let model = TokenTransformer::new(&compute, config, 1)?;
    let bytes = 4 * model.layout().len();
    let single = World::single().comm(device.stream::<Alone>()?)?;
    let mut alone = DataParallel::new(single, model, BucketSizes::default())?;
    let mut comm = world.comm(reduce)?;
    let alone_ms = median(steps, || step(&mut alone, &batch, sequences, &compute))?;
    drop(alone);

    // The reduction alone.
    let mut flat = reduce.alloc_zeroed::<f32>(bytes / 4)?;
    let reduce_ms = median(steps, || {
        comm.barrier()?;
        comm.synchronize()?;
        let start = Instant::now();
        comm.all_reduce_in_place(Sum, &mut flat)?;
        comm.synchronize()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    })?;
    drop(flat);

    // One bucket, so that nothing overlaps; then several.
    let model = TokenTransformer::new(&compute, config, 1)?;
    let one = BucketSizes::default().with_first(usize::MAX).with_others(usize::MAX);
    let mut after = DataParallel::new(comm, model, one)?;
    let after_ms = median(steps, || together(&mut after, &batch, size * sequences, &compute))?;
    let (comm, model) = after.into_parts();
    let mut rows = Vec::new();
    let mut parts = Some((comm, model));
    for mib in [4, 25, 100] {
        let sizes = BucketSizes::default().with_first(1 << 20).with_others(mib << 20);
        let Some((comm, model)) = parts.take() else { unreachable!("it is put back below") };
        let mut overlapped = DataParallel::new(comm, model, sizes)?;
        let ms = median(steps, || together(&mut overlapped, &batch, size * sequences, &compute))?;
        overlapped.verify()?;
        rows.push((mib, overlapped.buckets().len(), ms));
        parts = Some(overlapped.into_parts());
    }
    if rank == 0 {
        let backend = parts.as_ref().map(|(comm, _): &(Comm<Reduce>, _)| comm.backend());
        println!("{size} ranks, {device}, {backend:?}: {:.1} MiB of gradients", bytes as f64 / f64::from(1 << 20));
        println!("a step without other ranks {alone_ms:.2} ms, the reduction alone {reduce_ms:.2} ms");
        support::note(device);
        let say = |name: String, ms: f64| {
            if device.kind() == DeviceKind::Cpu {
                println!("{name} {ms:.2} ms");
                return;
            }
            let exposed = ms - alone_ms;
            let of_step = 100.0 * exposed / alone_ms;
            println!(
                "{name} {ms:.2} ms: {exposed:.2} ms exposed, {of_step:.1} % of a step, {:.0} % of the reduction",
                100.0 * exposed / reduce_ms.max(1e-3)
            );
        };
        say("reduced behind the backward pass".to_owned(), after_ms);
        rows.into_iter().for_each(|(mib, buckets, ms)| say(format!("{buckets} buckets of {mib} MiB"), ms));
    }
    if device.kind() == DeviceKind::Cpu {
        println!("rank {rank}: done");
    }
    Ok(())
}

/// The time of a step, in ms.
fn step<C: LiveBrand>(
    model: &mut Model<C>,
    batch: &TokenBatch<'_>,
    sequences: usize,
    s: &Stream<Compute>,
) -> Result<f64> {
    let start = Instant::now();
    drop(model.step(&[*batch], sequences)?);
    s.synchronize()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// The time of a step that all ranks begin at once.
fn together<C: LiveBrand>(
    model: &mut Model<C>,
    batch: &TokenBatch<'_>,
    sequences: usize,
    s: &Stream<Compute>,
) -> Result<f64> {
    model.comm_mut().barrier()?;
    model.comm_mut().synchronize()?;
    step(model, batch, sequences, s)
}

/// The median of several times, after three that do not count.
fn median(steps: usize, mut time: impl FnMut() -> Result<f64>) -> Result<f64> {
    let times = (0..steps + 3).map(|_| time()).collect::<Result<Vec<_>>>()?;
    let mut times = times[3..].to_vec();
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
