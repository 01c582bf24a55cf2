//! Memory in the steady state, and pixels between images that come from elsewhere.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg::{AnyStream, Device, DeviceKind, Event, HostWait, Size, stream_tags};
use thalweg_jpeg::{Decoder, EncodedBatch, JpegError, ReservedFile, dimensions};

mod encoder;
mod reference;

use encoder::{Kind, encode};

stream_tags!(Decode);

/// Counts allocations on the heap that are as large as what a batch needs.
struct Counting;

/// The bytes from which an allocation counts. Queues and lists of files are far smaller.
const LARGE: usize = 64 << 10;
static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: Every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: The caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: The caller keeps the promises of `dealloc`, and `alloc` took the memory from
        // there.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Gives a test the devices and the counter to itself.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kind(height: u16, width: u16, seed: u64) -> Kind {
    let factors = vec![[2, 2], [1, 1], [1, 1]];
    Kind { height, width, factors, restart: 0, coefficients: 30, rgb: false, seed }
}

/// Batches of other contents and other lengths of data use the memory of those before.
#[test]
fn the_steady_state_allocates_nothing() {
    let _alone = alone();
    let batches: Vec<Vec<Vec<u8>>> =
        (0..3).map(|b| (0..6).map(|i| encode(&kind(1200, 750, 10 * b + i + 1))).collect()).collect();
    let bytes: usize = batches[0].iter().map(Vec::len).sum();
    assert!(bytes > 1 << 20, "{bytes} bytes are read by one thread");
    for device in Device::all() {
        eprintln!("covered: {device} ({})", device.name());
        AnyStream::new(device).unwrap().enter(|stream| {
            let mut decoder = Decoder::new(device);
            let mut go_round = |batch: &[Vec<u8>]| {
                let files: [&[u8]; 6] = std::array::from_fn(|i| &batch[i][..]);
                let read = decoder.read(&files).unwrap();
                let images = decoder.decode(stream, read).unwrap().synchronize().unwrap();
                assert!((0..6).all(|i| images.image(i).is_ok()));
                decoder.recycle(Event::ready(images));
            };
            batches.iter().for_each(|batch| go_round(batch));
            if device.kind() == DeviceKind::Cpu {
                device.limit_memory(Some(1)); // nothing more can be allocated
            }
            device.sync_stats().enable();
            let before = COUNT.load(Ordering::Relaxed);
            (0..2).for_each(|_| batches.iter().for_each(|batch| go_round(batch)));
            let large = COUNT.load(Ordering::Relaxed) - before;
            device.sync_stats().disable();
            device.limit_memory(None);
            let report = device.sync_stats().report();
            let pinned = report.waits().iter().filter(|stall| stall.kind != HostWait::Synchronize).count();
            assert_eq!((pinned, large), (0, 0), "{device}: {report}");
        });
    }
}

/// Batches whose files are longer than those before find their memory, unless they are much longer.
#[test]
fn batches_of_growing_files_take_few_blocks() {
    let _alone = alone();
    let device = Device::new_cpu().unwrap();
    let mut file = encode(&kind(300, 400, 1));
    device.sync_stats().enable();
    for pages in 128..168 {
        file.resize(4096 * pages, 0); // what is behind the end of the image counts, too
        assert!(EncodedBatch::new(device, &[&file]).unwrap().rgb_bytes() > 0);
    }
    device.sync_stats().disable();
    let report = device.sync_stats().report();
    let made: u64 = report.waits().iter().filter(|it| it.kind == HostWait::PinnedAllocation).map(|it| it.count).sum();
    // From one size to twice that, there are eight steps at most.
    assert!(made <= 10, "{made} blocks");
}

/// A batch leaves room for images that come from elsewhere, and does not touch it. A file whose
/// header alone can be read keeps its room.
#[test]
fn gaps_stay_as_they_are() {
    let _alone = alone();
    let whole = encode(&kind(64, 80, 3));
    let scan = whole.windows(2).position(|w| w == [0xFF, 0xDA]).unwrap();
    let head = whole[..scan + 20].to_vec();
    assert_eq!(dimensions(&head), Ok(Size::new(64, 80)));
    // All data and no end: a batch with it has the memory of one with the whole file, where only
    // the record of that one could lead to pixels.
    let ended = whole[..whole.len() - 2].to_vec();
    let files = [encode(&kind(40, 50, 1)), encode(&kind(9, 7, 2)), b"no image".to_vec(), head, ended];
    let expected = [0, 1].map(|i| reference::decode(&files[i]).2);
    for device in Device::all() {
        AnyStream::new(device).unwrap().enter(|stream| {
            let mut gaps =
                [(100, 0), (5, 2), (16, 3), (33, 1)].map(|(prefix, i)| ReservedFile { prefix, file: &files[i] });
            gaps[2].file = &whole;
            let batch = EncodedBatch::with_reserved_prefix(device, &gaps).unwrap();
            let mut rgb = stream.alloc::<u8>(batch.rgb_bytes()).unwrap();
            let report = Decoder::new(device).decode_into(stream, batch, &mut rgb).unwrap().synchronize().unwrap();
            assert!(report.image(2).is_ok());
            let first = 112..112 + 6000;
            let second = 21552..21552_usize + 189;
            for broken in [&files[4], &files[3]] {
                gaps[2].file = broken;
                let batch = EncodedBatch::with_reserved_prefix(device, &gaps).unwrap();
                assert_eq!(batch.rgb_bytes(), second.end.next_multiple_of(16));
                let mut rgb = stream.alloc::<u8>(batch.rgb_bytes() + 50).unwrap();
                stream.fill(&mut rgb, 77).unwrap();
                let report = Decoder::new(device).decode_into(stream, batch, &mut rgb).unwrap().synchronize().unwrap();
                assert_eq!(report.image(0).unwrap().bytes, first);
                assert_eq!(report.image(1), Err(JpegError::NotJpeg));
                assert_eq!(report.image(2), Err(JpegError::Truncated));
                assert_eq!(report.image(3).unwrap().bytes, second);
                let bytes = stream.read_blocking(&rgb).unwrap();
                assert!(bytes[first.clone()] == expected[0] && bytes[second.clone()] == expected[1]);
                let outside = (0..bytes.len()).filter(|i| !first.contains(i) && !second.contains(i));
                assert!(outside.into_iter().all(|i| bytes[i] == 77), "{device}");
            }
            // Where the decoder takes the memory, the file that may lie about its size gets none.
            assert_eq!(EncodedBatch::new(device, &[&files[3]]).unwrap().rgb_bytes(), 0);
        });
    }
}

