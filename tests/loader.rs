//! The loader: nothing lost, nothing out of order, nothing left behind, whatever fails and whenever it is dropped.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use oracle::SplitMix;
use proptest::prelude::*;
use thalweg::{AnyStream, Device, Error, Event, PinnedPool, stream_tags};
use thalweg_loader::{
    Batch, Canvas, DecodeError, Loader, Options, Sample, Source, Upload, byte_ranges, read_ppm, upload_ppm,
};
use thalweg_vision::kernels::{self, Layout};

mod support;
use support::cases;
use support::devices::{devices, report};

/// The size of an image, which its index decides.
fn size(index: u64) -> [u32; 2] {
    let random = SplitMix(index).next();
    [1 + (random % 20) as u32, 1 + (random >> 32) as u32 % 30]
}

fn paint(index: u64, bytes: &mut [u8]) {
    let mut random = SplitMix(index);
    bytes.fill_with(|| random.byte());
}

fn pixels(index: u64) -> Vec<u8> {
    let [height, width] = size(index);
    let mut bytes = vec![0; 3 * (height * width) as usize];
    paint(index, &mut bytes);
    bytes
}

fn draw(index: u64, canvas: &mut Canvas<'_>) -> Result<(), DecodeError> {
    let [height, width] = size(index);
    paint(index, canvas.rgb(height, width)?);
    Ok(())
}

/// Something random to wait for, up to about a millisecond.
fn dawdle(index: u64) {
    let random = SplitMix(index ^ 0xdead).next();
    match random % 4 {
        0 => thread::sleep(Duration::from_micros(random >> 32 & 1023)),
        1 => (0..random >> 32 & 255).for_each(|_| thread::yield_now()),
        _ => {}
    }
}

fn source(len: u64) -> Source<String> {
    Source::indexed(len, |index| {
        Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
            dawdle(index);
            draw(index, canvas)
        })
    })
}

/// As `source`, but it does not know how many samples it has.
fn source_until(len: u64) -> Source<String> {
    Source::from_fn(move |index| {
        (index < len).then(|| Sample::new(format!("image {index}"), format!("label {index}"), move |c| draw(index, c)))
    })
}

fn options(batch: usize, threads: usize, upload: Upload) -> Options {
    Options { batch, threads, upload, ..Options::default() }
}

/// Checks a batch, on the device and on the host, and returns the indices of its images.
#[track_caller]
fn check(device: Device, batch: Event<Batch<String>>) -> Vec<u64> {
    device
        .per_thread(|s| {
            let batch = s.wait(batch).unwrap();
            let bytes = s.read_blocking(&batch.rgb).unwrap();
            let ranges = byte_ranges(&batch.sizes);
            assert_eq!(batch.sizes.is_empty(), bytes.is_empty());
            if !batch.sizes.is_empty() {
                // The kernels of batches take it as it is.
                let layout = Layout::new(&batch.sizes, 32).unwrap();
                assert_eq!(ranges, (0..batch.sizes.len()).map(|i| layout.byte_range(i)).collect::<Vec<_>>());
                assert_eq!(bytes.len(), layout.bytes() as usize);
            }
            for (i, &index) in batch.indices.iter().enumerate() {
                assert_eq!(batch.sizes[i], size(index));
                assert_eq!(bytes[ranges[i].clone()], pixels(index), "image {index} on {device}");
                assert_eq!((&batch.names[i], &batch.meta[i]), (&format!("image {index}"), &format!("label {index}")));
                assert_eq!(ranges[i].start % 16, 0);
            }
            let batch = s.record(batch).unwrap().synchronize().unwrap();
            for (i, &index) in batch.indices.iter().enumerate() {
                assert_eq!(batch.pixels(i), pixels(index), "image {index} on the host");
            }
            batch.indices
        })
        .unwrap()
}

