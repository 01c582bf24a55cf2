//! The loader: nothing lost, nothing out of order, nothing left behind, whatever fails and whenever
//! it is dropped.

mod budget;
mod failures;
mod files;
mod folders;
#[cfg(unix)]
mod fork;
mod jpeg;
mod memory;
mod order;
mod photos;
mod poll;
mod position;
mod prefetch;

use std::thread;
use std::time::{Duration, Instant};

use testkit::oracle::SplitMix;
use thalweg::{Device, Event, PinnedPool};
use thalweg_loader::{Batch, DecodeError, ImageSink, LoaderOptions, Sample, Source, UploadMode, byte_ranges};

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

fn draw(index: u64, sink: &mut ImageSink<'_>) -> Result<(), DecodeError> {
    let [height, width] = size(index);
    paint(index, sink.rgb(height, width)?);
    Ok(())
}

/// Something random to wait for, up to about a millisecond.
fn random_delay(index: u64) {
    let random = SplitMix(index ^ 0xdead).next();
    match random % 4 {
        0 => thread::sleep(Duration::from_micros(random >> 32 & 1023)),
        1 => (0..random >> 32 & 255).for_each(|_| thread::yield_now()),
        _ => {}
    }
}

fn source(len: u64) -> Source<String> {
    Source::indexed(len, |index| {
        Sample::new(format!("image {index}"), format!("label {index}"), move |sink| {
            random_delay(index);
            draw(index, sink)
        })
    })
}

/// As `source`, but it does not know how many samples it has.
fn source_until(len: u64) -> Source<String> {
    Source::from_fn(move |index| {
        (index < len).then(|| Sample::new(format!("image {index}"), format!("label {index}"), move |c| draw(index, c)))
    })
}

fn options(batch: usize, threads: usize, upload: UploadMode) -> LoaderOptions {
    LoaderOptions::default().with_batch_size(batch).with_decode_threads(threads).with_upload(upload)
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
                let layout = thalweg_vision::layout(&batch.sizes, 32).unwrap();
                assert_eq!(ranges, (0..batch.sizes.len()).map(|i| layout.byte_range(i)).collect::<Vec<_>>());
                assert_eq!(bytes.len(), layout.bytes() as usize);
            }
            for (i, &index) in batch.indices.iter().enumerate() {
                assert_eq!(batch.sizes[i].sides(), size(index));
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

/// Bytes that a pool takes for one image of `draw`.
const PAGE: usize = 4096;
