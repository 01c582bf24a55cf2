//! Tests of the number of upload streams: they are used in turn, and one that cannot be made is
//! done without.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, Error, Event, Result};

use super::{options, source};
use crate::loader::NewStream;
use crate::{Batch, Loader, UploadMode, lock};

/// Streams of which the first waits at a gate, until it is opened.
struct Gate(Mutex<(usize, bool)>, Condvar);

impl Gate {
    const fn new() -> Self {
        Self(Mutex::new((0, false)), Condvar::new())
    }

    fn stream(&'static self, device: Device) -> Result<AnyStream> {
        let stream = AnyStream::new(device)?;
        let mut state = lock(&self.0);
        state.0 += 1;
        if state.0 == 1 {
            let closed = move || drop(self.1.wait_while(lock(&self.0), |state| !state.1));
            stream.enter(|s| s.launch_host(closed))?;
        }
        Ok(stream)
    }

    /// Opens the gate, and returns how many streams there are.
    fn open(&self) -> usize {
        let mut state = lock(&self.0);
        state.1 = true;
        self.1.notify_all();
        state.0
    }
}

/// Waits until an event is complete. Only a failure takes as long as the limit.
fn completes(event: &Event<Batch<u64>>) -> bool {
    let begin = Instant::now();
    while !event.is_complete().unwrap() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    event.is_complete().unwrap()
}

/// With two upload streams a batch does not wait for the copies of the one before; with one it
/// does. The batches come in order in both cases.
#[test]
fn batches_are_uploaded_on_streams_in_turn() {
    static ONE: Gate = Gate::new();
    static TWO: Gate = Gate::new();
    static MANY: Gate = Gate::new();
    let (one, two, many): (NewStream, NewStream, NewStream) =
        (|device| ONE.stream(device), |device| TWO.stream(device), |device| MANY.stream(device));
    for (gate, new_stream, upload_streams, streams) in [(&ONE, one, 1, 1), (&TWO, two, 2, 2), (&MANY, many, 9, 4)] {
        // A device of its own, because a seeded or a shared one may run other work under the gate.
        let device = Device::new_cpu().unwrap();
        let options =
            options(UploadMode::Streams).with_batch_size(2).with_prefetch(4).with_upload_streams(upload_streams);
        let mut loader = Loader::with(device, source(), options, |pool, bytes| pool.take(bytes), new_stream).unwrap();
        let batches: Vec<_> = (0..4).map(|_| loader.next().unwrap().unwrap()).collect();
        // All batches on the first stream are held, and all others are uploaded.
        for (number, batch) in batches.iter().enumerate() {
            if number % streams == 0 {
                assert!(!batch.is_complete().unwrap(), "batch {number} with {streams} streams passed the gate");
            } else {
                assert!(completes(batch), "batch {number} with {streams} streams waits for the first stream");
            }
        }
        assert_eq!(loader.upload_plan().unwrap().upload_streams, streams);
        assert_eq!(gate.open(), streams);
        assert!(batches.iter().all(completes));
        let metas = batches.into_iter().map(|batch| batch.synchronize().unwrap().meta);
        assert_eq!(metas.collect::<Vec<_>>(), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(loader.next().unwrap().unwrap().synchronize().unwrap().meta, [8]);
        assert!(loader.next().is_none());
    }
}

/// Without a second stream, the first one uploads everything.
#[test]
fn a_stream_that_cannot_be_made_is_done_without() {
    static MADE: Mutex<usize> = Mutex::new(0);
    let second_fails: NewStream = |device| {
        let mut made = lock(&MADE);
        *made += 1;
        if *made == 2 { Err(Error::Thread { reason: "no stream".into() }) } else { AnyStream::new(device) }
    };
    let options = options(UploadMode::Streams).with_prefetch(3).with_upload_streams(3).with_batch_size(1);
    let cpu = Device::cpu().unwrap();
    let mut loader = Loader::with(cpu, source(), options, |pool, bytes| pool.take(bytes), second_fails).unwrap();
    let metas: Vec<_> = loader.by_ref().map(|batch| batch.unwrap().synchronize().unwrap().meta).collect();
    assert_eq!(metas, (0..9).map(|index| [index]).collect::<Vec<_>>());
    assert_eq!(loader.upload_plan().unwrap().upload_streams, 1);
}
