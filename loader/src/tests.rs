//! Tests that need access to the inside: streams and page-locking that fail, and a bad environment.

mod streams;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use thalweg::{AnyStream, Device, Error, PinnedBuffer, PinnedPool, Result, Size};

use crate::loader::NewStream;
use crate::queue::Pin;
use crate::state::State;
use crate::{DecodeBackend, Loader, LoaderOptions, Sample, Shard, Source, UploadMode, byte_ranges, lock};

/// Nine images of mixed sizes. Their index decides their bytes.
fn source() -> Source<u64> {
    Source::indexed(9, |index| {
        Sample::new(format!("image {index}"), index, move |sink| {
            let bytes = sink.rgb(1 + index as u32 % 4, 1 + (index * 7) as u32 % 23)?;
            bytes.iter_mut().zip(0u64..).for_each(|(byte, i)| *byte = (31 * i + 17 * index) as u8);
            Ok(())
        })
    })
}

fn options(upload: UploadMode) -> LoaderOptions {
    let options = LoaderOptions::default().with_batch_size(4).with_decode_threads(3).with_upload(upload);
    options.settle().unwrap()
}

/// The size, the bytes on the device and the metadata of each image.
fn everything(loader: Loader<u64>) -> Vec<(Size, Vec<u8>, u64)> {
    let device = loader.device;
    let mut all = Vec::new();
    for batch in loader {
        device
            .per_thread(|s| {
                let batch = s.wait(batch.unwrap()).unwrap();
                let bytes = s.read_blocking(&batch.rgb).unwrap();
                for ((range, size), meta) in byte_ranges(&batch.sizes).into_iter().zip(&batch.sizes).zip(&batch.meta) {
                    all.push((*size, bytes[range].to_vec(), *meta));
                }
            })
            .unwrap();
    }
    all
}

fn expected(device: Device) -> Vec<(Size, Vec<u8>, u64)> {
    let all = everything(Loader::new(device, source(), options(UploadMode::Sequential)).unwrap());
    assert_eq!(all.iter().map(|(.., meta)| *meta).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    all
}

fn cannot_pin(_: &PinnedPool, _: usize) -> Result<PinnedBuffer<u8>> {
    Err(Error::Cuda {
        call: "cuMemHostAlloc",
        code: 2,
        name: "CUDA_ERROR_OUT_OF_MEMORY".into(),
        meaning: "none".into(),
    })
}

fn pins_every_third(pool: &PinnedPool, bytes: usize) -> Result<PinnedBuffer<u8>> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    if COUNT.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) { pool.take(bytes) } else { cannot_pin(pool, bytes) }
}

#[test]
fn without_a_stream_the_result_is_the_same() {
    for device in Device::all() {
        let no_stream: NewStream = |_| Err(Error::Thread { reason: "no stream".into() });
        let options = options(UploadMode::Streams);
        let mut loader = Loader::with(device, source(), options, |pool, bytes| pool.take(bytes), no_stream).unwrap();
        let first = loader.next().unwrap().unwrap();
        assert!(first.is_complete().unwrap(), "uploaded in `next`");
        let plan = loader.upload_plan().unwrap();
        assert!(!plan.streams && plan.reason.contains("no stream"), "{plan:?}");
        loader.restart();
        assert_eq!(everything(loader), expected(device));
    }
}

/// Polls like a task until the loader ends, and returns the number of images. Gives up if it does
/// not go on.
fn polled(loader: &mut Loader<u64>) -> usize {
    let (mut cx, mut images) = (Context::from_waker(Waker::noop()), 0);
    let mut begin = Instant::now();
    loop {
        match std::pin::Pin::new(&mut *loader).poll_next(&mut cx) {
            Poll::Ready(None) => return images,
            Poll::Ready(Some(batch)) => {
                (images, begin) = (images + batch.unwrap().synchronize().unwrap().meta.len(), Instant::now())
            }
            Poll::Pending => {
                assert!(begin.elapsed() < Duration::from_secs(20), "no batch after {images} images");
                std::thread::yield_now();
            }
        }
    }
}

