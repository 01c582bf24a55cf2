//! Tests of failures: a sample, a decoder or a source that fails costs what it must, and every rank
//! goes on.

use std::sync::Arc;

use proptest::prelude::*;
use testkit::cases;
use testkit::devices::devices;
use testkit::oracle::SplitMix;
use thalweg::{AnyStream, Device, Size};
use thalweg_loader::{
    DecodeError, Error, ImageSink, Loader, Sample, SampleError, Shard, Source, UploadMode, byte_ranges,
};
use thalweg_vision::kernels;

use crate::{PAGE, all_returned, check, draw, options, random_delay};

/// Whether the reason is a panic of the decoder.
fn panicked(cause: &Arc<dyn std::error::Error + Send + Sync>) -> bool {
    matches!(cause.downcast_ref(), Some(SampleError::Panicked { what: "decoder", .. }))
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_failed_sample_is_an_error_in_its_place(
        len in 1u64..30, batch in 1usize..6, threads in 1usize..5, seed: u64, skip: bool, drop_last: bool, streams: bool,
    ) {
        // Of eight samples, one fails, one panics, one draws nothing, one asks for too little, one
        // fails after it has its memory.
        let fate = move |index: u64| SplitMix(seed ^ index).next() % 8;
        let failing = |index: u64| fate(index) < 5;
        let samples = || Source::indexed(len, move |index| {
            Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
                random_delay(index);
                match fate(index) {
                    0 => Err("no such luck".into()),
                    1 => std::panic::panic_any("out of colors"),
                    2 => Ok(()),
                    3 => sink.rgb(0, 5).map(drop).map_err(DecodeError::from),
                    4 => { sink.rgb(5, 5)?; Err("half way".into()) }
                    _ => draw(index, sink),
                }
            })
        });
        silence_panics();
        for &device in devices() {
            let upload = if streams { UploadMode::Streams } else { UploadMode::Sequential };
            let options = options(batch, threads, upload).with_skip_errors(skip).with_drop_last(drop_last);
            let mut loader = Loader::new(device, samples(), options).unwrap();
            let mut items = Vec::new(); // a batch's indices, or an error's
            for item in loader.by_ref() {
                items.push(match item {
                    Ok(batch) => Ok(check(device, batch)),
                    Err(Error::Sample { index, name, cause }) => {
                        let text = cause.to_string();
                        prop_assert_eq!(name, format!("image {index}"));
                        prop_assert!(match fate(index) {
                            0 => text == "no such luck",
                            1 => text == "the decoder panicked: out of colors" && panicked(&cause),
                            2 => matches!(cause.downcast_ref(), Some(SampleError::NoImage)),
                            3 => matches!(cause.downcast_ref(), Some(thalweg::Error::Parameter { .. })),
                            _ => text == "half way",
                        }, "{}", text);
                        Err(index)
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                });
            }
            let mut expected = Vec::new();
            let kept = if drop_last { len / batch as u64 * batch as u64 } else { len };
            let all: Vec<u64> = (0..kept).collect();
            for chunk in all.chunks(batch) {
                if !skip {
                    expected.extend(chunk.iter().filter(|i| failing(**i)).map(|i| Err(*i)));
                }
                let good: Vec<u64> = chunk.iter().copied().filter(|i| !failing(*i)).collect();
                if drop_last || !good.is_empty() {
                    expected.push(Ok(good));
                }
            }
            prop_assert_eq!(items, expected);
            let failed = all.iter().filter(|i| failing(**i)).count() as u64;
            prop_assert_eq!((loader.stats().failed, loader.stats().images), (failed, kept - failed));
            let pool = loader.pinned_pool();
            drop(loader);
            all_returned(&pool);
        }
    }
}

/// Keeps the panics that these tests ask for out of their output.
fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<&str>();
            if !matches!(text, Some(&"out of colors" | &"out of samples")) {
                usual(info);
            }
        }));
    });
}

