//! Tests of order: batches, epochs, shuffles, shards and labels are the same on every path.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use testkit::cases;
use testkit::devices::devices;
use thalweg::{Device, stream_tags};
use thalweg_loader::{Loader, Sample, Shard, Source, UploadMode};

use crate::{check, draw, options, source, source_until};

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn order_and_bytes_are_the_same_on_every_path(
        len in 0u64..40, batch in 1usize..9, threads in 1usize..7, prefetch in 1usize..4, drop_last: bool,
        upload_streams in 1usize..4,
    ) {
        let kept = if drop_last { len / batch as u64 * batch as u64 } else { len };
        for &device in devices() {
            for upload in [UploadMode::Streams, UploadMode::Sequential, UploadMode::Auto] {
                let options = options(batch, threads, upload).with_prefetch(prefetch).with_drop_last(drop_last).with_upload_streams(upload_streams);
                let mut loader = Loader::new(device, source(len), options).unwrap();
                let mut seen = Vec::new();
                for item in loader.by_ref() {
                    let indices = check(device, item.unwrap());
                    prop_assert!(indices.len() == batch || seen.len() + indices.len() == kept as usize);
                    seen.extend(indices);
                }
                prop_assert_eq!(seen, (0..kept).collect::<Vec<_>>());
                prop_assert!(loader.next().is_none());
                prop_assert_eq!(loader.stats().failed, 0);
                if kept > 0 && upload != UploadMode::Auto {
                    prop_assert_eq!(loader.upload_plan().unwrap().streams, upload == UploadMode::Streams);
                }
            }
        }
    }

    #[test]
    fn ranks_share_each_epoch(
        len in 0u64..60, world in 1u64..6, batch in 1usize..7, seed: Option<u64>, drop_last: bool, endless: bool,
    ) {
        // Without a length nothing can be shuffled, and only the source knows where it ends.
        let endless = endless && seed.is_none();
        let samples = || if endless { source_until(len) } else { source(len) };
        let cpu = Device::cpu().unwrap();
        let mut epochs = Vec::new();
        let load = |rank| options(batch, 2, UploadMode::Off).with_shuffle(seed).with_shard(Shard::new(rank, world)).with_drop_last(drop_last);
        let mut loaders: Vec<_> = (0..world).map(|rank| Loader::new(cpu, samples(), load(rank)).unwrap()).collect();
        for epoch in 0..2 {
            let mut all = Vec::new();
            let mut batches = BTreeSet::new();
            for loader in &mut loaders {
                if epoch > 0 {
                    loader.restart();
                }
                prop_assert_eq!(loader.epoch(), epoch);
                let indices: Vec<_> = loader.map(|batch| batch.unwrap().synchronize().unwrap().indices).collect();
                batches.insert(indices.len());
                all.extend(indices.into_iter().flatten());
            }
            epochs.push(all.clone());
            let distinct: BTreeSet<u64> = all.iter().copied().collect();
            prop_assert_eq!(distinct.len(), all.len(), "no sample twice");
            if drop_last {
                prop_assert_eq!(batches.len(), 1, "every rank has the same number of batches");
                prop_assert_eq!(all.len() as u64, len / world / batch as u64 * batch as u64 * world);
            } else {
                prop_assert_eq!(distinct, (0..len).collect::<BTreeSet<_>>());
            }
        }
        if seed.is_none() {
            prop_assert_eq!(&epochs[0], &epochs[1]);
        } else if len >= 20 && !drop_last {
            prop_assert_ne!(&epochs[0], &epochs[1]);
        }
    }

    /// On a device that runs everything as late and as much out of order as events allow.
    #[test]
    fn a_batch_is_complete_before_its_consumer(seed: u64, batch in 1usize..5, upload_streams in 1usize..4) {
        static SEEDED: Mutex<Option<Device>> = Mutex::new(None);
        let mut seeded = SEEDED.lock().unwrap_or_else(|e| e.into_inner());
        let device = *seeded.get_or_insert_with(|| Device::seeded_cpu(0).unwrap());
        device.reseed(seed);
        let options = options(batch, 2, UploadMode::Streams).with_prefetch(4).with_upload_streams(upload_streams);
        let mut loader = Loader::new(device, source(12), options).unwrap();
        let mut seen = Vec::new();
        for batch in loader.by_ref() {
            seen.extend(check(device, batch.unwrap()));
        }
        prop_assert_eq!(seen, (0..12).collect::<Vec<_>>());
    }
}

#[test]
fn a_function_is_a_source() {
    for &device in devices() {
        // 13 samples, and then the end, of which one rank of two gets the odd ones.
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let samples = Source::from_fn(move |index| {
            counted.fetch_add(1, Ordering::Relaxed);
            (index < 13)
                .then(|| Sample::new(format!("image {index}"), format!("label {index}"), move |c| draw(index, c)))
        });
        let options = options(4, 2, UploadMode::Auto).with_shard(Shard::new(1, 2));
        let mut loader = Loader::new(device, samples, options).unwrap();
        for _ in 0..2 {
            let seen: Vec<_> = loader.by_ref().map(|batch| check(device, batch.unwrap())).collect();
            assert_eq!(seen, [vec![1, 3, 5, 7], vec![9, 11]]);
            loader.restart();
        }
        assert_eq!(loader.samples(), None);
        drop(loader);
        assert!(calls.load(Ordering::Relaxed) >= 14);
    }
}