/// One thread uploads for a task if none of the streams that were asked for can be made. Batches
/// must not wait for the others.
#[test]
fn a_task_gets_all_batches_without_a_stream() {
    for device in Device::all() {
        let no_stream: NewStream = |_| Err(Error::Thread { reason: "no stream".into() });
        let options = options(UploadMode::Streams).with_upload_streams(3).with_prefetch(3);
        let mut loader = Loader::with(device, source(), options, |pool, bytes| pool.take(bytes), no_stream).unwrap();
        assert_eq!(polled(&mut loader), 9);
    }
}

/// A loader that was asked for no streams adds none, however long it runs.
#[test]
fn a_task_without_streams_stays_without() {
    for device in Device::all() {
        let options = options(UploadMode::Sequential).with_batch_size(1);
        let mut loader = Loader::new(device, source(), options).unwrap();
        for _ in 0..6 {
            assert_eq!(polled(&mut loader), 9);
            loader.restart();
        }
        let plan = loader.upload_plan().unwrap();
        assert_eq!((plan.streams, plan.upload_streams), (false, 0), "{plan:?}");
    }
}

/// A task that stops polling, for a consumer that goes on with `next`, does not wait meanwhile.
#[test]
fn a_wait_ends_with_the_batch() {
    let device = Device::cpu().unwrap();
    let mut loader = Loader::new(device, source(), options(UploadMode::Sequential)).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let begin = Instant::now();
    if std::pin::Pin::new(&mut loader).poll_next(&mut cx).is_pending() {
        drop(loader.next().unwrap().unwrap());
    }
    let pause = Instant::now();
    std::thread::sleep(Duration::from_millis(50));
    let paused = pause.elapsed();
    polled(&mut loader);
    assert!(loader.stats().wait <= begin.elapsed() - paused, "{:?}", loader.stats().wait);
}

#[test]
fn without_page_locked_memory_the_result_is_the_same() {
    for device in Device::all() {
        for pin in [cannot_pin, pins_every_third] {
            for upload in [UploadMode::Streams, UploadMode::Sequential] {
                let loader = Loader::with(device, source(), options(upload), pin, AnyStream::new).unwrap();
                assert_eq!(everything(loader), expected(device), "{upload:?}");
            }
            let mut loader = Loader::with(device, source(), options(UploadMode::Off), pin, AnyStream::new).unwrap();
            let batch = loader.next().unwrap().unwrap().synchronize().unwrap();
            assert!(batch.rgb.is_empty());
            for (image, (_, bytes, _)) in expected(device).iter().take(4).enumerate() {
                assert_eq!(batch.pixels(image), bytes);
            }
            drop(loader.next());
            assert!(loader.stats().pageable > 0);
        }
    }
}

/// Waits until `reached` holds for the loader's state. Only a failure takes as long as the limit.
#[track_caller]
fn wait_until(loader: &Loader<u64>, what: &str, reached: impl Fn(&State<u64>) -> bool) {
    let state = lock(&loader.queue.state);
    let patience = Duration::from_secs(20);
    let (state, waited) = loader.queue.done.wait_timeout_while(state, patience, |state| !reached(state)).unwrap();
    assert!(!waited.timed_out(), "{what}: {:?} batches are ready, {} wait", state.only_ready(), state.batches().len());
}

/// Exactly as many batches as `prefetch` says are on the device before anybody asks for them.
#[test]
fn batches_are_uploaded_ahead() {
    for device in Device::all() {
        for prefetch in [1, 2, 3, 5] {
            let source = Source::indexed(20, |index| {
                Sample::new(format!("image {index}"), index, move |sink| {
                    sink.rgb(2, 3)?.fill(index as u8);
                    Ok(())
                })
            });
            let options =
                options(UploadMode::Streams).with_batch_size(1).with_decode_threads(1).with_prefetch(prefetch);
            let mut loader = Loader::new(device, source, options).unwrap();
            for taken in 0..5 {
                let batch = loader.next().unwrap().unwrap().synchronize().unwrap(); // the first starts the thread that uploads
                assert_eq!(batch.meta, [taken]);
                // `prefetch` batches are uploaded ahead, and one more is decoded and finds no room.
                // So both threads have nothing to do.
                wait_until(&loader, &format!("prefetch {prefetch} on {device}"), |state| {
                    state.only_ready() == Some(prefetch) && state.batches().len() == 1 && state.can_upload()
                });
            }
        }
    }
}

