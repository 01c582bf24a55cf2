//! Several ranks that train on the tokens of their shards of photographs: what one rank learns from
//! all.

use thalweg::{At, Device, LiveBrand, Ring, Stream, Timeline, stream_tags};
use thalweg_collective::{BucketSizes, Comm, WorldOptions, ranks};
use thalweg_loader::{Loader, Sample, Source, UploadMode};
use thalweg_train::overlap::{DataParallel, Photographs, PhotographsOn, texture_prefetch};
use thalweg_train::{Error, Result, TokenTransformer, TokenTransformerConfig};
use thalweg_vision::{PLANES, Pipeline, TokenParams};

stream_tags!(Up, Make, Train, Reduce);

const SIZE: [u32; 2] = [32, 32];
const STEPS: usize = 50;
/// The images of a step, of all ranks together.
const BATCH: usize = 4;
fn sizes() -> BucketSizes {
    BucketSizes::default().with_first(600).with_others(4000)
}

/// Photographs whose brightness and stripes say their class.
fn source() -> Source<i32> {
    Source::indexed(24, |index| {
        Sample::new("", (index % 2) as i32, move |sink| {
            for (i, v) in sink.rgb(SIZE[0], SIZE[1])?.iter_mut().enumerate() {
                *v = (20 * (index % 2) + index + i as u64 * (index % 5 + 1) % 60) as u8;
            }
            Ok(())
        })
    })
}

/// Trains on the photographs of a rank, and returns the losses and the bits of the weights.
fn run<U: LiveBrand, A: LiveBrand, B: LiveBrand, C: LiveBrand>(
    (up, make, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    comm: Comm<C>,
    slots: usize,
) -> Result<(Vec<f32>, Vec<u32>)> {
    let (rank, size) = (comm.rank() as u64, comm.size() as u64);
    let images = BATCH / comm.size();
    let options = thalweg_loader::LoaderOptions::default()
        .with_batch_size(images)
        .with_shard(thalweg_loader::Shard::new(rank, size))
        .with_shuffle(Some(3))
        .with_drop_last(true)
        .with_upload(UploadMode::Off);
    let mut loader = Loader::new(up.device(), source(), options)?;
    let params = TokenParams::default().with_patch(8).with_sides(2..=4).with_budget(48);
    let pipeline = Pipeline::new(up.device(), params)?;
    let slots = (0..slots).map(|_| Photographs::new(up, &pipeline, &vec![SIZE.into(); images]));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let config = TokenTransformerConfig::default()
        .with_input_dim(PLANES)
        .with_embed_dim(16)
        .with_num_heads(2)
        .with_depth(1)
        .with_num_classes(2);
    let mut model = DataParallel::new(comm, TokenTransformer::<_, f32>::new(train, config, 5)?, sizes())?;
    assert!(model.buckets().len() > 2);
    let mut losses = Vec::new();
    texture_prefetch(
        (up, make),
        &mut model,
        &mut slots,
        0..STEPS,
        |s, _, batch: &mut PhotographsOn<U>| {
            let photographs = match loader.next() {
                Some(photographs) => photographs,
                None => {
                    loader.restart();
                    loader.next().expect("an epoch has batches")
                }
            };
            let photographs = photographs.map_err(|error| Error::Source(error.into()))?.synchronize()?;
            let (pixels, labels) = s.bind((photographs.images, s.device().pinned_from(&photographs.meta)?))?;
            let bytes = batch.rgb.len() / images;
            for (image, pixels) in pixels.iter().enumerate() {
                s.copy_to_device(pixels, batch.rgb.slice_mut(image * bytes..(image + 1) * bytes)?)?;
            }
            Ok(s.copy_to_device(&labels, &mut batch.labels)?)
        },
        |_, loss| {
            losses.push(loss);
            Ok(())
        },
        &Timeline::disabled(),
    )?;
    let losses = losses.into_iter().map(|loss| loss.item()).collect::<Result<Vec<_>>>()?;
    model.verify()?;
    let weights = model.model().tensors()?;
    let bits = weights.tensors.values().flat_map(|tensor| match &tensor.data {
        thalweg_train::Data::F32(data) => data.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    });
    Ok((losses, bits.collect()))
}

fn on_ranks(devices: &[Device], overlapped: bool) -> (Vec<f32>, Vec<u32>) {
    let ended = ranks(devices, WorldOptions::default(), |rank, world| -> Result<_> {
        let train: Stream<At<'_, Train>> = rank.stream()?;
        let comm = world.comm(rank.stream::<Reduce>()?)?;
        match overlapped {
            true => run((&rank.stream::<Up>()?, &rank.stream::<Make>()?, &train), comm, 3),
            false => run((&train, &train, &train), comm, 1),
        }
    });
    let mut ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    assert!(ended.iter().all(|other| *other == ended[0]), "every rank has the same losses and weights");
    ended.swap_remove(0)
}

#[test]
fn shards_overlapped_on_ranks_learn_what_one_stream_learns_from_all() {
    let devices = |size: usize, seeded: bool| -> Vec<Device> {
        let device = |k| if seeded { Device::seeded_cpu(k).unwrap() } else { Device::new_cpu().unwrap() };
        (0..size as u64).map(device).collect()
    };
    let (alone, _) = on_ranks(&devices(1, false), false);
    assert!(alone[STEPS - 1] < 0.8 * alone[0], "{alone:?}");
    for size in [2, 4] {
        let serial = on_ranks(&devices(size, false), false);
        let apart = alone.iter().zip(&serial.0).map(|(a, b)| ((a - b) / a).abs()).fold(0.0, f32::max);
        println!("{size} ranks: the losses differ by {apart:e} at most");
        assert!(apart < 1e-5, "{size} ranks: {apart:e}");
        // Late work and other orders do not change a bit.
        assert_eq!(on_ranks(&devices(size, false), true), serial);
        assert_eq!(on_ranks(&devices(size, true), true), serial);
    }
}
