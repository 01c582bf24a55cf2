//! Tests of the loader as a `futures_core::Stream`.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Context;
use std::thread;
use std::time::{Duration, Instant};

use futures_core::Stream;
use testkit::devices::devices;
use testkit::tasks::block_on;
use thalweg::Device;
use thalweg_loader::{Loader, Sample, Source, UploadMode};

use crate::{check, draw, options, source};

#[test]
fn a_task_gets_the_batches_in_order() {
    for &device in devices() {
        for upload in [UploadMode::Streams, UploadMode::Sequential, UploadMode::Auto] {
            let options = options(4, 3, upload).with_upload_streams(2);
            let mut loader = Loader::new(device, source(30), options).unwrap();
            for _ in 0..2 {
                let mut seen = Vec::new();
                block_on(async {
                    while let Some(batch) = poll_fn(|cx| Pin::new(&mut loader).poll_next(cx)).await {
                        seen.extend(check(device, batch.unwrap()));
                    }
                });
                assert_eq!(seen, (0..30).collect::<Vec<_>>(), "{upload:?}");
                loader.restart();
            }
            // An iterator may go on with what a task began.
            assert!(block_on(poll_fn(|cx| Pin::new(&mut loader).poll_next(cx))).unwrap().is_ok());
            assert_eq!(check(device, loader.next().unwrap().unwrap()), [4, 5, 6, 7]);
        }
    }
}

/// Samples that fail, and the end of an epoch without a batch, wake the task too.
#[test]
fn a_task_is_woken_if_there_is_no_batch() {
    let cpu = Device::cpu().unwrap();
    for skip_errors in [false, true] {
        let samples = Source::indexed(5, |index| {
            Sample::new(format!("image {index}"), String::new(), |_| {
                thread::sleep(Duration::from_millis(2));
                Err("broken".into())
            })
        });
        let options = options(2, 1, UploadMode::Auto).with_skip_errors(skip_errors);
        let mut loader = Loader::new(cpu, samples, options).unwrap();
        let mut errors = 0;
        block_on(async {
            while let Some(item) = poll_fn(|cx| Pin::new(&mut loader).poll_next(cx)).await {
                errors += u32::from(item.is_err());
            }
        });
        assert_eq!(errors, if skip_errors { 0 } else { 5 });
    }
}

/// Something that threads wait for. Opens by itself after 20 seconds, so that a test that fails
/// ends.
struct Gate(Arc<(Mutex<bool>, Condvar)>, Instant);

impl Gate {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    /// A function that waits until the gate is open.
    fn closed(&self) -> impl FnOnce() + Send + 'static {
        let gate = self.0.clone();
        move || {
            let (open, opened) = &*gate;
            drop(opened.wait_timeout_while(open.lock().unwrap(), Duration::from_secs(20), |open| !*open).unwrap());
        }
    }

    /// Opens the gate. It must not have opened by itself.
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
        assert!(self.1.elapsed() < Duration::from_secs(20), "something waited for the gate");
    }
}

/// What the iterator would upload on the calling thread's own stream, another thread uploads for a
/// task. So the task gets its batches although its thread's stream is held.
#[test]
fn a_poll_does_not_upload() {
    let device = Device::new_cpu().unwrap();
    let gate = Gate::new();
    device.per_thread(|s| s.launch_host(gate.closed()).unwrap()).unwrap();
    let mut loader = Loader::new(device, source(8), options(4, 2, UploadMode::Sequential)).unwrap();
    let batches = [(); 2].map(|()| block_on(poll_fn(|cx| Pin::new(&mut loader).poll_next(cx))).unwrap().unwrap());
    gate.open();
    assert!(!loader.upload_plan().unwrap().streams);
    assert_eq!(batches.map(|batch| check(device, batch)), [[0, 1, 2, 3], [4, 5, 6, 7]]);
}

/// A poll returns although the decoders cannot go on.
#[test]
fn a_poll_does_not_wait() {
    for &device in devices() {
        for upload in [UploadMode::Streams, UploadMode::Sequential] {
            let gate = Arc::new(Gate::new());
            let held = gate.clone();
            let samples = Source::indexed(4, move |index| {
                let closed = held.closed();
                Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
                    closed();
                    draw(index, sink)
                })
            });
            let mut loader = Loader::new(device, samples, options(2, 2, upload)).unwrap();
            let mut woken = Context::from_waker(std::task::Waker::noop());
            assert!(Pin::new(&mut loader).poll_next(&mut woken).is_pending());
            assert!(Pin::new(&mut loader).poll_next(&mut woken).is_pending());
            gate.open();
            let batch = block_on(poll_fn(|cx| Pin::new(&mut loader).poll_next(cx)));
            assert_eq!(check(device, batch.unwrap().unwrap()), [0, 1]);
        }
    }
}