#[test]
fn a_pinned_budget_is_not_worked_around() {
    let spent: Pin = |_, wanted| Err(Error::PinnedBudget { wanted, in_use: 1, budget: 1 });
    let cpu = Device::cpu().unwrap();
    let loader = Loader::with(cpu, source(), options(UploadMode::Auto), spent, AnyStream::new).unwrap();
    let errors: Vec<_> = loader.map(|batch| batch.unwrap_err()).collect();
    assert_eq!(errors.len(), 9);
    for error in errors {
        let crate::Error::Sample { cause, .. } = &error else { panic!("{error}") };
        assert!(matches!(cause.downcast_ref(), Some(Error::PinnedBudget { budget: 1, .. })), "{error}");
    }
}

/// A panic in a destructor of metadata ends the loader in the same way, whichever thread uploads.
#[cfg(unix)]
#[test]
fn a_panic_in_an_upload_ends_the_loader() {
    #[derive(Clone)]
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any("dropped");
        }
    }
    for upload in [UploadMode::Streams, UploadMode::Sequential] {
        // Its file has no pixels, so the upload drops the sample.
        let samples = Source::indexed(1, |_| {
            let empty = || std::fs::File::open("/dev/null");
            Sample::new("empty", Bomb, move |sink| sink.rgb_in_file(1, 1, empty()?, 0))
        });
        let mut loader = Loader::new(Device::cpu().unwrap(), samples, options(upload)).unwrap();
        let Some(Err(crate::Error::Panicked { thread, message })) = loader.next() else { panic!("an error was due") };
        assert_eq!((&*thread, &*message), ("an upload", "dropped"));
        assert!(loader.next().is_none());
    }
}

/// A batch that is on its way when its epoch is left ends the loader, too, if its upload panics.
#[cfg(unix)]
#[test]
fn a_panic_in_an_upload_that_nobody_wants_ends_the_loader() {
    /// Its destructor tells that it runs, and panics when the other end has gone.
    struct Gate(Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>);
    impl Clone for Gate {
        fn clone(&self) -> Self {
            Self(None)
        }
    }
    impl Drop for Gate {
        fn drop(&mut self) {
            let Some((begun, go)) = self.0.take() else { return };
            begun.send(()).unwrap();
            _ = go.recv();
            std::panic::panic_any("dropped");
        }
    }
    let ((begun, begins), (go, gone)) = (mpsc::channel(), mpsc::channel());
    let gate = Mutex::new(Some((begun, gone)));
    // A file without pixels, so the upload drops the sample.
    let samples = Source::indexed(2, move |index| {
        let gate = Gate(if index == 1 { lock(&gate).take() } else { None });
        let empty = || std::fs::File::open("/dev/null");
        Sample::new("empty", gate, move |sink| match index {
            0 => {
                sink.rgb(1, 1)?.fill(0);
                Ok(())
            }
            _ => sink.rgb_in_file(1, 1, empty()?, 0),
        })
    });
    let options = options(UploadMode::Streams).with_batch_size(1).with_skip_errors(true);
    let mut loader = Loader::new(Device::cpu().unwrap(), samples, options).unwrap();
    drop(loader.next().unwrap().unwrap());
    begins.recv_timeout(Duration::from_secs(20)).expect("the second batch is on its way");
    loader.restart();
    drop(go);
    let error = loader.find_map(Result::err).expect("an error was due");
    assert!(matches!(&error, crate::Error::Panicked { message, .. } if message == "dropped"), "{error}");
}

/// Its destructor panics once, in the value that was told to.
struct Fuse(Arc<AtomicBool>);

impl Clone for Fuse {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if self.0.swap(false, Ordering::SeqCst) {
            std::panic::panic_any("dropped");
        }
    }
}