/// Many threads read a large batch as one thread reads its files one by one.
#[test]
fn files_of_a_large_batch_are_read_as_alone() {
    let _alone = alone();
    // The threads of rayon's own pool may all wait for the batch. It is read nevertheless.
    let gate = Arc::new(Mutex::new(()));
    let _held = gate.lock().unwrap();
    let wait = Arc::clone(&gate);
    rayon::spawn_broadcast(move |_| drop(wait.lock()));
    let mut files: Vec<Vec<u8>> = (0..20).map(|i| encode(&kind(150 + 16 * i, 960, u64::from(i) + 1))).collect();
    assert!(files.iter().map(Vec::len).sum::<usize>() > 1 << 20, "one thread reads them");
    files[3].truncate(5000);
    files[7] = vec![0xFF; 100_000];
    files[12][3] = 0xC2;
    let views: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    let device = Device::cpu().unwrap();
    let stream = device.stream::<Decode>().unwrap();
    let mut decoder = Decoder::new(device);
    let mut decode = |files: &[&[u8]]| {
        let batch = decoder.read(files).unwrap();
        let images = decoder.decode(&stream, batch).unwrap().synchronize().unwrap();
        let found: Vec<_> = (0..files.len()).map(|i| images.image(i)).collect();
        let bytes = stream.read_blocking(&stream.bind(images.rgb).unwrap()).unwrap();
        found.into_iter().map(|image| image.map(|image| bytes[image.bytes].to_vec())).collect::<Vec<_>>()
    };
    let together = decode(&views);
    assert!(together[3].is_err() && together[7].is_err() && together[12].is_err());
    assert_eq!(together.iter().filter(|image| image.is_ok()).count(), 17);
    for (i, view) in views.iter().enumerate() {
        assert!(decode(&[view])[0] == together[i], "file {i}");
    }
}

/// Bytes of an earlier batch behind the data of a file change neither its pixels nor its error.
#[test]
fn what_lies_behind_the_data_says_nothing() {
    let _alone = alone();
    let whole = |seed| encode(&kind(48, 48, seed));
    let file = whole(7);
    let cut = |keep: usize| [&file[..file.len() - 2 - keep], &[0xFF, 0xD9]].concat();
    let files: Vec<Vec<u8>> = (1..100).map(cut).collect();
    let views: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    for device in Device::all() {
        let found = AnyStream::new(device).unwrap().enter(|stream| {
            let mut decoder = Decoder::new(device);
            let mut status = |files: &[&[u8]]| {
                let batch = decoder.read(files).unwrap();
                let images = decoder.decode(stream, batch).unwrap().synchronize().unwrap();
                (0..files.len()).map(|i| images.image(i).map(drop)).collect::<Vec<_>>()
            };
            [1, 2, 3, 4].map(|seed| {
                let before = whole(seed);
                assert!(status(&vec![&before[..]; views.len()]).iter().all(Result::is_ok));
                status(&views)
            })
        });
        assert!(found[0].iter().all(Result::is_err));
        assert!(found.iter().all(|status| *status == found[0]), "{device}");
    }
}

/// A batch uses the memory of the one before it again. A file that breaks off while its data is
/// read leaves no record of its own there, and the record of the earlier file must not count
/// either: its image would be decoded over the one beside it.
#[test]
fn nothing_of_an_earlier_batch_is_decoded_in_the_place_of_a_broken_file() {
    let _alone = alone();
    let with_restarts = |side, seed| encode(&Kind { restart: 1, ..kind(side, side, seed) });
    let (small, large, good) = (with_restarts(16, 1), with_restarts(64, 2), with_restarts(64, 3));
    let mut broken = with_restarts(48, 4);
    let marker = broken.windows(2).position(|bytes| bytes == [0xFF, 0xD0]).unwrap();
    broken[marker + 1] = 0xD3;
    let expected = reference::decode(&good).2;
    for device in Device::all() {
        AnyStream::new(device).unwrap().enter(|stream| {
            let mut decoder = Decoder::new(device);
            for _ in 0..20 {
                // The large image lies behind the small one, where the good one is in the next
                // batch.
                let before = decoder.read(&[&small, &large]).unwrap();
                let images = decoder.decode(stream, before).unwrap().synchronize().unwrap();
                decoder.recycle(Event::ready(images));
                let batch = decoder.read(&[&good, &broken]).unwrap();
                let images = decoder.decode(stream, batch).unwrap().synchronize().unwrap();
                assert!(matches!(images.image(1), Err(JpegError::Broken { what: "a restart marker is missing", .. })));
                let place = images.image(0).unwrap().bytes;
                let bytes = stream.read_blocking(&stream.bind(images.rgb).unwrap()).unwrap();
                assert!(bytes[place] == expected, "{device}");
            }
        });
    }
}