#[test]
fn when_all_samples_are_skipped_the_end_comes() {
    for &device in devices() {
        for upload in [UploadMode::Streams, UploadMode::Sequential] {
            // The first image has streams decided on; then more batches than fit are empty.
            let samples = Source::indexed(40, |index| {
                Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
                    if index == 0 { draw(index, sink) } else { Err("no such luck".into()) }
                })
            });
            let options = options(1, 1, upload).with_skip_errors(true);
            let mut loader = Loader::new(device, samples, options).unwrap();
            assert_eq!(check(device, loader.next().unwrap().unwrap()), [0]);
            assert!(loader.next().is_none());
            assert_eq!(loader.stats().failed, 39);
        }
    }
}

#[test]
fn a_source_that_panics_ends_the_epoch_with_an_error() {
    silence_panics();
    let cpu = Device::cpu().unwrap();
    let samples = Source::from_fn(|index| {
        if index == 5 {
            std::panic::panic_any("out of samples");
        }
        Some(Sample::new(format!("image {index}"), format!("label {index}"), move |c| draw(index, c)))
    });
    let mut loader = Loader::new(cpu, samples, options(3, 2, UploadMode::Auto)).unwrap();
    for _ in 0..2 {
        assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [0, 1, 2]);
        let Some(Err(Error::Sample { index: 5, cause, .. })) = loader.next() else { panic!("an error was due") };
        assert_eq!(cause.to_string(), "the source panicked: out of samples");
        assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [3, 4]);
        assert!(loader.next().is_none());
        loader.restart();
    }
}

/// A source with a length goes on after a panic, and waits for the turn of no sample that never
/// came.
#[test]
fn a_source_of_known_length_loses_one_sample_by_a_panic() {
    silence_panics();
    let cpu = Device::cpu().unwrap();
    for pinned_budget in [usize::MAX, 3 * PAGE] {
        let samples = Source::indexed(7, |index| {
            if index == 2 {
                std::panic::panic_any("out of samples");
            }
            Sample::new(format!("image {index}"), format!("label {index}"), move |c| draw(index, c))
        });
        let options = options(2, 2, UploadMode::Auto).with_drop_last(true).with_pinned_budget(pinned_budget);
        let mut loader = Loader::new(cpu, samples, options).unwrap();
        assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [0, 1]);
        let Some(Err(Error::Sample { index: 2, cause, .. })) = loader.next() else { panic!("an error was due") };
        assert_eq!(cause.to_string(), "the source panicked: out of samples");
        let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
        assert_eq!((batch.indices, batch.failed), (vec![3], vec![2]));
        assert_eq!(check(cpu, loader.next().unwrap().unwrap()), [4, 5]);
        assert!(loader.next().is_none());
        assert_eq!(loader.stats().failed, 1);
    }
}