/// Waits until a pool has everything back; a copy may have to end first.
#[track_caller]
fn all_returned(pool: &PinnedPool) {
    let begin = Instant::now();
    while pool.in_use() > 0 {
        drop(pool.take::<u8>(1)); // looks at what is under way
        assert!(begin.elapsed() < Duration::from_secs(20), "{} bytes are missing", pool.in_use());
        thread::yield_now();
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn order_and_bytes_are_the_same_on_every_path(
        len in 0u64..40, batch in 1usize..9, threads in 1usize..7, prefetch in 1usize..4, drop_last: bool,
    ) {
        let kept = if drop_last { len / batch as u64 * batch as u64 } else { len };
        for &device in devices() {
            for upload in [Upload::Streams, Upload::Sequential, Upload::Auto] {
                let options = Options { prefetch, drop_last, ..options(batch, threads, upload) };
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
                if kept > 0 && upload != Upload::Auto {
                    prop_assert_eq!(loader.decision().unwrap().streams, upload == Upload::Streams);
                }
            }
        }
    }

    #[test]
    fn a_failed_sample_is_an_error_in_its_place(
        len in 1u64..30, batch in 1usize..6, threads in 1usize..5, seed: u64, skip: bool, drop_last: bool, streams: bool,
    ) {
        // Of eight samples, one fails, one panics, one draws nothing, one asks for too little, one fails after it has its memory.
        let fate = move |index: u64| SplitMix(seed ^ index).next() % 8;
        let failing = |index: u64| fate(index) < 5;
        let samples = || Source::indexed(len, move |index| {
            Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
                dawdle(index);
                match fate(index) {
                    0 => Err("no such luck".into()),
                    1 => std::panic::panic_any("out of colours"),
                    2 => Ok(()),
                    3 => canvas.rgb(0, 5).map(drop).map_err(DecodeError::from),
                    4 => { canvas.rgb(5, 5)?; Err("half way".into()) }
                    _ => draw(index, canvas),
                }
            })
        });
        silence_panics();
        for &device in devices() {
            let upload = if streams { Upload::Streams } else { Upload::Sequential };
            let options = Options { skip_errors: skip, drop_last, ..options(batch, threads, upload) };
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
                            1 => text == "the decoder panicked: out of colours",
                            2 => text == "the decoder returned without an image",
                            3 => matches!(cause.downcast_ref(), Some(Error::Parameter { .. })),
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

    #[test]
    fn ranks_share_each_epoch(
        len in 0u64..60, world in 1u64..6, batch in 1usize..7, seed: Option<u64>, drop_last: bool, endless: bool,
    ) {
        // Without a length nothing can be shuffled, and only the source knows where it ends.
        let endless = endless && seed.is_none();
        let samples = || if endless { source_until(len) } else { source(len) };
        let cpu = Device::cpu().unwrap();
        let mut epochs = Vec::new();
        let load = |rank| Options {
            shuffle: seed, shard: (rank, world), drop_last, ..options(batch, 2, Upload::Off)
        };
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
    fn a_batch_is_complete_before_its_consumer(seed: u64, batch in 1usize..5) {
        static SEEDED: Mutex<Option<Device>> = Mutex::new(None);
        let mut seeded = SEEDED.lock().unwrap_or_else(|e| e.into_inner());
        let device = *seeded.get_or_insert_with(|| Device::seeded_cpu(0).unwrap());
        device.reseed(seed);
        let mut loader = Loader::new(device, source(12), options(batch, 2, Upload::Streams)).unwrap();
        let mut seen = Vec::new();
        for batch in loader.by_ref() {
            seen.extend(check(device, batch.unwrap()));
        }
        prop_assert_eq!(seen, (0..12).collect::<Vec<_>>());
    }
}

/// Keeps the panics that these tests ask for out of their output.
fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<&str>();
            if !matches!(text, Some(&"out of colours" | &"out of samples")) {
                usual(info);
            }
        }));
    });
}

