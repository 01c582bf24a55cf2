//! Tests of loaders that run out of page-locked memory or of device memory.

use std::thread;
use std::time::{Duration, Instant};

use testkit::devices::devices;
use thalweg::Device;
use thalweg_loader::{Error, Loader, LoaderOptions, Sample, SampleError, Source, UploadMode, decode_photo};

use crate::{PAGE, check, draw, options, source};

#[test]
fn a_spent_pinned_budget_is_waited_for() {
    for &device in devices() {
        for upload in [UploadMode::Streams, UploadMode::Sequential, UploadMode::Off] {
            // One batch of four images, and a half.
            let options = options(4, 6, upload).with_pinned_budget(6 * PAGE).with_prefetch(3);
            let mut loader = Loader::new(device, source(41), options).unwrap();
            let pool = loader.pinned_pool();
            let mut seen = Vec::new();
            for batch in loader.by_ref() {
                assert!(pool.in_use() + pool.cached() <= 6 * PAGE);
                let batch = batch.unwrap();
                seen.extend(if upload == UploadMode::Off {
                    batch.synchronize().unwrap().indices
                } else {
                    check(device, batch)
                });
            }
            assert_eq!(seen, (0..41).collect::<Vec<_>>(), "{upload:?}");
        }
    }
}

/// The memory for the pixels comes first. So the budget refuses an image before the decoder takes
/// memory of its own for it, and before it finds out that this one is broken.
#[test]
fn a_photograph_over_the_budget_is_not_decoded() {
    let mut file = Vec::new();
    let mut header = png::Encoder::new(&mut file, 16000, 16000);
    header.set_color(png::ColorType::Grayscale);
    header.write_header().unwrap().write_chunk(png::chunk::IDAT, b"no pixels").unwrap();
    let source = move || {
        let file = file.clone();
        Source::indexed(1, move |_| {
            let file = file.clone();
            Sample::new("photograph", String::new(), move |sink| decode_photo(&file, sink))
        })
    };
    let failure = |pinned_budget, pixel_limit| {
        let options = options(1, 1, UploadMode::Off).with_pinned_budget(pinned_budget).with_pixel_limit(pixel_limit);
        let item = Loader::new(Device::cpu().unwrap(), source(), options).unwrap().next();
        let Some(Err(Error::Sample { cause, .. })) = item else { panic!("the sample fails") };
        cause
    };
    let cause = failure(1 << 20, u64::MAX);
    assert!(matches!(cause.downcast_ref(), Some(thalweg::Error::PinnedBudget { wanted: 768_000_000, .. })), "{cause}");
    let cause = failure(usize::MAX, u64::MAX);
    assert!(matches!(cause.downcast_ref(), Some(SampleError::Broken(_))), "{cause}");
    // By default so many pixels are refused, as Pillow refuses them.
    let cause = failure(1 << 20, LoaderOptions::default().pixel_limit).to_string();
    assert!(cause.contains("256.0 megapixels; the limit (`pixel_limit`) is 179.0"), "{cause}");
}

#[test]
fn a_pinned_budget_that_cannot_suffice_is_an_error() {
    for &device in devices() {
        let spent = |item: Option<Result<_, Error>>| match item {
            Some(Err(Error::Sample { index, cause, .. })) => match cause.downcast_ref() {
                Some(thalweg::Error::PinnedBudget { budget, .. }) => (index, *budget),
                _ => panic!("{cause}"),
            },
            Some(Ok(_)) => panic!("a batch came"),
            Some(Err(error)) => panic!("{error}"),
            None => panic!("the end came"),
        };
        // One image is too large, however long one waits; the others go on.
        let samples = Source::indexed(6, |index| {
            Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
                if index == 3 { sink.rgb(100, 100).map(drop).map_err(Into::into) } else { draw(index, sink) }
            })
        });
        let options = options(2, 3, UploadMode::Auto).with_pinned_budget(2 * PAGE);
        let mut loader = Loader::new(device, samples, options.clone()).unwrap();
        assert_eq!(check(device, loader.next().unwrap().unwrap()), [0, 1]);
        assert_eq!(spent(loader.next()), (3, 2 * PAGE));
        assert_eq!(check(device, loader.next().unwrap().unwrap()), [2]);
        assert_eq!(check(device, loader.next().unwrap().unwrap()), [4, 5]);

        // A consumer that keeps what it got. Waiting for it would never end.
        let mut loader = Loader::new(device, source(8), options).unwrap();
        let kept = loader.next().unwrap().unwrap();
        assert_eq!(spent(loader.next()).0, 2);
        assert_eq!(spent(loader.next()).0, 3);
        drop(kept);
        let rest: Vec<_> = loader.map(|batch| check(device, batch.unwrap())).collect();
        assert_eq!(rest, [[4, 5], [6, 7]]);
    }
}

