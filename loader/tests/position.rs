//! Tests of where a loader starts: at any epoch, and in the middle of one.

use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use testkit::cases;
use thalweg::{Device, Error};
use thalweg_loader::{Loader, LoaderState, Sample, Shard, Source, UploadMode};

use crate::{PAGE, check, draw, options, source, source_until};

/// Some samples fail, and every third batch of one sample loses all it has.
fn failing(len: u64) -> Source<String> {
    Source::indexed(len, |index| {
        Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
            if index % 3 == 1 { Err("broken".into()) } else { draw(index, sink) }
        })
    })
}

/// What is left of an epoch: the indices of each batch.
fn rest(device: Device, loader: &mut Loader<String>) -> Vec<Vec<u64>> {
    loader.map(|batch| check(device, batch.unwrap())).collect()
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_loader_goes_on_where_another_was(
        len in 0u64..50, batch in 1usize..6, taken in 0usize..14, epoch in 0u64..3, world in 1u64..4, rank in 0u64..4,
        seed: Option<u64>, drop_last: bool, finite: bool, broken: bool, endless: bool, upload in 0usize..3, upload_streams in 1usize..4,
    ) {
        let endless = endless && seed.is_none() && !broken;
        let samples = || match (endless, broken) {
            (true, _) => source_until(len),
            (_, true) => failing(len),
            _ => source(len),
        };
        let upload = [UploadMode::Streams, UploadMode::Sequential, UploadMode::Auto][upload];
        let options = options(batch, 3, upload)
            .with_shuffle(seed)
            .with_shard(Shard::new(rank % world, world))
            .with_drop_last(drop_last)
            .with_skip_errors(true)
            .with_upload_streams(upload_streams)
            .with_pinned_budget(if finite { 12 * PAGE } else { usize::MAX });
        let cpu = Device::cpu().unwrap();
        let load = || Loader::new(cpu, samples(), options.clone()).unwrap();

        // All epochs, uninterrupted.
        let mut whole = load();
        let mut expected = Vec::new();
        for number in 0..=epoch + 1 {
            prop_assert_eq!(whole.epoch(), number);
            expected.push(rest(cpu, &mut whole));
            whole.restart();
        }

        // One that begins at an epoch, and is interrupted.
        let mut first = load();
        first.set_epoch(epoch);
        prop_assert_eq!(first.state(), LoaderState { epoch, samples: 0 });
        let mut seen: Vec<_> = first.by_ref().take(taken).map(|item| check(cpu, item.unwrap())).collect();
        let position = first.state();
        prop_assert_eq!(position.epoch, epoch);
        drop(first);

        // Another one goes on, and then begins the next epoch.
        let mut second = load();
        second.resume(position).unwrap();
        prop_assert_eq!(second.state(), position);
        seen.extend(rest(cpu, &mut second));
        prop_assert_eq!(&seen, &expected[epoch as usize]);
        let end = second.state();
        second.restart();
        prop_assert_eq!(rest(cpu, &mut second), expected[epoch as usize + 1].clone());

        // At the end of an epoch there is nothing left of it.
        second.resume(end).unwrap();
        prop_assert_eq!(rest(cpu, &mut second), Vec::<Vec<u64>>::new());
    }
}

/// Errors of a batch that was not returned come again, and its samples are not counted as got.
#[test]
fn a_batch_is_got_when_it_is_returned() {
    let cpu = Device::cpu().unwrap();
    let load = || Loader::new(cpu, failing(6), options(3, 2, UploadMode::Streams)).unwrap();
    let mut loader = load();
    assert!(matches!(loader.next(), Some(Err(thalweg_loader::Error::Sample { index: 1, .. }))));
    assert_eq!(loader.state().samples, 0);
    assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [0, 2]);
    assert_eq!(loader.state().samples, 3);
    assert!(matches!(loader.next(), Some(Err(thalweg_loader::Error::Sample { index: 4, .. }))));
    let mut other = load();
    other.resume(loader.state()).unwrap();
    assert!(matches!(other.next(), Some(Err(thalweg_loader::Error::Sample { index: 4, .. }))));
    assert_eq!(check(cpu, other.next().unwrap().unwrap()), [3, 5]);
    assert_eq!(other.state(), LoaderState { epoch: 0, samples: 6 });
    assert!(other.next().is_none());
}

/// Samples of which nothing comes count as soon as that is known, and not with the next batch.
#[test]
fn skipped_samples_count_with_the_batch_before_them() {
    let cpu = Device::cpu().unwrap();
    for upload_streams in [1, 3] {
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
        let samples = Source::indexed(4, move |index| {
            let gate = gate.clone();
            Sample::new(format!("image {index}"), format!("label {index}"), move |sink| match index {
                0 => draw(index, sink),
                2 => Err("no such luck".into()),
                _ => {
                    let skipped = gate.lock().unwrap().recv().is_ok();
                    if skipped { Err("no such luck".into()) } else { draw(index, sink) }
                }
            })
        });
        let options = options(1, 1, UploadMode::Streams).with_skip_errors(true).with_upload_streams(upload_streams);
        let mut loader = Loader::new(cpu, samples, options.with_prefetch(4)).unwrap();
        assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [0]);
        go.send(()).unwrap(); // the second sample fails when the first batch has been taken
        let begin = Instant::now();
        while loader.state().samples < 3 && begin.elapsed() < Duration::from_secs(20) {
            thread::yield_now();
        }
        let counted = loader.state().samples;
        drop(go); // before a panic, which would wait for the last sample
        assert_eq!(counted, 3);
        assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [3]);
        assert_eq!(loader.state().samples, 4);
    }
}

#[test]
fn a_position_beyond_the_epoch_is_refused() {
    let cpu = Device::cpu().unwrap();
    let options = options(3, 2, UploadMode::Auto).with_shard(Shard::new(1, 2));
    let mut loader = Loader::new(cpu, source(9), options).unwrap();
    let error = loader.resume(LoaderState { epoch: 1, samples: 5 }).unwrap_err();
    assert!(matches!(&error, Error::Parameter { name: "position", .. }) && error.to_string().contains("4 samples"));
    assert_eq!(loader.state(), LoaderState::default());
    assert_eq!(rest(cpu, &mut loader), [vec![1, 3, 5], vec![7]]);
}

/// A source without a length has no last position, and a checkpoint may name any: the largest
/// numbers are refused, or go on as others do.
#[test]
fn the_largest_positions_do_no_harm() {
    let cpu = Device::cpu().unwrap();
    let mut loader = Loader::new(cpu, source_until(u64::MAX), options(3, 2, UploadMode::Sequential)).unwrap();
    for samples in [u64::MAX, u64::MAX - 1, 1 << 55] {
        let error = loader.resume(LoaderState { epoch: 0, samples }).unwrap_err();
        assert!(matches!(&error, Error::Parameter { name: "position", .. }), "{error}");
    }
    loader.resume(LoaderState { epoch: u64::MAX, samples: 1 << 53 }).unwrap();
    assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [1 << 53, (1 << 53) + 1, (1 << 53) + 2]);
    loader.restart();
    assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [0, 1, 2]);
}