#[test]
fn when_all_samples_are_skipped_the_end_comes() {
    for &device in devices() {
        for upload in [Upload::Streams, Upload::Sequential] {
            // The first image has streams decided on; then more batches than fit are empty.
            let samples = Source::indexed(40, |index| {
                Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
                    if index == 0 { draw(index, canvas) } else { Err("no such luck".into()) }
                })
            });
            let options = Options { skip_errors: true, ..options(1, 1, upload) };
            let mut loader = Loader::new(device, samples, options).unwrap();
            assert_eq!(check(device, loader.next().unwrap().unwrap()), [0]);
            assert!(loader.next().is_none());
            assert_eq!(loader.stats().failed, 39);
        }
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
        let options = Options { shard: (1, 2), ..options(4, 2, Upload::Auto) };
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
fn a_source_that_panics_ends_the_epoch_with_an_error() {
    silence_panics();
    let cpu = Device::cpu().unwrap();
    let samples = Source::from_fn(|index| {
        if index == 5 {
            std::panic::panic_any("out of samples");
        }
        Some(Sample::new(format!("image {index}"), format!("label {index}"), move |c| draw(index, c)))
    });
    let mut loader = Loader::new(cpu, samples, options(3, 2, Upload::Auto)).unwrap();
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
        let options = Options { drop_last: true, pinned_budget, ..options(2, 2, Upload::Auto) };
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
            [(true, true, Upload::Streams), (true, false, Upload::Sequential), (false, true, Upload::Off)]
        {
            let (mut counts, mut failed) = (Vec::new(), Vec::new());
            let mut without_images = 0;
            for rank in 0..WORLD {
                let sample = move |index: u64| {
                    Sample::new(format!("image {index}"), index, move |canvas: &mut Canvas<'_>| {
                        if broken(index) { Err("broken".into()) } else { draw(index, canvas) }
                    })
                };
                let samples = match known {
                    true => Source::indexed(LEN, sample),
                    false => Source::from_fn(move |index| (index < LEN).then(|| sample(index))),
                };
                let shuffle = known.then_some(9);
                let (shard, drop_last) = ((rank, WORLD), true);
                let options = Options { shuffle, shard, drop_last, skip_errors, ..options(BATCH, 2, upload) };
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
        for upload in [Upload::Streams, Upload::Sequential, Upload::Off] {
            for broken in [0..2, 2..4, 4..6, 0..6] {
                let lost = broken.clone();
                let samples = Source::indexed(6, move |index| {
                    let lost = lost.contains(&index);
                    Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
                        if lost { Err("broken".into()) } else { draw(index, canvas) }
                    })
                });
                let options = Options { drop_last: true, skip_errors: true, ..options(2, 2, upload) };
                let mut loader = Loader::new(device, samples, options).unwrap();
                let mut seen = Vec::new();
                while let Some(batch) = loader.next() {
                    let (event, planes) = compute.enter(|s| {
                        let batch = s.wait(batch.unwrap()).unwrap();
                        seen.push((batch.indices.clone(), batch.failed.clone()));
                        let values: Vec<usize> = batch.sizes.iter().map(|[h, w]| 13 * (h * w) as usize).collect();
                        let mut planes = s.alloc::<f32>(values.iter().sum()).unwrap();
                        let mut rest = planes.slice_mut(..).unwrap();
                        for ((range, [h, w]), n) in byte_ranges(&batch.sizes).into_iter().zip(&batch.sizes).zip(values)
                        {
                            let (own, others) = rest.split_at_mut(n).unwrap();
                            if upload != Upload::Off {
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

#[test]
fn dropped_at_any_point_it_leaves_nothing_behind() {
    for &device in devices() {
        for upload in [Upload::Streams, Upload::Sequential, Upload::Off] {
            for budget in [usize::MAX, 24 << 10] {
                for taken in 0..=6 {
                    for held in 0..=taken.min(1) {
                        let token = Arc::new(());
                        let (in_source, in_samples) = (token.clone(), token.clone());
                        let samples = Source::indexed(20, move |index| {
                            let (_, token) = (&in_source, in_samples.clone());
                            Sample::new("", token.clone(), move |canvas| {
                                let _token = token;
                                dawdle(index + 20 * taken);
                                draw(index, canvas)
                            })
                        });
                        let options = Options { pinned_budget: budget, ..options(4, 3, upload) };
                        let mut loader = Loader::new(device, samples, options).unwrap();
                        let pool = loader.pinned_pool();
                        let mut batches: Vec<_> = loader.by_ref().take(taken as usize).collect();
                        batches.truncate(held as usize);
                        drop(loader); // no thread of it is left, or it would hold the token
                        drop(batches);
                        assert_eq!(Arc::strong_count(&token), 1, "{upload:?}, after {taken} batches");
                        all_returned(&pool);
                    }
                }
            }
        }
    }
}

#[test]
fn device_memory_comes_back_too() {
    let cpu = Device::new_cpu().unwrap();
    cpu.limit_memory(Some(64 << 20));
    let free = cpu.free_memory().unwrap();
    for taken in 0..4 {
        let mut loader = Loader::new(cpu, source(20), options(4, 3, Upload::Streams)).unwrap();
        let held: Vec<_> = loader.by_ref().take(taken).collect();
        if let Some(Ok(batch)) = loader.next() {
            loader.recycle(batch);
        }
        drop(loader);
        drop(held);
        let begin = Instant::now();
        while cpu.free_memory().unwrap() != free {
            assert!(begin.elapsed() < Duration::from_secs(20), "{} of {free}", cpu.free_memory().unwrap());
            thread::yield_now();
        }
    }
}

/// Its memory was kept for a later batch, and the loader failed when it met that.
#[test]
fn a_batch_of_another_device_is_not_kept() {
    for upload in [Upload::Streams, Upload::Sequential] {
        let devices = [Device::new_cpu().unwrap(), Device::new_cpu().unwrap()];
        let [here, mut there] = devices.map(|device| {
            let source = Source::indexed(20, |index| {
                Sample::new("same", "", move |canvas| {
                    canvas.rgb(3, 5)?.fill(index as u8);
                    Ok(())
                })
            });
            Loader::new(device, source, options(4, 3, upload)).unwrap()
        });
        here.recycle(there.next().unwrap().unwrap());
        assert_eq!(here.map(|batch| batch.unwrap().synchronize().unwrap().len()).sum::<usize>(), 20);
    }
}

/// An image for which there is no memory at all ended the process; the largest numbers overflowed.
#[test]
fn numbers_may_be_as_large_as_they_like() {
    let sample = |index: u64| {
        Sample::new("sample", index, move |canvas: &mut Canvas<'_>| {
            let (height, width) = if index == 3 { (1_000_000, 100_000_000) } else { (2, 3) };
            canvas.rgb(height, width)?.fill(1);
            Ok(())
        })
    };
    let all = Options { prefetch: usize::MAX, stream_bytes: usize::MAX, ..options(2, 2, Upload::Auto) };
    let one = Options { shard: (u64::MAX - 1, u64::MAX), ..all.clone() };
    let cpu = Device::new_cpu().unwrap();
    let mut loader = Loader::new(cpu, Source::indexed(8, sample), all).unwrap();
    let (mut batches, mut errors) = (0, Vec::new());
    while let Some(batch) = loader.next() {
        match batch {
            Ok(batch) => {
                batches += 1;
                loader.recycle(batch);
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    assert_eq!((batches, errors.len()), (4, 1));
    assert!(errors[0].starts_with("sample 3") && errors[0].contains("memory"), "{errors:?}");
    let loader = Loader::new(cpu, Source::from_fn(move |index| Some(sample(index))), one).unwrap();
    let indices = loader.map(|batch| batch.unwrap().synchronize().unwrap().indices);
    assert_eq!(indices.collect::<Vec<_>>(), [[u64::MAX - 1]]);
}

#[test]
fn epochs_use_the_same_threads_and_buffers() {
    for &device in devices() {
        for upload in [Upload::Streams, Upload::Sequential] {
            let threads = Arc::new(Mutex::new(HashSet::new()));
            let seen = threads.clone();
            let samples = Source::indexed(24, move |index| {
                let seen = seen.clone();
                Sample::new(index.to_string(), index, move |canvas| {
                    seen.lock().unwrap().insert(thread::current().id());
                    canvas.rgb(64, 64)?.fill(index as u8);
                    Ok(())
                })
            });
            let mut loader = Loader::new(device, samples, options(4, 3, upload)).unwrap();
            let pool = loader.pinned_pool();
            let mut addresses = HashSet::new();
            for epoch in 0..6 {
                assert_eq!(loader.epoch(), epoch);
                let mut expected = 0..if epoch == 2 { 8 } else { 24 }; // one epoch is left early
                while let Some(batch) = (expected.start < expected.end).then(|| loader.next()).flatten() {
                    let batch = batch.unwrap().synchronize().unwrap();
                    addresses.insert(batch.rgb.device_ptr());
                    assert!(batch.meta.iter().all(|&index| expected.next() == Some(index)));
                    loader.recycle(Event::ready(batch));
                }
                assert!(expected.is_empty());
                loader.restart();
            }
            assert!(threads.lock().unwrap().len() <= 3);
            // Prefetched, in the consumer's hands, and left of the epoch that ended early.
            assert!(addresses.len() <= 8, "{} device buffers", addresses.len());
            // Three batches under way and one in the consumer's hands; and as many again of the epoch that ended early.
            assert!(pool.in_use() + pool.cached() <= 2 * 4 * 4 * 64 * 64 * 3, "{} bytes", pool.cached());
        }
    }
}

/// Where threads wait for one another. Only a failure takes as long as the limit.
#[derive(Default)]
struct Meeting(Mutex<u64>, Condvar);

impl Meeting {
    const PATIENCE: Duration = Duration::from_secs(20);

    fn arrive(&self) -> u64 {
        let mut count = self.0.lock().unwrap();
        *count += 1;
        self.1.notify_all();
        *count
    }

    /// Whether `count` have arrived in time.
    fn wait_for(&self, count: u64) -> bool {
        let arrived = self.0.lock().unwrap();
        !self.1.wait_timeout_while(arrived, Self::PATIENCE, |arrived| *arrived < count).unwrap().1.timed_out()
    }
}

#[test]
fn as_many_samples_are_decoded_at_once_as_there_are_threads() {
    for &device in devices() {
        for (threads, batch) in [(2, 1), (4, 8), (5, 3)] {
            let meeting = Arc::new(Meeting::default());
            let samples = Source::indexed(4 * threads, move |index| {
                let meeting = meeting.clone();
                Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
                    // Each round of decoders leaves when the last of it is here.
                    let round = (meeting.arrive() - 1) / threads + 1;
                    match meeting.wait_for(round * threads) {
                        true => draw(index, canvas),
                        false => Err(format!("fewer than {threads} samples are decoded at once").into()),
                    }
                })
            });
            let loader = Loader::new(device, samples, options(batch, threads as usize, Upload::Auto)).unwrap();
            assert_eq!(loader.threads(), threads as usize);
            let seen: Vec<u64> = loader.flat_map(|item| check(device, item.unwrap())).collect();
            assert_eq!(seen, (0..4 * threads).collect::<Vec<_>>());
        }
    }
}

/// While nobody takes anything, as much is decoded as `prefetch` says, and one batch more that the
/// thread is at work on.
#[test]
fn as_much_is_decoded_ahead_as_prefetched() {
    for &device in devices() {
        for upload in [Upload::Streams, Upload::Sequential, Upload::Off] {
            for prefetch in [1, 2, 3, 6] {
                let begun = Arc::new(Meeting::default());
                let taken = Arc::new(AtomicU64::new(0));
                let worst = Arc::new(AtomicU64::new(0));
                let (b, t, w) = (begun.clone(), taken.clone(), worst.clone());
                let samples = Source::indexed(40, move |index| {
                    let (b, t, w) = (b.clone(), t.clone(), w.clone());
                    Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
                        w.fetch_max(b.arrive().saturating_sub(t.load(Ordering::SeqCst)), Ordering::SeqCst);
                        draw(index, canvas)
                    })
                });
                let options = Options { prefetch, ..options(2, 1, upload) };
                let mut loader = Loader::new(device, samples, options).unwrap();
                let window = 2 * (prefetch as u64 + 1);
                for round in 0..3 {
                    assert!(
                        begun.wait_for(2 * round + window),
                        "prefetch {prefetch}, {upload:?}, {round} batches taken"
                    );
                    // Meanwhile this one could begin another batch, which it may not.
                    let other = Loader::new(device, source(12), self::options(2, 1, upload)).unwrap();
                    assert_eq!(other.count(), 6);
                    taken.fetch_add(2, Ordering::SeqCst); // `next` makes room at its end
                    drop(loader.next().unwrap().unwrap());
                }
                loop {
                    taken.fetch_add(2, Ordering::SeqCst);
                    let Some(batch) = loader.next() else { break };
                    drop(batch.unwrap());
                }
                assert!(worst.load(Ordering::SeqCst) <= window, "prefetch {prefetch}, {upload:?}: {worst:?}");
            }
        }
    }
}

#[test]
fn no_more_is_decoded_than_prefetched() {
    for &device in devices() {
        for upload in [Upload::Streams, Upload::Sequential] {
            let (decoded, taken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let worst = Arc::new(AtomicU64::new(0));
            let (d, t, w) = (decoded.clone(), taken.clone(), worst.clone());
            let samples = Source::indexed(60, move |index| {
                let (d, t, w) = (d.clone(), t.clone(), w.clone());
                Sample::new(index.to_string(), (), move |canvas| {
                    let ahead = (d.fetch_add(1, Ordering::SeqCst) + 1).saturating_sub(t.load(Ordering::SeqCst));
                    w.fetch_max(ahead, Ordering::SeqCst);
                    draw(index, canvas)
                })
            });
            let mut loader = Loader::new(device, samples, options(3, 4, upload)).unwrap();
            let begin = Instant::now();
            while decoded.load(Ordering::SeqCst) < 12 {
                assert!(begin.elapsed() < Duration::from_secs(20), "it decodes ahead before anybody asks");
                thread::yield_now();
            }
            // What a batch's `next` returns counts as taken before the call, as `next` makes room at its end.
            loop {
                taken.fetch_add(3, Ordering::SeqCst);
                let Some(batch) = loader.next() else { break };
                drop(batch.unwrap());
            }
            // Two batches ahead, and two that four threads are at work on.
            assert!(worst.load(Ordering::SeqCst) <= 12, "{}", worst.load(Ordering::SeqCst));
        }
    }
}

/// Bytes that a pool takes for one image of `draw`.
const PAGE: usize = 4096;

#[test]
fn a_spent_pinned_budget_is_waited_for() {
    for &device in devices() {
        for upload in [Upload::Streams, Upload::Sequential, Upload::Off] {
            // One batch of four images, and a half.
            let options = Options { pinned_budget: 6 * PAGE, prefetch: 3, ..options(4, 6, upload) };
            let mut loader = Loader::new(device, source(41), options).unwrap();
            let pool = loader.pinned_pool();
            let mut seen = Vec::new();
            for batch in loader.by_ref() {
                assert!(pool.in_use() + pool.cached() <= 6 * PAGE);
                let batch = batch.unwrap();
                seen.extend(if upload == Upload::Off {
                    batch.synchronize().unwrap().indices
                } else {
                    check(device, batch)
                });
            }
            assert_eq!(seen, (0..41).collect::<Vec<_>>(), "{upload:?}");
        }
    }
}

#[test]
fn a_pinned_budget_that_cannot_suffice_is_an_error() {
    for &device in devices() {
        let spent = |item: Option<Result<_, Error>>| match item {
            Some(Err(Error::Sample { index, cause, .. })) => match cause.downcast_ref() {
                Some(Error::PinnedBudget { budget, .. }) => (index, *budget),
                _ => panic!("{cause}"),
            },
            Some(Ok(_)) => panic!("a batch came"),
            Some(Err(error)) => panic!("{error}"),
            None => panic!("the end came"),
        };
        // One image is too large, however long one waits; the others go on.
        let samples = Source::indexed(6, |index| {
            Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
                if index == 3 { canvas.rgb(100, 100).map(drop).map_err(Into::into) } else { draw(index, canvas) }
            })
        });
        let options = Options { pinned_budget: 2 * PAGE, ..options(2, 3, Upload::Auto) };
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
    for upload in [Upload::Streams, Upload::Sequential] {
        let cpu = Device::new_cpu().unwrap();
        cpu.limit_memory(Some(100_000));
        let samples = |side: fn(u64) -> u32| {
            Source::indexed(6, move |index| {
                Sample::new(index.to_string(), index, move |canvas| {
                    canvas.rgb(side(index), 100)?.fill(index as u8);
                    Ok(())
                })
            })
        };
        // Two batches of 30 000 bytes fit and a third does, but not a fourth.
        let mut loader = Loader::new(cpu, samples(|_| 100), options(1, 2, upload)).unwrap();
        let mut kept: Vec<_> = loader.by_ref().take(3).map(Result::unwrap).collect();
        let error = loader.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { wanted: 30_000, .. }), "{error}");
        let first = kept.remove(0).synchronize().unwrap();
        assert_eq!(first.meta, [0]);
        drop(first);
        kept.into_iter().for_each(|batch| drop(batch.synchronize().unwrap()));
        let begin = Instant::now();
        while cpu.free_memory().unwrap() < 90_000 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::yield_now();
        }
        let mut rest = Vec::new();
        for batch in loader.by_ref() {
            rest.extend(batch.unwrap().synchronize().unwrap().meta);
        }
        assert_eq!(rest, [3, 4, 5], "none is lost");

        // One that can never fit is given up after the second error, and what follows still comes;
        // with `drop_last`, what is left of it comes too.
        for drop_last in [false, true] {
            let options = Options { drop_last, ..options(1, 2, upload) };
            let mut loader = Loader::new(cpu, samples(|i| if i == 1 { 1000 } else { 10 }), options).unwrap();
            let (mut seen, mut lost, mut errors) = (Vec::new(), Vec::new(), 0);
            for batch in loader.by_ref() {
                match batch {
                    Ok(batch) => {
                        let batch = batch.synchronize().unwrap();
                        seen.push(batch.meta);
                        lost.extend(batch.failed);
                    }
                    Err(Error::OutOfMemory { wanted: 300_000, .. }) => errors += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            let (second, failed) = if drop_last { (vec![vec![]], vec![1]) } else { (vec![], vec![]) };
            assert_eq!(seen, [vec![vec![0]], second, (2..6).map(|i| vec![i]).collect()].concat());
            assert_eq!((lost, errors, loader.stats().failed), (failed, 2, 1));
        }
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
    let options = Options { shuffle: Some(5), ..options(5, 4, Upload::Streams) };
    let batch = Loader::new(gpu, samples, options).unwrap().next().unwrap().unwrap();
    let batch = consumer.wait(batch).unwrap();
    assert_eq!(batch.meta, batch.indices.iter().map(|&i| label(i)).collect::<Vec<_>>());
    let batch = consumer.record(batch).unwrap().synchronize().unwrap();
    assert_eq!(batch.meta, batch.indices.iter().map(|&i| label(i)).collect::<Vec<_>>());
    assert_eq!(batch.len(), 5);
}

#[test]
fn files_and_folders() {
    let folder = std::env::temp_dir().join(format!("thalweg-loader-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("below.ppm")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    for index in [2u64, 0, 1] {
        let [height, width] = size(index);
        let head = format!("P6\n# image {index}\n{width} {height}\n255\n");
        write(&format!("{index}.PPM"), &[head.as_bytes(), &pixels(index)].concat());
    }
    write("3.ppm", b"P6 2 2 255 short");
    write("4.ppm", b"P3 2 2 255 1 2 3");
    write("5.ppm", b"P6 1000000 100000000 255 few");
    write(".hidden.ppm", b"");
    write("notes.txt", b"");
    for &device in devices() {
        let samples = Source::folder(&folder, &["ppm"], read_ppm).unwrap();
        let mut loader = Loader::new(device, samples, options(8, 2, Upload::Auto)).unwrap();
        let wrong = [("3.ppm", "cannot read its pixels"), ("4.ppm", "not a binary PPM"), ("5.ppm", "truncated")];
        for (name, message) in wrong {
            let error = loader.next().unwrap().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(message), "{error}");
        }
        let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
        assert_eq!(batch.meta, ["0.PPM", "1.PPM", "2.PPM"].map(|name| folder.join(name)));
        for index in 0..3 {
            assert_eq!(batch.pixels(index as usize), pixels(index));
        }
        let samples = Source::folder(&folder, &["ppm"], upload_ppm).unwrap();
        let mut loader = Loader::new(device, samples, options(8, 2, Upload::Auto)).unwrap();
        assert_eq!(loader.by_ref().take(3).filter(Result::is_err).count(), 3);
        let batch = device.per_thread(|s| {
            let batch = s.wait(loader.next().unwrap().unwrap()).unwrap();
            (s.read_blocking(&batch.rgb).unwrap(), byte_ranges(&batch.sizes))
        });
        let (bytes, ranges) = batch.unwrap();
        assert!((0..3).zip(ranges).all(|(index, range)| bytes[range] == pixels(index)));
        let missing = Source::files([folder.join("missing.ppm")], read_ppm);
        let error = Loader::new(device, missing, options(1, 1, Upload::Auto)).unwrap().next().unwrap().unwrap_err();
        assert!(error.to_string().contains("missing.ppm") && error.to_string().contains("cannot open it"), "{error}");
    }
    assert!(Source::folder(&folder, &["gif"], read_ppm).unwrap_err().to_string().contains("*.gif"));
    assert!(Source::folder(folder.join("nowhere"), &["ppm"], read_ppm).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("thalweg-loader-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Smaller than a piece, a piece and a part, whole pieces exactly, and several pieces and a part.
const IN_FILES: [[u32; 2]; 4] = [[3, 5], [1200, 1301], [2048, 2048], [1400, 3203]];

fn in_file(index: u64) -> ([u32; 2], u64, Vec<u8>) {
    let [height, width] = IN_FILES[index as usize % 4];
    let mut bytes = vec![0; 3 * (height * width) as usize];
    let mut random = SplitMix(index);
    bytes.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.next().to_le_bytes()[..bytes.len()]));
    ([height, width], 4090 + 7 * index, bytes)
}

/// Pixels in files reach the device with no memory of their own on the host, whatever memory there
/// is for slots, beside images that are decoded.
#[test]
fn pixels_in_files_reach_the_device() {
    let folder = Folder::new("in-files");
    let path = |index: u64| folder.0.join(index.to_string());
    for index in 0..10 {
        let (_, at, bytes) = in_file(index);
        std::fs::write(path(index), [vec![0xee; at as usize], bytes, vec![0xdd; 9]].concat()).unwrap();
    }
    let decoded = |index: u64| index % 3 == 2;
    let buffered = |path: &Path| File::open(path);
    type Open = fn(&Path) -> std::io::Result<File>;
    let mut opens: Vec<(bool, Open)> = vec![(false, buffered)];
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let direct: Open = |path| File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
        match direct(&path(0)) {
            Ok(_) => opens.push((true, direct)),
            Err(error) => report(&format!("NOT COVERED: direct I/O ({error})")),
        }
    }
    for &device in devices() {
        for &(direct, open) in &opens {
            for upload in [Upload::Streams, Upload::Sequential, Upload::Off] {
                // Room for as many slots as the loader likes, for two, and for none.
                for pinned_budget in [usize::MAX, 34 << 20, 1 << 20] {
                    if upload == Upload::Off && (direct || pinned_budget < usize::MAX) {
                        continue; // it reads all of an image into memory, wherever the blocks of the file begin
                    }
                    let folder = folder.0.clone();
                    let samples = Source::indexed(10, move |index| {
                        let path = folder.join(index.to_string());
                        Sample::new(format!("image {index}"), index, move |canvas| {
                            if decoded(index) {
                                return draw(index, canvas);
                            }
                            let ([height, width], at, _) = in_file(index);
                            canvas.rgb_in_file(height, width, open(&path)?, at)
                        })
                    });
                    let options = Options { pinned_budget, ..options(4, 3, upload) };
                    let mut loader = Loader::new(device, samples, options).unwrap();
                    let pool = loader.pinned_pool();
                    let mut seen = Vec::new();
                    while let Some(batch) = loader.next() {
                        let batch = device
                            .per_thread(|s| {
                                let batch = s.wait(batch.unwrap()).unwrap();
                                let bytes = s.read_blocking(&batch.rgb).unwrap();
                                for ((&index, range), size) in
                                    batch.indices.iter().zip(byte_ranges(&batch.sizes)).zip(&batch.sizes)
                                {
                                    let (expected_size, _, expected) = in_file(index);
                                    let (expected_size, expected) = match decoded(index) {
                                        true => (self::size(index), pixels(index)),
                                        false => (expected_size, expected),
                                    };
                                    assert_eq!(*size, expected_size);
                                    let same = upload == Upload::Off || bytes[range] == expected;
                                    assert!(same, "image {index} on {device}, {upload:?}, budget {pinned_budget}");
                                }
                                s.record(batch).unwrap().synchronize().unwrap()
                            })
                            .unwrap();
                        for (i, &index) in batch.indices.iter().enumerate() {
                            let expected = match (decoded(index), upload) {
                                (true, _) => pixels(index),
                                (false, Upload::Off) => in_file(index).2,
                                (false, _) => Vec::new(),
                            };
                            assert!(batch.pixels(i) == expected, "image {index} on the host");
                        }
                        seen.extend(batch.indices.clone());
                        loader.recycle(Event::ready(batch));
                    }
                    assert_eq!(seen, (0..10).collect::<Vec<_>>());
                    assert!(pool.in_use() + pool.cached() <= pinned_budget);
                    if upload != Upload::Off {
                        // Slots for three threads, and pages of what is decoded.
                        assert!(pool.in_use() + pool.cached() < 32 << 20, "{} bytes are locked", pool.in_use());
                    }
                    let all = |index| match decoded(index) {
                        true => pixels(index).len(),
                        false => in_file(index).2.len(),
                    };
                    assert_eq!(loader.stats().bytes, (0..10).map(|index| all(index) as u64).sum::<u64>());
                    drop(loader);
                    all_returned(&pool);
                }
            }
        }
    }
}

/// A file that is cut short once its size is known costs its sample alone.
#[test]
fn a_file_that_cannot_be_read_any_more_costs_its_sample_alone() {
    let folder = Folder::new("cut");
    for &device in devices() {
        for upload in [Upload::Streams, Upload::Sequential] {
            for index in 0..8 {
                let (_, at, bytes) = in_file(index);
                std::fs::write(folder.0.join(index.to_string()), [vec![0; at as usize], bytes].concat()).unwrap();
            }
            let cut = |index: u64| [1, 2, 4, 5, 6, 7].contains(&index);
            let path = folder.0.clone();
            let samples = Source::indexed(8, move |index| {
                let path = path.join(index.to_string());
                Sample::new(format!("image {index}"), format!("label {index}"), move |canvas| {
                    let ([height, width], at, bytes) = in_file(index);
                    let file = File::options().read(true).write(true).open(path)?;
                    if cut(index) {
                        file.set_len(at + bytes.len() as u64 - 1)?;
                    }
                    canvas.rgb_in_file(height, width, file, at)
                })
            });
            let options = Options { drop_last: true, ..options(4, 2, upload) };
            let mut loader = Loader::new(device, samples, options).unwrap();
            for expected in [vec![1, 2], vec![4, 5, 6, 7]] {
                for index in &expected {
                    let Some(Err(error @ Error::Sample { .. })) = loader.next() else { panic!("an error was due") };
                    let message = format!("sample {index} (image {index}): cannot read its pixels: the file ends");
                    assert!(error.to_string().starts_with(&message), "{error}");
                }
                let batch = loader.next().unwrap().unwrap();
                let bytes = device.per_thread(|s| {
                    let batch = s.wait(batch).unwrap();
                    assert_eq!(batch.failed, expected);
                    (s.read_blocking(&batch.rgb).unwrap(), byte_ranges(&batch.sizes), batch.indices.clone())
                });
                let (bytes, ranges, indices) = bytes.unwrap();
                assert_eq!(indices.len(), 4 - expected.len());
                assert!(indices.iter().zip(ranges).all(|(&index, range)| bytes[range] == in_file(index).2));
            }
            assert!(loader.next().is_none());
            assert_eq!((loader.stats().images, loader.stats().failed), (2, 6));
        }
    }
}

#[test]
fn photographs_decode_as_another_decoder_says() {
    use thalweg_loader::read_photo;

    for &device in devices() {
        let samples = Source::folder("assets/photos", &["png"], read_photo).unwrap();
        let mut loader = Loader::new(device, samples, options(2, 2, Upload::Streams)).unwrap();
        let mut photos = 0;
        for batch in loader.by_ref() {
            let batch = batch.unwrap().synchronize().unwrap();
            for (i, path) in batch.meta.iter().enumerate() {
                let expected = support::files::read_png(path);
                assert_eq!(batch.sizes[i].map(|n| n as usize), [expected.height, expected.width]);
                assert_eq!(batch.pixels(i), expected.rgb);
                photos += 1;
            }
        }
        assert_eq!(photos, 5);
    }
}
