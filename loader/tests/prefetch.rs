//! Tests of how much is decoded at once, and how far ahead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use testkit::devices::devices;
use thalweg_loader::{Loader, Sample, Source, UploadMode};

use crate::{check, draw, options, source};

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
                Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
                    // Each round of decoders leaves when the last of it is here.
                    let round = (meeting.arrive() - 1) / threads + 1;
                    match meeting.wait_for(round * threads) {
                        true => draw(index, sink),
                        false => Err(format!("fewer than {threads} samples are decoded at once").into()),
                    }
                })
            });
            let loader = Loader::new(device, samples, options(batch, threads as usize, UploadMode::Auto)).unwrap();
            assert_eq!(loader.decode_threads(), threads as usize);
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
        for upload in [UploadMode::Streams, UploadMode::Sequential, UploadMode::Off] {
            for prefetch in [1, 2, 3, 6] {
                let begun = Arc::new(Meeting::default());
                let taken = Arc::new(AtomicU64::new(0));
                let worst = Arc::new(AtomicU64::new(0));
                let (b, t, w) = (begun.clone(), taken.clone(), worst.clone());
                let samples = Source::indexed(40, move |index| {
                    let (b, t, w) = (b.clone(), t.clone(), w.clone());
                    Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
                        w.fetch_max(b.arrive().saturating_sub(t.load(Ordering::SeqCst)), Ordering::SeqCst);
                        draw(index, sink)
                    })
                });
                let options = options(2, 1, upload).with_prefetch(prefetch);
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
        for upload in [UploadMode::Streams, UploadMode::Sequential] {
            let (decoded, taken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let worst = Arc::new(AtomicU64::new(0));
            let (d, t, w) = (decoded.clone(), taken.clone(), worst.clone());
            let samples = Source::indexed(60, move |index| {
                let (d, t, w) = (d.clone(), t.clone(), w.clone());
                Sample::new(index.to_string(), (), move |sink| {
                    let ahead = (d.fetch_add(1, Ordering::SeqCst) + 1).saturating_sub(t.load(Ordering::SeqCst));
                    w.fetch_max(ahead, Ordering::SeqCst);
                    draw(index, sink)
                })
            });
            let mut loader = Loader::new(device, samples, options(3, 4, upload)).unwrap();
            let begin = Instant::now();
            while decoded.load(Ordering::SeqCst) < 12 {
                assert!(begin.elapsed() < Duration::from_secs(20), "it decodes ahead before anybody asks");
                thread::yield_now();
            }
            // A batch counts as taken before the call of `next`, because `next` makes room for
            // another before it returns.
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

/// A source that waits for requests holds up no image that is there already.
#[test]
fn while_a_source_waits_the_images_before_are_yielded() {
    for &device in devices() {
        for (upload, threads) in
            [(UploadMode::Streams, 1), (UploadMode::Sequential, 3), (UploadMode::Off, 1), (UploadMode::Off, 3)]
        {
            let (request, requests) = mpsc::channel::<()>();
            let samples = Source::from_fn(move |index| {
                requests.recv().ok()?;
                Some(Sample::new(format!("image {index}"), format!("label {index}"), move |sink| draw(index, sink)))
            });
            let mut loader = Loader::new(device, samples, options(1, threads, upload)).unwrap();
            let (yielded, seen) = mpsc::channel();
            let consumer = thread::spawn(move || {
                for batch in loader.by_ref() {
                    let batch = batch.unwrap();
                    let index = match upload {
                        UploadMode::Off => batch.synchronize().unwrap().indices,
                        _ => check(device, batch),
                    };
                    yielded.send(index).unwrap();
                }
            });
            for index in 0..5 {
                request.send(()).unwrap();
                assert_eq!(seen.recv_timeout(Meeting::PATIENCE).as_deref(), Ok(&[index][..]), "{upload:?}");
            }
            drop(request);
            consumer.join().unwrap();
            assert!(seen.recv().is_err());
        }
    }
}