/// A consumer that leaves an epoch early may not have seen its error, so later epochs begin with
/// it.
#[test]
fn a_failure_is_told_in_every_later_epoch() {
    let taken = Arc::new(AtomicBool::new(false));
    let first = taken.clone();
    let samples = Source::indexed(3, move |index| {
        let (fuse, first) = (Fuse(Arc::new(AtomicBool::new(index == 1))), first.clone());
        Sample::new(format!("image {index}"), fuse, move |sink| {
            sink.rgb(1, 1)?.fill(0);
            while index == 1 && !first.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            if index == 1 { Err("its metadata panics".into()) } else { Ok(()) }
        })
    });
    let options = options(UploadMode::Streams).with_batch_size(1).with_decode_threads(1);
    let mut loader = Loader::new(Device::cpu().unwrap(), samples, options).unwrap();
    drop(loader.next().unwrap().unwrap());
    taken.store(true, Ordering::SeqCst);
    let queue = loader.queue.clone();
    let (state, waited) = queue
        .done
        .wait_timeout_while(lock(&queue.state), Duration::from_secs(20), |state| state.failure().is_none())
        .unwrap();
    assert!(!waited.timed_out(), "the destructor has not run");
    drop(state);
    for epoch in 1..4 {
        loader.restart();
        let Some(Err(error)) = loader.next() else { panic!("epoch {epoch} has no error") };
        assert!(matches!(&error, crate::Error::Panicked { message, .. } if message == "dropped"), "{error}");
        assert!(loader.next().is_none());
    }
}

/// A destructor of metadata that panics in `restart` does not keep the next epoch from coming.
#[test]
fn an_epoch_starts_although_a_destructor_panics() {
    let armed = Arc::new(AtomicBool::new(false));
    let fuse = Fuse(armed.clone());
    let samples = Source::indexed(8, move |index| {
        Sample::new(format!("image {index}"), fuse.clone(), move |sink| {
            sink.rgb(1, 1)?.fill(index as u8);
            Ok(())
        })
    });
    let options = options(UploadMode::Sequential).with_batch_size(1).with_decode_threads(1);
    let mut loader = Loader::new(Device::cpu().unwrap(), samples, options).unwrap();
    let queue = loader.queue.clone();
    let patience = Duration::from_secs(20);
    // All threads sleep, because as much is decoded as there is room for.
    let (state, waited) = queue
        .done
        .wait_timeout_while(lock(&queue.state), patience, |state| {
            state.batches().len() < 3 || state.batches().iter().any(|batch| batch.missing > 0)
        })
        .unwrap();
    assert!(!waited.timed_out());
    drop(state);
    std::thread::sleep(Duration::from_millis(50));
    armed.store(true, Ordering::SeqCst);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loader.restart()));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"dropped"));
    let (state, waited) =
        queue.done.wait_timeout_while(lock(&queue.state), patience, |state| state.batches().is_empty()).unwrap();
    assert!(!waited.timed_out(), "the decode threads still sleep");
    drop(state);
    assert_eq!(loader.map(|batch| batch.unwrap().synchronize().unwrap().len()).sum::<usize>(), 8);
}

#[test]
fn the_environment_changes_the_default_and_is_checked() {
    let of =
        |name: &'static str, value: &'static str| LoaderOptions::of(move |asked| (asked == name).then(|| value.into()));
    assert_eq!(of("OTHER", "1").unwrap().decode_threads, LoaderOptions::default().decode_threads);
    assert_eq!(of("THALWEG_LOADER_THREADS", "3").unwrap().decode_threads, 3);
    assert_eq!(of("THALWEG_LOADER_STREAM_BYTES", " 0 ").unwrap().stream_bytes, 0);
    let decode = |value| of("THALWEG_DECODE", value).map(|options| options.decode);
    assert_eq!(decode("").unwrap(), DecodeBackend::Auto);
    #[cfg(feature = "jpeg-device")]
    {
        assert_eq!(decode("host").unwrap(), DecodeBackend::Host);
        assert!(decode("gpu").unwrap_err().to_string().contains("`gpu` in the environment"));
    }
    for (name, value) in [
        ("THALWEG_LOADER_THREADS", "0"),
        ("THALWEG_LOADER_THREADS", "many"),
        ("THALWEG_LOADER_THREADS", ""),
        ("THALWEG_LOADER_STREAM_BYTES", "-1"),
        ("THALWEG_LOADER_STREAM_BYTES", "1e6"),
        ("THALWEG_LOADER_STREAM_BYTES", "99999999999999999999999"),
    ] {
        let error = of(name, value).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(&format!("`{value}` in the environment")), "{error}");
    }
}

