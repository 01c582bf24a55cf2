//! Tests of memory: it comes back whenever the loader is dropped, epochs share it, and no number is
//! too large for it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use testkit::devices::devices;
use thalweg::{Device, Event};
use thalweg_loader::{ImageSink, Loader, Sample, Shard, Source, UploadMode};

use crate::{all_returned, draw, options, random_delay, source};

#[test]
fn dropped_at_any_point_it_leaves_nothing_behind() {
    for &device in devices() {
        for upload in [UploadMode::Streams, UploadMode::Sequential, UploadMode::Off] {
            for budget in [usize::MAX, 24 << 10] {
                for taken in 0..=6 {
                    for held in 0..=taken.min(1) {
                        let token = Arc::new(());
                        let (in_source, in_samples) = (token.clone(), token.clone());
                        let samples = Source::indexed(20, move |index| {
                            let (_, token) = (&in_source, in_samples.clone());
                            Sample::new("", token.clone(), move |sink| {
                                let _token = token;
                                random_delay(index + 20 * taken);
                                draw(index, sink)
                            })
                        });
                        let options = options(4, 3, upload).with_pinned_budget(budget);
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
        let mut loader = Loader::new(cpu, source(20), options(4, 3, UploadMode::Streams)).unwrap();
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

/// With memory for three batches, fewer than the five that were asked for are made ahead. None is
/// lost, and with more memory there are five again.
#[test]
fn fewer_batches_are_made_ahead_while_there_is_little_memory() {
    const BATCHES: u64 = 60;
    for upload_streams in [1, 3] {
        let cpu = Device::new_cpu().unwrap();
        cpu.limit_memory(Some(100_000));
        let samples = Source::indexed(BATCHES, |index| {
            Sample::new(index.to_string(), index, move |sink| {
                sink.rgb(100, 100)?.fill(index as u8);
                Ok(())
            })
        });
        let options = options(1, 2, UploadMode::Streams).with_prefetch(5).with_upload_streams(upload_streams);
        let mut loader = Loader::new(cpu, samples, options).unwrap();
        assert_eq!((loader.stats().prefetch, loader.stats().without_memory), (5, 0));
        let take = |loader: &mut Loader<u64>| loader.next().unwrap().unwrap().synchronize().unwrap().meta[0];
        let begin = Instant::now();
        let mut seen = vec![take(&mut loader)];
        while loader.stats().without_memory == 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "the fourth batch ahead finds no memory");
            thread::yield_now();
        }
        assert_eq!(loader.stats().prefetch, 2);
        seen.push(take(&mut loader));
        cpu.limit_memory(None);
        seen.extend((0..BATCHES - 2).map(|_| take(&mut loader)));
        assert_eq!(seen, (0..BATCHES).collect::<Vec<_>>());
        assert_eq!(loader.stats().prefetch, 5);
        assert!(loader.next().is_none());
    }
}

/// The buffers that wait for a later batch are no more than can be in use: `prefetch`, one in the
/// making, and one in the hands of the consumer.
#[test]
fn few_buffers_are_kept_for_later_batches() {
    const BATCHES: u64 = 20;
    let cpu = Device::new_cpu().unwrap();
    cpu.limit_memory(Some(64 << 20));
    let free = cpu.free_memory().unwrap();
    let used = || free - cpu.free_memory().unwrap();
    for prefetch in [1, 3] {
        for upload in [UploadMode::Streams, UploadMode::Sequential] {
            let samples = Source::indexed(BATCHES, |index| {
                Sample::new("same", "", move |sink| {
                    sink.rgb(40, 50)?.fill(index as u8);
                    Ok(())
                })
            });
            let mut loader = Loader::new(cpu, samples, options(1, 1, upload).with_prefetch(prefetch)).unwrap();
            let held: Vec<_> = loader.by_ref().map(|batch| batch.unwrap().synchronize().unwrap()).collect();
            let whole = used();
            assert!(whole >= BATCHES * 40 * 50 * 3, "all are in use: {whole}");
            held.into_iter().for_each(|batch| loader.recycle(Event::ready(batch)));
            let kept = (prefetch as u64 + 2) * whole / BATCHES;
            let begin = Instant::now();
            while used() > kept {
                assert!(begin.elapsed() < Duration::from_secs(20), "{} of {whole} bytes are kept", used());
                thread::yield_now();
            }
            drop(loader);
            while used() > 0 {
                assert!(begin.elapsed() < Duration::from_secs(20), "{} bytes are left", used());
                thread::yield_now();
            }
        }
    }
}

/// Each batch has a buffer of its own length. Those that wait for a batch of theirs make room for
/// one that finds no memory, before the consumer hears of that.
#[test]
fn buffers_of_another_length_are_given_up_and_not_taken() {
    let sides = [100, 100, 100, 152, 20]; // multiples of 4, so no buffer is padded
    for upload in [UploadMode::Streams, UploadMode::Sequential] {
        let cpu = Device::new_cpu().unwrap();
        cpu.limit_memory(Some(100_000));
        let samples = Source::indexed(5, move |index| {
            Sample::new("square", "", move |sink| {
                sink.rgb(sides[index as usize], sides[index as usize])?.fill(index as u8);
                Ok(())
            })
        });
        let mut loader = Loader::new(cpu, samples, options(1, 1, upload).with_prefetch(1)).unwrap();
        let mut held = Vec::new();
        for (index, side) in sides.into_iter().enumerate() {
            if side != 100 {
                // Three of these leave no room for the large one, which leaves none for them.
                held.drain(..).for_each(|batch| loader.recycle(Event::ready(batch)));
            }
            let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
            assert_eq!((batch.indices[0], batch.rgb.len()), (index as u64, 3 * (side * side) as usize), "{upload:?}");
            held.push(batch);
        }
    }
}

/// Its memory was kept for a later batch, and the loader failed when it met that.
#[test]
fn a_batch_of_another_device_is_not_kept() {
    for upload in [UploadMode::Streams, UploadMode::Sequential] {
        let devices = [Device::new_cpu().unwrap(), Device::new_cpu().unwrap()];
        let [here, mut there] = devices.map(|device| {
            let source = Source::indexed(20, |index| {
                Sample::new("same", "", move |sink| {
                    sink.rgb(3, 5)?.fill(index as u8);
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
fn extreme_option_values_do_not_overflow() {
    let sample = |index: u64| {
        Sample::new("sample", index, move |sink: &mut ImageSink<'_>| {
            let (height, width) = if index == 3 { (1_000_000, 100_000_000) } else { (2, 3) };
            sink.rgb(height, width)?.fill(1);
            Ok(())
        })
    };
    let all = options(2, 2, UploadMode::Auto).with_prefetch(usize::MAX).with_stream_bytes(usize::MAX);
    let one = all.clone().with_shard(Shard::new(u64::MAX - 1, u64::MAX));
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
        for upload in [UploadMode::Streams, UploadMode::Sequential] {
            let threads = Arc::new(Mutex::new(HashSet::new()));
            let seen = threads.clone();
            let samples = Source::indexed(24, move |index| {
                let seen = seen.clone();
                Sample::new(index.to_string(), index, move |sink| {
                    seen.lock().unwrap().insert(thread::current().id());
                    sink.rgb(64, 64)?.fill(index as u8);
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
            // Three batches under way and one in the consumer's hands; and as many again of the
            // epoch that ended early.
            assert!(pool.in_use() + pool.cached() <= 2 * 4 * 4 * 64 * 64 * 3, "{} bytes", pool.cached());
        }
    }
}