#[test]
fn a_batch_without_device_memory_is_tried_again() {
    for (upload, upload_streams) in [(UploadMode::Streams, 1), (UploadMode::Streams, 3), (UploadMode::Sequential, 1)] {
        let options = |batch, threads, upload| {
            options(batch, threads, upload).with_prefetch(3).with_upload_streams(upload_streams)
        };
        let cpu = Device::new_cpu().unwrap();
        cpu.limit_memory(Some(100_000));
        let samples = |side: fn(u64) -> u32| {
            Source::indexed(6, move |index| {
                Sample::new(index.to_string(), index, move |sink| {
                    sink.rgb(side(index), 100)?.fill(index as u8);
                    Ok(())
                })
            })
        };
        // Two batches of 30 000 bytes fit and a third does, but not a fourth.
        let mut loader = Loader::new(cpu, samples(|_| 100), options(1, 2, upload)).unwrap();
        let mut kept: Vec<_> = loader.by_ref().take(3).map(Result::unwrap).collect();
        let error = loader.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Device(thalweg::Error::OutOfMemory { wanted: 30_000, .. })), "{error}");
        let first = kept.remove(0).synchronize().unwrap();
        assert_eq!(first.meta, [0]);
        drop(first);
        kept.into_iter().for_each(|batch| drop(batch.synchronize().unwrap()));
        // Memory is freed in the order of the streams, which may be later than the drop.
        let freed = || {
            let begin = Instant::now();
            while cpu.free_memory().unwrap() < 90_000 {
                assert!(begin.elapsed() < Duration::from_secs(20));
                thread::yield_now();
            }
        };
        freed();
        let mut rest = Vec::new();
        for batch in loader.by_ref() {
            rest.extend(batch.unwrap().synchronize().unwrap().meta);
        }
        assert_eq!(rest, [3, 4, 5], "none is lost");
        freed();

        // One that can never fit is given up after the second error, and what follows still comes;
        // with `drop_last`, what is left of it comes too.
        for drop_last in [false, true] {
            let options = options(1, 2, upload).with_drop_last(drop_last);
            let mut loader = Loader::new(cpu, samples(|i| if i == 1 { 1000 } else { 10 }), options).unwrap();
            let (mut seen, mut lost, mut errors) = (Vec::new(), Vec::new(), 0);
            for batch in loader.by_ref() {
                match batch {
                    Ok(batch) => {
                        let batch = batch.synchronize().unwrap();
                        seen.push(batch.meta);
                        lost.extend(batch.failed);
                    }
                    Err(Error::Device(thalweg::Error::OutOfMemory { wanted: 300_000, .. })) => errors += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            let (second, failed) = if drop_last { (vec![vec![]], vec![1]) } else { (vec![], vec![]) };
            assert_eq!(seen, [vec![vec![0]], second, (2..6).map(|i| vec![i]).collect()].concat());
            assert_eq!((lost, errors, loader.stats().failed), (failed, 2, 1));
        }
    }
}

/// There is memory for one batch at a time, and several streams want it. Each batch comes in its
/// turn without an error, because no later one takes the memory first.
#[test]
fn streams_take_device_memory_in_order() {
    for round in 0..20 {
        let cpu = Device::new_cpu().unwrap();
        cpu.limit_memory(Some(40_000));
        let samples = Source::indexed(12, |index| {
            Sample::new(index.to_string(), index, move |sink| {
                sink.rgb(100, 100)?.fill(index as u8);
                Ok(())
            })
        });
        let options = options(1, 4, UploadMode::Streams).with_prefetch(4).with_upload_streams(3);
        let loader = Loader::new(cpu, samples, options).unwrap();
        let (mut seen, mut last) = (Vec::new(), None);
        for batch in loader {
            match batch {
                Ok(batch) => {
                    let batch = batch.synchronize().unwrap();
                    seen.extend(batch.meta.clone());
                    last = Some(batch); // held until the loader says that it needs the memory
                }
                Err(Error::Device(thalweg::Error::OutOfMemory { wanted: 30_000, .. })) => {
                    assert!(last.take().is_some(), "the batch after {seen:?} finds no memory that nobody holds");
                    let begin = Instant::now();
                    while cpu.free_memory().unwrap() < 40_000 {
                        assert!(begin.elapsed() < Duration::from_secs(20), "its memory does not come back");
                        thread::yield_now();
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(seen, (0..12).collect::<Vec<_>>(), "round {round}");
    }
}