#[test]
fn options_are_checked() {
    let refused = |options: LoaderOptions, name: &str| {
        let error = options.settle().unwrap_err();
        assert!(matches!(error, Error::Parameter { name: n, .. } if n == name), "{error}");
    };
    refused(LoaderOptions::default().with_batch_size(0), "batch_size");
    refused(LoaderOptions::default().with_prefetch(0), "prefetch");
    refused(LoaderOptions::default().with_upload_streams(0), "upload_streams");
    refused(LoaderOptions::default().with_upload_streams(65), "upload_streams");
    refused(LoaderOptions::default().with_shard(Shard::new(1, 1)), "shard");
    refused(LoaderOptions::default().with_shard(Shard::new(0, 0)), "shard");
    refused(LoaderOptions::default().with_device_warning(f64::NAN), "device_warning");
    let endless = Source::from_fn(dot);
    let error = Loader::new(Device::cpu().unwrap(), endless, LoaderOptions::default().with_shuffle(Some(1)));
    assert!(matches!(error.unwrap_err(), Error::Parameter { name: "shuffle", .. }));
}

fn dot(index: u64) -> Option<Sample<()>> {
    Some(Sample::new(index.to_string(), (), |sink| {
        sink.rgb(1, 1)?.fill(1);
        Ok(())
    }))
}

/// What the loader logged. The test's logger keeps it.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn decisions_fall_backs_and_skipped_samples_are_logged() {
    struct Keep;
    impl log::Log for Keep {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            lock(&LOGGED).push(format!("{} {}", record.level(), record.args()));
        }
        fn flush(&self) {}
    }
    static KEEP: Keep = Keep;
    log::set_logger(&KEEP).unwrap();
    log::set_max_level(log::LevelFilter::Info);

    let cpu = Device::new_cpu().unwrap(); // its name tells this test's lines from those of others
    let samples = Source::indexed(3, |index| {
        Sample::new(format!("log-{index}"), (), move |sink| {
            sink.rgb(100, 100)?.fill(0);
            if index == 1 { Err("broken".into()) } else { Ok(()) }
        })
    });
    let options = options(UploadMode::Auto).with_batch_size(1).with_skip_errors(true).with_pinned_warning(29_999);
    let loader = Loader::with(cpu, samples, options, |pool, bytes| pool.take(bytes), AnyStream::new).unwrap();
    assert_eq!(loader.map(Result::unwrap).count(), 2);
    let logged = lock(&LOGGED).join("\n");
    let decided =
        format!("INFO batches for {cpu} one after another, in `next`: the CPU device shares the host's memory");
    assert_eq!(logged.matches(&decided).count(), 1, "{logged}");
    assert!(logged.contains("WARN skipped: sample 1 (log-1): broken"), "{logged}");
    let high = "bytes of pinned memory, more than 29999 (batch 0 of epoch 0, uploaded in `next`)";
    assert!(logged.contains(high), "{logged}");

    // The first batch that finds no memory is named too, and so is its stream.
    let small = Device::new_cpu().unwrap();
    small.limit_memory(Some(100));
    let loader = Loader::new(small, source(), self::options(UploadMode::Streams)).unwrap();
    assert!(loader.filter(Result::is_err).count() > 0);
    let logged = lock(&LOGGED).join("\n");
    let waits = format!("WARN batch 0 of epoch 0, upload stream 0 waits for memory of {small}; until there is more");
    assert_eq!(logged.matches(&waits).count(), 1, "{logged}");
    assert_eq!(logged.matches(&format!("waits for memory of {small}")).count(), 1, "said once: {logged}");

    let no_stream: NewStream = |_| Err(Error::Thread { reason: "no stream".into() });
    let mut loader = Loader::with(cpu, source(), self::options(UploadMode::Streams), cannot_pin, no_stream).unwrap();
    drop(loader.next().unwrap().unwrap());
    let logged = lock(&LOGGED).join("\n");
    assert!(logged.contains(&format!("INFO batches for {cpu} one after another, in `next`: streams cannot be used")));
    assert!(logged.contains("bytes cannot be page-locked"), "{logged}");
}