#[test]
fn metadata_is_readable_in_every_state() {
    stream_tags!(Consumer);
    #[derive(Clone, Debug, PartialEq)]
    struct Label {
        class: u32,
        source: String,
    }
    let gpu = Device::best().unwrap();
    let consumer = gpu.stream::<Consumer>().unwrap();
    let label = |index: u64| Label { class: index as u32 % 3, source: format!("camera {index}") };
    let samples = Source::indexed(5, move |index| Sample::new("", label(index), move |c| draw(index, c)));
    let options = options(5, 4, UploadMode::Streams).with_shuffle(Some(5));
    let batch = Loader::new(gpu, samples, options).unwrap().next().unwrap().unwrap();
    let batch = consumer.wait(batch).unwrap();
    assert_eq!(batch.meta, batch.indices.iter().map(|&i| label(i)).collect::<Vec<_>>());
    let batch = consumer.record(batch).unwrap().synchronize().unwrap();
    assert_eq!(batch.meta, batch.indices.iter().map(|&i| label(i)).collect::<Vec<_>>());
    assert_eq!(batch.len(), 5);
}

/// A source may end long before a batch is full.
#[test]
fn a_batch_may_be_larger_than_any_source() {
    let cpu = Device::cpu().unwrap();
    for samples in [source(5), source_until(5)] {
        let loader = Loader::new(cpu, samples, options(usize::MAX, 2, UploadMode::Auto)).unwrap();
        assert_eq!(loader.map(|batch| check(cpu, batch.unwrap())).collect::<Vec<_>>(), [[0, 1, 2, 3, 4]]);
    }
}

/// The loader can be dropped although its source never ends and its batch is never full.
#[test]
fn a_batch_that_is_never_full_does_not_keep_a_loader() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let samples = Source::from_fn(move |index| {
        count.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_micros(100));
        Some(Sample::new("", (), move |sink| draw(index, sink)))
    });
    let mut loader = Loader::new(Device::cpu().unwrap(), samples, options(usize::MAX, 2, UploadMode::Auto)).unwrap();
    for _ in 0..2 {
        let before = asked.load(Ordering::Relaxed);
        while asked.load(Ordering::Relaxed) < before + 3 {
            std::thread::yield_now();
        }
        assert_eq!(loader.samples(), None); // no thread holds the lock meanwhile
        loader.restart();
    }
}

/// The order of a shuffled epoch, from the published generator and shuffle (SplitMix64, Fisher and
/// Yates).
fn shuffled(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let mut state = u128::from(seed) + u128::from(epoch) * 0xd134_2543_de82_ef95;
    let modulus = 1u128 << 64;
    let mut order: Vec<u64> = (0..len).collect();
    for i in (1..len).rev() {
        state = (state + 0x9e37_79b9_7f4a_7c15) % modulus;
        let mut z = state;
        z = (z ^ (z >> 30)) * 0xbf58_476d_1ce4_e5b9 % modulus;
        z = (z ^ (z >> 27)) * 0x94d0_49bb_1331_11eb % modulus;
        z ^= z >> 31;
        let other = z * (u128::from(i) + 1) / modulus;
        order.swap(i as usize, other as usize);
    }
    order
}

#[test]
fn a_seed_and_an_epoch_give_one_order() {
    let cpu = Device::cpu().unwrap();
    for seed in [0, 1, 7, u64::MAX] {
        let shuffle = options(5, 3, UploadMode::Off).with_shuffle(Some(seed));
        let mut loader = Loader::new(cpu, source(23), shuffle).unwrap();
        for epoch in 0..3 {
            let seen: Vec<u64> =
                loader.by_ref().flat_map(|item| item.unwrap().synchronize().unwrap().indices).collect();
            assert_eq!(seen, shuffled(23, seed, epoch), "seed {seed}, epoch {epoch}");
            loader.restart();
        }
    }
}

/// A source without a length ends where it says so. Whichever rank that is, no rank has a batch
/// more than the others.
#[test]
fn ranks_have_equally_many_batches_of_a_source_without_a_length() {
    let cpu = Device::cpu().unwrap();
    for world in 2u64..5 {
        for batch in 1..4 {
            for len in 0..world * batch * 2 + 2 {
                let batches = |rank| {
                    let options = options(batch as usize, 2, UploadMode::Off).with_shard(Shard::new(rank, world));
                    Loader::new(cpu, source_until(len), options.with_drop_last(true)).unwrap().count() as u64
                };
                let all: Vec<u64> = (0..world).map(batches).collect();
                assert_eq!(all, vec![len / (world * batch); world as usize], "{len} samples, batches of {batch}");
            }
        }
    }
}
