//! Tests of the number of upload streams: that they are used in turn, and when another is added.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, Error, Event, Result};

use super::{options, source};
use crate::loader::NewStream;
use crate::{Batch, Loader, Options, Sample, Source, Upload, lock};

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
    while !event.is_ready().unwrap() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    event.is_ready().unwrap()
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
        let options = Options { batch: 2, prefetch: 4, upload_streams, ..options(Upload::Streams) };
        let mut loader = Loader::with(device, source(), options, |pool, bytes| pool.take(bytes), new_stream).unwrap();
        let batches: Vec<_> = (0..4).map(|_| loader.next().unwrap().unwrap()).collect();
        // All batches on the first stream are held, and all others are uploaded.
        for (number, batch) in batches.iter().enumerate() {
            if number % streams == 0 {
                assert!(!batch.is_ready().unwrap(), "batch {number} with {streams} streams passed the gate");
            } else {
                assert!(completes(batch), "batch {number} with {streams} streams waits for the first stream");
            }
        }
        assert_eq!(loader.decision().unwrap().upload_streams, streams);
        assert_eq!(gate.open(), streams);
        assert!(batches.iter().all(completes));
        let metas = batches.into_iter().map(|batch| batch.synchronize().unwrap().meta);
        assert_eq!(metas.collect::<Vec<_>>(), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(loader.next().unwrap().unwrap().synchronize().unwrap().meta, [8]);
        assert!(loader.next().is_none());
    }
}

/// Another stream needs room, in `prefetch` and in device memory.
#[test]
fn no_stream_is_tried_where_there_is_no_room_for_it() {
    for (prefetch, device_warning, why) in [
        (1, 1.0, "1 upload stream: complete batches wait 90 % of the time for a busy stream, but `prefetch` leaves no"),
        // No memory at all may be used without a warning if `device_warning` is 0.
        (4, 0.0, "1 upload stream: complete batches wait 90 % of the time for a busy stream, but device memory has no"),
    ] {
        let options = Options { batch: 1, prefetch, device_warning, ..options(Upload::Streams) };
        let mut loader = Loader::new(Device::new_cpu().unwrap(), dots(100), options).unwrap();
        lock(&loader.queue.state).load.script = Some(|_| ms(100, 90));
        assert_eq!(loader.by_ref().map(Result::unwrap).count(), 100);
        let decision = loader.decision().unwrap();
        assert_eq!(decision.upload_streams, 1, "{}", decision.reason);
        assert!(decision.reason.contains(why), "{}", decision.reason);
    }
}

/// A batch waits for a stream if the consumer wants it by now. Where uploads are all that takes
/// time, batches wait. Where the consumer takes a batch only once all that it wants is there, none
/// waits, and no stream is tried.
#[test]
fn batches_wait_for_a_stream_only_if_they_are_wanted() {
    let path = std::env::temp_dir().join(format!("thalweg-loader-streams-{}", std::process::id()));
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    for slow in [false, true] {
        let file = path.clone();
        let samples = Source::indexed(120, move |index| {
            let file = file.clone();
            Sample::new("", index, move |canvas| canvas.rgb_in_file(512, 512, std::fs::File::open(file)?, 0))
        });
        let options = Options { batch: 2, prefetch: 4, ..options(Upload::Streams) };
        let mut loader = Loader::new(Device::new_cpu().unwrap(), samples, options).unwrap();
        while let Some(batch) = loader.next() {
            loader.recycle(batch.unwrap());
            let queue = loader.queue.clone();
            let full = || {
                let state = lock(&queue.state);
                state.ended && state.batches.is_empty() || state.ready_batches == 4
            };
            while slow && !full() {
                std::thread::yield_now();
            }
        }
        let reason = &loader.decision().unwrap().reason;
        let none_waits = reason.contains("; 1 upload stream: complete batches wait 0 % of the time for a busy stream");
        assert_eq!(none_waits, slow, "{reason}");
    }
    std::fs::remove_file(path).unwrap();
}

/// Samples of a few pixels.
fn dots(count: u64) -> Source<u64> {
    Source::indexed(count, |index| {
        Sample::new("", index, |canvas| {
            canvas.rgb(4, 4)?.fill(1);
            Ok(())
        })
    })
}

/// The times of a script: those of an upload, and of a complete batch that waits for it.
const fn ms(upload: u64, waited: u64) -> [Duration; 2] {
    [Duration::from_millis(upload), Duration::from_millis(waited)]
}

/// A stream that is tried stays if it makes uploads 5 % faster, and rests otherwise. The times are
/// those of a script, so each run is the same; streams, threads and batches are real.
#[test]
fn a_stream_that_is_tried_stays_for_a_gain_of_five_percent() {
    static MADE: Mutex<usize> = Mutex::new(0);
    let counted: NewStream = |device| {
        *lock(&MADE) += 1;
        AnyStream::new(device)
    };
    type Script = fn(usize) -> [Duration; 2];
    let never_waits: Script = |_| ms(100, 25);
    let second_gains_little: Script = |streams| [ms(100, 90), ms(96, 90)][streams - 1];
    let third_gains_little: Script = |streams| [ms(100, 90), ms(80, 70), ms(79, 70)][streams - 1];
    let all_gain: Script = |streams| [ms(100, 90), ms(80, 70), ms(60, 50)][streams - 1];
    let two_are_enough: Script = |streams| [ms(100, 90), ms(80, 10)][streams - 1];
    for (script, tried, stay, why) in [
        (never_waits, 1, 1, "1 upload stream: complete batches wait 25 % of the time for a busy stream"),
        (second_gains_little, 2, 1, "1 upload stream: with 2, uploads were +4.2 % faster, which is less than 5 %"),
        (third_gains_little, 3, 2, "2 upload streams: with 3, uploads were +1.3 % faster, which is less than 5 %"),
        (all_gain, 3, 3, "and there are never more than 3 unless asked for"),
        (two_are_enough, 2, 2, "2 upload streams: complete batches wait 12 % of the time for a busy stream"),
    ] {
        *lock(&MADE) = 0;
        let cpu = Device::new_cpu().unwrap();
        let options = Options { batch: 1, prefetch: 4, ..options(Upload::Streams) };
        let mut loader = Loader::with(cpu, dots(150), options, |pool, bytes| pool.take(bytes), counted).unwrap();
        lock(&loader.queue.state).load.script = Some(script);
        let metas: Vec<_> = loader.by_ref().map(|batch| batch.unwrap().synchronize().unwrap().meta).collect();
        assert_eq!(metas, (0..150).map(|index| [index]).collect::<Vec<_>>());
        let decision = loader.decision().unwrap();
        assert_eq!((*lock(&MADE), decision.upload_streams), (tried, stay), "{}", decision.reason);
        assert!(decision.reason.ends_with(why), "{}", decision.reason);
        assert_eq!(lock(&loader.queue.state).streams, stay);
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
    let options = Options { prefetch: 3, upload_streams: 3, batch: 1, ..options(Upload::Streams) };
    let cpu = Device::cpu().unwrap();
    let mut loader = Loader::with(cpu, source(), options, |pool, bytes| pool.take(bytes), second_fails).unwrap();
    let metas: Vec<_> = loader.by_ref().map(|batch| batch.unwrap().synchronize().unwrap().meta).collect();
    assert_eq!(metas, (0..9).map(|index| [index]).collect::<Vec<_>>());
    assert_eq!(loader.decision().unwrap().upload_streams, 1);
}