/// Ranks that meet in a collective after each batch would hang if one of them had fewer.
#[test]
fn ranks_get_equally_many_batches_whatever_fails() {
    const LEN: u64 = 1003;
    const BATCH: usize = 4;
    const WORLD: u64 = 3;
    let broken = |index: u64| SplitMix(index).next() % 10 < 7;
    for &device in devices() {
        for (known, skip_errors, upload) in
            [(true, true, UploadMode::Streams), (true, false, UploadMode::Sequential), (false, true, UploadMode::Off)]
        {
            let (mut counts, mut failed) = (Vec::new(), Vec::new());
            let mut without_images = 0;
            for rank in 0..WORLD {
                let sample = move |index: u64| {
                    Sample::new(format!("image {index}"), index, move |sink: &mut ImageSink<'_>| {
                        if broken(index) { Err("broken".into()) } else { draw(index, sink) }
                    })
                };
                let samples = match known {
                    true => Source::indexed(LEN, sample),
                    false => Source::from_fn(move |index| (index < LEN).then(|| sample(index))),
                };
                let shuffle = known.then_some(9);
                let (shard, drop_last) = (Shard::new(rank, WORLD), true);
                let options = options(BATCH, 2, upload)
                    .with_shuffle(shuffle)
                    .with_shard(shard)
                    .with_drop_last(drop_last)
                    .with_skip_errors(skip_errors);
                let mut loader = Loader::new(device, samples, options).unwrap();
                let (mut batches, mut errors, mut missing) = (0, Vec::new(), 0);
                for item in loader.by_ref() {
                    let batch = match item {
                        Ok(batch) => batch.synchronize().unwrap(),
                        Err(Error::Sample { index, .. }) => {
                            errors.push(index);
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    batches += 1;
                    without_images += u64::from(batch.is_empty());
                    assert_eq!(batch.len() + batch.failed.len(), BATCH, "each sample is an image or listed");
                    assert!(batch.indices.iter().all(|&index| !broken(index)));
                    assert!(batch.failed.iter().all(|&index| broken(index)));
                    assert!(skip_errors || errors == batch.failed, "its errors come just before it");
                    errors.clear();
                    missing += batch.failed.len() as u64;
                }
                counts.push(batches);
                failed.push((missing, loader.stats().failed));
            }
            assert_eq!(counts, [LEN / WORLD / BATCH as u64; WORLD as usize], "batches of each rank on {device}");
            assert!(failed.iter().all(|(missing, counted)| missing == counted), "{failed:?}");
            assert!(without_images > 20, "{without_images} batches have no image; the test means to have many");
        }
    }
}

/// What a consumer does with any batch, it can do with one that has no images.
#[test]
fn a_batch_without_images_goes_the_way_of_the_others() {
    for &device in devices() {
        let (compute, download) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        for upload in [UploadMode::Streams, UploadMode::Sequential, UploadMode::Off] {
            for broken in [0..2, 2..4, 4..6, 0..6] {
                let lost = broken.clone();
                let samples = Source::indexed(6, move |index| {
                    let lost = lost.contains(&index);
                    Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
                        if lost { Err("broken".into()) } else { draw(index, sink) }
                    })
                });
                let options = options(2, 2, upload).with_drop_last(true).with_skip_errors(true);
                let mut loader = Loader::new(device, samples, options).unwrap();
                let mut seen = Vec::new();
                while let Some(batch) = loader.next() {
                    let (event, planes) = compute.enter(|s| {
                        let batch = s.wait(batch.unwrap()).unwrap();
                        seen.push((batch.indices.clone(), batch.failed.clone()));
                        let values: Vec<usize> = batch.sizes.iter().map(|size| 13 * size.area() as usize).collect();
                        let mut planes = s.alloc::<f32>(values.iter().sum()).unwrap();
                        let mut rest = planes.slice_mut(..).unwrap();
                        for ((range, Size { height: h, width: w }), n) in
                            byte_ranges(&batch.sizes).into_iter().zip(&batch.sizes).zip(values)
                        {
                            let (own, others) = rest.split_at_mut(n).unwrap();
                            if upload != UploadMode::Off {
                                kernels::textures(s, *h, *w, 0.5, 0.5, batch.rgb.slice(range).unwrap(), own).unwrap();
                            }
                            rest = others;
                        }
                        (s.record(batch).unwrap(), s.record(planes).unwrap())
                    });
                    loader.recycle(event);
                    download.enter(|s| {
                        let planes = s.wait(planes).unwrap();
                        let mut host = s.bind(device.pinned::<f32>(planes.len()).unwrap()).unwrap();
                        s.copy_to_host(&planes, &mut host).unwrap();
                        drop(s.record(host).unwrap().synchronize().unwrap());
                    });
                }
                let sort = |part: Vec<u64>| part.into_iter().partition::<Vec<u64>, _>(|index| !broken.contains(index));
                assert_eq!(seen, [vec![0, 1], vec![2, 3], vec![4, 5]].map(sort), "{upload:?}");
            }
        }
    }
}
