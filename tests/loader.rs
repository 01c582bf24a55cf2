//! The loader: nothing lost, nothing out of order, nothing left behind, whatever fails and whenever it is dropped.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use oracle::SplitMix;
use proptest::prelude::*;
use thalweg::{Device, Error, Event, PinnedPool, stream_tags};
use thalweg_loader::{Batch, Canvas, DecodeError, Loader, Options, Sample, Source, Upload, byte_ranges, read_ppm};
use thalweg_vision::kernels::Layout;

mod support;
use support::cases;
use support::devices::devices;

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
            // The kernels of batches take it as it is.
            let layout = Layout::new(&batch.sizes, 32).unwrap();
            assert_eq!(ranges, (0..batch.sizes.len()).map(|i| layout.byte_range(i)).collect::<Vec<_>>());
            assert_eq!(bytes.len(), layout.bytes() as usize);
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
        len in 1u64..30, batch in 1usize..6, threads in 1usize..5, seed: u64, skip: bool, streams: bool,
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
            let options = Options { skip_errors: skip, ..options(batch, threads, upload) };
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
            let all: Vec<u64> = (0..len).collect();
            for chunk in all.chunks(batch) {
                if !skip {
                    expected.extend(chunk.iter().filter(|i| failing(**i)).map(|i| Err(*i)));
                }
                let good: Vec<u64> = chunk.iter().copied().filter(|i| !failing(*i)).collect();
                if !good.is_empty() {
                    expected.push(Ok(good));
                }
            }
            prop_assert_eq!(items, expected);
            let failed = all.iter().filter(|i| failing(**i)).count() as u64;
            prop_assert_eq!((loader.stats().failed, loader.stats().images), (failed, len - failed));
            let pool = loader.pinned_pool();
            drop(loader);
            all_returned(&pool);
        }
    }

    #[test]
    fn ranks_share_each_epoch(
        len in 0u64..60, world in 1u64..6, batch in 1usize..7, seed: Option<u64>, drop_last: bool,
    ) {
        let cpu = Device::cpu().unwrap();
        let mut epochs = Vec::new();
        let load = |rank| Options {
            shuffle: seed, shard: (rank, world), drop_last, ..options(batch, 2, Upload::Off)
        };
        let mut loaders: Vec<_> = (0..world).map(|rank| Loader::new(cpu, source(len), load(rank)).unwrap()).collect();
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

        // One that can never fit is given up after the second error, and what follows still comes.
        let mut loader = Loader::new(cpu, samples(|i| if i == 1 { 1000 } else { 10 }), options(1, 2, upload)).unwrap();
        let (mut seen, mut errors) = (Vec::new(), 0);
        for batch in loader.by_ref() {
            match batch {
                Ok(batch) => seen.extend(batch.synchronize().unwrap().meta),
                Err(Error::OutOfMemory { wanted: 300_000, .. }) => errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((seen, errors), (vec![0, 2, 3, 4, 5], 2));
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
        let missing = Source::files([folder.join("missing.ppm")], read_ppm);
        let error = Loader::new(device, missing, options(1, 1, Upload::Auto)).unwrap().next().unwrap().unwrap_err();
        assert!(error.to_string().contains("missing.ppm") && error.to_string().contains("cannot open it"), "{error}");
    }
    assert!(Source::folder(&folder, &["gif"], read_ppm).unwrap_err().to_string().contains("*.gif"));
    assert!(Source::folder(folder.join("nowhere"), &["ppm"], read_ppm).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
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
